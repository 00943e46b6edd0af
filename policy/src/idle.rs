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
//! - **A lone request** (no other was waited for in the last 10 ms, by any processor) loses by a sleep what a sleep costs, and
//!   is polled for as long (Karlin, Li, Manasse, Owicki, "Empirical studies of competitive spinning for a shared-memory
//!   multiprocessor", SOSP 1991: who polls so long never spends more than twice the least). On a virtual machine to sleep and
//!   to be woken costs some fifty microseconds.
//! - **After a lone request that took longer**, the next two are not polled for: the client's time is the smaller part, and while
//!   the processor sleeps, the host lets the client run on the same core, which costs no wake-up.
//! - **A lone request's call** that another thread makes for it, and the host answers from memory as a rule, is polled for as long,
//!   however long disks have taken: it would be shorter than the sleep.
//! - **All else** is polled for up to `longest`: what is awaited serves several, and each of them would be woken late.
//!
//! A lone client's 8 KiB stable writes over NFS are so 5,300 to 6,100 a second with 51 to 67 µs of processor time each; with
//! everything polled for 6,100 to 7,300 with 220 to 250, and transfers of a database are as many. Two and four clients that
//! commit had half and two thirds of the rate without polling, with three quarters of the processor time.
//!
//! At each look it yields to whoever else is on its core: workers (the host kernel's that complete stable writes, and our own
//! threads) and clients, whose next requests then arrive as one batch. A thread that computes uses the whole time slice that
//! it is given; after that the processor sleeps. One cached 4 KiB read in flight became three times as fast by polling
//! (13,300 and 43,800 a second).
//! Idle-priority threads that keep the cores awake were tried instead: a quarter of that gain. Yielding to workers alone was a
//! seventh slower for 4 KiB cached reads on 4 connections of a client on the same two cores (155,000 and 177,000 a second), and
//! less than half as fast for one in flight beside two busy loops.

use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Zero disables polling.
    pub longest: Duration,
    /// For a lone request.
    pub longest_lone: Duration,
}

impl Config {
    /// A tenth of `longest` for a lone request: fifty microseconds by default, what a sleep costs on a virtual machine.
    pub fn new(longest: Duration) -> Self {
        Config { longest, longest_lone: longest / 10 }
    }
}

impl Default for Config {
    fn default() -> Self {
        Config::new(Duration::from_micros(500))
    }
}

/// The first step up from zero.
const SHORTEST: Duration = Duration::from_micros(10);

/// A write is followed by a flush, mostly, or a flush by a write.
const UNPOLLED: u8 = 2;

/// What an idle processor waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// The next request of its clients.
    Client,
    /// The end of the only request that is in progress.
    LoneRequest,
    /// The same, while another thread makes a call for it that the host answers from memory, mostly.
    LoneCall,
    /// The ends of requests.
    Requests,
}

/// Idle polling of one processor.
#[derive(Clone, Copy, Debug)]
pub struct IdlePolling {
    config: Config,
    for_clients: Duration,
    for_requests: Duration,
    /// For lone calls.
    for_calls: Duration,
    /// So many of the next waits for a client are not polled, since a lone request took long.
    unpolled: u8,
}

impl IdlePolling {
    pub const fn new(config: Config) -> Self {
        let none = Duration::ZERO;
        IdlePolling { config, for_clients: none, for_requests: none, for_calls: none, unpolled: 0 }
    }

    /// How long to poll now.
    pub fn duration(&self, awaited: Awaited) -> Duration {
        match awaited {
            Awaited::Client if self.unpolled > 0 => Duration::ZERO,
            Awaited::Client => self.for_clients,
            Awaited::LoneRequest => self.for_requests.min(self.config.longest_lone),
            Awaited::LoneCall => self.for_calls,
            Awaited::Requests => self.for_requests,
        }
    }

    /// Work arrived `waited` after the processor became idle, while it polled or after it slept. Returns whether that was
    /// worth polling for.
    pub fn on_work(&mut self, awaited: Awaited, waited: Duration) -> bool {
        let (duration, longest) = match awaited {
            Awaited::Client => (&mut self.for_clients, self.config.longest),
            Awaited::LoneRequest => (&mut self.for_requests, self.config.longest_lone),
            Awaited::LoneCall => (&mut self.for_calls, self.config.longest_lone),
            Awaited::Requests => (&mut self.for_requests, self.config.longest),
        };
        let is_long = waited > longest;
        if is_long {
            // Work that arrives this rarely is not worth polling for.
            *duration = if *duration > SHORTEST { *duration / 2 } else { Duration::ZERO };
        } else if waited > *duration {
            *duration = (2 * *duration).clamp(SHORTEST.min(longest), longest);
        }
        match awaited {
            Awaited::Client => self.unpolled = self.unpolled.saturating_sub(1),
            Awaited::LoneRequest if is_long => self.unpolled = UNPOLLED,
            Awaited::LoneRequest | Awaited::LoneCall => {}
            Awaited::Requests => self.unpolled = 0,
        }
        !is_long
    }

    /// Another thread used its time slice on the core, to which polling had yielded.
    pub fn on_preempted(&mut self) {
        *self = IdlePolling { unpolled: self.unpolled, ..IdlePolling::new(self.config) };
    }
}
