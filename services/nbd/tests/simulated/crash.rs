//! The whole server and clients: what was acknowledged as durable over NBD survives every crash.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use crate::client::{Client, ClientError};
use kernel::connection::{Acceptor, Limits, Peer, Protocol};
use kernel::{Processor, Volume};
use machine::Connection;
use nbd::proto::{cmd, state};
use nbd::{Export, Nbd};
use policy::unit::ProcessorId;
use sim::{DiskConfig, DiskId, HostId, NetworkConfig, World};
use testkit::random::Random;
use testkit::rounds::for_seeds;
use testkit::scene::disk::{add_faults, drawn_switches, open_disk};
use testkit::scene::model::{Model, SECTOR, Stamp, stamped};
use testkit::scene::{Host, accept, drive, run_beside, serving, small_kernel, spawn};

const PORT: u16 = 10809;
/// Sizes of the disk and the cache, in bytes. Small ones crash more often in the same time; on large ones, requests
/// exceed what the server receives at once.
const SMALL: (u64, u64) = (1 << 20, 512 << 10);
const LARGE: (u64, u64) = (8 << 20, 4 << 20);
/// Each has a part of the disk, and one request in flight.
const LANES: u64 = 4;
/// Any lane uses any connection: a flush on one covers what was acknowledged on another.
const CONNECTIONS: u64 = 3;
const LIVES: u64 = 3;
const STEPS_A_LIFE: u64 = 70;

type Models = Vec<Rc<RefCell<Model>>>;

/// The server from one crash to the next.
struct Life {
    host: Host,
    volume: Arc<Volume>,
    nbd: Arc<Nbd>,
    acceptor: Arc<Acceptor>,
}

impl Life {
    fn begin(world: &World, id: HostId, disk: DiskId, cache_bytes: u64, seed: u64) -> Life {
        let host = Host::boot(world, id, small_kernel(2, cache_bytes, drawn_switches(seed)));
        let volume = open_disk(world, &host, disk, seed);
        let nbd = Nbd::new(Limits::default());
        let export =
            Export { name: "disk".into(), description: String::new(), block_size: 1, volume: Arc::clone(&volume) };
        nbd.set_exports(vec![Arc::new(export)]);
        let acceptor = accept(world, &host, PORT, &nbd, Peer::default);
        Life { host, volume, nbd, acceptor }
    }

    /// Orderly shutdown: requests in flight are answered, and acknowledged data is durable if the volume reports it.
    fn end_in_order(&self, world: &World, clients: &Host) -> bool {
        self.nbd.sessions().stop();
        let drained = drive(world, &[&self.host, clients], || serving(&self.acceptor) == 0);
        assert!(drained, "the server does not end: {}", world.describe());
        let volume = Arc::clone(&self.volume);
        let closed = spawn(&self.host.processors[0], async move |cpu| volume.close(&cpu).await.is_ok());
        world.kick(self.host.id, ProcessorId(0));
        drive(world, &[&self.host, clients], || closed.borrow().is_some());
        closed.take().expect("a volume closes")
    }

    fn crash(self, world: &World, power: bool) {
        let Life { host, volume, nbd, .. } = self;
        drop((volume, nbd));
        world.crash(host.id, power);
        host.die();
    }
}

/// Connects to a running server; `None` when it has died meanwhile.
async fn connect(
    world: &World,
    cpu: &Processor,
    from: HostId,
    to: HostId,
    structured: bool,
) -> Option<(Connection, Rc<Client>)> {
    let connection = world.connect(from, to, PORT).ok()?;
    Some((connection, Client::connect(cpu, connection, "disk", structured).await.ok()?))
}

/// One client of the disk, with its own part of it.
struct Lane {
    clients: Rc<RefCell<Vec<Rc<Client>>>>,
    model: Rc<RefCell<Model>>,
    random: Random,
}

impl Lane {
    /// Runs until the connection is gone. Unanswered requests stay in doubt: the server may still execute them.
    async fn run(mut self, first_stamp: Stamp) {
        for stamp in (first_stamp..).take(STEPS_A_LIFE as usize) {
            let client = {
                let clients = self.clients.borrow();
                Rc::clone(&clients[self.random.below(clients.len() as u64) as usize])
            };
            match self.operate(&client, stamp).await {
                Ok(()) | Err(ClientError::Refused(_)) => {}
                Err(ClientError::Gone) => return,
                Err(error @ ClientError::Protocol(_)) => panic!("{error}"),
            }
        }
    }

