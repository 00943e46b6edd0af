//! Reading and read-ahead.

use std::sync::atomic::Ordering;

use machine::Errno;
use policy::readahead;
use policy::unit::{BLOCK_BYTES, BlockNo, BlockRange, ByteRange};

use super::load::Lookup;
use super::{Attempt, BLOCKS_AT_ONCE, Volume};
use crate::cache::Cache;
use crate::counters::Count;
use crate::frame::Frames;
use crate::processor::Processor;
use crate::request::Context;
use crate::trace::Event;

/// No read-ahead while readers wait for this many blocks.
const READ_AHEAD_BESIDE_MAX: u64 = (2 << 20) / BLOCK_BYTES;

impl Volume {
    /// The blocks of `range`, if the cache has all of them. Never waits. The first byte of the range lies
    /// `range.at % 4096` bytes into the first frame.
    pub fn try_read(&self, cpu: &Processor, range: ByteRange) -> Option<Frames> {
        self.check(range).ok()?;
        let (blocks, mut frames) = (range.blocks(), Frames::new());
        if self.memory.cache().share(self.id, blocks, self.memory.frames(), &mut frames).is_some() {
            return None;
        }
        self.note_hit(cpu, blocks);
        self.note_read(cpu, blocks);
        Some(frames)
    }

    /// Looks `range` up in the cache and starts loading what is missing; [`Volume::try_read`] describes the frames.
    /// Never waits.
    ///
    /// # Errors
    /// [`Errno::INVALID`] for a range outside the volume; the volume's error if its content was lost.
    pub fn begin_read(&self, cpu: &Processor, range: ByteRange, context: Context) -> Result<Lookup, Errno> {
        self.check(range)?;
        let blocks = range.blocks();
        let mut found = self.look_up(cpu, blocks, context)?;
        self.note_read(cpu, blocks);
        if let Lookup::Missing(reading) = &mut found {
            reading.note_waiter();
        }
        Ok(found)
    }

    /// Reads `range`; [`Volume::try_read`] describes the frames.
    ///
    /// # Errors
    /// [`Errno::INVALID`] for a range outside the volume, otherwise the device's error.
    pub async fn read(&self, cpu: &Processor, range: ByteRange, context: Context) -> Result<Frames, Errno> {
        match self.begin_read(cpu, range, context)? {
            Lookup::Cached(frames) => Ok(frames),
            Lookup::Missing(reading) => reading.finish(cpu).await,
        }
    }

    /// As [`Volume::read`], for content that others may change or truncate.
    ///
    /// # Errors
    /// As [`Volume::read`].
    pub async fn attempt_read(
        &self,
        cpu: &Processor,
        range: ByteRange,
        context: Context,
    ) -> Result<Attempt<Frames>, Errno> {
        if self.clip(range) != range {
            return Ok(Attempt::Changed);
        }
        match self.begin_read(cpu, range, context)? {
            Lookup::Cached(frames) => Ok(Attempt::Done(frames)),
            Lookup::Missing(reading) => reading.attempt(cpu).await,
        }
    }

    /// Drops those of `blocks` that are durable on the device: whoever has read them caches them, and a second copy here
    /// would only take memory, and processor caches, from what is read next.
    pub fn forget_delivered(&self, blocks: BlockRange) {
        let pool = self.memory.frames();
        for run in Cache::runs(blocks.intersection(BlockNo(0).to(self.blocks_end()))) {
            let mut shard = self.lock_shard(run.start);
            for block in run.iter() {
                if let Some(slot) = shard.find(self.key(block)).filter(|slot| shard.may_go(*slot)) {
                    drop(shard.remove(slot, pool));
                }
            }
        }
    }

    /// Brings `range` into the cache (NBD `CACHE`).
    ///
    /// # Errors
    /// As [`Volume::read`].
    pub async fn prefetch(&self, cpu: &Processor, range: ByteRange, context: Context) -> Result<(), Errno> {
        self.check(range)?;
        for some in range.blocks().pieces(BLOCKS_AT_ONCE) {
            for piece in some.pieces(self.transfer_blocks_max()) {
                self.load(cpu, piece, context).await?.required()?;
            }
            // What is cached, or known to be zeroes, is not waited for.
            if some.end < range.blocks().end {
                cpu.yield_now().await;
            }
        }
        Ok(())
    }

    /// All requested blocks were cached: a request counts as a hit if no block missed.
    pub(super) fn note_hit(&self, cpu: &Processor, blocks: BlockRange) {
        cpu.trace_implied(Event::CacheHit, (cpu.job(), self.export()), blocks.start.0, blocks.len());
        cpu.count(Count::CacheReads, 1);
        cpu.count(Count::CacheHits, blocks.len());
    }

    /// Reports a read to the read-ahead policy, and fetches what it asks for.
    fn note_read(&self, cpu: &Processor, blocks: BlockRange) {
        let ahead = {
            let mut policy = self.read_ahead.lock();
            let mode = cpu.switches().read_ahead;
            if policy.config().mode != mode {
                let config = readahead::Config { mode, ..policy.config().clone() };
                policy.set_config(config);
            }
            policy.on_read(blocks)
        };
        let Some(ahead) = ahead else { return };
        let mut ahead = ahead.intersection(ByteRange::new(0, self.readable_size()).blocks());
        // With this much awaited, the disk is busy already.
        let is_busy = self.blocks_awaited.load(Ordering::Relaxed) >= READ_AHEAD_BESIDE_MAX;
        if ahead.is_empty() || is_busy || self.memory.is_memory_short() {
            return;
        }
        // Read-ahead must not evict the blocks read just before.
        ahead.end = ahead.end.min(ahead.start + (self.memory.cache_blocks() / 8).max(1));
        ahead.pieces(self.transfer_blocks_max()).for_each(|piece| self.fetch_ahead(cpu, piece));
    }

    /// Fetches `blocks` ahead of any reader. Skipped if they are cached: each block would be looked up twice.
    fn fetch_ahead(&self, cpu: &Processor, blocks: BlockRange) {
        let has = |block| self.memory.cache().has(self.key(block));
        // Only the ends are checked. A missing block between them is loaded when it is read.
        if has(blocks.start) && has(blocks.end - 1) {
            return;
        }
        let Some(volume) = self.this.upgrade() else { return };
        cpu.trace(Event::ReadAhead, (cpu.job(), self.export()), blocks.start.0, blocks.len());
        cpu.count(Count::ReadAheads, 1);
        cpu.count(Count::ReadAheadBlocks, blocks.len());
        let here = cpu.clone();
        cpu.spawn_path(async move {
            let context = Context::asynchronous(here.job());
            // Ignored: a reader that needs the block will get the error.
            let _ = volume.load(&here, blocks, context).await;
        });
    }
}
