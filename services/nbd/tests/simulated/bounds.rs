//! Bounds of what one client may cost the others, and of how long it may delay the server's end.

use crate::client::ClientError;
use crate::scene::{Connected, Ended, Peer, Route, Scene, Setup, go, request, serve};
use futures_util::future::{join, join_all};
use kernel::Processor;
use kernel::connection::Protocol;
use kernel::device::{Delay, RamDisk};
use nbd::proto::{BASE_ALLOCATION, NBD_OPTS_MAGIC, NbdError, Request, cmd, info, option, rep};
use policy::unit::DiskNo;
use sim::NetworkConfig;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// The data of an option about contexts.
fn contexts(export: &str, query: &str) -> Vec<u8> {
    let string = |text: &str| [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat();
    [string(export), 1_u32.to_be_bytes().to_vec(), string(query)].concat()
}

/// A write and a read of a client that keeps to the protocol; returns how long they took.
async fn round(cpu: &Processor, client: &Rc<Connected>, at: u64) -> Duration {
    let start = cpu.now();
    assert_eq!(client.write(at, &[0x11; 5000], false).await, Ok(()));
    assert_eq!(client.read(at, 5000).await, Ok(vec![0x11; 5000]));
    cpu.now().since(start)
}

/// A peer that has begun a write of 1 MiB to the read-only export, and sends no more of it.
async fn halting_in_a_refused_write(cpu: &Processor, route: &Route) -> Peer {
    let mut peer = route.peer_of(cpu, "frozen").await;
    let header = request(cmd::WRITE, 0, MIB as u32).encode();
    peer.send(&[&header[..], &[0xee; 100]].concat()).await.expect("sent");
    peer
}

#[test]
fn who_stops_in_a_payload_that_is_refused_is_disconnected_as_any_other() {
    serve(Setup::new(1, MIB), async |cpu, route| {
        let mut peer = halting_in_a_refused_write(&cpu, &route).await;
        let start = cpu.now();
        // The connection ends even if the server never looks at it again.
        cpu.sleep(Duration::from_secs(75)).await;
        assert_eq!(peer.send(&[0xee; 100]).await.and(Ok(peer.until_end().await)).map(|_| ()), Ok(()));
        assert!(cpu.now().since(start) < Duration::from_secs(80), "still connected");
    });
}

#[test]
fn processors_know_how_many_requests_are_in_progress() {
    let disk = Delay::new(Arc::new(RamDisk::new(MIB, DiskNo(0))), Duration::from_millis(5));
    let scene = Scene::new(Setup { device: Arc::new(disk), ..Setup::new(1, MIB) });
    let server = scene.disk.clone();
    scene.run(async move |cpu, route| {
        let client = route.client(&cpu, "disk", false).await;
        for reads in 1..4 {
            // None of what was read before.
            let all = join_all((0..reads).map(|no| client.read((no + reads * reads) * 8192, 4096)));
            let (_, waiting) = join(all, async {
                cpu.sleep(Duration::from_millis(4)).await;
                server.requests_in_progress()
            })
            .await;
            assert_eq!(waiting as u64, reads, "while the disk reads");
            cpu.sleep(Duration::from_millis(1)).await;
            assert_eq!(server.requests_in_progress(), 0);
        }
    });
}

#[test]
fn a_server_that_ends_does_not_wait_for_ever_for_a_refused_payload() {
    let scene = Scene::new(Setup::new(2, MIB));
    let _peer = scene.run(async |cpu, route| {
        let peer = halting_in_a_refused_write(&cpu, &route).await;
        cpu.sleep(Duration::from_secs(1)).await;
        peer
    });
    scene.nbd.sessions().stop();
    scene.assert_all_ends();
}

#[test]
fn a_server_that_ends_does_not_wait_for_clients_that_have_not_chosen() {
    let scene = Scene::new(Setup::new(3, MIB));
    let _peers = scene.run(async |cpu, route| {
        let mut silent = route.peer(&cpu);
        silent.receive(18).await.expect("a greeting");
        let mut halting = route.greeted(&cpu).await;
        halting.option_header(NBD_OPTS_MAGIC, option::GO, 100).await.expect("sent");
        cpu.sleep(Duration::from_secs(1)).await;
        (silent, halting)
    });
    let start = scene.world.now();
    scene.nbd.sessions().stop();
    scene.assert_all_ends();
    assert!(scene.world.now().since(start) < Duration::from_secs(1), "it waited until {}", scene.world.now());
}

#[test]
fn a_server_that_ends_waits_for_replies_to_be_taken_until_it_gives_up() {
    for gives_up in [false, true] {
        let scene = Scene::new(Setup::new(4, 64 * MIB));
        let _peer = scene.run(async |cpu, route| {
            let mut peer = route.peer_of(&cpu, "disk").await;
            for no in 0..8 {
                peer.send(&request(cmd::READ, no * MIB, MIB as u32).encode()).await.expect("sent");
            }
            cpu.sleep(Duration::from_secs(1)).await;
            peer
        });
        let start = scene.world.now();
        scene.nbd.sessions().stop();
        if gives_up {
            scene.nbd.sessions().abort();
        }
        scene.assert_all_ends();
        let waited = scene.world.now().since(start);
        let bound = Duration::from_secs(if gives_up { 1 } else { 75 });
        assert!(waited < bound, "it ended after {waited:?}");
    }
}

#[test]
fn a_server_that_gives_up_does_not_make_clients_wait_for_a_stuck_disk() {
    let stuck = Arc::new(Delay::new(Arc::new(RamDisk::new(MIB, DiskNo(0))), Duration::from_secs(3600)));
    serve(Setup { device: stuck, ..Setup::new(5, MIB) }, async |cpu, route| {
        let client = route.client(&cpu, "disk", true).await;
        let answer = Rc::new(Cell::new(None));
        let (slot, asking) = (Rc::clone(&answer), Rc::clone(&client));
        cpu.spawn(async move { slot.set(Some(asking.read(0, 4096).await.map(drop))) });
        cpu.sleep(Duration::from_secs(1)).await;
        route.nbd.sessions().stop();
        cpu.sleep(Duration::from_secs(10)).await;
        assert_eq!(answer.get(), None, "its request is under way");
        route.nbd.sessions().abort();
        cpu.sleep(Duration::from_secs(1)).await;
        assert_eq!(answer.get(), Some(Err(ClientError::Gone)));
    });
}

#[test]
fn information_that_is_asked_for_many_times_is_given_once() {
    serve(Setup::new(6, MIB), async |cpu, route| {
        let mut peer = route.greeted(&cpu).await;
        let mut data = go("disk");
        data.truncate(data.len() - 2);
        data.extend_from_slice(&30_000_u16.to_be_bytes());
        for no in 0..30_000 {
            data.extend_from_slice(&[info::NAME, info::DESCRIPTION, info::BLOCK_SIZE, 999][no % 4].to_be_bytes());
        }
        let replies = peer.ask(option::INFO, &data).await.expect("answers");
        let kinds: Vec<_> = replies.iter().filter(|reply| reply.kind == rep::INFO).map(|r| &r.payload[..2]).collect();
        assert_eq!(kinds.len(), 4, "export, name, description, block size");
        assert_eq!(peer.ask_last(option::GO, &go("disk")).await, Ok(rep::ACK));
    });
}

#[test]
fn an_option_of_any_length_is_refused_or_ends_the_connection() {
    serve(Setup { memory: MIB, ..Setup::new(7, MIB) }, async |cpu, route| {
        let mut peer = route.greeted(&cpu).await;
        for (option, len, error) in [
            (99, 65_536, rep::ERR_UNSUP),
            (99, 65_537, rep::ERR_TOO_BIG),
            (option::GO, 65_536, rep::ERR_INVALID),
            (option::LIST, 1 << 20, rep::ERR_TOO_BIG),
            (option::SET_META_CONTEXT, 1 << 20, rep::ERR_TOO_BIG),
        ] {
            assert_eq!(peer.ask_last(option, &vec![0xff; len]).await, Ok(error), "option {option} of {len} bytes");
        }
        assert_eq!(peer.ask_last(option::GO, &go("disk")).await, Ok(rep::ACK));
        drop(peer);
        for (option, len) in [
            (99, (1 << 20) + 1),
            (option::GO, u32::MAX),
            (option::EXPORT_NAME, 65_537),
            (option::EXPORT_NAME, 4097),
            (option::EXPORT_NAME, 2), // Not UTF-8.
        ] {
            let mut peer = route.greeted(&cpu).await;
            // The server need not receive all of it.
            if peer.option_header(NBD_OPTS_MAGIC, option, len).await.is_ok() {
                let _ = peer.send(&vec![0xff; len.min(1 << 21) as usize]).await;
            }
            assert_eq!(peer.receive(1).await, Err(Ended), "option {option} of {len} bytes");
        }
    });
}

#[test]
fn a_conversation_that_breaks_after_any_byte_is_let_go_of_and_half_a_write_writes_nothing() {
    let option = |option: u32, data: &[u8]| {
        [&NBD_OPTS_MAGIC.to_be_bytes()[..], &option.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data].concat()
    };
    let beginning = [
        3_u32.to_be_bytes().to_vec(),
        option(option::STRUCTURED_REPLY, &[]),
        option(option::SET_META_CONTEXT, &contexts("disk", BASE_ALLOCATION)),
        option(option::INFO, &go("disk")),
        option(option::GO, &go("disk")),
        request(cmd::BLOCK_STATUS, 0, 4096).encode().to_vec(),
    ]
    .concat();
    const WRITTEN: usize = 600;
    let whole = beginning.len() + 28 + WRITTEN + 28;
    serve(Setup { memory: 4 * MIB, ..Setup::new(8, 64 * MIB) }, async move |cpu, route| {
        for cut in 0..=whole {
            let at = cut as u64 * 1000;
            let write = Request { flags: cmd::FLAG_FUA, ..request(cmd::WRITE, at, WRITTEN as u32) };
            let read = request(cmd::READ, at, WRITTEN as u32);
            let all = [&beginning[..], &write.encode(), &[0xee; WRITTEN], &read.encode()].concat();
            let mut peer = route.peer(&cpu);
            peer.send(&all[..cut]).await.expect("sent");
            if cut % 2 == 0 {
                cpu.sleep(Duration::from_millis(2)).await;
            }
        }
        cpu.sleep(Duration::from_secs(1)).await;
        let client = route.client(&cpu, "disk", true).await;
        for cut in 0..=whole {
            let found = client.read(cut as u64 * 1000, WRITTEN as u32).await.expect("read");
            let expected = found.iter().all(|byte| *byte == 0);
            assert!(expected || (found == [0xee; WRITTEN] && cut >= whole - 28), "cut after {cut} of {whole}");
            assert!(!expected || cut % 2 != 0 || cut < whole - 28, "a whole write was not done: {cut} of {whole}");
        }
    });
}

#[test]
fn half_a_write_keeps_nobody_off_its_range() {
    serve(Setup::new(9, 64 * MIB), async |cpu, route| {
        // One stops in its first piece, one in its second.
        let mut halting = Vec::new();
        for sent in [30_000, MIB as usize + 30_000] {
            let mut peer = route.peer_of(&cpu, "disk").await;
            let header = request(cmd::WRITE, 0, 3 << 20).encode();
            peer.send(&[&header[..], &vec![0xee; sent]].concat()).await.expect("sent");
            halting.push(peer);
        }
        cpu.sleep(Duration::from_secs(1)).await;
        let start = cpu.now();
        let client = route.client(&cpu, "disk", true).await;
        client.write(0, &vec![0x22; 3 << 20], true).await.expect("written");
        client.request(cmd::TRIM, 0, MIB, MIB as u32, &[]).await.expect("trimmed");
        client.request(cmd::WRITE_ZEROES, 0, 2 * MIB, MIB as u32, &[]).await.expect("zeroed");
        client.flush().await.expect("flushed");
        let expected = [vec![0x22; MIB as usize], vec![0; 2 << 20]].concat();
        assert!(client.read(0, 3 << 20).await.expect("read") == expected);
        assert!(cpu.now().since(start) < Duration::from_secs(5), "it had to wait");
    });
}

#[test]
fn long_reads_beside_many_others_come_through_from_little_memory() {
    for structured in [false, true] {
        let disk = Arc::new(Delay::new(Arc::new(RamDisk::new(256 * MIB, DiskNo(0))), Duration::from_millis(1)));
        serve(Setup { device: disk, memory: 6 * MIB, ..Setup::new(10, 256 * MIB) }, async move |cpu, route| {
            let connections = (0..3).map(async |no| {
                let client = route.client(&cpu, "disk", structured).await;
                // No two read the same: every reply has frames of its own.
                let requests = (0..40).map(async |at| {
                    let offset = (no * 40 + at) * 2 * MIB;
                    match at % 8 {
                        0 => assert_eq!(client.read(offset, 2 << 20).await, Ok(vec![0; 2 << 20])),
                        1 => assert_eq!(client.write(offset, &[0; 100_000], false).await, Ok(())),
                        _ => assert_eq!(client.read(offset, 1 << 20).await, Ok(vec![0; 1 << 20])),
                    }
                });
                join_all(requests).await;
            });
            join_all(connections).await;
        });
    }
}

#[test]
fn the_longest_writes_of_many_come_through_from_little_memory() {
    serve(Setup { memory: 6 * MIB, ..Setup::new(11, 64 * MIB) }, async |cpu, route| {
        let writes = (0..6).map(async |no| {
            let client = route.client(&cpu, "disk", no % 2 == 0).await;
            client.write(no * 10 * MIB + 17, &vec![no as u8 + 1; 10 << 20], no == 3).await.expect("written");
            client.write(no, &[0x77; 1], true).await.expect("written");
        });
        join_all(writes).await;
        let client = route.client(&cpu, "disk", true).await;
        for no in 0..6 {
            let data = client.read(no * 10 * MIB + 17, 10 << 20).await.expect("read");
            assert!(data.iter().all(|byte| *byte == no as u8 + 1), "write {no}");
        }
    });
}

#[test]
fn replies_that_nobody_takes_on_256_connections_of_128_requests_leave_memory_for_others() {
    let network = NetworkConfig { buffer_bytes: 8 << 10, backlog_max: 512, ..NetworkConfig::default() };
    serve(Setup { memory: 16 * MIB, network, ..Setup::new(12, 256 * MIB) }, async |cpu, route| {
        let client = route.client(&cpu, "disk", true).await;
        let mut greedy = Vec::new();
        for no in 0..256_u64 {
            let mut peer = route.peer_of(&cpu, "disk").await;
            for at in 0..128 {
                peer.send(&request(cmd::READ, (no * 128 + at) * 4096, 4096).encode()).await.expect("sent");
            }
            greedy.push(peer);
            let took = round(&cpu, &client, 200 * MIB + no * 5000).await;
            assert!(took < Duration::from_secs(10), "with {no} others a client had to wait for {took:?}");
        }
        for no in 0..20 {
            cpu.sleep(Duration::from_secs(1)).await;
            let took = round(&cpu, &client, 220 * MIB + no * 100_000).await;
            assert!(took < Duration::from_secs(10), "a client had to wait for {took:?}");
            let held = route.kernel.frames().bytes_held();
            assert!(held <= 16 * MIB, "{held} bytes held");
        }
    });
}

#[test]
fn what_does_not_begin_at_a_multiple_of_the_block_is_refused_at_the_end_of_the_disk_too() {
    serve(Setup { block_size: 4096, ..Setup::new(13, MIB) }, async |cpu, route| {
        let client = route.client(&cpu, "disk", true).await;
        let refused = Err(ClientError::Refused(NbdError::EINVAL));
        for (at, len) in [(1, 4096), (0, 100), (MIB - 100, 100), (MIB - 4097, 4097)] {
            assert_eq!(client.write(at, &vec![1; len], false).await, refused, "{len} bytes at {at}");
        }
        assert_eq!(client.write(MIB - 4096, &[1; 4096], false).await, Ok(()));
    });
}

#[test]
fn of_connections_that_have_ended_nothing_is_left() {
    let scene = Scene::new(Setup::new(5, MIB));
    // What the server does at its start has ended then.
    scene.run(async |cpu, _| cpu.sleep(Duration::from_millis(100)).await);
    let (processors, tasks) = (scene.disk.processors.clone(), scene.disk.tasks());
    scene.run(async move |cpu, route| {
        for turn in 0..1000 {
            drop(if turn % 2 == 0 { route.peer_of(&cpu, "disk").await } else { route.peer(&cpu) });
        }
        cpu.sleep(Duration::from_millis(100)).await;
        let left: usize = processors.iter().map(Processor::tasks).sum();
        assert_eq!(left, tasks);
    });
    scene.assert_all_ends();
    scene.assert_nothing_is_left(tasks);
}
