//! The bytes that writers sent, of blocks that they did not send as a whole.
//!
//! A process on the host may change a file concurrently, also within a block that a client has partly written, and no
//! check of the host's timestamps can exclude that. So only the bytes that clients sent are written, through the host's
//! page cache, which merges them; the rest of the cached block serves readers only.
//!
//! A block without an entry was sent as a whole: its flags (dirty, writing, unflushed) apply to all of it. Entries
//! change with the block's shard locked. Lock order: a shard, then this lock, which is a leaf.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use policy::unit::{BLOCK_BYTES, BlockNo, BlockRange, ByteOffset, ByteRange};
use smallvec::SmallVec;

use crate::cache::State as BufferState;

const WORDS: usize = BLOCK_BYTES as usize / 64;

/// Some bytes of a block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Part {
    #[default]
    Nothing,
    Some(Box<[u64; WORDS]>),
    Whole,
}

impl Part {
    fn insert(&mut self, bytes: Range<usize>) {
        let bits = match self {
            Part::Whole => return,
            Part::Some(bits) => bits,
            Part::Nothing => {
                *self = Part::Some(Box::new([0; WORDS]));
                return self.insert(bytes);
            }
        };
        change_words(bits, bytes, |word, mask| *word |= mask);
        if bits.iter().all(|&word| word == u64::MAX) {
            *self = Part::Whole;
        }
    }

    fn remove_from(&mut self, from: usize) {
        // A whole block stays whole, wherever the volume ends, until it is written again.
        let Part::Some(bits) = self else { return };
        change_words(bits, from..WORDS * 64, |word, mask| *word &= !mask);
        if bits.iter().all(|&word| word == 0) {
            *self = Part::Nothing;
        }
    }

    fn add(&mut self, other: Part) {
        match (&mut *self, other) {
            (Part::Whole, _) | (_, Part::Nothing) => {}
            (Part::Some(bits), Part::Some(others)) => {
                bits.iter_mut().zip(*others).for_each(|(word, other)| *word |= other);
                if bits.iter().all(|&word| word == u64::MAX) {
                    *self = Part::Whole;
                }
            }
            (own, other) => *own = other,
        }
    }

    /// Its maximal runs as bytes of the volume, for a block that starts at `at`.
    pub(super) fn ranges(&self, at: ByteOffset) -> Vec<ByteRange> {
        let bits = match self {
            Part::Nothing => return Vec::new(),
            Part::Whole => return vec![at.to(at + BLOCK_BYTES)],
            Part::Some(bits) => bits,
        };
        let mut ranges = Vec::with_capacity(1);
        let mut start = next(bits, 0, true);
        while start < BLOCK_BYTES as usize {
            let end = next(bits, start, false);
            ranges.push((at + start as u64).to(at + end as u64));
            start = next(bits, end, true);
        }
        ranges
    }
}

/// The first byte from `from` on that is in the set, or is not; the end of the block if there is none.
fn next(bits: &[u64; WORDS], from: usize, is_in: bool) -> usize {
    let mut at = from;
    while at < WORDS * 64 {
        let word = if is_in { bits[at / 64] } else { !bits[at / 64] } & u64::MAX << (at % 64);
        if word != 0 {
            return at / 64 * 64 + word.trailing_zeros() as usize;
        }
        at = (at / 64 + 1) * 64;
    }
    WORDS * 64
}

fn change_words(bits: &mut [u64; WORDS], bytes: Range<usize>, change: impl Fn(&mut u64, u64)) {
    let mut at = bytes.start;
    while at < bytes.end {
        let (from, to) = (at % 64, (bytes.end - at / 64 * 64).min(64));
        change(&mut bits[at / 64], u64::MAX << from & u64::MAX >> (64 - to));
        at = (at / 64 + 1) * 64;
    }
}

#[derive(Debug, Default)]
struct Entry {
    dirty: Part,
    /// In flight to the device.
    writing: Part,
    /// Written; to be written again if the flush fails.
    unflushed: Part,
}

impl Entry {
    /// For a block that has only its flags.
    fn of(state: BufferState) -> Self {
        let part = |mark| if state.any(mark) { Part::Whole } else { Part::Nothing };
        Entry {
            dirty: part(BufferState::DIRTY),
            writing: part(BufferState::WRITING),
            unflushed: part(BufferState::UNFLUSHED),
        }
    }

    fn is_needed(&self) -> bool {
        [&self.dirty, &self.writing, &self.unflushed].iter().any(|part| matches!(part, Part::Some(_)))
    }
}

/// The blocks that their writers have not sent as a whole.
#[derive(Default)]
pub(super) struct Parts {
    entries: Mutex<BTreeMap<BlockNo, Entry>>,
    /// Length of `entries`, readable without their lock: exact for a block whose shard the caller has locked.
    count: AtomicUsize,
}

impl Parts {
    /// Some bytes of a block in `state` were written.
    pub(super) fn on_part(&self, block: BlockNo, state: BufferState, bytes: Range<usize>) {
        self.change(block, state, |entry| entry.dirty.insert(bytes));
    }

    /// These blocks, whose shard is locked, were written as a whole.
    pub(super) fn on_whole(&self, blocks: BlockRange) {
        self.change_all_known(blocks, |entry| entry.dirty = Part::Whole);
    }

