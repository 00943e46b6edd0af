//! Which stable writes and metadata changes share one flush (WS-5).
//!
//! While one flush is in flight, the next group forms: that is the rendezvous, without a timer. But the writers that a
//! flush releases return at about the same time: a new flush that starts for the first of them leaves the others to the
//! one after, and each waits for two. How long it is worth to wait for them depends on how long they think, how much
//! that varies, how many clients send and how long the flush takes, none of which a server knows. So it is measured:
//! each of a few waits, from none to one flush, is tried for some flushes, and the one with the lowest latency stays,
//! while others are tried again now and then. In a closed loop the lowest latency is the highest rate, too. The wait ends
//! as soon as all writers known have arrived: a lone writer never waits.

use std::time::Duration;

use crate::unit::Instant;

/// The waits that are tried, in eighths of a flush.
const WAITS: [u32; 5] = [0, 1, 2, 4, 8];
/// Index of the wait before any was tried.
const FIRST: usize = 0;
/// Flushes after a change of the wait whose latencies do not count: their writers arrived before it.
const SETTLE: u32 = 3;
/// Flushes and writers that a trial counts...
const TRIAL: u32 = 8;
const TRIAL_WRITERS: u64 = 32;
/// ...unless after this number its latency exceeds the best by this percentage.
const HOPELESS_AFTER: u32 = 2;
const HOPELESS_PERCENT: u64 = 130;
/// A wait replaces the best if its latency is at most this percentage of the best's.
const BETTER_PERCENT: u64 = 95;
/// Flushes after which the latency of the best wait is measured again...
const HOLD: u32 = 32;
/// ...and all waits are tried again if it rose or fell by this percentage: the load changed.
const CHANGED_PERCENT: u64 = 125;
/// Otherwise one is tried when this number of times the last trial's duration has passed.
const TRIAL_EVERY: u32 = 10;

/// When the next flush starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    Now,
    /// At this time, unless all expected writers arrive before.
    At(Instant),
}

/// The writers that need a flush of one disk, file or directory tree.
#[derive(Clone, Debug, Default)]
pub struct Gather {
    /// Duration of a flush, smoothed.
    flush: Duration,
    /// When the last flush started.
    started: Instant,
    /// Since when the disk is idle and a writer waits.
    idle: Instant,
    /// Writers that wait for the next flush, and those of the flush in flight.
    waiting: u32,
    running: u32,
    /// Writers whose data is in flight.
    in_flight: u32,
    /// Writers since the last flush whose data became durable without one.
    forced: u32,
    /// Writers that may want the next flush.
    expected: u32,
    /// Nanoseconds that writers spent from issue to durability, and when this was last added to.
    spent: u128,
    counted: Instant,
    tuner: Tuner,
}

impl Gather {
    /// So many writers issued their data; they will want a flush when that is complete.
    pub fn on_data_issued(&mut self, now: Instant, writers: u32) {
        self.count(now);
        self.in_flight += writers;
    }

    /// The data of so many writers is durable by itself: no flush is wanted.
    pub fn on_forced(&mut self, now: Instant, writers: u32) {
        self.on_data_done(now, writers);
        self.forced += writers;
    }

    /// The data of so many writers is complete, or failed.
    pub fn on_data_done(&mut self, now: Instant, writers: u32) {
        self.count(now);
        self.in_flight = self.in_flight.saturating_sub(writers);
    }

    /// So many writers want the next flush.
    pub fn on_arrival(&mut self, now: Instant, writers: u32) {
        self.count(now);
        if self.waiting == 0 {
            self.idle = self.idle.max(now);
        }
        self.waiting += writers;
    }

    pub fn waiting(&self) -> u32 {
        self.waiting
    }

    /// Whether all writers that may want the next flush have arrived.
    pub fn is_complete(&self) -> bool {
        self.waiting >= self.expected
    }

    /// Whether one writer with data in flight is the only one, and no other is expected.
    pub fn is_alone(&self) -> bool {
        self.waiting == 0 && self.in_flight == 1 && !self.expects_others()
    }

    /// Did the last flush leave more than one writer that may want the next?
    pub fn expects_others(&self) -> bool {
        self.expected > 1
    }

    /// When to start the flush for the waiting writers, while none is in flight.
    pub fn start(&self, now: Instant) -> Start {
        let deadline = self.idle + self.flush * self.tuner.wait() / 8;
        if self.is_complete() || now >= deadline { Start::Now } else { Start::At(deadline) }
    }

