//! A simulated world with a server on one host and clients on another, a client that sends arbitrary bytes, and
//! procedures that only report what arrived.

mod decoder;
mod hostile;
mod registration;
mod wire;

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kernel::connection::{self, Acceptor, Protocol, Session, Sessions};
use kernel::job::{Client, JobId};
use kernel::{FRAME_BYTES, Frames, Kernel, Processor, Switches};
use machine::Connection;
use nfs3_types::nfs3::NFS_PROGRAM;
use nfs3_types::rpc::auth_stat;
use parking_lot::Mutex;
use policy::unit::Instant;
use sim::{HostId, NetworkConfig, World};

use crate::call::{Call, Results};
use crate::client::Credentials;
use crate::nfs::{Limits, Nfs};
use crate::program::{Program, TRANSFER_BYTES_MAX};
use crate::shape::Cursor;
use crate::transmission::{Calls, Perform};
use testkit::random::Random;
use testkit::rounds::for_seeds;
use testkit::scene::{Host, accept, assert_nothing_is_left, drive, run_beside, serving, small_kernel};

const MIB: u64 = 1 << 20;
const PORT: u16 = 2049;
const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const NFS: u32 = nfs3_types::nfs3::PROGRAM;
const MOUNT: u32 = nfs3_types::mount::PROGRAM;

/// The server has ended the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ended;

/// A call as it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    program: Program,
    procedure: u32,
    credentials: Credentials,
    arguments: Vec<u8>,
    data: Option<Vec<u8>>,
    job: JobId,
}

/// Observations of the stand-in for the procedures.
#[derive(Default)]
struct Log {
    seen: Mutex<Vec<Seen>>,
    under_way: AtomicUsize,
    most_under_way: AtomicUsize,
}

impl Log {
    fn take(&self) -> Vec<Seen> {
        std::mem::take(&mut self.seen.lock())
    }
}

fn content(at: u64) -> u8 {
    at.wrapping_mul(31).wrapping_add((at / 4096).wrapping_mul(7)) as u8
}

/// GETATTR replies after the number of milliseconds in its handle, READ returns [`content`], WRITE the length of its
/// data, LOOKUP its arguments; others return one kind of results each.
async fn stand_in(call: &mut Call, log: Arc<Log>) -> Results {
    let now = log.under_way.fetch_add(1, Ordering::SeqCst) + 1;
    log.most_under_way.fetch_max(now, Ordering::SeqCst);
    let data = call.payload.as_ref().map(|payload| {
        let all: Vec<u8> = payload.frames.iter().flat_map(|frame| frame.bytes().to_vec()).collect();
        let (start, len) = (payload.write.start(), payload.write.data_len as usize);
        assert_eq!(all.len(), if len == 0 { 0 } else { (start + len).next_multiple_of(4096) });
        if all.is_empty() { all } else { all[start..start + len].to_vec() }
    });
    let Call { cpu, program, procedure, credentials, arguments, job, .. } = call;
    let (program, procedure, job) = (*program, *procedure, *job);
    let (credentials, arguments) = (credentials.clone(), std::mem::take(arguments));
    let results = results(cpu, program, procedure, &arguments, data.as_deref()).await;
    assert_eq!(cpu.job(), job, "whoever else was served meanwhile");
    log.seen.lock().push(Seen { program, procedure, credentials, arguments, data, job });
    log.under_way.fetch_sub(1, Ordering::SeqCst);
    results
}

