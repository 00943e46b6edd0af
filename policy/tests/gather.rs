//! What gathering promises: closed loops of writers, each of which writes, wants a flush, thinks, and writes again.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use policy::gather::{Gather, Start};
use policy::unit::Instant;
use proptest::prelude::*;

const FLUSH: Duration = Duration::from_millis(5);

/// How long a writer thinks between a flush and its next write.
#[derive(Clone, Copy, Debug)]
enum Think {
    /// Between so much less and so much more than the mean, each in permille of a flush.
    Even(u32, u32),
    Exponential(u32),
}

#[derive(Clone, Copy, Debug)]
struct Load {
    writers: usize,
    /// Each issues its writers' requests one after another.
    clients: usize,
    think: Think,
    write: Duration,
    flush: Duration,
    /// What a client takes to send one request, or a link.
    serial: Duration,
}

/// When the next flush starts, by a policy or by a constant.
trait Starts {
    fn on_write_issued(&mut self, _now: Instant) {}
    fn on_write_completed(&mut self, now: Instant);
    fn start(&mut self, now: Instant) -> Start;
    fn on_start(&mut self, now: Instant);
    fn on_end(&mut self, now: Instant);
}

impl Starts for Gather {
    fn on_write_issued(&mut self, now: Instant) {
        Gather::on_write_issued(self, now);
    }
    fn on_write_completed(&mut self, now: Instant) {
        Gather::on_write_completed(self, now);
    }
    fn start(&mut self, now: Instant) -> Start {
        Gather::start(self, now)
    }
    fn on_start(&mut self, now: Instant) {
        Gather::on_start(self, now);
    }
    fn on_end(&mut self, now: Instant) {
        Gather::on_end(self, now);
    }
}

/// Waits for so long from when the disk is idle and a writer waits, unless all writers are there.
struct Constant {
    wait: Duration,
    writers: usize,
    waiting: usize,
    since: Instant,
}

