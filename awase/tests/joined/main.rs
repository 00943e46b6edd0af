//! Shared disks in a cluster that is in etcd: servers on this host, on a file that all of them reach.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use testkit::etcd::Etcd;
use testkit::nbd::Client;
use testkit::port;
use testkit::rounds::Rounds;
use testkit::server::{Sandbox, Server, await_that};
use testkit::skip;

const SIZE: u64 = 64 << 20;
const BLOCK: u64 = 4096;
const LEASE: Duration = Duration::from_secs(2);
const NAMES: [&str; 3] = ["a", "b", "c"];

struct Cluster {
    etcd: Etcd,
    /// Its first file is the device.
    common: Sandbox,
    sandboxes: [Sandbox; 3],
    ports: [u16; 3],
}

impl Cluster {
    /// `None` where etcd is not installed.
    fn new() -> Option<Cluster> {
        let common = Sandbox::new();
        let etcd = Etcd::start(&common.file("etcd"))?;
        let device = std::fs::File::create(common.file("device")).expect("made");
        device.set_len(SIZE).expect("sparse");
        let sandboxes = [(); 3].map(|()| Sandbox::new());
        Some(Cluster { etcd, common, sandboxes, ports: [(); 3].map(|()| port::unused()) })
    }

    fn device(&self) -> PathBuf {
        self.common.file("device")
    }

    fn configure(&self, node: usize, disk: &str) {
        let (name, port, url) = (NAMES[node], self.ports[node], &self.etcd.url);
        let text = format!(
            "[cluster]\nnode = \"{name}\"\nlisten = \"127.0.0.1:{port}\"\netcd = [\"{url}\"]\n\
             [[export]]\nname = \"s\"\nkind = \"shared\"\nsize = \"{SIZE}B\"\n{disk}\n"
        );
        self.sandboxes[node].write("node.toml", &text);
    }

    fn serve(&self, node: usize) -> Server {
        self.sandboxes[node].serve(&["--config", "node.toml", "--memory", "64MiB"])
    }

    /// Starts a node on the common device.
    fn start(&self, node: usize) -> Server {
        self.configure(node, &format!("shared_device = {:?}", self.device()));
        self.serve(node)
    }
}

macro_rules! cluster {
    () => {
        match Cluster::new() {
            Some(cluster) => cluster,
            None => skip!("etcd is not installed (Debian: etcd-server)"),
        }
    };
}

mod forgotten;
mod refused;

fn connect(server: &Server) -> Client {
    Client::connect(&server.socket(), "s").expect("connected")
}

fn pattern(value: u64) -> Vec<u8> {
    value.to_le_bytes().repeat(BLOCK as usize / 8)
}

fn value(bytes: &[u8]) -> u64 {
    let mut first = [0; 8];
    first.copy_from_slice(&bytes[..8]);
    assert!(bytes.chunks(8).all(|chunk| chunk == first), "a block of two writes");
    u64::from_le_bytes(first)
}

/// What a client has done: for each block the last value that it sent, that was acknowledged, and that it flushed.
#[derive(Default)]
struct Ledger {
    sent: BTreeMap<u64, u64>,
    written: BTreeMap<u64, u64>,
    flushed: BTreeMap<u64, u64>,
    failures: u64,
    /// The longest time that one request took.
    longest: Duration,
}

/// A client that writes blocks of its own, one in each of many shards, flushes now and then, and reads what it wrote.
struct Writer {
    stopping: Arc<AtomicBool>,
    thread: JoinHandle<Ledger>,
}

impl Writer {
    fn start(server: &Server, number: u64) -> Writer {
        let (mut client, stopping) = (connect(server), Arc::new(AtomicBool::new(false)));
        let own = Arc::clone(&stopping);
        let thread = std::thread::spawn(move || {
            let mut ledger = Ledger::default();
            for count in 1.. {
                if own.load(Ordering::SeqCst) {
                    break;
                }
                let at = (count % 48) * (1 << 20) + number * BLOCK;
                let began = Instant::now();
                let step = |client: &mut Client, ledger: &mut Ledger| -> std::io::Result<()> {
                    ledger.sent.insert(at, count);
                    client.write(at, &pattern(count))?;
                    ledger.written.insert(at, count);
                    if count % 16 == 0 {
                        let before = ledger.written.clone();
                        client.flush()?;
                        ledger.flushed = before;
                    }
                    let seen = value(&client.read(at, BLOCK as u32)?);
                    assert_eq!(seen, count, "old data at {at}");
                    Ok(())
                };
                let result = step(&mut client, &mut ledger);
                ledger.longest = ledger.longest.max(began.elapsed());
                match result {
                    Ok(()) => {}
                    Err(error) if error.raw_os_error() == Some(libc::EIO) => ledger.failures += 1,
                    // Its server is gone.
                    Err(_) => break,
                }
            }
            ledger
        });
        Writer { stopping, thread }
    }