async fn results(cpu: &Processor, program: Program, procedure: u32, arguments: &[u8], data: Option<&[u8]>) -> Results {
    if procedure == 0 {
        return Results::Bytes(Vec::new());
    }
    let Ok(procedure) = NFS_PROGRAM::try_from(procedure) else { return Results::ProcedureUnavailable };
    if program == Program::Mount {
        return Results::ProcedureUnavailable;
    }
    let mut at = Cursor(arguments);
    let Some(handle) = at.opaque(64) else { return Results::GarbageArguments };
    match procedure {
        NFS_PROGRAM::NFSPROC3_GETATTR => {
            let wait = Cursor(handle).u32().unwrap_or(0).min(5000);
            cpu.sleep(Duration::from_millis(wait.into())).await;
            Results::Bytes(handle.to_vec())
        }
        NFS_PROGRAM::NFSPROC3_LOOKUP => Results::Bytes(arguments.to_vec()),
        NFS_PROGRAM::NFSPROC3_ACCESS => Results::AuthError(auth_stat::AUTH_TOOWEAK),
        NFS_PROGRAM::NFSPROC3_READLINK => Results::SystemError,
        NFS_PROGRAM::NFSPROC3_FSSTAT => Results::Silence,
        NFS_PROGRAM::NFSPROC3_COMMIT => Results::GarbageArguments,
        NFS_PROGRAM::NFSPROC3_WRITE => Results::Bytes((data.map_or(0, <[u8]>::len) as u32).to_be_bytes().to_vec()),
        NFS_PROGRAM::NFSPROC3_READ => {
            let (Some(high), Some(low), Some(count)) = (at.u32(), at.u32(), at.u32()) else {
                return Results::GarbageArguments;
            };
            read(cpu, u64::from(high) << 32 | u64::from(low), count.min(TRANSFER_BYTES_MAX) as usize).await
        }
        _ => Results::ProcedureUnavailable,
    }
}

async fn read(cpu: &Processor, offset: u64, len: usize) -> Results {
    let skip = (offset % FRAME_BYTES as u64) as usize;
    let count = if len == 0 { 0 } else { (skip + len).div_ceil(FRAME_BYTES) };
    let mut frames: Frames = cpu.kernel().allocate(cpu, count).await;
    for (no, frame) in frames.iter_mut().enumerate() {
        let base = (offset - skip as u64).wrapping_add((no * FRAME_BYTES) as u64);
        let bytes = frame.bytes_mut().expect("its only share");
        bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = content(base.wrapping_add(at as u64)));
    }
    Results::Data { head: (len as u32).to_be_bytes().to_vec(), frames, skip, len }
}

struct Setup {
    seed: u64,
    memory: u64,
    network: NetworkConfig,
    limits: Limits,
}

impl Setup {
    fn new(seed: u64) -> Setup {
        let network = NetworkConfig { backlog_max: 1024, ..NetworkConfig::default() };
        Setup { seed, memory: 32 << 20, network, limits: Limits::default() }
    }
}

/// NFS, with [`stand_in`] in place of the procedures.
struct StandIn {
    nfs: Arc<Nfs>,
    log: Arc<Log>,
}

impl Perform for Arc<Log> {
    async fn perform(&self, call: &mut Call) -> Results {
        stand_in(call, Arc::clone(self)).await
    }
}

impl Protocol for StandIn {
    type Handler = Calls<Arc<Log>>;

    const NAME: &'static str = "test";

    fn sessions(&self) -> &Arc<Sessions> {
        self.nfs.sessions()
    }

    async fn open(self: &Arc<Self>, session: &Session, peer: &connection::Peer) -> Option<Calls<Arc<Log>>> {
        Calls::new(&self.nfs, session, peer, Arc::clone(&self.log))
    }
}

/// A server, and a host for its clients.
struct Scene {
    world: World,
    disk: Host,
    clients: Host,
    nfs: Arc<Nfs>,
    log: Arc<Log>,
    acceptor: Arc<Acceptor>,
}

impl Scene {
    fn new(setup: Setup) -> Scene {
        let world = World::new(setup.seed);
        world.set_network(setup.network);
        let look_ahead = setup.seed & 1 == 0;
        let switches = Switches { huge_pages: policy::pages::Mode::Small, look_ahead, ..Switches::default() };
        let config = small_kernel(2, setup.memory, switches);
        let disk = Host::boot(&world, world.add_host("disk"), config.clone());
        let config = kernel::KernelConfig { processors: 1, memory_max: 1 << 20, ..config };
        let clients = Host::boot(&world, world.add_host("clients"), config);
        let (nfs, log) = (Nfs::new([7; 32], setup.limits, Vec::new()), Arc::default());
        let stand_in = Arc::new(StandIn { nfs: Arc::clone(&nfs), log: Arc::clone(&log) });
        let address = Some(SocketAddr::from((CLIENT, 700)));
        let peer = move || connection::Peer { address, ..Default::default() };
        let acceptor = accept(&world, &disk, PORT, &stand_in, peer);
        Scene { world, disk, clients, nfs, log, acceptor }
    }

