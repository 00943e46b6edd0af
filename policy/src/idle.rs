//! How long an idle processor polls for work before it sleeps.
//!
//! Sleeping and waking takes longer than most requests, and the waking processor pays a part of it. Polling takes time
//! of the core from others. So a processor polls for about as long as work has lately taken to arrive, and not at all
//! after a longer idle period (as KVM does for halted guests: "The KVM halt polling system", Linux documentation).
//!
//! A processor polls before it sleeps: up to `idle_poll`, less where arrivals are rare. At each look it yields to whoever
//! else is on its core: workers (the host kernel's that complete stable writes, and our own threads) and clients, whose
//! next requests then arrive as one batch. A thread that computes uses the whole time slice that it is given; after that
//! the processor sleeps. On a virtual machine, to sleep and to be woken costs some fifty microseconds: one 4 KiB read in
//! flight became more than twice as fast. Idle-priority threads that keep the cores awake were tried instead: a quarter of
//! that gain. Yielding to workers alone was a seventh slower for 4 KiB cached reads on 4 connections of a client on the same
//! two cores (155,000 and 177,000 a second), and less than half as fast for one in flight beside two busy loops.

use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Zero disables polling.
    pub longest: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Config { longest: Duration::from_micros(500) }
    }
}

/// The first step up from zero.
const SHORTEST: Duration = Duration::from_micros(10);

/// Idle polling of one processor.
#[derive(Clone, Copy, Debug)]
pub struct IdlePolling {
    config: Config,
    duration: Duration,
}

impl IdlePolling {
    pub const fn new(config: Config) -> Self {
        IdlePolling { config, duration: Duration::ZERO }
    }

    /// How long to poll now.
    pub const fn duration(&self) -> Duration {
        self.duration
    }

    /// Work arrived `waited` after the processor became idle, while it polled or after it slept.
    pub fn on_work(&mut self, waited: Duration) {
        if waited > self.config.longest {
            // Work that arrives this rarely is not worth polling for.
            self.duration = if self.duration > SHORTEST { self.duration / 2 } else { Duration::ZERO };
        } else if waited > self.duration {
            self.duration = (2 * self.duration).clamp(SHORTEST.min(self.config.longest), self.config.longest);
        }
    }

    /// Another thread used its time slice on the core, to which polling had yielded.
    pub fn on_preempted(&mut self) {
        self.duration = Duration::ZERO;
    }
}
