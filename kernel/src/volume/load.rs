//! Loading: blocks are read from the device into the cache.
//!
//! A lookup shares the frames of cached blocks and registers buffers for the others, with each shard locked once; when
//! they are loaded, each shard is locked once more.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::join_all;
use machine::Errno;
use policy::unit::{BLOCK_BYTES, BlockNo, BlockRange, Class};
use smallvec::SmallVec;

use super::{Attempt, Coherence, Volume};
use crate::block_key::BlockKey;
use crate::cache::{Cache, Shard, State as BufferState};
use crate::counters::Count;
use crate::frame::{FrameNo, FrameRef, Frames, segments};
use crate::processor::Processor;
use crate::request::{Action, Context, Outcome, Request};
use crate::trace::Event;

#[expect(clippy::large_enum_variant, reason = "to box a miss would cost it a call of the allocator")]
pub enum Lookup {
    Cached(Frames),
    /// Some blocks must be read from the device, or are being read.
    Missing(Reading),
}

/// A read that the cache cannot satisfy. The lookup has registered the missing blocks that no other reader loads:
/// others may wait for them, so this must be driven without waiting for anything of theirs, or be dropped.
pub struct Reading {
    volume: Arc<Volume>,
    blocks: BlockRange,
    context: Context,
    /// The frames found so far, by block.
    frames: SmallVec<[Option<FrameRef>; 4]>,
    /// Frames for the missing blocks.
    spare: Frames,
    /// Begun by the last lookup, and not ended.
    loads: SmallVec<[Load; 1]>,
    /// Missing blocks whose load the last lookup could not begin, for lack of memory or because of a barrier, and their
    /// range.
    left: u64,
    left_within: BlockRange,
    /// A block that another reader loads.
    loading: Option<BlockNo>,
    /// Blocks counted in the volume's `blocks_awaited`.
    awaited: u64,
}

/// Adjacent blocks that one request reads.
struct Load {
    blocks: BlockRange,
    frames: RefCell<Frames>,
    /// Their numbers while a [`Coherence`] has them.
    numbers: RefCell<Vec<FrameNo>>,
    is_settled: Cell<bool>,
}

impl Volume {
    /// The frames of `blocks`, cached or read from the device.
    pub(super) async fn load(
        &self,
        cpu: &Processor,
        blocks: BlockRange,
        context: Context,
    ) -> Result<Attempt<Frames>, Errno> {
        match self.look_up(cpu, blocks, context)? {
            Lookup::Cached(frames) => Ok(Attempt::Done(frames)),
            Lookup::Missing(reading) => reading.attempt(cpu).await,
        }
    }

    /// Shares the cached frames of `blocks`, and begins to load the others.
    pub(super) fn look_up(&self, cpu: &Processor, blocks: BlockRange, context: Context) -> Result<Lookup, Errno> {
        let mut frames = Frames::new();
        let missed = self.memory.cache().share(self.id, blocks, self.memory.frames(), &mut frames);
        let Some((mut shard, rest)) = missed else {
            if context.class == Class::Synchronous {
                self.note_hit(cpu, blocks);
            }
            return Ok(Lookup::Cached(frames));
        };
        let mut reading = Reading::new(self, blocks, self.with_export(context), frames)?;
        reading.look_in(&mut shard, rest)?;
        drop(shard);
        reading.look_at(rest.end.to(reading.blocks.end))?;
        reading.note_first_look(cpu);
        if reading.frames.iter().all(Option::is_some) {
            return Ok(Lookup::Cached(reading.frames.drain(..).flatten().collect()));
        }
        Ok(Lookup::Missing(reading))
    }
}

impl Reading {
    /// `first`: the frames of the first blocks, which were cached.
    fn new(volume: &Volume, blocks: BlockRange, context: Context, first: Frames) -> Result<Self, Errno> {
        let mut frames: SmallVec<[Option<FrameRef>; 4]> = first.into_iter().map(Some).collect();
        frames.resize_with(blocks.len() as usize, || None);
        Ok(Reading {
            volume: volume.this.upgrade().ok_or(Errno::IO)?,
            context,
            frames,
            spare: Frames::new(),
            loads: SmallVec::new(),
            left: 0,
            left_within: blocks.start.run(0),
            loading: None,
            awaited: 0,
            blocks,
        })
    }

