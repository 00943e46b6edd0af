//! What was acknowledged as durable survives `kill -9` under load.
//!
//! The host survives, and with it all that was written to it, flushed or not. So these tests prove that nothing
//! acknowledged as durable was only in the server's memory (its cache, writes that wait for a shared flush, its knowledge of
//! names and handles), that handles stay valid for the next server, and that its other verifier reports that unstable
//! writes may be lost. In `failing_disk` the host, too, loses what was not flushed.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use testkit::ledger::{Ledger, SECTOR};
use testkit::nbd_load::{self, Mix};
use testkit::nfs_load;
use testkit::progress::Progress;
use testkit::random::Random;
use testkit::rounds::Rounds;
use testkit::server::{Sandbox, Server};

/// Connections, each with a ledger.
pub const CLIENTS: usize = 8;
/// Sectors of each client of a disk.
const SECTORS: usize = 4096;
/// Bounds the wait for acknowledgements where a disk fails.
const LOAD_MAX: Duration = Duration::from_secs(5);

/// Used in rotation: both engines, and techniques off.
pub const ARGUMENTS: [&[&str]; 3] = [
    &["--engine", "auto"],
    &["--engine", "threads"],
    &[
        "--switch",
        "flush_gathering=off",
        "--switch",
        "smooth_write_back=off",
        "--switch",
        "block_merge=off",
        "--switch",
        "priority=off",
        "--switch",
        "unmapped_io=off",
    ],
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Killed,
    /// By SIGTERM, after which it ends in order.
    Terminated,
}

impl End {
    pub fn drawn(random: &mut Random) -> End {
        if random.chance(750) { End::Killed } else { End::Terminated }
    }
}

/// Ends a server. Returns true if it ended in order, so that all acknowledged writes are durable.
pub fn end(server: Server, how: End) -> bool {
    match how {
        End::Killed => {
            server.crash();
            false
        }
        End::Terminated => {
            server.signal(libc::SIGTERM);
            let (status, _, errors) = server.wait();
            println!("{}", errors.trim_end());
            status.success()
        }
    }
}

/// The clients find nothing wrong until the connection ends.
fn assert_end_with_the_connection(clients: Vec<thread::ScopedJoinHandle<'_, std::io::Result<()>>>, seed: u64) {
    for client in clients {
        let error = client.join().expect("no panic").expect_err("it works until the connection ends");
        assert_ne!(error.kind(), std::io::ErrorKind::InvalidData, "seed {seed}: {error}");
    }
}

/// A disk's clients with their ledgers.
pub struct Disk {
    pub ledgers: Vec<Ledger>,
    pub load: nbd_load::Load,
}

impl Disk {
    pub fn new() -> Disk {
        let ledgers = (0..CLIENTS).map(|client| Ledger::new(client, client * SECTORS, SECTORS)).collect();
        Disk { ledgers, load: nbd_load::Load::default() }
    }

    /// Size of its image.
    pub const BYTES: u64 = (CLIENTS * SECTORS * SECTOR) as u64;

    /// Runs all clients until `count` requests were acknowledged as durable, and ends the server under load.
    pub fn work_until_end(&mut self, server: Server, count: u64, mix: Mix, seed: u64, how: End) {
        let (load, socket) = (&self.load, server.socket());
        let ended_in_order = thread::scope(|scope| {
            let clients = load.start(scope, &mut self.ledgers, &socket, mix, seed);
            load.progress.await_durable(count, LOAD_MAX);
            let ended_in_order = end(server, how);
            assert_end_with_the_connection(clients, seed);
            ended_in_order
        });
        if ended_in_order {
            load.journal.note_orderly_end();
        }
    }

    /// Runs all clients during `task`.
    pub fn work_during<T>(&mut self, socket: &Path, mix: Mix, seed: u64, task: impl FnOnce() -> T) -> T {
        let load = &self.load;
        load.progress.resume();
        thread::scope(|scope| {
            let clients = load.start(scope, &mut self.ledgers, socket, mix, seed);
            // Also when it panics, since the scope waits for the clients.
            let stop = StopOnDrop(&load.progress);
            let result = task();
            drop(stop);
            for client in clients {
                client.join().expect("no panic").unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            }
            load.progress.resume();
            result
        })
    }

    /// Runs all clients until `count` requests have failed.
    pub fn work_until_failures(&mut self, socket: PathBuf, count: u64, mix: Mix, seed: u64) {
        let load = &self.load;
        thread::scope(|scope| {
            let clients = load.start(scope, &mut self.ledgers, &socket, mix, seed);
            let has_failed = load.progress.await_failures(count);
            load.progress.stop();
            for client in clients {
                client.join().expect("no panic").unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            }
            assert!(has_failed, "seed {seed}: requests do not fail");
        });
    }

