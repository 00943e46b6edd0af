//! The whole monitor and its terminals: PostgreSQL's protocol over a network, programs in WebAssembly, the store, a kernel
//! and a disk, all simulated but for the programs, which are executed. What terminals are told must be strictly
//! serializable, over every crash.

mod program;
mod savepoints;
mod sessions;
mod terminal;
mod untold;
mod workload;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use kernel::Volume;
use kernel::connection::{Acceptor, Limits, Peer, Protocol};
use sim::{DiskConfig, DiskFaults, DiskId, HostId, NetworkConfig, World};
use testkit::random::Random;
use testkit::rounds::for_seeds;
use testkit::scene::disk::{add_faults, drawn_switches, open_disk};
use testkit::scene::{Host, accept, drive, run_beside, serving, small_kernel, spawn};
use transactions::Monitor;
use transactions::program::Programs;
use transactions::store::Database;
use transactions::terminal::Terminals;

use terminal::PORT;
use workload::{Client, Plan, Record, look_at_all};

const DISK_BYTES: u64 = 8 << 20;
const CACHE_BYTES: u64 = 2 << 20;

/// A run.
#[derive(Clone, Copy)]
struct Run {
    is_faulty: bool,
    terminals: u64,
    lives: u64,
    /// Of each terminal in each life.
    transactions: u64,
    plan: Plan,
}

const FEW_KEYS: Run =
    Run { is_faulty: false, terminals: 4, lives: 3, transactions: 20, plan: Plan { keys: 8, row_max: 20, calls: 4 } };

/// Rows are long, so that checkpoints come one after the other.
const MUCH: Run = Run { transactions: 60, plan: Plan { keys: 200, row_max: 900, calls: 12 }, ..FEW_KEYS };

/// The server from one crash to the next.
struct Life {
    host: Host,
    volume: Arc<Volume>,
    monitor: Arc<Monitor>,
    terminals: Arc<Terminals>,
    acceptor: Arc<Acceptor>,
}

/// What outlives the server.
struct Scene {
    world: World,
    server: HostId,
    clients: Host,
    disk: DiskId,
    faults: DiskFaults,
    programs: tempfile::TempDir,
    record: Rc<RefCell<Record>>,
}

impl Scene {
    fn new(seed: u64, run: Run, random: &mut Random) -> Scene {
        let mut config = DiskConfig::drawn(DISK_BYTES, seed);
        if run.is_faulty {
            add_faults(&mut config, random);
        }
        Scene::on(seed, config)
    }

    fn on(seed: u64, config: DiskConfig) -> Scene {
        let world = World::new(seed);
        world.set_network(NetworkConfig::drawn(seed));
        let server = world.add_host("server");
        let clients = Host::boot(&world, world.add_host("clients"), small_kernel(1, 64 << 10, drawn_switches(seed)));
        let faults = config.faults;
        let disk = world.add_disk(server, config);
        let programs = tempfile::tempdir().expect("a directory");
        let module = wat::parse_str(program::PROGRAM).expect("the test's module is right");
        std::fs::write(programs.path().join("test.wasm"), module).expect("written");
        Scene { world, server, clients, disk, faults, programs, record: Rc::default() }
    }

    /// Recovers from a disk that works: an error would only end it, which has a test of its own.
    fn begin(&self, seed: u64) -> Life {
        self.world.set_faults(self.disk, DiskFaults::default());
        let kernel = small_kernel(1 + (seed % 2) as u16, CACHE_BYTES, drawn_switches(seed));
        let host = Host::boot(&self.world, self.server, kernel);
        let volume = open_disk(&self.world, &host, self.disk, seed);
        let opened = Arc::clone(&volume);
        let open = async move |cpu| Database::open(&cpu, opened).await.expect("a database");
        let database = run_beside(&self.world, &host, &[&host, &self.clients], open);
        let (programs, faults) = Programs::load(self.programs.path());
        assert_eq!(faults, []);
        let monitor = Monitor::new("bank".to_owned(), database, programs);
        let terminals = Terminals::new(Limits::default(), [7; 32]);
        terminals.offer(Arc::clone(&monitor));
        let acceptor = accept(&self.world, &host, PORT, &terminals, Peer::default);
        Life { host, volume, monitor, terminals, acceptor }
    }

    fn client(&self, random: Random, plan: Plan) -> Client {
        let (cpu, world, host) = (self.clients.processors[0].clone(), self.world.clone(), self.clients.id);
        Client { cpu, world, host, server: self.server, record: Rc::clone(&self.record), random, plan }
    }

