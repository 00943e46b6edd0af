//! Zeroing and discarding: the device is told, and what the cache has of the range goes.
//!
//! Meanwhile a barrier lies on the range: nothing in it is loaded or written out. Writes go on into the cache; one that
//! overlaps the range while it is being zeroed comes before or after, as the protocols allow.

use std::ops::Range;
use std::sync::atomic::Ordering;

use machine::Errno;
use policy::unit::{BLOCK_BYTES, ByteRange, Stability};

use super::Volume;
use crate::cache::{Cache, State as BufferState, key};
use crate::frame::{FRAME_BYTES, Frames};
use crate::processor::Processor;
use crate::request::{Action, Context, JobId, Request};

/// Up to so many blocks, zeroes that must stay allocated are simply written.
const WRITTEN_BLOCKS_MAX: u64 = 32;

/// Blocks looked at between two chances for other tasks.
const BLOCKS_AT_ONCE: u64 = 4096;

static ZEROES: [u8; FRAME_BYTES] = [0; FRAME_BYTES];

impl Volume {
    /// Makes `range` read as zeroes. With `may_release` its space may be given back. With `fast_only` it is done only if
    /// that is faster than writing.
    ///
    /// # Errors
    /// [`Errno::NOT_SUPPORTED`] with `fast_only` where it would not be fast; otherwise as [`Volume::write`].
    pub async fn zero(
        &self,
        cpu: &Processor,
        range: ByteRange,
        may_release: bool,
        fast_only: bool,
        context: Context,
    ) -> Result<(), Errno> {
        self.check_writable(range)?;
        if fast_only && !self.facts.fast_zero {
            return Err(Errno::NOT_SUPPORTED);
        }
        let context = self.with_export(context);
        self.admit(cpu, context).await?;
        let whole = self.whole_blocks(range);
        let zeroes = Action::Zero { range: self.bytes_of(whole.clone()), may_release };
        if !may_release && !fast_only && whole.end - whole.start <= WRITTEN_BLOCKS_MAX {
            self.write_zeroes(cpu, whole.clone(), context.job).await;
        } else if !whole.is_empty() {
            match self.change_device(cpu, whole.clone(), zeroes, context).await {
                Err(Errno::NOT_SUPPORTED) if !fast_only => self.zero_slowly(cpu, whole.clone(), context).await?,
                other => other?,
            }
        }
        self.zero_edges(cpu, range, &whole, context).await?;
        self.make_stable(cpu, range, context).await
    }

    /// Tells the device that `range` is not needed. What is not whole blocks stays as it is; a device that cannot
    /// discard keeps its content, as the protocols allow.
    ///
    /// # Errors
    /// As [`Volume::write`].
    pub async fn discard(&self, cpu: &Processor, range: ByteRange, context: Context) -> Result<(), Errno> {
        self.check_writable(range)?;
        if let Some(errno) = self.refusal() {
            return Err(errno);
        }
        let whole = self.whole_blocks(range);
        if whole.is_empty() {
            return Ok(());
        }
        match self.change_device(cpu, whole.clone(), Action::Discard(self.bytes_of(whole)), context).await {
            Ok(()) | Err(Errno::NOT_SUPPORTED) => self.make_stable(cpu, range, context).await,
            Err(errno) => Err(errno),
        }
    }

    async fn make_stable(&self, cpu: &Processor, range: ByteRange, context: Context) -> Result<(), Errno> {
        match context.stability {
            Stability::Unstable => Ok(()),
            Stability::Stable => self.write_through(cpu, range.blocks(), context).await,
        }
    }

    /// The blocks that lie in `range` as a whole, as far as the device has them.
    fn whole_blocks(&self, range: ByteRange) -> Range<u64> {
        let start = range.at.0.div_ceil(BLOCK_BYTES);
        let to_the_end = range.end().0 == self.size();
        let end = if to_the_end { range.end().0.div_ceil(BLOCK_BYTES) } else { range.end().0 / BLOCK_BYTES };
        start..end.max(start)
    }

    async fn zero_edges(
        &self,
        cpu: &Processor,
        range: ByteRange,
        whole: &Range<u64>,
        context: Context,
    ) -> Result<(), Errno> {
        for block in range.blocks().filter(|block| !whole.contains(block)).take(2) {
            let start = block * BLOCK_BYTES;
            let part =
                (range.at.0.max(start) - start) as usize..(range.end().0.min(start + BLOCK_BYTES) - start) as usize;
            let len = part.len();
            self.patch(cpu, block, part, &ZEROES[..len], context).await?;
        }
        Ok(())
    }

