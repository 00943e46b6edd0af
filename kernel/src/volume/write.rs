//! Writing: frames are installed in the cache.
//!
//! Frames are replaced, not overwritten. Locking a buffer during the transfer (as the classic buffer cache does) lets
//! one slow client block all others that want it. Replacing costs one frame for each write in flight.
//!
//! Large writes to uncached blocks are issued at once, as asynchronous requests: they belong to a copy or a log and
//! will not be rewritten soon, and the disk works while the next ones arrive.

use std::ops::Range;
use std::sync::atomic::Ordering;

use machine::Errno;
use policy::unit::{BlockNo, BlockRange, ByteRange, Stability};
use policy::writeback::{Admission, WriteBack};

use super::{Attempt, Volume};
use crate::cache::{Cache, Shard, State as BufferState};
use crate::counters::Count;
use crate::frame::{FrameRef, Frames};
use crate::job::NOBODY;
use crate::processor::Processor;
use crate::request::{Context, JobId};
use crate::trace::Event;

impl Volume {
    /// Writes `range`. `frames` has one frame for each block that the range touches; the payload's first byte lies
    /// `range.at % 4096` bytes into the first. Completes when the data is cached or, with `Stability::Stable`, durable.
    ///
    /// # Errors
    /// [`Errno::INVALID`] for a range outside the volume or frames that do not fit it, [`Errno::READ_ONLY`], otherwise
    /// the device's error.
    pub async fn write(
        &self,
        cpu: &Processor,
        range: ByteRange,
        frames: Frames,
        context: Context,
    ) -> Result<(), Errno> {
        self.attempt_write(cpu, range, frames, context).await?.required()
    }

    /// As [`Volume::write`], for content that others may change: matters to blocks that are written in part.
    ///
    /// # Errors
    /// As [`Volume::write`].
    pub async fn attempt_write(
        &self,
        cpu: &Processor,
        range: ByteRange,
        frames: Frames,
        context: Context,
    ) -> Result<Attempt<()>, Errno> {
        self.check_writable(range)?;
        let blocks = range.blocks();
        if frames.len() as u64 != blocks.len() {
            return Err(Errno::INVALID);
        }
        if range.len == 0 {
            return Ok(Attempt::Done(()));
        }
        cpu.count(Count::CacheWrites, 1);
        let context = self.with_export(context);
        cpu.trace(Event::CacheWrite, context, blocks.start.0, blocks.len());
        self.admit(cpu, context).await?;
        if let Some(coherence) = &self.coherence {
            // Boxed: large, and few volumes are shared.
            return Box::pin(self.write_shared(cpu, coherence, range, frames, context)).await.map(Attempt::Done);
        }
        let _writer = self.gate.enter().await;
        let mut installed = Installed { blocks: blocks.start.run(0), were_cached: false };
        let result = self.install_all(cpu, range, frames, context, &mut installed).await;
        // Even after an error: an installed block that is not in the dirty set would stay in the cache for ever.
        self.mark_dirty(installed.blocks, context.job);
        if result? == Attempt::Changed {
            return Ok(Attempt::Changed);
        }
        match context.stability {
            Stability::Unstable => self.write_early(cpu, blocks, installed.were_cached, context),
            Stability::Stable => self.write_through(cpu, blocks, context).await?,
        }
        Ok(Attempt::Done(()))
    }

    /// Installs the frames of `range`, up to the first error: whole blocks in one batch; the first and the last may
    /// have to be loaded first.
    async fn install_all(
        &self,
        cpu: &Processor,
        range: ByteRange,
        frames: Frames,
        context: Context,
        installed: &mut Installed,
    ) -> Result<Attempt<()>, Errno> {
        let whole = range.whole_blocks();
        let mut frames = frames.into_iter();
        let mut block = range.blocks().start;
        while block < range.blocks().end {
            if whole.contains(block) {
                let were_cached = self.install(whole, &mut frames);
                installed.add(whole, were_cached);
                block = whole.end;
                continue;
            }
            let (Some(frame), part) = (frames.next(), self.part_of(block, range)) else { return Err(Errno::INVALID) };
            match self.install_end(block, frame, &part) {
                EndOfVolume::Installed => installed.add(block.run(1), false),
                EndOfVolume::Elsewhere(frame) => {
                    // Boxed: large and rare.
                    let patched = Box::pin(self.patch(cpu, block, part.clone(), &frame.bytes()[part], context)).await?;
                    if patched == Attempt::Changed {
                        return Ok(Attempt::Changed);
                    }
                }
            }
            block = block + 1;
        }
        Ok(Attempt::Done(()))
    }

