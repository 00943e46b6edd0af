//! Guarantees of gathering.

use std::collections::BinaryHeap;
use std::time::Duration;

use policy::gather::{Gather, Start};
use policy::unit::Instant;
use proptest::prelude::*;

/// Writers that want a flush, and another one `returns` after it. Returns how many writes were flushed within `time`,
/// and the longest that any waited without a flush in flight.
fn run(returns: &[Duration], flush: Duration, time: Duration) -> (u64, Duration) {
    let mut gather = Gather::default();
    // The next arrival of each writer; the earliest first.
    let mut arrivals: BinaryHeap<std::cmp::Reverse<(Instant, usize)>> =
        returns.iter().enumerate().map(|(writer, after)| std::cmp::Reverse((Instant::ZERO + *after, writer))).collect();
    let (mut now, mut waiting, mut done, mut idle_most) = (Instant::ZERO, Vec::new(), 0, Duration::ZERO);
    let mut first = None;
    while now < Instant::ZERO + time {
        let next = arrivals.peek().map(|next| next.0.0);
        let start = if waiting.is_empty() { None } else { Some(gather.start(now)) };
        let at = match (start, next) {
            (Some(Start::Now), _) => now,
            (Some(Start::At(at)), Some(next)) if next < at => next,
            (Some(Start::At(at)), _) => at,
            (None, next) => next.expect("a writer arrives"),
        };
        now = now.max(at);
        if start == Some(Start::Now) {
            idle_most = idle_most.max(now.since(first.take().expect("a writer waits")));
            assert_eq!(gather.on_start(now) as usize, waiting.len());
            let end = now + flush;
            let members = std::mem::take(&mut waiting);
            while arrivals.peek().is_some_and(|next| next.0.0 < end) {
                let std::cmp::Reverse((at, writer)) = arrivals.pop().expect("just seen");
                gather.on_arrival(at, 1);
                waiting.push(writer);
            }
            now = end;
            gather.on_end(now);
            first = (!waiting.is_empty()).then_some(now);
            done += members.len() as u64;
            for writer in members {
                arrivals.push(std::cmp::Reverse((now + returns[writer], writer)));
            }
            continue;
        }
        while arrivals.peek().is_some_and(|next| next.0.0 <= now) {
            let std::cmp::Reverse((_, writer)) = arrivals.pop().expect("just seen");
            gather.on_arrival(now, 1);
            waiting.push(writer);
            first = first.or(Some(now));
        }
    }
    (done, idle_most)
}

proptest! {
    #[test]
    fn a_lone_writer_never_waits(after_us in 0u64..20_000, flush_us in 1u64..10_000) {
        let after = [Duration::from_micros(after_us)];
        let (_, idle) = run(&after, Duration::from_micros(flush_us), Duration::from_secs(1));
        prop_assert_eq!(idle, Duration::ZERO);
    }

    #[test]
    fn no_writer_waits_longer_than_a_flush_while_the_disk_is_idle(
        after_us in prop::collection::vec(0u64..20_000, 1..40),
        flush_us in 1u64..10_000,
    ) {
        let flush = Duration::from_micros(flush_us);
        let returns: Vec<_> = after_us.into_iter().map(Duration::from_micros).collect();
        let (_, idle) = run(&returns, flush, Duration::from_secs(1));
        prop_assert!(idle <= flush);
    }

    #[test]
    fn nearly_all_writers_that_return_at_once_share_each_flush(
        writers in 2usize..64,
        after_us in 1u64..200,
        spread_us in 0u64..300,
    ) {
        let flush = Duration::from_millis(5);
        let returns: Vec<_> = (0..writers as u64)
            .map(|writer| Duration::from_micros(after_us + writer * spread_us / writers as u64))
            .collect();
        let time = Duration::from_secs(5);
        let (done, _) = run(&returns, flush, time);
        let limit = writers as f64 * time.as_secs_f64() / flush.as_secs_f64();
        prop_assert!(done as f64 >= 0.85 * limit, "{done} of {limit}");
    }

    #[test]
    fn writers_that_return_late_do_not_slow_the_others_much(writers in 1usize..16, late in 1usize..16) {
        let flush = Duration::from_millis(5);
        let mut returns = vec![Duration::from_micros(50); writers];
        let time = Duration::from_secs(5);
        let (alone, _) = run(&returns, flush, time);
        returns.extend(vec![Duration::from_millis(7); late]);
        let (mixed, _) = run(&returns, flush, time);
        prop_assert!(mixed * 10 >= alone * 8, "{mixed} after {alone}");
    }
}

#[test]
fn writers_that_return_together_but_late_come_to_share_each_flush() {
    let (flush, apart) = (Duration::from_micros(400), Duration::from_micros(6));
    let returns: Vec<_> = (0..16).map(|writer| Duration::from_millis(10) + apart * writer).collect();
    let time = Duration::from_secs(10);
    let (done, idle) = run(&returns, flush, time);
    let limit = 16.0 * time.as_secs_f64() / Duration::from_micros(10_496).as_secs_f64();
    assert!(done as f64 >= 0.95 * limit && idle <= flush, "{done} of {limit}; {idle:?}");
}

/// Writers that return at once and whose data is then written one after the other, each for `data`; those that return
/// during a flush write after it. Returns the number of flushes until all have been flushed `times` times.
fn flushes_of_queued_writers(writers: u64, data: Duration, flush: Duration, times: u64) -> u64 {
    let mut gather = Gather::default();
    let (mut now, mut flushes, mut flushed) = (Instant::ZERO, 0, 0);
    // Completion times of the data in flight.
    let mut completions: Vec<Instant> = Vec::new();
    let queue = |completions: &mut Vec<Instant>, gather: &mut Gather, from: Instant, count: u64| {
        let mut at = completions.iter().copied().max().unwrap_or(from).max(from);
        for _ in 0..count {
            at += data;
            completions.push(at);
            gather.on_data_issued(from, 1);
        }
    };
    queue(&mut completions, &mut gather, now, writers);
    while flushed < writers * times {
        completions.retain(|at| {
            let is_complete = *at <= now;
            if is_complete {
                gather.on_data_done(now, 1);
                gather.on_arrival(*at, 1);
            }
            !is_complete
        });
        let next = completions.iter().copied().min();
        if gather.waiting() == 0 {
            now = next.expect("a writer arrives");
            continue;
        }
        match (gather.start(now), next) {
            (Start::Now, _) => {
                let group = u64::from(gather.on_start(now));
                now += flush;
                // The disk writes nothing during a flush.
                completions.iter_mut().for_each(|at| *at += flush);
                gather.on_end(now);
                (flushes, flushed) = (flushes + 1, flushed + group);
                queue(&mut completions, &mut gather, now, group);
            }
            (Start::At(at), Some(next)) => now = at.min(next).max(now),
            (Start::At(at), None) => now = at,
        }
    }
    flushes
}

proptest! {
    #[test]
    fn a_flush_waits_for_data_in_flight(writers in 2u64..64, data_us in 1u64..30) {
        let (data, flush) = (Duration::from_micros(data_us), Duration::from_millis(5));
        let flushes = flushes_of_queued_writers(writers, data, flush, 1000);
        // Trials of shorter waits are a tenth.
        prop_assert!(flushes <= 1200, "{flushes} flushes for 1000");
    }
}
