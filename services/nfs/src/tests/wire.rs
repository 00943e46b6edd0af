//! Clients that follow the protocol, in every way that it allows.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use nfs3_types::rpc::accept_stat;

use super::*;

/// Calls of all kinds, as records, and their number.
fn conversation() -> (Vec<u8>, u32) {
    let records = [
        record(&null(0)),
        fragments(&write_call(1, 4090, &[0x11; 20]), &[3, 0, 50, 40]),
        record(&lookup(2, b"a name")),
        record(&write_call(3, 8192, &[0x22; 33])),
        fragments(&lookup(4, b"another"), &[20, 20, 20, 20]),
        record(&read_call(5, 4095, 3)),
        record(&write_call(6, 8225, &[0x33; 31])),
        record(&write_call(7, u64::from(u32::MAX) + 5, &[])),
    ];
    (records.concat(), records.len() as u32)
}

/// The data of the WRITEs that arrived, in order.
fn written(log: &Log) -> Vec<Vec<u8>> {
    log.take().into_iter().filter_map(|seen| seen.data).collect()
}

/// Sends a stream while it receives replies, until `count` of those that `counts` have arrived.
async fn exchange(peer: &mut Peer, stream: Vec<u8>, counts: impl Fn(&Answer) -> bool, count: usize) -> Vec<Answer> {
    let (cpu, connection) = (peer.cpu.clone(), peer.connection);
    let answers = RefCell::new(Vec::new());
    let sending = async { connection::send_all(&cpu, connection, stream).await.expect("sent") };
    let taking = async {
        while answers.borrow().len() < count {
            let answer = peer.answer().await.expect("an answer");
            if counts(&answer) {
                answers.borrow_mut().push(answer);
            }
        }
    };
    let both: [std::pin::Pin<Box<dyn Future<Output = ()>>>; 2] = [Box::pin(sending), Box::pin(taking)];
    join_all(both).await;
    answers.into_inner()
}

#[test]
fn a_stream_may_arrive_cut_at_any_byte() {
    serve(Setup::new(1), async |cpu, route| {
        let (stream, calls) = conversation();
        for cut in 1..stream.len() {
            let mut peer = route.peer(&cpu);
            peer.send(&stream[..cut]).await.expect("sent");
            cpu.sleep(Duration::from_millis(1)).await;
            peer.send(&stream[cut..]).await.expect("sent");
            let mut answers = Vec::new();
            for _ in 0..calls {
                answers.push(peer.answer().await.expect("an answer"));
            }
            answers.sort_by_key(|answer| answer.xid);
            let results: Vec<_> = answers.iter().map(Answer::results).collect();
            assert_eq!(results[2], lookup(2, b"a name")[40..], "cut at {cut}");
            assert_eq!(results[4], lookup(4, b"another")[40..], "cut at {cut}");
            assert_eq!(results[5], xdr(&[3], &[content(4095), content(4096), content(4097)]), "cut at {cut}");
            let data = vec![vec![0x11; 20], vec![0x22; 33], vec![0x33; 31], vec![]];
            assert_eq!(written(&route.log), data, "cut at {cut}");
        }
    });
}

#[test]
fn data_arrives_unchanged_at_any_offset_in_any_length_and_fragments() {
    for_seeds("data_arrives_unchanged", 30, |seed| {
        let network = NetworkConfig { backlog_max: 64, ..NetworkConfig::drawn(seed) };
        serve(Setup { network, ..Setup::new(seed) }, async move |cpu, route| {
            let mut random = Random(seed);
            let mut peer = route.peer(&cpu);
            let (mut stream, mut expected) = (Vec::new(), Vec::new());
            for xid in 0..60 {
                // Runs of one shape, and others in between.
                let len = [4096, 8192, random.below(20_000), 65_536][(random.below(10) / 3) as usize] as usize;
                let offset = [random.below(1 << 40) & !4095, random.below(1 << 40)][usize::from(random.chance(200))];
                let data: Vec<u8> = (0..len).map(|at| (at as u64 * 13 + offset) as u8).collect();
                let message = write_call(xid, offset, &data);
                let cuts = if random.chance(300) { random.below(12) } else { 0 };
                let bound = [10, 200, message.len() as u64][random.below(3) as usize];
                let lengths: Vec<_> = (0..cuts).map(|_| random.below(bound) as usize).collect();
                stream.extend(fragments(&message, &lengths));
                expected.push(data);
                if random.chance(100) {
                    stream.extend(record(&null(1000)));
                }
            }
            let answers = exchange(&mut peer, stream, |answer| answer.xid < 1000, 60).await;
            assert!(answers.iter().all(|answer| answer.results().len() == 4));
            // The stand-in completes each at once, so they are in order.
            assert!(written(&route.log) == expected);
        });
    });
}