    /// Throttles the writer while there is too much dirty: in the whole cache, for the rate of the volume's disk, or by
    /// the writer's job (WS-7). So writers to a slow disk leave memory to writers to a fast one.
    ///
    /// # Errors
    /// The device's error, if the device fails and no more may be held for it.
    pub(super) async fn admit(&self, cpu: &Processor, context: Context) -> Result<(), Errno> {
        let admission = || {
            let policy = WriteBack::new(self.memory.write_back().clone());
            let (facts, switches, job) = (self.memory.dirty_facts(), cpu.switches(), context.job);
            // Per-job limits need smooth write-back: the classic update process writes nothing between its passes, so a
            // writer below the limit would wait for nothing.
            let by_job = job != NOBODY && switches.usage && switches.smooth_write_back;
            if by_job { policy.admit_job(facts, self.jobs.dirty(job)) } else { policy.admit(facts) }
        };
        let go = || match self.refusal() {
            Some(errno) => Some(Err(errno)),
            None => (admission() == Admission::Go && !self.is_at_limit()).then_some(Ok(())),
        };
        match go() {
            Some(verdict) => verdict,
            // Boxed: large and rare.
            None => Box::pin(self.held_back(cpu, context, go)).await,
        }
    }

    async fn held_back(
        &self,
        cpu: &Processor,
        context: Context,
        go: impl Fn() -> Option<Result<(), Errno>>,
    ) -> Result<(), Errno> {
        let began = cpu.begin(Event::WriterHeldBack, context);
        let _waits = self.memory.await_write_back();
        let verdict = self.memory.memory_wait().until(go).await;
        cpu.end(began, Event::WriterHeldBack, context, self.memory.dirty_blocks(), 0);
        verdict
    }

    /// Has the volume more dirty than its disk can write in due time? A degraded disk has a limit of its own
    /// ([`Volume::refusal`]).
    pub(super) fn is_at_limit(&self) -> bool {
        let state = self.state.lock();
        let dirty = state.dirty.len() + state.writing.len();
        dirty > self.dirty_limit.load(Ordering::Relaxed) && !state.is_in_trouble()
    }

    /// The bytes of a block that lie in `range`.
    pub(super) fn part_of(&self, block: BlockNo, range: ByteRange) -> Range<usize> {
        let (start, end) = (block.start(), (block + 1).start());
        (range.at.max(start) - start) as usize..(range.end().min(end) - start) as usize
    }

    /// Installs `frame` as the content of a block, if `part` is all of the block within the volume.
    fn install_end(&self, block: BlockNo, mut frame: FrameRef, part: &Range<usize>) -> EndOfVolume {
        if part.start > 0 {
            return EndOfVolume::Elsewhere(frame);
        }
        let Some(bytes) = frame.bytes_mut() else { return EndOfVolume::Elsewhere(frame) };
        // Bytes beyond the end must read as zeroes when the volume grows.
        bytes[part.end..].fill(0);
        let mut shard = self.lock_shard(block);
        // Under the lock: a writer that grows the volume within this block changes the block and the size under it.
        if self.volume_end() > block.start() + part.end as u64 || shard.find(self.key(block)).is_some() {
            return EndOfVolume::Elsewhere(frame);
        }
        self.install_in(&mut shard, block, frame);
        if self.config.grows {
            self.parts.on_part(block, BufferState::CLEAN, part.clone());
        }
        self.grow(block.start() + part.end as u64);
        EndOfVolume::Installed
    }

    /// Installs the next frames as `blocks`, adjacent ones under one lock, and extends a volume that grows to their end.
    /// Returns whether any was cached before.
    pub(super) fn install(&self, blocks: BlockRange, frames: &mut impl Iterator<Item = FrameRef>) -> bool {
        let mut were_cached = false;
        for run in Cache::runs(blocks) {
            let mut shard = self.lock_shard(run.start);
            for (block, frame) in run.iter().zip(&mut *frames) {
                were_cached |= self.install_in(&mut shard, block, frame);
            }
            self.parts.on_whole(run);
            self.grow(run.end.start());
        }
        were_cached
    }

