//! Requests and replies of clients that keep to the protocol: a read returns what was written, every command does what
//! the protocol says, and every request is answered in time.

use crate::client::ClientError;
use crate::scene::{Connected, Ended, Scene, Setup, go, request, serve};
use futures_util::future::join_all;
use kernel::Switches;
use kernel::connection::Protocol;
use kernel::device::{Delay, DeviceRef, Fault, Faults, FixedLatency, Operation, RamDisk, TESTDEV_LATENCY};
use machine::Errno;
use nbd::proto::{NBD_STRUCTURED_REPLY_MAGIC, NbdError, Reader, Request, chunk, cmd, flag, option, rep, state};
use policy::unit::{BLOCK_BYTES, DiskNo};
use sim::NetworkConfig;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use testkit::random::Random;
use testkit::rounds::for_seeds;

const MIB: u64 = 1 << 20;

fn refused<T>(error: NbdError) -> Result<T, ClientError> {
    Err(ClientError::Refused(error))
}

fn noise(random: &mut Random, len: usize) -> Vec<u8> {
    (0..len).map(|_| random.next() as u8).collect()
}

/// One client's random requests on its own part of the disk, checked against its model.
async fn exercise(client: &Rc<Connected>, mut random: Random, part: std::ops::Range<u64>, rounds: u32) {
    let len = part.end - part.start;
    let mut model = vec![0; len as usize];
    for _ in 0..rounds {
        let at = random.below(len);
        let most = (len - at).min([20_000, 20_000, 20_000, 300_000][random.below(4) as usize]);
        let (at, count) = match random.below(3) {
            0 if at + BLOCK_BYTES <= len => (at - at % BLOCK_BYTES, BLOCK_BYTES),
            _ => (at, 1 + random.below(most)),
        };
        let (here, offset) = (at as usize..(at + count) as usize, part.start + at);
        let fua = if random.chance(100) { cmd::FLAG_FUA } else { 0 };
        match random.below(8) {
            0..3 => {
                let data = noise(&mut random, count as usize);
                client.write(offset, &data, fua != 0).await.expect("written");
                model[here].copy_from_slice(&data);
            }
            3..6 => assert!(client.read(offset, count as u32).await.expect("read") == model[here]),
            6 => {
                let hole = if random.chance(500) { cmd::FLAG_NO_HOLE } else { 0 };
                let zeroed = client.request(cmd::WRITE_ZEROES, hole | fua, offset, count as u32, &[]).await;
                zeroed.expect("zeroed");
                model[here].fill(0);
            }
            _ => {
                client.flush().await.expect("flushed");
                client.request(cmd::CACHE, 0, offset, count as u32, &[]).await.expect("cached");
            }
        }
    }
    // At last one that is longer than what passes in one piece.
    client.write(part.start + 5, &model[5..], false).await.expect("written");
    assert!(client.read(part.start, len as u32).await.expect("read") == model, "what is read at last");
}

#[test]
fn what_is_read_is_what_was_written_however_the_network_cuts_it() {
    for_seeds("what_is_read_is_what_was_written", 12, |seed| {
        let network = NetworkConfig::drawn(seed);
        // Megabytes: with a small window they would be cut into single bytes.
        let is_cut = network.short_send_permille + network.short_receive_permille > 0;
        let network = NetworkConfig {
            short_send_permille: network.short_send_permille.min(500),
            buffer_bytes: network.buffer_bytes.max(if is_cut { 64 << 10 } else { 0 }),
            ..network
        };
        serve(Setup { network, memory: 4 * MIB, ..Setup::new(seed, 8 * MIB) }, async move |cpu, route| {
            let clients = (0..4).map(async |no| {
                let client = route.client(&cpu, "disk", no % 2 == 0).await;
                let part = no * 2 * MIB..(no + 1) * 2 * MIB - no;
                exercise(&client, Random(seed * 4 + no), part, 40).await;
            });
            join_all(clients).await;
        });
    });
}

#[test]
fn what_one_connection_wrote_another_one_reads_and_flushes() {
    let scene = Scene::new(Setup::new(3, MIB));
    scene.run(async |cpu, route| {
        let (one, other) = (route.client(&cpu, "disk", false).await, route.client(&cpu, "disk", true).await);
        assert_ne!(one.flags & flag::CAN_MULTI_CONN, 0);
        one.write(5000, &[7; 9000], false).await.expect("written");
        assert!(other.read(5000, 9000).await.expect("read") == [7; 9000]);
        other.flush().await.expect("flushed");
    });
    assert_eq!(scene.volume.dirty_blocks(), 0);
}

