//! Mutated conversations of every protocol, and many short connections: well-behaved clients are served meanwhile, the
//! server's resources return to what they were before, and it ends in time.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nfs3_types::nfs3::stable_how;
use testkit::process::Holdings;
use testkit::random::Random;
use testkit::rounds::{Rounds, is_long};
use testkit::server::{Sandbox, Server, nfs_port};
use testkit::{conversation, mutate, nbd, nfs};
use transactions::program::BANK;

use crate::terminal::{Answer, Terminal};

/// Hostile connections between two checks of the well-behaved clients.
const CHECK_EVERY: usize = 64;

/// Connections before the server's resources are recorded for the first time.
const WARM_UP: usize = 256;

/// A hostile client waits this long for an answer, or for the end of its connection.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(250);

/// Resources must return to their start within this time, which is longer than any of the server's timeouts.
const RETURN_TIME: Duration = Duration::from_secs(60);

/// Size of the disk that is attacked: more than the cache holds.
const DISK: u64 = 64 << 20;

/// Files that the server has open, each with three descriptors at most.
const OPEN_FILES: usize = 64;

/// Threads for calls about files are started on demand, up to this bound.
const THREADS: usize = 16;

/// Memory that may be held for other reasons than connections: filling caches, fragmentation of the heap.
const RESIDENT_SLACK: u64 = 6 << 20;

/// Bytes that a connection may leak, on average over many.
const RESIDENT_PER_CONNECTION: u64 = 100;

/// A server with all its listeners.
struct Target {
    server: Server,
    nfs: u16,
    postgresql: PathBuf,
    metrics: SocketAddr,
    control: PathBuf,
    conversations: Vec<(Listener, Vec<Vec<u8>>)>,
    good: WellBehaved,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listener {
    Nbd,
    Nfs,
    Postgresql,
    Http,
    Control,
}

/// Well-behaved clients of disks, directories and databases.
struct WellBehaved {
    disk: nbd::Client,
    directory: nfs::Client,
    file: nfs3_types::nfs3::nfs_fh3,
    terminal: Terminal,
    checks: u64,
}

trait Stream: Read + Write {
    fn set_timeouts(&self, time: Duration);
    fn end_sending(&self);
}

impl Stream for TcpStream {
    fn set_timeouts(&self, time: Duration) {
        self.set_read_timeout(Some(time)).and_then(|()| self.set_write_timeout(Some(time))).expect("a timeout");
    }

    fn end_sending(&self) {
        let _ = self.shutdown(Shutdown::Write);
    }
}

impl Stream for UnixStream {
    fn set_timeouts(&self, time: Duration) {
        self.set_read_timeout(Some(time)).and_then(|()| self.set_write_timeout(Some(time))).expect("a timeout");
    }

    fn end_sending(&self) {
        let _ = self.shutdown(Shutdown::Write);
    }
}

impl Target {
    fn new(sandbox: &Sandbox) -> Target {
        std::fs::create_dir_all(sandbox.file("hostile")).expect("directory");
        std::fs::create_dir_all(sandbox.file("good")).expect("directory");
        std::fs::write(sandbox.file("hostile/data"), [9; 10_000]).expect("file");
        std::fs::write(sandbox.file("good/data"), "").expect("file");
        std::fs::create_dir_all(sandbox.file("programs")).expect("directory");
        std::fs::write(sandbox.file("programs/bank.wasm"), BANK).expect("file");
        let database = "[[database]]\nname = \"bank\"\npath = \"bank.db\"\nsize = \"48MiB\"\nprograms = \"programs\"\n";
        let limits = format!("[limits]\nstall_timeout = \"2s\"\nopen_files = {OPEN_FILES}\n");
        sandbox.write("awase.toml", &(limits + database));
        let exports = [
            &format!("name=disk,kind=file,path=disk.img,size={DISK},create=true"),
            "name=good,kind=file,path=good.img,size=16MiB,create=true",
            "name=hostile,kind=directory,secure=false,path=hostile,squash=no_root_squash",
            "name=steady,kind=directory,secure=false,path=good,squash=no_root_squash",
        ];
        let arguments = ["--config", "awase.toml", "--memory", "32MiB", "--metrics", "127.0.0.1:0"];
        let arguments =
            [&arguments[..], &["--nfs", "127.0.0.1:0"], &exports.map(|export| ["--export", export]).concat()];
        let mut server = sandbox.serve(&arguments.concat());
        let banner = server.banner();
        let nfs = nfs_port(&banner);
        let metrics = between(&banner, "http://", '/').parse().expect("an address");
        let [control, postgresql] = ["control", ".s.PGSQL.5433"].map(|socket| sandbox.file("awase-data").join(socket));
        let good = WellBehaved::new(&server, nfs, &postgresql);
        let mut target = Target { server, nfs, postgresql, metrics, control, conversations: Vec::new(), good };
        target.conversations = target.conversations();
        target.fill_cache();
        target
    }

