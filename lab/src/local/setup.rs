//! What a measurement may ask of the host: a kernel with given switches, devices for it, and servers.

use std::path::PathBuf;
use std::time::Duration;

use kernel::Switches;
use kernel::trace::TraceMemory;
use machine::Errno;
use papers::drive::mechanical::Mechanical;
use policy::writeback;
use thiserror::Error;

/// Largest space on the host's disk that a measurement may use, bytes.
pub const SCRATCH_BYTES_MAX: u64 = 1 << 30;

/// What processors have spent since they started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// CPU time of all threads.
    pub cpu: Duration,
    pub kernel_entries: u64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerConfig {
    pub processors: u16,
    /// Memory of its cache. Bytes.
    pub memory: u64,
    /// Its disks. It also exports a directory on the host's disk.
    pub exports: Vec<Export>,
    /// Initial switches, as `--switch` takes them.
    pub switches: Vec<(&'static str, &'static str)>,
    /// Is its web page served, and asked for its numbers twice a second?
    pub watched: bool,
    /// The program of its database, which lies on the host's disk and has the program's name; without one, there is none.
    pub program: Option<Program>,
}

/// A module that is installed in a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    pub name: &'static str,
    pub bytes: &'static [u8],
}

/// A protocol, and the export that is used over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// NBD over a Unix socket.
    Nbd(&'static str),
    /// NBD over loopback.
    NbdOverTcp(&'static str),
    /// NFS over loopback, with the exported directory.
    Nfs,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Export {
    pub name: &'static str,
    pub medium: Medium,
}

#[derive(Clone, Debug)]
pub struct Setup {
    pub processors_max: u16,
    /// Bytes that the cache may take; with `switches.dynamic_cache` off it takes a tenth of them.
    pub memory: u64,
    /// How dirty blocks are written, except `smooth`, which is a switch.
    pub write_back: writeback::Config,
    /// The techniques that are on, except `trace`, which is on if there is memory for it.
    pub switches: Switches,
    /// Memory for recorded events, all zero. `None`: nothing is recorded.
    pub trace: Option<TraceMemory>,
}

impl Setup {
    /// A server's defaults, with `memory` bytes for the cache.
    pub fn with_memory(memory: u64) -> Self {
        Setup {
            processors_max: u16::MAX,
            memory,
            write_back: writeback::Config::default(),
            switches: Switches::default(),
            trace: None,
        }
    }

    #[must_use]
    pub fn switched(mut self, change: impl FnOnce(&mut Switches)) -> Self {
        change(&mut self.switches);
        self
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Medium {
    /// The host's own disk: a preallocated file on it, accessed with direct I/O.
    Disk {
        /// Least size.
        bytes: u64,
    },
    Ram {
        bytes: u64,
    },
    /// Memory that answers a fixed time after each request, any number of them concurrently.
    FixedLatency {
        bytes: u64,
        latency: Duration,
    },
    /// Memory that takes the time of a mechanical disk, one request after another.
    Mechanical {
        bytes: u64,
        model: Mechanical,
    },
}

#[derive(Debug, Error)]
pub enum LocalError {
    #[error(
        "{directory} has {free} bytes free and {needed} are needed: choose another directory (--out, or TMPDIR), or make room"
    )]
    NoSpace { directory: PathBuf, needed: u64, free: u64 },
    #[error(
        "{0} lies on a file system that can't bypass the page cache (direct I/O), so its disk can't be measured: choose \
         a directory on a disk (--out, or TMPDIR)"
    )]
    NoDirectIo(PathBuf),
    /// The cache would not get the memory that the measurement is about.
    #[error("{needed} bytes of memory are needed for the cache and {available} can be had: end other programs")]
    NoMemory { needed: u64, available: u64 },
    #[error("cannot {what} a scratch file in {directory}: {source}")]
    Scratch {
        what: &'static str,
        directory: PathBuf,
        /// The host's error.
        source: std::io::Error,
    },
    #[error("cannot start a kernel: {0}")]
    Start(String),
    #[error("the device failed while it was measured: {0}")]
    Device(#[from] Errno),
    #[error("the server that is measured: {0}")]
    Server(String),
    #[error("the load: {0}")]
    Load(String),
    #[error("interrupted")]
    Interrupted,
    /// A task ended without its result.
    #[error("a task ended without a result")]
    NoResult,
}
