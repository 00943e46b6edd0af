//! What a measurement may ask of the host: a kernel that runs with given switches, and devices for it. Which machine that
//! is, and where its files lie, only the binary knows.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kernel::device::{DeviceRef, MechanicalModel};
use kernel::trace::TraceMemory;
use kernel::{Kernel, Switches};
use machine::Errno;
use machine::drive::Drive;
use policy::writeback;
use thiserror::Error;

/// The most that a measurement may want of the host's disk, bytes.
pub const SCRATCH_BYTES_MAX: u64 = 1 << 30;

pub trait Host: Sync {
    /// Starts processors, with a kernel of their own.
    ///
    /// # Errors
    /// When the host has not the memory, or refuses.
    fn start(&self, setup: &Setup) -> Result<Box<dyn Stage + '_>, HereError>;

    /// Starts a whole server, as people do, in a process of its own.
    ///
    /// # Errors
    /// When it does not start, and why.
    fn serve(&self, serving: &Serving) -> Result<Box<dyn Served + '_>, HereError>;

    /// Moves the calling thread, the `number`-th of those that ask, to a core beyond so many that a server has, if there
    /// is one; else it stays where it is.
    fn keep_clear(&self, processors: u16, number: usize);

    /// Has the calling thread run only where nobody else wants to.
    fn give_way(&self);

    /// Does somebody want it to end?
    fn is_interrupted(&self) -> bool;

    /// Processors that [`Host::start`] can give.
    fn processors(&self) -> u16;

    /// What its disk is, for people.
    fn disk(&self) -> String;
}

/// A kernel that runs until this is dropped; what is dirty then is given up.
pub trait Stage {
    fn kernel(&self) -> &Arc<Kernel>;

    /// A device, behind the queue that every disk of Awase has. One at a time of each host's disk.
    ///
    /// # Errors
    /// When there is no space for it, or the host can't bypass its page cache there.
    fn device(&self, medium: &Medium) -> Result<DeviceRef, HereError>;

    /// Sets a switch, as `awase set` does.
    ///
    /// # Errors
    /// When there is no such switch or value.
    fn set(&self, switch: &str, value: &str) -> Result<(), HereError>;

    /// What its processors have spent so far.
    ///
    /// # Errors
    /// When the host does not tell.
    fn spent(&self) -> Result<Spent, HereError>;
}

/// A server that runs until this is dropped, and leaves nothing.
pub trait Served {
    /// The Unix socket at which it serves NBD.
    fn nbd(&self) -> &Path;

    /// Where on loopback it serves a directory, as `/files`, over NFS.
    fn nfs(&self) -> Option<SocketAddr>;

    /// Sets a switch while it runs.
    ///
    /// # Errors
    /// When there is no such switch or value, or the server has gone.
    fn set(&mut self, switch: &str, value: &str) -> Result<(), HereError>;

    /// What it has spent so far.
    ///
    /// # Errors
    /// When the server has gone.
    fn spent(&mut self) -> Result<Spent, HereError>;
}

/// What processors have spent since they began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Time on cores of all threads.
    pub cpu: Duration,
    /// Entries into the host's kernel.
    pub kernel_entries: u64,
}

/// How a server is started.
#[derive(Clone, Debug, PartialEq)]
pub struct Serving {
    pub processors: u16,
    /// Memory of its cache. Bytes.
    pub memory: u64,
    /// Its disks. It has a directory on the host's disk, too.
    pub exports: Vec<Export>,
    /// Switches that it is started with, as `--switch` takes them.
    pub switches: Vec<(&'static str, &'static str)>,
    /// Is its web page served, and asked for its numbers twice a second?
    pub watched: bool,
}

/// A disk that a server exports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Export {
    pub name: &'static str,
    /// What it is made of.
    pub medium: Medium,
}

/// How a kernel is started.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Processors at most.
    pub processors_max: u16,
    /// Bytes that the cache may take; with `switches.dynamic_cache` off it takes a tenth of them.
    pub memory: u64,
    /// How dirty blocks are written, but for `smooth`: that is a switch.
    pub write_back: writeback::Config,
    /// The techniques that are on, but for `trace`: that is on where there is memory for it.
    pub switches: Switches,
    /// All zero: what happens is recorded here. Without, nothing is.
    pub trace: Option<TraceMemory>,
}

impl Setup {
    /// As a server is by default, with so much memory for the cache.
    pub fn with_memory(memory: u64) -> Self {
        Setup {
            processors_max: u16::MAX,
            memory,
            write_back: writeback::Config::default(),
            switches: Switches::default(),
            trace: None,
        }
    }

    /// The same with other switches.
    #[must_use]
    pub fn switched(mut self, change: impl FnOnce(&mut Switches)) -> Self {
        change(&mut self.switches);
        self
    }
}

/// What a device is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Medium {
    /// The host's own disk: a file on it, with space allocated, read and written past the page cache.
    Disk {
        /// Size, at least.
        bytes: u64,
    },
    Ram {
        bytes: u64,
    },
    /// Memory that answers a fixed time after it was asked, any number of requests side by side.
    FixedLatency {
        bytes: u64,
        latency: Duration,
    },
    /// Memory that takes the time of a mechanical disk, one request after another.
    Mechanical {
        bytes: u64,
        model: MechanicalModel,
    },
}

#[derive(Debug, Error)]
pub enum HereError {
    /// The disk is too full.
    #[error(
        "{directory} has {free} bytes free and {needed} are needed: choose another directory (--out, or TMPDIR), or make room"
    )]
    NoSpace { directory: PathBuf, needed: u64, free: u64 },
    /// The page cache can't be bypassed.
    #[error(
        "{0} lies on a file system that can't bypass the page cache (direct I/O), so its disk can't be measured: choose \
         a directory on a disk (--out, or TMPDIR)"
    )]
    NoDirectIo(PathBuf),
    /// The cache would not get what the measurement is about.
    #[error("{needed} bytes of memory are needed for the cache and {available} can be had: end other programs")]
    NoMemory { needed: u64, available: u64 },
    #[error("cannot {what} a scratch file in {directory}: {source}")]
    Scratch {
        what: &'static str,
        directory: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The processors or the kernel.
    #[error("cannot start a kernel: {0}")]
    Start(String),
    /// A device while it was measured.
    #[error("the device failed while it was measured: {0}")]
    Device(#[from] Errno),
    /// A whole server, in a process of its own.
    #[error("the server that is measured: {0}")]
    Server(String),
    /// The clients of a server.
    #[error("the load: {0}")]
    Load(String),
    /// Somebody wanted it to end.
    #[error("interrupted")]
    Interrupted,
    /// A task that was to give a result.
    #[error("a task ended without a result")]
    Lost,
    #[error("there is no model of a disk named {0:?}")]
    NoModel(&'static str),
}

/// The model of the disk of that name.
///
/// # Errors
/// [`HereError::NoModel`].
pub fn model(name: &'static str) -> Result<MechanicalModel, HereError> {
    match Drive::named(name) {
        Some(Drive::Mechanical(model)) => Ok(model),
        _ => Err(HereError::NoModel(name)),
    }
}
