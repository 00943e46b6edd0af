//! Reading: from the cache, or into it.

use std::cell::Cell;
use std::cmp::Reverse;
use std::ops::Range;
use std::sync::atomic::Ordering;

use machine::Errno;
use policy::readahead;
use policy::unit::{BLOCK_BYTES, ByteRange, Class};
use smallvec::SmallVec;

use super::Volume;
use crate::cache::{Cache, State as BufferState, key};
use crate::counters::Count;
use crate::frame::{FrameRef, Frames, segments};
use crate::processor::Processor;
use crate::request::{Action, Context, Request};
use crate::trace::Event;
use crate::wait::join_all;

/// Nothing is read ahead while readers wait for so many blocks.
const READ_AHEAD_BESIDE_MAX: u64 = (2 << 20) / BLOCK_BYTES;

/// What a look into the cache found for a run of blocks.
#[derive(Default)]
struct Found {
    /// Nobody has asked the device for these.
    missing: SmallVec<[Range<u64>; 4]>,
    /// Somebody else is loading this one.
    loading: Option<u64>,
}

impl Volume {
    /// The blocks of `range`, if the cache has all of them. Never waits. The first byte of the range lies
    /// `range.at % 4096` bytes into the first frame.
    pub fn try_read(&self, cpu: &Processor, range: ByteRange) -> Option<Frames> {
        let mut frames = Frames::new();
        let blocks = range.blocks();
        if self.check(range).is_err()
            || !self.kernel.cache().try_share(self.id, blocks.clone(), self.kernel.frames(), &mut frames)
        {
            return None;
        }
        // A request without a miss hit.
        cpu.trace_implied(Event::CacheHit, (cpu.job(), self.export()), blocks.start, blocks.end - blocks.start);
        cpu.count(Count::CacheReads, 1);
        cpu.count(Count::CacheHits, blocks.end - blocks.start);
        self.note_read(cpu, blocks);
        Some(frames)
    }

    /// Reads `range`; see [`Volume::try_read`] for what the frames hold.
    ///
    /// # Errors
    /// [`Errno::INVALID`] for a range outside the volume, otherwise what the device says.
    pub async fn read(&self, cpu: &Processor, range: ByteRange, context: Context) -> Result<Frames, Errno> {
        self.check(range)?;
        let blocks = range.blocks();
        self.note_read(cpu, blocks.clone());
        let _waits = Waits::new(self, blocks.end - blocks.start);
        self.load(cpu, blocks, context).await
    }

    /// Brings `range` into the cache (NBD `CACHE`).
    ///
    /// # Errors
    /// As [`Volume::read`].
    pub async fn prefetch(&self, cpu: &Processor, range: ByteRange, context: Context) -> Result<(), Errno> {
        self.check(range)?;
        let blocks = range.blocks();
        let step = self.transfer_blocks_max();
        for start in blocks.clone().step_by(step as usize) {
            self.load(cpu, start..blocks.end.min(start + step), context).await?;
        }
        Ok(())
    }

    /// Tells the read-ahead policy of a read, and fetches what it asks for.
    fn note_read(&self, cpu: &Processor, blocks: Range<u64>) {
        let ahead = {
            let mut policy = self.read_ahead();
            let mode = cpu.switches().read_ahead;
            if policy.config().mode != mode {
                let config = readahead::Config { mode, ..policy.config().clone() };
                policy.set_config(config);
            }
            policy.on_read(blocks)
        };
        let Some(ahead) = ahead else { return };
        let last = self.size().div_ceil(BLOCK_BYTES);
        let ahead = ahead.start.min(last)..ahead.end.min(last);
        // Readers who ask for so much at a time keep the disk busy by themselves.
        let is_busy = self.blocks_awaited.load(Ordering::Relaxed) >= READ_AHEAD_BESIDE_MAX;
        if ahead.is_empty() || is_busy || self.kernel.is_memory_short() {
            return;
        }
        // What is fetched in advance must not push out what it was fetched beside.
        let end = ahead.end.min(ahead.start + (self.kernel.cache_blocks() / 8).max(1));
        let step = self.transfer_blocks_max();
        for start in (ahead.start..end).step_by(step as usize) {
            self.fetch_ahead(cpu, start..end.min(start + step));
        }
    }

    /// Fetches `blocks` for nobody yet, unless they are cached: of a cached file, every block would be looked up twice.
    fn fetch_ahead(&self, cpu: &Processor, blocks: Range<u64>) {
        let has = |block| self.kernel.cache().has(self.id, block);
        // The ends stand for the rest. A block between them that is not there is loaded when somebody reads it.
        if has(blocks.start) && has(blocks.end - 1) {
            return;
        }
        let Some(volume) = self.this.upgrade() else { return };
        cpu.trace(Event::ReadAhead, (cpu.job(), self.export()), blocks.start, blocks.end - blocks.start);
        cpu.count(Count::ReadAheads, 1);
        cpu.count(Count::ReadAheadBlocks, blocks.end - blocks.start);
        let here = cpu.clone();
        cpu.spawn_path(async move {
            let context = Context::asynchronous(here.job());
            // A read in advance may fail; who needs the block will ask and be told.
            let _ = volume.load(&here, blocks, context).await;
        });
    }