    /// A client waits for this read until it ends.
    pub(super) fn note_waiter(&mut self) {
        self.awaited = self.blocks.len();
        self.volume.blocks_awaited.fetch_add(self.awaited, Ordering::Relaxed);
    }

    /// Waits for the blocks.
    ///
    /// # Errors
    /// The device's error.
    pub async fn finish(self, cpu: &Processor) -> Result<Frames, Errno> {
        self.attempt(cpu).await?.required()
    }

    /// As [`Reading::finish`], for content that others may change.
    pub(super) async fn attempt(mut self, cpu: &Processor) -> Result<Attempt<Frames>, Errno> {
        loop {
            let outcome = self.perform_loads(cpu).await?;
            if outcome == Outcome::Changed {
                return Ok(Attempt::Changed);
            }
            outcome.required()?;
            if self.left > 0 {
                self.until_others_can_load(cpu).await;
            } else if let Some(block) = self.loading {
                self.until_loaded(cpu, block).await;
            } else {
                return Ok(Attempt::Done(self.frames.drain(..).flatten().collect()));
            }
            (self.left, self.loading) = (0, None);
            self.look_at(self.blocks)?;
            self.note_look(cpu);
        }
    }

    fn look_at(&mut self, blocks: BlockRange) -> Result<(), Errno> {
        let volume = Arc::clone(&self.volume);
        for run in Cache::runs(blocks) {
            let mut shard = volume.lock_shard(run.start);
            self.look_in(&mut shard, run)?;
        }
        Ok(())
    }

    /// Shares the frames of `run` that are cached and not held yet. Begins to load what is absent and no other reader
    /// loads, if there are free frames for all of it.
    ///
    /// # Errors
    /// [`Errno::IO`] if any of it was abandoned.
    fn look_in(&mut self, shard: &mut Shard, run: BlockRange) -> Result<(), Errno> {
        // With the shard locked: a block is recorded as abandoned before it is dropped from its shard. One that is found
        // absent after this would be read from the device, which has older content.
        if self.volume.is_abandoned(run) {
            return Err(Errno::IO);
        }
        let (id, pool) = (self.volume.id, self.volume.memory.frames());
        let mut absent: SmallVec<[BlockRange; 2]> = SmallVec::new();
        for block in run.iter() {
            let frame = &mut self.frames[(block - self.blocks.start) as usize];
            if frame.is_some() {
                continue;
            }
            match shard.find(BlockKey::new(id, block)) {
                Some(slot) if shard.state(slot).any(BufferState::LOADING) => self.loading = Some(block),
                Some(slot) => {
                    shard.touch(slot);
                    *frame = Some(shard.share(slot, pool));
                }
                None => match (self.volume.hole_at(block), absent.last_mut()) {
                    (Some(zeroes), _) => *frame = Some(zeroes),
                    (None, Some(last)) if last.end == block => last.end = block + 1,
                    (None, _) => absent.push(block.run(1)),
                },
            }
        }
        let (Some(first), Some(last)) = (absent.first(), absent.last()) else { return Ok(()) };
        let (within, count) = (first.start.to(last.end), absent.iter().map(|run| run.len()).sum());
        if self.volume.may_enter(within) && self.take_spare(&absent, count) {
            absent.into_iter().flat_map(BlockRange::iter).for_each(|block| self.begin_load(shard, block));
        } else {
            self.left_within = if self.left == 0 { within } else { self.left_within.start.to(within.end) };
            self.left += count;
        }
        Ok(())
    }

