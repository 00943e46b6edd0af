//! Clients that break the protocol, stop in the middle, send nothing or receive nothing: they are refused or
//! disconnected, and no other client notices.

use crate::client::raw_request;
use crate::scene::{Connected, Ended, Peer, Route, Setup, request, serve};
use futures_util::future::join_all;
use kernel::connection::Limits;
use kernel::device::{FixedLatency, RamDisk, TESTDEV_LATENCY};
use kernel::{Frames, Processor};
use nbd::proto::{NbdError, REQUEST_BYTES, Request, cmd};
use policy::unit::DiskNo;
use sim::NetworkConfig;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use testkit::random::Random;
use testkit::rounds::for_seeds;

const MIB: u64 = 1 << 20;

/// A client that keeps to the protocol and must not notice the others.
async fn bystander(cpu: &Processor, route: &Route) -> Rc<Connected> {
    let client = route.client(cpu, "disk", true).await;
    client.write(0, &[0x11; 8192], true).await.expect("written");
    client
}

/// Asserts that it can read what it wrote, and soon.
async fn assert_unharmed(cpu: &Processor, client: &Rc<Connected>) {
    let start = cpu.now();
    assert_eq!(client.write(100, &[0x11; 5000], false).await, Ok(()));
    assert_eq!(client.read(0, 8192).await, Ok(vec![0x11; 8192]));
    assert_eq!(client.flush().await, Ok(()));
    let took = cpu.now().since(start);
    assert!(took < Duration::from_secs(1), "another client had to wait for {took:?}");
}

#[test]
fn a_wrong_magic_ends_the_connection_after_what_came_before_it() {
    serve(Setup::new(1, MIB), async |cpu, route| {
        let good = bystander(&cpu, &route).await;
        let mut peer = route.peer_of(&cpu, "disk").await;
        peer.send(&request(cmd::FLUSH, 0, 0).encode()).await.expect("sent");
        let bad = raw_request(0x1234_5678, &request(cmd::WRITE, 0, 4096));
        peer.send(&[bad, vec![0xee; 4096]].concat()).await.expect("sent");
        assert_eq!(peer.simple_reply().await.map(|(error, _)| error), Ok(0));
        assert_eq!(peer.receive(1).await, Err(Ended));
        drop(peer);
        assert_unharmed(&cpu, &good).await;
    });
}

#[test]
fn a_payload_that_is_refused_is_read_over_and_the_next_request_is_understood() {
    serve(Setup::new(2, MIB), async |cpu, route| {
        let mut peer = route.peer_of(&cpu, "disk").await;
        for (round, len) in [0, 1, 27, 28, 29, 4095, 4096, 4097, 65_536, 3 << 20].into_iter().enumerate() {
            // A payload that looks like requests must not be taken for any.
            let fake = request(cmd::WRITE, 0, 4096).encode();
            let payload: Vec<u8> = fake.iter().copied().cycle().take(len).collect();
            let beyond = request(cmd::WRITE, MIB, len as u32 + 1);
            let error = peer.error_of(beyond, &[&payload[..], &[0]].concat()).await;
            assert_eq!(error, Ok(NbdError::ENOSPC.0), "payload of {}", len + 1);
            let at = round as u64 * 8192;
            assert_eq!(peer.error_of(request(cmd::WRITE, at, 5000), &[round as u8 + 1; 5000]).await, Ok(0));
        }
        let client = route.client(&cpu, "disk", false).await;
        for round in 0..10 {
            let read = client.read(round * 8192, 8192).await.expect("read");
            let (written, rest) = read.split_at(5000);
            assert!(written.iter().all(|byte| *byte == round as u8 + 1) && rest.iter().all(|byte| *byte == 0));
        }
    });
}

#[test]
fn what_a_flush_says_of_its_range_means_nothing() {
    serve(Setup::new(15, MIB), async |cpu, route| {
        let good = bystander(&cpu, &route).await;
        let mut peer = route.peer_of(&cpu, "disk").await;
        for (offset, len) in [(u64::MAX, 1), (u64::MAX, u32::MAX), (2 * MIB, 4096)] {
            assert_eq!(peer.error_of(request(cmd::FLUSH, offset, len), &[]).await, Ok(0), "{offset}+{len}");
        }
        assert_unharmed(&cpu, &good).await;
    });
}