    async fn write_zeroes(&self, cpu: &Processor, blocks: Range<u64>, job: JobId) {
        if blocks.is_empty() {
            return;
        }
        let mut frames = self.kernel.allocate(cpu, (blocks.end - blocks.start) as usize).await;
        for (block, mut frame) in blocks.clone().zip(frames.drain(..)) {
            if let Some(bytes) = frame.bytes_mut() {
                bytes.fill(0);
            }
            self.install(block, frame);
        }
        self.mark_dirty(blocks, job);
    }

    /// Writes zeroes to the device where it has no better way.
    async fn zero_slowly(&self, cpu: &Processor, blocks: Range<u64>, context: Context) -> Result<(), Errno> {
        let zero = self.kernel.zero_frame(cpu).await;
        let step = self.transfer_blocks_max();
        for start in blocks.clone().step_by(step as usize) {
            let piece = start..blocks.end.min(start + step);
            let frames: Frames = piece.clone().map(|_| zero.clone()).collect();
            let action = Action::Write(self.bytes_of(piece.clone()), frames);
            self.change_device(cpu, piece, action, context).await?;
        }
        Ok(())
    }

    /// Does `action`, which zeroes `blocks`, on the device, with nothing else of them under way; then forgets what the
    /// cache has of them.
    async fn change_device(
        &self,
        cpu: &Processor,
        blocks: Range<u64>,
        action: Action,
        context: Context,
    ) -> Result<(), Errno> {
        let context = self.with_export(context);
        let barrier = self.raise_barrier(blocks.clone()).await;
        self.until_quiet(cpu, blocks.clone()).await;
        let result = self.device.perform(cpu, Request { action, context }).await;
        if result.is_ok() {
            self.forget(cpu, blocks.clone()).await;
            let mut state = self.state();
            state.changes += 1;
            state.zeroed = true;
        }
        drop(barrier);
        result
    }

    /// Lays a barrier on `blocks`, after those that overlap are gone.
    pub(super) async fn raise_barrier(&self, blocks: Range<u64>) -> Barrier<'_> {
        let raise = || {
            let mut state = self.state();
            if state.is_barred(&blocks) {
                return None;
            }
            state.barriers.push(blocks.clone());
            self.barriers.fetch_add(1, Ordering::SeqCst);
            Some(())
        };
        self.settled.until(raise).await;
        Barrier { volume: self, blocks }
    }

    /// Waits until nothing of `blocks`, on which there is a barrier, is under way.
    pub(super) async fn until_quiet(&self, cpu: &Processor, blocks: Range<u64>) {
        self.until_settled_within(&blocks).await;
        self.until_not_loading(cpu, blocks).await;
    }

    async fn until_not_loading(&self, cpu: &Processor, blocks: Range<u64>) {
        let cache = self.kernel.cache();
        for some in blocks.clone().step_by(BLOCKS_AT_ONCE as usize) {
            for run in Cache::runs(some..blocks.end.min(some + BLOCKS_AT_ONCE)) {
                let loading = {
                    let shard = cache.lock(self.id, run.start);
                    let is_loading = |block: &u64| {
                        let slot = shard.find(key(self.id, *block));
                        slot.is_some_and(|slot| shard.state(slot).any(BufferState::LOADING))
                    };
                    run.filter(is_loading).collect::<Vec<_>>()
                };
                for block in loading {
                    cache.until_not(self.id, block, BufferState::LOADING).await;
                }
            }
            cpu.yield_now().await;
        }
    }

    /// Forgets what the cache has of `blocks`, dirty or not.
    pub(super) async fn forget(&self, cpu: &Processor, blocks: Range<u64>) {
        let (cache, pool) = (self.kernel.cache(), self.kernel.frames());
        for some in blocks.clone().step_by(BLOCKS_AT_ONCE as usize) {
            let some = some..blocks.end.min(some + BLOCKS_AT_ONCE);
            for run in Cache::runs(some.clone()) {
                let mut shard = cache.lock(self.id, run.start);
                for block in run {
                    if let Some(slot) = shard.find(key(self.id, block)) {
                        drop(shard.remove(slot, pool));
                        self.parts.on_gone(block);
                    }
                }
            }
            let removed = {
                let mut state = self.state();
                state.unflushed.remove(some.clone());
                state.trouble.on_gone(some.clone());
                let removed = state.dirty.remove(some);
                self.note_clean(&mut state, removed);
                removed
            };
            self.kernel.subtract_dirty(removed);
            cpu.yield_now().await;
        }
    }
}

/// Keeps loads and write-outs off a range while it exists.
pub(super) struct Barrier<'a> {
    volume: &'a Volume,
    blocks: Range<u64>,
}

impl Drop for Barrier<'_> {
    fn drop(&mut self) {
        let mut state = self.volume.state();
        if let Some(at) = state.barriers.iter().position(|barrier| *barrier == self.blocks) {
            state.barriers.swap_remove(at);
        }
        drop(state);
        self.volume.barriers.fetch_sub(1, Ordering::SeqCst);
        self.volume.settled.wake_all();
    }
}
