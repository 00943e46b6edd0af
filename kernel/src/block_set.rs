//! A set of block numbers: a sparse, ordered bitmap in which runs are found quickly.
//!
//! Its leaves lie in the tree's nodes and have one cache line each: a set of few blocks is made and emptied for each
//! synchronous write.

use std::collections::BTreeMap;

use policy::unflushed::Changes;
use policy::unit::{BlockNo, BlockRange};

/// Blocks of one leaf: 2 MiB of a volume in blocks of 4 KiB.
const LEAF_BLOCKS: u64 = 64 * LEAF_WORDS as u64;
const LEAF_WORDS: usize = 8;

type Leaf = [u64; LEAF_WORDS];

const EMPTY: Leaf = [0; LEAF_WORDS];

#[derive(Clone, Default)]
pub(crate) struct BlockSet {
    /// None is empty.
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
            let leaf = self.leaves.entry(within.start.0 / LEAF_BLOCKS).or_insert(EMPTY);
            for (word, mask) in words_of(within) {
                added += u64::from((mask & !leaf[word]).count_ones());
                leaf[word] |= mask;
            }
        }
        self.len += added;
        added
    }

    /// Returns the number of blocks removed.
    pub(crate) fn remove(&mut self, blocks: BlockRange) -> u64 {
        let (mut removed, mut from) = (0, blocks.start.0 / LEAF_BLOCKS);
        let end = blocks.end.0.div_ceil(LEAF_BLOCKS).max(from);
        while let Some((&leaf_no, leaf)) = self.leaves.range_mut(from..end).next() {
            for (word, mask) in words_of(blocks.intersection(blocks_of(leaf_no))) {
                removed += u64::from((mask & leaf[word]).count_ones());
                leaf[word] &= !mask;
            }
            if *leaf == EMPTY {
                self.leaves.remove(&leaf_no);
            }
            from = leaf_no + 1;
        }
        self.len -= removed;
        removed
    }

    pub(crate) fn contains(&self, block: BlockNo) -> bool {
        let within = block.0 % LEAF_BLOCKS;
        self.leaves
            .get(&(block.0 / LEAF_BLOCKS))
            .is_some_and(|leaf| leaf[(within / 64) as usize] >> (within % 64) & 1 == 1)
    }

    pub(crate) fn last(&self) -> Option<BlockNo> {
        let (&leaf_no, leaf) = self.leaves.last_key_value()?;
        let (word, bits) = leaf.iter().enumerate().rfind(|(_, bits)| **bits != 0)?;
        Some(blocks_of(leaf_no).start + word as u64 * 64 + 63 - u64::from(bits.leading_zeros()))
    }

    /// The first run of members within `within`, cut to `len_max` blocks.
    pub(crate) fn first_run(&self, within: BlockRange, len_max: u64) -> Option<BlockRange> {
        let start = self.first_member(within)?;
        let end = within.end.min(BlockNo(start.0.saturating_add(len_max)));
        Some(start.to(self.run_end(start, end)))
    }

    /// The first block from `from` on that is no member; `end`, if there is none before it.
    fn run_end(&self, from: BlockNo, end: BlockNo) -> BlockNo {
        let mut at = from;
        for (&leaf_no, leaf) in self.leaves.range(from.0 / LEAF_BLOCKS..) {
            if at >= end || leaf_no != at.0 / LEAF_BLOCKS {
                break;
            }
            let here = at.to(end).intersection(blocks_of(leaf_no));
            if let Some((word, absent)) =
                words_of(here).map(|(word, mask)| (word, mask & !leaf[word])).find(|w| w.1 != 0)
            {
                return blocks_of(leaf_no).start + word as u64 * 64 + u64::from(absent.trailing_zeros());
            }
            at = here.end;
        }
        at.min(end)
    }

    pub(crate) fn runs(&self) -> impl Iterator<Item = BlockRange> + '_ {
        self.runs_within(BlockNo(0).to(BlockNo::MAX))
    }

    pub(crate) fn runs_within(&self, blocks: BlockRange) -> impl Iterator<Item = BlockRange> + '_ {
        let mut from = blocks.start;
        std::iter::from_fn(move || {
            let run = self.first_run(from.to(blocks.end), u64::MAX)?;
            from = run.end;
            Some(run)
        })
    }

    fn first_member(&self, within: BlockRange) -> Option<BlockNo> {
        self.first_where(within, |_| EMPTY)
    }

    /// The first member within `within` that is not in `other`.
    pub(crate) fn first_not_in(&self, other: &BlockSet, within: BlockRange) -> Option<BlockNo> {
        self.first_where(within, |leaf_no| other.leaves.get(&leaf_no).copied().unwrap_or(EMPTY))
    }

    /// The first member within `within` without those that `except` returns for a leaf.
    fn first_where(&self, within: BlockRange, except: impl Fn(u64) -> Leaf) -> Option<BlockNo> {
        let (first, end) = (within.start.0 / LEAF_BLOCKS, within.end.0.div_ceil(LEAF_BLOCKS));
        for (&leaf_no, leaf) in self.leaves.range(first..end.max(first)) {
            let except = except(leaf_no);
            let members = |(word, mask): (usize, u64)| (word, mask & leaf[word] & !except[word]);
            let here = within.intersection(blocks_of(leaf_no));
            if let Some((word, bits)) = words_of(here).map(members).find(|(_, bits)| *bits != 0) {
                return Some(blocks_of(leaf_no).start + word as u64 * 64 + u64::from(bits.trailing_zeros()));
            }
        }
        None
    }
}

impl Changes for BlockSet {
    type Part = BlockRange;

    fn remove(&mut self, blocks: BlockRange) {
        BlockSet::remove(self, blocks);
    }

    fn append(&mut self, newer: BlockSet) {
        for run in newer.runs() {
            self.insert(run);
        }
    }
}

/// The blocks of a leaf.
fn blocks_of(leaf_no: u64) -> BlockRange {
    BlockNo(leaf_no * LEAF_BLOCKS).run(LEAF_BLOCKS)
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
