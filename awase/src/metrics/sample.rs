//! A sample of a server's counters and gauges.

use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dsm::Dsm;
use kernel::Kernel;
use kernel::connection::ConnectionReading;
use kernel::counters::{DiskReading, LockReading, Reading};
use kernel::job::JobFacts;
use machine::TickSource;
use policy::unit::{BLOCK_BYTES, DiskNo};
use transactions::counters::Counted;
use transactions::terminal::Terminals;

use super::shared::{self, SharedSample};
use crate::stack::is_in_memory;
use kernel::connection::Acceptor;

/// From then on the tick rate is precise to some millionths. It is measured once: with another one, counters of seconds could
/// fall, which collectors take for a restart.
const RATE_SETTLES: Duration = Duration::from_millis(100);

/// Most jobs shown at a time: collectors of metrics store every name that they ever saw.
pub const JOBS_SHOWN: usize = 64;

/// Takes samples of a server, without keeping it alive.
pub struct View {
    kernel: Weak<Kernel>,
    acceptor: Weak<Acceptor>,
    /// Shared disks, in the order of the configuration.
    shared: Weak<Dsm>,
    terminals: Weak<Terminals>,
    start: Instant,
    start_ticks: u64,
    start_time: Duration,
    seconds_per_tick: OnceLock<f64>,
}

pub(super) struct Disk {
    pub(super) name: String,
    pub(super) reading: DiskReading,
}

/// Gauges of the buffer cache. Bytes.
pub(super) struct CacheSample {
    pub(super) limit: u64,
    pub(super) colors: u64,
    pub(super) memory: u64,
    pub(super) used: u64,
    pub(super) dirty: u64,
    /// Blocks.
    pub(super) evicted: u64,
    pub(super) locks: LockReading,
}

pub(super) struct Sample {
    /// Start of the server, since 1970.
    pub(super) start: Duration,
    pub(super) uptime: Duration,
    pub(super) seconds_per_tick: f64,
    pub(super) processors: Vec<Reading>,
    pub(super) sum: Reading,
    /// Of each processor, then those of the central recorder.
    pub(super) trace_records: Vec<u64>,
    pub(super) connections: Vec<u32>,
    pub(super) disks: Vec<Disk>,
    pub(super) connected: Vec<ConnectionReading>,
    pub(super) cache: CacheSample,
    /// Those with the most usage.
    pub(super) jobs: Vec<JobFacts>,
    pub(super) shared: Vec<SharedSample>,
    pub(super) databases: Vec<DatabaseSample>,
    /// Also of databases that are not open here any more.
    pub(super) counted: Vec<(String, Counted)>,
}

/// A database in a sample.
pub(super) struct DatabaseSample {
    pub(super) name: String,
    pub(super) store: transactions::store::Reading,
}

impl View {
    /// Of a server that starts now.
    pub fn new(
        kernel: &Arc<Kernel>,
        acceptor: &Arc<Acceptor>,
        shared: Option<Arc<Dsm>>,
        terminals: &Arc<Terminals>,
    ) -> Self {
        let (start, start_ticks) = clock_and_ticks();
        View {
            shared: shared.map_or_else(Weak::new, |shared| Arc::downgrade(&shared)),
            terminals: Arc::downgrade(terminals),
            kernel: Arc::downgrade(kernel),
            acceptor: Arc::downgrade(acceptor),
            start,
            start_ticks,
            start_time: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            seconds_per_tick: OnceLock::new(),
        }
    }

    /// `None` when the server has ended.
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
            start: self.start_time,
            uptime: self.start.elapsed(),
            seconds_per_tick: self.seconds_per_tick(kernel.counters().tick_source().unwrap_or_default()),
            sum: Reading::sum(&processors),
            trace_records: kernel.tracer().records(),
            processors,
            connections: acceptor.connections(),
            disks: disks.collect(),
            connected: kernel.connections().read(),
            jobs: kernel.jobs().most_used(JOBS_SHOWN),
            shared: shared::sample(self.shared.upgrade()),
            databases: self.databases(),
            counted: self.terminals.upgrade().map_or_else(Vec::new, |terminals| terminals.counted()),
            cache: CacheSample {
                limit: kernel.cache_blocks() * BLOCK_BYTES,
                colors: frames.colors().into(),
                memory,
                used: memory.saturating_sub(u64::from(frames.frames_free()) * BLOCK_BYTES),
                dirty: kernel.dirty_blocks() * BLOCK_BYTES,
                evicted: kernel.cache().evictions(),
                locks: kernel.cache().lock_use(),
            },
        })
    }

    fn databases(&self) -> Vec<DatabaseSample> {
        let Some(terminals) = self.terminals.upgrade() else { return Vec::new() };
        let of = |monitor: &Arc<transactions::Monitor>| DatabaseSample {
            name: monitor.name().to_owned(),
            store: monitor.database().reading(),
        };
        terminals.databases().iter().map(of).collect()
    }

    /// The length of a tick: clock time over counter ticks, from the start to the first sample.
    fn seconds_per_tick(&self, source: TickSource) -> f64 {
        if source == TickSource::Clock {
            return 1e-9;
        }
        *self.seconds_per_tick.get_or_init(|| {
            std::thread::sleep(RATE_SETTLES.saturating_sub(self.start.elapsed()));
            let (end, ticks) = clock_and_ticks();
            (end - self.start).as_secs_f64() / ticks.wrapping_sub(self.start_ticks).max(1) as f64
        })
    }
}

/// Both at the same moment: of a few readings that which was least interrupted.
fn clock_and_ticks() -> (Instant, u64) {
    let read = || {
        let (before, clock, after) = (machine::counter(), Instant::now(), machine::counter());
        (after.wrapping_sub(before), clock, before)
    };
    let (_, clock, ticks) = [read(), read(), read(), read()].into_iter().min().expect("there are some");
    (clock, ticks)
}

/// The host's name of a disk, or its number.
pub(crate) fn disk_name(disk: DiskNo) -> String {
    if let Some(number) = is_in_memory(disk) {
        return format!("memory{number}");
    }
    let name = format!("{}:{}", libc::major(disk.0), libc::minor(disk.0));
    let link = std::fs::read_link(format!("/sys/dev/block/{name}"));
    let last = link.ok().and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
    last.unwrap_or(name)
}
