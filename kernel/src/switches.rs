//! One switch for each technique of the papers, on by default, to see what it is worth.

use policy::{access, delivery, pages, quantum, readahead};

use crate::trace;

/// The switches.
#[derive(Clone, Debug)]
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
