//! What was done, counted so cheaply that it always is (OLTP 1.2).
//!
//! Each processor has a block of counters that it alone writes, on cache lines of its own; any thread may read them, at
//! any time, without a processor noticing (as the TOP-1 was watched through its shared memory). What belongs to a disk is
//! counted in the same way with its queue, and what belongs to a lock by its holder, beside it.
//!
//! A reader sees each counter as it was at some moment of its reading, not all of them at the same moment.

mod disk;
mod latency;
mod lock;
mod parked;
mod request;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use machine::TickSource;
use policy::unit::ProcessorId;

use crate::trace::Event;

pub use disk::DiskReading;
pub(crate) use disk::{DiskBlock, DiskCounters};
pub use latency::{BUCKETS, Histogram, upper_bound};
pub use lock::LockReading;
pub(crate) use lock::{CountedGuard, CountedMutex};
pub use request::{Group, RequestType, Service};

use latency::Latency;
use parked::LastRead;

/// A number that one thread at a time changes and any thread reads.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds. There must be no other writer at this time: that spares the bus a locked operation.
    #[inline]
    pub(crate) fn add(&self, number: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(number), Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counts {
    ($($(#[doc = $doc:literal])+ $count:ident;)*) => {
        /// What a processor counts.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Count {
            $($(#[doc = $doc])+ $count,)*
        }

        impl Count {
            /// All of them.
            pub const ALL: &[Count] = &[$(Count::$count,)*];
        }
    };
}

counts! {
    /// Tasks taken from the queue of those that are ready, and run.
    Dispatches;
    /// Tasks that ran at once when a completion had woken them (OLTP-3).
    ImmediateDispatches;
    /// Tasks begun.
    TasksStarted;
    /// Completions taken from the machine.
    Completions;
    /// Times that a processor had nothing to do.
    Parks;
    /// Times that a processor waited for more completions before it took them (OLTP-1).
    QuantumWaits;
    /// Times that its machine entered the host's kernel.
    KernelEntries;
    /// Pieces of the cache's memory that the host did not register for it.
    RegionsDeclined;
    /// Bytes that came from clients.
    BytesReceived;
    /// Bytes that went to clients.
    BytesSent;
    /// Sends to clients.
    Sends;
    /// Synchronous reads of the cache.
    CacheReads;
    /// Blocks of these that were cached.
    CacheHits;
    /// Blocks of these that were not, or were still being loaded.
    CacheMisses;
    /// Calls of the cache for a write.
    CacheWrites;
    /// Calls of read-ahead that had something fetched.
    ReadAheads;
    /// Blocks that it had fetched.
    ReadAheadBlocks;
    /// Transfers of write-back and of flushes.
    WriteOuts;
    /// Blocks that they wrote.
    WriteOutBlocks;
    /// Calls of the rendezvous, each for a flush.
    Gathers;
    /// Flushes that served them.
    Flushes;
    /// Tables that programs asked for by name.
    ProgramTables;
    /// Rows that programs asked for.
    ProgramGets;
    /// Rows that programs wrote.
    ProgramPuts;
    /// Rows that programs deleted.
    ProgramDeletes;
    /// Rows that programs asked for as the next of a range.
    ProgramNexts;
    /// Searches of the trees of databases.
    TreeSearches;
    /// Groups of transactions written to the logs of databases.
    LogGroups;
}

impl Count {
    const NUMBER: usize = Count::ALL.len();
}

/// What a processor does with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Tasks of other services: connections, requests, and what of the I/O path they do themselves.
    Service,
    /// Tasks of the transaction monitor: messages of terminals, transactions, logs, checkpoints.
    Monitor,
    /// Programs in databases, with what they ask of their tables.
    Program,
    /// Tasks of the I/O path alone: transfers, write-back, read-ahead, flushes.
    Path,
    /// Looking for work: the machine's operations, completions, timers, post.
    Overhead,
    /// Nothing, or looking out for something.
    Idle,
}

impl Activity {
    /// All of them.
    pub const ALL: [Activity; 6] =
        [Activity::Service, Activity::Monitor, Activity::Program, Activity::Path, Activity::Overhead, Activity::Idle];

    pub const fn name(self) -> &'static str {
        match self {
            Activity::Service => "service",
            Activity::Monitor => "monitor",
            Activity::Program => "program",
            Activity::Path => "path",
            Activity::Overhead => "overhead",
            Activity::Idle => "idle",
        }
    }
}

/// The counters of one processor. Two cache lines, as they are fetched in pairs.
#[repr(align(128))]
pub(crate) struct Block {
    counts: [Counter; Count::NUMBER],
    time: [Counter; Activity::ALL.len()],
    requests: [RequestCounter; RequestType::NUMBER],
    latency: [Latency; RequestType::GROUPS],
}

#[derive(Default)]
struct RequestCounter {
    count: Counter,
    ticks: Counter,
}

impl Block {
    fn new() -> Self {
        Block {
            counts: std::array::from_fn(|_| Counter::default()),
            time: std::array::from_fn(|_| Counter::default()),
            requests: std::array::from_fn(|_| RequestCounter::default()),
            latency: std::array::from_fn(|_| Latency::default()),
        }
    }

    #[inline]
    pub(crate) fn count(&self, what: Count, number: u64) {
        self.counts[what as usize].add(number);
    }

    #[inline]
    pub(crate) fn spend(&self, activity: Activity, ticks: u64) {
        self.time[activity as usize].add(ticks);
    }

    /// The processor is idle from `at` on, until it wakes. Ticks.
    #[inline]
    pub(crate) fn park(&self, at: u64) {
        self.time[Activity::Idle as usize].park(at);
    }

    #[inline]
    pub(crate) fn wake(&self, at: u64) {
        self.time[Activity::Idle as usize].wake(at);
    }

    /// So many requests were answered, each so long after it came.
    #[inline]
    pub(crate) fn requests(&self, event: Event, count: u64, ticks: u64) {
        let Some(request) = RequestType::of(event) else { return };
        let counter = &self.requests[request.index()];
        counter.count.add(count);
        counter.ticks.add(count * ticks);
        self.latency[request.group_index()].record(count, ticks);
    }

    fn read(&self) -> Reading {
        let requests = self.requests.iter().map(|request| (request.count.get(), request.ticks.get()));
        Reading {
            counts: self.counts.iter().map(Counter::get).collect(),
            time: self.time.iter().map(Counter::get).collect(),
            requests: requests.collect(),
            latency: self.latency.iter().map(Latency::read).collect(),
        }
    }
}

/// The counters of all processors.
pub struct Counters {
    blocks: Box<[Arc<Block>]>,
    /// The idle time of each processor.
    idle: Box<[LastRead]>,
    tick_source: OnceLock<TickSource>,
}

impl Counters {
    pub(crate) fn new(processors: u16) -> Self {
        Counters {
            blocks: (0..processors).map(|_| Arc::new(Block::new())).collect(),
            idle: (0..processors).map(|_| LastRead::default()).collect(),
            tick_source: OnceLock::new(),
        }
    }

    /// The block of a processor, for it alone.
    pub(crate) fn block(&self, id: ProcessorId, tick_source: TickSource) -> Arc<Block> {
        self.tick_source.get_or_init(|| tick_source);
        Arc::clone(&self.blocks[usize::from(id.0)])
    }

    /// In what times are counted; `None` before there is a processor.
    pub fn tick_source(&self) -> Option<TickSource> {
        self.tick_source.get().copied()
    }

    /// How often all processors together have counted `what`.
    pub(crate) fn total(&self, what: Count) -> u64 {
        self.blocks.iter().map(|block| block.counts[what as usize].get()).sum()
    }

    /// What each processor has counted.
    pub fn read(&self) -> Vec<Reading> {
        let now = machine::ticks(self.tick_source().unwrap_or_default());
        let read = |(block, idle): (&Arc<Block>, &LastRead)| {
            let mut reading = block.read();
            let at = Activity::Idle as usize;
            reading.time[at] = idle.read(&block.time[at], now);
            reading
        };
        self.blocks.iter().zip(&self.idle).map(read).collect()
    }
}

/// What one processor, or several together, have counted. Times are in ticks ([`Counters::tick_source`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    counts: Vec<u64>,
    time: Vec<u64>,
    requests: Vec<(u64, u64)>,
    latency: Vec<Histogram>,
}

impl Reading {
    /// How often, or how many.
    pub fn count(&self, what: Count) -> u64 {
        self.counts.get(what as usize).copied().unwrap_or(0)
    }

    /// For how long. Ticks.
    pub fn time(&self, activity: Activity) -> u64 {
        self.time.get(activity as usize).copied().unwrap_or(0)
    }

    /// Requests of that type that were answered, and how long they took together. Ticks.
    pub fn requests(&self, request: RequestType) -> (u64, u64) {
        self.requests.get(request.index()).copied().unwrap_or((0, 0))
    }

    /// How long requests of a group took. Ticks.
    pub fn latency(&self, service: Service, group: Group) -> Histogram {
        self.latency.get(request::group_index(service, group)).cloned().unwrap_or_default()
    }

    /// All of them together.
    pub fn sum(readings: &[Reading]) -> Reading {
        let mut sum = Block::new().read();
        for reading in readings {
            sum.counts.iter_mut().zip(&reading.counts).for_each(|(sum, more)| *sum += more);
            sum.time.iter_mut().zip(&reading.time).for_each(|(sum, more)| *sum += more);
            for (sum, more) in sum.requests.iter_mut().zip(&reading.requests) {
                *sum = (sum.0 + more.0, sum.1 + more.1);
            }
            sum.latency.iter_mut().zip(&reading.latency).for_each(|(sum, more)| sum.add(more));
        }
        sum
    }
}
