//! What all processors share: frames, cache, queues, switches.

mod dirty;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use policy::cache::Kind;
use policy::pages::PageChoice;
use policy::unit::{BLOCK_BYTES, DeviceId, ProcessorId};

use crate::cache::Cache;
use crate::connection::ConnectionTable;
use crate::counters::Counters;
use crate::export::ExportNumbers;
use crate::frame::{FramePool, FrameRef, Frames, HUGE_PAGE_BYTES, PoolConfig};
use crate::job::Jobs;
use crate::processor::{self, Mailbox, Processor};
use crate::queue::DiskQueue;
use crate::request::JobId;
use crate::switches::{LiveSwitches, Switches};
use crate::trace::{Event, Tracer};
use crate::tree::Siblings;
use crate::wait::WaitList;

/// Frames evicted at least, when any must be: the lock and the policy's work are shared by so many.
const EVICTIONS_MIN: usize = 32;

/// Free frames in stock, as a part of the cache...
const STOCK_SHARE: u64 = 32;

/// ...and at most. Bytes.
const STOCK_BYTES_MAX: u64 = 4 << 20;

/// A cache that follows the host's memory takes so much of it as fast as it is needed. Above that it takes it in the
/// background, and who needs a frame meanwhile gets that of the coldest clean block: fresh memory may cost more than
/// reading a block again. Bytes.
const GROWS_FREELY_TO: u64 = 64 << 20;

/// How often somebody who waits for memory looks again, apart from being woken.
const MEMORY_RETRY: Duration = Duration::from_millis(1);

/// Shards of the cache for each processor: few enough to be cheap, many enough that two processors seldom meet.
const SHARDS_A_PROCESSOR: u64 = 16;

/// Blocks in a shard, at least: each decides by itself what goes, and needs enough to choose from.
const SHARD_BLOCKS_MIN: u64 = 2048;

/// And at most: half of what its index can name, for it may get more than its share.
const SHARD_BLOCKS_MAX: u64 = 1 << 26;

/// How a kernel is made.
#[derive(Clone, Debug)]
pub struct KernelConfig {
    /// Processors that will be made for it.
    pub processors: u16,
    /// The cache holds at most this much. Bytes.
    pub memory_max: u64,
    /// The unit in which memory is taken and given back. Bytes, a power of two; `None` chooses by `memory_max`.
    pub chunk_bytes: Option<u64>,
    /// Follow the memory pressure of the host (WS-2)? Otherwise the cache may always be as large as `memory_max`.
    pub sizing: Option<policy::sizing::Config>,
    /// How dirty blocks are written.
    pub write_back: policy::writeback::Config,
    /// The techniques that are on at first.
    pub switches: Switches,
}

pub struct Kernel {
    frames: FramePool,
    cache: Cache,
    config: KernelConfig,
    mailboxes: Box<[OnceLock<Arc<Mailbox>>]>,
    /// Chunks that the pool may hold now.
    chunks_target: AtomicU32,
    /// Blocks that are newer than on their devices, over all volumes.
    dirty_blocks: AtomicU64,
    /// Blocks that volumes on failing disks hold.
    stuck_blocks: AtomicU64,
    /// Writers that wait for fewer dirty blocks.
    writers_waiting: AtomicU32,
    /// Who waits for memory or for fewer dirty blocks.
    memory_wait: WaitList,
    /// Who takes memory from the host before it is needed.
    stock_wait: WaitList,
    stock_awaited: AtomicBool,
    /// Somebody read what was not cached.
    read_misses: AtomicBool,
    /// Who writes back, and would do it at once when memory is short.
    write_back_wait: WaitList,
    /// Somebody waits for memory that only write-back can free.
    memory_short: AtomicU32,
    devices: Mutex<DeviceNumbers>,
    queues: Mutex<BTreeMap<u64, Arc<DiskQueue>>>,
    siblings: Arc<Siblings>,
    zero_frame: OnceLock<FrameRef>,
    pages: Mutex<PageChoice>,
    tracer: Arc<Tracer>,
    switches: LiveSwitches,
    counters: Counters,
    jobs: Arc<Jobs>,
    exports: ExportNumbers,
    connections: ConnectionTable,
}

