//! Clients that violate the protocol, stall or accept no replies: they are refused or disconnected, and no other client
//! is affected.

use futures_util::future::join_all;
use nfs3_types::rpc::accept_stat;

use super::*;

use crate::record::{MESSAGE_BYTES_MAX, RECORD_BYTES_MAX};

const GARBAGE: u32 = accept_stat::GARBAGE_ARGS as u32;

/// Asserts that a client is served without delay.
async fn assert_unharmed(cpu: &Processor, peer: &mut Peer) {
    let start = cpu.now();
    let answer = peer.ask(&write_call(1, 100, &[0x11; 5000])).await.expect("an answer");
    assert_eq!(answer.results(), 5000_u32.to_be_bytes());
    let answer = peer.ask(&read_call(2, 4000, 5000)).await.expect("an answer");
    assert_eq!(answer.results().len(), 5004);
    let took = cpu.now().since(start);
    assert!(took < Duration::from_secs(1), "another client had to wait for {took:?}");
}

#[test]
fn lengths_beyond_what_is_there_are_refused_before_memory_is_taken_for_them() {
    serve(Setup::new(1), async |cpu, route| {
        let mut peer = route.peer(&cpu);
        let (handle, name) = (opaque(b"handle"), opaque(b"name"));
        let attributes = xdr(&[1, 0o644, 0, 0, 1, 0, 5, 2, 7, 8, 1], &[]);
        let good = |bytes: &[&[u8]]| bytes.concat();
        let cases = [
            (NFS_PROGRAM::NFSPROC3_GETATTR, xdr(&[65], &[0; 65])),
            (NFS_PROGRAM::NFSPROC3_GETATTR, xdr(&[u32::MAX], &[0; 64])),
            (NFS_PROGRAM::NFSPROC3_GETATTR, xdr(&[5], &[0; 4])),
            (NFS_PROGRAM::NFSPROC3_GETATTR, vec![]),
            (NFS_PROGRAM::NFSPROC3_LOOKUP, good(&[&handle, &xdr(&[9], b"name")])),
            (NFS_PROGRAM::NFSPROC3_LOOKUP, good(&[&handle, &xdr(&[u32::MAX], b"name")])),
            (NFS_PROGRAM::NFSPROC3_LOOKUP, good(&[&xdr(&[u32::MAX], &[]), &name])),
            (NFS_PROGRAM::NFSPROC3_CREATE, good(&[&handle, &xdr(&[1 << 30], &[])])),
            (NFS_PROGRAM::NFSPROC3_SYMLINK, good(&[&handle, &name, &attributes, &xdr(&[u32::MAX - 3], &[])])),
            (NFS_PROGRAM::NFSPROC3_SYMLINK, good(&[&handle, &name, &xdr(&[2], &[]), &name])),
            (NFS_PROGRAM::NFSPROC3_RENAME, good(&[&handle, &name, &handle, &xdr(&[5], b"name")])),
            (NFS_PROGRAM::NFSPROC3_RENAME, good(&[&handle, &name, &xdr(&[80], &[0; 80]), &name])),
            (NFS_PROGRAM::NFSPROC3_LINK, good(&[&handle, &xdr(&[u32::MAX], &[]), &name])),
            (NFS_PROGRAM::NFSPROC3_WRITE, good(&[&write_arguments(0, 8), &xdr(&[u32::MAX], &[0; 8])])),
            (NFS_PROGRAM::NFSPROC3_WRITE, good(&[&write_arguments(0, 8), &xdr(&[9], &[0; 8])])),
            (NFS_PROGRAM::NFSPROC3_WRITE, good(&[&write_arguments(0, 8), &xdr(&[TRANSFER_BYTES_MAX + 1], &[0; 8])])),
            (NFS_PROGRAM::NFSPROC3_WRITE, xdr(&[65, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[0; 70])),
            (NFS_PROGRAM::NFSPROC3_LOOKUP, good(&[&handle, &opaque(&vec![b'x'; MESSAGE_BYTES_MAX])])),
        ];
        for (no, (procedure, arguments)) in cases.into_iter().enumerate() {
            let message = call(no as u32, procedure, &arguments);
            for lengths in [&[][..], &[100], &[30, 30, 30, 30]] {
                peer.send(&fragments(&message, lengths)).await.expect("sent");
                let answer = peer.answer().await.expect("an answer");
                assert_eq!((answer.xid, answer.accepted()), (no as u32, (GARBAGE, &[][..])), "case {no}");
            }
        }
        let path = opaque(&[b'p'; 4095]);
        let longest = good(&[&handle, &name, &attributes, &path]);
        let answer = peer.ask(&call(1, NFS_PROGRAM::NFSPROC3_SYMLINK, &longest)).await.expect("an answer");
        assert_eq!(answer.accepted().0, accept_stat::PROC_UNAVAIL as u32, "it arrived");
        assert_eq!(route.log.take().len(), 1);
        assert_unharmed(&cpu, &mut peer).await;
    });
}

#[test]
fn what_cannot_be_a_call_ends_the_connection_after_what_came_before_it() {
    serve(Setup::new(2), async |cpu, route| {
        let mut good = route.peer(&cpu);
        let cases = [
            // Too long a record, at once and gradually.
            xdr(&[u32::MAX], &[]),
            xdr(&[(1 << 31) | (RECORD_BYTES_MAX as u32 + 1)], &[]),
            [record(&null(1))[..4].to_vec(), null(1), xdr(&[RECORD_BYTES_MAX as u32 + 1], &[])].concat(),
            fragments(&write_call(1, 0, &vec![0; RECORD_BYTES_MAX])[..RECORD_BYTES_MAX + 1], &[RECORD_BYTES_MAX, 0, 0]),
            // A reply; an unknown message type; less than a call.
            record(&xdr(&[1, 1, 0, 0, 0, 0], &[])),
            record(&xdr(&[1, 2, 2, NFS, 3, 0, 0, 0, 0, 0], &[])),
            record(&[]),
            record(&[1]),
            record(&null(1)[..8]),
            record(&null(1)[..23]),
            vec![0; 4 * 1000],
            b"GET / HTTP/1.1\r\nHost: example\r\n\r\n".to_vec(),
        ];
        for (no, case) in cases.into_iter().enumerate() {
            let mut peer = route.peer(&cpu);
            let start = cpu.now();
            peer.send(&record(&wait(77, 50))).await.expect("sent");
            // The connection may end before all of it is accepted.
            let _ = peer.send(&case).await;
            let tail = record(&null(78));
            let _ = peer.send(&tail).await;
            let mut answers = Vec::new();
            while let Ok(answer) = peer.answer().await {
                answers.push(answer.xid);
            }
            // What follows is ignored.
            assert!(answers == [77] || answers == [1, 77], "case {no}: {answers:?}");
            assert!(cpu.now().since(start) < Duration::from_secs(1), "case {no}");
            drop(peer);
            assert_unharmed(&cpu, &mut good).await;
        }
    });
}

#[test]
fn a_call_that_is_cut_off_is_never_done() {
    serve(Setup::new(3), async |cpu, route| {
        for message in [write_call(5, 4000, &[0xee; 203]), lookup(5, b"name"), wait(5, 0), read_call(5, 0, 8)] {
            for len in 0..message.len() {
                for lengths in [&[][..], &[20, 60]] {
                    let mut peer = route.peer(&cpu);
                    // A whole call follows: the truncated one must not extend into it.
                    let stream = [fragments(&message[..len], lengths), record(&null(6))].concat();
                    peer.send(&stream).await.expect("sent");
                    match peer.answer().await {
                        Ok(answer) => {
                            let cut = answer.xid == 5 && answer.accepted().0 == GARBAGE;
                            // The stand-in checks the arguments after a handle itself.
                            let arguments = message.len() - len <= 12 && answer.xid == 5;
                            assert!(cut || arguments, "{len} bytes: {answer:?}");
                            assert_eq!(peer.answer().await.map(|answer| answer.xid), Ok(6), "{len} bytes");
                        }
                        Err(Ended) => assert!(len < 24, "{len} bytes"),
                    }
                }
            }
        }
        // If only the padding is missing, that may be known too late.
        let whole = |seen: &Seen| seen.data.as_ref().is_none_or(|data| data == &[0xee; 203]);
        assert!(route.log.take().iter().all(whole), "a part of a WRITE was done");
    });
}

#[test]
fn a_million_fragments_cost_no_more_than_their_bytes() {
    serve(Setup::new(4), async |cpu, route| {
        let (mut good, mut peer) = (route.peer(&cpu), route.peer(&cpu));
        let data: Vec<u8> = (0..1_000_000_u32).map(|at| at as u8 ^ (at >> 8) as u8).collect();
        let message = write_call(1, 4097, &data);
        peer.send(&fragments(&message, &vec![1; message.len()])).await.expect("sent");
        assert_eq!(peer.answer().await.expect("an answer").results(), 1_000_000_u32.to_be_bytes());
        assert!(route.log.take()[0].data.as_ref() == Some(&data));
        // And a million empty ones.
        let _ = peer.send(&vec![0; 4_000_000]).await;
        peer.until_end().await;
        drop(peer);
        assert!(route.kernel.frames().bytes_held() <= 32 * MIB);
        assert_unharmed(&cpu, &mut good).await;
    });
}

#[test]
fn who_does_not_take_its_replies_blocks_only_itself_and_is_disconnected() {
    serve(Setup::new(5), async |cpu, route| {
        let calls: [fn(u32) -> Vec<u8>; 4] = [
            |xid| read_call(xid, 0, 65_536),
            |xid| lookup(xid, &[b'x'; 8000]),
            // Refused by the decoder: these are limited, too.
            |xid| call(xid, NFS_PROGRAM::NFSPROC3_GETATTR, &[]),
            |xid| xdr(&[xid, 0, 9], &[]),
        ];
        let mut good = route.peer(&cpu);
        for make in calls {
            let mut greedy = route.peer(&cpu);
            let start = cpu.now();
            let asking = async {
                for xid in 0.. {
                    if greedy.send(&record(&make(xid))).await.is_err() {
                        return cpu.now();
                    }
                    cpu.sleep(Duration::from_micros(100)).await;
                    assert!(xid < 100_000, "the server takes calls without end");
                }
                start
            };
            let watching = async {
                for _ in 0..20 {
                    cpu.sleep(Duration::from_secs(2)).await;
                    assert_unharmed(&cpu, &mut good).await;
                }
                start
            };
            let both: [std::pin::Pin<Box<dyn Future<Output = _>>>; 2] = [Box::pin(asking), Box::pin(watching)];
            let took = join_all(both).await[0].since(start);
            assert!(took < Duration::from_secs(75), "disconnected after {took:?}");
            drop(greedy);
        }
    });
}

#[test]
fn a_record_has_its_time_as_a_whole_and_between_records_there_is_more() {
    let connection = connection::Limits { idle_timeout: Some(Duration::from_secs(300)), ..Default::default() };
    let limits = Limits { connection, ..Limits::default() };
    serve(Setup { limits, ..Setup::new(6) }, async |cpu, route| {
        let write = record(&write_call(1, 0, &[0xee; 8192]));
        let peers = [1, 4, 30, 100, 5000, write.len() - 1].map(async |sent| {
            let mut peer = route.peer(&cpu);
            assert_eq!(peer.ask(&null(1)).await.map(|answer| answer.xid), Ok(1));
            cpu.sleep(Duration::from_secs(200)).await;
            peer.send(&write[..sent]).await.expect("sent");
            let start = cpu.now();
            // A byte now and then does not help while the record is incomplete.
            for at in sent..(sent + 5).min(write.len() - 1) {
                cpu.sleep(Duration::from_secs(10)).await;
                peer.send(&write[at..at + 1]).await.expect("sent");
            }
            let waited = peer.until_end().await.since(start);
            assert!(waited > Duration::from_secs(50), "{sent} bytes: disconnected after {waited:?}");
            assert!(waited < Duration::from_secs(75), "{sent} bytes: disconnected after {waited:?}");
        });
        join_all(peers).await;
    });
}

#[test]
fn who_says_nothing_for_long_is_disconnected_and_who_speaks_now_and_then_is_not() {
    let connection = connection::Limits { idle_timeout: Some(Duration::from_secs(300)), ..Default::default() };
    let limits = Limits { connection, ..Limits::default() };
    serve(Setup { limits, ..Setup::new(7) }, async |cpu, route| {
        let (mut silent, mut quiet, mut now_and_then) = (route.peer(&cpu), route.peer(&cpu), route.peer(&cpu));
        assert_eq!(quiet.ask(&null(1)).await.map(|answer| answer.xid), Ok(1));
        let start = cpu.now();
        for round in 0..10 {
            cpu.sleep(Duration::from_secs(200)).await;
            assert_eq!(now_and_then.ask(&null(round)).await.map(|answer| answer.xid), Ok(round));
        }
        assert!(silent.send(&record(&null(1))).await.is_err() || silent.answer().await == Err(Ended));
        assert!(quiet.send(&record(&null(1))).await.is_err() || quiet.answer().await == Err(Ended));
        assert!(cpu.now().since(start) > Duration::from_secs(1999));
    });
}

#[test]
fn so_many_calls_are_under_way_on_a_connection_and_no_more() {
    let connection = connection::Limits { requests: 7, bytes: MIB, ..Default::default() };
    let limits = Limits { connection, ..Limits::default() };
    serve(Setup { limits, ..Setup::new(8) }, async |cpu, route| {
        let mut peer = route.peer(&cpu);
        let stream: Vec<u8> = (0..100).flat_map(|xid| record(&wait(xid, 20))).collect();
        peer.send(&stream).await.expect("sent");
        for _ in 0..100 {
            peer.answer().await.expect("an answer");
        }
        assert_eq!(route.log.most_under_way.load(Ordering::SeqCst), 7);
    });
}

#[test]
fn payloads_that_many_begin_and_do_not_send_leave_memory_for_others() {
    serve(Setup { memory: 16 * MIB, ..Setup::new(9) }, async |cpu, route| {
        let mut good = route.peer(&cpu);
        // Whole and partial blocks.
        let writes = [0, 1].map(|offset| record(&write_call(1, offset, &vec![0xee; TRANSFER_BYTES_MAX as usize])));
        let mut stalled = Vec::new();
        for no in 0..150 {
            let mut peer = route.peer(&cpu);
            peer.send(&writes[no % 2][..200]).await.expect("sent");
            stalled.push(peer);
            cpu.sleep(Duration::from_millis(10)).await;
            assert_unharmed(&cpu, &mut good).await;
        }
        let start = cpu.now();
        let answer = good.ask(&read_call(1, 0, TRANSFER_BYTES_MAX)).await.expect("an answer");
        assert_eq!(answer.results().len(), TRANSFER_BYTES_MAX as usize + 4);
        let took = cpu.now().since(start);
        assert!(took < Duration::from_secs(1), "another client had to wait for {took:?}");
    });
}

#[test]
fn replies_that_many_do_not_take_leave_memory_for_others() {
    serve(Setup { memory: 16 * MIB, ..Setup::new(11) }, async |cpu, route| {
        let mut good = route.peer(&cpu);
        let mut greedy = Vec::new();
        for no in 0..150 {
            let mut peer = route.peer(&cpu);
            for xid in 0..[3, 20][no % 2] {
                peer.send(&record(&read_call(xid, 0, 256 << 10))).await.expect("sent");
            }
            greedy.push(peer);
            cpu.sleep(Duration::from_millis(10)).await;
            assert_unharmed(&cpu, &mut good).await;
        }
    });
}

#[test]
fn a_connection_that_breaks_after_any_number_of_bytes_is_let_go_of() {
    let scene = Scene::new(Setup::new(10));
    scene.run(async |cpu, route| {
        let conversation = [
            record(&wait(1, 30)),
            fragments(&write_call(2, 4000, &[0xee; 700]), &[100, 0, 300]),
            record(&write_call(3, 8192, &[0xee; 4096])),
            record(&read_call(4, 0, 100_000)),
        ]
        .concat();
        for cut in (0..1200).chain((1200..conversation.len()).step_by(97)) {
            let mut peer = route.peer(&cpu);
            peer.send(&conversation[..cut]).await.expect("sent");
            if cut % 3 == 0 {
                cpu.sleep(Duration::from_millis(1)).await;
            }
        }
    });
    scene.assert_all_ends();
    assert_eq!(scene.nfs.sessions().reservations().in_flight(), 0);
}

#[test]
fn garbage_at_any_point_harms_nobody_else() {
    for_seeds("garbage_at_any_point_harms_nobody_else", 40, |seed| {
        let network = NetworkConfig { backlog_max: 64, ..NetworkConfig::drawn(seed) };
        serve(Setup { network, memory: 8 * MIB, ..Setup::new(seed) }, async move |cpu, route| {
            let mut good = route.peer(&cpu);
            let others = (0..12).map(async |no| {
                let mut random = Random(seed * 100 + no);
                let mut peer = route.peer(&cpu);
                if babble(&mut peer, &mut random).await.is_ok() {
                    peer.cpu.sleep(Duration::from_micros(random.below(5000))).await;
                }
            });
            join_all(others).await;
            assert_unharmed(&cpu, &mut good).await;
        });
    });
}

/// Sends random bytes, some of them nearly valid.
async fn babble(peer: &mut Peer, random: &mut Random) -> Result<(), Ended> {
    for _ in 0..1 + random.below(60) {
        let xid = random.next() as u32;
        let len = [random.below(10), random.below(70_000), 4096][random.below(3) as usize];
        let message = match random.below(6) {
            0 => lookup(xid, &vec![b'x'; random.below(300) as usize]),
            1 => wait(xid, random.below(3) as u32),
            2 => read_call(xid, random.next() >> 1, len as u32),
            _ => write_call(xid, random.next() >> 1, &vec![random.next() as u8; len as usize]),
        };
        let cuts = if random.chance(300) { random.below(8) } else { 0 };
        let lengths: Vec<_> = (0..cuts).map(|_| random.below(300) as usize).collect();
        let mut bytes = fragments(&message, &lengths);
        if random.chance(100) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.next() as u8;
        }
        if random.chance(50) {
            bytes.truncate(random.below(bytes.len() as u64) as usize);
        }
        if random.chance(50) {
            bytes = (0..random.below(500)).map(|_| random.next() as u8).collect();
        }
        peer.send(&bytes).await?;
    }
    Ok(())
}