    fn install_in(&self, shard: &mut Shard, block: BlockNo, frame: FrameRef) -> bool {
        let (cache, pool) = (self.memory.cache(), self.memory.frames());
        let key = self.key(block);
        match shard.find(key) {
            Some(slot) => {
                let old = shard.replace(slot, frame, pool);
                // A load in flight finds that the frame was replaced and leaves it alone.
                let state = shard.state(slot).without(BufferState::LOADING).with(BufferState::DIRTY);
                shard.set_state(slot, state);
                shard.touch(slot);
                drop(old);
                true
            }
            None => {
                self.note_block(block);
                shard.insert(key, frame, BufferState::DIRTY, cache.shard_capacity(), pool);
                false
            }
        }
    }

    /// Changes a part of a block, loading it first if necessary.
    pub(super) async fn patch(
        &self,
        cpu: &Processor,
        block: BlockNo,
        part: Range<usize>,
        bytes: &[u8],
        context: Context,
    ) -> Result<Attempt<()>, Errno> {
        let mut spare = None;
        loop {
            match self.try_patch(block, part.clone(), bytes, &mut spare, context.job) {
                Patched::Done => return Ok(Attempt::Done(())),
                Patched::Absent if block.start() >= self.volume_end() => self.put_zeroes(cpu, block).await,
                Patched::Absent => {
                    if matches!(self.load(cpu, block.run(1), context).await?, Attempt::Changed) {
                        return Ok(Attempt::Changed);
                    }
                    // Holes are read without being cached.
                    if self.is_zeroes(block) {
                        self.put_zeroes(cpu, block).await;
                    }
                }
                Patched::Shared => spare = self.memory.allocate(cpu, 1).await.pop(),
            }
        }
    }

    pub(super) fn try_patch(
        &self,
        block: BlockNo,
        part: Range<usize>,
        bytes: &[u8],
        spare: &mut Option<FrameRef>,
        job: JobId,
    ) -> Patched {
        let pool = self.memory.frames();
        let mut shard = self.lock_shard(block);
        let Some(slot) = shard.find(self.key(block)) else { return Patched::Absent };
        let state = shard.state(slot);
        if state.any(BufferState::LOADING) {
            return Patched::Absent;
        }
        if !shard.patch_if_sole(slot, part.start, bytes, pool) {
            // The frame is being sent or written and must not change: a copy replaces it.
            let Some(mut copy) = spare.take() else { return Patched::Shared };
            if let Some(content) = copy.bytes_mut() {
                content.copy_from_slice(shard.share(slot, pool).bytes());
                content[part.clone()].copy_from_slice(bytes);
            }
            drop(shard.replace(slot, copy, pool));
        }
        shard.touch(slot);
        if self.config.grows {
            self.parts.on_part(block, state, part.clone());
        }
        shard.set_state(slot, state.with(BufferState::DIRTY));
        self.grow(block.start() + part.end as u64);
        drop(shard);
        self.mark_dirty(block.run(1), job);
        Patched::Done
    }

    pub(super) fn mark_dirty(&self, blocks: BlockRange, job: JobId) {
        if blocks.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        let was_clean = state.dirty.is_empty();
        let added = state.dirty.insert(blocks);
        self.note_dirty(&mut state, job, added);
        drop(state);
        if was_clean {
            self.start_write_back();
        }
    }
}

/// Whole blocks that a write has put into the cache.
struct Installed {
    blocks: BlockRange,
    were_cached: bool,
}

impl Installed {
    /// `blocks` must follow without a gap.
    fn add(&mut self, blocks: BlockRange, were_cached: bool) {
        let start = if self.blocks.is_empty() { blocks.start } else { self.blocks.start };
        self.blocks = start.to(blocks.end);
        self.were_cached |= were_cached;
    }
}

/// Did a part of a block cover all of it within the volume?
enum EndOfVolume {
    Installed,
    Elsewhere(FrameRef),
}

pub(super) enum Patched {
    Done,
    /// The block must be loaded first.
    Absent,
    /// The frame is shared: a spare one is needed for the copy.
    Shared,
}
