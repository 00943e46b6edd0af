//! Memory: the frames, the buffer cache in them, its size, and waiters for memory.
//!
//! Beyond 64 MiB, memory is taken in the background (a small reserve of free frames, provided by a thread of the pool;
//! at most a quarter of the time unless there are read misses). Allocations meanwhile evict the coldest clean block. On
//! a virtual machine whose free pages went back to its host, a fresh page costs several microseconds, more than reading
//! the block again: copies of an image into the cache took half as long again while they grew it themselves. A fixed
//! cache (`dynamic_cache = false`) grows at once.

mod dirty;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use policy::cache::Algorithm;
use policy::pages::PageChoice;
use policy::unit::BLOCK_BYTES;
use policy::{color, sizing, writeback};

use crate::cache::Cache;
use crate::frame::{FramePool, FrameRef, Frames};
use crate::processor::{self, Processor};
use crate::request::JobId;
use crate::trace::Event;
use crate::wait::WaitList;

/// Frames evicted in one batch, at least, to amortise the lock and the policy's work.
const EVICTIONS_MIN: usize = 32;

/// The reserve of free frames, as a fraction of the cache...
const STOCK_SHARE: u64 = 32;

/// ...and at most. Bytes.
const STOCK_BYTES_MAX: u64 = 4 << 20;

/// A cache that follows the host's memory takes this much at once, the rest in the background, while allocations evict
/// the coldest clean block: fresh memory may cost more than reading a block again. Bytes.
const GROWS_FREELY_TO: u64 = 64 << 20;

/// How often a waiter for memory tries again, apart from being woken.
const MEMORY_RETRY: Duration = Duration::from_millis(1);

/// Shards of the cache per processor: few enough to be cheap, many enough to avoid contention.
const SHARDS_A_PROCESSOR: u64 = 16;

/// Blocks in a shard, at least: each evicts for itself, and needs enough to choose from.
const SHARD_BLOCKS_MIN: u64 = 2048;

/// And at most: half of what its index can address, since a shard may exceed its share.
const SHARD_BLOCKS_MAX: u64 = 1 << 26;

pub(crate) struct MemoryConfig {
    /// Follow the memory pressure of the host (WS-2)? Otherwise the cache may always grow to the pool's size.
    pub(crate) sizing: Option<sizing::Config>,
    pub(crate) write_back: writeback::Config,
    pub(crate) kind: Algorithm,
    pub(crate) pages: PageChoice,
    pub(crate) processors: u16,
}

pub struct Memory {
    frames: FramePool,
    cache: Cache,
    sizing: Option<sizing::Config>,
    write_back: writeback::Config,
    /// Does the cache follow the host's memory?
    is_dynamic: AtomicBool,
    /// Chunks that the pool may hold now.
    chunks_target: AtomicU32,
    /// Blocks newer than on their devices, in all volumes.
    dirty_blocks: AtomicU64,
    /// Blocks held by degraded volumes.
    stuck_blocks: AtomicU64,
    /// Blocks that shared volumes retain for other nodes.
    marked_blocks: AtomicU64,
    /// Writers throttled by the limits of dirty blocks.
    writers_waiting: AtomicU32,
    /// Waiters for memory or for fewer dirty blocks.
    memory_wait: WaitList,
    /// The task that refills the reserve.
    stock_wait: WaitList,
    stock_awaited: AtomicBool,
    /// Was there a read miss since this was last checked?
    read_misses: AtomicBool,
    /// Write-back tasks, which run at once if memory is short.
    write_back_wait: WaitList,
    /// Waiters for memory that only write-back can free.
    memory_short: AtomicU32,
    zero_frame: OnceLock<FrameRef>,
    pages: Mutex<PageChoice>,
    /// What is known of the processor's cache.
    colors: Mutex<color::Found>,
}