#[test]
fn answers_come_as_they_are_ready_and_not_in_the_order_of_the_calls() {
    serve(Setup::new(2), async |cpu, route| {
        let mut peer = route.peer(&cpu);
        let stream = [wait(1, 300), wait(2, 100), wait(3, 0), wait(4, 200)].map(|message| record(&message)).concat();
        peer.send(&stream).await.expect("sent");
        let mut order = Vec::new();
        for _ in 0..4 {
            order.push(peer.answer().await.expect("an answer").xid);
        }
        assert_eq!(order, [3, 2, 4, 1]);
    });
}

#[test]
fn data_of_reads_is_followed_by_padding_and_the_next_reply() {
    serve(Setup::new(3), async |cpu, route| {
        let mut peer = route.peer(&cpu);
        let (mut stream, mut expected) = (Vec::new(), Vec::new());
        for (no, offset) in [0, 1, 4095, 4097, 1 << 33].into_iter().enumerate() {
            for len in [0, 1, 2, 3, 4, 5, 4095, 4096, 4097, 100_001] {
                let xid = (no * 10 + expected.len()) as u32 * 1000;
                stream.extend(record(&read_call(xid, offset, len)));
                stream.extend(record(&lookup(xid + 1, b"beside it")));
                let data: Vec<u8> = (offset..offset + u64::from(len)).map(content).collect();
                expected.push((xid, opaque(&data)));
            }
        }
        let answers = exchange(&mut peer, stream, |_| true, 2 * expected.len()).await;
        for (xid, data) in expected {
            let answer = answers.iter().find(|answer| answer.xid == xid).expect("an answer");
            assert!(answer.results() == data, "{} bytes", data.len());
        }
    });
}

#[test]
fn probes_for_other_versions_learn_which_there_are_and_the_connection_goes_on() {
    serve(Setup::new(4), async |cpu, route| {
        let mut peer = route.peer(&cpu);
        let probe = |rpc: u32, program: u32, version: u32, procedure: u32| {
            xdr(&[7, 0, rpc, program, version, procedure, 0, 0, 0, 0], &[])
        };
        for (program, version) in [(NFS, 4), (NFS, 2), (NFS, 0), (NFS, u32::MAX), (MOUNT, 1), (MOUNT, 2), (MOUNT, 4)] {
            let answer = peer.ask(&probe(2, program, version, 0)).await.expect("an answer");
            assert_eq!(answer.accepted(), (accept_stat::PROG_MISMATCH as u32, &[3, 3][..]), "{program} {version}");
        }
        // NFSACL, the port mapper, NLM.
        for program in [100_227, 100_000, 100_021, 0] {
            let answer = peer.ask(&probe(2, program, 3, 0)).await.expect("an answer");
            assert_eq!(answer.accepted(), (accept_stat::PROG_UNAVAIL as u32, &[][..]));
        }
        for rpc in [0, 1, 3, u32::MAX] {
            let answer = peer.ask(&probe(rpc, NFS, 3, 0)).await.expect("an answer");
            assert_eq!(answer.words, [1, 0, 2, 2], "denied: RPC_MISMATCH, from 2 to 2");
        }
        assert_eq!(route.log.take(), []);
        for (program, procedure) in [(NFS, 22), (NFS, u32::MAX), (MOUNT, 6), (MOUNT, u32::MAX)] {
            let answer = peer.ask(&probe(2, program, 3, procedure)).await.expect("an answer");
            assert_eq!(answer.accepted(), (accept_stat::PROC_UNAVAIL as u32, &[][..]));
        }
        for program in [NFS, MOUNT] {
            assert_eq!(peer.ask(&probe(2, program, 3, 0)).await.expect("an answer").accepted(), (0, &[][..]));
        }
    });
}

