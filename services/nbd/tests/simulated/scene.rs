//! A simulated world with a server on one host and its clients on another, and a client that can send any bytes.

use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use crate::client::Client;
use kernel::connection::{self, Acceptor, Limits, LocalUser, Protocol};
use kernel::device::{Checked, DeviceRef, RamDisk};
use kernel::volume::VolumeConfig;
use kernel::{ForcedUnitAccess, Kernel, Processor, Switches, Volume};
use machine::Connection;
use nbd::proto::{NBD_OPTS_MAGIC, NBD_REP_MAGIC, Reader, Request, option, rep};
use nbd::{Export, Nbd};
use policy::unit::{DiskNo, Instant, ProcessorId};
use sim::{HostId, NetworkConfig, World};
pub use testkit::scene::Host;
use testkit::scene::{drive, run_beside, small_kernel};

const PORT: u16 = 10809;

/// The error of a client whose connection the server has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended;

pub struct Setup {
    pub seed: u64,
    pub processors: u16,
    pub memory: u64,
    pub network: NetworkConfig,
    pub limits: Limits,
    pub block_size: u32,
    pub device: DeviceRef,
    pub switches: Switches,
    /// The user of a connection's peer, by the order of connections.
    pub user_of: fn(u16) -> Option<u32>,
}

impl Setup {
    /// A RAM disk of `size` bytes on a faultless network that cuts transfers short. The seed selects switches.
    pub fn new(seed: u64, size: u64) -> Setup {
        let switches = Switches {
            huge_pages: policy::pages::Mode::Small,
            hottest_first: seed & 1 == 0,
            look_ahead: seed & 2 == 0,
            usage: seed & 4 == 0,
            ..Switches::default()
        };
        Setup {
            seed,
            switches,
            processors: 2,
            memory: 32 << 20,
            network: NetworkConfig { backlog_max: 1024, ..NetworkConfig::default() },
            limits: Limits::default(),
            block_size: 1,
            device: Arc::new(RamDisk::new(size, DiskNo(0))),
            user_of: |_| None,
        }
    }
}

/// A server, and a host for its clients.
pub struct Scene {
    pub world: World,
    pub disk: Host,
    pub clients: Host,
    pub nbd: Arc<Nbd>,
    pub volume: Arc<Volume>,
    acceptor: Arc<Acceptor>,
}

impl Scene {
    /// Exports `disk` and, of the same device, `frozen`, which is read-only.
    pub fn new(setup: Setup) -> Scene {
        let world = World::new(setup.seed);
        world.set_network(setup.network);
        let config = small_kernel(setup.processors, setup.memory, setup.switches);
        let disk = Host::boot(&world, world.add_host("disk"), config.clone());
        let config = kernel::KernelConfig { processors: 1, memory_max: 1 << 20, ..config };
        let clients = Host::boot(&world, world.add_host("clients"), config);
        let device: DeviceRef = Arc::new(Checked::new(setup.device));
        let open = |read_only| {
            let forced_unit_access = ForcedUnitAccess::Always;
            let config = VolumeConfig { name: "disk".to_owned(), read_only, forced_unit_access, grows: false };
            Volume::open(&disk.kernel, Arc::clone(&device), config, ProcessorId(0)).expect("a number")
        };
        let volume = open(false);
        let export = |name: &str, volume: Arc<Volume>| {
            let description = format!("the {name}");
            Arc::new(Export { name: name.to_owned(), description, block_size: setup.block_size, volume })
        };
        let nbd = Nbd::new(setup.limits);
        nbd.set_exports(vec![export("disk", Arc::clone(&volume)), export("frozen", open(true))]);
        let (turn, user_of) = (AtomicU16::new(0), setup.user_of);
        let peer = move || {
            let user = user_of(turn.fetch_add(1, Ordering::Relaxed));
            let user = user.map(|uid| LocalUser { uid, gid: uid, groups: Vec::new() });
            connection::Peer { user, ..Default::default() }
        };
        let acceptor = testkit::scene::accept(&world, &disk, PORT, &nbd, peer);
        Scene { world, disk, clients, nbd, volume, acceptor }
    }