impl Starts for Constant {
    fn on_write_completed(&mut self, now: Instant) {
        if self.waiting == 0 {
            self.since = self.since.max(now);
        }
        self.waiting += 1;
    }
    fn start(&mut self, now: Instant) -> Start {
        let at = self.since + self.wait;
        if self.waiting >= self.writers || at <= now { Start::Now } else { Start::At(at) }
    }
    fn on_start(&mut self, _: Instant) {
        self.waiting = 0;
    }
    fn on_end(&mut self, now: Instant) {
        self.since = now;
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Issue(usize),
    Complete(usize),
    End,
    Look,
}

#[derive(Debug)]
struct Outcome {
    /// Writes made durable.
    durable: u64,
    /// The longest that the disk stood still while a writer waited.
    idle_max: Duration,
}

/// Runs the closed loops for `flushes` times what a flush takes.
fn run(starts: &mut impl Starts, load: Load, flushes: u32) -> Outcome {
    let mut random = Random(1);
    let mut events = BinaryHeap::new();
    let mut busy_until = vec![Instant::ZERO; load.clients];
    for writer in 0..load.writers {
        events.push(Reverse((Instant::ZERO + load.flush * random.below(1000) / 1000, Event::Issue(writer))));
    }
    let (mut waiting, mut running) = (Vec::new(), None::<Vec<usize>>);
    let (mut outcome, mut idle_since) = (Outcome { durable: 0, idle_max: Duration::ZERO }, Instant::ZERO);
    while let Some(Reverse((now, event))) = events.pop() {
        if now.since(Instant::ZERO) > load.flush * flushes {
            break;
        }
        match event {
            Event::Issue(writer) => {
                starts.on_write_issued(now);
                let write = load.write * (800 + random.below(400)) / 1000;
                events.push(Reverse((now + write, Event::Complete(writer))));
            }
            Event::Complete(writer) => {
                if waiting.is_empty() {
                    idle_since = idle_since.max(now);
                }
                starts.on_write_completed(now);
                waiting.push(writer);
            }
            Event::End => {
                starts.on_end(now);
                idle_since = now;
                for writer in running.take().expect("a flush is in progress") {
                    outcome.durable += 1;
                    let busy = &mut busy_until[writer % load.clients];
                    *busy = (now + load.think.draw(&mut random, load.flush)).max(*busy) + load.serial;
                    events.push(Reverse((*busy, Event::Issue(writer))));
                }
            }
            Event::Look => {}
        }
        if running.is_none() && !waiting.is_empty() {
            match starts.start(now) {
                Start::Now => {
                    starts.on_start(now);
                    outcome.idle_max = outcome.idle_max.max(now.since(idle_since));
                    running = Some(std::mem::take(&mut waiting));
                    let took = load.flush * (950 + random.below(100)) / 1000;
                    events.push(Reverse((now + took, Event::End)));
                }
                Start::At(at) => events.push(Reverse((at, Event::Look))),
            }
        }
    }
    outcome
}

impl Think {
    fn draw(self, random: &mut Random, flush: Duration) -> Duration {
        let permille = match self {
            Think::Even(mean, jitter) => {
                f64::from(mean) * (1.0 + f64::from(jitter) * (random.part() * 2.0 - 1.0) / 1000.0)
            }
            Think::Exponential(mean) => -f64::from(mean) * (1.0 - random.part()).ln(),
        };
        flush.mul_f64(permille / 1000.0)
    }
}

/// Knuth's linear congruential generator (MMIX).
struct Random(u64);

impl Random {
    fn part(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    fn below(&mut self, end: u32) -> u32 {
        (self.part() * f64::from(end)) as u32
    }
}

/// The grid: think times from none to two flushes, from constant to exponential, 1 to 64 in flight on 1 to 16 clients, writes
/// that take nothing and a third of a flush.
fn grid() -> Vec<Load> {
    let mut loads = Vec::new();
    for mean in [0, 50, 100, 250, 500, 750, 1000, 1500, 2000] {
        for think in [Think::Even(mean, 0), Think::Even(mean, 300), Think::Even(mean, 1000), Think::Exponential(mean)] {
            for (writers, clients) in [(1, 1), (2, 1), (4, 1), (4, 4), (8, 1), (16, 1), (16, 4), (64, 1), (64, 16)] {
                for write in [Duration::from_micros(20), FLUSH / 3] {
                    for serial in [Duration::from_micros(10), FLUSH / 20, FLUSH / 7] {
                        loads.push(Load { writers, clients, think, write, flush: FLUSH, serial });
                    }
                }
            }
        }
    }
    loads
}

#[test]
fn no_closed_loop_is_below_four_fifths_of_the_best_constant_wait() {
    let (flushes, mut wrong, mut sum) = (300, Vec::new(), 0.0);
    let loads = grid();
    for load in &loads {
        let waits = [0, 60, 125, 250, 500, 1000, 2000].map(|permille| FLUSH * permille / 1000);
        let best = waits.map(|wait| {
            let mut constant = Constant { wait, writers: load.writers, waiting: 0, since: Instant::ZERO };
            run(&mut constant, *load, flushes).durable
        });
        let best = best.into_iter().max().expect("several") as f64;
        let ratio = run(&mut Gather::new(), *load, flushes).durable as f64 / best;
        sum += ratio;
        if ratio < 0.8 {
            wrong.push(format!("{ratio:.2} of {best}: {load:?}"));
        }
    }
    let mean = sum / loads.len() as f64;
    assert!(wrong.is_empty(), "mean {mean:.3}, {} of {}:\n{}", wrong.len(), loads.len(), wrong.join("\n"));
    assert!(mean > 0.97, "the mean is {mean:.3}");
}

#[test]
fn a_writer_that_comes_back_to_one_that_never_pauses_is_not_waited_for_in_vain() {
    // One writer at full speed, and one that thinks for twenty flushes.
    let mut gather = Gather::new();
    let (mut now, mut waits) = (Instant::ZERO, Duration::ZERO);
    for round in 0..2000u32 {
        gather.on_arrival(now);
        if round.is_multiple_of(20) {
            gather.on_arrival(now);
        }
        if let Start::At(at) = gather.start(now) {
            waits += at.since(now);
            now = at;
        }
        gather.on_start(now);
        now += FLUSH;
        gather.on_end(now);
        now += Duration::from_micros(50);
    }
    assert!(waits < FLUSH * 100, "{waits:?} in 2,000 flushes");
}

proptest! {
    #[test]
    fn a_lone_writer_waits_for_nobody(
        mean in 0u32..4000,
        jitter in 0u32..1000,
        flush_us in 1u64..10_000,
        write_us in 0u64..5000,
    ) {
        let load = Load {
            writers: 1,
            clients: 1,
            think: Think::Even(mean, jitter),
            write: Duration::from_micros(write_us),
            flush: Duration::from_micros(flush_us),
            serial: Duration::ZERO,
        };
        prop_assert_eq!(run(&mut Gather::new(), load, 200).idle_max, Duration::ZERO);
    }

    #[test]
    fn nobody_waits_longer_than_a_flush_for_others(
        writers in 1usize..40,
        mean in 0u32..4000,
        jitter in 0u32..1000,
        flush_us in 1u64..10_000,
    ) {
        let flush = Duration::from_micros(flush_us);
        let load = Load { writers, clients: 1, think: Think::Even(mean, jitter), write: flush / 10, flush, serial: Duration::ZERO };
        // A flush takes up to a twentieth more than another one.
        prop_assert!(run(&mut Gather::new(), load, 200).idle_max <= flush * 11 / 10);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn writers_that_come_back_at_once_nearly_all_share_each_flush(writers in 2usize..64, permille in 1u32..40) {
        let load = Load {
            writers,
            clients: writers,
            think: Think::Even(permille, 1000),
            write: Duration::from_micros(20),
            flush: FLUSH,
            serial: Duration::from_micros(10),
        };
        let durable = run(&mut Gather::new(), load, 1000).durable as f64;
        prop_assert!(durable >= 0.85 * (writers * 1000) as f64, "{durable} of {}", writers * 1000);
    }
}

proptest! {
    /// Whatever happens in whatever order, every group is counted once.
    #[test]
    fn any_order_of_events_is_counted_right(events in prop::collection::vec((0u8..5, 0u64..10_000), 1..400)) {
        let (mut gather, mut now) = (Gather::new(), Instant::ZERO);
        let (mut waiting, mut is_running) = (0, false);
        for (event, after) in events {
            now += Duration::from_micros(after);
            match event {
                0 => gather.on_write_issued(now),
                1 => {
                    gather.on_write_completed(now);
                    waiting += 1;
                }
                2 => gather.on_write_abandoned(now),
                3 => {
                    gather.on_arrival(now);
                    waiting += 1;
                }
                _ if is_running => {
                    gather.on_end(now);
                    is_running = false;
                }
                _ => {
                    gather.start(now);
                    prop_assert_eq!(gather.on_start(now), waiting);
                    (waiting, is_running) = (0, true);
                }
            }
            prop_assert_eq!(gather.waiting(), waiting);
            prop_assert!(!matches!(gather.start(now), Start::At(at) if at <= now));
        }
    }
}