    fn draw_range(&mut self) -> (u64, u64) {
        let (start, len) = (self.model.borrow().start(), self.model.borrow().sectors());
        let count = 1 + match self.random.below(20) {
            0 => self.random.below(len - 1),
            1..5 => self.random.below(len / 4),
            _ => self.random.below(24),
        };
        (start + self.random.below(len - count + 1), count)
    }

    /// One random request; the model follows it.
    async fn operate(&mut self, client: &Rc<Client>, stamp: Stamp) -> Result<(), ClientError> {
        let (sector, count) = self.draw_range();
        let (offset, len) = (sector * SECTOR, (count * SECTOR) as u32);
        let fua = if self.random.chance(250) { cmd::FLAG_FUA } else { 0 };
        match self.random.below(12) {
            0..4 => {
                self.model.borrow_mut().begin(sector, count, stamp);
                client.request(cmd::WRITE, fua, offset, len, &stamped(count, stamp)).await?;
                self.acknowledge(sector, count, fua);
            }
            4 => {
                let no_hole = if self.random.chance(500) { cmd::FLAG_NO_HOLE } else { 0 };
                let fast = if self.random.chance(200) { cmd::FLAG_FAST_ZERO } else { 0 };
                self.model.borrow_mut().begin(sector, count, 0);
                client.request(cmd::WRITE_ZEROES, fua | no_hole | fast, offset, len, &[]).await?;
                self.acknowledge(sector, count, fua);
            }
            5 => {
                // Partial blocks keep their content; the rest may have either.
                let whole = sector.next_multiple_of(8)..(sector + count) / 8 * 8;
                if whole.start < whole.end {
                    self.model.borrow_mut().begin(whole.start, whole.end - whole.start, 0);
                }
                client.request(cmd::TRIM, fua, offset, len, &[]).await?;
            }
            6 => self.look_at_extents(client, sector, count).await?,
            7 => drop(client.request(cmd::CACHE, 0, offset, len, &[]).await?),
            8..10 => {
                let data = client.read(offset, len).await?;
                self.model.borrow().assert_read(sector, &data);
            }
            _ => {
                client.flush().await?;
                self.model.borrow_mut().flushed();
            }
        }
        Ok(())
    }

    fn acknowledge(&self, sector: u64, count: u64, fua: u16) {
        let mut model = self.model.borrow_mut();
        if fua != 0 { model.acknowledge_durable(sector, count) } else { model.acknowledge(sector, count) }
    }

    /// An extent reported as zero must be zero.
    async fn look_at_extents(&mut self, client: &Rc<Client>, sector: u64, count: u64) -> Result<(), ClientError> {
        let (offset, len) = (sector * SECTOR, count * SECTOR);
        let answer = client.request(cmd::BLOCK_STATUS, 0, offset, len as u32, &[]).await;
        if answer == Err(ClientError::Refused(nbd::proto::NbdError::EINVAL)) {
            return Ok(()); // This one has simple replies.
        }
        let mut at = offset;
        for (len, flags) in answer?.extents {
            let zero = flags & state::ZERO != 0;
            for sector in (at / SECTOR..(at + u64::from(len)) / SECTOR).filter(|_| zero) {
                assert_eq!(self.model.borrow().expected(sector).unwrap_or(0), 0, "sector {sector} is said to be zero");
            }
            at += u64::from(len);
        }
        assert!(at > offset && at <= offset + len, "extents up to {at} for {offset}+{len}");
        Ok(())
    }
}

/// A whole run: several lives of the server, random requests in each, checks after each crash.
fn crash_test(seed: u64, faulty: bool) {
    let mut random = Random(seed);
    let world = World::new(seed);
    world.set_network(NetworkConfig::drawn(seed));
    let id = world.add_host("server");
    let clients = Host::boot(&world, world.add_host("clients"), small_kernel(1, 64 << 10, drawn_switches(seed)));
    let (disk_bytes, cache_bytes) = if random.chance(30) { LARGE } else { SMALL };
    let mut config = DiskConfig::drawn(disk_bytes, seed);
    if faulty {
        add_faults(&mut config, &mut random);
    }
    let disk = world.add_disk(id, config);
    let each = disk_bytes / SECTOR / LANES - 3;
    let models: Models = (0..LANES).map(|lane| Rc::new(RefCell::new(Model::new(lane * each, each)))).collect();
    let mut stamp: Stamp = 1;
    for number in 0..LIVES {
        let life = Life::begin(&world, id, disk, cache_bytes, seed + number);
        verify(&world, &life, &clients, &models);
        live(&world, &life, &clients, &models, &mut random, &mut stamp);
        if random.chance(100) && life.end_in_order(&world, &clients) {
            models.iter().for_each(|model| model.borrow_mut().flushed());
        }
        life.crash(&world, random.chance(700));
    }
    // The disk works again: its content must be right.
    world.set_faults(disk, Default::default());
    let life = Life::begin(&world, id, disk, cache_bytes, seed);
    verify(&world, &life, &clients, &models);
    life.crash(&world, false);
    clients.die();
}