    /// Fills the cache, so that it does not grow later.
    fn fill_cache(&self) {
        let mut client = nbd::Client::connect(&self.server.socket(), "disk").expect("connect");
        for at in (0..DISK).step_by(1 << 20) {
            client.read(at, 1 << 20).expect("read");
        }
        client.disconnect().expect("an orderly end");
    }

    fn conversations(&self) -> Vec<(Listener, Vec<Vec<u8>>)> {
        let mut client = nfs::Client::connect(self.nfs).expect("connect");
        let root = client.mount("/hostile").expect("mounted");
        let file = client.lookup(&root, "data").expect("an answer").expect("a file");
        vec![
            (Listener::Nbd, conversation::nbd("disk", true)),
            (Listener::Nbd, conversation::nbd("disk", false)),
            (Listener::Nfs, conversation::nfs("/hostile", &root, &file)),
            (Listener::Nfs, conversation::nfs("/hostile", &root, &root)),
            (Listener::Postgresql, conversation::postgresql()),
            (Listener::Postgresql, conversation::postgresql_first()),
            (Listener::Http, conversation::http()),
            (Listener::Control, conversation::control()),
        ]
    }

    fn connect(&self, listener: Listener) -> Box<dyn Stream> {
        match listener {
            Listener::Nbd => Box::new(UnixStream::connect(self.server.socket()).expect("connect")),
            Listener::Control => Box::new(UnixStream::connect(&self.control).expect("connect")),
            Listener::Postgresql => Box::new(UnixStream::connect(&self.postgresql).expect("connect")),
            Listener::Nfs => Box::new(TcpStream::connect(("127.0.0.1", self.nfs)).expect("connect")),
            Listener::Http => Box::new(TcpStream::connect(self.metrics).expect("connect")),
        }
    }

    /// Sends a mutated conversation. Returns its number of messages.
    fn attack(&self, random: &mut Random) -> usize {
        let (listener, messages) = random.pick(&self.conversations);
        let bytes = mutate::conversation(random, messages);
        let mut stream = self.connect(*listener);
        stream.set_timeouts(ANSWER_TIMEOUT);
        let mut pieces = bytes.chunks(if random.chance(100) { 1 + random.index(99) } else { bytes.len().max(1) });
        let _ = pieces.try_for_each(|piece| stream.write_all(piece));
        // It may be refused at any point; only the server's resources in the end matter.
        let _ = match random.below(4) {
            // Disconnects at once, with the answer unread.
            0 => Ok(0),
            1 => stream.read(&mut [0; 100]),
            _ => {
                stream.end_sending();
                stream.read_to_end(&mut Vec::new())
            }
        };
        messages.len()
    }

    /// Waits until the server holds no more than before: sockets exactly, the rest within slack.
    fn assert_returned(&mut self, before: Holdings, connections: u64, seed: u64) {
        let slack = RESIDENT_SLACK + connections * RESIDENT_PER_CONNECTION;
        let (start, process) = (Instant::now(), self.server.id());
        loop {
            let now = Holdings::of(process);
            let has_returned = now.sockets <= before.sockets
                && now.files <= before.files + 3 * OPEN_FILES
                && now.threads <= before.threads + THREADS
                && now.resident <= before.resident + slack;
            if has_returned {
                return;
            }
            if start.elapsed() > RETURN_TIME {
                let open = testkit::process::descriptors(process).join("\n  ");
                panic!("seed {seed}: {now:?} after {connections} connections, {before:?} before them\n  {open}");
            }
            // Meanwhile it serves.
            self.good.check();
        }
    }

    /// Ends it as service managers do.
    fn terminate(self, seed: u64) {
        let WellBehaved { disk, directory, terminal, .. } = self.good;
        disk.disconnect().expect("an orderly end");
        drop((directory, terminal));
        self.server.signal(libc::SIGTERM);
        let (status, _, errors) = self.server.wait();
        assert!(status.success() && errors.is_empty(), "seed {seed}: {status}: {errors}");
    }
}

fn between<'a>(text: &'a str, before: &str, after: char) -> &'a str {
    let found = text.split_once(before).and_then(|(_, rest)| rest.split_once(after));
    found.unwrap_or_else(|| panic!("no {before} in:\n{text}")).0
}