#[test]
fn a_write_longer_than_allowed_is_refused_before_memory_is_taken_for_it() {
    serve(Setup { memory: 4 * MIB, ..Setup::new(3, 1 << 40) }, async |cpu, route| {
        let good = bystander(&cpu, &route).await;
        for len in [(32 << 20) + 1, u32::MAX] {
            let mut peer = route.peer_of(&cpu, "disk").await;
            assert_eq!(peer.error_of(request(cmd::WRITE, 0, len), &[]).await, Ok(NbdError::EINVAL.0));
            assert_eq!(peer.receive(1).await, Err(Ended));
        }
        assert_unharmed(&cpu, &good).await;
    });
}

/// A write, and clients each of which has sent so many bytes of it.
async fn in_the_middle_of_a_write(cpu: &Processor, route: &Route) -> (Vec<u8>, Vec<(usize, Peer)>) {
    let write = [&request(cmd::WRITE, 0, 8192).encode()[..], &[0xee; 8192]].concat();
    let mut begun = Vec::new();
    for sent in [1, REQUEST_BYTES - 1, REQUEST_BYTES, REQUEST_BYTES + 5000, write.len() - 1] {
        let mut peer = route.peer_of(cpu, "disk").await;
        peer.send(&write[..sent]).await.expect("sent");
        begun.push((sent, peer));
    }
    (write, begun)
}

#[test]
fn who_stops_in_the_middle_of_a_message_is_disconnected_and_who_stops_between_is_not() {
    let limits = Limits { stall_timeout: Duration::from_secs(60), ..Limits::default() };
    serve(Setup { limits, ..Setup::new(4, MIB) }, async |cpu, route| {
        let good = bystander(&cpu, &route).await;
        let (_, mut stalled) = in_the_middle_of_a_write(&cpu, &route).await;
        let start = cpu.now();
        cpu.sleep(Duration::from_secs(30)).await;
        assert_unharmed(&cpu, &good).await;
        for (sent, peer) in &mut stalled {
            let waited = peer.until_end().await.since(start);
            assert!(waited > Duration::from_secs(50), "{sent} bytes: disconnected after {waited:?}");
            assert!(waited < Duration::from_secs(75), "{sent} bytes: disconnected after {waited:?}");
        }
        drop(stalled);
        assert_unharmed(&cpu, &good).await;
    });
}

#[test]
fn who_was_in_the_middle_of_a_message_while_the_server_was_stopped_is_served_when_it_goes_on() {
    let limits = Limits { stall_timeout: Duration::from_secs(60), ..Limits::default() };
    serve(Setup { limits, ..Setup::new(15, MIB) }, async |cpu, route| {
        let (write, begun) = in_the_middle_of_a_write(&cpu, &route).await;
        for _ in 0..3 {
            cpu.sleep(Duration::from_secs(10)).await;
            route.pause(true);
            cpu.sleep(Duration::from_secs(300)).await;
            route.pause(false);
        }
        for (sent, mut peer) in begun {
            peer.send(&write[sent..]).await.expect("sent");
            assert_eq!(peer.receive(16).await.map(|reply| reply[4..8].to_vec()), Ok(vec![0; 4]), "{sent} bytes");
        }
    });
}

#[test]
fn who_sends_a_byte_now_and_then_is_disconnected_and_who_is_slow_is_not() {
    let limits = Limits { stall_timeout: Duration::from_secs(60), ..Limits::default() };
    serve(Setup { limits, ..Setup::new(14, 8 * MIB) }, async |cpu, route| {
        let good = bystander(&cpu, &route).await;
        // A header, a payload, and one that is only discarded: that of a write beyond the end.
        let allowed = [&request(cmd::WRITE, 0, 8192).encode()[..], &[0xee; 8192]].concat();
        let refused = [&request(cmd::WRITE, 64 * MIB, 8192).encode()[..], &[0xee; 8192]].concat();
        for (message, begun) in [(&allowed, 0), (&allowed, REQUEST_BYTES), (&refused, REQUEST_BYTES)] {
            let mut peer = route.peer_of(&cpu, "disk").await;
            peer.send(&message[..begun]).await.expect("sent");
            let (start, mut at) = (cpu.now(), begun);
            while peer.send(&message[at..at + 1]).await.is_ok() {
                at += 1;
                cpu.sleep(Duration::from_secs(3)).await;
                let waited = cpu.now().since(start);
                assert!(waited < Duration::from_secs(90), "still served {waited:?} after {begun} bytes");
            }
        }
        let mut slow = route.peer_of(&cpu, "disk").await;
        slow.send(&request(cmd::WRITE, 4 * MIB, 4 << 20).encode()).await.expect("sent");
        for _ in 0..64 {
            slow.send(&[7; 65_536]).await.expect("sent");
            cpu.sleep(Duration::from_secs(2)).await;
        }
        assert_eq!(slow.simple_reply().await.map(|(error, _)| error), Ok(0));
        drop(slow);
        assert_unharmed(&cpu, &good).await;
    });
}

