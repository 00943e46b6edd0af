//! Servers and programs that end.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use shm::{Error, Mapping};

use crate::cluster::{Cluster, PAGE, SHARD, connect};
use crate::program::Program;

fn socket(cluster: &Cluster, node: usize) -> PathBuf {
    cluster.sandboxes[node].file("awase-data/shm")
}

fn word(mapping: &Mapping, at: usize) -> u64 {
    mapping.atomic_u64(at).expect("inside").load(SeqCst)
}

#[test]
fn a_program_waits_for_a_server_that_was_killed_and_never_sees_zeroes() {
    let cluster = Cluster::new(2, "part.img");
    let mut servers = cluster.all();
    let mapping = cluster.map(0);
    // Pages of both homes.
    let pages = [0, PAGE, SHARD, SHARD + PAGE];
    for (turn, kills) in (1..=3_u64).zip(1..) {
        pages.iter().for_each(|at| mapping.atomic_u64(*at).expect("inside").store(turn, SeqCst));
        mapping.flush().expect("flushed");
        servers.remove(0).crash();
        // Looks all the time, before the server's end is known and after.
        let seen: Vec<u64> = thread::scope(|scope| {
            let readers: Vec<_> = pages
                .iter()
                .map(|at| {
                    let mapping = &mapping;
                    scope.spawn(move || {
                        while mapping.losses() < kills {
                            assert_eq!(word(mapping, *at), turn);
                        }
                        word(mapping, *at)
                    })
                })
                .collect();
            let mut server = cluster.start(0);
            server.await_error("is connected");
            servers.insert(0, server);
            readers.into_iter().map(|reader| reader.join().expect("went on")).collect()
        });
        assert_eq!(seen, [turn; 4]);
        assert_eq!(mapping.losses(), kills);
        // It is a full member again.
        mapping.atomic_u64(SHARD).expect("inside").fetch_add(10, SeqCst);
        assert_eq!(connect(&servers[1]).read(SHARD as u64, 8).expect("read"), (turn + 10).to_le_bytes());
    }
}

#[test]
fn a_program_that_wants_a_signal_gets_it_when_the_server_was_killed() {
    let cluster = Cluster::new(2, "memory");
    let mut servers = cluster.all();
    connect(&servers[1]).write(SHARD as u64, &7_u64.to_le_bytes()).expect("written");
    let mut program = Program::start(&socket(&cluster, 0), &format!("signal {SHARD}"));
    assert_eq!(program.next(), "7");
    servers.remove(0).crash();
    assert_eq!(program.wait().signal(), Some(libc::SIGBUS));
}

#[test]
fn what_a_killed_program_has_written_is_there_and_the_node_goes_on() {
    let cluster = Cluster::new(2, "memory");
    let servers = cluster.all();
    let (pages, first) = (600, 1000);
    let mut program = Program::start(&socket(&cluster, 0), &format!("fill {pages} {first}"));
    assert_eq!(program.next(), "filled");
    program.kill();
    for server in &servers {
        let mut client = connect(server);
        for page in 0..pages {
            let bytes = client.read(page * PAGE as u64, 8).expect("read");
            assert_eq!(bytes, (first + page).to_le_bytes(), "page {page}");
        }
    }
    // Also while others want what it writes.
    let mapping = cluster.map(1);
    for _ in 0..5 {
        let mut program = Program::start(&socket(&cluster, 0), "increment 1000000000 0");
        let before = word(&mapping, 0);
        while word(&mapping, 0) < before + 20 {}
        program.kill();
    }
    let last = word(&mapping, 0);
    assert_eq!(word(&cluster.map(0), 0), last);
}

#[test]
fn what_was_flushed_is_found_after_all_servers_were_killed() {
    let cluster = Cluster::new(2, "part.img");
    let mut servers = cluster.all();
    {
        let mapping = cluster.map(0);
        // Written last by another program, by a client before, and not any more when it is flushed.
        let other = cluster.map(0);
        let pages = [0, PAGE, SHARD, SHARD + PAGE];
        let mut client = connect(&servers[0]);
        for at in pages {
            client.write(at as u64 + 512, &[9; 512]).expect("written");
            other.atomic_u64(at + 8).expect("inside").store(8, SeqCst);
            mapping.atomic_u64(at).expect("inside").store(7, SeqCst);
        }
        drop(other);
        mapping.flush().expect("flushed");
    }
    servers.drain(..).for_each(|server| server.crash());
    let servers = cluster.all();
    for server in &servers {
        for at in [0, PAGE, SHARD, SHARD + PAGE] {
            let bytes = connect(server).read(at as u64, 1024).expect("read");
            assert_eq!(bytes[..16], [7_u64.to_le_bytes(), 8_u64.to_le_bytes()].concat());
            assert_eq!(bytes[512..], [9; 512]);
        }
    }
}