#[test]
fn every_kind_of_results_has_its_reply() {
    serve(Setup::new(5), async |cpu, route| {
        let mut peer = route.peer(&cpu);
        let ask = |procedure| call(9, procedure, &opaque(b"h"));
        let answer = peer.ask(&ask(NFS_PROGRAM::NFSPROC3_ACCESS)).await.expect("an answer");
        assert_eq!((answer.xid, &answer.words[..]), (9, &[1, 1, auth_stat::AUTH_TOOWEAK as u32][..]));
        let answer = peer.ask(&ask(NFS_PROGRAM::NFSPROC3_READLINK)).await.expect("an answer");
        assert_eq!(answer.accepted(), (accept_stat::SYSTEM_ERR as u32, &[][..]));
        let answer = peer.ask(&ask(NFS_PROGRAM::NFSPROC3_COMMIT)).await.expect("an answer");
        assert_eq!(answer.accepted(), (accept_stat::GARBAGE_ARGS as u32, &[][..]));
        // No reply: the next one is that of the next call.
        peer.send(&record(&ask(NFS_PROGRAM::NFSPROC3_FSSTAT))).await.expect("sent");
        assert_eq!(peer.ask(&null(10)).await.map(|answer| answer.xid), Ok(10));
    });
}

/// A NULL with credentials and a verifier of these flavors and bodies.
fn authenticated(credentials: (u32, &[u8]), verifier: (u32, &[u8])) -> Vec<u8> {
    let auth = |(flavor, body): (u32, &[u8])| [xdr(&[flavor], &[]), opaque(body)].concat();
    [xdr(&[5, 0, 2, NFS, 3, 0], &[]), auth(credentials), auth(verifier)].concat()
}

fn unix(name: &[u8], groups: &[u32]) -> Vec<u8> {
    [xdr(&[1], &[]), opaque(name), xdr(&[1000, 100, groups.len() as u32], &[]), xdr(groups, &[])].concat()
}

#[test]
fn credentials_are_taken_with_up_to_16_groups() {
    serve(Setup::new(6), async |cpu, route| {
        let mut peer = route.peer(&cpu);
        let all: Vec<u32> = (0..16).collect();
        for count in [0, 1, 16] {
            let body = unix(b"client", &all[..count]);
            let answer = peer.ask(&authenticated((1, &body), (0, &[]))).await.expect("an answer");
            assert_eq!(answer.accepted().0, 0);
            let expected = Credentials::Unix { uid: 1000, gid: 100, groups: all[..count].into() };
            assert_eq!(route.log.take()[0].credentials, expected);
        }
        peer.ask(&authenticated((0, &[]), (0, &[]))).await.expect("an answer");
        assert_eq!(route.log.take()[0].credentials, Credentials::None);
    });
}

#[test]
fn each_user_of_a_connection_is_a_job_whose_work_it_is_however_their_calls_are_mixed() {
    for_seeds("each_user_of_a_connection_is_a_job", 30, |seed| {
        let scene = Scene::new(Setup::new(seed));
        scene.run(async move |cpu, route| {
            let mut random = Random(seed);
            let mut peer = route.peer(&cpu);
            // More than a connection remembers. 0: a call without credentials.
            let users: Vec<Option<u32>> = (0..12).map(|uid| (uid > 0).then_some(1000 + uid)).collect();
            let mut stream = Vec::new();
            for xid in 0..200 {
                let user = users[random.below(users.len() as u64) as usize];
                let (procedure, arguments) = match random.below(3) {
                    0 => (NFS_PROGRAM::NFSPROC3_GETATTR, opaque(&(random.below(5) as u32).to_be_bytes())),
                    1 => (NFS_PROGRAM::NFSPROC3_READ, [opaque(b"a file"), xdr(&[0, 0, 5000], &[])].concat()),
                    _ => (NFS_PROGRAM::NFSPROC3_WRITE, [write_arguments(0, 5000), opaque(&[1; 5000])].concat()),
                };
                stream.extend(record(&match user {
                    Some(uid) => call_by(uid, xid, procedure, &arguments),
                    None => call(xid, procedure, &arguments),
                }));
            }
            exchange(&mut peer, stream, |_| true, 200).await;
            let host = Client::Address(CLIENT.into());
            let clients: BTreeMap<JobId, Client> =
                route.kernel.jobs().list().into_iter().map(|facts| (facts.id, facts.client)).collect();
            assert_eq!(clients.len(), users.len());
            for Seen { credentials, job, .. } in route.log.take() {
                let expected = match credentials {
                    Credentials::Unix { uid, .. } => Client::UserAt(CLIENT.into(), uid),
                    Credentials::None => host.clone(),
                };
                assert_eq!(clients[&job], expected);
            }
        });
        scene.assert_all_ends();
        assert!(scene.disk.kernel.jobs().list().iter().all(|facts| facts.connections == 0), "members are forgotten");
    });
}