#[derive(Default)]
struct DeviceNumbers {
    next: u16,
    returned: Vec<u16>,
}

/// Why a kernel could not be made, or a device not be added.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// The address space for the cache.
    #[error("cannot reserve {bytes} bytes of address space for the cache: {source}")]
    Reserve {
        /// How much was asked for.
        bytes: u64,
        /// Why not.
        source: std::io::Error,
    },
    #[error("too many devices are open (65536)")]
    TooManyDevices,
}

impl Kernel {
    /// A kernel without processors yet: make [`KernelConfig::processors`] of them.
    ///
    /// # Errors
    /// [`KernelError::Reserve`] when the host refuses the address space.
    pub fn new(config: KernelConfig) -> Result<Arc<Self>, KernelError> {
        Kernel::traced(config, Arc::new(Tracer::none()))
    }

    /// One whose events are recorded by `tracer`.
    ///
    /// # Errors
    /// As [`Kernel::new`].
    pub fn traced(config: KernelConfig, tracer: Arc<Tracer>) -> Result<Arc<Self>, KernelError> {
        let chunk = config.chunk_bytes.unwrap_or_else(|| chunk_bytes_for(config.memory_max));
        let bytes_max = config.memory_max.max(chunk).next_multiple_of(chunk);
        let frames = FramePool::new(PoolConfig {
            bytes_max,
            chunk_bytes: chunk,
            register: config.switches.registered_buffers,
            processors: config.processors,
        })
        .map_err(|source| KernelError::Reserve { bytes: bytes_max, source })?;
        let kind = if config.switches.scan_resistant { Kind::S3Fifo } else { Kind::Lru };
        let dynamic = config.sizing.as_ref().is_some_and(|sizing| sizing.mode == policy::sizing::Mode::Dynamic);
        let switches = LiveSwitches::new(Switches { trace: tracer.mode(), ..config.switches.clone() }, dynamic);
        let shards = shards_for(config.processors, bytes_max / BLOCK_BYTES);
        let processors = config.processors;
        let kernel = Kernel {
            cache: Cache::new(shards as usize, kind),
            mailboxes: (0..config.processors).map(|_| OnceLock::new()).collect(),
            chunks_target: AtomicU32::new(frames.chunks_max()),
            frames,
            pages: Mutex::new(PageChoice::new(config.switches.huge_pages)),
            config,
            dirty_blocks: AtomicU64::new(0),
            stuck_blocks: AtomicU64::new(0),
            writers_waiting: AtomicU32::new(0),
            memory_wait: WaitList::default(),
            stock_wait: WaitList::default(),
            stock_awaited: AtomicBool::new(false),
            read_misses: AtomicBool::new(false),
            write_back_wait: WaitList::default(),
            memory_short: AtomicU32::new(0),
            devices: Mutex::default(),
            queues: Mutex::default(),
            siblings: Arc::default(),
            zero_frame: OnceLock::new(),
            tracer,
            switches,
            counters: Counters::new(processors),
            jobs: Arc::default(),
            exports: ExportNumbers::default(),
            connections: ConnectionTable::default(),
        };
        kernel.set_chunks_target(match kernel.config.sizing.as_ref().map(|sizing| sizing.mode) {
            Some(policy::sizing::Mode::Fixed { bytes }) => u32::try_from(bytes / chunk).unwrap_or(u32::MAX),
            _ => kernel.frames.chunks_max(),
        });
        Ok(Arc::new(kernel))
    }

    pub fn frames(&self) -> &FramePool {
        &self.frames
    }

    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// The techniques that are on. Processors have a copy of their own ([`Processor::switches`]).
    pub fn switches(&self) -> Arc<Switches> {
        self.switches.current()
    }

    pub(crate) fn live_switches(&self) -> &LiveSwitches {
        &self.switches
    }

