//! One switch for each technique of the papers, on by default, to measure its effect.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use policy::{access, color, delivery, pages, quantum, readahead};

use crate::trace;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switches {
    /// The cache follows the host's free memory (WS-2); off: a fixed tenth of memory.
    pub dynamic_cache: bool,
    /// A scan does not evict frequently used blocks; off: least recently used.
    pub scan_resistant: bool,
    /// Dirty blocks are written gradually (WS-2); off: all of them every 30 s, the sync storm.
    pub smooth_write_back: bool,
    /// Adjacent requests are issued to the disk as one (WS-3).
    pub block_merge: bool,
    /// Synchronous requests first (WS-4).
    pub priority: bool,
    /// Read-ahead (WS-3, WS-5).
    pub read_ahead: readahead::Mode,
    /// Flushes requested while one is in flight share the next one (WS-5).
    pub flush_gathering: bool,
    /// The job with the least recent use runs first: on processors and, within a class, on disks (WS-7).
    pub usage: bool,
    /// Completions are taken in batches (OLTP-1).
    pub quantum: quantum::Mode,
    /// The most frequent requests are tried on a fast path first, which answers them from the caches (OLTP-4).
    pub hottest_first: bool,
    /// Names in calls of databases are looked up once for a statement or a program; off: for each call (OLTP-5).
    pub resolved_names: bool,
    /// Requests that arrive together are served in a batch and answered in one send (OLTP-6); off: one by one.
    pub look_ahead: bool,
    /// Pages of shared volumes that a node has written go straight from it to the one that wants them, where their home is
    /// a third node (DSM); off: through their homes.
    pub forwarding: bool,
    /// Which processors start devices (MP 1a, 1b).
    pub access: access::Mode,
    /// Which processor does the work after a completion (MP 2a-1 to 2b-4).
    pub delivery: delivery::Method,
    /// Short routines after completions run at once; off: as tasks behind the ready ones (OLTP-3).
    pub immediate_dispatch: bool,
    /// Devices transfer to and from frames directly; off: through a buffer mapped for each I/O (UIO).
    pub unmapped_io: bool,
    /// Frames lie in huge pages.
    pub huge_pages: pages::Mode,
    /// Frames are registered with the host.
    pub registered_buffers: bool,
    /// Blocks get frames of their numbers' cache colours (WS-6).
    pub color: color::Choice,
    /// How events are recorded (OLTP-2).
    pub trace: trace::Mode,
}

impl Default for Switches {
    fn default() -> Self {
        Switches {
            dynamic_cache: true,
            scan_resistant: true,
            smooth_write_back: true,
            block_merge: true,
            priority: true,
            read_ahead: readahead::Config::default().mode,
            flush_gathering: true,
            usage: true,
            quantum: quantum::Mode::Adaptive,
            hottest_first: true,
            resolved_names: true,
            look_ahead: true,
            forwarding: false,
            access: access::Mode::Symmetric,
            delivery: delivery::Method::Initiator,
            immediate_dispatch: true,
            unmapped_io: true,
            huge_pages: pages::Mode::Auto,
            registered_buffers: true,
            color: color::Choice::Auto,
            trace: trace::Mode::Direct,
        }
    }
}

/// Parts of a change of the switches that have no effect, or only on new memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reach {
    #[error("registered_buffers applies to memory that the cache takes from now on; what it has stays as it is")]
    RegisteredMemory,
    #[error("huge_pages applies to memory that the cache takes from now on; what it has stays as it is")]
    Pages,
    /// `trace`: the kernel was made without trace memory.
    #[error("trace stays \"off\": there is no memory to record into; that takes a restart")]
    NoTraceMemory,
    /// `dynamic_cache`: the kernel was made without sizing.
    #[error("dynamic_cache stays as it is: this cache does not follow the host's memory; that takes a restart")]
    NoSizing,
}

/// The switches of a running kernel. They are read often and changed seldom: each processor has a copy, and checks a
/// generation counter once per time slice.
pub(crate) struct LiveSwitches {
    current: Mutex<Arc<Switches>>,
    generation: AtomicU64,
    /// Serialises changes. Outermost of all locks.
    changing: Mutex<()>,
}

impl LiveSwitches {
    pub(crate) fn new(switches: Switches) -> Self {
        LiveSwitches {
            current: Mutex::new(Arc::new(switches)),
            generation: AtomicU64::new(0),
            changing: Mutex::default(),
        }
    }

    pub(crate) fn current(&self) -> Arc<Switches> {
        Arc::clone(&self.current.lock())
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Excludes other changes until dropped.
    pub(crate) fn begin_change(&self) -> MutexGuard<'_, ()> {
        self.changing.lock()
    }

    pub(crate) fn publish(&self, switches: Switches) {
        *self.current.lock() = Arc::new(switches);
        self.generation.fetch_add(1, Ordering::Release);
    }
}
