//! What gathering promises.

use std::collections::BinaryHeap;
use std::time::Duration;

use policy::gather::{Gather, Start};
use policy::unit::Instant;
use proptest::prelude::*;

/// Writers who want a flush, and so long after it the next one. Returns how many writes were flushed, and the longest that
/// any waited though no flush was under way, within `time`.
fn run(returns: &[Duration], flush: Duration, time: Duration) -> (u64, Duration) {
    run_with(Gather::new(), returns, flush, time)
}

fn run_with(mut gather: Gather, returns: &[Duration], flush: Duration, time: Duration) -> (u64, Duration) {
    // Who comes when; the earliest first.
    let mut coming: BinaryHeap<std::cmp::Reverse<(Instant, usize)>> =
        returns.iter().enumerate().map(|(writer, after)| std::cmp::Reverse((Instant::ZERO + *after, writer))).collect();
    let (mut now, mut waiting, mut done, mut idle_most) = (Instant::ZERO, Vec::new(), 0, Duration::ZERO);
    let mut first = None;
    while now < Instant::ZERO + time {
        let next = coming.peek().map(|next| next.0.0);
        let start = if waiting.is_empty() { None } else { Some(gather.start(now)) };
        let at = match (start, next) {
            (Some(Start::Now), _) => now,
            (Some(Start::At(at)), Some(next)) if next < at => next,
            (Some(Start::At(at)), _) => at,
            (None, next) => next.expect("somebody comes"),
        };
        now = now.max(at);
        if start == Some(Start::Now) {
            idle_most = idle_most.max(now.since(first.take().expect("somebody waits")));
            assert_eq!(gather.on_start(now) as usize, waiting.len());
            let end = now + flush;
            let members = std::mem::take(&mut waiting);
            while coming.peek().is_some_and(|next| next.0.0 < end) {
                let std::cmp::Reverse((at, writer)) = coming.pop().expect("just seen");
                gather.on_arrival(at);
                waiting.push(writer);
            }
            now = end;
            gather.on_end(now);
            first = (!waiting.is_empty()).then_some(now);
            done += members.len() as u64;
            for writer in members {
                coming.push(std::cmp::Reverse((now + returns[writer], writer)));
            }
            continue;
        }
        while coming.peek().is_some_and(|next| next.0.0 <= now) {
            let std::cmp::Reverse((_, writer)) = coming.pop().expect("just seen");
            gather.on_arrival(now);
            waiting.push(writer);
            first = first.or(Some(now));
        }
    }
    (done, idle_most)
}

