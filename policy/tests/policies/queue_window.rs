//! Guarantees of the asynchronous window, on a modelled disk that serves batches in order.

use std::collections::VecDeque;
use std::time::Duration;

use policy::queue::{Arrival, BatchId, Config, Queue, RequestId, RequestKind, StreamId};
use policy::unit::{ByteRange, Class, Instant, JobId};
use proptest::prelude::*;

const US: Duration = Duration::from_micros(1);

/// A disk that serves batches in order of arrival, in a time for each batch and one for each 4 KiB.
struct Disk {
    each: Duration,
    per_block: Duration,
    free_at: Instant,
    in_flight: VecDeque<(Instant, BatchId)>,
}

impl Disk {
    fn take(&mut self, now: Instant, id: BatchId, bytes: u64) {
        self.free_at = self.free_at.max(now) + self.each + self.per_block * (bytes / 4096) as u32;
        self.in_flight.push_back((self.free_at, id));
    }
}

/// One reader that reads 4 KiB again and again, with concurrent writers that always have `backlog` requests of
/// `write_bytes` waiting. Returns each read's time from arrival to completion (sorted), and the bytes written.
fn read_among_writers(
    config: Config,
    reads: usize,
    write_bytes: u64,
    backlog: u32,
    disk: (u32, u32),
) -> (Vec<Duration>, u64) {
    let mut queue = Queue::new(config);
    let (each, per_block) = (US * disk.0, US * disk.1);
    let mut disk = Disk { each, per_block, free_at: Instant::ZERO, in_flight: VecDeque::new() };
    let mut now = Instant::ZERO;
    let (mut writes, mut written, mut next_id) = (0, 0, 1);
    let mut took = Vec::new();
    let mut reading: Option<Instant> = None;
    let mut reading_in = None;
    while took.len() < reads {
        if reading.is_none() {
            reading = Some(now);
            let range = ByteRange::new(took.len() as u64 * 8192, 4096);
            let class = Class::Synchronous;
            queue.on_arrival(
                now,
                Arrival { id: RequestId(0), stream: StreamId(0), kind: RequestKind::Read, range, class, job: JobId(1) },
            );
        }
        // The reader is alone at first, so that the window can learn.
        while took.len() >= 200 && writes < backlog {
            let range = ByteRange::new(u64::from(next_id) * 2 * write_bytes, write_bytes);
            let (id, class) = (RequestId(next_id), Class::Asynchronous);
            queue.on_arrival(
                now,
                Arrival { id, stream: StreamId(1), kind: RequestKind::Write, range, class, job: JobId(1) },
            );
            next_id += 1;
            writes += 1;
        }
        while let Some(batch) = queue.next(now) {
            disk.take(now, batch.id, batch.range.len);
            if batch.class == Class::Synchronous {
                reading_in = Some(batch.id);
            } else {
                writes -= batch.members.len() as u32;
                written += batch.range.len;
            }
        }
        let (done, id) = disk.in_flight.pop_front().expect("the reader always reads");
        now = done;
        queue.on_completion(now, id);
        if reading_in == Some(id) {
            took.extend(reading.take().map(|since| now.since(since)));
            reading_in = None;
        }
    }
    // Without the time in which the window learned.
    let mut took = took.split_off(500);
    took.sort();
    (took, written)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_reader_among_many_writers_is_nearly_as_fast_as_alone(
        write_bytes in prop_oneof![Just(4096u64), Just(16 << 10), Just(64 << 10)],
        backlog in 20u32..400,
        each_us in 60u32..300,
    ) {
        // A disk of 4 GB/s behind a fixed time.
        let disk = (each_us, 1);
        let config = Config { merge: false, ..Config::default() };
        let off = Config { priority: false, ..config.clone() };
        let (with, _) = read_among_writers(config, 3000, write_bytes, backlog, disk);
        let (without, _) = read_among_writers(off, 700, write_bytes, backlog, disk);
        let alone = US * (each_us + 1);
        let median = |took: &[Duration]| took[took.len() / 2];
        // One small write may always be in flight, and the window tries a second one at times.
        let one_write = US * (each_us + (write_bytes / 4096) as u32);
        prop_assert!(median(&with) <= alone + one_write, "{:?}, alone {alone:?}", median(&with));
        prop_assert!(with[with.len() * 99 / 100] <= alone + one_write * 4, "99th: {:?}", with[with.len() * 99 / 100]);
        prop_assert!(median(&without) >= 4 * alone, "the switch makes a difference: {:?}", median(&without));
    }
}

#[test]
fn writers_next_to_a_reader_progress() {
    let (_, written) = read_among_writers(Config::default(), 2500, 64 << 10, 1000, (100, 1));
    assert!(written >= 2000 * 4096, "{written}");
}

#[test]
fn the_window_opens_by_steps_and_fast_without_synchronous_requests() {
    let mut queue = Queue::new(Config { merge: false, ..Config::default() });
    let mut now = Instant::ZERO;
    let mut id = 0;
    let mut issue = |queue: &mut Queue, now, class| {
        let range = ByteRange::new(u64::from(id) << 20, 4096);
        queue.on_arrival(
            now,
            Arrival { id: RequestId(id), stream: StreamId(0), kind: RequestKind::Read, range, class, job: JobId(1) },
        );
        id += 1;
        std::iter::from_fn(|| queue.next(now)).map(|b| b.id).collect::<Vec<_>>()
    };
    let open = queue.asynchronous_window_bytes();
    for round in 0..200 {
        let asynchronous = if round >= 20 { issue(&mut queue, now, Class::Asynchronous) } else { Vec::new() };
        let synchronous = issue(&mut queue, now, Class::Synchronous);
        now += if round >= 20 { US * 500 } else { US * 100 };
        synchronous.into_iter().chain(asynchronous).for_each(|b| queue.on_completion(now, b));
    }
    let narrow = queue.asynchronous_window_bytes();
    assert_eq!(narrow, 64 << 10, "five times slower: narrow");
    for _ in 0..16 {
        let mut batches = issue(&mut queue, now, Class::Asynchronous);
        batches.extend(issue(&mut queue, now, Class::Synchronous));
        now += US * 100;
        batches.into_iter().for_each(|b| queue.on_completion(now, b));
    }
    let wider = queue.asynchronous_window_bytes();
    assert_eq!(wider, 3 * (64 << 10), "step by step with synchronous requests");
    now += Duration::from_millis(11);
    for _ in 0..10 {
        let batches = issue(&mut queue, now, Class::Asynchronous);
        now += US * 500;
        batches.into_iter().for_each(|b| queue.on_completion(now, b));
    }
    assert_eq!(queue.asynchronous_window_bytes(), open);
}