#[test]
fn a_large_read_comes_whole_in_simple_and_in_structured_replies() {
    for structured in [false, true] {
        serve(Setup { memory: 8 * MIB, ..Setup::new(4, 40 * MIB) }, async move |cpu, route| {
            let client = route.client(&cpu, "disk", structured).await;
            let mut random = Random(1);
            let data = noise(&mut random, 32 << 20);
            client.write(4097, &data, false).await.expect("the longest write");
            // Other requests of the same connection pass meanwhile, and their replies do not end up inside this one.
            let small = (0..50).map(async |no| {
                let at = 4097 + no * 600_000;
                let small = client.read(at, 5000).await.expect("read");
                assert!(small == data[(at - 4097) as usize..][..5000]);
                Vec::new()
            });
            let large = async || client.read(4097, 32 << 20).await.expect("the longest read");
            let mut futures: Vec<std::pin::Pin<Box<dyn Future<Output = Vec<u8>>>>> = vec![Box::pin(large())];
            futures.extend(small.map(|future| Box::pin(future) as _));
            let results = join_all(futures).await;
            assert!(results[0] == data);
        });
    }
}

#[test]
fn requests_outside_the_disk_or_the_rules_are_refused_with_the_protocols_error() {
    serve(Setup::new(5, MIB), async |cpu, route| {
        for structured in [false, true] {
            let client = route.client(&cpu, "disk", structured).await;
            for (kind, flags, offset, len, payload, error) in [
                (cmd::READ, 0, MIB, 1, 0, NbdError::EINVAL),
                (cmd::READ, 0, u64::MAX, 2, 0, NbdError::EINVAL),
                (cmd::READ, 0, 0, u32::MAX, 0, NbdError::EINVAL),
                (cmd::READ, 1 << 15, 0, 1, 0, NbdError::EINVAL),
                (cmd::WRITE, 0, MIB - 1, 2, 2, NbdError::ENOSPC),
                (cmd::WRITE, 0, u64::MAX - 1, 100_000, 100_000, NbdError::ENOSPC),
                (cmd::WRITE, cmd::FLAG_DF, 0, 5000, 5000, NbdError::EINVAL),
                (cmd::WRITE_ZEROES, 0, 1, u32::MAX, 0, NbdError::ENOSPC),
                (cmd::WRITE_ZEROES, cmd::FLAG_REQ_ONE, 0, 1, 0, NbdError::EINVAL),
                (cmd::TRIM, 0, MIB, 1, 0, NbdError::EINVAL),
                (cmd::CACHE, 0, MIB, 1, 0, NbdError::EINVAL),
                (cmd::BLOCK_STATUS, 0, 0, 0, 0, NbdError::EINVAL),
                (99, 0, 0, 1, 0, NbdError::EINVAL),
            ] {
                let answer = client.request(kind, flags, offset, len, &vec![0x55; payload]).await;
                assert_eq!(answer, refused(error), "command {kind} flags {flags} at {offset} of {len}");
            }
            if !structured {
                let answer = client.request(cmd::BLOCK_STATUS, 0, 0, 4096, &[]).await;
                assert_eq!(answer, refused(NbdError::EINVAL), "block status was not agreed on");
            }
            assert!(client.read(0, MIB as u32).await.expect("read").iter().all(|byte| *byte == 0), "nothing was done");
        }
    });
}

#[test]
fn a_read_only_export_refuses_every_change_and_goes_on() {
    serve(Setup::new(6, MIB), async |cpu, route| {
        let client = route.client(&cpu, "frozen", true).await;
        assert_ne!(client.flags & flag::READ_ONLY, 0);
        assert_eq!(client.write(0, &[1; 100_000], true).await, refused(NbdError::EPERM));
        for kind in [cmd::TRIM, cmd::WRITE_ZEROES] {
            assert_eq!(client.request(kind, 0, 0, 4096, &[]).await, refused(NbdError::EPERM));
        }
        assert_eq!(client.flush().await, Ok(()));
        assert!(client.read(0, 100_000).await.expect("read").iter().all(|byte| *byte == 0));
    });
}

