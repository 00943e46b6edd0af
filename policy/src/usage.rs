//! How much processor time a job has used lately, and who inherits that estimate (WS-7).
//!
//! 4.3BSD gives each process an estimate of its recent use, which decays, and lets those run that used least (Leffler,
//! McKusick, Karels, Quarterman: *The Design and Implementation of the 4.3BSD UNIX Operating System*, 1989, section
//! 4.4). A new process starts at zero, so a job of many short processes always has one that used little: it gets more
//! than one long process and disturbs interactive users. Here a child inherits its parent's estimate, and when it exits
//! the parent takes over what the child used: a job of many short processes weighs as much as one long one.
//!
//! The paper leaves open what a parent with several concurrent children takes over. Here only what a child added
//! counts: what it inherited the parent has already (decayed alike), and would otherwise count once for each child.
//!
//! Requests that a server executes for a client are short children of the client's job: they begin with [`Usage::fork`]
//! or are charged at once, and are merged with [`Usage::take_over`], on whatever machine they ran.
//!
//! Usage decays by periods of 10 ms, not of a second as in 4.3BSD: requests take microseconds, and a job that has
//! copied a file should not be last for a second. Each eighth task is the one that has been ready longest, of any job, so
//! that no wait is unbounded. While only one job is busy, its tasks run in the order in which they became ready, in time
//! slices of the usual length. While several are, a time slice ends after 16 tasks, 25 µs or 64 KiB to be sent: otherwise
//! arrivals for a job that used little would not be noticed, since most of the time of a small cached read is the host's,
//! which copies the reply within the call that sends it.

use std::time::Duration;

use crate::unit::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inheritance {
    /// A child begins with its parent's estimate.
    pub at_fork: bool,
    /// A parent takes over what its child used.
    pub at_exit: bool,
}

impl Inheritance {
    /// Both, as the paper proposes.
    pub const BOTH: Inheritance = Inheritance { at_fork: true, at_exit: true };
    /// Neither, as in 4.3BSD.
    pub const NONE: Inheritance = Inheritance { at_fork: false, at_exit: false };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decay {
    /// Decay happens once in this time: in 4.3BSD a second, after which about `2 * load / (2 * load + 1)` is left.
    pub period: Duration,
    /// Upper bound of an estimate. In 4.3BSD 255 ticks of 10 ms.
    pub most: Duration,
}

impl Default for Decay {
    fn default() -> Self {
        Decay { period: Duration::from_secs(1), most: Duration::from_millis(2550) }
    }
}

/// After this number of periods nothing is left at any load up to a hundred.
const PERIODS_MAX: u64 = 4096;

/// The recent use of one process, client or job.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    used_ns: f64,
    /// The inherited part of it.
    inherited_ns: f64,
    /// The period of the last decay.
    period: u64,
}

impl Usage {
    pub fn new(decay: Decay, now: Instant) -> Self {
        Usage { used_ns: 0.0, inherited_ns: 0.0, period: period(decay, now) }
    }

    /// Adds processor time. `load`: ready tasks, averaged over the last minute or so.
    pub fn charge(&mut self, decay: Decay, now: Instant, load: f64, time: Duration) {
        self.catch_up(decay, now, load);
        self.used_ns = (self.used_ns + time.as_nanos() as f64).min(decay.most.as_nanos() as f64);
    }

    /// Recent use: less is more urgent.
    pub fn estimate(&mut self, decay: Decay, now: Instant, load: f64) -> Duration {
        self.catch_up(decay, now, load);
        Duration::from_nanos(self.used_ns as u64)
    }

    /// The estimate at the last call, without decay since.
    pub fn last_estimate(&self) -> Duration {
        Duration::from_nanos(self.used_ns as u64)
    }

    /// The estimate with which a child begins.
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

    /// Decays for the periods since the last call; like 4.3BSD for processes that slept, at the current load.
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

/// The factor left after `periods`. By squaring, since multiplication gives the same result on every machine.
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