/// Random requests on every part of the disk, up to a random moment.
fn live(world: &World, life: &Life, clients: &Host, models: &Models, random: &mut Random, stamp: &mut Stamp) {
    let cpu = &clients.processors[0];
    let tasks: Rc<RefCell<Vec<_>>> = Rc::default();
    let connections: Rc<RefCell<Vec<Connection>>> = Rc::default();
    let mut lanes: Vec<(Rc<RefCell<Model>>, Random, Stamp)> = Vec::new();
    for (lane, model) in models.iter().enumerate() {
        lanes.push((Rc::clone(model), Random(random.next()), *stamp + lane as u64 * STEPS_A_LIFE));
    }
    *stamp += LANES * STEPS_A_LIFE;
    let structured: Vec<bool> = (0..CONNECTIONS).map(|_| random.chance(500)).collect();
    let (own, from, to) = (world.clone(), clients.id, life.host.id);
    let (all, dialled) = (Rc::clone(&tasks), Rc::clone(&connections));
    let over = Rc::new(Cell::new(false));
    let is_over = Rc::clone(&over);
    let started = spawn(cpu, async move |cpu| {
        let mut made = Vec::new();
        for structured in structured {
            let Some((connection, client)) = connect(&own, &cpu, from, to, structured).await else { return };
            dialled.borrow_mut().push(connection);
            made.push(client);
        }
        // The last one may have reached the server's next life, in which others use this part of the disk.
        if is_over.get() {
            return made.iter().for_each(|client| client.hang_up());
        }
        let made = Rc::new(RefCell::new(made));
        for (model, random, stamp) in lanes {
            let lane = Lane { clients: Rc::clone(&made), model, random };
            all.borrow_mut().push(spawn(&cpu, async move |_| lane.run(stamp).await));
        }
    });
    world.kick(clients.id, cpu.id());
    let mut steps = if random.chance(100) { u64::MAX } else { 100 + random.below(5000) };
    let mut reset_at = if random.chance(150) { random.below(3000) } else { u64::MAX };
    drive(world, &[&life.host, clients], || {
        steps -= 1;
        reset_at = reset_at.wrapping_sub(1);
        if reset_at == 0
            && let Some(&connection) = connections.borrow().first()
        {
            world.reset_connection(connection);
        }
        steps == 0 || (started.borrow().is_some() && tasks.borrow().iter().all(|task| task.borrow().is_some()))
    });
    over.set(true);
}

/// Reads everything over the network and compares it with what the models allow.
fn verify(world: &World, life: &Life, clients: &Host, models: &Models) {
    let (own, from, to, models) = (world.clone(), clients.id, life.host.id, models.clone());
    run_beside(world, clients, &[&life.host, clients], async move |cpu| {
        let (_, client) = connect(&own, &cpu, from, to, true).await.expect("a server");
        for model in models {
            let read = async |sector, count| {
                let data = client.read(sector * SECTOR, (count * SECTOR) as u32).await;
                data.inspect_err(|error| assert!(matches!(error, ClientError::Refused(_)), "{error}"))
            };
            Model::verify(&model, read).await;
        }
        client.hang_up();
    });
}

#[test]
fn what_was_acknowledged_as_durable_survives_every_crash_of_the_server() {
    let name = "what_was_acknowledged_as_durable_survives_every_crash_of_the_server";
    for_seeds(name, 150, |seed| crash_test(seed, false));
}

#[test]
fn what_was_acknowledged_as_durable_survives_crashes_with_a_failing_disk() {
    let name = "what_was_acknowledged_as_durable_survives_crashes_with_a_failing_disk";
    for_seeds(name, 150, |seed| crash_test(seed, true));
}
