//! Cleared ranges: zeroed or discarded and not flushed since. A failed flush may bring the old content back, so they
//! are cleared again before the next flush; until one succeeds, zeroes are read from this record, never from the
//! device.

use std::collections::BTreeMap;

use policy::unflushed::{Changes, Unflushed};
use policy::unit::{BlockNo, BlockRange};

/// With this many ranges, the device is flushed before another one is cleared.
const RANGES_MAX: usize = 4096;

/// What was done to a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Clearing {
    Zero {
        /// May its space be freed?
        may_release: bool,
    },
    Discard,
}

/// Ranges of blocks by their starts; they do not overlap.
#[derive(Default)]
struct Ranges(BTreeMap<BlockNo, (BlockNo, Clearing)>);

impl Changes for Ranges {
    type Part = BlockRange;

    fn remove(&mut self, blocks: BlockRange) {
        if blocks.is_empty() || self.0.is_empty() {
            return;
        }
        if let Some((_, (end, clearing))) = self.0.range_mut(..blocks.start).next_back()
            && *end > blocks.start
        {
            let (rest, clearing) = (blocks.end.to(*end), *clearing);
            *end = blocks.start;
            if !rest.is_empty() {
                self.0.insert(rest.start, (rest.end, clearing));
            }
        }
        while let Some((&start, &(end, clearing))) = self.0.range(blocks.start..blocks.end).next() {
            self.0.remove(&start);
            if end > blocks.end {
                self.0.insert(blocks.end, (end, clearing));
            }
        }
    }

    fn append(&mut self, newer: Ranges) {
        for (start, (end, clearing)) in newer.0 {
            self.insert(start.to(end), clearing);
        }
    }
}

impl Ranges {
    /// The ranges that overlap `blocks`, cut to it, in order.
    fn within(&self, blocks: BlockRange) -> impl Iterator<Item = (BlockRange, Clearing)> {
        let before = self.0.range(..blocks.start).next_back().filter(|(_, (end, _))| *end > blocks.start);
        before
            .into_iter()
            .chain(self.0.range(blocks.start..blocks.end))
            .map(move |(&start, &(end, clearing))| (start.to(end).intersection(blocks), clearing))
    }

    fn insert(&mut self, mut blocks: BlockRange, clearing: Clearing) {
        if blocks.is_empty() {
            return;
        }
        self.remove(blocks);
        // Adjacent ranges are merged: a disk that is zeroed from start to end is one range.
        if let Some((&start, &(end, same))) = self.0.range(..blocks.start).next_back()
            && (end, same) == (blocks.start, clearing)
        {
            blocks.start = start;
        }
        if let Some(&(end, same)) = self.0.get(&blocks.end)
            && same == clearing
        {
            self.0.remove(&blocks.end);
            blocks.end = end;
        }
        self.0.insert(blocks.start, (blocks.end, clearing));
    }
}

/// Ranges that may not be durable.
#[derive(Default)]
pub(super) struct Cleared {
    unflushed: Unflushed<Ranges>,
    /// A flush failed since: to be cleared again.
    again: Ranges,
}

impl Cleared {
    /// A range was cleared. `is_suspect`: a flush failed meanwhile.
    pub(super) fn insert(&mut self, blocks: BlockRange, clearing: Clearing, is_suspect: bool) {
        self.remove(blocks);
        if is_suspect { &mut self.again } else { self.unflushed.since_mut() }.insert(blocks, clearing);
    }

    /// The device has newer content, or the blocks were dropped.
    pub(super) fn remove(&mut self, blocks: BlockRange) {
        self.unflushed.remove(blocks);
        self.again.remove(blocks);
    }

    pub(super) fn begin_flush(&mut self) {
        self.unflushed.begin();
    }

    pub(super) fn on_flushed(&mut self) {
        self.unflushed.succeeded();
    }

    pub(super) fn on_failed_flush(&mut self) {
        self.again.append(self.unflushed.take());
    }

    /// The first range to be cleared again.
    pub(super) fn first_again(&self) -> Option<BlockRange> {
        self.again.0.first_key_value().map(|(&start, &(end, _))| start.to(end))
    }

    /// The parts of `blocks` to be cleared again.
    pub(super) fn again_within(&self, blocks: BlockRange) -> Vec<(BlockRange, Clearing)> {
        self.again.within(blocks).collect()
    }

    /// The parts of `blocks` that read as zeroes, whatever the device returns.
    pub(super) fn zeroes_within(&self, blocks: BlockRange) -> Vec<BlockRange> {
        let all = self.unflushed.both().into_iter().chain([&self.again]);
        all.flat_map(|ranges| ranges.within(blocks))
            .filter_map(|(blocks, clearing)| (clearing != Clearing::Discard).then_some(blocks))
            .collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Should the ranges be flushed before more are cleared?
    pub(super) fn is_full(&self) -> bool {
        self.len() >= RANGES_MAX
    }

    fn len(&self) -> usize {
        self.unflushed.both().iter().map(|ranges| ranges.0.len()).sum::<usize>() + self.again.0.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn blocks(numbers: std::ops::Range<u64>) -> BlockRange {
        numbers.into()
    }

    const ZERO: Clearing = Clearing::Zero { may_release: true };

    #[test]
    fn what_was_cleared_before_a_flush_failed_is_done_again_unless_written_since() {
        let mut cleared = Cleared::default();
        cleared.insert(blocks(10..20), ZERO, false);
        cleared.begin_flush();
        cleared.insert(blocks(20..30), Clearing::Discard, false);
        cleared.on_failed_flush();
        cleared.remove(blocks(14..16));
        assert_eq!(cleared.first_again(), Some(blocks(10..14)));
        let again = cleared.again_within(blocks(0..100));
        assert_eq!(again, [(blocks(10..14), ZERO), (blocks(16..20), ZERO), (blocks(20..30), Clearing::Discard)]);
        assert_eq!(cleared.zeroes_within(blocks(12..25)), [blocks(12..14), blocks(16..20)]);
        again.into_iter().for_each(|(blocks, clearing)| cleared.insert(blocks, clearing, false));
        cleared.begin_flush();
        assert_eq!(cleared.first_again(), None);
        cleared.on_flushed();
        assert!(cleared.is_empty());
    }

    proptest! {
        #[test]
        fn ranges_are_a_map_of_blocks(
            steps in prop::collection::vec((0_u64..60, 1_u64..20, 0_usize..3), 1..40), from in 0_u64..70, len in 0_u64..30
        ) {
            let (mut ranges, mut model) = (Ranges::default(), [None; 100]);
            for (start, len, what) in steps {
                let blocks = BlockNo(start).run(len);
                let clearing = [None, Some(ZERO), Some(Clearing::Discard)][what];
                model[start as usize..(start + len) as usize].fill(clearing);
                match clearing {
                    Some(clearing) => ranges.insert(blocks, clearing),
                    None => ranges.remove(blocks),
                }
            }
            let mut found = [None; 100];
            for (blocks, clearing) in ranges.within(BlockNo(from).run(len)) {
                found[blocks.start.0 as usize..blocks.end.0 as usize].fill(Some(clearing));
            }
            model[..from as usize].fill(None);
            model[(from + len) as usize..].fill(None);
            prop_assert_eq!(found, model);
        }
    }
}
