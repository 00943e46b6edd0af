//! Holes of a sparse image. The first write into a hole makes the host allocate, and ext4 and XFS do that with a journal
//! entry for each write, however small. So the blocks around it are written as zeroes with it, in clusters of 64 KiB, the
//! allocation unit of QCOW2: random writes of 4 KiB into a new image then pay for a sixteenth of the allocations.
//!
//! What nobody has written is zeroes, and is read as that without asking the device.

use policy::unit::{BLOCK_BYTES, BlockNo, BlockRange, ByteOffset};

use super::Volume;
use crate::block_set::BlockSet;
use crate::device::DATA_RUNS_MAX;
use crate::frame::FrameRef;
use crate::processor::Processor;

/// Blocks of a cluster.
const CLUSTER_BLOCKS: u64 = (64 << 10) / BLOCK_BYTES;

/// Holes are recorded up to here: 2 MiB of memory for each TiB.
const RECORDED_BYTES_MAX: u64 = 4 << 40;

/// Zeroes around writes are recorded up to here: 4 MiB of memory.
const FILLED_END: BlockNo = BlockNo((128 << 30) / BLOCK_BYTES);

/// An image of more data than the device finds with these requests is no new one; its other holes are not looked for.
const REQUESTS_MAX: usize = 16;

/// The clusters that have never been written: on the device they are zeroes. In sets, a cluster's number stands for a
/// block's.
#[derive(Default)]
pub(super) struct Holes {
    clusters: BlockSet,
    /// Blocks of other clusters that were written as zeroes around others, and not since.
    filled: BlockSet,
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
    pub(super) fn fill(&mut self, blocks: BlockRange) -> BlockRange {
        let end = BlockNo(blocks.end.0.div_ceil(CLUSTER_BLOCKS));
        let touched = BlockNo(blocks.start.0 / CLUSTER_BLOCKS).to(end);
        if let Some(written) = &mut self.written {
            written.insert(touched);
        }
        if self.clusters.is_empty() {
            return blocks;
        }
        let mut filled = blocks;
        if self.clusters.contains(touched.start) {
            filled.start = BlockNo(touched.start.0 * CLUSTER_BLOCKS);
        }
        if self.clusters.contains(touched.end - 1) {
            filled.end = BlockNo(touched.end.0 * CLUSTER_BLOCKS);
        }
        self.clusters.remove(touched);
        if filled != blocks {
            self.filled.insert(filled.start.to(filled.end.min(FILLED_END).max(filled.start)));
        }
        filled
    }

    /// What clients wrote to `blocks` is written next.
    pub(super) fn on_written(&mut self, blocks: BlockRange) {
        self.filled.remove(blocks);
    }

    /// Has nobody written this block?
    fn contains(&self, block: BlockNo) -> bool {
        self.clusters.contains(BlockNo(block.0 / CLUSTER_BLOCKS)) || self.filled.contains(block)
    }

    /// There is no space for more than what clients write.
    pub(super) fn forget(&mut self) {
        *self = Holes::default();
    }
}

impl Volume {
    /// The content of a block that is not cached, if it is known to be zeroes. Its shard must be locked: what is written
    /// is cached until the device has it, and then it is no hole.
    pub(super) fn hole_at(&self, block: BlockNo) -> Option<FrameRef> {
        if self.state.lock().holes.contains(block) { self.memory.known_zero_frame() } else { None }
    }

    /// Does a block that is not cached lie in a hole, or beyond the end?
    pub(super) fn is_zeroes(&self, block: BlockNo) -> bool {
        block.start() >= self.volume_end() || self.state.lock().holes.contains(block)
    }

    /// Asks the device for its holes, if they are awaited.
    pub(super) async fn find_holes(&self, cpu: &Processor) {
        if self.state.lock().holes.written.is_none() {
            return;
        }
        let end = ByteOffset(self.size().min(RECORDED_BYTES_MAX));
        let (mut clusters, mut at) = (BlockSet::default(), ByteOffset(0));
        for _ in 0..REQUESTS_MAX {
            if at >= end || self.is_closing() {
                break;
            }
            let Ok(found) = self.device.find_data(cpu, at.to(end), DATA_RUNS_MAX).await else { break };
            for data in found.runs.into_iter().chain([found.end.to(found.end)]) {
                let cluster_bytes = CLUSTER_BLOCKS * BLOCK_BYTES;
                clusters.insert((at.0.div_ceil(cluster_bytes)..data.at.0 / cluster_bytes).into());
                at = data.end();
            }
        }
        if !clusters.is_empty() {
            // Without memory for it now, holes are read from the device until there is.
            let _ = self.memory.zero_frame_at_hand();
        }
        self.state.lock().holes.found(clusters);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holes(clusters: BlockRange) -> Holes {
        let mut found = BlockSet::default();
        found.insert(clusters);
        let mut holes = Holes::awaited();
        holes.found(found);
        holes
    }

    #[test]
    fn a_piece_is_filled_by_its_first_write_only() {
        let mut holes = holes((0..4).into());
        assert_eq!(holes.fill((17..18).into()), (16..32).into());
        assert_eq!(holes.fill((18..19).into()), (18..19).into());
    }

    #[test]
    fn what_was_not_written_itself_stays_a_hole() {
        let mut holes = holes((0..2).into());
        holes.fill((5..7).into());
        holes.on_written((5..7).into());
        holes.on_written((9..10).into());
        let found: Vec<u64> = (0..40).filter(|&block| !holes.contains(BlockNo(block))).collect();
        assert_eq!(found, [5, 6, 9, 32, 33, 34, 35, 36, 37, 38, 39]);
    }

    #[test]
    fn a_long_write_is_filled_up_at_both_ends() {
        let mut holes = holes((0..4).into());
        assert_eq!(holes.fill((10..40).into()), (0..48).into());
        assert_eq!(holes.fill((40..50).into()), (40..64).into(), "the third cluster is written, the fourth is not");
    }

    #[test]
    fn beyond_the_holes_nothing_is_filled() {
        assert_eq!(holes((0..4).into()).fill((64..65).into()), (64..65).into());
        assert_eq!(Holes::default().fill((1..2).into()), (1..2).into());
    }

    #[test]
    fn what_is_written_while_the_device_is_asked_is_no_hole() {
        let mut holes = Holes::awaited();
        assert_eq!(holes.fill((5..6).into()), (5..6).into());
        let mut found = BlockSet::default();
        found.insert((0..2).into());
        holes.found(found);
        assert_eq!(holes.fill((6..7).into()), (6..7).into());
        assert_eq!(holes.fill((20..21).into()), (16..32).into());
    }
}