impl Memory {
    pub(crate) fn new(frames: FramePool, config: MemoryConfig) -> Self {
        let MemoryConfig { sizing, write_back, kind, pages, processors } = config;
        let chunks_max = frames.chunks_max();
        let shards = shards_for(processors, u64::from(chunks_max) * frames.chunk_bytes() / BLOCK_BYTES);
        let mode = sizing.as_ref().map(|sizing| sizing.mode);
        let memory = Memory {
            cache: Cache::new(shards as usize, kind),
            chunks_target: AtomicU32::new(chunks_max),
            frames,
            is_dynamic: AtomicBool::new(mode == Some(sizing::Mode::Dynamic)),
            sizing,
            write_back,
            dirty_blocks: AtomicU64::new(0),
            stuck_blocks: AtomicU64::new(0),
            marked_blocks: AtomicU64::new(0),
            writers_waiting: AtomicU32::new(0),
            memory_wait: WaitList::default(),
            stock_wait: WaitList::default(),
            stock_awaited: AtomicBool::new(false),
            read_misses: AtomicBool::new(false),
            write_back_wait: WaitList::default(),
            memory_short: AtomicU32::new(0),
            zero_frame: OnceLock::new(),
            pages: Mutex::new(pages),
            colors: Mutex::default(),
        };
        memory.set_chunks_target(match mode {
            Some(sizing::Mode::Fixed { bytes }) => memory.chunks_of(bytes),
            _ => chunks_max,
        });
        memory
    }

    pub fn frames(&self) -> &FramePool {
        &self.frames
    }

    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// `None`: the cache cannot follow the host's memory.
    pub(crate) fn sizing(&self) -> Option<&sizing::Config> {
        self.sizing.as_ref()
    }

    pub(crate) fn write_back(&self) -> &writeback::Config {
        &self.write_back
    }

    /// What was found of cache colours on this machine.
    pub fn colors_found(&self) -> color::Found {
        *self.colors.lock()
    }

    pub(crate) fn choose_colors(&self, choice: color::Choice) {
        self.frames.set_colors(choice.colors(self.colors_found()));
    }

    pub(crate) fn on_colors_found(&self, found: color::Found, choice: color::Choice) {
        *self.colors.lock() = found;
        self.choose_colors(choice);
    }

    /// Frames for `count` blocks, with undefined content. Waits until there is memory.
    pub async fn allocate(&self, cpu: &Processor, count: usize) -> Frames {
        let mut frames = Frames::new();
        loop {
            if self.try_allocate(count, &mut frames) {
                return frames;
            }
            // A waiter must hold none: two could each hold half of what the other needs.
            frames.clear();
            let began = cpu.begin(Event::MemoryAwaited, JobId::default());
            let waits = self.await_memory();
            cpu.sleep(MEMORY_RETRY).await;
            drop(waits);
            cpu.end(began, Event::MemoryAwaited, JobId::default(), count as u64, 0);
        }
    }

    /// Fills `into` up to `count` frames if possible without waiting; returns whether it has that many.
    pub fn try_allocate(&self, count: usize, into: &mut Frames) -> bool {
        loop {
            self.frames.take(count.saturating_sub(into.len()), into);
            self.look_at_stock();
            let missing = count.saturating_sub(into.len());
            if missing == 0 {
                return true;
            }
            let evict = || self.evict(missing.max(EVICTIONS_MIN));
            let is_gentle = self.grows_gently() && self.frames.bytes_held() >= GROWS_FREELY_TO;
            if is_gentle && evict() {
                continue;
            }
            if self.frames.grow(self.chunks_target(), self.page_choice().next()) {
                self.fit_cache();
            } else if is_gentle || !evict() {
                return false;
            }
        }
    }

    /// Evicts cold blocks; returns whether any was evicted.
    fn evict(&self, blocks: usize) -> bool {
        let evicted = self.cache.evict(blocks, &self.frames);
        if evicted > 0
            && let Some(cpu) = processor::here()
        {
            cpu.trace(Event::CacheEvicted, cpu.job(), evicted as u64, 0);
        }
        evicted > 0
    }

    /// Does the cache grow in the background only, while something can be evicted?
    pub(crate) fn grows_gently(&self) -> bool {
        self.is_dynamic.load(Ordering::Relaxed)
    }

    /// Starts or stops following the host's memory.
    pub(crate) fn set_dynamic(&self, is_dynamic: bool) {
        self.is_dynamic.store(is_dynamic, Ordering::Relaxed);
    }

