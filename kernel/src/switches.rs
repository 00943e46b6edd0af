//! One switch for each technique of the papers, on by default, to see what it is worth.

use policy::{pages, quantum, readahead};

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
    /// Who has used least of late goes first: on processors and, within a class, on disks (WS-7).
    pub usage: bool,
    /// Completions are taken together (OLTP-1).
    pub quantum: quantum::Mode,
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
            unmapped_io: true,
            huge_pages: pages::Mode::Auto,
            registered_buffers: true,
            trace: trace::Mode::Direct,
        }
    }
}
