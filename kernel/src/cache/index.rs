//! Maps blocks to buffers: a hash table of buckets, each the head of a chain of buffers. It grows by one group of
//! buckets at a time (linear hashing: Litwin, *Linear hashing: a new tool for file and table addressing*, VLDB 1980),
//! so that no insertion takes long. Tables that grew as a whole left holes in the heap, a third of all book-keeping,
//! and moved all of their entries under a shard's lock.
//!
//! Sixteen adjacent blocks share a cache line of buckets. Frames larger than 4 KiB would halve the look-ups of large
//! requests, but waste fifteen sixteenths of the memory on random 4 KiB working sets.

use policy::cache::{Slot, Slots};

use crate::block_key::BlockKey;

/// Adjacent blocks whose buckets are adjacent.
const GROUP: u64 = 16;

/// Keeps chains short: finding a cached block visits 1.25 buffers on average.
const BUCKETS_A_BUFFER: usize = 2;

/// The end of a chain. All slot numbers are smaller.
pub(super) const END: Slot = Slot((1 << 27) - 1);

/// The buffers' chain links.
pub(super) trait Links {
    fn key(&self, slot: Slot) -> BlockKey;
    fn next(&self, slot: Slot) -> Slot;
    fn set_next(&mut self, slot: Slot, next: Slot);
}

/// Groups of blocks are hashed, blocks within a group are not: a run of blocks costs one memory access.
#[derive(Default)]
pub(super) struct Index {
    /// The first slot of each chain, or [`END`].
    buckets: Slots<Slot>,
    len: usize,
}

/// Mixes all bits of a key into all bits of a hash (the finaliser of `MurmurHash3`).
pub(super) fn mix(value: u64) -> u64 {
    let mut h = value;
    h = (h ^ (h >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    h = (h ^ (h >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    h ^ (h >> 33)
}

impl Index {
    pub(super) fn find(&self, key: BlockKey, links: &impl Links) -> Option<Slot> {
        if self.buckets.is_empty() {
            return None;
        }
        let mut slot = self.buckets[self.bucket(key)];
        while slot != END && links.key(slot) != key {
            slot = links.next(slot);
        }
        (slot != END).then_some(slot)
    }

    /// The slot's key must not be in the index.
    pub(super) fn insert(&mut self, slot: Slot, links: &mut impl Links) {
        debug_assert!(slot < END, "{slot:?} is beyond what a link reaches");
        self.len += 1;
        while self.buckets.len() < self.len * BUCKETS_A_BUFFER {
            self.grow(links);
        }
        self.place(slot, links);
    }

    pub(super) fn remove(&mut self, slot: Slot, links: &mut impl Links) {
        let bucket = self.bucket(links.key(slot));
        let next = links.next(slot);
        let mut at = self.buckets[bucket];
        if at == slot {
            self.buckets[bucket] = next;
        } else {
            while links.next(at) != slot {
                at = links.next(at);
                if at == END {
                    debug_assert!(false, "{slot:?} is in no chain");
                    return;
                }
            }
            links.set_next(at, next);
        }
        self.len -= 1;
    }

    pub(super) fn bookkeeping_bytes(&self) -> usize {
        self.buckets.bytes()
    }

    fn place(&mut self, slot: Slot, links: &mut impl Links) {
        let bucket = self.bucket(links.key(slot));
        links.set_next(slot, self.buckets[bucket]);
        self.buckets[bucket] = slot;
    }

    /// Adds a group and moves about half of the blocks of another one to it.
    fn grow(&mut self, links: &mut impl Links) {
        let new = self.groups();
        for _ in 0..GROUP {
            self.buckets.push(END);
        }
        if new == 0 {
            return;
        }
        let old = new & ((new + 1).next_power_of_two() / 2 - 1);
        for bucket in old * GROUP..(old + 1) * GROUP {
            let mut slot = std::mem::replace(&mut self.buckets[bucket as u32], END);
            while slot != END {
                let next = links.next(slot);
                self.place(slot, links);
                slot = next;
            }
        }
    }

    fn groups(&self) -> u64 {
        self.buckets.len() as u64 / GROUP
    }

    fn bucket(&self, key: BlockKey) -> u32 {
        let groups = self.groups();
        let round = groups.next_power_of_two();
        let hash = mix(key.0 / GROUP) & (round - 1);
        // Groups that this round has not created yet are still part of the one that they will be split from.
        let group = if hash < groups { hash } else { hash & (round / 2 - 1) };
        (group * GROUP + key.0 % GROUP) as u32
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use policy::cache::Slot;
    use proptest::prelude::*;

    use super::{BlockKey, Index, Links};

    #[derive(Default)]
    struct Buffers(Vec<(BlockKey, Slot)>);

    impl Links for Buffers {
        fn key(&self, slot: Slot) -> BlockKey {
            self.0[slot.0 as usize].0
        }
        fn next(&self, slot: Slot) -> Slot {
            self.0[slot.0 as usize].1
        }
        fn set_next(&mut self, slot: Slot, next: Slot) {
            self.0[slot.0 as usize].1 = next;
        }
    }

    proptest! {
        #[test]
        fn index_finds_exactly_what_was_inserted_and_not_removed(
            steps in prop::collection::vec((0u64..400, any::<bool>()), 1..2000)
        ) {
            let mut index = Index::default();
            let mut buffers = Buffers::default();
            let mut model = BTreeMap::new();
            for (block, insert) in steps {
                let key = BlockKey(block * 7 / 3);
                if insert && !model.contains_key(&key.0) {
                    let slot = Slot(buffers.0.len() as u32);
                    buffers.0.push((key, Slot(0)));
                    index.insert(slot, &mut buffers);
                    model.insert(key.0, slot);
                } else if !insert && let Some(slot) = model.remove(&key.0) {
                    index.remove(slot, &mut buffers);
                }
                for probe in 0..900 {
                    prop_assert_eq!(index.find(BlockKey(probe), &buffers), model.get(&probe).copied());
                }
            }
        }
    }

    #[test]
    fn chains_stay_short_however_many_buffers_there_are() {
        let mut index = Index::default();
        let mut buffers = Buffers::default();
        for count in [1000, 10_000, 100_000] {
            while buffers.0.len() < count {
                // Runs of blocks with gaps, as from files.
                let no = buffers.0.len() as u64;
                buffers.0.push((BlockKey(no / 40 * 1000 + no % 40), Slot(0)));
                index.insert(Slot(no as u32), &mut buffers);
            }
            let length = |key| {
                let mut slot = index.buckets[index.bucket(key)];
                std::iter::from_fn(|| {
                    let here = (slot != super::END).then_some(slot)?;
                    slot = buffers.next(here);
                    Some(here)
                })
                .count()
            };
            let lengths: Vec<usize> = buffers.0.iter().map(|(key, _)| length(*key)).collect();
            let mean = lengths.iter().sum::<usize>() as f64 / count as f64;
            let longest = lengths.iter().max().copied().unwrap_or(0);
            assert!(mean < 2.0 && longest < 16, "{count} buffers: {mean} on average, {longest} at most");
        }
    }
}
