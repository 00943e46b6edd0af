//! How long an idle processor polls for work before it sleeps.
//!
//! Sleeping and waking takes longer than most requests, and the waking processor pays a part of it. Polling takes time
//! of the core from others. So a processor polls for about as long as work has lately taken to arrive, and not at all
//! after a longer idle period (as KVM does for halted guests: "The KVM halt polling system", Linux documentation).
//!
//! What clients take until they ask again, and what disks take for what they asked, are two distributions; each is learnt by
//! itself. Learnt as one, the shorter waits of a lone client kept the cores of others awake for as long as the longer ones
//! (`policy/awake`): cached 4 KiB reads over NBD, one in flight, were 45,000 a second in place of 58,000.
//!
//! A processor polls before it sleeps: up to `idle_poll`, less where arrivals are rare. At each look it yields to whoever
//! else is on its core: workers (the host kernel's that complete stable writes, and our own threads) and clients, whose
//! next requests then arrive as one batch. A thread that computes uses the whole time slice that it is given; after that
//! the processor sleeps. On a virtual machine, to sleep and to be woken costs some fifty microseconds: one cached
//! 4 KiB read in flight became three times as fast (13,300 and 43,800 a second); one that is not cached gains nothing. Idle-priority threads that keep the cores awake were tried instead: a quarter of
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
    for_clients: Duration,
    for_requests: Duration,
}

impl IdlePolling {
    pub const fn new(config: Config) -> Self {
        IdlePolling { config, for_clients: Duration::ZERO, for_requests: Duration::ZERO }
    }

    /// How long to poll now, while requests are in progress or none is.
    pub const fn duration(&self, in_progress: bool) -> Duration {
        if in_progress { self.for_requests } else { self.for_clients }
    }

    /// Work arrived `waited` after the processor became idle, while it polled or after it slept. `in_progress`: whether
    /// requests were, meanwhile.
    pub fn on_work(&mut self, in_progress: bool, waited: Duration) {
        let longest = self.config.longest;
        let duration = if in_progress { &mut self.for_requests } else { &mut self.for_clients };
        if waited > longest {
            // Work that arrives this rarely is not worth polling for.
            *duration = if *duration > SHORTEST { *duration / 2 } else { Duration::ZERO };
        } else if waited > *duration {
            *duration = (2 * *duration).clamp(SHORTEST.min(longest), longest);
        }
    }

    /// Another thread used its time slice on the core, to which polling had yielded.
    pub fn on_preempted(&mut self) {
        (self.for_clients, self.for_requests) = (Duration::ZERO, Duration::ZERO);
    }
}