#[test]
fn who_does_not_take_its_replies_blocks_only_itself_and_is_disconnected() {
    serve(Setup { memory: 64 * MIB, ..Setup::new(5, 32 * MIB) }, async |cpu, route| {
        let good = bystander(&cpu, &route).await;
        let mut greedy = route.peer_of(&cpu, "disk").await;
        let start = cpu.now();
        let mut sent = 0;
        let asking = async {
            loop {
                let read = request(cmd::READ, sent * 65_536 % (32 * MIB), 65_536);
                if greedy.send(&read.encode()).await.is_err() {
                    return cpu.now();
                }
                sent += 1;
                cpu.sleep(Duration::from_micros(100)).await;
                assert!(sent < 100_000, "the server takes requests without end");
            }
        };
        let watching = async {
            for _ in 0..20 {
                cpu.sleep(Duration::from_secs(2)).await;
                assert_unharmed(&cpu, &good).await;
            }
            start
        };
        let both: [std::pin::Pin<Box<dyn Future<Output = _>>>; 2] = [Box::pin(asking), Box::pin(watching)];
        let ended = join_all(both).await[0];
        assert!(ended.since(start) < Duration::from_secs(75), "disconnected after {:?}", ended.since(start));
    });
}

/// Asserts that a client notices nothing of `others`, whose work needs much memory.
async fn assert_unnoticed(cpu: &Processor, good: &Rc<Connected>, others: u64) {
    cpu.sleep(Duration::from_millis(10)).await;
    let (start, at) = (cpu.now(), 62 * MIB + others * 5000);
    assert_eq!(good.write(at, &[0x11; 5000], false).await, Ok(()));
    assert_eq!(good.write(at, &[0x22; 20_000], false).await, Ok(()));
    // Some of it is not in the cache.
    assert_eq!(good.read(at + 16_384, 65_536).await.map(|data| data.len()), Ok(65_536));
    let took = cpu.now().since(start);
    assert!(took < Duration::from_millis(100), "with {others} others a client had to wait for {took:?}");
}

/// While 150 clients do what `ask` has each of them do, and then nothing, another one notices nothing.
fn leave_memory_for_others(setup: Setup, ask: impl AsyncFn(&mut Peer, u64) + 'static) {
    serve(Setup { memory: 16 * MIB, ..setup }, async move |cpu, route| {
        let good = bystander(&cpu, &route).await;
        let mut others = Vec::new();
        for no in 0..150 {
            let mut peer = route.peer_of(&cpu, "disk").await;
            ask(&mut peer, no).await;
            others.push(peer);
            assert!(
                route.kernel.try_allocate(1024, &mut Frames::new()),
                "{no} others hold three quarters of the memory"
            );
            assert_unnoticed(&cpu, &good, no).await;
        }
    });
}

#[test]
fn replies_that_many_do_not_take_leave_memory_for_others() {
    leave_memory_for_others(Setup::new(6, 4096 * MIB), async |peer, no| {
        for round in 0..[1, 16][no as usize % 2] {
            peer.send(&request(cmd::READ, (64 + no * 16 + round) * MIB, MIB as u32).encode()).await.expect("sent");
        }
    });
}

#[test]
fn payloads_that_many_begin_and_do_not_send_leave_memory_for_others() {
    leave_memory_for_others(Setup::new(7, 64 * MIB), async |peer, no| {
        // Whole blocks and others.
        let write = request(cmd::WRITE, no % 60 * MIB + no % 2 * 17, MIB as u32);
        peer.send(&[&write.encode()[..], &[0xee; 100]].concat()).await.expect("sent");
    });
}

#[test]
fn clients_that_wrote_much_and_are_idle_now_hold_no_memory_that_others_need() {
    serve(Setup { memory: 4 * MIB, ..Setup::new(8, 64 * MIB) }, async |cpu, route| {
        let mut idle = Vec::new();
        for no in 0..96 {
            let client = route.client(&cpu, "disk", false).await;
            let writes = (0..64).map(|round| {
                let client = Rc::clone(&client);
                async move { client.write((no * 64 + round) * 4096, &[1; 4096], false).await }
            });
            assert!(join_all(writes).await.iter().all(Result::is_ok));
            idle.push(client);
        }
        let client = route.client(&cpu, "disk", false).await;
        client.flush().await.expect("flushed");
        let start = cpu.now();
        assert_eq!(client.read(40 * MIB, MIB as u32).await, Ok(vec![0; MIB as usize]));
        let took = cpu.now().since(start);
        assert!(took < Duration::from_secs(1), "the only busy client had to wait for {took:?}");
    });
}

