//! The size of a volume that grows, as a file does.
//!
//! In the cache, the last block is zero beyond the end. A write changes a block and the size under the block's lock:
//! a write-out, which another write may have asked for, finds both or neither. With the block alone it would write what
//! lies before the old end, and take the rest for written, too.

use std::sync::atomic::{AtomicU64, Ordering};

use machine::Errno;
use policy::unit::{BLOCK_BYTES, BlockNo, BlockRange, ByteOffset, ByteRange, Stability};

use super::{ForcedUnitAccess, GROWING_BYTES_MAX, Volume};
use crate::cache::State as BufferState;
use crate::frame::{FRAME_BYTES, FrameRef};
use crate::processor::Processor;
use crate::request::Context;
use crate::wait::WaitList;

/// Shared by writers, exclusive for a change of the size.
#[derive(Default)]
pub(super) struct Gate {
    /// Writers inside; the highest bit is set while an exclusive holder is inside or waits.
    inside: AtomicU64,
    changed: WaitList,
}

const CLOSED: u64 = 1 << 63;

impl Gate {
    pub(super) async fn enter(&self) -> Inside<'_> {
        let enter = |inside: u64| (inside & CLOSED == 0).then_some(inside + 1);
        let try_enter = || self.inside.fetch_update(Ordering::SeqCst, Ordering::SeqCst, enter).ok().map(drop);
        if try_enter().is_none() {
            self.changed.until(try_enter).await;
        }
        Inside { gate: self, weight: 1 }
    }

    /// Keeps new writers out, and waits until those inside have left.
    pub(super) async fn close(&self) -> Inside<'_> {
        let close = |inside: u64| (inside & CLOSED == 0).then_some(inside | CLOSED);
        self.changed.until(|| self.inside.fetch_update(Ordering::SeqCst, Ordering::SeqCst, close).ok().map(drop)).await;
        let closed = Inside { gate: self, weight: CLOSED };
        self.changed.until(|| (self.inside.load(Ordering::SeqCst) == CLOSED).then_some(())).await;
        closed
    }
}

/// The union of the blocks of all callers that extend a file in one group.
#[derive(Default)]
pub(super) struct Growth(Option<BlockRange>);

impl Growth {
    fn add(&mut self, blocks: BlockRange) {
        let all = self.0.unwrap_or(blocks);
        self.0 = Some(all.start.min(blocks.start).to(all.end.max(blocks.end)));
    }
}

pub(super) struct Inside<'a> {
    gate: &'a Gate,
    weight: u64,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let before = self.gate.inside.fetch_sub(self.weight, Ordering::SeqCst);
        // Either the last writer left, and the closer may wait for it, or the closer itself.
        if before & CLOSED != 0 {
            self.gate.changed.wake_all();
        }
    }
}

impl Volume {
    /// Extends a volume that grows to at least `end`; does nothing to others.
    pub(super) fn grow(&self, end: ByteOffset) {
        if self.config.grows {
            self.size.fetch_max(end.0, Ordering::AcqRel);
        }
    }

    /// Will writing these blocks extend the file on the host?
    pub(super) fn lies_beyond_device(&self, blocks: BlockRange) -> bool {
        self.config.grows && self.bytes_of(blocks).end().0 > self.device.facts().size
    }

    /// Writes dirty blocks beyond the end of the device, batched with concurrent callers: the host extends a file for
    /// one write at a time, each with a journal transaction.
    ///
    /// # Errors
    /// None of the device's: those are counted ([`Volume::failures`]).
    pub(super) async fn write_growth(
        &self,
        cpu: &Processor,
        blocks: BlockRange,
        context: Context,
    ) -> Result<(), Errno> {
        let lead = || {
            let Some(volume) = self.this.upgrade() else { return };
            let here = cpu.clone();
            cpu.spawn_path(async move {
                let write = async |Growth(blocks)| {
                    let Some(blocks) = blocks else { return Ok(()) };
                    let context = context.with_stability(volume.stability_of_growth(blocks));
                    volume.write_and_settle(&here, blocks, context).await;
                    Ok(())
                };
                volume.growths.lead(&here, write).await;
            });
        };
        self.growths.share(cpu, |growth| growth.add(blocks), lead).await
    }

