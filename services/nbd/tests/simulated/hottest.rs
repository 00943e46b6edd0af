//! The answers are the same whichever way requests are executed: hottest path first or not, batched or one by one.

use crate::scene::{Setup, request, serve};
use kernel::Switches;
use kernel::device::{Delay, RamDisk};
use kernel::queue::{DiskQueue, Queued};
use nbd::proto::{Request, cmd};
use policy::unit::DiskNo;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const SIZE: u64 = 1 << 20;
const WRITTEN: u64 = 40 * 4096;

/// Reads that are answered at once, that are not, and that are refused.
fn requests() -> Vec<Request> {
    let plain = [
        (0, 4096),
        (4096, 4096),
        (512, 512),
        (4096 - 512, 1024),
        (3 * 4096, 64 << 10),
        (WRITTEN - 4096, 8192),
        (SIZE - 4096, 4096),
        (0, SIZE as u32),
        (SIZE - 512, 512),
        // Refused: beyond the end, of no whole units, and both.
        (SIZE, 512),
        (SIZE - 512, 1024),
        (u64::MAX - 511, 512),
        (1, 512),
        (0, 513),
        (512, 0),
    ];
    let flagged = [cmd::FLAG_FUA, cmd::FLAG_DF, 1 << 9];
    let mut requests: Vec<_> = plain.iter().map(|&(at, len)| request(cmd::READ, at, len)).collect();
    requests.extend(flagged.map(|flags| Request { flags, ..request(cmd::READ, 4096, 4096) }));
    // More than one batch, all the same.
    requests.extend((0..100).map(|no| request(cmd::READ, no % 40 * 4096, 4096)));
    for (no, request) in requests.iter_mut().enumerate() {
        request.cookie = no as u64;
    }
    requests
}

/// The error and the data of each, in one pipeline.
fn answers(switches: Switches) -> BTreeMap<u64, (u32, Vec<u8>)> {
    serve(Setup { block_size: 512, switches, ..Setup::new(4, SIZE) }, async |cpu, route| {
        let content: Vec<u8> = (0..WRITTEN).map(|at| (at / 512 * 7 + at % 251) as u8).collect();
        let mut peer = route.peer_of(&cpu, "disk").await;
        let wrote = peer.error_of(request(cmd::WRITE, 0, WRITTEN as u32), &content).await;
        assert_eq!(wrote, Ok(0));
        let requests = requests();
        let bytes: Vec<u8> = requests.iter().flat_map(Request::encode).collect();
        peer.send(&bytes).await.expect("taken");
        let mut answers = BTreeMap::new();
        while answers.len() < requests.len() {
            let (error, cookie) = peer.simple_reply().await.expect("an answer to each");
            let len = if error == 0 { requests[cookie as usize].len } else { 0 };
            let data = peer.receive(len as usize).await.expect("its data");
            assert!(answers.insert(cookie, (error, data)).is_none(), "one answer to each");
        }
        answers
    })
}

#[test]
fn a_pipeline_of_reads_has_the_same_answers_however_it_is_served() {
    let switches = |hottest_first, look_ahead| Switches {
        hottest_first,
        look_ahead,
        huge_pages: policy::pages::Mode::Small,
        ..Switches::default()
    };
    let general = answers(switches(false, false));
    assert_eq!(general.values().filter(|(error, _)| *error != 0).count(), 7, "what is wrong is refused");
    for (hottest_first, look_ahead) in [(true, true), (true, false), (false, true)] {
        let others = answers(switches(hottest_first, look_ahead));
        assert!(others == general, "hottest_first = {hottest_first}, look_ahead = {look_ahead}");
    }
}

/// The whole path of a read, from the wire to an otherwise idle disk and back.
#[test]
fn a_read_that_misses_locks_its_shard_and_its_disk_s_queue_once_when_it_comes_and_once_when_it_ends() {
    let queue = Arc::new(DiskQueue::new(policy::queue::Config::default()));
    let disk = Delay::new(Arc::new(RamDisk::new(SIZE, DiskNo(0))), Duration::from_micros(100));
    let device = Arc::new(Queued::new(Arc::clone(&queue), Arc::new(disk)));
    let switches = Switches { read_ahead: policy::readahead::Mode::Off, ..Switches::default() };
    serve(Setup { device, switches, ..Setup::new(4, SIZE) }, async move |cpu, route| {
        let client = route.client(&cpu, "disk", false).await;
        let read = async |block: u64| drop(client.request(cmd::READ, 0, block * 4096, 4096, &[]).await.expect("read"));
        // The first one finds no memory yet.
        read(0).await;
        let locked = || (route.kernel.cache().lock_use().taken, queue.reading().lock.taken);
        let before = locked();
        read(7).await;
        let after = locked();
        assert_eq!((after.0 - before.0, after.1 - before.1), (2, 2), "of the shard, of the queue");
    });
}