#[test]
fn smaller_units_than_the_advertised_block_are_refused() {
    serve(Setup { block_size: 512, ..Setup::new(7, MIB) }, async |cpu, route| {
        let client = route.client(&cpu, "disk", true).await;
        assert_eq!(client.write(512, &[1; 512], false).await, Ok(()));
        assert_eq!(client.write(512, &[1; 100], false).await, refused(NbdError::EINVAL));
        assert_eq!(client.read(100, 512).await, refused(NbdError::EINVAL));
        assert_eq!(client.read(512, 512).await, Ok(vec![1; 512]));
    });
}

#[test]
fn a_read_that_must_not_be_cut_comes_in_one_chunk_or_is_refused() {
    serve(Setup::new(8, 40 * MIB), async |cpu, route| {
        let client = route.client(&cpu, "disk", true).await;
        let read =
            async |len| client.request(cmd::READ, cmd::FLAG_DF, 1, len, &[]).await.map(|answer| answer.data.len());
        assert_eq!(read(65_536).await, Ok(65_536), "so much must be possible");
        assert_eq!(read(32 << 20).await, refused(NbdError::EOVERFLOW));
    });
}

#[test]
fn block_status_tells_what_is_stored_and_covers_the_range() {
    serve(Setup::new(9, 64 * MIB), async |cpu, route| {
        let client = route.client(&cpu, "disk", true).await;
        client.write(MIB, &vec![1; MIB as usize], false).await.expect("written");
        client.write(10 * MIB, &[1; 4096], true).await.expect("written");
        let status = async |flags, at, len| {
            client.request(cmd::BLOCK_STATUS, flags, at, len, &[]).await.expect("extents").extents
        };
        let hole = state::HOLE | state::ZERO;
        let all = status(0, 0, (64 * MIB) as u32).await;
        assert_eq!(all[..2], [(MIB as u32, hole), (MIB as u32, 0)]);
        assert_eq!(all.iter().map(|(len, _)| u64::from(*len)).sum::<u64>(), 64 * MIB);
        assert!(all.windows(2).all(|pair| pair[0].1 != pair[1].1), "neighbours differ: {all:?}");
        assert_eq!(status(cmd::FLAG_REQ_ONE, MIB + 4096, (8 * MIB) as u32).await, [(MIB as u32 - 4096, 0)]);
        client.request(cmd::WRITE_ZEROES, 0, MIB, MIB as u32, &[]).await.expect("zeroed");
        assert_eq!(status(cmd::FLAG_REQ_ONE, 0, (4 * MIB) as u32).await, [((4 * MIB) as u32, hole)]);
    });
}

#[test]
fn trim_and_zeroes_of_gigabytes_are_answered_without_memory_for_them() {
    let size = 1 << 40;
    serve(Setup { memory: MIB, ..Setup::new(10, size) }, async move |cpu, route| {
        let client = route.client(&cpu, "disk", false).await;
        client.write(size - 10, &[9; 10], true).await.expect("written");
        let len = u32::MAX - 4095;
        for (kind, flags) in [(cmd::TRIM, 0), (cmd::WRITE_ZEROES, cmd::FLAG_FAST_ZERO), (cmd::WRITE_ZEROES, 0)] {
            client.request(kind, flags, size - u64::from(len), len, &[]).await.expect("done");
        }
        assert_eq!(client.read(size - 10, 10).await, Ok(vec![0; 10]));
    });
}

#[test]
fn a_failing_disk_reaches_the_client_as_its_error_and_the_connection_goes_on() {
    for structured in [false, true] {
        let fault = Arc::new(Fault::new(Arc::new(RamDisk::new(8 * MIB, DiskNo(0))), Faults::default()));
        serve(Setup { device: Arc::clone(&fault) as DeviceRef, ..Setup::new(11, 0) }, async move |cpu, route| {
            let client = route.client(&cpu, "disk", structured).await;
            fault.fail_next(Operation::Read, 1, Errno::IO);
            assert_eq!(client.read(0, 4096).await, refused(NbdError::EIO));
            fault.fail_next(Operation::Flush, 1, Errno::NO_SPACE);
            client.write(0, &[1; 4096], false).await.expect("written");
            assert_eq!(client.flush().await, refused(NbdError::ENOSPC));
            fault.fail_next(Operation::Read, 1, Errno::IO);
            assert_eq!(client.write(MIB + 1, &[1; 100], false).await, refused(NbdError::EIO), "the rest of the block");
            assert_eq!(client.write(MIB + 1, &[1; 100], true).await, Ok(()));
            assert_eq!(client.read(MIB, 2).await, Ok(vec![0, 1]));
        });
    }
}