impl WellBehaved {
    fn new(server: &Server, port: u16, postgresql: &Path) -> WellBehaved {
        let terminal = Terminal::open(postgresql, "bank").expect("a server");
        let disk = nbd::Client::connect(&server.socket(), "good").expect("connect");
        let (directory, file) = nfs::Client::open(port, "/steady", "data");
        WellBehaved { disk, directory, file, terminal, checks: 0 }
    }

    /// All are served, and read what they wrote; transfers leave the sum of all balances as it is.
    fn check(&mut self) {
        self.check_files();
        let total = self.terminal.ask("SELECT total()").expect("answered");
        assert_eq!(total, Answer { value: Some("1000000".into()), error: None });
    }

    /// Until the server has all the memory that it needs for them.
    fn warm_up(&mut self) {
        (0..2000).for_each(|_| self.check_files());
        (0..100).for_each(|_| self.check());
    }

    fn check_files(&mut self) {
        self.checks += 1;
        let (at, bytes) = (self.checks % 1000 * 8192, self.checks.to_le_bytes().repeat(1024));
        self.disk.write(at, &bytes).expect("written");
        assert!(self.disk.read(at, 8192).expect("read") == bytes, "another content on the disk");
        self.directory.write(&self.file, at, &bytes, stable_how::UNSTABLE).expect("written");
        assert!(self.directory.read(&self.file, at, 8192).expect("read") == bytes, "another content in the file");
    }
}

#[test]
fn garbage_harms_no_other_client_and_leaks_nothing() {
    let sandbox = Sandbox::new();
    let mut target = Target::new(&sandbox);
    let warm_up = &mut Random(0);
    for _ in 0..WARM_UP {
        target.attack(warm_up);
    }
    target.good.warm_up();
    let before = Holdings::of(target.server.id());
    let (mut connections, mut messages) = (0, 0);
    let mut last = 0;
    for seed in Rounds::new("garbage_harms_no_other_client_and_leaks_nothing", 4) {
        let random = &mut Random(seed << 32);
        for _ in 0..CHECK_EVERY {
            messages += target.attack(random);
            connections += 1;
        }
        target.good.check();
        last = seed;
        if seed % 100 == 0 {
            target.assert_returned(before, connections, seed);
        }
    }
    target.assert_returned(before, connections, last);
    println!(
        "{messages} messages on {connections} hostile connections: {:?}, {before:?} before",
        Holdings::of(target.server.id())
    );
    target.terminate(last);
}

/// A connection that follows the protocol, or ends at once.
fn connect_briefly(target: &Target, random: &mut Random) {
    match random.below(6) {
        0 => drop(target.connect(Listener::Nbd)),
        1 => drop(target.connect(Listener::Nfs)),
        2 => drop(nbd::Client::connect(&target.server.socket(), "disk").expect("connect")),
        3 => {
            let mut client = nbd::Client::connect(&target.server.socket(), "disk").expect("connect");
            client.read(random.below(1000) * 4096, 4096).expect("read");
            client.disconnect().expect("an orderly end");
        }
        4 => drop(nfs::Client::connect(target.nfs).and_then(|mut client| client.mount("/hostile")).expect("mounted")),
        _ => {
            let mut client = nfs::Client::connect(target.nfs).expect("connect");
            client.attributes(&target.good.file).expect("an answer").expect("attributes");
        }
    }
}

#[test]
fn many_short_connections_leak_nothing() {
    let sandbox = Sandbox::new();
    let mut target = Target::new(&sandbox);
    let warm_up = &mut Random(0);
    (0..4 * WARM_UP).for_each(|_| connect_briefly(&target, warm_up));
    target.good.warm_up();
    let before = Holdings::of(target.server.id());
    let (mut connections, mut last) = (0, 0);
    for seed in Rounds::new("many_short_connections_leak_nothing", if is_long() { 100 } else { 2 }) {
        let random = &mut Random(seed << 32);
        (0..1000).for_each(|_| connect_briefly(&target, random));
        target.good.check();
        (connections, last) = (connections + 1000, seed);
    }
    target.assert_returned(before, connections, last);
    println!("{connections} short connections: {:?}, {before:?} before", Holdings::of(target.server.id()));
    target.terminate(last);
}
