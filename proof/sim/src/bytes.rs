//! The bytes of a disk or of a regular file: content and size, and what of both would survive a power cut. The size of a
//! disk never changes.

use crate::change::Change;
use crate::content::Content;
use crate::faults::DiskFaults;
use crate::random::Random;
use policy::unit::{ByteOffset, ByteRange};

/// A change of the size that is not durable.
#[derive(Clone, Copy, Debug)]
struct SizeChange {
    /// The number of the change of the content with which it was made.
    change: u64,
    size: u64,
    /// It truncated the content.
    cut: bool,
}

#[derive(Debug)]
pub(crate) struct Bytes {
    /// All zeroes beyond the size.
    pub(crate) content: Content,
    size: u64,
    durable_size: u64,
    /// Oldest first.
    sizes: Vec<SizeChange>,
}

impl Bytes {
    /// Zeroes, which are durable.
    pub(crate) fn new(sector_bytes: u32, size: u64) -> Self {
        Bytes { content: Content::new(sector_bytes), size, durable_size: size, sizes: Vec::new() }
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn allocated(&self) -> u64 {
        self.content.allocated()
    }

    /// A flush that starts now covers everything up to this.
    pub(crate) fn latest_change(&self) -> u64 {
        self.content.latest_change()
    }

    pub(crate) fn fitting(&self, at: u64, len: u64, room: u64) -> u64 {
        self.content.fitting(at, len, room)
    }

    /// See [`machine::Op::FindData`].
    pub(crate) fn find_data(&self, within: ByteRange, runs_max: usize) -> (Vec<ByteRange>, ByteOffset) {
        self.content.find_data(within, runs_max, ByteOffset(self.size))
    }

    /// Fills `out` with the content from `at` on; the caller respects the size.
    pub(crate) fn read(&self, at: u64, out: &mut [u8]) {
        self.content.read(at, out);
    }

    pub(crate) fn live(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.size as usize];
        self.content.read(0, &mut bytes);
        bytes
    }

    /// The durable content.
    pub(crate) fn durable(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.durable_size as usize];
        self.content.read_durable(0, &mut bytes);
        bytes
    }

    /// Applies a change that extends the file when it reaches beyond the end.
    pub(crate) fn write(&mut self, change: &Change, stable: bool) {
        if change.len == 0 {
            return;
        }
        // ext4: a size that a truncation has set is committed with the write.
        let has_grown = self.sizes.last().is_some_and(|size| !size.cut);
        if !stable || has_grown {
            self.content.apply(change, false);
            self.extend(change.at + change.len);
            let forced = self.retained().saturating_sub(change.at).min(change.len);
            if stable && forced > 0 {
                self.content.apply(&Change { len: forced, ..change.clone() }, true);
            }
            return;
        }
        self.settle_sizes(u64::MAX);
        self.content.apply(change, true);
        self.extend(change.at + change.len);
        self.settle_sizes(u64::MAX);
    }

    /// The fewest bytes that a power cut may leave.
    fn retained(&self) -> u64 {
        self.sizes.iter().map(|size| size.size).fold(self.durable_size, u64::min)
    }

    /// Applies some sectors of a change, as `salt` chooses. Extends the file if it `grows`.
    pub(crate) fn tear(&mut self, change: &Change, salt: u64, grows: bool) {
        let change = if grows { change.clone() } else { self.within(change) };
        if change.len > 0 {
            self.content.apply_torn(&change, salt);
            self.extend(change.at + change.len);
        }
    }

    /// Applies a change as far as it lies before the end.
    pub(crate) fn change_within(&mut self, change: &Change) {
        let change = self.within(change);
        if change.len > 0 {
            self.content.apply(&change, false);
        }
    }

    /// The part of a change that lies before the end.
    pub(crate) fn within(&self, change: &Change) -> Change {
        Change { len: change.len.min(self.size.saturating_sub(change.at)), ..change.clone() }
    }

    fn extend(&mut self, end: u64) {
        if end > self.size {
            self.size = end;
            self.sizes.push(SizeChange { change: self.content.latest_change(), size: end, cut: false });
        }
    }

    pub(crate) fn set_size(&mut self, size: u64) {
        let cut = size < self.size;
        if size == self.size {
            return;
        }
        let change = if cut { self.content.cut(size) } else { self.content.number_change() };
        self.size = size;
        self.sizes.push(SizeChange { change, size, cut });
    }

    /// Makes the sizes up to that of change `last` durable, and what they cut off is gone for good.
    fn settle_sizes(&mut self, last: u64) {
        let count = self.sizes.partition_point(|size| size.change <= last);
        for size in self.sizes.drain(..count) {
            if size.cut {
                self.content.settle(size.change);
            }
            self.durable_size = size.size;
        }
    }

    /// A flush that covers everything up to change number `covers` succeeded.
    pub(crate) fn flush(&mut self, covers: u64) {
        self.settle_sizes(covers);
        self.content.flush(covers);
    }

    /// Such a flush failed, and what it covered may be lost; only what was cut off does not return. Returns whether anything
    /// is lost.
    pub(crate) fn drop_covered(&mut self, covers: u64, random: &mut Random) -> bool {
        let covered = self.sizes.partition_point(|size| size.change <= covers);
        if let Some(last) = self.sizes[..covered].iter().rev().find(|size| size.cut) {
            self.settle_sizes(last.change);
        }
        self.content.drop_covered(covers, random)
    }

    /// The host could not write back this change.
    pub(crate) fn drop_change(&mut self, change: u64, random: &mut Random) {
        self.content.drop_change(change, random);
    }

    /// The power failed: decides what is left.
    pub(crate) fn power_cut(&mut self, faults: &DiskFaults, random: &mut Random) {
        self.settle_sizes(self.content.latest_spilled());
        let all = self.sizes.len() as u64;
        let count = match random.below(4) {
            0 => 0,
            1 => all,
            _ => random.between(0, all),
        };
        if let Some(last) = (count as usize).checked_sub(1) {
            self.settle_sizes(self.sizes[last].change);
        }
        for lost in std::mem::take(&mut self.sizes) {
            if lost.cut {
                self.content.forget(lost.change, lost.size);
            }
        }
        self.content.power_cut(Vec::new(), faults, random);
        self.size = self.durable_size;
        let end = self.content.cut(self.size);
        self.content.settle(end);
    }
}