    fn end(self) -> Ledger {
        self.stopping.store(true, Ordering::SeqCst);
        self.thread.join().expect("never old data")
    }
}

fn verify(server: &Server, ledger: &Ledger) {
    let mut client = connect(server);
    for (at, flushed) in &ledger.flushed {
        let seen = value(&client.read(*at, BLOCK as u32).expect("read"));
        let last = ledger.sent[at];
        assert!((*flushed..=last).contains(&seen), "block at {at}: {seen}, flushed was {flushed}, sent {last}");
    }
}

#[test]
fn the_others_go_on_within_two_leases_when_a_home_is_killed_and_all_that_was_flushed_is_found() {
    let cluster = cluster!();
    let mut a = cluster.start(0);
    let (b, c) = (cluster.start(1), cluster.start(2));
    for round in Rounds::new("the_others_go_on_within_two_leases", 1) {
        let writers = [Writer::start(&b, 1), Writer::start(&c, 2)];
        let at_home = Writer::start(&a, 3);
        std::thread::sleep(Duration::from_millis(700 + round % 7 * 100));
        a.crash();
        std::thread::sleep(2 * LEASE + Duration::from_secs(1));
        let ledgers = writers.map(Writer::end);
        let lost = at_home.end();
        for ledger in &ledgers {
            assert!(ledger.failures <= 1, "round {round}: {} failures", ledger.failures);
            assert!(ledger.longest < 2 * LEASE, "round {round}: one request took {:?}", ledger.longest);
            println!("round {round}: {} blocks, the longest request {:?}", ledger.written.len(), ledger.longest);
        }
        a = cluster.start(0);
        for server in [&a, &b, &c] {
            ledgers.iter().chain([&lost]).for_each(|ledger| verify(server, ledger));
        }
    }
}

#[test]
fn a_node_stopped_for_longer_than_its_lease_never_returns_old_data_and_its_clients_get_errors() {
    let cluster = cluster!();
    let (mut a, b) = (cluster.start(0), cluster.start(1));
    let (mut at_a, mut at_b) = (connect(&a), connect(&b));
    for block in 0..32 {
        at_a.write(block * (1 << 20), &pattern(1)).expect("written");
    }
    at_a.flush().expect("flushed");
    at_a.read(0, BLOCK as u32).expect("cached");
    a.signal(libc::SIGSTOP);
    for block in 0..32 {
        // The first waits until the lease of the other node is over.
        at_b.write_stable(block * (1 << 20), &pattern(2)).expect("written by who lives");
    }
    a.signal(libc::SIGCONT);
    for round in 0..300 {
        match at_a.read(round % 32 * (1 << 20), BLOCK as u32) {
            Ok(bytes) => assert_eq!(value(&bytes), 2, "round {round}: old data"),
            Err(error) if error.raw_os_error() == Some(libc::EIO) => {}
            Err(error) => panic!("round {round}: {error}"),
        }
    }
    a.await_error("this node serves as a member of the cluster");
    // Who was connected before must connect anew: what it wrote may be lost.
    let began = Instant::now();
    for result in [at_a.write(0, &pattern(3)), at_a.flush()] {
        println!("{result:?} after {:?}", began.elapsed());
        let error = result.expect_err("its lease was over");
        assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error} after {:?}", began.elapsed());
    }
    await_that("the node serves again", || {
        Client::connect(&a.socket(), "s").is_ok_and(|mut client| client.read(0, BLOCK as u32).is_ok())
    });
    let mut again = connect(&a);
    for block in 0..32 {
        assert_eq!(value(&again.read(block * (1 << 20), BLOCK as u32).expect("read")), 2, "block {block}");
    }
    again.write(0, &pattern(4)).expect("a member again");
    assert_eq!(value(&at_b.read(0, BLOCK as u32).expect("read")), 4);
}