#[test]
fn credentials_that_are_none_are_denied_for_their_reason_and_the_connection_goes_on() {
    use auth_stat::{AUTH_BADCRED, AUTH_BADVERF, AUTH_REJECTEDCRED};
    serve(Setup::new(7), async |cpu, route| {
        let mut peer = route.peer(&cpu);
        let good = unix(b"client", &[1]);
        let many = xdr(&[1, 0, 1000, 100, u32::MAX, 1, 2], &[]);
        let cases = [
            (1, unix(b"client", &[1; 17]), 0, &[][..], AUTH_BADCRED),
            (1, unix(&[b'x'; 256], &[]), 0, &[], AUTH_BADCRED),
            (1, [good.clone(), vec![0; 4]].concat(), 0, &[], AUTH_BADCRED),
            (1, good[..good.len() - 1].to_vec(), 0, &[], AUTH_BADCRED),
            (1, xdr(&[1, u32::MAX], b"name"), 0, &[], AUTH_BADCRED),
            (1, many, 0, &[], AUTH_BADCRED),
            (1, vec![], 0, &[], AUTH_BADCRED),
            (1, vec![0; 401], 0, &[], AUTH_BADCRED),
            (2, vec![1, 2, 3, 4], 0, &[], AUTH_REJECTEDCRED),
            (6, vec![0; 20], 0, &[], AUTH_REJECTEDCRED),
            (u32::MAX, vec![], 0, &[], AUTH_REJECTEDCRED),
            (1, good.clone(), 0, &[0; 4], AUTH_BADVERF),
            (1, good.clone(), 6, &[], AUTH_BADVERF),
            (0, vec![], 0, &[0; 404], AUTH_BADVERF),
        ];
        for (no, (flavor, body, verifier, verifier_body, reason)) in cases.into_iter().enumerate() {
            let message = authenticated((flavor, &body), (verifier, verifier_body));
            let answer = peer.ask(&message).await.expect("an answer");
            assert_eq!((answer.xid, &answer.words[..]), (5, &[1, 1, reason as u32][..]), "case {no}");
        }
        assert_eq!(route.log.take(), []);
        assert_eq!(peer.ask(&null(8)).await.map(|answer| answer.xid), Ok(8));
    });
}

#[test]
fn a_server_that_ends_answers_what_is_under_way_and_takes_no_more() {
    serve(Setup::new(8), async |cpu, route| {
        let (mut busy, mut idle, mut within) = (route.peer(&cpu), route.peer(&cpu), route.peer(&cpu));
        busy.send(&[record(&wait(1, 2000)), record(&wait(2, 1000))].concat()).await.expect("sent");
        assert_eq!(idle.ask(&null(1)).await.map(|answer| answer.xid), Ok(1));
        within.send(&record(&write_call(1, 0, &[1; 5000]))[..3000]).await.expect("sent");
        cpu.sleep(Duration::from_millis(100)).await;
        let start = cpu.now();
        route.nfs.sessions().stop();
        assert!(idle.until_end().await.since(start) < Duration::from_millis(100));
        busy.send(&record(&null(3))).await.expect("sent");
        assert_eq!(busy.answer().await.map(|answer| answer.xid), Ok(2));
        assert_eq!(busy.answer().await.map(|answer| answer.xid), Ok(1));
        assert_eq!(busy.answer().await, Err(Ended));
        route.nfs.sessions().abort();
        assert!(within.until_end().await.since(start) < Duration::from_secs(3));
    });
}

#[test]
fn of_connections_that_have_ended_nothing_is_left() {
    let scene = Scene::new(Setup::new(9));
    // What the server does at its start has ended then.
    scene.run(async |cpu, _| cpu.sleep(Duration::from_millis(100)).await);
    let tasks = scene.disk.tasks();
    scene.run(async |cpu, route| {
        for turn in 0..1000 {
            let mut peer = route.peer(&cpu);
            if turn % 2 == 0 {
                peer.ask(&null(turn)).await.expect("an answer");
            }
        }
    });
    scene.assert_all_ends();
    let (world, sessions) = (&scene.world, scene.nfs.sessions());
    assert_nothing_is_left(world, &scene.disk, &scene.clients, sessions, tasks);
}
