//! Which stable writes, flushes and metadata changes share one flush (WS-5), when the disk may start one.
//!
//! While a flush is in progress, the next group forms, and no timer is involved. But the writers that a flush releases come
//! back a little later: a flush that starts for the first of them leaves the others to the one after, and in a closed loop
//! each of them then waits for two. To wait pays as long as the arrivals expected meanwhile, times what a flush takes,
//! outweigh the waiting of those that have arrived (group commit timers: Helland et al., *Group commit timers and high
//! volume transaction systems*, 1987). Helland's rule takes arrivals to be Poisson; here they are predicted from the
//! population: each writer that was released and is not back, and each write in flight, arrives after a delay whose
//! distribution is learnt. So a lone writer waits for nobody, a group that always comes back within 100 µs is waited for
//! 100 µs, and one that is slow but comes back at once (2 flushes later, all within a millisecond) is waited for, too.
//!
//! Rejected: a fixed part of a flush after the last release (up to 2026: a quarter; alternates between two half groups where
//! writers think for half a flush, 0.66 of what a good constant reaches, and wants the number of writers from the last
//! flush, which is wrong as soon as there are two groups). Over think times of 0 to 2 flushes, constant to exponential,
//! this rule is at 0.99 of the best constant on average (`tests/gather.rs` has the grid).

use std::time::Duration;

use crate::unit::Instant;

/// The wait is chosen among so many parts of a flush, up to one flush: whoever arrives later than that loses nothing if the
/// flush starts now.
const STEPS: u32 = 16;

/// A writer that is waited for saves a flush now, and half a one later: those that share a flush come back at the same time.
const LASTING: f64 = 1.5;

/// The weight of the last flush in what flushes cost.
const COST_WEIGHT: f64 = 1.0 / 16.0;

/// Writers that are not back after this many flushes have gone elsewhere.
const GONE_AFTER: u32 = 8;

/// A delay is shorter than 1 µs, or of one of these classes: two for each factor of two, up to 8 s.
const CLASSES: usize = 48;

/// Samples of a distribution before all are halved: it follows a change within as many.
const SAMPLES_MAX: u16 = 128;

/// Groups of writers that are told apart by when they were released (or issued their writes).
const COHORTS: usize = 8;

/// When the next flush starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    Now,
    /// At this time, unless an arrival changes it.
    At(Instant),
}

/// The writers that want flushes of one disk, file or directory tree.
#[derive(Clone, Debug, Default)]
pub struct Gather {
    /// What a flush takes, smoothed.
    flush: Duration,
    cost: Cost,
    started: Instant,
    /// Since when the disk is idle while the group waits.
    idle_since: Instant,
    waiting: u32,
    running: u32,
    /// Apart, for most files are never written.
    population: Option<Box<Population>>,
}

/// Who is expected.
#[derive(Clone, Debug, Default)]
struct Population {
    /// Released and not back, and how long that takes.
    absent: Cohorts,
    think: Delays,
    /// Writes in flight, and how long they take.
    in_flight: Cohorts,
    write: Delays,
}

impl Gather {
    pub fn new() -> Self {
        Gather::default()
    }

    /// A write was issued that will want a flush when it completes.
    pub fn on_write_issued(&mut self, now: Instant) {
        let apart = self.flush / STEPS;
        let population = self.population.get_or_insert_default();
        population.on_return(now);
        population.in_flight.add(now, 1, apart);
    }

    /// It completed, and wants the flush.
    pub fn on_write_completed(&mut self, now: Instant) {
        if let Some(population) = &mut self.population
            && let Some(issued) = population.in_flight.take(now, &population.write)
        {
            population.write.add(now.since(issued));
        }
        self.join(now);
    }

    /// It wants none: it was forced, or has failed.
    pub fn on_write_abandoned(&mut self, now: Instant) {
        if let Some(population) = &mut self.population {
            population.in_flight.take(now, &population.write);
        }
    }

    /// A flush is wanted for what has been written.
    pub fn on_arrival(&mut self, now: Instant) {
        if let Some(population) = &mut self.population {
            population.on_return(now);
        }
        self.join(now);
    }

    fn join(&mut self, now: Instant) {
        if self.waiting == 0 {
            self.idle_since = self.idle_since.max(now);
        }
        self.waiting += 1;
    }

