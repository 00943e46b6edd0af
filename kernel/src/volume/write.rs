//! Writing: frames are put into the cache.

use std::ops::Range;
use std::sync::atomic::Ordering;

use machine::Errno;
use policy::unit::{BLOCK_BYTES, ByteRange, Stability};
use policy::writeback::{Admission, WriteBack};

use super::Volume;
use crate::cache::{Shard, State as BufferState, key};
use crate::counters::Count;
use crate::frame::{FRAME_BYTES, FrameRef, Frames};
use crate::job::NOBODY;
use crate::processor::Processor;
use crate::request::{Context, JobId};
use crate::trace::Event;

impl Volume {
    /// Writes `range`. `frames` has one frame for each block that the range touches; the payload's first byte lies
    /// `range.at % 4096` bytes into the first. Ends when the cache has it or, with `Stability::Stable`, when it is
    /// durable.
    ///
    /// # Errors
    /// [`Errno::INVALID`] for a range outside the volume or frames that do not fit it, [`Errno::READ_ONLY`], otherwise
    /// what the device says.
    pub async fn write(
        &self,
        cpu: &Processor,
        range: ByteRange,
        frames: Frames,
        context: Context,
    ) -> Result<(), Errno> {
        self.check_writable(range)?;
        let blocks = range.blocks();
        if frames.len() as u64 != blocks.end - blocks.start {
            return Err(Errno::INVALID);
        }
        if range.len == 0 {
            return Ok(());
        }
        cpu.count(Count::CacheWrites, 1);
        let context = self.with_export(context);
        cpu.trace(Event::CacheWrite, context, blocks.start, blocks.end - blocks.start);
        self.admit(cpu, context).await?;
        let _writer = self.gate.enter().await;
        let mut were_cached = false;
        let mut installed = blocks.start..blocks.start;
        let mut result = Ok(());
        for (block, frame) in blocks.clone().zip(frames) {
            let part = self.part_of(block, range);
            match self.install_if_whole(block, frame, &part) {
                Ok(was_cached) => {
                    were_cached |= was_cached;
                    installed.start = if installed.is_empty() { block } else { installed.start };
                    installed.end = block + 1;
                }
                // Only the first and the last can be such.
                Err(frame) => result = self.patch(cpu, block, part.clone(), &frame.bytes()[part], context).await,
            }
            if result.is_err() {
                break;
            }
        }
        // Also when the last one failed: what is in the cache and nobody knows to be dirty would stay there for ever.
        if !installed.is_empty() {
            self.grow(range.end().0.min(installed.end * BLOCK_BYTES));
            self.mark_dirty(installed, context.job);
        }
        result?;
        match context.stability {
            Stability::Unstable => {
                self.write_early(cpu, blocks, were_cached, context);
                Ok(())
            }
            Stability::Stable => self.write_through(cpu, blocks, context).await,
        }
    }

    /// Waits while too much is dirty: in the whole cache, for what the volume's disk takes, or of what the job wrote
    /// (WS-7): who writes to a slow disk leaves room for those who write to a fast one, or little.
    ///
    /// # Errors
    /// What the device says, when it fails and cannot take what is dirty already.
    pub(super) async fn admit(&self, cpu: &Processor, context: Context) -> Result<(), Errno> {
        let policy = WriteBack::new(self.kernel.config().write_back.clone());
        let admission = || {
            let (facts, switches, job) = (self.kernel.dirty_facts(), cpu.switches(), context.job);
            // Between storms nothing would be written for one who waits below the limit.
            let by_job = job != NOBODY && switches.usage && switches.smooth_write_back;
            if by_job { policy.admit_job(facts, self.kernel.jobs().dirty(job)) } else { policy.admit(facts) }
        };
        let go = || match self.refusal() {
            Some(errno) => Some(Err(errno)),
            None => (admission() == Admission::Go && !self.is_at_limit()).then_some(Ok(())),
        };
        if let Some(verdict) = go() {
            return verdict;
        }
        let began = cpu.begin(Event::WriterHeldBack, context);
        let _waits = self.kernel.await_write_back();
        let verdict = self.kernel.memory_wait().until(go).await;
        cpu.end(began, Event::WriterHeldBack, context, self.kernel.dirty_blocks(), 0);
        verdict
    }

    /// Is as much dirty as the volume's disk takes in due time? What a disk in trouble takes is another question
    /// ([`Volume::refusal`]).
    pub(super) fn is_at_limit(&self) -> bool {
        let state = self.state();
        let dirty = state.dirty.len() + state.writing.len();
        dirty > self.dirty_limit.load(Ordering::Relaxed) && !state.is_in_trouble()
    }

