//! For how long a processor that ran dry looks out for work before it sleeps.
//!
//! To sleep and to be woken takes longer than most requests, and the one who wakes pays a part of it. Looking out costs
//! time of the processor that nobody else gets. So it is done for about as long as work has lately been awaited, and
//! not at all after a longer silence (as KVM does for halted guests: "The KVM halt polling system", Linux
//! documentation).

use std::time::Duration;

/// How long processors look out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The longest; zero: never.
    pub longest: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Config { longest: Duration::from_micros(500) }
    }
}

/// The first step up from nothing.
const SHORTEST: Duration = Duration::from_micros(10);

/// The look-out of one processor.
#[derive(Clone, Copy, Debug)]
pub struct LookOut {
    config: Config,
    span: Duration,
}

impl LookOut {
    /// It does not look out until work has come soon.
    pub const fn new(config: Config) -> Self {
        LookOut { config, span: Duration::ZERO }
    }

    /// For how long to look out now.
    pub const fn span(&self) -> Duration {
        self.span
    }

    /// Work came `waited` after the processor ran dry, seen in time or after it had slept.
    pub fn on_work(&mut self, waited: Duration) {
        if waited > self.config.longest {
            // What comes this seldom is not worth it.
            self.span = if self.span > SHORTEST { self.span / 2 } else { Duration::ZERO };
        } else if waited > self.span {
            self.span = (2 * self.span).clamp(SHORTEST.min(self.config.longest), self.config.longest);
        }
    }

    /// Somebody else ran on the core meanwhile: it is not ours to keep warm.
    pub fn on_preempted(&mut self) {
        self.span = Duration::ZERO;
    }
}