    /// Writers that wait for the next flush.
    pub fn waiting(&self) -> u32 {
        self.waiting
    }

    /// Is the write in flight the only one, and nobody expected?
    pub fn is_alone(&mut self, now: Instant) -> bool {
        let Some(population) = &mut self.population else { return self.waiting == 0 };
        population.forget_gone(now, self.flush);
        self.waiting == 0 && population.in_flight.total() == 1 && population.absent.total() == 0
    }

    /// When to start the flush for those that wait, while none is in progress.
    pub fn start(&self, now: Instant) -> Start {
        let Some(population) = &self.population else { return Start::Now };
        let mut arrivals = [0.0; STEPS as usize];
        let Population { absent, think, in_flight, write } = &**population;
        absent.expect(now, self.flush, think, write.average, &mut arrivals);
        in_flight.expect(now, self.flush, write, Duration::ZERO, &mut arrivals);
        let shared = self.cost.shared();
        let meanwhile = arrivals[STEPS as usize - 1];
        let (mut gain_max, mut steps) = (0.0, 0);
        for (step, arrivals) in (1..).zip(arrivals) {
            let saved = arrivals * shared * f64::from(STEPS) * LASTING;
            let gain = saved - (f64::from(self.waiting) + meanwhile) * f64::from(step);
            if gain > gain_max {
                (gain_max, steps) = (gain, step);
            }
        }
        let latest = self.idle_since + self.flush;
        let start = (now + self.flush * steps / STEPS).min(latest);
        if start <= now { Start::Now } else { Start::At(start) }
    }

    /// The flush starts; returns for how many.
    pub fn on_start(&mut self, now: Instant) -> u32 {
        self.started = now;
        self.running = std::mem::take(&mut self.waiting);
        self.running
    }

    /// It ended, and releases those it was for.
    pub fn on_end(&mut self, now: Instant) {
        let took = now.since(self.started);
        self.flush = if self.flush.is_zero() { took } else { (self.flush * 7 + took) / 8 };
        self.cost.add(f64::from(self.running), took.as_secs_f64());
        self.idle_since = now;
        let population = self.population.get_or_insert_default();
        population.forget_gone(now, self.flush);
        population.absent.add(now, self.running, Duration::ZERO);
    }
}

impl Population {
    fn on_return(&mut self, now: Instant) {
        if let Some(released) = self.absent.take(now, &self.think) {
            self.think.add(now.since(released));
        }
    }

    fn forget_gone(&mut self, now: Instant, flush: Duration) {
        for _ in 0..self.absent.expire(now, flush * GONE_AFTER) {
            self.think.add_never();
        }
    }
}

/// What flushes take by the size of their groups: a line through what was seen, by least squares, the latest weighing most.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    members: f64,
    took: f64,
    variance: f64,
    covariance: f64,
}

impl Cost {
    fn add(&mut self, members: f64, took: f64) {
        if self.took == 0.0 {
            (self.members, self.took) = (members, took);
        }
        let (more, longer) = (members - self.members, took - self.took);
        self.members += more * COST_WEIGHT;
        self.took += longer * COST_WEIGHT;
        self.variance = (1.0 - COST_WEIGHT) * (self.variance + COST_WEIGHT * more * more);
        self.covariance = (1.0 - COST_WEIGHT) * (self.covariance + COST_WEIGHT * more * longer);
    }

    /// The part of what a flush takes that does not grow with its group: what is saved by sharing it.
    fn shared(&self) -> f64 {
        let each = if self.variance > 0.0 { (self.covariance / self.variance).max(0.0) } else { 0.0 };
        if self.took > 0.0 { (1.0 - each * self.members / self.took).clamp(0.0, 1.0) } else { 1.0 }
    }
}

/// Counts of writers, by since when they are expected.
#[derive(Clone, Debug, Default)]
struct Cohorts {
    /// From the oldest to the youngest; those behind `len` are unused.
    cohorts: [(Instant, u32); COHORTS],
    len: usize,
}

impl Cohorts {
    fn all(&self) -> &[(Instant, u32)] {
        &self.cohorts[..self.len]
    }

    fn total(&self) -> u32 {
        self.all().iter().map(|(_, count)| count).sum()
    }