    /// The frames of `blocks`, read from the device where the cache does not have them.
    pub(super) async fn load(&self, cpu: &Processor, blocks: Range<u64>, context: Context) -> Result<Frames, Errno> {
        let context = self.with_export(context);
        let mut frames: SmallVec<[Option<FrameRef>; 4]> = blocks.clone().map(|_| None).collect();
        let mut spare = Frames::new();
        // Only what somebody waits for tells what the cache is worth, and only at the first look.
        let mut is_counted = context.class == Class::Asynchronous;
        loop {
            if self.is_given_up(&blocks) {
                return Err(Errno::IO);
            }
            let found = self.look(blocks.clone(), &mut frames);
            if !std::mem::replace(&mut is_counted, true) {
                let hits = frames.iter().flatten().count() as u64;
                cpu.count(Count::CacheReads, 1);
                cpu.count(Count::CacheHits, hits);
                cpu.count(Count::CacheMisses, frames.len() as u64 - hits);
            }
            let missing: u64 = found.missing.iter().map(|run| run.end - run.start).sum();
            if missing > 0 {
                cpu.trace(Event::CacheMiss, context, blocks.start, missing);
                self.kernel.note_read_miss();
                if !self.kernel.try_allocate(missing as usize, &mut spare) {
                    // Who waits for memory holds none: others may need just that.
                    spare.clear();
                    frames.fill_with(|| None);
                    spare = self.kernel.allocate(cpu, missing as usize).await;
                    continue;
                }
                self.fetch(cpu, &found.missing, &mut spare, context, blocks.start, &mut frames).await?;
            } else if let Some(block) = found.loading {
                if context.class == Class::Synchronous {
                    self.device.expedite(cpu, self.bytes_of(block..block + 1));
                }
                let began = cpu.begin(Event::CacheLoadAwaited, context);
                self.kernel.cache().until_not(self.id, block, BufferState::LOADING).await;
                cpu.end(began, Event::CacheLoadAwaited, context, block, 0);
            } else {
                return Ok(frames.into_iter().flatten().collect());
            }
        }
    }

    /// Takes shares in what the cache has of `blocks` and `frames` lacks.
    fn look(&self, blocks: Range<u64>, frames: &mut [Option<FrameRef>]) -> Found {
        let cache = self.kernel.cache();
        let mut found = Found::default();
        for run in Cache::runs(blocks.clone()) {
            let mut shard = cache.lock(self.id, run.start);
            for block in run {
                let frame = &mut frames[(block - blocks.start) as usize];
                if frame.is_some() {
                    continue;
                }
                match shard.find(key(self.id, block)) {
                    Some(slot) if shard.state(slot).any(BufferState::LOADING) => found.loading = Some(block),
                    Some(slot) => {
                        shard.touch(slot);
                        *frame = Some(shard.share(slot, self.kernel.frames()));
                    }
                    None => match found.missing.last_mut() {
                        Some(last) if last.end == block => last.end += 1,
                        _ => found.missing.push(block..block + 1),
                    },
                }
            }
        }
        found
    }

    /// Reads `missing` runs from the device into new buffers, whose frames are taken from `spare`. Blocks that somebody
    /// else began to load meanwhile are left to them.
    async fn fetch(
        &self,
        cpu: &Processor,
        missing: &[Range<u64>],
        spare: &mut Frames,
        context: Context,
        first: u64,
        frames: &mut [Option<FrameRef>],
    ) -> Result<(), Errno> {
        let step = self.transfer_blocks_max();
        // They are taken from the end: neighbouring blocks in neighbouring frames make short vectors.
        spare.sort_unstable_by_key(|frame| Reverse(frame.no()));
        let mut loads = Loads::new();
        // Before any load is begun: who raises a barrier waits for those that have.
        self.settled.until(|| (!missing.iter().any(|run| self.is_barred(run))).then_some(())).await;
        for run in missing {
            for start in run.clone().step_by(step as usize) {
                self.begin_loads(start..run.end.min(start + step), spare, &mut loads);
            }
        }
        if let [only] = loads.as_slice() {
            self.finish_load(cpu, only, context).await?;
        } else {
            let results = join_all(loads.iter().map(|load| self.finish_load(cpu, load, context))).await;
            results.into_iter().collect::<Result<(), Errno>>()?;
        }
        for load in &loads {
            for (block, frame) in load.blocks.clone().zip(&load.frames) {
                frames[(block - first) as usize] = Some(frame.clone());
            }
        }
        Ok(())
    }

