//! A set of block numbers: a sparse, ordered bitmap in which runs are found quickly.

use std::collections::BTreeMap;

use policy::unit::{BlockNo, BlockRange};

/// Blocks of one leaf: 128 MiB of a volume in blocks of 4 KiB.
const LEAF_BLOCKS: u64 = 64 * LEAF_WORDS as u64;
const LEAF_WORDS: usize = 512;

#[derive(Clone)]
struct Leaf {
    words: Box<[u64; LEAF_WORDS]>,
    count: u32,
}

#[derive(Clone, Default)]
pub(crate) struct BlockSet {
    leaves: BTreeMap<u64, Leaf>,
    len: u64,
}

impl BlockSet {
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of blocks added.
    pub(crate) fn insert(&mut self, blocks: BlockRange) -> u64 {
        let mut added = 0;
        for within in blocks.cut_at_multiples(LEAF_BLOCKS) {
            let leaf = self.leaves.entry(within.start.0 / LEAF_BLOCKS);
            let leaf = leaf.or_insert_with(|| Leaf { words: Box::new([0; LEAF_WORDS]), count: 0 });
            let mut here = 0;
            for (word, mask) in words_of(within) {
                here += (mask & !leaf.words[word]).count_ones();
                leaf.words[word] |= mask;
            }
            leaf.count += here;
            added += u64::from(here);
        }
        self.len += added;
        added
    }

    /// Returns the number of blocks removed.
    pub(crate) fn remove(&mut self, blocks: BlockRange) -> u64 {
        let mut removed = 0;
        let (first, end) = (blocks.start.0 / LEAF_BLOCKS, blocks.end.0.div_ceil(LEAF_BLOCKS));
        let present: Vec<u64> = self.leaves.range(first..end.max(first)).map(|(&no, _)| no).collect();
        for leaf_no in present {
            let Some(leaf) = self.leaves.get_mut(&leaf_no) else { continue };
            let within = blocks.intersection(BlockNo(leaf_no * LEAF_BLOCKS).run(LEAF_BLOCKS));
            let mut here = 0;
            for (word, mask) in words_of(within) {
                here += (mask & leaf.words[word]).count_ones();
                leaf.words[word] &= !mask;
            }
            leaf.count -= here;
            removed += u64::from(here);
            if leaf.count == 0 {
                self.leaves.remove(&leaf_no);
            }
        }
        self.len -= removed;
        removed
    }

    pub(crate) fn contains(&self, block: BlockNo) -> bool {
        let within = block.0 % LEAF_BLOCKS;
        self.leaves
            .get(&(block.0 / LEAF_BLOCKS))
            .is_some_and(|leaf| leaf.words[(within / 64) as usize] >> (within % 64) & 1 == 1)
    }

    pub(crate) fn last(&self) -> Option<BlockNo> {
        let (leaf_no, leaf) = self.leaves.last_key_value()?;
        let (word, bits) = leaf.words.iter().enumerate().rfind(|(_, bits)| **bits != 0)?;
        Some(BlockNo(leaf_no * LEAF_BLOCKS + word as u64 * 64 + 63 - u64::from(bits.leading_zeros())))
    }

    /// The first run of members within `within`, cut to `len_max` blocks.
    pub(crate) fn first_run(&self, within: BlockRange, len_max: u64) -> Option<BlockRange> {
        let start = self.first_member(within)?;
        let mut end = start + 1;
        while end < within.end && end - start < len_max && self.contains(end) {
            end = end + 1;
        }
        Some(start.to(end))
    }