    /// A dirty block is about to be written; returns which part.
    pub(super) fn on_write_out(&self, block: BlockNo) -> Part {
        let mut part = None;
        self.change_known(block, |entry| {
            let dirty = std::mem::take(&mut entry.dirty);
            part = Some(dirty.clone());
            entry.writing.add(dirty);
        });
        part.unwrap_or(Part::Whole)
    }

    /// The write to the device ended; `next` is the new state of its bytes.
    pub(super) fn on_written(&self, block: BlockNo, next: BufferState) {
        self.change_known(block, |entry| {
            let written = std::mem::take(&mut entry.writing);
            if next.any(BufferState::DIRTY) {
                entry.dirty.add(written);
            } else if next.any(BufferState::UNFLUSHED) {
                entry.unflushed.add(written);
            }
        });
    }

    /// The written part was flushed, or never will be.
    pub(super) fn on_flushed(&self, block: BlockNo) {
        self.change_known(block, |entry| entry.unflushed = Part::Nothing);
    }

    /// The written part must be written again.
    pub(super) fn on_failed_flush(&self, block: BlockNo) {
        self.change_known(block, |entry| {
            let again = std::mem::take(&mut entry.unflushed);
            entry.dirty.add(again);
        });
    }

    pub(super) fn on_gone(&self, block: BlockNo) {
        self.change_known(block, |entry| *entry = Entry::default());
    }

    /// The volume now ends at byte `at` of this block.
    pub(super) fn on_end(&self, block: BlockNo, at: usize) {
        self.change_known(block, |entry| {
            [&mut entry.dirty, &mut entry.unflushed].into_iter().for_each(|part| part.remove_from(at));
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// The partly dirty blocks.
    pub(super) fn dirty_blocks(&self) -> Vec<BlockNo> {
        let entries = self.entries.lock();
        entries.iter().filter(|(_, entry)| matches!(entry.dirty, Part::Some(_))).map(|(&block, _)| block).collect()
    }

    fn change(&self, block: BlockNo, state: BufferState, change: impl FnOnce(&mut Entry)) {
        let mut entries = self.entries.lock();
        let entry = entries.entry(block).or_insert_with(|| Entry::of(state));
        change(entry);
        if !entry.is_needed() {
            entries.remove(&block);
        }
        self.count.store(entries.len(), Ordering::Relaxed);
    }

    /// As `change`, but creates no entry.
    fn change_known(&self, block: BlockNo, change: impl FnMut(&mut Entry)) {
        self.change_all_known(block.run(1), change);
    }

    fn change_all_known(&self, blocks: BlockRange, mut change: impl FnMut(&mut Entry)) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut entries = self.entries.lock();
        let mut unneeded: SmallVec<[BlockNo; 4]> = SmallVec::new();
        for (&block, entry) in entries.range_mut(blocks.start..blocks.end) {
            change(entry);
            if !entry.is_needed() {
                unneeded.push(block);
            }
        }
        for block in unneeded {
            entries.remove(&block);
        }
        self.count.store(entries.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BLOCK: BlockNo = BlockNo(7);
    const START: ByteOffset = ByteOffset(0);

    proptest! {
        #[test]
        fn a_part_is_a_set_of_bytes(writes in prop::collection::vec((0..4096_usize, 1..400_usize), 1..30), cut in 0..4096_usize) {
            let (mut part, mut model) = (Part::Nothing, vec![false; 4096]);
            for (at, len) in writes {
                let bytes = at..(at + len).min(4096);
                model[bytes.clone()].fill(true);
                part.insert(bytes);
            }
            part.remove_from(cut);
            model[cut..].fill(false);
            let mut found = vec![false; 4096];
            let ranges = part.ranges(ByteOffset(8192));
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end().0 < pair[1].at.0), "runs are maximal");
            for range in ranges {
                found[range.at.0 as usize - 8192..range.end().0 as usize - 8192].fill(true);
            }
            prop_assert_eq!(found, model);
        }
    }

    #[test]
    fn what_is_written_again_after_a_failed_flush_is_what_was_sent() {
        let parts = Parts::default();
        parts.on_part(BLOCK, BufferState::CLEAN, 10..20);
        assert_eq!(parts.on_write_out(BLOCK).ranges(START), [ByteRange::new(10, 10)]);
        parts.on_part(BLOCK, BufferState::WRITING, 100..101);
        parts.on_written(BLOCK, BufferState::UNFLUSHED);
        parts.on_failed_flush(BLOCK);
        assert_eq!(parts.on_write_out(BLOCK).ranges(START), [ByteRange::new(10, 10), ByteRange::new(100, 1)]);
        parts.on_written(BLOCK, BufferState::CLEAN);
        assert_eq!(parts.on_write_out(BLOCK), Part::Whole, "nothing more is known of it");
    }

    #[test]
    fn a_part_of_a_block_that_was_written_as_a_whole_is_written_alone() {
        let parts = Parts::default();
        parts.on_part(BLOCK, BufferState::UNFLUSHED, 10..20);
        assert_eq!(parts.on_write_out(BLOCK).ranges(START), [ByteRange::new(10, 10)]);
        parts.on_written(BLOCK, BufferState::DIRTY);
        parts.on_failed_flush(BLOCK);
        assert_eq!(parts.on_write_out(BLOCK), Part::Whole);
        parts.on_part(BlockNo(8), BufferState::DIRTY, 10..20);
        assert_eq!(parts.on_write_out(BlockNo(8)), Part::Whole, "all of it is dirty already");
    }
}