    /// Which bytes of a block lie in `range`.
    fn part_of(&self, block: u64, range: ByteRange) -> Range<usize> {
        let start = block * BLOCK_BYTES;
        let from = range.at.0.max(start) - start;
        let to = range.end().0.min(start + BLOCK_BYTES) - start;
        from as usize..to as usize
    }

    /// Makes `frame` the content of a block, if `part` of it is all that there is of the block. Was it cached before?
    fn install_if_whole(&self, block: u64, mut frame: FrameRef, part: &Range<usize>) -> Result<bool, FrameRef> {
        if *part == (0..FRAME_BYTES) {
            return Ok(self.install(block, frame));
        }
        if part.start > 0 {
            return Err(frame);
        }
        let Some(bytes) = frame.bytes_mut() else { return Err(frame) };
        // What lies beyond the end reads as zeroes when the volume grows.
        bytes[part.end..].fill(0);
        let mut shard = self.kernel.cache().lock(self.id, block);
        // Under the lock: who grows the volume within this block changes the block first, then the size, and the block
        // stays here until then.
        if self.size() > block * BLOCK_BYTES + part.end as u64 || shard.find(key(self.id, block)).is_some() {
            return Err(frame);
        }
        self.install_in(&mut shard, block, frame);
        if self.config.grows {
            self.parts.on_part(block, BufferState::CLEAN, part.clone());
        }
        Ok(false)
    }

    /// Makes `frame` the content of a block. Was it cached before?
    pub(super) fn install(&self, block: u64, frame: FrameRef) -> bool {
        self.install_in(&mut self.kernel.cache().lock(self.id, block), block, frame)
    }

    fn install_in(&self, shard: &mut Shard, block: u64, frame: FrameRef) -> bool {
        let (cache, pool) = (self.kernel.cache(), self.kernel.frames());
        let key = key(self.id, block);
        match shard.find(key) {
            Some(slot) => {
                let old = shard.replace(slot, frame, pool);
                // A load under way finds another frame here and leaves it alone.
                let state = shard.state(slot).without(BufferState::LOADING).with(BufferState::DIRTY);
                shard.set_state(slot, state);
                shard.touch(slot);
                self.parts.on_whole(block);
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

    /// Changes a part of a block, which is brought into the cache first.
    pub(super) async fn patch(
        &self,
        cpu: &Processor,
        block: u64,
        part: Range<usize>,
        bytes: &[u8],
        context: Context,
    ) -> Result<(), Errno> {
        let mut spare = None;
        loop {
            match self.try_patch(block, part.clone(), bytes, &mut spare, context.job) {
                Patched::Done => return Ok(()),
                Patched::Absent if block * BLOCK_BYTES >= self.size() => self.put_zeroes(cpu, block).await,
                Patched::Absent => drop(self.load(cpu, block..block + 1, context).await?),
                Patched::Shared => spare = self.kernel.allocate(cpu, 1).await.pop(),
            }
        }
    }

    fn try_patch(
        &self,
        block: u64,
        part: Range<usize>,
        bytes: &[u8],
        spare: &mut Option<FrameRef>,
        job: JobId,
    ) -> Patched {
        let pool = self.kernel.frames();
        let mut shard = self.kernel.cache().lock(self.id, block);
        let Some(slot) = shard.find(key(self.id, block)) else { return Patched::Absent };
        let state = shard.state(slot);
        if state.any(BufferState::LOADING) {
            return Patched::Absent;
        }
        if !shard.patch_if_sole(slot, part.start, bytes, pool) {
            // Somebody sends or writes this frame: it stays as it is, and another takes its place.
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
        drop(shard);
        self.grow(block * BLOCK_BYTES + part.end as u64);
        self.mark_dirty(block..block + 1, job);
        Patched::Done
    }

    pub(super) fn mark_dirty(&self, blocks: Range<u64>, job: JobId) {
        if blocks.is_empty() {
            return;
        }
        let mut state = self.state();
        let was_clean = state.dirty.is_empty();
        let added = state.dirty.insert(blocks);
        self.note_dirty(&mut state, job, added);
        drop(state);
        if was_clean {
            self.dirtied.wake_all();
        }
    }
}

/// How an attempt to change a part of a block ended.
enum Patched {
    Done,
    /// The block must be loaded first.
    Absent,
    /// The frame is shared: a spare one is needed.
    Shared,
}