/// The host accepts for the server while that is stopped.
#[test]
fn a_client_that_connects_before_a_stopped_node_has_a_new_lease_is_served_when_it_has() {
    let cluster = cluster!();
    for disk in ["homes = [\"a\"]\nbacking = \"memory\"", &format!("shared_device = {:?}", cluster.device())] {
        cluster.configure(0, disk);
        let mut a = cluster.serve(0);
        connect(&a).write_stable(0, &pattern(1)).expect("written");
        a.forget_errors();
        a.signal(libc::SIGSTOP);
        std::thread::sleep(2 * LEASE);
        let socket = a.socket();
        let client = std::thread::spawn(move || Client::connect(&socket, "s").expect("connected"));
        std::thread::sleep(LEASE / 4);
        a.signal(libc::SIGCONT);
        let mut client = client.join().expect("connected");
        assert_eq!(value(&client.read(0, BLOCK as u32).expect("a member again")), 1, "{disk}");
        a.end();
    }
}

#[test]
fn a_reload_in_which_the_lease_ends_leaves_new_clients_what_began_anew() {
    let cluster = cluster!();
    let mut a = cluster.start(0);
    connect(&a).write_stable(0, &pattern(1)).expect("written");
    let sandbox = &cluster.sandboxes[0];
    // The reload waits for who writes this program.
    let programs = sandbox.make_directory("programs");
    let program = programs.join("late.wasm");
    rustix::fs::mknodat(rustix::fs::CWD, &program, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a FIFO");
    let text = std::fs::read_to_string(sandbox.file("node.toml")).expect("written");
    let database = "[[database]]\nname = \"d\"\npath = \"d.db\"\nsize = \"8MiB\"\nprograms = \"programs\"\n";
    sandbox.write("node.toml", &(text + database));
    a.signal(libc::SIGHUP);
    let writer = std::fs::File::options().write(true).open(&program).expect("the reload has come to it");
    a.forget_errors();
    a.signal(libc::SIGSTOP);
    std::thread::sleep(2 * LEASE);
    a.signal(libc::SIGCONT);
    a.await_error("this node serves as a member of the cluster");
    let reads = |server: &Server| connect(server).read(0, BLOCK as u32);
    await_that("new clients have what began anew", || reads(&a).is_ok());
    drop(writer);
    a.await_notice("READY=1");
    assert_eq!(value(&reads(&a).expect("they still have")), 1);
}

#[test]
fn nodes_leave_in_order_and_join_while_others_go_on_without_a_failure() {
    let cluster = cluster!();
    let (a, b) = (cluster.start(0), cluster.start(1));
    let mut at_a = connect(&a);
    at_a.write(5 << 20, &pattern(7)).expect("written, and not flushed");
    let writer = Writer::start(&b, 1);
    std::thread::sleep(Duration::from_millis(500));
    let c = cluster.start(2);
    drop(at_a);
    let errors = a.end();
    assert!(!errors.contains("lease is over"), "{errors}");
    let mut at_c = connect(&c);
    assert_eq!(value(&at_c.read(5 << 20, BLOCK as u32).expect("read")), 7, "stored when its node left");
    let a = cluster.start(0);
    std::thread::sleep(Duration::from_millis(500));
    let ledger = writer.end();
    assert_eq!(ledger.failures, 0);
    assert!(ledger.longest < LEASE, "one request took {:?}", ledger.longest);
    [&a, &b, &c].into_iter().for_each(|server| verify(server, &ledger));
}

#[test]
fn blocks_of_a_home_with_a_path_of_its_own_are_errors_until_it_is_back() {
    let cluster = cluster!();
    let start = |node: usize| {
        cluster.configure(node, "homes = [\"a\", \"b\"]\nbacking = \"own.img\"");
        cluster.serve(node)
    };
    let (a, b) = (start(0), start(1));
    let mut at_a = connect(&a);
    for block in 0..8 {
        at_a.write(block * (1 << 20), &pattern(block + 1)).expect("written");
    }
    at_a.flush().expect("flushed");
    at_a.write(1 << 20, &pattern(9)).expect("taken again from its home");
    b.crash();
    assert_eq!(value(&at_a.read(1 << 20, BLOCK as u32).expect("held by this node")), 9);
    at_a.read((1 << 20) + BLOCK, BLOCK as u32).expect_err("its home is away");
    let b = start(1);
    let mut at_b = connect(&b);
    for block in [0, 2, 3, 4, 5, 6, 7] {
        let seen = value(&at_b.read(block * (1 << 20), BLOCK as u32).expect("its home is back"));
        assert_eq!(seen, block + 1, "block {block}");
    }
    assert_eq!(value(&at_b.read(1 << 20, BLOCK as u32).expect("read")), 9, "what a node that lives had written");
}

#[test]
fn blocks_of_a_home_in_memory_that_was_killed_are_errors_until_they_are_written_anew() {
    let cluster = cluster!();
    let start = |node: usize| {
        cluster.configure(node, "homes = [\"a\"]\nbacking = \"memory\"");
        cluster.serve(node)
    };
    let (a, b, c) = (start(0), start(1), start(2));
    let (mut at_b, mut at_c) = (connect(&b), connect(&c));
    at_c.write(0, &pattern(1)).expect("written");
    at_b.write(BLOCK, &pattern(2)).expect("written");
    [&mut at_b, &mut at_c].into_iter().for_each(|client| client.flush().expect("flushed"));
    drop(at_c);
    c.end();
    a.crash();
    let a = start(0);
    let mut at_a = connect(&a);
    for client in [&mut at_a, &mut at_b] {
        assert_eq!(value(&client.read(BLOCK, BLOCK as u32).expect("a node that lives had it")), 2);
        for lost in [0, 2 * BLOCK] {
            client.read(lost, BLOCK as u32).map(drop).expect_err("nobody has it");
        }
    }
    at_b.write(0, &pattern(3)).expect("written anew");
    assert_eq!(value(&at_a.read(0, BLOCK as u32).expect("read")), 3);
}

#[test]
fn what_stands_in_the_way_of_joining_is_said_once() {
    let cluster = cluster!();
    let a = cluster.start(0);
    // Another process with its name.
    let twin = &cluster.sandboxes[1];
    let text = std::fs::read_to_string(cluster.sandboxes[0].file("node.toml")).expect("written");
    let at_port = |node: usize| text.replace(&cluster.ports[0].to_string(), &cluster.ports[node].to_string());
    twin.write("node.toml", &at_port(1));
    let mut other = twin.serve(&["--config", "node.toml", "--memory", "64MiB"]);
    other.await_error("the node \"a\" is registered already");
    Client::connect(&other.socket(), "s").expect("connected").read(0, 512).expect_err("it is no member");
    connect(&a).read(0, 512).expect("the one that was first");
    let nowhere = &cluster.sandboxes[2];
    nowhere.write("node.toml", &at_port(2).replace(&cluster.etcd.url, &format!("http://127.0.0.1:{}", port::unused())));
    let mut lonely = nowhere.serve(&["--config", "node.toml", "--memory", "64MiB"]);
    lonely.await_error("etcd cannot be reached at");
    // It was no member, so that nothing of the disk is lost.
    let errors = lonely.end();
    assert_eq!(errors.matches("etcd cannot be reached").count(), 1, "{errors}");
    assert!(!errors.contains("could not be written"), "{errors}");
    drop(other);
    a.signal(libc::SIGTERM);
}

/// A thread that reads a mapping.
struct Reader<const N: usize> {
    thread: JoinHandle<[u64; N]>,
    id: Pid,
}

impl<const N: usize> Reader<N> {
    /// Reads words at these offsets.
    fn start(mapping: &Arc<shm::Mapping>, offsets: [usize; N]) -> Reader<N> {
        let (own, (say, hear)) = (Arc::clone(mapping), channel());
        let thread = std::thread::spawn(move || {
            say.send(rustix::thread::gettid()).expect("heard");
            offsets.map(|at| own.atomic_u64(at).expect("inside").load(Ordering::SeqCst))
        });
        Reader { thread, id: hear.recv().expect("it runs") }
    }

    /// The host says that it is blocked, and in no system call.
    fn waits_for_a_page(&self) -> bool {
        let call = std::fs::read_to_string(format!("/proc/self/task/{}/syscall", self.id.as_raw_nonzero()));
        call.is_ok_and(|call| call.starts_with("-1 "))
    }

    fn seen(self) -> [u64; N] {
        self.thread.join().expect("it went on")
    }
}

#[test]
fn a_program_sees_nothing_old_after_the_lease_of_its_node_and_goes_on_with_the_next_one() {
    let mut cluster = cluster!();
    let (a, b) = (cluster.start(0), cluster.start(1));
    let socket = cluster.sandboxes[0].file("awase-data/shm");
    let mapping = Arc::new(shm::Options::at(socket).open("s").unwrap_or_else(|error| panic!("{error}")));
    let word = |at| mapping.atomic_u64(at).expect("inside");
    let pages = [0, 1 << 20, 2 << 20];
    pages.iter().for_each(|at| word(*at).store(1, Ordering::SeqCst));
    mapping.flush().expect("flushed");
    word(0).store(2, Ordering::SeqCst);
    // Nobody's lease is renewed.
    cluster.etcd.kill();
    await_that("the lease is over", || mapping.losses() == 1);
    let reader = Reader::start(&mapping, pages);
    await_that("without a lease there is nothing to read", || reader.waits_for_a_page());
    cluster.etcd = cluster.etcd.restart(&cluster.common.file("etcd"));
    let seen = reader.seen();
    // What was not flushed may be lost if the node begins anew.
    assert!([1, 2].contains(&seen[0]) && seen[1..] == [1, 1], "{seen:?}");
    word(0).store(3, Ordering::SeqCst);
    let mut at_b = connect(&b);
    await_that("the other node serves, too", || {
        at_b.read(0, 8).is_ok() || {
            at_b = connect(&b);
            false
        }
    });
    assert_eq!(at_b.read(0, 8).expect("read"), 3_u64.to_le_bytes());
    a.crash();
    at_b.write_stable(0, &pattern(7)).expect("written when the lease is over");
    let _again = cluster.start(0);
    assert_eq!(word(0).load(Ordering::SeqCst), 7, "it waited for its node");
    assert!(mapping.losses() >= 2);
}

/// The process that guards what programs have mapped from this server.
fn guard_of(server: &Server) -> Option<Pid> {
    let processes = std::fs::read_dir("/proc").expect("listed").flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let parent = format!("PPid:\t{}\n", server.id());
    let is_child = |number: &i32| {
        let status = std::fs::read_to_string(format!("/proc/{number}/status"));
        status.is_ok_and(|status| status.contains(&parent) && !status.contains("State:\tZ"))
    };
    numbers.into_iter().find(is_child).and_then(Pid::from_raw)
}

#[test]
fn a_program_reads_nothing_old_while_its_server_is_stopped_for_longer_than_its_lease() {
    let cluster = cluster!();
    let (a, b) = (cluster.start(0), cluster.start(1));
    let socket = cluster.sandboxes[0].file("awase-data/shm");
    let mapping = Arc::new(shm::Options::at(socket).open("s").unwrap_or_else(|error| panic!("{error}")));
    let pages = [0, 1 << 20, 2 << 20, 3 << 20];
    let read = |mapping: &shm::Mapping, at: usize| mapping.atomic_u64(at).expect("inside").load(Ordering::SeqCst);
    let word = |at| mapping.atomic_u64(at).expect("inside");
    pages.iter().for_each(|at| word(*at).store(1, Ordering::SeqCst));
    mapping.flush().expect("flushed");
    // Two are written, and two only read.
    pages[..2].iter().for_each(|at| word(*at).store(2, Ordering::SeqCst));
    assert_eq!(pages.map(|at| read(&mapping, at)), [2, 2, 1, 1]);
    // As a service manager does to all processes of a service that is to end.
    kill_process(guard_of(&a).expect("it has a guard"), Signal::TERM).expect("signalled");
    a.signal(libc::SIGSTOP);
    let mut at_b = connect(&b);
    // The first waits until the lease of the other node is over.
    pages.iter().for_each(|at| at_b.write_stable(*at as u64, &pattern(3)).expect("written by who lives"));
    let reader = Reader::start(&mapping, pages);
    await_that("its server cannot know what is there, so the reader waits", || reader.waits_for_a_page());
    a.signal(libc::SIGCONT);
    assert_eq!(reader.seen(), [3; 4], "by its server, in its next epoch");
    assert_eq!(mapping.losses(), 1);
    word(0).store(4, Ordering::SeqCst);
    assert_eq!(value(&at_b.read(1 << 20, BLOCK as u32).expect("read")), 3);
    assert_eq!(at_b.read(0, 8).expect("read"), 4_u64.to_le_bytes());
    // Without a guard there are no mappings.
    kill_process(guard_of(&a).expect("it has a guard"), Signal::KILL).expect("killed");
    await_that("the mapping begins anew", || mapping.losses() == 2);
    assert_eq!(pages.map(|at| read(&mapping, at)), [4, 3, 3, 3]);
    let guard = guard_of(&a).expect("it has another guard");
    a.crash();
    await_that("the guard ends with its server", || test_kill_process(guard).is_err());
}