#[test]
fn flushes_that_arrive_together_are_answered_each_with_the_error_of_the_disk_too() {
    for gathering in [true, false] {
        let fault = Arc::new(Fault::new(Arc::new(RamDisk::new(8 * MIB, DiskNo(0))), Faults::default()));
        let network = NetworkConfig { short_send_permille: 0, short_receive_permille: 0, ..NetworkConfig::default() };
        let device = Arc::clone(&fault) as DeviceRef;
        let switches = Switches { flush_gathering: gathering, ..Switches::default() };
        serve(Setup { device, network, switches, ..Setup::new(13, 0) }, async move |cpu, route| {
            let writer = route.client(&cpu, "disk", false).await;
            let mut peer = route.peer_of(&cpu, "disk").await;
            let flushes = |first: u64| {
                let of = |cookie| Request { cookie, ..request(cmd::FLUSH, 0, 0) };
                (first..first + 3).flat_map(|cookie| of(cookie).encode()).collect::<Vec<u8>>()
            };
            let errors = if gathering { [NbdError::ENOSPC.0, 0] } else { [0, 0] };
            for (first, error) in [10, 20].into_iter().zip(errors) {
                writer.write(0, &[1; 4096], false).await.expect("written");
                if error > 0 {
                    fault.fail_next(Operation::Flush, 1, Errno::NO_SPACE);
                }
                peer.send(&flushes(first)).await.expect("sent");
                let mut replies = Vec::new();
                for _ in 0..3 {
                    replies.push(peer.simple_reply().await.expect("answered"));
                }
                replies.sort_unstable();
                assert_eq!(replies, [0, 1, 2].map(|number| (error, first + number)));
            }
        });
    }
}

#[test]
fn a_large_read_that_fails_in_the_middle_ends_in_an_error_or_in_the_end_of_the_connection() {
    for structured in [false, true] {
        let fault = Arc::new(Fault::new(Arc::new(RamDisk::new(16 * MIB, DiskNo(0))), Faults::default()));
        serve(Setup { device: Arc::clone(&fault) as DeviceRef, ..Setup::new(12, 0) }, async move |cpu, route| {
            let client = route.client(&cpu, "disk", structured).await;
            client.read(0, MIB as u32).await.expect("cached now");
            fault.fail_next(Operation::Read, 100, Errno::IO);
            let answer = client.read(0, (8 * MIB) as u32).await;
            // After the header of a simple reply, the only way to report an error is to disconnect.
            assert_eq!(answer, if structured { refused(NbdError::EIO) } else { Err(ClientError::Gone) });
        });
    }
}

#[test]
fn parts_of_blocks_on_a_slow_disk_are_written_and_answered() {
    let slow: [fn(DeviceRef) -> DeviceRef; 2] = [
        |ram| Arc::new(FixedLatency::new(ram, TESTDEV_LATENCY)),
        |ram| Arc::new(Delay::new(ram, Duration::from_millis(5))),
    ];
    for device in slow {
        serve(
            Setup { device: device(Arc::new(RamDisk::new(MIB, DiskNo(0)))), ..Setup::new(13, 0) },
            async |cpu, route| {
                let client = route.client(&cpu, "disk", false).await;
                let writes =
                    (0..20).map(async |no| client.write(no * 5000 + 100, &[no as u8; 3000], no % 2 == 0).await);
                assert!(join_all(writes).await.iter().all(Result::is_ok));
                assert_eq!(client.read(5000 + 99, 2).await, Ok(vec![0, 1]));
            },
        );
    }
}

fn slow_disk(seed: u64) -> Setup {
    let device = Arc::new(FixedLatency::new(Arc::new(RamDisk::new(MIB, DiskNo(0))), TESTDEV_LATENCY));
    Setup { device, ..Setup::new(seed, 0) }
}