    /// Runs a task of the clients to its end.
    pub fn run<T: 'static>(&self, task: impl AsyncFnOnce(Processor, Route) -> T + 'static) -> T {
        let (nbd, kernel) = (Arc::clone(&self.nbd), Arc::clone(&self.disk.kernel));
        let route = Route { world: self.world.clone(), from: self.clients.id, to: self.disk.id, nbd, kernel };
        run_beside(&self.world, &self.clients, &[&self.disk, &self.clients], async move |cpu| task(cpu, route).await)
    }

    /// Runs the world until `done`; false when nothing happens any more.
    pub fn until(&self, done: impl FnMut() -> bool) -> bool {
        drive(&self.world, &[&self.disk, &self.clients], done)
    }

    /// Asserts that the server ends every connection, once the clients are gone.
    pub fn assert_all_ends(&self) {
        let ended = self.until(|| self.serving() == 0);
        assert!(ended, "{} connections are still served: {}", self.serving(), self.world.describe());
    }

    /// Asserts that all resources of connections are freed; `tasks`: the tasks before they began.
    pub fn assert_nothing_is_left(&self, tasks: usize) {
        let sessions = self.nbd.sessions();
        testkit::scene::assert_nothing_is_left(&self.world, &self.disk, &self.clients, sessions, tasks);
    }

    pub fn serving(&self) -> usize {
        testkit::scene::serving(&self.acceptor)
    }
}

/// Serves the clients of `task`, after which every connection must end.
pub fn serve<T: 'static>(setup: Setup, task: impl AsyncFnOnce(Processor, Route) -> T + 'static) -> T {
    let scene = Scene::new(setup);
    let result = scene.run(task);
    scene.assert_all_ends();
    result
}

/// A client that keeps to the protocol. It hangs up when nobody uses it any more.
pub struct Connected(Rc<Client>);

impl Deref for Connected {
    type Target = Rc<Client>;

    fn deref(&self) -> &Rc<Client> {
        &self.0
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.hang_up();
    }
}

/// From the clients to the server, with what tests look at there.
pub struct Route {
    world: World,
    from: HostId,
    to: HostId,
    pub nbd: Arc<Nbd>,
    pub kernel: Arc<Kernel>,
}

impl Route {
    /// Stops the server, as SIGSTOP does, or lets it go on.
    pub fn pause(&self, is_paused: bool) {
        self.world.pause(self.to, is_paused);
    }

    /// A connection on which nothing was sent.
    pub fn connect(&self) -> Connection {
        self.world.connect(self.from, self.to, PORT).expect("the server listens")
    }

    pub async fn client(&self, cpu: &Processor, export: &str, structured: bool) -> Rc<Connected> {
        let client = Client::connect(cpu, self.connect(), export, structured).await.expect("an export");
        Rc::new(Connected(client))
    }

    /// A client that can send any bytes.
    pub fn peer(&self, cpu: &Processor) -> Peer {
        Peer { cpu: cpu.clone(), connection: self.connect() }
    }

    /// The same, after the greeting.
    pub async fn greeted(&self, cpu: &Processor) -> Peer {
        let mut peer = self.peer(cpu);
        peer.greet(3).await.expect("a greeting");
        peer
    }

    /// The same, after it has agreed on `export` with simple replies.
    pub async fn peer_of(&self, cpu: &Processor, export: &str) -> Peer {
        let mut peer = self.greeted(cpu).await;
        peer.option(option::GO, &go(export)).await.expect("an answer");
        while peer.option_reply().await.expect("an answer").kind != rep::ACK {}
        peer
    }
}

