//! Shared by all processors: memory, exports and devices, observation. These parts are independent of each other.

mod exports;
mod switching;

use std::sync::{Arc, OnceLock};

use policy::cache::Algorithm;
use policy::pages::PageChoice;
use policy::unit::{DiskNo, ProcessorId};

use crate::cache::Cache;
use crate::connection::ConnectionTable;
use crate::counters::Counters;
use crate::frame::{FramePool, Frames, HUGE_PAGE_BYTES, PoolConfig};
use crate::housekeeping;
use crate::job::Jobs;
use crate::memory::{Memory, MemoryConfig};
use crate::observed::Observed;
use crate::processor::{Mailbox, Processor};
use crate::queue::DiskQueue;
use crate::served::Served;
use crate::switches::{LiveSwitches, Switches};
use crate::trace::Tracer;

#[derive(Clone, Debug)]
pub struct KernelConfig {
    /// Number of processors to be made for it.
    pub processors: u16,
    /// Bytes in the cache, at most.
    pub memory_max: u64,
    /// The unit of taking and returning memory. Bytes, a power of two; `None`: chosen by `memory_max`.
    pub chunk_bytes: Option<u64>,
    /// Follow the memory pressure of the host (WS-2)? Otherwise the cache may always grow to `memory_max`.
    pub sizing: Option<policy::sizing::Config>,
    pub write_back: policy::writeback::Config,
    /// The initial switches.
    pub switches: Switches,
}

pub struct Kernel {
    memory: Arc<Memory>,
    served: Served,
    observed: Observed,
    mailboxes: Box<[OnceLock<Arc<Mailbox>>]>,
}

/// The host refuses the address space for the cache.
#[derive(Debug, thiserror::Error)]
#[error("cannot reserve {bytes} bytes of address space for the cache: {source}")]
pub struct ReserveError {
    /// Bytes requested.
    bytes: u64,
    source: std::io::Error,
}

impl Kernel {
    /// A kernel without processors yet: [`KernelConfig::processors`] of them must be made.
    ///
    /// # Errors
    /// When the host refuses the address space.
    pub fn new(config: KernelConfig) -> Result<Arc<Self>, ReserveError> {
        Kernel::traced(config, Arc::new(Tracer::none()))
    }

    /// As [`Kernel::new`]; `tracer` records its events.
    ///
    /// # Errors
    /// As [`Kernel::new`].
    pub fn traced(config: KernelConfig, tracer: Arc<Tracer>) -> Result<Arc<Self>, ReserveError> {
        let KernelConfig { processors, memory_max, chunk_bytes, sizing, write_back, switches } = config;
        let chunk_bytes = chunk_bytes.unwrap_or_else(|| chunk_bytes_for(memory_max));
        let bytes_max = memory_max.max(chunk_bytes).next_multiple_of(chunk_bytes);
        let register = switches.registered_buffers;
        let frames = FramePool::new(PoolConfig { bytes_max, chunk_bytes, register, processors })
            .map_err(|source| ReserveError { bytes: bytes_max, source })?;
        let kind = if switches.scan_resistant { Algorithm::S3Fifo } else { Algorithm::Lru };
        let pages = PageChoice::new(switches.huge_pages);
        let memory = Memory::new(frames, MemoryConfig { sizing, write_back, kind, pages, processors });
        let switches = LiveSwitches::new(Switches { trace: tracer.mode(), ..switches });
        Ok(Arc::new(Kernel {
            memory: Arc::new(memory),
            served: Served::default(),
            observed: Observed::new(tracer, switches, processors),
            mailboxes: (0..processors).map(|_| OnceLock::new()).collect(),
        }))
    }

    /// The frames, the cache in them, and the waiters for either.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Exports, devices, disks and connections.
    pub fn served(&self) -> &Served {
        &self.served
    }

    /// Counters, trace, jobs and switches.
    pub fn observed(&self) -> &Observed {
        &self.observed
    }

    pub fn processors(&self) -> u16 {
        self.mailboxes.len() as u16
    }

    ///
    /// # Panics
    /// If that processor was not made yet.
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

    /// Makes every processor check for changes of the frame pool's regions, even if parked.
    pub(crate) fn wake_processors(&self) {
        self.mailboxes().for_each(|mailbox| mailbox.start(drop));
    }

    /// To be called for each new processor. The first one runs the background tasks.
    pub(crate) fn begin(&self, cpu: &Processor) {
        if cpu.id() == ProcessorId(0) {
            housekeeping::start(cpu);
        }
    }

    /// Clients' requests so far, by processor.
    pub fn requests(&self) -> Vec<u64> {
        self.mailboxes().map(|mailbox| mailbox.requests()).collect()
    }
}

/// Shortcuts to the parts.
impl Kernel {
    pub fn frames(&self) -> &FramePool {
        self.memory.frames()
    }

    pub fn cache(&self) -> &Cache {
        self.memory.cache()
    }

    /// Blocks that the cache may hold now.
    pub fn cache_blocks(&self) -> u64 {
        self.memory.cache_blocks()
    }

    /// Blocks newer than on their devices.
    pub fn dirty_blocks(&self) -> u64 {
        self.memory.dirty_blocks()
    }

    /// As [`Memory::allocate`].
    pub async fn allocate(&self, cpu: &Processor, count: usize) -> Frames {
        self.memory.allocate(cpu, count).await
    }

    /// As [`Memory::try_allocate`].
    pub fn try_allocate(&self, count: usize, into: &mut Frames) -> bool {
        self.memory.try_allocate(count, into)
    }

    /// The present switches. Processors have copies ([`Processor::switches`]).
    pub fn switches(&self) -> Arc<Switches> {
        self.observed.switches.current()
    }

    pub fn jobs(&self) -> &Arc<Jobs> {
        &self.observed.jobs
    }

    pub fn tracer(&self) -> &Arc<Tracer> {
        &self.observed.tracer
    }

    pub fn counters(&self) -> &Counters {
        &self.observed.counters
    }

    pub fn connections(&self) -> &ConnectionTable {
        &self.served.connections
    }

    /// As [`Served::queue_of_disk`].
    pub fn queue_of_disk(&self, disk: DiskNo, make: impl FnOnce() -> DiskQueue) -> Arc<DiskQueue> {
        self.served.queue_of_disk(disk, make)
    }

    /// As [`Served::queue_of_passing_disk`].
    pub fn queue_of_passing_disk(&self, disk: DiskNo, make: impl FnOnce() -> DiskQueue) -> Arc<DiskQueue> {
        self.served.queue_of_passing_disk(disk, make)
    }

    /// As [`Served::disk_queues`].
    pub fn disk_queues(&self) -> Vec<(DiskNo, Arc<DiskQueue>)> {
        self.served.disk_queues()
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // Abandoned requests in the mailboxes and queues hold frames, too.
        self.mailboxes().for_each(|mailbox| mailbox.forget_post());
        self.served.forget_queues();
    }
}

/// A huge page, or more if the number of chunks would exceed what can be registered.
fn chunk_bytes_for(memory_max: u64) -> u64 {
    let least = memory_max.div_ceil(crate::frame::CHUNKS_MAX).next_power_of_two();
    least.max(HUGE_PAGE_BYTES)
}
