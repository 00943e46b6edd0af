//! From a block to its buffer: open addressing in which sixteen neighbouring blocks share two cache lines.

/// A block of a device, packed: 16 bits of device, 48 bits of block number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key(pub u64);

/// Neighbouring blocks that are kept together.
const GROUP: usize = 16;

/// Buffers a hundred entries, at most. Linear probing stays short below.
const LOAD_PERCENT_MAX: usize = 70;

/// Groups are spread, blocks within a group are not, so a run of blocks is one look into memory.
#[derive(Default)]
pub(super) struct Index {
    /// Slot + 1 in the low half, a tag of the key in the high half; 0 is empty.
    entries: Vec<u64>,
    len: usize,
}

/// Mixes all bits of a key into all bits of a hash (the finaliser of `MurmurHash3`).
pub(super) fn mix(value: u64) -> u64 {
    let mut h = value;
    h = (h ^ (h >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    h = (h ^ (h >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    h ^ (h >> 33)
}

fn tag(key: Key) -> u64 {
    (mix(key.0) & 0xffff_ffff) << 32
}

impl Index {
    /// The slot of `key`; `key_of` tells which key a slot has.
    pub(super) fn find(&self, key: Key, key_of: impl Fn(u32) -> Key) -> Option<u32> {
        self.position(key, key_of).map(|at| slot_of(self.entries[at]))
    }

    /// Adds a key that is not there.
    pub(super) fn insert(&mut self, key: Key, slot: u32, key_of: impl Fn(u32) -> Key) {
        if (self.len + 1) * 100 > self.entries.len() * LOAD_PERCENT_MAX {
            self.grow(key_of);
        }
        self.place(key, slot);
        self.len += 1;
    }

    /// Takes a key out. The entries after it move up, so that no tombstones slow later look-ups.
    pub(super) fn remove(&mut self, key: Key, key_of: impl Fn(u32) -> Key) {
        let Some(mut hole) = self.position(key, &key_of) else { return };
        let mut at = hole;
        loop {
            at = self.next(at);
            let entry = self.entries[at];
            if entry == 0 {
                break;
            }
            let home = self.home(key_of(slot_of(entry)));
            // The entry may move up unless its home lies after the hole.
            if self.distance(home, at) >= self.distance(hole, at) {
                self.entries[hole] = entry;
                hole = at;
            }
        }
        self.entries[hole] = 0;
        self.len -= 1;
    }

    pub(super) fn bookkeeping_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<u64>()
    }

    fn position(&self, key: Key, key_of: impl Fn(u32) -> Key) -> Option<usize> {
        if self.entries.is_empty() {
            return None;
        }
        let tag = tag(key);
        let mut at = self.home(key);
        loop {
            let entry = self.entries[at];
            if entry == 0 {
                return None;
            }
            if entry & !0xffff_ffff == tag && key_of(slot_of(entry)) == key {
                return Some(at);
            }
            at = self.next(at);
        }
    }

    fn place(&mut self, key: Key, slot: u32) {
        let mut at = self.home(key);
        while self.entries[at] != 0 {
            at = self.next(at);
        }
        self.entries[at] = tag(key) | (u64::from(slot) + 1);
    }

    fn grow(&mut self, key_of: impl Fn(u32) -> Key) {
        let groups = (self.entries.len() / GROUP) * 5 / 4 + 2;
        let old = std::mem::replace(&mut self.entries, vec![0; groups * GROUP]);
        for entry in old.into_iter().filter(|&entry| entry != 0) {
            let slot = slot_of(entry);
            self.place(key_of(slot), slot);
        }
    }

    fn home(&self, key: Key) -> usize {
        let groups = (self.entries.len() / GROUP) as u64;
        let hash = mix(key.0 / GROUP as u64) >> 32;
        ((hash * groups) >> 32) as usize * GROUP + (key.0 as usize % GROUP)
    }

    fn next(&self, at: usize) -> usize {
        if at + 1 == self.entries.len() { 0 } else { at + 1 }
    }

    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.entries.len() - from }
    }
}

fn slot_of(entry: u64) -> u32 {
    (entry & 0xffff_ffff) as u32 - 1
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::{Index, Key};

    proptest! {
        #[test]
        fn index_finds_exactly_what_was_inserted_and_not_removed(
            steps in prop::collection::vec((0u64..400, any::<bool>()), 1..2000)
        ) {
            let mut index = Index::default();
            let mut keys: Vec<Key> = Vec::new();
            let mut model = BTreeMap::new();
            for (block, insert) in steps {
                let key = Key(block * 7 / 3);
                if insert && !model.contains_key(&key.0) {
                    keys.push(key);
                    let slot = keys.len() as u32 - 1;
                    index.insert(key, slot, |s| keys[s as usize]);
                    model.insert(key.0, slot);
                } else if !insert && model.remove(&key.0).is_some() {
                    index.remove(key, |s| keys[s as usize]);
                }
                for probe in 0..900 {
                    let found = index.find(Key(probe), |s| keys[s as usize]);
                    prop_assert_eq!(found, model.get(&probe).copied());
                }
            }
        }
    }
}
