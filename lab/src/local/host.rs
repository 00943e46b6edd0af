//! What a measurement may ask of the host: a kernel with given switches, and devices for it. Only the binary knows the
//! machine and where its files lie.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::drive::mechanical::Mechanical;
use crate::measure::load::Target;
use kernel::device::DeviceRef;
use kernel::trace::TraceMemory;
use kernel::{Kernel, Switches};
use machine::Errno;
use policy::writeback;
use thiserror::Error;

/// Largest space on the host's disk that a measurement may use, bytes.
pub const SCRATCH_BYTES_MAX: u64 = 1 << 30;

pub trait Host: Sync {
    /// Starts processors, with a kernel of their own.
    ///
    /// # Errors
    /// When the host is short of memory, or refuses.
    fn start(&self, setup: &Setup) -> Result<Box<dyn Stage + '_>, LocalError>;

    /// Starts a whole server in a process of its own, as users do.
    ///
    /// # Errors
    /// When the server does not start, and why.
    fn serve(&self, config: &ServerConfig) -> Result<Box<dyn Server + '_>, LocalError>;

    /// Pins the calling thread to a core beyond the first `processors`, which are the server's, if there is one; else
    /// it stays. `number` counts the threads that ask.
    fn pin_beyond(&self, processors: u16, number: usize);

    /// Lets the calling thread run only on otherwise idle cores. (With the lowest nice level alone, a thread that wakes up
    /// there would still wait for the end of a time slice.)
    fn run_when_idle(&self);

    /// Was the measurement interrupted?
    fn is_interrupted(&self) -> bool;

    fn processors(&self) -> u16;

    /// A description of its disk, for the report.
    fn disk(&self) -> String;
}

/// A kernel that runs until this is dropped; dirty blocks are then discarded.
pub trait Stage {
    fn kernel(&self) -> &Arc<Kernel>;

    /// A device behind the queue that every disk of Awase has. At most one at a time of the host's disk.
    ///
    /// # Errors
    /// When there is no space for it, or the host can't bypass its page cache there.
    fn device(&self, medium: &Medium) -> Result<DeviceRef, LocalError>;

    /// Sets a switch, as `awase set` does.
    ///
    /// # Errors
    /// When there is no such switch or value.
    fn set(&self, switch: &str, value: &str) -> Result<(), LocalError>;

    /// What its processors have spent so far.
    ///
    /// # Errors
    /// When the host does not report it.
    fn spent(&self) -> Result<Spent, LocalError>;
}

/// A server that runs until this is dropped, and leaves no files.
pub trait Server {
    /// Where its clients find it; `None` if it does not speak this protocol.
    fn target(&self, protocol: Protocol) -> Option<Target>;

    /// Sets a switch at run time.
    ///
    /// # Errors
    /// When there is no such switch or value, or the server has ended.
    fn set(&mut self, switch: &str, value: &str) -> Result<(), LocalError>;

    /// What it has spent so far.
    ///
    /// # Errors
    /// When the server has ended.
    fn spent(&mut self) -> Result<Spent, LocalError>;
}

/// What processors have spent since they started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// CPU time of all threads.
    pub cpu: Duration,
    pub kernel_entries: u64,
}

#[derive(Clone, Debug, PartialEq)]
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
