//! What a shared volume has done at this node.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::Shared;

#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, number: u64) {
        self.0.fetch_add(number, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub struct Counters {
    /// Pages fetched into this node's cache.
    pub fetches: Counter,
    /// Those of them that came in runs and were taken in one step for a run.
    pub fetches_in_runs: Counter,
    /// Pages that this node gave up because others wanted them.
    pub invalidations: Counter,
    /// Pages sent to other nodes by this home.
    pub grants: Counter,
    /// Pages sent by this node, which had them, straight to the nodes that wanted them.
    pub forwards: Counter,
    /// Recalls sent by this home.
    pub recalls: Counter,
    /// Pages stored at this home.
    pub stores: Counter,
    /// Faults of programs that have mapped the volume.
    pub faults: Counter,
    pub messages: Counter,
    /// In which they leave, at least one message in each.
    pub headers: Counter,
    /// Sends in which they left.
    pub batches: Counter,
    /// From the first request of this node for a page, or fault of its programs, to its grant with the page.
    pub fetch: Waits,
    /// At this home: from a request's arrival to its grant, without grants that another node makes.
    pub home: Waits,
    /// At this home: from a recall to the holder's answer.
    pub holder: Waits,
}

/// How often was waited, and for how long in all.
#[derive(Debug, Default)]
pub struct Waits {
    pub count: Counter,
    pub ns: Counter,
}

impl Waits {
    /// So many have waited for this long.
    pub(crate) fn add_all(&self, count: u64, waited: Duration) {
        self.count.add(count);
        self.ns.add(count * waited.as_nanos() as u64);
    }

    /// `None`: nobody has waited.
    pub(crate) fn add(&self, waited: Option<Duration>) {
        if let Some(waited) = waited {
            self.count.add(1);
            self.ns.add(waited.as_nanos() as u64);
        }
    }
}

/// The state of a shared volume at this node now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Pages that this node may read, as others may.
    pub shared: usize,
    /// Pages that it alone may write.
    pub exclusive: usize,
    /// Pages given up, or forwarded to this node, and not stored yet.
    pub saving: usize,
    /// Pages that requests of this node wait for.
    pub awaited: usize,
    /// Programs that have mapped the volume.
    pub mappings: usize,
    /// Pages that they may read, counted for each; and that one may write.
    pub mapped_read: usize,
    pub mapped_written: usize,
    /// Peers that are connected.
    pub peers: usize,
}

impl Shared {
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How often pages of this home bounced between two nodes, by their names.
    pub fn bounces(&self) -> Vec<([String; 2], u64)> {
        let bounces: Vec<_> = self.core.lock().watch.bounces().collect();
        bounces.into_iter().map(|((one, other), count)| ([one, other].map(|node| self.name_of(node)), count)).collect()
    }

    pub fn gauges(&self) -> Gauges {
        let core = self.core.lock();
        let [shared, exclusive] = core.node.held();
        let expected = &core.mapped.expected;
        let awaits = |(no, page): &(policy::coherence::PageNo, &crate::waiting::Page)| {
            let is_wanted = !page.loads.is_empty() || !page.changes.is_empty() || !page.faults.is_empty();
            is_wanted && !expected.has(*no)
        };
        let awaited = core.pages.iter().filter(awaits).count() + expected.count();
        let [mapped_read, mapped_written] = core.mapped.counts();
        Gauges {
            shared,
            exclusive,
            saving: core.saving.len() + core.forwarded.len(),
            awaited,
            mappings: core.mapped.len(),
            mapped_read,
            mapped_written,
            peers: self.connected(),
        }
    }
}
