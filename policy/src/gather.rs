//! Which stable writes and metadata changes share one flush (WS-5).
//!
//! While one flush is under way, the next group forms: that is the rendezvous, and no timer is in it. But those whom a
//! flush releases come back at about the same time: a new flush that starts for the first of them leaves the others to
//! the one after, and each waits for two. So when a flush ends, the next one waits a little for as many as are known,
//! never longer than a quarter of what a flush takes, and only while they keep coming; for those whose data is on its way
//! to the disk, three quarters: as long as less than a flush is waited for those who would else wait for a whole one, all
//! win. A lone writer waits for nobody.

use std::time::Duration;

use crate::unit::Instant;

/// Waits for those who were released last no longer than a flush takes, divided by this...
const PATIENCE: u32 = 4;
/// ...nor longer than this part of it after the last one came.
const GAP: u32 = 8;
/// While data of some of them is on its way: so many quarters of a flush...
const QUARTERS_COMING: u32 = 3;
/// ...and this part of it after the last one came.
const GAP_COMING: u32 = 4;
/// Trust in that they come back: at most so many times in vain, and then nobody is waited for...
const TRUST_MAX: u32 = 3;
/// ...in all but one of so many rounds.
const TRY_AGAIN: u32 = 32;

/// When the next flush starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    Now,
    /// At this moment, if nothing changes.
    At(Instant),
}

/// How many are there, and how many on their way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Present {
    /// Who wait for the next flush.
    pub forming: u32,
    /// Whose data is on its way.
    pub coming: u32,
}

/// Those who want a flush of one disk, file or directory tree.
#[derive(Clone, Debug)]
pub struct Gather {
    /// What a flush takes, smoothed.
    flush: Duration,
    /// When the last one started and ended, and when somebody came or announced himself last.
    started: Instant,
    ended: Option<Instant>,
    heard: Option<Instant>,
    /// Who wait for the next flush, and for the one under way.
    forming: u32,
    running: u32,
    /// Whose data is on its way.
    coming: u32,
    /// Who might want the next one.
    expected: u32,
    /// The next one was put off for them.
    waited: bool,
    trust: u32,
    rounds: u32,
    /// Is waited for others from the first arrival on, however long ago the last flush ended?
    in_bursts: bool,
    /// When the first of those came who wait for the next flush.
    first: Instant,
}

impl Default for Gather {
    fn default() -> Self {
        Gather::new()
    }
}

impl Gather {
    /// A policy that has seen nothing yet.
    pub const fn new() -> Self {
        Gather {
            flush: Duration::ZERO,
            started: Instant::ZERO,
            ended: None,
            heard: None,
            forming: 0,
            running: 0,
            coming: 0,
            expected: 0,
            waited: false,
            trust: TRUST_MAX,
            rounds: 0,
            in_bursts: false,
            first: Instant::ZERO,
        }
    }

    /// The same for what something longer follows, for which all wait: they come back together, but late. As long as the
    /// others keep coming, the first waits for them, as if the last flush had ended when it came.
    pub const fn in_bursts() -> Self {
        Gather { in_bursts: true, ..Gather::new() }
    }

    /// Somebody's data is on its way to the disk; a flush will be wanted when it is there.
    pub fn on_announced(&mut self, now: Instant) {
        self.heard = Some(now);
        self.coming += 1;
    }

    /// It is there, or failed.
    pub fn on_there(&mut self) {
        self.coming = self.coming.saturating_sub(1);
    }

    pub fn on_arrival(&mut self, now: Instant) {
        if self.forming == 0 {
            self.first = now;
        }
        self.forming += 1;
        self.heard = Some(now);
    }

    /// How many wait for the next flush.
    pub fn forming(&self) -> u32 {
        self.forming
    }

    /// Who are there for the next flush, and who will be.
    pub fn present(&self) -> Present {
        Present { forming: self.forming, coming: self.coming }
    }

    /// Are all there who are known, or is nobody's data on its way any more, while there was when so many were `seen`?
    /// Otherwise whoever waits for the moment that [`start`](Self::start) named need not look sooner: who comes before it
    /// only moves it further away.
    pub fn is_changed(&self, seen: Present) -> bool {
        self.forming >= self.expected || self.coming == 0 && seen.coming > 0
    }

    /// Is whoever has announced itself the only one, with nobody expected?
    pub fn is_alone(&self) -> bool {
        self.forming == 0 && self.coming == 1 && self.expected <= 1
    }

    /// When to start the flush for those who came, while none is under way.
    pub fn start(&mut self, now: Instant) -> Start {
        let (Some(ended), Some(heard)) = (self.ended, self.heard) else { return Start::Now };
        let ended = if self.in_bursts { ended.max(self.first) } else { ended };
        let may_wait = self.trust > 0 || self.rounds.is_multiple_of(TRY_AGAIN);
        let deadline = match self.coming {
            0 => (ended + self.flush / PATIENCE).min(ended.max(heard) + self.flush / GAP),
            _ => (ended + self.flush * QUARTERS_COMING / 4).min(ended.max(heard) + self.flush / GAP_COMING),
        };
        if self.forming >= self.expected || !may_wait || now >= deadline {
            return Start::Now;
        }
        self.waited = true;
        Start::At(deadline)
    }

    /// The flush starts; how many it is for.
    pub fn on_start(&mut self, now: Instant) -> u32 {
        if std::mem::take(&mut self.waited) {
            let came = u64::from(self.forming) * 4 >= u64::from(self.expected) * 3;
            self.trust = if came { TRUST_MAX } else { self.trust.saturating_sub(1) };
        }
        self.rounds = self.rounds.wrapping_add(1);
        self.started = now;
        self.running = std::mem::take(&mut self.forming);
        self.running
    }

    pub fn on_end(&mut self, now: Instant) {
        let took = now.since(self.started);
        self.flush = if self.flush.is_zero() { took } else { (self.flush * 7 + took) / 8 };
        self.ended = Some(now);
        self.expected = self.running + self.forming + self.coming;
    }
}
