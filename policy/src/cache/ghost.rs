//! Blocks lately evicted from the small queue: fingerprints only, at most 8 bytes for each slot of the cache.

use super::lists::HASH_BITS;
use super::slots::Slots;

/// Entries in a bucket: 64 bytes.
const WAYS: usize = 8;
const STAMP_MASK: u64 = u64::MAX >> HASH_BITS;

/// A table of buckets. An entry holds a fingerprint (28 bits) and its insertion number (36 bits); 0 is an empty entry.
/// A full bucket replaces its oldest entry, so the table forgets a little early instead of growing.
pub(super) struct Ghost {
    buckets: Slots<[u64; WAYS], 16>,
    /// Entries older than this, in insertions, are ignored.
    window: u64,
    stamp: u64,
}

impl Ghost {
    pub(super) const fn new() -> Self {
        Ghost { buckets: Slots::new(), window: 0, stamp: 1 }
    }

    /// Fits the table to a cache of `capacity` slots. When the number of buckets changes, most entries are no longer
    /// found and age out: rehashing would cost as much as there are buffers, and a cache that grows evicts little.
    pub(super) fn fit(&mut self, capacity: usize) {
        self.window = (capacity - capacity / 10) as u64;
        let held = self.buckets.len() * WAYS;
        let wanted = (capacity - capacity / 8) / WAYS;
        if held > capacity {
            self.buckets.truncate(wanted);
        } else if held + held / 8 < wanted * WAYS {
            while self.buckets.len() < wanted {
                self.buckets.push([0; WAYS]);
            }
        }
    }

    pub(super) fn remember(&mut self, hash: u32) {
        let stamp = self.stamp;
        self.stamp = ((self.stamp + 1) & STAMP_MASK).max(1);
        let Some(bucket) = self.bucket(hash) else {
            return;
        };
        let age = |entry: u64| {
            if entry == 0 { u64::MAX } else { stamp.wrapping_sub(entry >> HASH_BITS) & STAMP_MASK }
        };
        let place = match bucket.iter().position(|e| names(*e, hash)) {
            Some(place) => place,
            None => (0..WAYS).max_by_key(|i| age(bucket[*i])).unwrap_or(0),
        };
        bucket[place] = stamp << HASH_BITS | u64::from(hash);
    }

    /// Whether it was evicted lately. Removes the entry: its block is cached again.
    pub(super) fn recall(&mut self, hash: u32) -> bool {
        let (stamp, window) = (self.stamp, self.window);
        let Some(bucket) = self.bucket(hash) else {
            return false;
        };
        let Some(entry) = bucket.iter_mut().find(|e| names(**e, hash)) else {
            return false;
        };
        let age = stamp.wrapping_sub(*entry >> HASH_BITS) & STAMP_MASK;
        *entry = 0;
        age <= window
    }

    pub(super) fn bytes(&self) -> usize {
        self.buckets.bytes()
    }

    fn bucket(&mut self, hash: u32) -> Option<&mut [u64; WAYS]> {
        let buckets = self.buckets.len() as u64;
        self.buckets.get_mut(((u64::from(hash) * buckets) >> HASH_BITS) as u32)
    }
}

fn names(entry: u64, hash: u32) -> bool {
    entry != 0 && entry & ((1 << HASH_BITS) - 1) == u64::from(hash)
}