    pub(crate) fn runs(&self) -> impl Iterator<Item = BlockRange> + '_ {
        let mut from = BlockNo(0);
        std::iter::from_fn(move || {
            let run = self.first_run(from.to(BlockNo::MAX), u64::MAX)?;
            from = run.end;
            Some(run)
        })
    }

    fn first_member(&self, within: BlockRange) -> Option<BlockNo> {
        self.first_where(within, |_, _, bits| bits)
    }

    /// The first member within `within` that is not in `other`.
    pub(crate) fn first_not_in(&self, other: &BlockSet, within: BlockRange) -> Option<BlockNo> {
        self.first_where(within, |leaf_no, word, bits| {
            bits & !other.leaves.get(&leaf_no).map_or(0, |leaf| leaf.words[word])
        })
    }

    /// The first member within `within` among the bits that `select` returns for a word.
    fn first_where(&self, within: BlockRange, select: impl Fn(u64, usize, u64) -> u64) -> Option<BlockNo> {
        if within.is_empty() {
            return None;
        }
        for (&leaf_no, leaf) in self.leaves.range(within.start.0 / LEAF_BLOCKS..) {
            let base = BlockNo(leaf_no * LEAF_BLOCKS);
            if base >= within.end {
                return None;
            }
            let from = within.start.max(base) - base;
            for word in (from / 64) as usize..LEAF_WORDS {
                let mut bits = leaf.words[word];
                if word == (from / 64) as usize {
                    bits &= u64::MAX << (from % 64);
                }
                if bits != 0 {
                    bits = select(leaf_no, word, bits);
                }
                if bits != 0 {
                    let block = base + word as u64 * 64 + u64::from(bits.trailing_zeros());
                    return (block < within.end).then_some(block);
                }
            }
        }
        None
    }
}

/// The words of a leaf that a run within it touches, each with a mask of the run's bits.
fn words_of(within: BlockRange) -> impl Iterator<Item = (usize, u64)> {
    let base = within.start.0 / LEAF_BLOCKS * LEAF_BLOCKS;
    let (start, end) = (within.start.0 - base, within.end.0 - base);
    let (first, last) = ((start / 64) as usize, end.div_ceil(64) as usize);
    let (head, tail) = (start % 64, end % 64);
    (first..last).map(move |word| {
        let mut mask = u64::MAX;
        if word == first {
            mask &= u64::MAX << head;
        }
        if word + 1 == last && tail != 0 {
            mask &= u64::MAX >> (64 - tail);
        }
        (word, mask)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::{BlockNo, BlockRange, BlockSet, LEAF_BLOCKS};

    proptest! {
        #[test]
        fn block_set_is_a_set_with_runs(
            steps in prop::collection::vec((0..3 * LEAF_BLOCKS, 1u64..200, any::<bool>()), 1..60)
        ) {
            let mut set = BlockSet::default();
            let mut model = BTreeSet::new();
            for (start, len, insert) in steps {
                // Around the borders of leaves and words.
                let blocks = BlockNo(start / 150 * 150 + LEAF_BLOCKS - 100).run(len);
                if insert {
                    let added = blocks.iter().filter(|&b| model.insert(b)).count() as u64;
                    prop_assert_eq!(set.insert(blocks), added);
                } else {
                    let removed = blocks.iter().filter(|b| model.remove(b)).count() as u64;
                    prop_assert_eq!(set.remove(blocks), removed);
                }
                prop_assert_eq!(set.len(), model.len() as u64);
            }
            let odd_ones = |start| model.iter().copied().find(|&block| block >= start && block.0 / 3 % 2 == 1);
            let mut even_ones = BlockSet::default();
            model.iter().filter(|&block| block.0 / 3 % 2 == 0).for_each(|&block| { even_ones.insert(block.run(1)); });
            for start in model.iter().copied().take(50) {
                prop_assert_eq!(set.first_not_in(&even_ones, start.to(BlockNo::MAX)), odd_ones(start));
            }
            let members: Vec<BlockNo> = set.runs().flat_map(BlockRange::iter).collect();
            prop_assert_eq!(&members, &model.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(set.last(), model.last().copied());
            let runs: Vec<_> = set.runs().collect();
            for pair in runs.windows(2) {
                prop_assert!(pair[0].end < pair[1].start, "runs are maximal");
            }
            if let Some(&first) = members.first() {
                prop_assert_eq!(set.first_run(BlockNo(0).to(first), 10), None);
                prop_assert_eq!(set.first_run(first.run(1), 10), Some(first.run(1)));
            }
        }
    }
}