/// The data of `NBD_OPT_GO` and `NBD_OPT_INFO` for an export.
pub fn go(export: &str) -> Vec<u8> {
    [&(export.len() as u32).to_be_bytes(), export.as_bytes(), &0_u16.to_be_bytes()].concat()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionReply {
    pub option: u32,
    pub kind: u32,
    pub payload: Vec<u8>,
}

/// A client byte by byte.
pub struct Peer {
    cpu: Processor,
    connection: Connection,
}

impl Peer {
    /// Receives the greeting and answers with `flags`.
    pub async fn greet(&mut self, flags: u32) -> Result<(), Ended> {
        let greeting = self.receive(18).await?;
        assert_eq!(greeting, [&b"NBDMAGICIHAVEOPT"[..], &[0, 3]].concat());
        self.send(&flags.to_be_bytes()).await
    }

    pub async fn option(&mut self, option: u32, payload: &[u8]) -> Result<(), Ended> {
        self.option_header(NBD_OPTS_MAGIC, option, payload.len() as u32).await?;
        self.send(payload).await
    }

    /// Sends an option's header alone.
    pub async fn option_header(&mut self, magic: u64, option: u32, len: u32) -> Result<(), Ended> {
        self.send(&[&magic.to_be_bytes()[..], &option.to_be_bytes(), &len.to_be_bytes()].concat()).await
    }

    pub async fn option_reply(&mut self) -> Result<OptionReply, Ended> {
        let header = self.receive(20).await?;
        let mut at = Reader::new(&header);
        assert_eq!(at.u64(), Some(NBD_REP_MAGIC));
        let (option, kind, len) = (at.u32().unwrap_or(0), at.u32().unwrap_or(0), at.u32().unwrap_or(0));
        Ok(OptionReply { option, kind, payload: self.receive(len as usize).await? })
    }

    /// Sends an option and receives the replies up to the last one.
    pub async fn ask(&mut self, option: u32, payload: &[u8]) -> Result<Vec<OptionReply>, Ended> {
        self.option(option, payload).await?;
        let mut replies = Vec::new();
        loop {
            let reply = self.option_reply().await?;
            assert_eq!(reply.option, option);
            let last = reply.kind == rep::ACK || reply.kind & rep::ERR != 0;
            replies.push(reply);
            if last {
                return Ok(replies);
            }
        }
    }

    pub async fn ask_last(&mut self, option: u32, payload: &[u8]) -> Result<u32, Ended> {
        Ok(self.ask(option, payload).await?.last().map_or(0, |reply| reply.kind))
    }

    pub async fn request(&mut self, request: Request, payload: &[u8]) -> Result<(), Ended> {
        self.send(&[&request.encode()[..], payload].concat()).await
    }

    /// Receives a simple reply without data: its error and cookie.
    pub async fn simple_reply(&mut self) -> Result<(u32, u64), Ended> {
        let header = self.receive(16).await?;
        let mut at = Reader::new(&header);
        assert_eq!(at.u32(), Some(nbd::proto::NBD_SIMPLE_REPLY_MAGIC));
        Ok((at.u32().unwrap_or(0), at.u64().unwrap_or(0)))
    }

    /// Sends a request and receives its reply, which has no data; returns the error.
    pub async fn error_of(&mut self, request: Request, payload: &[u8]) -> Result<u32, Ended> {
        self.request(request, payload).await?;
        let (error, cookie) = self.simple_reply().await?;
        assert_eq!(cookie, request.cookie);
        Ok(error)
    }

    pub async fn send(&mut self, bytes: &[u8]) -> Result<(), Ended> {
        connection::send_all(&self.cpu, self.connection, bytes.to_vec()).await.map_err(|_| Ended)
    }

    pub async fn receive(&mut self, len: usize) -> Result<Vec<u8>, Ended> {
        connection::receive_exact(&self.cpu, self.connection, len).await.map_err(|_| Ended)
    }

    /// Reads until the server ends the connection; returns when that was.
    pub async fn until_end(&mut self) -> Instant {
        while self.receive(1).await.is_ok() {}
        self.cpu.now()
    }

    pub async fn pause(&self, duration: Duration) {
        self.cpu.sleep(duration).await;
    }
}

/// It hangs up.
impl Drop for Peer {
    fn drop(&mut self) {
        self.cpu.shutdown(self.connection);
        self.cpu.close(self.connection);
    }
}

/// A request with a distinct cookie.
pub fn request(kind: u16, offset: u64, len: u32) -> Request {
    Request { flags: 0, kind, cookie: offset ^ u64::from(len) << 32 ^ u64::from(kind), offset, len }
}