    /// Runs a task of the clients to its end.
    fn run<T: 'static>(&self, task: impl AsyncFnOnce(Processor, Route) -> T + 'static) -> T {
        let (world, from, to) = (self.world.clone(), self.clients.id, self.disk.id);
        let (log, nfs, kernel) = (Arc::clone(&self.log), Arc::clone(&self.nfs), Arc::clone(&self.disk.kernel));
        let route = Route { world, from, to, log, nfs, kernel };
        run_beside(&self.world, &self.clients, &[&self.disk, &self.clients], async move |cpu| task(cpu, route).await)
    }

    /// Runs the world until `done`; false if nothing happens any more.
    fn until(&self, done: impl FnMut() -> bool) -> bool {
        drive(&self.world, &[&self.disk, &self.clients], done)
    }

    /// Asserts that the server releases every connection and its resources.
    fn assert_all_ends(&self) {
        let ended = self.until(|| serving(&self.acceptor) == 0);
        assert!(ended, "connections are still served: {}", self.world.describe());
        assert_eq!(self.log.under_way.load(Ordering::SeqCst), 0, "calls are under way of clients that are gone");
    }
}

/// Serves the clients of `task`, after which every connection must end.
fn serve(setup: Setup, task: impl AsyncFnOnce(Processor, Route) + 'static) {
    let scene = Scene::new(setup);
    scene.run(task);
    scene.assert_all_ends();
}

/// From the clients to the server, with what tests look at there.
struct Route {
    world: World,
    from: HostId,
    to: HostId,
    log: Arc<Log>,
    nfs: Arc<Nfs>,
    kernel: Arc<Kernel>,
}

impl Route {
    fn peer(&self, cpu: &Processor) -> Peer {
        let connection = self.world.connect(self.from, self.to, PORT).expect("the server listens");
        Peer { cpu: cpu.clone(), connection }
    }
}

/// A reply: its `xid`, and what follows REPLY.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Answer {
    xid: u32,
    words: Vec<u32>,
}

impl Answer {
    /// The status and the results of an accepted call.
    fn accepted(&self) -> (u32, &[u32]) {
        assert_eq!(self.words[..3], [0, 0, 0], "accepted, with an empty verifier: {self:?}");
        (self.words[3], &self.words[4..])
    }

    fn results(&self) -> Vec<u8> {
        let (status, words) = self.accepted();
        assert_eq!(status, 0, "success");
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }
}

/// A client that sends raw bytes.
struct Peer {
    cpu: Processor,
    connection: Connection,
}

impl Peer {
    async fn send(&mut self, bytes: &[u8]) -> Result<(), Ended> {
        kernel::connection::send_all(&self.cpu, self.connection, bytes.to_vec()).await.map_err(|_| Ended)
    }

    async fn receive(&mut self, len: usize) -> Result<Vec<u8>, Ended> {
        kernel::connection::receive_exact(&self.cpu, self.connection, len).await.map_err(|_| Ended)
    }

    async fn answer(&mut self) -> Result<Answer, Ended> {
        let mark = self.receive(4).await?;
        let mark = u32::from_be_bytes(mark.try_into().expect("4 bytes"));
        assert!(mark >> 31 == 1, "replies have one fragment");
        let body = self.receive((mark & !(1 << 31)) as usize).await?;
        let (words, rest) = body.as_chunks();
        assert!(rest.is_empty() && words.len() >= 4, "XDR has whole words");
        let words: Vec<u32> = words.iter().map(|word| u32::from_be_bytes(*word)).collect();
        assert_eq!(words[1], 1, "REPLY");
        Ok(Answer { xid: words[0], words: words[2..].to_vec() })
    }

