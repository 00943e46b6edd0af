//! Allocation status of a volume (NBD `base:allocation`).

use machine::Errno;
use policy::unit::{BlockNo, ByteOffset, ByteRange};

use super::Volume;
use crate::block_set::BlockSet;
use crate::device::DATA_RUNS_MAX;
use crate::processor::Processor;

/// A run of bytes with one status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub range: ByteRange,
    /// Does it take space on the medium?
    pub allocated: bool,
    /// Is it known to read as zeroes?
    pub zero: bool,
}

impl Volume {
    /// The extents of `range` from its start, at most `extents_max`; adjacent ones differ. They may end before the
    /// range does, and the last before its status changes.
    ///
    /// # Errors
    /// [`Errno::INVALID`] for a range outside the volume, otherwise the device's error.
    pub async fn extents(&self, cpu: &Processor, range: ByteRange, extents_max: usize) -> Result<Vec<Extent>, Errno> {
        self.check(range)?;
        if let Some(errno) = self.is_abandoned(range.blocks()).then_some(Errno::IO) {
            return Err(errno);
        }
        // Before the device is asked: a block that is in none of these sets was on the device then.
        let newer = self.newer_blocks(range);
        let mut extents = Extents { found: Vec::new(), max: extents_max.max(1) };
        let mut at = range.at;
        while at < range.end() && !extents.suffice() {
            let found = self.device.find_data(cpu, at.to(range.end()), extents.data_runs_max()).await?;
            for run in found.runs {
                let data = BlockNo::holding(run.at).start().max(at);
                extents.push_hole(at, data, &newer);
                at = BlockNo::not_before(run.end()).start().min(range.end());
                extents.push(data, at, true);
            }
            extents.push_hole(at, found.end, &newer);
            at = at.max(found.end);
        }
        extents.found.truncate(extents_max.max(1));
        Ok(extents.found)
    }

    /// Blocks of `range` that the device does not have yet, or may lose when a flush fails.
    fn newer_blocks(&self, range: ByteRange) -> BlockSet {
        let blocks = range.blocks();
        let mut newer = BlockSet::default();
        let state = self.state.lock();
        for set in [state.dirty.all(), &state.writing].into_iter().chain(state.not_durable()) {
            let mut from = blocks.start;
            while let Some(run) = set.first_run(from.to(blocks.end), u64::MAX) {
                from = run.end;
                newer.insert(run);
            }
        }
        newer
    }
}

struct Extents {
    found: Vec<Extent>,
    max: usize,
}

impl Extents {
    fn is_full(&self) -> bool {
        // One more than requested, so that the last one returned is known to be complete.
        self.found.len() > self.max
    }

    /// As [`is_full`](Self::is_full), or data comes last: whether it goes on is not worth another request to the device.
    fn suffice(&self) -> bool {
        let ends_with_data = self.found.last().is_some_and(|last| last.allocated);
        self.is_full() || (self.found.len() == self.max && ends_with_data)
    }

    /// Runs of data that complete them, at most, each after a hole.
    fn data_runs_max(&self) -> usize {
        (self.max.saturating_sub(self.found.len()) / 2 + 1).min(DATA_RUNS_MAX)
    }

    /// A hole of the device, in which there may be newer blocks in the cache.
    fn push_hole(&mut self, from: ByteOffset, to: ByteOffset, newer: &BlockSet) {
        let mut at = from;
        while at < to && !self.is_full() {
            let Some(run) = newer.first_run(at.to(to).blocks(), u64::MAX) else { break };
            let start = run.start.start().max(at);
            self.push(at, start, false);
            at = run.end.start().min(to);
            self.push(start, at, true);
        }
        if !self.is_full() {
            self.push(at, to, false);
        }
    }

    fn push(&mut self, from: ByteOffset, to: ByteOffset, stored: bool) {
        if from >= to {
            return;
        }
        match self.found.last_mut() {
            Some(last) if last.allocated == stored => last.range.len += to - from,
            _ => self.found.push(Extent { range: from.to(to), allocated: stored, zero: !stored }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_cache_has_in_a_hole_of_the_device_is_data() {
        let mut newer = BlockSet::default();
        newer.insert((2..4).into());
        newer.insert((9..10).into());
        let mut extents = Extents { found: Vec::new(), max: 100 };
        extents.push_hole(ByteOffset(0), BlockNo(10).start(), &newer);
        extents.push(BlockNo(10).start(), BlockNo(11).start(), true);
        let found: Vec<_> = extents.found.iter().map(|e| (e.range.blocks().len(), e.allocated)).collect();
        assert_eq!(found, [(2, false), (2, true), (5, false), (2, true)]);
    }
}