    /// Adds to the youngest cohort if that is not older than `apart`, or if there are too many.
    fn add(&mut self, now: Instant, count: u32, apart: Duration) {
        if count == 0 {
            return;
        }
        match self.cohorts[..self.len].last_mut() {
            Some((since, youngest)) if now.since(*since) <= apart || self.len == COHORTS => *youngest += count,
            _ => {
                self.cohorts[self.len] = (now, count);
                self.len += 1;
            }
        }
    }

    /// Removes one that arrives now, from the cohort that is likeliest to by its age; returns since when it was expected.
    /// (The oldest would be wrong: one writer that pauses would make all others look slow.)
    fn take(&mut self, now: Instant, delays: &Delays) -> Option<Instant> {
        let likelihood = |at: &usize| {
            let (since, count) = self.cohorts[*at];
            u32::from(delays.samples[class(now.since(since)).0]) * count
        };
        // Of equals the last is taken: from the youngest to the oldest.
        let at = (0..self.len).rev().max_by_key(likelihood)?;
        let (since, count) = &mut self.cohorts[at];
        let since = *since;
        *count -= 1;
        if *count == 0 {
            self.remove(at);
        }
        Some(since)
    }

    /// Removes those that have been expected for longer than `age`; returns how many.
    fn expire(&mut self, now: Instant, age: Duration) -> u32 {
        let mut gone = 0;
        while let Some((since, count)) = self.all().first().copied()
            && now.since(since) > age
        {
            gone += count;
            self.remove(0);
        }
        gone
    }

    fn remove(&mut self, at: usize) {
        self.cohorts.copy_within(at + 1..self.len, at);
        self.len -= 1;
    }

    /// Adds to `arrivals[i]` how many are expected to arrive, `more` after their delays, within (i + 1) parts of `flush`
    /// from `now`.
    fn expect(
        &self,
        now: Instant,
        flush: Duration,
        delays: &Delays,
        more: Duration,
        arrivals: &mut [f64; STEPS as usize],
    ) {
        for (since, count) in self.all() {
            let age = now.since(*since);
            let before = delays.shorter_than(age);
            let left = delays.total() - before;
            if left < f64::EPSILON {
                continue;
            }
            for (step, arrivals) in (1..).zip(arrivals.iter_mut()) {
                let within = delays.shorter_than((age + flush * step / STEPS).saturating_sub(more)) - before;
                *arrivals += f64::from(*count) * within.max(0.0) / left;
            }
        }
    }
}

/// A distribution of delays, which follows changes.
#[derive(Clone, Debug)]
struct Delays {
    samples: [u16; CLASSES],
    never: u16,
    total: u16,
    /// Of those that end, smoothed.
    average: Duration,
}

impl Default for Delays {
    fn default() -> Self {
        Delays { samples: [0; CLASSES], never: 0, total: 0, average: Duration::ZERO }
    }
}

impl Delays {
    fn add(&mut self, delay: Duration) {
        self.average = if self.total == self.never { delay } else { (self.average * 7 + delay) / 8 };
        self.samples[class(delay).0] += 1;
        self.count();
    }

    /// A writer that did not come back.
    fn add_never(&mut self) {
        self.never += 1;
        self.count();
    }

    fn count(&mut self) {
        self.total += 1;
        if self.total >= SAMPLES_MAX {
            self.samples.iter_mut().chain([&mut self.never]).for_each(|samples| *samples /= 2);
            self.total = self.samples.iter().sum::<u16>() + self.never;
        }
    }

    fn total(&self) -> f64 {
        f64::from(self.total)
    }

    /// Samples below `delay`; those of its own class are taken to be spread evenly.
    fn shorter_than(&self, delay: Duration) -> f64 {
        let (class, part) = class(delay);
        let below: u16 = self.samples[..class].iter().sum();
        f64::from(below) + f64::from(self.samples[class]) * part
    }
}

/// The class of a delay, and which part of the class lies below it.
fn class(delay: Duration) -> (usize, f64) {
    let ns = delay.as_nanos().min(u128::from(u64::MAX)) as u64;
    if ns < 1024 {
        return (0, ns as f64 / 1024.0);
    }
    let octave = ns.ilog2();
    let halves = ns >> (octave - 8); // 256 to 511
    let (upper, start) = if halves >= 384 { (1, 384) } else { (0, 256) };
    let class = 1 + 2 * (octave as usize - 10) + upper;
    if class >= CLASSES { (CLASSES - 1, 1.0) } else { (class, (halves - start) as f64 / 128.0) }
}
