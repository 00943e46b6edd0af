//! A lease by this node's clock.

use std::time::Duration;

use super::{Address, NodeId};
use crate::unit::Instant;

/// First pause after a question that failed; it doubles up to a quarter of the lease.
const BACKOFF: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    pub me: NodeId,
    /// Shards of the map; identical on all nodes.
    pub shards: u16,
    /// The time to live to be asked for. Whoever takes over waits for it.
    pub lease: Duration,
    /// Most that the rate of any clock, this node's or the arbiter's, differs from the true one. Parts per million.
    pub drift_ppm: u32,
    /// Most that passes between the look at [`until`](super::Membership::until) and the departure of the answer.
    pub answer: Duration,
}

impl Config {
    /// A thousand parts per million: quartz is within 100, and NTP steers by at most 500. An eighth of the lease for an
    /// answer.
    pub const fn new(me: NodeId, shards: u16, lease: Duration) -> Self {
        Config { me, shards, lease, drift_ppm: 1000, answer: Duration::from_nanos(lease.as_nanos() as u64 / 8) }
    }

    /// How long before its end by this node's clock a lease of `ttl` is over here. With rates 1 ± d, this node's clock may
    /// show t while t / (1 - d) passes, and the arbiter ends the lease after ttl / (1 + d): t must stay below
    /// ttl (1 - d) / (1 + d), which is ttl - ttl 2d / (1 + d).
    pub fn margin(&self, ttl: Duration) -> Duration {
        let drift = u128::from(self.drift_ppm);
        let ns = (ttl.as_nanos() * 2 * drift).div_ceil(1_000_000 + drift);
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX)).saturating_add(self.answer)
    }

    /// The pause after this number of failures.
    pub(super) fn backoff(&self, failures: u32) -> Duration {
        (BACKOFF * (1 << failures.min(10))).min(self.lease / 4)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    /// This node may answer before.
    pub until: Instant,
    pub renew_at: Instant,
    /// Leases that the arbiter had forgotten when it granted this one last until then.
    pub alone_until: Instant,
}

impl Lease {
    /// What was asked for at `sent` cannot have begun before.
    pub fn new(config: &Config, sent: Instant, ttl: Duration, alone_until: Instant) -> Self {
        Lease { until: sent + ttl.saturating_sub(config.margin(ttl)), renew_at: sent + ttl / 4, alone_until }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Stage {
    /// No lease.
    Out,
    /// A lease, and no key yet.
    Leased(Lease),
    Member(Lease, Address),
    /// Deregistered at its own wish, or over.
    Left,
}

impl Stage {
    pub fn lease(&self) -> Option<Lease> {
        match *self {
            Stage::Leased(lease) | Stage::Member(lease, _) => Some(lease),
            Stage::Out | Stage::Left => None,
        }
    }

    pub fn address(&self) -> Option<Address> {
        match *self {
            Stage::Member(_, me) => Some(me),
            _ => None,
        }
    }

    pub fn renew(&mut self, config: &Config, sent: Instant, ttl: Duration) {
        if let Stage::Leased(lease) | Stage::Member(lease, _) = self {
            *lease = Lease::new(config, sent, ttl, lease.alone_until);
        }
    }

    pub fn register(&mut self, me: Address) {
        if let Stage::Leased(lease) = *self {
            *self = Stage::Member(lease, me);
        }
    }
}
