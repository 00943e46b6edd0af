//! Holes of a sparse image. The first write into a hole makes the host allocate, and ext4 and XFS do that with a journal
//! entry for each write, however small. So the blocks around it are written as zeroes with it, in clusters of 64 KiB, the
//! allocation unit of QCOW2: random writes of 4 KiB into a new image then pay for a sixteenth of the allocations.

use std::ops::Range;

use machine::SeekTarget;
use policy::unit::{BLOCK_BYTES, ByteOffset};

use super::Volume;
use super::block_set::BlockSet;
use crate::processor::Processor;

/// Blocks of a cluster.
const CLUSTER_BLOCKS: u64 = (64 << 10) / BLOCK_BYTES;

/// Holes are recorded up to here: 2 MiB of memory for each TiB.
const RECORDED_BYTES_MAX: u64 = 4 << 40;

/// An image of more extents is no new one; its other holes are not looked for.
const EXTENTS_MAX: usize = 4096;

/// The clusters that have never been written: on the device they are zeroes.
#[derive(Default)]
pub(super) struct Holes {
    clusters: BlockSet,
    /// What was written while the device was being asked for its holes.
    written: Option<BlockSet>,
}

impl Holes {
    /// The device will be asked for them.
    pub(super) fn awaited() -> Self {
        Holes { written: Some(BlockSet::default()), ..Holes::default() }
    }

    fn found(&mut self, mut clusters: BlockSet) {
        for run in self.written.take().unwrap_or_default().runs() {
            clusters.remove(run);
        }
        self.clusters = clusters;
    }

    /// `blocks` are written next. Returns them with the rest of the clusters around them that were holes until now.
    pub(super) fn fill(&mut self, blocks: &Range<u64>) -> Range<u64> {
        let touched = blocks.start / CLUSTER_BLOCKS..blocks.end.div_ceil(CLUSTER_BLOCKS);
        if let Some(written) = &mut self.written {
            written.insert(touched.clone());
        }
        if self.clusters.is_empty() {
            return blocks.clone();
        }
        let (first, last) = (touched.start, touched.end - 1);
        let start = if self.clusters.contains(first) { first * CLUSTER_BLOCKS } else { blocks.start };
        let end = if self.clusters.contains(last) { touched.end * CLUSTER_BLOCKS } else { blocks.end };
        self.clusters.remove(touched);
        start..end
    }

    /// There is no space for more than what clients write.
    pub(super) fn forget(&mut self) {
        *self = Holes::default();
    }
}

impl Volume {
    /// Asks the device for its holes, if they are awaited.
    pub(super) async fn find_holes(&self, cpu: &Processor) {
        if self.state.lock().holes.written.is_none() {
            return;
        }
        let end = ByteOffset(self.size().min(RECORDED_BYTES_MAX));
        let (mut clusters, mut at) = (BlockSet::default(), ByteOffset(0));
        for _ in 0..EXTENTS_MAX {
            if at >= end || self.is_closing() {
                break;
            }
            let Ok(data) = self.device.seek(cpu, at, SeekTarget::Data).await else { break };
            let data = data.map_or(end, |data| data.min(end));
            let cluster_bytes = CLUSTER_BLOCKS * BLOCK_BYTES;
            clusters.insert(at.0.div_ceil(cluster_bytes)..data.0 / cluster_bytes);
            if data >= end {
                break;
            }
            let Ok(Some(hole)) = self.device.seek(cpu, data, SeekTarget::Hole).await else { break };
            at = hole;
        }
        self.state.lock().holes.found(clusters);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holes(clusters: Range<u64>) -> Holes {
        let mut found = BlockSet::default();
        found.insert(clusters);
        let mut holes = Holes::awaited();
        holes.found(found);
        holes
    }

    #[test]
    fn a_piece_is_filled_by_its_first_write_only() {
        let mut holes = holes(0..4);
        assert_eq!(holes.fill(&(17..18)), 16..32);
        assert_eq!(holes.fill(&(18..19)), 18..19);
    }

    #[test]
    fn a_long_write_is_filled_up_at_both_ends() {
        let mut holes = holes(0..4);
        assert_eq!(holes.fill(&(10..40)), 0..48);
        assert_eq!(holes.fill(&(40..50)), 40..64, "the third cluster is written, the fourth is not");
    }

    #[test]
    fn beyond_the_holes_nothing_is_filled() {
        assert_eq!(holes(0..4).fill(&(64..65)), 64..65);
        assert_eq!(Holes::default().fill(&(1..2)), 1..2);
    }

    #[test]
    fn what_is_written_while_the_device_is_asked_is_no_hole() {
        let mut holes = Holes::awaited();
        assert_eq!(holes.fill(&(5..6)), 5..6);
        let mut found = BlockSet::default();
        found.insert(0..2);
        holes.found(found);
        assert_eq!(holes.fill(&(6..7)), 6..7);
        assert_eq!(holes.fill(&(20..21)), 16..32);
    }
}