    /// The flush starts. Returns the number of writers that it is for.
    pub fn on_start(&mut self, now: Instant) -> u32 {
        self.started = now;
        self.running = std::mem::take(&mut self.waiting);
        self.running
    }

    pub fn on_end(&mut self, now: Instant) {
        self.count(now);
        let took = now.since(self.started);
        // One flush of a disk that stalls must not make later ones wait.
        self.flush = if self.flush.is_zero() { took } else { (self.flush * 7 + took.min(self.flush * 2)) / 8 };
        self.idle = now;
        self.expected = self.running + self.waiting + self.in_flight;
        let served = std::mem::take(&mut self.running) + std::mem::take(&mut self.forced);
        let spent = std::mem::take(&mut self.spent);
        if self.expected > 1 {
            self.tuner.on_flush(now, served, spent);
        }
    }

    fn count(&mut self, now: Instant) {
        let writers = self.in_flight + self.waiting + self.running;
        self.spent += now.since(self.counted).as_nanos() * u128::from(writers);
        self.counted = now;
    }
}

/// Finds the wait with the lowest latency, by trial.
#[derive(Clone, Debug)]
struct Tuner {
    /// Index of the best wait so far, and its mean latency in nanoseconds.
    best: usize,
    latency: Option<u64>,
    /// Index of the wait on trial, and how many more will be tried after it.
    trial: Option<usize>,
    trials: usize,
    last_tried: usize,
    /// Since when this wait is used, its flushes, and the writers that count and the nanoseconds that they spent.
    since: Instant,
    flushes: u32,
    writers: u64,
    spent: u128,
    next_trial: Instant,
}

impl Default for Tuner {
    fn default() -> Self {
        Tuner {
            best: FIRST,
            latency: None,
            trial: None,
            trials: 0,
            last_tried: FIRST,
            since: Instant::ZERO,
            flushes: 0,
            writers: 0,
            spent: 0,
            next_trial: Instant::ZERO,
        }
    }
}

impl Tuner {
    /// Eighths of a flush.
    fn wait(&self) -> u32 {
        WAITS[self.trial.unwrap_or(self.best)]
    }

    /// `served` writers are durable; since the last flush, all writers waited for `spent` nanoseconds in sum:
    /// the mean latency is `spent / served` (Little's law).
    fn on_flush(&mut self, now: Instant, served: u32, spent: u128) {
        self.flushes += 1;
        if self.flushes <= SETTLE {
            return;
        }
        self.writers += u64::from(served);
        self.spent += spent;
        let latency = u64::try_from(self.spent / u128::from(self.writers.max(1))).unwrap_or(u64::MAX);
        let counted = self.flushes - SETTLE;
        let is_measured = counted >= TRIAL && self.writers >= TRIAL_WRITERS;
        match (self.trial, self.latency) {
            (Some(trial), Some(best)) => {
                let is_hopeless = counted >= HOPELESS_AFTER && exceeds(latency, best, HOPELESS_PERCENT);
                if is_measured || is_hopeless {
                    if !exceeds(latency, best, BETTER_PERCENT) {
                        (self.best, self.latency) = (trial, Some(latency));
                    }
                    self.next_trial = now + now.since(self.since) * TRIAL_EVERY;
                    self.next(now);
                }
            }
            (_, Some(before)) if counted >= HOLD => {
                let has_changed =
                    exceeds(latency, before, CHANGED_PERCENT) || exceeds(before, latency, CHANGED_PERCENT);
                self.trials = if has_changed { WAITS.len() - 1 } else { usize::from(now >= self.next_trial) };
                self.latency = Some(latency);
                self.next(now);
            }
            (_, None) if is_measured => {
                self.trials = WAITS.len() - 1;
                self.latency = Some(latency);
                self.next(now);
            }
            _ => {}
        }
    }

    /// Tries the next wait, or goes on with the best.
    fn next(&mut self, now: Instant) {
        self.trial = self.trials.checked_sub(1).map(|left| {
            self.trials = left;
            let others = (1..=WAITS.len()).map(|step| (self.last_tried + step) % WAITS.len());
            self.last_tried = others.into_iter().find(|&wait| wait != self.best).unwrap_or(self.best);
            self.last_tried
        });
        (self.since, self.flushes, self.writers, self.spent) = (now, 0, 0, 0);
    }
}

/// Whether `a` is more than `percent` of `b`.
fn exceeds(a: u64, b: u64, percent: u64) -> bool {
    u128::from(a) * 100 > u128::from(b) * u128::from(percent)
}