    /// Sends a call in one fragment and receives the next reply.
    async fn ask(&mut self, message: &[u8]) -> Result<Answer, Ended> {
        self.send(&record(message)).await?;
        self.answer().await
    }

    /// Receives until the server ends the connection; returns the time.
    async fn until_end(&mut self) -> Instant {
        while self.receive(1).await.is_ok() {}
        self.cpu.now()
    }
}

/// It hangs up.
impl Drop for Peer {
    fn drop(&mut self) {
        self.cpu.shutdown(self.connection);
        self.cpu.close(self.connection);
    }
}

/// Words, then bytes as an opaque without its length, padded.
fn xdr(words: &[u32], bytes: &[u8]) -> Vec<u8> {
    let mut all: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    all.extend_from_slice(bytes);
    all.resize(all.len().next_multiple_of(4), 0);
    all
}

fn opaque(bytes: &[u8]) -> Vec<u8> {
    xdr(&[bytes.len() as u32], bytes)
}

/// A call without credentials.
fn call(xid: u32, procedure: NFS_PROGRAM, arguments: &[u8]) -> Vec<u8> {
    [&xdr(&[xid, 0, 2, NFS, 3, procedure as u32, 0, 0, 0, 0], &[]), arguments].concat()
}

/// A call by a user without supplementary groups.
fn call_by(uid: u32, xid: u32, procedure: NFS_PROGRAM, arguments: &[u8]) -> Vec<u8> {
    let user = xdr(&[0, 0, uid, 100, 0], &[]);
    [&xdr(&[xid, 0, 2, NFS, 3, procedure as u32, 1], &[]), &opaque(&user), &xdr(&[0, 0], &[])[..], arguments].concat()
}

fn null(xid: u32) -> Vec<u8> {
    call(xid, NFS_PROGRAM::NFSPROC3_NULL, &[])
}

/// A GETATTR that is answered after this time. Its results: the time.
fn wait(xid: u32, milliseconds: u32) -> Vec<u8> {
    call(xid, NFS_PROGRAM::NFSPROC3_GETATTR, &opaque(&milliseconds.to_be_bytes()))
}

fn lookup(xid: u32, name: &[u8]) -> Vec<u8> {
    call(xid, NFS_PROGRAM::NFSPROC3_LOOKUP, &[opaque(b"directory"), opaque(name)].concat())
}

fn read_call(xid: u32, offset: u64, count: u32) -> Vec<u8> {
    let range = xdr(&[(offset >> 32) as u32, offset as u32, count], &[]);
    call(xid, NFS_PROGRAM::NFSPROC3_READ, &[opaque(b"a file"), range].concat())
}

fn write_arguments(offset: u64, count: u32) -> Vec<u8> {
    [opaque(b"a file!"), xdr(&[(offset >> 32) as u32, offset as u32, count, 2], &[])].concat()
}

fn write_call(xid: u32, offset: u64, data: &[u8]) -> Vec<u8> {
    let arguments = [write_arguments(offset, data.len() as u32), opaque(data)].concat();
    call(xid, NFS_PROGRAM::NFSPROC3_WRITE, &arguments)
}

/// A record of one fragment.
fn record(message: &[u8]) -> Vec<u8> {
    fragments(message, &[])
}

/// A record with fragments of these lengths and one for the rest.
fn fragments(message: &[u8], lengths: &[usize]) -> Vec<u8> {
    let mut all = Vec::new();
    let mut rest = message;
    for len in lengths {
        let (here, next) = rest.split_at((*len).min(rest.len()));
        all.extend_from_slice(&(here.len() as u32).to_be_bytes());
        all.extend_from_slice(here);
        rest = next;
    }
    all.extend_from_slice(&(rest.len() as u32 | 1 << 31).to_be_bytes());
    all.extend_from_slice(rest);
    all
}