    /// Takes frames to load `absent`, `count` blocks, into, if that many are free. They are popped from the end.
    fn take_spare(&mut self, absent: &[BlockRange], count: u64) -> bool {
        let pool = self.volume.memory.frames();
        let missing = (count as usize).saturating_sub(self.spare.len());
        if self.spare.is_empty() && pool.colors() > 1 {
            absent.iter().for_each(|run| pool.take_for(run.start, run.len() as usize, &mut self.spare));
            self.spare.reverse();
        } else {
            pool.take(missing, &mut self.spare);
            // Adjacent blocks in adjacent frames make short vectors.
            self.spare.sort_unstable_by_key(|frame| Reverse(frame.no()));
        }
        self.spare.len() >= count as usize
    }

    fn begin_load(&mut self, shard: &mut Shard, block: BlockNo) {
        let (volume, Some(frame)) = (&self.volume, self.spare.pop()) else { return };
        let (cache, pool) = (volume.memory.cache(), volume.memory.frames());
        shard.insert(volume.key(block), frame.clone(), BufferState::LOADING, cache.shard_capacity(), pool);
        let blocks_max = volume.transfer_blocks_max();
        match self.loads.last_mut() {
            Some(last) if last.blocks.end == block && last.blocks.len() < blocks_max => {
                last.blocks.end = block + 1;
                last.frames.get_mut().push(frame);
            }
            _ => self.loads.push(Load {
                blocks: block.run(1),
                frames: RefCell::new(Frames::from_iter([frame])),
                numbers: RefCell::default(),
                is_settled: Cell::new(false),
            }),
        }
    }

    /// Only synchronous reads measure the cache's worth, and only their first lookup.
    fn note_first_look(&self, cpu: &Processor) {
        if self.context.class == Class::Synchronous {
            let hits = self.frames.iter().flatten().count() as u64;
            cpu.count(Count::CacheReads, 1);
            cpu.count(Count::CacheHits, hits);
            cpu.count(Count::CacheMisses, self.frames.len() as u64 - hits);
        }
        self.note_look(cpu);
    }

    fn note_look(&self, cpu: &Processor) {
        let begun: u64 = self.loads.iter().map(|load| load.blocks.len()).sum();
        if begun + self.left > 0 {
            cpu.trace(Event::CacheMiss, self.context, self.blocks.start.0, begun + self.left);
            self.volume.memory.note_read_miss();
            self.volume.memory.look_at_stock();
        }
    }

    /// Waits for memory, or for the end of a barrier.
    async fn until_others_can_load(&mut self, cpu: &Processor) {
        let (volume, within) = (Arc::clone(&self.volume), self.left_within);
        volume.settled.until(|| (!volume.is_barred(within)).then_some(())).await;
        if !volume.memory.try_allocate(self.left as usize, &mut self.spare) {
            // A reader that waits for memory holds none: others may need just that.
            self.spare.clear();
            self.frames.fill_with(|| None);
            // For all blocks: what was cached may be evicted meanwhile, and with less two large reads could take it
            // from each other for ever.
            self.spare = volume.memory.allocate(cpu, self.frames.len()).await;
        }
    }

    /// Waits for a block that another reader loads.
    async fn until_loaded(&self, cpu: &Processor, block: BlockNo) {
        let volume = &self.volume;
        if self.context.class == Class::Synchronous {
            volume.device.expedite(cpu, volume.bytes_of(block.run(1)));
        }
        let began = cpu.begin(Event::CacheLoadAwaited, self.context);
        volume.memory.cache().until_loaded(volume.key(block)).await;
        cpu.end(began, Event::CacheLoadAwaited, self.context, block.0, 0);
    }

    /// Issues the loads and takes their frames.
    async fn perform_loads(&mut self, cpu: &Processor) -> Result<Outcome, Errno> {
        let outcome = match self.loads.as_slice() {
            [] => return Ok(Outcome::Done),
            [only] => self.perform(cpu, only).await?,
            loads => {
                let results = join_all(loads.iter().map(|load| self.perform(cpu, load))).await;
                let outcomes = results.into_iter().collect::<Result<Vec<_>, Errno>>()?;
                outcomes.into_iter().find(|outcome| *outcome != Outcome::Done).unwrap_or(Outcome::Done)
            }
        };
        for Load { blocks, frames, .. } in self.loads.drain(..) {
            for (block, frame) in blocks.iter().zip(frames.into_inner()) {
                self.frames[(block - self.blocks.start) as usize] = Some(frame);
            }
        }
        Ok(outcome)
    }