    /// Reads everything, as a terminal.
    fn verify(&self, life: &Life, plan: Plan) {
        let mut client = self.client(Random(0), plan);
        run_beside(&self.world, &self.clients, &[&life.host, &self.clients], async move |_| {
            look_at_all(&mut client).await;
        });
        if let Err(anomaly) = self.record.borrow().history.check() {
            panic!("{anomaly}");
        }
    }

    /// Terminals at work, up to a random moment. Returns whether all have ended.
    fn live(&self, life: &Life, run: Run, random: &mut Random) -> bool {
        self.world.set_faults(self.disk, self.faults);
        let cpu = &self.clients.processors[0];
        let tasks: Vec<_> = (0..run.terminals)
            .map(|_| {
                let client = self.client(Random(random.next()), run.plan);
                spawn(cpu, async move |_| client.work(run.transactions).await)
            })
            .collect();
        self.world.kick(self.clients.id, cpu.id());
        let told = self.record.borrow().told;
        // In the middle of something, or just when somebody was told of a commit.
        let (mut steps, mut commits) = (u64::MAX, u64::MAX);
        match random.below(10) {
            0..5 => steps = 100 + random.below(run.terminals * run.transactions * 100),
            5..9 => commits = told + 1 + random.below(run.terminals * run.transactions / 2),
            _ => {}
        }
        let mut has_ended = false;
        let ended = drive(&self.world, &[&life.host, &self.clients], || {
            steps -= 1;
            has_ended = tasks.iter().all(|task| task.borrow().is_some());
            steps == 0 || has_ended || self.record.borrow().told >= commits
        });
        assert!(ended, "somebody waits for ever: {}", self.world.describe());
        has_ended
    }

    /// In order: what is under way is answered, and nothing is left to be replayed.
    fn end_in_order(&self, life: &Life) {
        self.world.set_faults(self.disk, DiskFaults::default());
        life.terminals.sessions().stop();
        let hosts = [&life.host, &self.clients];
        let drained = drive(&self.world, &hosts, || serving(&life.acceptor) == 0);
        assert!(drained, "the server does not end: {}", self.world.describe());
        let (monitor, volume) = (Arc::clone(&life.monitor), Arc::clone(&life.volume));
        run_beside(&self.world, &life.host, &hosts, async move |cpu| {
            while let Err(error) = monitor.database().close(&cpu).await {
                if volume.loss().is_some() {
                    return;
                }
                println!("not closed yet: {error}");
                cpu.sleep(std::time::Duration::from_secs(1)).await;
            }
            assert_eq!(monitor.database().reading().unmerged_bytes, 0, "a clean end leaves nothing to replay");
            volume.close(&cpu).await.expect("a disk that works");
        });
    }

    fn crash(&self, life: Life, is_power_cut: bool) {
        let Life { host, volume, monitor, terminals, .. } = life;
        drop((volume, monitor, terminals));
        self.world.crash(host.id, is_power_cut);
        host.die();
    }
}

fn crash_test(seed: u64, run: Run) {
    let mut random = Random(seed);
    let scene = Scene::new(seed, run, &mut random);
    let mut checkpoints = 0;
    for number in 0..run.lives {
        let life = scene.begin(seed + number);
        scene.verify(&life, run.plan);
        let all_ended = scene.live(&life, run, &mut random);
        checkpoints += life.monitor.database().reading().checkpoints;
        if all_ended && random.chance(300) {
            scene.end_in_order(&life);
        }
        scene.crash(life, random.chance(700));
    }
    let life = scene.begin(seed);
    scene.verify(&life, run.plan);
    scene.crash(life, false);
    scene.clients.die();
    let record = scene.record.borrow();
    let checked = record.history.check().expect("it was right before");
    println!(
        "seed {seed}: {} transactions, {checked:?}, {} told, {} conflicts, {} cancelled, {} failures, {checkpoints} checkpoints",
        record.history.transactions.len(),
        record.told,
        record.conflicts,
        record.cancelled,
        record.failures,
    );
}

#[test]
fn what_terminals_are_told_is_serializable_over_every_crash() {
    for_seeds("what_terminals_are_told_is_serializable_over_every_crash", 60, |seed| crash_test(seed, FEW_KEYS));
}

#[test]
fn what_terminals_are_told_is_serializable_with_a_failing_disk() {
    for_seeds("what_terminals_are_told_is_serializable_with_a_failing_disk", 60, |seed| {
        crash_test(seed, Run { is_faulty: true, ..FEW_KEYS });
    });
}

#[test]
fn what_terminals_are_told_is_serializable_while_checkpoints_are_made() {
    for_seeds("what_terminals_are_told_is_serializable_while_checkpoints_are_made", 12, |seed| {
        crash_test(seed, Run { is_faulty: seed % 3 == 2, ..MUCH });
    });
}