    /// For whom work is done.
    pub fn jobs(&self) -> &Arc<Jobs> {
        &self.jobs
    }

    pub fn tracer(&self) -> &Arc<Tracer> {
        &self.tracer
    }

    /// The connections that there are.
    pub fn connections(&self) -> &ConnectionTable {
        &self.connections
    }

    pub(crate) fn exports(&self) -> &ExportNumbers {
        &self.exports
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    pub fn config(&self) -> &KernelConfig {
        &self.config
    }

    /// How many processors it has.
    pub fn processors(&self) -> u16 {
        self.config.processors
    }

    /// The mailbox of a processor.
    ///
    /// # Panics
    /// When that processor was not made yet.
    pub fn mailbox(&self, id: ProcessorId) -> &Arc<Mailbox> {
        self.mailboxes[usize::from(id.0)].get().expect("every processor enrolls before tasks run")
    }

    /// All processors that were made.
    pub fn mailboxes(&self) -> impl Iterator<Item = &Arc<Mailbox>> {
        self.mailboxes.iter().filter_map(OnceLock::get)
    }

    pub(crate) fn enroll(&self, mailbox: Arc<Mailbox>) {
        let slot = &self.mailboxes[usize::from(mailbox.id().0)];
        assert!(slot.set(mailbox).is_ok(), "a processor was made twice");
    }

    /// Frames for `count` blocks, with arbitrary content. Waits until there is memory.
    pub async fn allocate(&self, cpu: &Processor, count: usize) -> Frames {
        let mut frames = Frames::new();
        loop {
            if self.try_allocate(count, &mut frames) {
                return frames;
            }
            // Nobody may sit on half of what it needs while another sits on the other half.
            frames.clear();
            let began = cpu.begin(Event::MemoryAwaited, JobId::default());
            self.memory_short.fetch_add(1, Ordering::SeqCst);
            self.write_back_wait.wake_all();
            cpu.sleep(MEMORY_RETRY).await;
            self.memory_short.fetch_sub(1, Ordering::SeqCst);
            cpu.end(began, Event::MemoryAwaited, JobId::default(), count as u64, 0);
        }
    }

    /// Fills `into` up to `count` frames if they can be had without waiting; tells whether it has so many now.
    pub fn try_allocate(&self, count: usize, into: &mut Frames) -> bool {
        loop {
            self.frames.take(count.saturating_sub(into.len()), into);
            if self.stock_awaited.load(Ordering::Relaxed) && self.is_stock_low() {
                self.stock_awaited.store(false, Ordering::Relaxed);
                self.stock_wait.wake_all();
            }
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

    /// Has cold blocks leave the cache; tells whether any did.
    fn evict(&self, blocks: usize) -> bool {
        let evicted = self.cache.evict(blocks, &self.frames);
        if evicted > 0
            && let Some(cpu) = processor::here()
        {
            cpu.trace(Event::CacheEvicted, cpu.job(), evicted as u64, 0);
        }
        evicted > 0
    }

    /// Does the cache take memory in the background only, as long as something can be evicted?
    pub(crate) fn grows_gently(&self) -> bool {
        self.switches.is_dynamic()
    }

    /// In which pages memory is taken.
    pub(crate) fn page_choice(&self) -> MutexGuard<'_, PageChoice> {
        lock(&self.pages)
    }

    /// Somebody reads what is not cached.
    pub(crate) fn note_read_miss(&self) {
        if !self.read_misses.load(Ordering::Relaxed) {
            self.read_misses.store(true, Ordering::Relaxed);
        }
    }

    /// Did somebody since this was asked last?
    pub(crate) fn take_read_misses(&self) -> bool {
        self.read_misses.swap(false, Ordering::Relaxed)
    }

    /// Tells the cache how many blocks there are frames for.
    pub(crate) fn fit_cache(&self) {
        self.cache.set_capacity(self.cache_blocks().min(self.frames.bytes_held() / BLOCK_BYTES));
    }

    /// Are fewer frames free than should be in stock, and more to be had? Not before the first are needed.
    pub(crate) fn is_stock_low(&self) -> bool {
        let stock = (self.cache_blocks() / STOCK_SHARE).min(STOCK_BYTES_MAX / BLOCK_BYTES);
        let active = self.frames.chunks_active();
        active > 0 && active < self.chunks_target() && !self.frames.has_free(stock)
    }

    /// Waits until there should be more in stock.
    pub(crate) async fn until_stock_low(&self) {
        let is_low = || {
            self.stock_awaited.store(true, Ordering::Relaxed);
            self.is_stock_low().then_some(())
        };
        self.stock_wait.until(is_low).await;
    }

    /// A frame full of zeroes, shared by all who need one.
    pub(crate) async fn zero_frame(&self, cpu: &Processor) -> FrameRef {
        if let Some(frame) = self.zero_frame.get() {
            return frame.clone();
        }
        let mut frame = self.allocate(cpu, 1).await.remove(0);
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

    /// Does somebody wait for memory that only write-back can free?
    pub(crate) fn is_memory_short(&self) -> bool {
        self.memory_short.load(Ordering::SeqCst) > 0
    }

    pub(crate) fn chunks_target(&self) -> u32 {
        self.chunks_target.load(Ordering::Relaxed)
    }

    pub(crate) fn set_chunks_target(&self, chunks: u32) {
        let chunks = chunks.clamp(1, self.frames.chunks_max());
        self.chunks_target.store(chunks, Ordering::Relaxed);
        self.fit_cache();
    }

    pub(crate) fn number_device(&self) -> Result<DeviceId, KernelError> {
        let mut devices = lock(&self.devices);
        if let Some(number) = devices.returned.pop() {
            return Ok(DeviceId(number));
        }
        let number = devices.next;
        devices.next = number.checked_add(1).ok_or(KernelError::TooManyDevices)?;
        Ok(DeviceId(number))
    }

    /// A device is closed; all of its blocks in the cache are below `end`.
    pub(crate) fn return_device(&self, device: DeviceId, end: u64) {
        self.cache.forget_device(device, end, &self.frames);
        lock(&self.devices).returned.push(device.0);
    }

    /// Makes every processor look at what the frame pool offers and withdraws, parked or not.
    pub(crate) fn wake_processors(&self) {
        self.mailboxes().for_each(|mailbox| mailbox.start(drop));
    }

    /// The request queue of a physical disk, made when first asked for.
    pub fn queue_of_disk(&self, disk: u64, make: impl FnOnce() -> DiskQueue) -> Arc<DiskQueue> {
        Arc::clone(lock(&self.queues).entry(disk).or_insert_with(|| Arc::new(make())))
    }
}

impl Kernel {
    /// The files that are open, of all trees.
    pub(crate) fn siblings(&self) -> &Arc<Siblings> {
        &self.siblings
    }

    /// The request queues of all physical disks, each with the disk's number.
    pub fn disk_queues(&self) -> Vec<(u64, Arc<DiskQueue>)> {
        lock(&self.queues).iter().map(|(disk, queue)| (*disk, Arc::clone(queue))).collect()
    }

    /// Clients' requests so far, by processor.
    pub fn requests(&self) -> Vec<u64> {
        self.mailboxes().map(|mailbox| mailbox.requests()).collect()
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.zero_frame.take();
        // Requests that were abandoned there hold frames, too.
        self.mailboxes().for_each(|mailbox| mailbox.forget_post());
        self.queues.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
        self.cache.clear(&self.frames);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn shards_for(processors: u16, blocks: u64) -> u64 {
    let wanted = (u64::from(processors) * SHARDS_A_PROCESSOR).min(blocks / SHARD_BLOCKS_MIN);
    wanted.max(blocks.div_ceil(SHARD_BLOCKS_MAX))
}

/// A huge page, or as many as keep the number of chunks within what can be registered.
fn chunk_bytes_for(memory_max: u64) -> u64 {
    let least = memory_max.div_ceil(crate::frame::CHUNKS_MAX).next_power_of_two();
    least.max(HUGE_PAGE_BYTES)
}
