//! What there is to be seen of a server, at one moment.

use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kernel::Kernel;
use kernel::connection::ConnectionReading;
use kernel::counters::{DiskReading, LockReading, Reading};
use kernel::job::JobFacts;
use machine::TickSource;
use policy::unit::BLOCK_BYTES;

use crate::stack::is_in_memory;
use kernel::connection::Acceptor;

/// After so long the counter's rate is known well enough, and does not change any more.
const RATE_SETTLES: Duration = Duration::from_secs(10);

/// Jobs that are shown at a time, at most: whoever collects metrics keeps each name that it ever saw.
pub const JOBS_SHOWN: usize = 64;

/// Through which a server is seen. It does not keep the server alive.
pub struct View {
    kernel: Weak<Kernel>,
    acceptor: Weak<Acceptor>,
    begun: Instant,
    begun_ticks: u64,
    begun_time: Duration,
    seconds_a_tick: OnceLock<f64>,
}

/// A disk and what was done with it.
pub(super) struct Disk {
    pub(super) name: String,
    pub(super) reading: DiskReading,
}

/// What there is in the buffer cache. Bytes.
pub(super) struct CacheSample {
    pub(super) limit: u64,
    pub(super) memory: u64,
    pub(super) used: u64,
    pub(super) dirty: u64,
    /// Blocks.
    pub(super) evicted: u64,
    pub(super) locks: LockReading,
}

pub(super) struct Sample {
    /// Since when it is counted: since 1970.
    pub(super) begun: Duration,
    pub(super) uptime: Duration,
    pub(super) seconds_a_tick: f64,
    pub(super) processors: Vec<Reading>,
    pub(super) sum: Reading,
    pub(super) connections: Vec<u32>,
    pub(super) disks: Vec<Disk>,
    pub(super) connected: Vec<ConnectionReading>,
    pub(super) cache: CacheSample,
    /// Those that there is most to say of.
    pub(super) jobs: Vec<JobFacts>,
}

impl View {
    /// Of a server that begins now.
    pub fn new(kernel: &Arc<Kernel>, acceptor: &Arc<Acceptor>) -> Self {
        View {
            kernel: Arc::downgrade(kernel),
            acceptor: Arc::downgrade(acceptor),
            begun: Instant::now(),
            begun_ticks: machine::counter(),
            begun_time: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            seconds_a_tick: OnceLock::new(),
        }
    }

    /// What is seen now; `None` when the server is gone.
    pub(super) fn sample(&self) -> Option<Sample> {
        let (kernel, acceptor) = (self.kernel.upgrade()?, self.acceptor.upgrade()?);
        let processors = kernel.counters().read();
        let frames = kernel.frames();
        let memory = frames.bytes_held();
        let disks = kernel.disk_queues().into_iter().map(|(number, queue)| {
            let reading = queue.reading();
            Disk { name: disk_name(number), reading }
        });
        Some(Sample {
            begun: self.begun_time,
            uptime: self.begun.elapsed(),
            seconds_a_tick: self.seconds_a_tick(kernel.counters().tick_source().unwrap_or_default()),
            sum: Reading::sum(&processors),
            processors,
            connections: acceptor.connections(),
            disks: disks.collect(),
            connected: kernel.connections().read(),
            jobs: kernel.jobs().most_used(JOBS_SHOWN),
            cache: CacheSample {
                limit: kernel.cache_blocks() * BLOCK_BYTES,
                memory,
                used: memory.saturating_sub(u64::from(frames.frames_free()) * BLOCK_BYTES),
                dirty: kernel.dirty_blocks() * BLOCK_BYTES,
                evicted: kernel.cache().evictions(),
                locks: kernel.cache().lock_use(),
            },
        })
    }

    /// How long a tick is: the counter beside the clock, from the beginning until now.
    fn seconds_a_tick(&self, source: TickSource) -> f64 {
        if source == TickSource::Clock {
            return 1e-9;
        }
        if let Some(known) = self.seconds_a_tick.get() {
            return *known;
        }
        let (elapsed, ticks) = (self.begun.elapsed(), machine::counter().wrapping_sub(self.begun_ticks));
        let found = elapsed.as_secs_f64() / ticks.max(1) as f64;
        if elapsed >= RATE_SETTLES { *self.seconds_a_tick.get_or_init(|| found) } else { found }
    }
}

/// A disk as the host calls it, or by its number.
pub(crate) fn disk_name(number: u64) -> String {
    if let Some(number) = is_in_memory(number) {
        return format!("memory{number}");
    }
    let name = format!("{}:{}", libc::major(number), libc::minor(number));
    let link = std::fs::read_link(format!("/sys/dev/block/{name}"));
    let last = link.ok().and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
    last.unwrap_or(name)
}