    async fn perform(&self, cpu: &Processor, load: &Load) -> Result<Outcome, Errno> {
        let (volume, context) = (&self.volume, self.context);
        if let Some(coherence) = &volume.coherence {
            return self.perform_shared(cpu, coherence, load).await;
        }
        let range = volume.bytes_of(load.blocks);
        let mut result = Ok(Outcome::Done);
        // A file may have been truncated since the lookup.
        let mut frames = load.frames.borrow().clone();
        frames.truncate(range.len.div_ceil(BLOCK_BYTES) as usize);
        // A failed flush may have restored the content from before the zeroing.
        let zeroes = volume.state.lock().cleared.zeroes_within(load.blocks);
        if !frames.is_empty() && !zeroes.contains(&load.blocks) {
            let action = Action::Read(range, frames);
            result = volume.device.perform(cpu, Request { action, context }).await;
        }
        let is_done = result == Ok(Outcome::Done);
        if is_done {
            zeroes.into_iter().for_each(|blocks| load.zero(blocks));
            load.zero_beyond_end(range.len);
        }
        load.settle(volume, is_done);
        result
    }

    /// Each block is put into the cache when it comes ([`Volume::put`]), not when all have come. What comes in a frame of
    /// its own takes the place of this load's, which is free from then on.
    async fn perform_shared(
        &self,
        cpu: &Processor,
        coherence: &Arc<dyn Coherence>,
        load: &Load,
    ) -> Result<Outcome, Errno> {
        let frames = load.frames.take();
        load.numbers.replace(frames.iter().map(FrameRef::no).collect());
        match coherence.read(cpu, load.blocks, frames).await {
            Ok(frames) => {
                load.is_settled.set(true);
                load.frames.replace(frames);
                Ok(Outcome::Done)
            }
            Err(errno) => {
                load.settle(&self.volume, false);
                Err(errno)
            }
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.volume.blocks_awaited.fetch_sub(self.awaited, Ordering::Relaxed);
        self.loads.iter().filter(|load| !load.is_settled.get()).for_each(|load| load.settle(&self.volume, false));
    }
}

impl Load {
    /// Makes the buffers valid, or drops them.
    fn settle(&self, volume: &Volume, ok: bool) {
        self.is_settled.set(true);
        let pool = volume.memory.frames();
        for run in Cache::runs(self.blocks) {
            let mut shard = volume.lock_shard(run.start);
            for block in run.iter() {
                let Some(slot) = shard.find(volume.key(block)) else { continue };
                let own = self.number((block - self.blocks.start) as usize);
                // A write may have replaced the frame meanwhile.
                if Some(shard.frame_no(slot)) != own || !shard.state(slot).any(BufferState::LOADING) {
                    continue;
                }
                if ok {
                    let state = shard.state(slot).without(BufferState::LOADING);
                    shard.set_state(slot, state);
                } else {
                    drop(shard.remove(slot, pool));
                }
            }
        }
    }

    fn number(&self, index: usize) -> Option<FrameNo> {
        let held = self.frames.borrow().get(index).map(FrameRef::no);
        held.or_else(|| self.numbers.borrow().get(index).copied())
    }

    /// Zeroes what follows the first `len` bytes, where the device ends.
    fn zero_beyond_end(&self, len: u64) {
        let held = self.frames.borrow().len() as u64 * BLOCK_BYTES;
        self.zero_bytes(len, held.saturating_sub(len));
    }

    /// Zeroes some of its blocks.
    fn zero(&self, blocks: BlockRange) {
        self.zero_bytes((blocks.start - self.blocks.start) * BLOCK_BYTES, blocks.len() * BLOCK_BYTES);
    }

    fn zero_bytes(&self, from: u64, len: u64) {
        for segment in segments(&self.frames.borrow(), from as usize, len as usize) {
            // SAFETY: the frames are being loaded: no reader has access before `settle`.
            unsafe { segment.ptr.write_bytes(0, segment.len as usize) };
        }
    }
}