    /// Registers buffers for those of `blocks` that are still missing, and appends the loads to be done.
    fn begin_loads<'a>(&'a self, blocks: Range<u64>, spare: &mut Frames, loads: &mut Loads<'a>) {
        let cache = self.kernel.cache();
        let pool = self.kernel.frames();
        let mut open = false;
        for run in Cache::runs(blocks) {
            let mut shard = cache.lock(self.id, run.start);
            // A barrier set before the shard was locked must be seen: whoever set it looks for loads under the lock.
            if self.is_barred(&run) {
                open = false;
                continue;
            }
            for block in run {
                let key = key(self.id, block);
                let frame = if shard.find(key).is_none() { spare.pop() } else { None };
                let Some(frame) = frame else {
                    open = false;
                    continue;
                };
                self.note_block(block);
                shard.insert(key, frame.clone(), BufferState::LOADING, cache.shard_capacity(), pool);
                if !open {
                    loads.push(Load {
                        volume: self,
                        blocks: block..block,
                        frames: Frames::new(),
                        settled: Cell::new(false),
                    });
                    open = true;
                }
                if let Some(load) = loads.last_mut() {
                    load.blocks.end = block + 1;
                    load.frames.push(frame);
                }
            }
        }
    }

    async fn finish_load(&self, cpu: &Processor, load: &Load<'_>, context: Context) -> Result<(), Errno> {
        let range = self.bytes_of(load.blocks.clone());
        let mut result = Ok(());
        // A file may have been cut short since somebody asked.
        let mut frames = load.frames.clone();
        frames.truncate(range.len.div_ceil(BLOCK_BYTES) as usize);
        // A flush that failed may have brought back what they were before they were zeroed.
        let zeroes = self.state().cleared.zeroes_within(&load.blocks);
        if !frames.is_empty() && !zeroes.contains(&load.blocks) {
            let action = Action::Read(range, frames);
            result = self.device.perform(cpu, Request { action, context }).await;
        }
        if result.is_ok() {
            zeroes.into_iter().for_each(|blocks| load.zero(blocks));
            load.zero_beyond_end(range.len);
        }
        load.settle(result.is_ok());
        result
    }
}

/// A reader who waits for blocks.
struct Waits<'a> {
    volume: &'a Volume,
    blocks: u64,
}

impl<'a> Waits<'a> {
    fn new(volume: &'a Volume, blocks: u64) -> Self {
        volume.blocks_awaited.fetch_add(blocks, Ordering::Relaxed);
        Waits { volume, blocks }
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.volume.blocks_awaited.fetch_sub(self.blocks, Ordering::Relaxed);
    }
}

/// Loads of one request: usually one.
type Loads<'a> = SmallVec<[Load<'a>; 1]>;

/// Blocks on their way from the device. If it is dropped before they came, the buffers go.
struct Load<'a> {
    volume: &'a Volume,
    blocks: Range<u64>,
    frames: Frames,
    settled: Cell<bool>,
}

impl Load<'_> {
    /// Makes the buffers valid, or forgets them.
    fn settle(&self, ok: bool) {
        self.settled.set(true);
        let kernel = &self.volume.kernel;
        let id = self.volume.id;
        for run in Cache::runs(self.blocks.clone()) {
            let mut shard = kernel.cache().lock(id, run.start);
            for block in run {
                let Some(slot) = shard.find(key(id, block)) else { continue };
                let own = &self.frames[(block - self.blocks.start) as usize];
                // A write may have put its own frame here meanwhile.
                if shard.frame_no(slot) != own.no() || !shard.state(slot).any(BufferState::LOADING) {
                    continue;
                }
                if ok {
                    let state = shard.state(slot).without(BufferState::LOADING);
                    shard.set_state(slot, state);
                } else {
                    drop(shard.remove(slot, kernel.frames()));
                }
            }
        }
    }

    /// What lies beyond the first `len` bytes, where the device ends, reads as zeroes.
    fn zero_beyond_end(&self, len: u64) {
        let held = self.frames.len() as u64 * BLOCK_BYTES;
        self.zero_bytes(len, held.saturating_sub(len));
    }

    /// Some of its blocks read as zeroes.
    fn zero(&self, blocks: Range<u64>) {
        self.zero_bytes((blocks.start - self.blocks.start) * BLOCK_BYTES, (blocks.end - blocks.start) * BLOCK_BYTES);
    }

    fn zero_bytes(&self, from: u64, len: u64) {
        for segment in segments(&self.frames, from as usize, len as usize) {
            // SAFETY: the frames are being loaded: nobody reads them before `settle`.
            unsafe { segment.ptr.write_bytes(0, segment.len as usize) };
        }
    }
}

impl Drop for Load<'_> {
    fn drop(&mut self) {
        if !self.settled.get() {
            self.settle(false);
        }
    }
}