    /// The page size for new memory.
    pub(crate) fn page_choice(&self) -> MutexGuard<'_, PageChoice> {
        self.pages.lock()
    }

    pub(crate) fn note_read_miss(&self) {
        if !self.read_misses.load(Ordering::Relaxed) {
            self.read_misses.store(true, Ordering::Relaxed);
        }
    }

    /// Was there a read miss since the last call?
    pub(crate) fn take_read_misses(&self) -> bool {
        self.read_misses.swap(false, Ordering::Relaxed)
    }

    /// Sets the cache's capacity to the blocks for which there are frames.
    pub(crate) fn fit_cache(&self) {
        self.cache.set_capacity(self.cache_blocks().min(self.frames.bytes_held() / BLOCK_BYTES));
    }

    /// Is the reserve below its target, and may the pool grow? Not before its first use.
    pub(crate) fn is_stock_low(&self) -> bool {
        let stock = (self.cache_blocks() / STOCK_SHARE).min(STOCK_BYTES_MAX / BLOCK_BYTES);
        let active = self.frames.chunks_active();
        active > 0 && active < self.chunks_target() && !self.frames.has_free(stock)
    }

    /// To be called after frames were taken: refills the reserve if it is low.
    pub(crate) fn look_at_stock(&self) {
        if self.stock_awaited.load(Ordering::Relaxed) && self.is_stock_low() {
            self.stock_awaited.store(false, Ordering::Relaxed);
            self.stock_wait.wake_all();
        }
    }

    /// Waits until the reserve is low.
    pub(crate) async fn until_stock_low(&self) {
        let is_low = || {
            self.stock_awaited.store(true, Ordering::Relaxed);
            self.is_stock_low().then_some(())
        };
        self.stock_wait.until(is_low).await;
    }

    /// A shared frame of zeroes.
    pub(crate) async fn zero_frame(&self, cpu: &Processor) -> FrameRef {
        match self.zero_frame_at_hand() {
            Some(frame) => frame,
            None => self.share_zeroes(self.allocate(cpu, 1).await.remove(0)),
        }
    }

    /// As `zero_frame`, if there is one already.
    pub(crate) fn known_zero_frame(&self) -> Option<FrameRef> {
        self.zero_frame.get().cloned()
    }

    /// As `zero_frame`, but never waits for memory: to free it, blocks are written.
    pub(crate) fn zero_frame_at_hand(&self) -> Option<FrameRef> {
        if let Some(frame) = self.known_zero_frame() {
            return Some(frame);
        }
        let mut frames = Frames::new();
        self.try_allocate(1, &mut frames);
        frames.pop().map(|frame| self.share_zeroes(frame))
    }

    fn share_zeroes(&self, mut frame: FrameRef) -> FrameRef {
        if let Some(bytes) = frame.bytes_mut() {
            bytes.fill(0);
        }
        self.zero_frame.get_or_init(|| frame).clone()
    }

    /// Blocks that the cache may hold now.
    pub fn cache_blocks(&self) -> u64 {
        u64::from(self.chunks_target.load(Ordering::Relaxed)) * self.frames.chunk_bytes() / BLOCK_BYTES
    }

    pub(crate) fn memory_wait(&self) -> &WaitList {
        &self.memory_wait
    }

    pub(crate) fn write_back_wait(&self) -> &WaitList {
        &self.write_back_wait
    }

    /// Are there waiters for memory that only write-back can free?
    pub(crate) fn is_memory_short(&self) -> bool {
        self.memory_short.load(Ordering::SeqCst) > 0
    }

    pub(crate) fn chunks_target(&self) -> u32 {
        self.chunks_target.load(Ordering::Relaxed)
    }

    /// Whole chunks in `bytes`.
    pub(crate) fn chunks_of(&self, bytes: u64) -> u32 {
        u32::try_from(bytes / self.frames.chunk_bytes()).unwrap_or(u32::MAX)
    }

    pub(crate) fn set_chunks_target(&self, chunks: u32) {
        let chunks = chunks.clamp(1, self.frames.chunks_max());
        self.chunks_target.store(chunks, Ordering::Relaxed);
        self.fit_cache();
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.zero_frame.take();
        self.cache.clear(&self.frames);
    }
}

fn shards_for(processors: u16, blocks: u64) -> u64 {
    let wanted = (u64::from(processors) * SHARDS_A_PROCESSOR).min(blocks / SHARD_BLOCKS_MIN);
    wanted.max(blocks.div_ceil(SHARD_BLOCKS_MAX))
}
