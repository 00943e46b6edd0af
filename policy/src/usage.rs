//! How much of the processor somebody has used lately, and who inherits it (WS-7).
//!
//! 4.3BSD gives each process an estimate of its recent use, which decays, and lets those run that used least (Leffler,
//! McKusick, Karels, Quarterman: *The Design and Implementation of the 4.3BSD UNIX Operating System*, 1989, section
//! 4.4). A new process starts with none, so a job of many short processes always has one that used little: it gets more
//! than one long process and disturbs whoever works interactively. Here a child inherits its parent's estimate, and at its
//! end the parent takes over what the child used: a job of many short processes weighs as much as one long one.
//!
//! The paper leaves open what a parent takes over that has several children at a time. Only what a child added counts
//! here: what it inherited the parent has already (decayed alike), and would otherwise count once for each child.
//!
//! Requests that a server does for a client are short children of the client's job: they are begun with
//! [`Usage::fork`] or charged at once, and given back with [`Usage::take_over`], on whatever machine they were done.

use std::time::Duration;

use crate::unit::Instant;

/// Which estimates are handed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inheritance {
    /// A child begins with its parent's.
    pub at_fork: bool,
    /// A parent takes over what its child used.
    pub at_exit: bool,
}

impl Inheritance {
    /// Both, as the paper proposes.
    pub const BOTH: Inheritance = Inheritance { at_fork: true, at_exit: true };
    /// None, as 4.3BSD does it.
    pub const NONE: Inheritance = Inheritance { at_fork: false, at_exit: false };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decay {
    /// Once in so long. In 4.3BSD a second, in which about `2 * load / (2 * load + 1)` is left.
    pub period: Duration,
    /// No estimate is larger. In 4.3BSD 255 ticks of 10 ms.
    pub most: Duration,
}

impl Default for Decay {
    fn default() -> Self {
        Decay { period: Duration::from_secs(1), most: Duration::from_millis(2550) }
    }
}

/// After so many periods nothing is left, whatever the load up to a hundred.
const PERIODS_MAX: u64 = 4096;

/// The recent use of one process, client or job.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    used_ns: f64,
    /// Of that, what was inherited.
    inherited_ns: f64,
    /// The period in which it decayed last.
    period: u64,
}

impl Usage {
    pub fn new(decay: Decay, now: Instant) -> Self {
        Usage { used_ns: 0.0, inherited_ns: 0.0, period: period(decay, now) }
    }

    /// It has used the processor for `time`. `load`: how many are ready to run, on average over the last minute or so.
    pub fn charge(&mut self, decay: Decay, now: Instant, load: f64, time: Duration) {
        self.catch_up(decay, now, load);
        self.used_ns = (self.used_ns + time.as_nanos() as f64).min(decay.most.as_nanos() as f64);
    }

    /// How much it has used lately: less is more urgent.
    pub fn estimate(&mut self, decay: Decay, now: Instant, load: f64) -> Duration {
        self.catch_up(decay, now, load);
        Duration::from_nanos(self.used_ns as u64)
    }

    /// How much it had used when it was charged or asked for last.
    pub fn last_estimate(&self) -> Duration {
        Duration::from_nanos(self.used_ns as u64)
    }

    /// What a child begins with.
    pub fn fork(&mut self, decay: Decay, now: Instant, load: f64, inheritance: Inheritance) -> Usage {
        self.catch_up(decay, now, load);
        let inherited_ns = if inheritance.at_fork { self.used_ns } else { 0.0 };
        Usage { used_ns: inherited_ns, inherited_ns, period: self.period }
    }

    pub fn take_over(&mut self, mut child: Usage, decay: Decay, now: Instant, load: f64, inheritance: Inheritance) {
        if !inheritance.at_exit {
            return;
        }
        child.catch_up(decay, now, load);
        self.catch_up(decay, now, load);
        let added = (child.used_ns - child.inherited_ns).max(0.0);
        self.used_ns = (self.used_ns + added).min(decay.most.as_nanos() as f64);
    }

    /// Lets pass what has passed since the last time. Like 4.3BSD for processes that slept, with the load of now.
    fn catch_up(&mut self, decay: Decay, now: Instant, load: f64) {
        let period = period(decay, now);
        let passed = period.saturating_sub(self.period);
        self.period = self.period.max(period);
        if passed == 0 || self.used_ns == 0.0 {
            return;
        }
        let left = left(load, passed);
        self.used_ns *= left;
        self.inherited_ns *= left;
    }
}

fn period(decay: Decay, now: Instant) -> u64 {
    let ns = u64::try_from(decay.period.as_nanos()).unwrap_or(u64::MAX).max(1);
    now.ns() / ns
}

/// What is left after so many periods: squaring, for multiplication is the same everywhere.
fn left(load: f64, periods: u64) -> f64 {
    if periods > PERIODS_MAX {
        return 0.0;
    }
    let load = load.clamp(0.0, 100.0);
    let (mut factor, mut left, mut rest) = (2.0 * load / (2.0 * load + 1.0), 1.0, periods);
    while rest > 0 {
        if rest % 2 == 1 {
            left *= factor;
        }
        factor *= factor;
        rest /= 2;
    }
    left
}
