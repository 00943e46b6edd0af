//! The size of a volume that grows: that of a file.
//!
//! In the cache, what lies beyond the end in the last block is zero. A write changes its blocks, then the size, and only
//! then marks the blocks dirty: so no write-out reaches beyond what was written.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use machine::Errno;
use policy::unit::{BLOCK_BYTES, ByteRange, Stability};

use super::Volume;
use crate::cache::{State as BufferState, key};
use crate::frame::{FRAME_BYTES, FrameRef};
use crate::processor::Processor;
use crate::request::Context;
use crate::wait::WaitList;

/// Writers pass side by side, who changes the size passes alone.
#[derive(Default)]
pub(super) struct Gate {
    /// Writers inside; the highest bit: somebody changes the size, or waits for that.
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

    /// Keeps writers out, and waits until those inside have left.
    pub(super) async fn close(&self) -> Inside<'_> {
        let close = |inside: u64| (inside & CLOSED == 0).then_some(inside | CLOSED);
        self.changed.until(|| self.inside.fetch_update(Ordering::SeqCst, Ordering::SeqCst, close).ok().map(drop)).await;
        let closed = Inside { gate: self, weight: CLOSED };
        self.changed.until(|| (self.inside.load(Ordering::SeqCst) == CLOSED).then_some(())).await;
        closed
    }
}

/// The blocks that those want written who meet to make a file longer.
#[derive(Default)]
pub(super) struct Growth(Option<Range<u64>>);

impl Growth {
    fn add(&mut self, blocks: Range<u64>) {
        let all = self.0.take().unwrap_or_else(|| blocks.clone());
        self.0 = Some(all.start.min(blocks.start)..all.end.max(blocks.end));
    }
}

/// The right to be inside, while it lasts.
pub(super) struct Inside<'a> {
    gate: &'a Gate,
    weight: u64,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let before = self.gate.inside.fetch_sub(self.weight, Ordering::SeqCst);
        // The last writer, for whom somebody may wait who has closed; or who had closed.
        if before & CLOSED != 0 {
            self.gate.changed.wake_all();
        }
    }
}

impl Volume {
    /// The volume is at least so long now. Bytes. Nothing happens unless it grows.
    pub(super) fn grow(&self, size: u64) {
        if self.config.grows {
            self.size.fetch_max(size, Ordering::AcqRel);
        }
    }

    /// Will writing these blocks make the file on the host longer?
    pub(super) fn lies_beyond_device(&self, blocks: &Range<u64>) -> bool {
        self.config.grows && self.bytes_of(blocks.clone()).end().0 > self.device.facts().size
    }

    /// Writes dirty blocks beyond the end of the device, together with others who want that: the host makes a file longer
    /// for one after the other, and each time costs it a place in its journal.
    ///
    /// # Errors
    /// None of the device's: those are counted ([`Volume::failures`]).
    pub(super) async fn write_growth(
        &self,
        cpu: &Processor,
        blocks: Range<u64>,
        context: Context,
    ) -> Result<(), Errno> {
        let lead = || {
            let Some(volume) = self.this.upgrade() else { return };
            let here = cpu.clone();
            let context = context.with_stability(Stability::Unstable);
            cpu.spawn_path(async move {
                let write = async |Growth(blocks)| {
                    let Some(blocks) = blocks else { return Ok(()) };
                    volume.write_and_settle(&here, blocks, context).await;
                    Ok(())
                };
                volume.growths.lead(&here, write).await;
            });
        };
        self.growths.share(cpu, |growth| growth.add(blocks), lead).await
    }

    /// Gives a volume that grows another size in bytes. `change` does it on the host, with nothing of what is cut off
    /// under way and no write going on; if it fails, nothing happens.
    ///
    /// # Errors
    /// What `change` says.
    pub async fn resize<T>(
        &self,
        cpu: &Processor,
        size: u64,
        change: impl Future<Output = Result<T, Errno>>,
    ) -> Result<T, Errno> {
        let _closed = self.gate.close().await;
        let first = size / BLOCK_BYTES;
        let cut = first..self.blocks_end.load(Ordering::Relaxed).max(first);
        let barrier = self.raise_barrier(cut.clone()).await;
        self.until_quiet(cpu, cut.clone()).await;
        let result = change.await;
        if result.is_ok() {
            let end = size.div_ceil(BLOCK_BYTES);
            self.forget(cpu, end..cut.end).await;
            self.blocks_end.fetch_min(end, Ordering::Relaxed);
            self.zero_end(cpu, size).await;
            self.size.store(size, Ordering::Release);
            self.state().changes += 1;
        }
        drop(barrier);
        result
    }

    /// Has the cache hold a block that lies beyond the end.
    pub(super) async fn put_zeroes(&self, cpu: &Processor, block: u64) {
        let mut frames = self.kernel.allocate(cpu, 1).await;
        let Some(mut frame) = frames.pop() else { return };
        if let Some(bytes) = frame.bytes_mut() {
            bytes.fill(0);
        }
        let cache = self.kernel.cache();
        let mut shard = cache.lock(self.id, block);
        if shard.find(key(self.id, block)).is_none() {
            let (key, capacity) = (key(self.id, block), cache.shard_capacity());
            self.note_block(block);
            shard.insert(key, frame, BufferState::CLEAN, capacity, self.kernel.frames());
        }
    }

    /// Zeroes what the cache has of the last block beyond `size`.
    async fn zero_end(&self, cpu: &Processor, size: u64) {
        let (block, from) = (size / BLOCK_BYTES, (size % BLOCK_BYTES) as usize);
        if from == 0 {
            return;
        }
        let mut spare = None;
        while !self.try_zero_end(block, from, &mut spare) {
            spare = self.kernel.allocate(cpu, 1).await.pop();
        }
    }

    fn try_zero_end(&self, block: u64, from: usize, spare: &mut Option<FrameRef>) -> bool {
        static ZEROES: [u8; FRAME_BYTES] = [0; FRAME_BYTES];
        let pool = self.kernel.frames();
        let mut shard = self.kernel.cache().lock(self.id, block);
        let Some(slot) = shard.find(key(self.id, block)) else { return true };
        self.parts.on_end(block, from);
        if shard.patch_if_sole(slot, from, &ZEROES[from..], pool) {
            return true;
        }
        // Somebody sends this frame: it stays as it is, and another takes its place.
        let Some(mut copy) = spare.take() else { return false };
        if let Some(content) = copy.bytes_mut() {
            content.copy_from_slice(shard.share(slot, pool).bytes());
            content[from..].fill(0);
        }
        drop(shard.replace(slot, copy, pool));
        true
    }

    /// The bytes of `range` that the volume has.
    pub fn clip(&self, range: ByteRange) -> ByteRange {
        let end = range.end().0.min(self.size());
        ByteRange::new(range.at.0, end.saturating_sub(range.at.0))
    }
}
