//! One switch for each technique of the papers, on by default, to see what it is worth.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use policy::cache::Kind;
use policy::{access, delivery, pages, quantum, readahead};

use crate::Kernel;
use crate::queue::DiskQueue;
use crate::trace;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switches {
    /// The cache takes free memory and gives it back (WS-2); off: a fixed tenth of memory.
    pub dynamic_cache: bool,
    /// A scan does not evict what is used often; off: least recently used.
    pub scan_resistant: bool,
    /// Dirty blocks trickle out (WS-2); off: all of them every 30 s, the sync storm.
    pub smooth_write_back: bool,
    /// Neighbouring requests go to the disk in one (WS-3).
    pub block_merge: bool,
    /// Requests that somebody waits for go first (WS-4).
    pub priority: bool,
    /// What is read in advance (WS-3, WS-5).
    pub read_ahead: readahead::Mode,
    /// Flushes that come while one is under way share the next one (WS-5).
    pub flush_gathering: bool,
    /// Who has used least of late goes first: on processors and, within a class, on disks (WS-7).
    pub usage: bool,
    /// Completions are taken together (OLTP-1).
    pub quantum: quantum::Mode,
    /// What is asked for most is answered before anything else is looked at, if the cache has it (OLTP-4).
    pub hottest_first: bool,
    /// Requests that have come in together are served together and answered in one send (OLTP-6); off: each by itself.
    pub look_ahead: bool,
    /// Which processors start devices (MP 1a, 1b).
    pub access: access::Mode,
    /// Which processor does the work after a device's completion (MP 2a-1 to 2b-4).
    pub delivery: delivery::Method,
    /// Short routines after completions run at once; off: as tasks behind those that are ready (OLTP-3).
    pub immediate_dispatch: bool,
    /// Devices read and write frames themselves; off: through a buffer mapped for each I/O (UIO).
    pub unmapped_io: bool,
    /// Frames lie in huge pages.
    pub huge_pages: pages::Mode,
    /// Frames are registered with the host.
    pub registered_buffers: bool,
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
            look_ahead: true,
            access: access::Mode::Symmetric,
            delivery: delivery::Method::Initiator,
            immediate_dispatch: true,
            unmapped_io: true,
            huge_pages: pages::Mode::Auto,
            registered_buffers: true,
            trace: trace::Mode::Direct,
        }
    }
}

/// What a change of the switches does not reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reach {
    #[error("registered_buffers applies to memory that the cache takes from now on; what it has stays as it is")]
    RegisteredMemory,
    #[error("huge_pages applies to memory that the cache takes from now on; what it has stays as it is")]
    Pages,
    /// `trace`: the kernel was made without memory for it.
    #[error("trace stays \"off\": there is no memory to record into; that takes a restart")]
    NoTraceMemory,
    /// `dynamic_cache`: the kernel was made not to look at the host's memory.
    #[error("dynamic_cache stays as it is: this cache does not follow the host's memory; that takes a restart")]
    NoSizing,
}

/// The switches of a kernel that runs.
///
/// They are asked for all the time and changed seldom: each processor has a copy and looks at a counter, once a turn,
/// whether it is the newest.
pub(crate) struct LiveSwitches {
    current: Mutex<Arc<Switches>>,
    generation: AtomicU64,
    /// Does the cache follow the host's memory? For those who allocate, whatever processor they are on.
    is_dynamic: AtomicBool,
    /// Held while one change is made, so that two are not mixed. Outermost of all locks.
    changing: Mutex<()>,
}

impl LiveSwitches {
    pub(crate) fn new(switches: Switches, is_dynamic: bool) -> Self {
        LiveSwitches {
            current: Mutex::new(Arc::new(switches)),
            generation: AtomicU64::new(0),
            is_dynamic: AtomicBool::new(is_dynamic),
            changing: Mutex::default(),
        }
    }

    pub(crate) fn current(&self) -> Arc<Switches> {
        Arc::clone(&lock(&self.current))
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub(crate) fn is_dynamic(&self) -> bool {
        self.is_dynamic.load(Ordering::Relaxed)
    }

    fn publish(&self, switches: Switches) {
        *lock(&self.current) = Arc::new(switches);
        self.generation.fetch_add(1, Ordering::Release);
    }
}

impl Kernel {
    /// Changes the switches while everything runs. `change` gets those that are on now. Each processor sees the new ones
    /// at its next turn at the latest. What clients get never depends on them. Returns what the change does not reach.
    ///
    /// # Errors
    /// What `change` says; then nothing has changed.
    pub fn change_switches<E>(&self, change: impl FnOnce(&mut Switches) -> Result<(), E>) -> Result<Vec<Reach>, E> {
        let live = self.live_switches();
        let _changing = lock(&live.changing);
        let old = live.current();
        let mut new = Switches::clone(&old);
        change(&mut new)?;
        let unreached = self.follow(&old, &mut new);
        live.publish(new.clone());
        // After it was published: a queue that is made meanwhile is made by the new ones, or is here.
        if (old.block_merge, old.priority, old.usage) != (new.block_merge, new.priority, new.usage) {
            let set = |queue: &DiskQueue| queue.set_switches(new.block_merge, new.priority, new.usage);
            self.disk_queues().iter().for_each(|(_, queue)| set(queue));
        }
        Ok(unreached)
    }

    /// The same for all of them at once.
    pub fn set_switches(&self, new: Switches) -> Vec<Reach> {
        let set = |switches: &mut Switches| {
            *switches = new;
            Ok::<_, std::convert::Infallible>(())
        };
        match self.change_switches(set) {
            Ok(unreached) => unreached,
        }
    }

    /// Tells those who hold a part of the switches; who asks a processor for them sees them by himself. `new` becomes
    /// what is possible.
    fn follow(&self, old: &Switches, new: &mut Switches) -> Vec<Reach> {
        let mut unreached = Vec::new();
        if old.scan_resistant != new.scan_resistant {
            self.cache().set_kind(if new.scan_resistant { Kind::S3Fifo } else { Kind::Lru });
        }
        if old.huge_pages != new.huge_pages {
            self.page_choice().set_mode(new.huge_pages);
            unreached.push(Reach::Pages);
        }
        if old.registered_buffers != new.registered_buffers {
            self.frames().set_register(new.registered_buffers);
            unreached.push(Reach::RegisteredMemory);
        }
        if old.dynamic_cache != new.dynamic_cache {
            if self.config().sizing.is_some() {
                self.live_switches().is_dynamic.store(new.dynamic_cache, Ordering::Relaxed);
            } else {
                new.dynamic_cache = old.dynamic_cache;
                unreached.push(Reach::NoSizing);
            }
        }
        if old.trace != new.trace {
            self.tracer().set_mode(new.trace);
            if self.tracer().mode() != new.trace {
                new.trace = self.tracer().mode();
                unreached.push(Reach::NoTraceMemory);
            }
        }
        unreached
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