    /// Compares what a new server returns with the ledgers.
    pub fn verify(&mut self, server: &Server) -> Result<(), String> {
        nbd_load::verify(&server.socket(), &mut self.ledgers, &self.load.journal)
    }
}

/// Stops the clients of a load.
struct StopOnDrop<'a>(&'a Progress);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

#[test]
fn sectors_of_a_disk_survive_kill() {
    let sandbox = Sandbox::new();
    let size = Disk::BYTES;
    let export = format!("name=disk,kind=file,path=disk.img,size={size},create=true");
    let mut disk = Disk::new();
    for seed in Rounds::new("sectors_of_a_disk_survive_kill", 3) {
        let random = &mut Random(seed);
        let chosen = ARGUMENTS[seed as usize % ARGUMENTS.len()];
        let arguments = [chosen, &["--memory", "16MiB", "--export", &export]].concat();
        let how = End::drawn(random);
        disk.work_until_end(sandbox.serve(&arguments), 10 + random.below(400), Mix::ALL, seed, how);
        let server = sandbox.serve(&arguments);
        disk.verify(&server).unwrap_or_else(|what| panic!("{arguments:?} seed {seed} {how:?}: {what}"));
        assert_eq!(disk.load.progress.failed(), 0, "requests failed on a sound disk");
        // Killed again, so that the next round starts without an orderly end of this server.
        server.crash();
    }
}

/// Clients of a directory with their ledgers.
pub struct Directory {
    pub loads: Vec<nfs_load::Load>,
    pub progress: Progress,
}

impl Directory {
    /// Creates the files that the clients expect.
    pub fn make(path: &Path) {
        for client in 0..CLIENTS {
            let directory = path.join(format!("client-{client}"));
            std::fs::create_dir_all(&directory).expect("directory");
            std::fs::write(directory.join("data"), "").expect("file");
        }
        std::fs::write(path.join("other"), "").expect("file");
    }

    pub fn new(port: u16, is_tolerant: bool) -> Directory {
        let new = |client| nfs_load::Load::new(port, client, is_tolerant).expect("a server");
        Directory { loads: (0..CLIENTS).map(new).collect(), progress: Progress::default() }
    }

    /// Runs all clients until `count` calls were acknowledged as durable, and ends the server under load.
    pub fn work_until_end(&mut self, server: Server, port: u16, count: u64, seed: u64, how: End) {
        let progress = &self.progress;
        let ended_in_order = thread::scope(|scope| {
            let start = |load| scope.spawn(move || nfs_load::Load::work(load, port, seed, progress));
            let clients: Vec<_> = self.loads.iter_mut().map(start).collect();
            progress.await_durable(count, LOAD_MAX);
            let ended_in_order = end(server, how);
            assert_end_with_the_connection(clients, seed);
            ended_in_order
        });
        if ended_in_order {
            self.loads.iter().for_each(nfs_load::Load::note_orderly_end);
        }
    }

    /// Runs all clients until `count` calls have failed.
    pub fn work_until_failures(&mut self, port: u16, count: u64, seed: u64) {
        let progress = &self.progress;
        thread::scope(|scope| {
            let start = |load| scope.spawn(move || nfs_load::Load::work(load, port, seed, progress));
            let clients: Vec<_> = self.loads.iter_mut().map(start).collect();
            let has_failed = progress.await_failures(count);
            progress.stop();
            for client in clients {
                client.join().expect("no panic").unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            }
            assert!(has_failed, "seed {seed}: requests do not fail");
        });
    }

    /// Compares what a new server returns with the ledgers.
    pub fn verify(&mut self, port: u16) -> Result<(), String> {
        self.loads.iter_mut().try_for_each(|load| load.verify(port))
    }
}

#[test]
fn content_and_names_of_a_directory_survive_kill() {
    let sandbox = Sandbox::new();
    Directory::make(&sandbox.file("files"));
    let export =
        ["--memory", "16MiB", "--export", "name=files,kind=directory,secure=false,path=files,squash=no_root_squash"];
    let mut port = 0;
    let mut directory = None;
    for seed in Rounds::new("content_and_names_of_a_directory_survive_kill", 3) {
        let random = &mut Random(seed);
        let arguments = [ARGUMENTS[seed as usize % ARGUMENTS.len()], &export].concat();
        let how = End::drawn(random);
        let server;
        (server, port) = sandbox.serve_directories(port, &arguments);
        let directory = directory.get_or_insert_with(|| Directory::new(port, false));
        directory.work_until_end(server, port, 10 + random.below(800), seed, how);
        let (server, _) = sandbox.serve_directories(port, &arguments);
        directory.verify(port).unwrap_or_else(|what| panic!("{arguments:?} seed {seed} {how:?}: {what}"));
        assert_eq!(directory.progress.failed(), 0, "calls failed on a sound disk");
        server.crash();
    }
}