#[test]
fn two_hundred_and_fifty_six_connections_of_128_requests_are_served_from_little_memory() {
    const CONNECTIONS: u64 = 256;
    const REQUESTS: u64 = 128;
    let device =
        Arc::new(FixedLatency::new(Arc::new(RamDisk::new(CONNECTIONS * REQUESTS * 4096, DiskNo(0))), TESTDEV_LATENCY));
    let network = NetworkConfig { backlog_max: 1024, buffer_bytes: 64 << 10, ..NetworkConfig::default() };
    serve(Setup { memory: 16 * MIB, device, network, ..Setup::new(9, 0) }, async |cpu, route| {
        let mut requests = Vec::new();
        let mut clients = Vec::new();
        for no in 0..CONNECTIONS {
            let client = route.client(&cpu, "disk", no % 2 == 0).await;
            for round in 0..REQUESTS {
                let (client, block) = (Rc::clone(&client), no * REQUESTS + round);
                requests.push(async move {
                    let content = [block as u8 ^ (block >> 8) as u8; 4096];
                    client.write(block * 4096, &content, false).await.expect("written");
                    assert!(client.read(block * 4096, 4096).await.expect("read") == content);
                });
            }
            clients.push(client);
        }
        join_all(requests).await;
        assert!(route.kernel.frames().bytes_held() <= 16 * MIB);
    });
}

#[test]
fn a_connection_that_breaks_after_any_number_of_bytes_is_let_go_of() {
    let mut conversation = Vec::new();
    let mut random = Random(1);
    for no in 0..8 {
        let kind = [cmd::WRITE, cmd::READ, cmd::WRITE, cmd::FLUSH][no % 4];
        let len = 1 + random.below(9000) as u32;
        let payload = if kind == cmd::WRITE { len } else { 0 };
        conversation.extend(request(kind, random.below(100_000), len).encode());
        conversation.extend(vec![0xee; payload as usize]);
    }
    serve(Setup::new(10, MIB), async move |cpu, route| {
        for cut in (0..conversation.len()).step_by(97).chain(0..200) {
            let mut peer = route.peer_of(&cpu, "disk").await;
            peer.send(&conversation[..cut]).await.expect("sent");
            if cut % 3 == 0 {
                peer.pause(Duration::from_millis(1)).await;
            }
        }
    });
}

#[test]
fn garbage_at_any_point_harms_nobody_else() {
    for_seeds("garbage_at_any_point_harms_nobody_else", 40, |seed| {
        let network = NetworkConfig { backlog_max: 64, ..NetworkConfig::drawn(seed) };
        serve(Setup { network, memory: 8 * MIB, ..Setup::new(seed, 64 * MIB) }, async move |cpu, route| {
            let good = bystander(&cpu, &route).await;
            let others = (0..12).map(async |no| {
                let mut random = Random(seed * 100 + no);
                let mut peer = match random.below(3) {
                    0 => route.peer(&cpu),
                    1 => route.greeted(&cpu).await,
                    _ => route.peer_of(&cpu, "disk").await,
                };
                if babble(&mut peer, &mut random).await.is_ok() {
                    peer.pause(Duration::from_micros(random.below(5000))).await;
                }
            });
            join_all(others).await;
            assert_eq!(good.read(0, 8192).await, Ok(vec![0x11; 8192]));
        });
    });
}

/// Sends random messages, some of them nearly valid; never writes where the bystander does.
async fn babble(peer: &mut Peer, random: &mut Random) -> Result<(), Ended> {
    for _ in 0..1 + random.below(60) {
        let len = [random.below(10), random.below(70_000), 4096][random.below(3) as usize] as u32;
        let offset = 8192
            + [random.below(64 * MIB), random.below(64 * MIB) & !4095, random.next() >> 1][random.below(3) as usize];
        let flags = if random.chance(800) { 0 } else { random.next() as u16 };
        let kind = if random.chance(900) { random.below(9) } else { random.next() } as u16;
        let mut bytes = Request { flags, kind, cookie: random.next(), offset, len }.encode().to_vec();
        if kind == cmd::WRITE {
            bytes.extend((0..len).map(|_| random.next() as u8));
        }
        if random.chance(100) {
            let at = 24 + random.below(4) as usize;
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
