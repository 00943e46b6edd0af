//! Allocation status of a volume (NBD `base:allocation`).

use machine::{Errno, SeekTarget};
use policy::unit::{BlockNo, ByteOffset, ByteRange};

use super::Volume;
use crate::block_set::BlockSet;
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
    /// range does.
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
        while at < range.end() && !extents.is_full() {
            let data = match self.device.seek(cpu, at, SeekTarget::Data).await? {
                Some(data) => BlockNo::holding(data).start().max(at).min(range.end()),
                None => range.end(),
            };
            extents.push_hole(at, data, &newer);
            if data < range.end() {
                let hole = self.device.seek(cpu, data, SeekTarget::Hole).await?.unwrap_or(range.end());
                at = BlockNo::not_before(hole).start().max(data + 1).min(range.end());
                extents.push(data, at, true);
            } else {
                at = data;
            }
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