#[test]
fn a_flush_by_a_client_covers_what_a_program_has_taken_over_from_it() {
    let cluster = Cluster::new(2, "part.img");
    let mut servers = cluster.all();
    let mapping = cluster.map(0);
    let mut client = connect(&servers[0]);
    for at in [0, SHARD] {
        client.write(at as u64 + 512, &[5; 512]).expect("written");
        mapping.atomic_u64(at).expect("inside").store(6, SeqCst);
    }
    client.flush().expect("flushed");
    drop(client);
    servers.drain(..).for_each(|server| server.crash());
    drop(mapping);
    let servers = cluster.all();
    for at in [0, SHARD] {
        let bytes = connect(&servers[1]).read(at as u64, 1024).expect("read");
        assert_eq!(bytes[512..], [5; 512]);
    }
}

#[test]
fn what_a_server_that_ends_in_order_had_in_mappings_is_stored() {
    let cluster = Cluster::new(2, "memory");
    let mut servers = cluster.all();
    let mapping = cluster.map(1);
    // A page of the node that stays.
    mapping.atomic_u64(0).expect("inside").store(4, SeqCst);
    servers.remove(1).end();
    assert_eq!(connect(&servers[0]).read(0, 8).expect("read"), 4_u64.to_le_bytes());
    let waiting = thread::scope(|scope| {
        let reader = scope.spawn(|| word(&mapping, 0));
        let server = cluster.start(1);
        (reader.join().expect("went on"), server)
    });
    assert_eq!(waiting.0, 4);
    assert!(matches!(mapping.flush(), Ok(()) | Err(Error::ServerLost)));
}

/// Reads a word as the host does for a program: an error in place of a signal.
fn peek(mapping: &Mapping, at: usize) -> Result<u64, rustix::io::Errno> {
    let (from, to) = rustix::pipe::pipe().expect("a pipe");
    let place = mapping.as_ptr().as_ptr().wrapping_add(at);
    // SAFETY: 8 bytes of the mapping, which nobody writes meanwhile.
    let bytes = unsafe { std::slice::from_raw_parts(place, 8) };
    rustix::io::write(to, bytes)?;
    let mut word = [0; 8];
    rustix::io::read(from, &mut word)?;
    Ok(u64::from_le_bytes(word))
}

#[test]
fn what_is_lost_is_a_signal_until_somebody_writes_it_anew() {
    let cluster = Cluster::new(2, "memory");
    let mut servers = cluster.all();
    let mapping = cluster.map(0);
    assert_eq!(word(&mapping, 0), 0, "its own node's");
    servers.remove(1).crash();
    let mut program = Program::start(&socket(&cluster, 0), &format!("read {SHARD}"));
    let began = Instant::now();
    assert_eq!(program.wait().signal(), Some(libc::SIGBUS), "its home does not answer");
    assert!(began.elapsed() >= Duration::from_secs(9), "it may come back soon");
    if !mapping.serves_system_calls() {
        return;
    }
    let mut server = cluster.start(1);
    server.await_error("is connected");
    assert_eq!(peek(&mapping, SHARD + PAGE), Err(rustix::io::Errno::FAULT), "its home has lost it");
    assert_eq!(word(&mapping, 0), 0, "others are there");
    connect(&server).write((SHARD + PAGE) as u64, &[3; PAGE]).expect("written anew");
    let limit = Instant::now() + Duration::from_secs(20);
    while peek(&mapping, SHARD + PAGE) != Ok(u64::from_le_bytes([3; 8])) {
        assert!(Instant::now() < limit, "it is still poisoned");
        thread::yield_now();
    }
    let again = SHARD + 2 * PAGE;
    assert_eq!(peek(&mapping, again), Err(rustix::io::Errno::FAULT), "as above");
    servers.remove(0).crash();
    let _next = cluster.start(0);
    connect(&server).write(again as u64, &[4; PAGE]).expect("written anew");
    assert_eq!(peek(&mapping, again), Ok(u64::from_le_bytes([4; 8])), "the next server knows nothing of the poison");
}

#[test]
fn a_program_that_is_stopped_delays_nobody_but_those_who_want_what_it_is_given() {
    let cluster = Cluster::new(2, "memory");
    let servers = cluster.all();
    let mut program = Program::start(&socket(&cluster, 0), "fill 3 50");
    assert_eq!(program.next(), "filled");
    program.signal(Signal::STOP);
    let mut client = connect(&servers[1]);
    assert_eq!(client.read(2 * PAGE as u64, 8).expect("read"), 52_u64.to_le_bytes());
    client.write(0, &[1; PAGE]).expect("written");
    program.signal(Signal::CONT);
    program.go_on();
    assert!(program.wait().success());
}