    /// A forced write that extends a file is its flush, too: one request to the host, and one commit of its journal. Several
    /// would pay for one commit each.
    fn stability_of_growth(&self, blocks: BlockRange) -> Stability {
        let may_force = self.config.forced_unit_access != ForcedUnitAccess::Never;
        let is_one_write = || self.state.lock().dirty.first_run(blocks, self.transfer_blocks_max()) == Some(blocks);
        if may_force && is_one_write() { Stability::Stable } else { Stability::Unstable }
    }

    /// Sets the size, in bytes, of a volume that grows. `change` does it on the host while no write runs and nothing
    /// beyond the new end is in flight; if it fails, nothing changes.
    ///
    /// # Errors
    /// [`Errno::FILE_TOO_LARGE`] beyond [`GROWING_BYTES_MAX`], otherwise those of `change`.
    pub async fn resize<T>(
        &self,
        cpu: &Processor,
        size: u64,
        change: impl Future<Output = Result<T, Errno>>,
    ) -> Result<T, Errno> {
        if size > GROWING_BYTES_MAX {
            return Err(Errno::FILE_TOO_LARGE);
        }
        let _closed = self.gate.close().await;
        let first = BlockNo::holding(ByteOffset(size));
        let barrier = self.raise_barrier(first.to(BlockNo::MAX)).await;
        let cut = first.to(self.blocks_end().max(first));
        self.until_quiet(cpu, cut).await;
        let result = change.await;
        if result.is_ok() {
            // Before the blocks stop being dirty: a flush in between has to cover the host's change.
            self.state.lock().changes += 1;
            let end = BlockNo::not_before(ByteOffset(size));
            self.forget(cpu, end.to(cut.end)).await;
            self.blocks_end.fetch_min(end.0, Ordering::SeqCst);
            self.zero_end(cpu, size).await;
            self.size.store(size, Ordering::Release);
        }
        drop(barrier);
        result
    }

    /// Caches a block that lies beyond the end, or in a hole.
    pub(super) async fn put_zeroes(&self, cpu: &Processor, block: BlockNo) {
        let mut frames = self.memory.allocate(cpu, 1).await;
        let Some(mut frame) = frames.pop() else { return };
        if let Some(bytes) = frame.bytes_mut() {
            bytes.fill(0);
        }
        let mut shard = self.lock_shard(block);
        // It may have been written meanwhile.
        if shard.find(self.key(block)).is_none() && self.is_zeroes(block) {
            let capacity = self.memory.cache().shard_capacity();
            self.note_block(block);
            shard.insert(self.key(block), frame, BufferState::CLEAN, capacity, self.memory.frames());
        }
    }

    /// Zeroes the cached last block beyond `size`.
    async fn zero_end(&self, cpu: &Processor, size: u64) {
        let (block, from) = (BlockNo::holding(ByteOffset(size)), (size % BLOCK_BYTES) as usize);
        if from == 0 {
            return;
        }
        let mut spare = None;
        while !self.try_zero_end(block, from, &mut spare) {
            spare = self.memory.allocate(cpu, 1).await.pop();
        }
    }

    fn try_zero_end(&self, block: BlockNo, from: usize, spare: &mut Option<FrameRef>) -> bool {
        static ZEROES: [u8; FRAME_BYTES] = [0; FRAME_BYTES];
        let pool = self.memory.frames();
        let mut shard = self.lock_shard(block);
        let Some(slot) = shard.find(self.key(block)) else { return true };
        self.parts.on_end(block, from);
        if shard.patch_if_sole(slot, from, &ZEROES[from..], pool) {
            return true;
        }
        // The frame is being sent and must not change: a copy replaces it.
        let Some(mut copy) = spare.take() else { return false };
        if let Some(content) = copy.bytes_mut() {
            content.copy_from_slice(shard.share(slot, pool).bytes());
            content[from..].fill(0);
        }
        drop(shard.replace(slot, copy, pool));
        true
    }

    /// `range`, cut at the end of the volume.
    pub fn clip(&self, range: ByteRange) -> ByteRange {
        range.at.to(range.end().min(self.volume_end()))
    }
}