proptest! {
    #[test]
    fn a_lone_writer_waits_for_nobody(after_us in 0u64..20_000, flush_us in 1u64..10_000) {
        for gather in [Gather::new(), Gather::in_bursts()] {
            let after = [Duration::from_micros(after_us)];
            let (_, idle) = run_with(gather, &after, Duration::from_micros(flush_us), Duration::from_secs(1));
            prop_assert_eq!(idle, Duration::ZERO);
        }
    }

    #[test]
    fn nobody_waits_longer_than_a_quarter_of_a_flush_beside_an_idle_disk(
        after_us in prop::collection::vec(0u64..20_000, 1..40),
        flush_us in 1u64..10_000,
    ) {
        let flush = Duration::from_micros(flush_us);
        let returns: Vec<_> = after_us.into_iter().map(Duration::from_micros).collect();
        for gather in [Gather::new(), Gather::in_bursts()] {
            let (_, idle) = run_with(gather, &returns, flush, Duration::from_secs(1));
            prop_assert!(idle <= flush / 4);
        }
    }

    #[test]
    fn writers_who_come_back_at_once_nearly_all_share_each_flush(
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
    fn who_comes_back_late_does_not_slow_the_others_much(writers in 1usize..16, late in 1usize..16) {
        let flush = Duration::from_millis(5);
        let mut returns = vec![Duration::from_micros(50); writers];
        let time = Duration::from_secs(5);
        let (alone, _) = run(&returns, flush, time);
        returns.extend(vec![Duration::from_millis(7); late]);
        let (together, _) = run(&returns, flush, time);
        prop_assert!(together * 10 >= alone * 8, "{together} after {alone}");
    }
}

/// A gathering at which `members` have met once, and whose flush took `flush`.
fn met(mut gather: Gather, members: u32, flush: Duration) -> Gather {
    (0..members).for_each(|_| gather.on_arrival(Instant::ZERO));
    assert_eq!(gather.start(Instant::ZERO), Start::Now);
    gather.on_start(Instant::ZERO);
    gather.on_end(Instant::ZERO + flush);
    gather
}

#[test]
fn those_who_come_back_together_but_late_share_what_gathers_in_bursts() {
    let flush = Duration::from_micros(400);
    let (late, apart) = (Instant::ZERO + Duration::from_millis(10), Duration::from_micros(6));
    let mut gather = met(Gather::in_bursts(), 16, flush);
    for member in 0..16 {
        let now = late + apart * member;
        gather.on_arrival(now);
        assert_eq!(gather.start(now) == Start::Now, member == 15, "{member} came");
    }
    assert_eq!(gather.on_start(late + apart * 15), 16);
    let mut other = met(Gather::new(), 16, flush);
    other.on_arrival(late);
    assert_eq!(other.start(late), Start::Now, "elsewhere nobody waits so long after a flush");
}

#[test]
fn who_comes_late_and_alone_to_what_gathers_in_bursts_waits_an_eighth_of_a_flush_and_soon_not_at_all() {
    let flush = Duration::from_micros(400);
    let mut gather = met(Gather::in_bursts(), 16, flush);
    let mut waits = Vec::new();
    for round in 1..6 {
        let now = Instant::ZERO + Duration::from_millis(10) * round;
        gather.on_arrival(now);
        let start = match gather.start(now) {
            Start::Now => now,
            Start::At(at) => at,
        };
        waits.push(start.since(now));
        assert_eq!(gather.start(start), Start::Now);
        gather.on_start(start);
        gather.on_end(start + flush);
    }
    assert!(waits[0] <= flush / 8, "{waits:?}");
    assert!(waits[1..].iter().all(Duration::is_zero), "{waits:?}");
}

/// Writers who come back at once and whose data then goes to the disk one after the other, each for `data`; those who come
/// back during a flush write behind it. Returns how many rounds it took until all have been flushed `times` times.
fn rounds_of_queued_writers(writers: u64, data: Duration, flush: Duration, times: u64) -> u64 {
    let mut gather = Gather::new();
    let (mut now, mut rounds, mut flushed) = (Instant::ZERO, 0, 0);
    // When the data of each who is on the way is there.
    let mut there: Vec<Instant> = Vec::new();
    let queue = |there: &mut Vec<Instant>, gather: &mut Gather, from: Instant, count: u64| {
        let mut at = there.iter().copied().max().unwrap_or(from).max(from);
        for _ in 0..count {
            at += data;
            there.push(at);
            gather.on_announced(from);
        }
    };
    queue(&mut there, &mut gather, now, writers);
    while flushed < writers * times {
        there.retain(|at| {
            let is_there = *at <= now;
            if is_there {
                gather.on_there();
                gather.on_arrival(*at);
            }
            !is_there
        });
        let next = there.iter().copied().min();
        if gather.forming() == 0 {
            now = next.expect("somebody comes");
            continue;
        }
        match (gather.start(now), next) {
            (Start::Now, _) => {
                let group = u64::from(gather.on_start(now));
                now += flush;
                // The disk writes nothing during a flush.
                there.iter_mut().for_each(|at| *at += flush);
                gather.on_end(now);
                (rounds, flushed) = (rounds + 1, flushed + group);
                queue(&mut there, &mut gather, now, group);
            }
            (Start::At(at), Some(next)) => now = at.min(next).max(now),
            (Start::At(at), None) => now = at,
        }
    }
    rounds
}

proptest! {
    #[test]
    fn who_is_on_the_way_is_waited_for(writers in 2u64..64, data_us in 1u64..30) {
        let (data, flush) = (Duration::from_micros(data_us), Duration::from_millis(5));
        let rounds = rounds_of_queued_writers(writers, data, flush, 100);
        prop_assert!(rounds <= 100 + 10, "{rounds} rounds for 100");
    }
}
