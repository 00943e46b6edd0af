//! Which stable writes and metadata changes share one flush (WS-5).
//!
//! While one flush is in flight, the next group forms: that is the rendezvous, without a timer. But the writers that a
//! flush releases return at about the same time: a new flush that starts for the first of them leaves the others to the
//! one after, and each waits for two. So when a flush ends, the next one waits for as many writers as are known, at
//! most a quarter of a flush's duration and only while they keep arriving; for those whose data is in flight, three
//! quarters: a wait shorter than one flush saves each of them a whole one. A lone writer never waits.

use std::time::Duration;

use crate::unit::Instant;

/// The wait for writers released by the last flush is at most a flush's duration divided by this...
const WAIT_DIVISOR: u32 = 4;
/// ...and, after the last arrival, that duration divided by this.
const GAP_DIVISOR: u32 = 8;
/// While data of some of them is in flight: this number of quarters of a flush...
const IN_FLIGHT_QUARTERS: u32 = 3;
/// ...and, after the last arrival, a flush's duration divided by this.
const IN_FLIGHT_GAP_DIVISOR: u32 = 4;
/// Waits in vain, in a row, after which flushes start at once...
const TRUST_MAX: u32 = 3;
/// ...except one in this number.
const PROBE_EVERY: u32 = 32;

/// When the next flush starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    Now,
    /// At this time, unless the policy decides anew before.
    At(Instant),
}

/// Writers of the next flush.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Writers {
    pub waiting: u32,
    /// Their data is in flight; they will wait when it is complete.
    pub in_flight: u32,
}

/// The writers that need a flush of one disk, file or directory tree.
#[derive(Clone, Debug)]
pub struct Gather {
    /// Duration of a flush, smoothed.
    flush: Duration,
    /// When the last flush started and ended, and the last arrival or issue.
    started: Instant,
    ended: Option<Instant>,
    last_event: Option<Instant>,
    /// Writers that wait for the next flush, and those of the flush in flight.
    waiting: u32,
    running: u32,
    /// Writers whose data is in flight.
    in_flight: u32,
    /// Writers that may want the next flush.
    expected: u32,
    /// The next flush was delayed for them.
    delayed: bool,
    trust: u32,
    flushes: u32,
    /// Wait for others from the first arrival on, however long ago the last flush ended.
    bursty: bool,
    /// The first arrival of those that wait for the next flush.
    first_arrival: Instant,
}

impl Default for Gather {
    fn default() -> Self {
        Gather::new()
    }
}

impl Gather {
    pub const fn new() -> Self {
        Gather {
            flush: Duration::ZERO,
            started: Instant::ZERO,
            ended: None,
            last_event: None,
            waiting: 0,
            running: 0,
            in_flight: 0,
            expected: 0,
            delayed: false,
            trust: TRUST_MAX,
            flushes: 0,
            bursty: false,
            first_arrival: Instant::ZERO,
        }
    }

    /// For flushes that precede longer work which all writers wait for: they return together, but late. The wait begins
    /// at the first arrival, as if the last flush had ended then.
    pub const fn for_bursts() -> Self {
        Gather { bursty: true, ..Gather::new() }
    }

    /// A writer issued its data; it will want a flush when that is complete.
    pub fn on_data_issued(&mut self, now: Instant) {
        self.last_event = Some(now);
        self.in_flight += 1;
    }

    /// The data is complete, or failed.
    pub fn on_data_done(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    pub fn on_arrival(&mut self, now: Instant) {
        if self.waiting == 0 {
            self.first_arrival = now;
        }
        self.waiting += 1;
        self.last_event = Some(now);
    }

    pub fn waiting(&self) -> u32 {
        self.waiting
    }

    pub fn writers(&self) -> Writers {
        Writers { waiting: self.waiting, in_flight: self.in_flight }
    }

    /// Whether the deadline that [`start`](Self::start) returned at `seen` is to be reconsidered: all expected writers
    /// arrived, or the last data in flight is complete. Any other arrival only postpones it.
    pub fn is_stale(&self, seen: Writers) -> bool {
        self.waiting >= self.expected || self.in_flight == 0 && seen.in_flight > 0
    }

    /// Whether one writer with data in flight is the only one, and no other is expected.
    pub fn is_alone(&self) -> bool {
        self.waiting == 0 && self.in_flight == 1 && self.expected <= 1
    }

    /// When to start the flush for the waiting writers, while none is in flight.
    pub fn start(&mut self, now: Instant) -> Start {
        let (Some(ended), Some(last_event)) = (self.ended, self.last_event) else { return Start::Now };
        let ended = if self.bursty { ended.max(self.first_arrival) } else { ended };
        let may_wait = self.trust > 0 || self.flushes.is_multiple_of(PROBE_EVERY);
        let deadline = match self.in_flight {
            0 => (ended + self.flush / WAIT_DIVISOR).min(ended.max(last_event) + self.flush / GAP_DIVISOR),
            _ => (ended + self.flush * IN_FLIGHT_QUARTERS / 4)
                .min(ended.max(last_event) + self.flush / IN_FLIGHT_GAP_DIVISOR),
        };
        if self.waiting >= self.expected || !may_wait || now >= deadline {
            return Start::Now;
        }
        self.delayed = true;
        Start::At(deadline)
    }

    /// The flush starts. Returns the number of writers that it is for.
    pub fn on_start(&mut self, now: Instant) -> u32 {
        if std::mem::take(&mut self.delayed) {
            let arrived = u64::from(self.waiting) * 4 >= u64::from(self.expected) * 3;
            self.trust = if arrived { TRUST_MAX } else { self.trust.saturating_sub(1) };
        }
        self.flushes = self.flushes.wrapping_add(1);
        self.started = now;
        self.running = std::mem::take(&mut self.waiting);
        self.running
    }

    pub fn on_end(&mut self, now: Instant) {
        let took = now.since(self.started);
        self.flush = if self.flush.is_zero() { took } else { (self.flush * 7 + took) / 8 };
        self.ended = Some(now);
        self.expected = self.running + self.waiting + self.in_flight;
    }
}
