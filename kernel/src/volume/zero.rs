//! Zeroing and discarding: done by the device; the cached blocks of the range are dropped.
//!
//! A barrier on the range keeps loads and write-outs off it meanwhile. Writes still enter the cache; a concurrent write
//! to the range is ordered before or after the zeroing, as the protocols allow.

use std::sync::atomic::Ordering;

use machine::Errno;
use policy::cache::Slot;
use policy::unit::{BlockNo, BlockRange, ByteRange, Stability};

use super::cleared::Clearing;
use super::{BLOCKS_AT_ONCE, Volume};
use crate::cache::{Cache, Shard, State as BufferState};
use crate::frame::{FRAME_BYTES, FrameRef};
use crate::processor::Processor;
use crate::request::{Action, Context, JobId, Outcome, Request};

/// Up to this many blocks, zeroes that must stay allocated are written as data.
const WRITTEN_BLOCKS_MAX: u64 = 32;

static ZEROES: [u8; FRAME_BYTES] = [0; FRAME_BYTES];

impl Volume {
    /// Makes `range` read as zeroes. `may_release` allows its space to be freed. With `fast_only` it fails unless it is
    /// faster than writing.
    ///
    /// # Errors
    /// [`Errno::NOT_SUPPORTED`] with `fast_only` where it is not fast; otherwise as [`Volume::write`].
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
        if let Some(coherence) = &self.coherence {
            return self.zero_shared(cpu, coherence, range, context).await;
        }
        self.admit(cpu, context).await?;
        let whole = self.whole_blocks(range);
        if !may_release && !fast_only && whole.len() <= WRITTEN_BLOCKS_MAX {
            self.write_zeroes(cpu, whole, context.job).await;
        } else if !whole.is_empty() {
            match self.clear(cpu, whole, Clearing::Zero { may_release }, None, context).await? {
                Outcome::Unsupported if !fast_only => self.zero_slowly(cpu, whole, context).await?,
                outcome => outcome.required()?,
            }
        }
        self.zero_edges(cpu, range, whole, context).await?;
        self.make_stable(cpu, range, context).await
    }

    /// Discards `range`, which the client does not need. Partial blocks stay; a device that cannot discard retains its
    /// content, as the protocols allow.
    ///
    /// # Errors
    /// As [`Volume::write`].
    pub async fn discard(&self, cpu: &Processor, range: ByteRange, context: Context) -> Result<(), Errno> {
        self.check_writable(range)?;
        if let Some(errno) = self.refusal() {
            return Err(errno);
        }
        let whole = self.whole_blocks(range);
        // The homes of a shared volume retain what they have.
        if whole.is_empty() || self.coherence.is_some() {
            return Ok(());
        }
        // Discarding is advisory: unsupported is success.
        let _ = self.clear(cpu, whole, Clearing::Discard, None, context).await?;
        self.make_stable(cpu, range, context).await
    }

    async fn make_stable(&self, cpu: &Processor, range: ByteRange, context: Context) -> Result<(), Errno> {
        match context.stability {
            Stability::Unstable => Ok(()),
            Stability::Stable => self.write_through(cpu, range.blocks(), context).await,
        }
    }

    /// The blocks that lie entirely in `range`, or up to the volume's end.
    fn whole_blocks(&self, range: ByteRange) -> BlockRange {
        let mut whole = range.whole_blocks();
        if range.end() == self.volume_end() {
            whole.end = BlockNo::not_before(range.end());
        }
        whole
    }

    async fn zero_edges(
        &self,
        cpu: &Processor,
        range: ByteRange,
        whole: BlockRange,
        context: Context,
    ) -> Result<(), Errno> {
        let blocks = range.blocks();
        let (first, last) = (blocks.iter().next(), blocks.iter().next_back().filter(|_| blocks.len() > 1));
        for block in first.into_iter().chain(last).filter(|block| !whole.contains(*block)) {
            let part = self.part_of(block, range);
            let len = part.len();
            self.patch(cpu, block, part, &ZEROES[..len], context).await?.required()?;
        }
        Ok(())
    }

    async fn write_zeroes(&self, cpu: &Processor, blocks: BlockRange, job: JobId) {
        if blocks.is_empty() {
            return;
        }
        let mut frames = self.memory.allocate(cpu, blocks.len() as usize).await;
        frames.iter_mut().filter_map(FrameRef::bytes_mut).for_each(|bytes| bytes.fill(0));
        self.install(blocks, &mut frames.drain(..));
        self.mark_dirty(blocks, job);
    }

    /// Writes zeroes, for devices that cannot zero.
    async fn zero_slowly(&self, cpu: &Processor, blocks: BlockRange, context: Context) -> Result<(), Errno> {
        let zero = self.memory.zero_frame(cpu).await;
        let clearing = Clearing::Zero { may_release: false };
        for piece in blocks.pieces(self.transfer_blocks_max()) {
            self.clear(cpu, piece, clearing, Some(&zero), context).await?.required()?;
        }
        Ok(())
    }

    /// Zeroes or discards `blocks` on the device while nothing else of them is in flight, then drops them from the
    /// cache. With `zero`, zeroes are written, that frame for each block.
    async fn clear(
        &self,
        cpu: &Processor,
        blocks: BlockRange,
        clearing: Clearing,
        zero: Option<&FrameRef>,
        context: Context,
    ) -> Result<Outcome, Errno> {
        if self.state.lock().cleared.is_full() {
            self.flush_device(cpu, context, self.failures()).await?;
        }
        let barrier = self.raise_barrier(blocks).await;
        self.until_quiet(cpu, blocks).await;
        let sequence = self.next_sequence();
        let result = self.perform_clearing(cpu, blocks, clearing, zero, context).await;
        if result == Ok(Outcome::Done) {
            // Before the blocks stop being dirty: a flush in between has to cover the device's change.
            self.state.lock().changes += 1;
            self.forget(cpu, blocks).await;
            self.note_cleared(blocks, clearing, sequence);
        }
        drop(barrier);
        result
    }

    /// Repeats the zeroing and discarding that a failed flush may have undone.
    pub(super) async fn clear_again(&self, cpu: &Processor, context: Context) -> Result<(), Errno> {
        loop {
            let Some(blocks) = self.state.lock().cleared.first_again() else { return Ok(()) };
            if self.clear_some_again(cpu, blocks, None, context).await? == Outcome::Unsupported {
                let zero = self.memory.zero_frame(cpu).await;
                for piece in blocks.pieces(self.transfer_blocks_max()) {
                    self.clear_some_again(cpu, piece, Some(&zero), context).await?.required()?;
                }
            }
        }
    }

    /// As `clear_again`, within `blocks`. Blocks written since are newer; the cache is not touched.
    async fn clear_some_again(
        &self,
        cpu: &Processor,
        blocks: BlockRange,
        zero: Option<&FrameRef>,
        context: Context,
    ) -> Result<Outcome, Errno> {
        let _barrier = self.raise_barrier(blocks).await;
        self.until_quiet(cpu, blocks).await;
        let again = self.state.lock().cleared.again_within(blocks);
        for (blocks, clearing) in again {
            let sequence = self.next_sequence();
            let outcome = self.perform_clearing(cpu, blocks, clearing, zero, context).await?;
            if outcome != Outcome::Done {
                return Ok(outcome);
            }
            self.note_cleared(blocks, clearing, sequence);
        }
        Ok(Outcome::Done)
    }

    async fn perform_clearing(
        &self,
        cpu: &Processor,
        blocks: BlockRange,
        clearing: Clearing,
        zero: Option<&FrameRef>,
        context: Context,
    ) -> Result<Outcome, Errno> {
        let range = self.bytes_of(blocks);
        let action = match (clearing, zero) {
            (Clearing::Discard, _) => Action::Discard(range),
            (Clearing::Zero { .. }, Some(zero)) => Action::Write(range, blocks.iter().map(|_| zero.clone()).collect()),
            (Clearing::Zero { may_release }, None) => Action::Zero { range, may_release },
        };
        // Callers that need it durable flush afterwards.
        let context = self.with_export(context).with_stability(Stability::Unstable);
        self.device.perform(cpu, Request { action, context }).await
    }

    /// Numbers a change of the device that starts now.
    fn next_sequence(&self) -> u64 {
        let mut state = self.state.lock();
        state.sequence += 1;
        state.sequence
    }

    fn note_cleared(&self, blocks: BlockRange, clearing: Clearing, sequence: u64) {
        let mut state = self.state.lock();
        state.changes += 1;
        let is_suspect = sequence <= state.suspect;
        state.cleared.insert(blocks, clearing, is_suspect);
    }

    /// Puts a barrier on `blocks`, after overlapping ones were lifted.
    pub(super) async fn raise_barrier(&self, blocks: BlockRange) -> Barrier<'_> {
        let raise = || {
            let mut state = self.state.lock();
            if state.is_barred(blocks) {
                return None;
            }
            state.barriers.push(blocks);
            self.barriers.fetch_add(1, Ordering::SeqCst);
            Some(())
        };
        self.settled.until(raise).await;
        Barrier { volume: self, blocks }
    }

    /// Waits until nothing of `blocks`, which are barred, is in flight.
    pub(super) async fn until_quiet(&self, cpu: &Processor, blocks: BlockRange) {
        self.until_settled_within(blocks).await;
        self.until_not_loading(cpu, blocks).await;
    }

    async fn until_not_loading(&self, cpu: &Processor, blocks: BlockRange) {
        let mut loading = Vec::new();
        self.for_cached(cpu, blocks, |shard, block, slot| {
            if shard.state(slot).any(BufferState::LOADING) {
                loading.push(block);
            }
        })
        .await;
        for block in loading {
            self.memory.cache().until_loaded(self.key(block)).await;
        }
    }

    /// Drops `blocks` from the cache, dirty or not.
    pub(super) async fn forget(&self, cpu: &Processor, blocks: BlockRange) {
        let mut removed = 0;
        self.for_cached(cpu, blocks, |shard, block, slot| {
            drop(shard.remove(slot, self.memory.frames()));
            self.parts.on_gone(block);
            // With the shard locked: a later write of the block must not be counted as this one.
            let mut state = self.state.lock();
            state.unflushed.remove(block.run(1));
            self.forget_marked(&mut state, block.run(1));
            state.trouble.on_gone(block.run(1));
            let was_dirty = state.dirty.remove(block.run(1));
            self.note_clean(&mut state, was_dirty);
            removed += was_dirty;
        })
        .await;
        self.state.lock().cleared.remove(blocks);
        self.memory.subtract_dirty(removed);
    }

    /// Drops those of `blocks` that are durable on the device from the cache.
    pub(super) async fn forget_clean(&self, cpu: &Processor, blocks: BlockRange) {
        self.for_cached(cpu, blocks, |shard, _, slot| {
            if shard.may_go(slot) {
                drop(shard.remove(slot, self.memory.frames()));
            }
        })
        .await;
    }

    /// Calls `act` for each cached block among `blocks`, with its shard locked; yields between shards. Takes time in
    /// proportion to the cache at most, however long the range is.
    async fn for_cached(&self, cpu: &Processor, blocks: BlockRange, mut act: impl FnMut(&mut Shard, BlockNo, Slot)) {
        let cache = self.memory.cache();
        let count = blocks.len();
        if count > BLOCKS_AT_ONCE && count > cache.len() as u64 {
            for number in 0..cache.shards() {
                {
                    let mut shard = cache.lock_number(number);
                    for slot in shard.slots_of(self.id) {
                        let block = shard.block(slot);
                        if blocks.contains(block) {
                            act(&mut shard, block, slot);
                        }
                    }
                }
                cpu.yield_now().await;
            }
            return;
        }
        for piece in blocks.pieces(BLOCKS_AT_ONCE) {
            for run in Cache::runs(piece) {
                let mut shard = self.lock_shard(run.start);
                for block in run.iter() {
                    if let Some(slot) = shard.find(self.key(block)) {
                        act(&mut shard, block, slot);
                    }
                }
            }
            cpu.yield_now().await;
        }
    }
}

/// Keeps loads and write-outs off a range until dropped.
pub(super) struct Barrier<'a> {
    volume: &'a Volume,
    blocks: BlockRange,
}

impl Drop for Barrier<'_> {
    fn drop(&mut self) {
        let mut state = self.volume.state.lock();
        if let Some(at) = state.barriers.iter().position(|barrier| *barrier == self.blocks) {
            state.barriers.swap_remove(at);
        }
        drop(state);
        self.volume.barriers.fetch_sub(1, Ordering::SeqCst);
        self.volume.settled.wake_all();
    }
}
