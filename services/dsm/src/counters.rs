//! What a shared volume has done.

use std::sync::atomic::{AtomicU64, Ordering};

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
    /// Pages sent to other nodes by this home.
    pub grants: Counter,
    /// Recalls sent by this home: others want the page.
    pub recalls: Counter,
    /// Pages stored at this home.
    pub stores: Counter,
    pub messages: Counter,
    /// Sends in which they left.
    pub batches: Counter,
}