#[test]
fn all_that_was_sent_before_the_good_bye_is_done_and_answered() {
    serve(slow_disk(14), async |cpu, route| {
        let mut peer = route.peer_of(&cpu, "disk").await;
        let mut bytes = Vec::new();
        for no in 0..30 {
            bytes.extend(Request { cookie: no, ..request(cmd::WRITE, no * 3000, 3000) }.encode());
            bytes.extend([no as u8 + 1; 3000]);
        }
        bytes.extend(Request { cookie: 30, ..request(cmd::FLUSH, 0, 0) }.encode());
        bytes.extend(request(cmd::DISC, 0, 0).encode());
        peer.send(&bytes).await.expect("sent");
        let mut answered = [false; 31];
        for _ in 0..31 {
            let (error, cookie) = peer.simple_reply().await.expect("an answer to each");
            assert_eq!(error, 0);
            assert!(!std::mem::replace(&mut answered[cookie as usize], true), "{cookie} was answered twice");
        }
        assert_eq!(peer.receive(1).await, Err(Ended));
        drop(peer);
        let client = route.client(&cpu, "disk", false).await;
        assert_eq!(client.read(29 * 3000, 3000).await, Ok(vec![30; 3000]));
    });
}

#[test]
fn a_server_that_ends_answers_what_is_under_way_and_takes_nothing_more() {
    serve(slow_disk(15), async |cpu, route| {
        let (idle, busy) = (route.client(&cpu, "disk", false).await, route.client(&cpu, "disk", true).await);
        let mut choosing = route.greeted(&cpu).await;
        let answered = Rc::new(Cell::new(0));
        for no in 0..16 {
            let (busy, answered) = (Rc::clone(&busy), Rc::clone(&answered));
            cpu.spawn(async move {
                if busy.read(no * 40_000, 4096).await.is_ok() {
                    answered.set(answered.get() + 1);
                }
            });
        }
        cpu.sleep(Duration::from_millis(5)).await;
        route.nbd.sessions().stop();
        cpu.sleep(Duration::from_secs(1)).await;
        assert_eq!(answered.get(), 16);
        assert_eq!(busy.flush().await, Err(ClientError::Gone));
        assert_eq!(idle.flush().await, Err(ClientError::Gone));
        route.nbd.sessions().abort();
        choosing.until_end().await;
    });
}

#[test]
fn errors_tell_what_was_wrong_where_replies_have_room_for_it() {
    let fault = Arc::new(Fault::new(Arc::new(RamDisk::new(MIB, DiskNo(0))), Faults::default()));
    serve(Setup { device: fault.clone(), ..Setup::new(21, MIB) }, async move |cpu, route| {
        let mut peer = route.greeted(&cpu).await;
        assert_eq!(peer.ask_last(option::STRUCTURED_REPLY, &[]).await, Ok(rep::ACK));
        assert_eq!(peer.ask_last(option::GO, &go("disk")).await, Ok(rep::ACK));
        fault.fail_next(Operation::Read, 1, Errno::IO);
        let asked = [
            (request(cmd::READ, 0, 4096), NbdError::EIO, "Input/output error"),
            (request(cmd::READ, MIB, 512), NbdError::EINVAL, "beyond the end of the export"),
            (request(cmd::WRITE_ZEROES, MIB - 512, 1024), NbdError::ENOSPC, "beyond the end of the export"),
            (request(99, 0, 512), NbdError::EINVAL, "not known here"),
        ];
        for (request, error, text) in asked {
            peer.request(request, &[]).await.expect("sent");
            let reply = peer.receive(20).await.expect("a chunk");
            let mut at = Reader::new(&reply);
            assert_eq!(at.u32(), Some(NBD_STRUCTURED_REPLY_MAGIC), "{request:?}");
            assert_eq!((at.u16(), at.u16()), (Some(chunk::FLAG_DONE), Some(chunk::ERROR)));
            assert_eq!(at.u64(), Some(request.cookie));
            let payload = peer.receive(at.u32().expect("a length") as usize).await.expect("a payload");
            let mut at = Reader::new(&payload);
            assert_eq!(at.u32(), Some(error.0), "{request:?}");
            let told = at.u16().and_then(|len| at.take(len.into())).expect("a text");
            assert!(at.is_empty() && String::from_utf8_lossy(told).contains(text), "{told:?}");
        }
    });
}
