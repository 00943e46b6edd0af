//! The seam: the calls that a processor may make of the world, and nothing else.
//!
//! Operations are started and complete later; nothing blocks, except that [`Machine::enter`] may park the processor
//! when asked to. [`linux::uring`], [`linux::threads`] and any other [`Machine`] implement the same contract:
//! everything above runs unchanged on each.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use policy::sizing::MemoryFacts;
use policy::unit::{ByteOffset, ByteRange, DiskNo, Instant, ProcessorId, Stability};
use smallvec::SmallVec;
use tree::TreeOp;

mod counter;
pub mod linux;
pub mod mapping;
pub mod tree;

pub use counter::{counter, ticks};

/// Identifies an operation in flight: chosen by the caller of [`Machine::start`], returned in its [`Completion`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

/// An open file or block device. Shared by all processors of one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct File(pub u32);

/// One end of a connection. Belongs to the processor that accepted or connected it, or to the one to which it was
/// handed while no operation was in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Connection(pub u32);

/// A socket that accepts connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Listener(pub u32);

/// Memory that was offered for registration with [`Machine::offer_region`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId(pub u16);

/// Memory that is used for many transfers; a machine may register it with the host.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    pub id: RegionId,
    pub base: *mut u8,
    /// In bytes.
    pub len: usize,
}

/// Memory to transfer from or into.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub ptr: *mut u8,
    /// In bytes, never 0.
    pub len: u32,
    /// The offered region that contains all of it, if any.
    pub region: Option<RegionId>,
}

/// Memory in the order of the bytes on the disk or the wire.
pub type Segments = SmallVec<[Segment; 4]>;

/// Maximum of segments in one operation (Linux: `UIO_MAXIOV`).
pub const SEGMENTS_MAX: usize = 1024;

/// Bytes in all `segments`.
pub fn total_len(segments: &[Segment]) -> u64 {
    segments.iter().map(|s| u64::from(s.len)).sum()
}

/// Where an operation stores runs that it finds.
pub type FoundRuns = Arc<Mutex<Vec<ByteRange>>>;

/// An operation. "Result" is what [`Completion::result`] holds when it succeeds.
#[derive(Debug)]
pub enum Op {
    /// Reads from a file. Result: bytes read; fewer than requested only at the end of the file.
    Read { file: File, at: ByteOffset, into: Segments },
    /// Writes to a file. Result: bytes written, which may be fewer than requested (the caller continues from there).
    Write {
        file: File,
        at: ByteOffset,
        from: Segments,
        /// `Stable`: forced unit access (`RWF_DSYNC`). It makes no size of a file durable that earlier writes have set.
        stability: Stability,
    },
    /// Makes all completed writes to the file stable (`fdatasync`). Result: 0.
    Flush { file: File },
    /// Writes what the host has of the file in its page cache to the disk, without making it stable. A hint, before a
    /// flush through another descriptor, which then has less to wait for, and reports what this fails at, too. Result: 0.
    WriteBack { file: File },
    /// Makes the range read as zeroes, without changing the size. Result: 0. `EOPNOTSUPP` where the host can do it no
    /// faster than by writing.
    Zero {
        file: File,
        at: ByteOffset,
        len: u64,
        /// The space may be released (a hole); otherwise it stays allocated.
        may_release: bool,
    },
    /// The range is no longer needed; on success it reads as zeroes. Result: 0.
    Discard { file: File, at: ByteOffset, len: u64 },
    /// Finds what is stored of a file, from the start of `within` on, which is not empty. Sets `runs` before it succeeds:
    /// in order, cut to `within`, at most `runs_max` (not 0) and at least one if there is any. Result: the offset up to
    /// which all that is not in them is holes: the end of `within`, or else that of the last run. Each is as it was at some
    /// time since the start; all is data where the host knows of no holes.
    FindData { file: File, within: ByteRange, runs_max: usize, runs: FoundRuns },
    /// Populates the memory of a region of which no page is used yet, so that no later access waits for it. A hint.
    /// Result: 0.
    Populate { region: Region },
    /// Accepts one connection. Result: the [`Connection`].
    Accept { listener: Listener },
    /// Receives what has arrived, at least one byte. Result: bytes received, 0 when the peer has closed.
    Receive { connection: Connection, into: Segments },
    /// Sends. Result: bytes sent, at least one, which may be fewer than requested.
    Send { connection: Connection, from: Segments },
    /// Receives what is reported of a mapping's faults, at least one, in the host's form
    /// ([`Mapping::decode`](mapping::Mapping::decode)). Result: bytes received.
    Faults { of: mapping::Faults, into: Segments },
    /// A call on a directory tree. Result: 0, and the reply is in [`TreeOp::reply`](tree::TreeOp::reply).
    Tree(Box<TreeOp>),
}

/// A host's error number (`errno`).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl Errno {
    pub const IO: Errno = Errno(libc::EIO);
    /// The device or file may not be written.
    pub const READ_ONLY: Errno = Errno(libc::EROFS);
    pub const NO_SPACE: Errno = Errno(libc::ENOSPC);
    pub const NO_MEMORY: Errno = Errno(libc::ENOMEM);
    pub const NOT_SUPPORTED: Errno = Errno(libc::EOPNOTSUPP);
    pub const INVALID: Errno = Errno(libc::EINVAL);
    /// No such device or address; no data from an offset on.
    pub const NO_SUCH_ADDRESS: Errno = Errno(libc::ENXIO);
    pub const CONNECTION_RESET: Errno = Errno(libc::ECONNRESET);
    pub const CANCELLED: Errno = Errno(libc::ECANCELED);
    /// The file that the handle identifies is gone.
    pub const STALE: Errno = Errno(libc::ESTALE);
    /// The file would exceed the maximum size.
    pub const FILE_TOO_LARGE: Errno = Errno(libc::EFBIG);
    pub const QUOTA_EXCEEDED: Errno = Errno(libc::EDQUOT);
    pub const TIMED_OUT: Errno = Errno(libc::ETIMEDOUT);
    pub const SHUT_DOWN: Errno = Errno(libc::ESHUTDOWN);
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Errno {}

#[derive(Clone, Copy, Debug)]
pub struct Completion {
    pub token: Token,
    /// See [`Op`].
    pub result: Result<u64, Errno>,
}

/// Whether [`Machine::enter`] waits when nothing is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Park {
    /// Take what is complete and return.
    No,
    /// Until something completes or the doorbell rings, at the latest at `deadline`. `requests` of clients are in progress
    /// meanwhile.
    Until { deadline: Option<Instant>, requests: usize },
}

/// Wakes a parked processor. May be rung from any thread.
pub trait Doorbell: Send + Sync {
    /// Makes the current or the next [`Machine::enter`] return at once.
    fn ring(&self);
}

/// The unit of event stamps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TickSource {
    /// The clock: a tick is a nanosecond of [`Machine::now`].
    #[default]
    Clock,
    /// The host's counter, [`counter`]: cheaper, in its own unit.
    Counter,
}

/// One processor's view of the world, used by a single thread (or modelled processor).
pub trait Machine {
    fn processor(&self) -> ProcessorId;

    /// Monotonic, the same on all processors of a machine.
    fn now(&self) -> Instant;

    /// The unit of its event stamps; the same on all processors of a machine.
    fn tick_source(&self) -> TickSource {
        TickSource::Clock
    }

    /// Starts an operation; it is submitted at the latest at the next [`enter`](Machine::enter).
    ///
    /// # Safety
    /// The memory of all its segments must stay valid, and for reads and receives untouched by others, until its
    /// completion was returned or the machine was dropped.
    unsafe fn start(&mut self, token: Token, op: Op);

    /// Submits what was started, and appends what is complete to `done`; parks first if allowed and nothing is.
    /// A simulated machine never parks: it records until when it would have and returns.
    fn enter(&mut self, park: Park, done: &mut Vec<Completion>);

    /// Lets a short time pass without taking completions. May do nothing: a simulated machine continues.
    fn pause(&mut self, time: Duration);

    /// Acknowledges to the peer what has arrived, instead of with the next reply. A hint: may do nothing.
    fn acknowledge(&mut self, _connection: Connection) {}

    /// Ends a connection in both directions. Operations in flight on it complete soon, and the peer sees the end.
    fn shutdown(&mut self, connection: Connection);

    /// Frees a connection without operations in flight.
    fn close(&mut self, connection: Connection);

    /// Ends the accepts in flight on a listener soon, with [`Errno::CANCELLED`]: who connects waits for the next accept.
    /// May do nothing where closing the listener ends them.
    fn cancel_accepts(&mut self, _of: Listener) {}

    /// Ends the operations in flight for the faults of a mapping soon; may do nothing if there are none.
    fn cancel_faults(&mut self, _of: mapping::Faults) {}

    /// Offers memory for registration, as a hint: transfers work without. A machine may accept without registering.
    ///
    /// # Errors
    /// The host's, where it declines: [`Errno::NO_MEMORY`] beyond the limit of locked memory.
    fn offer_region(&mut self, region: Region) -> Result<(), Errno>;

    /// Withdraws the offer, without operations on it in flight: the host then pins none of its pages.
    fn withdraw_region(&mut self, region: RegionId);

    /// Entries into the host's kernel since the last call: system calls of its thread for operations, and those that
    /// woke it or handed work to others. Not clocks, nor sleep between operations.
    fn take_kernel_entries(&mut self) -> u64 {
        0
    }

    fn doorbell(&self) -> Arc<dyn Doorbell>;

    /// The time of day, as used for files by the host. It may be set, and jump.
    fn time_of_day(&self) -> tree::Time;

    /// Memory of the host and what is used of it.
    fn memory(&self) -> MemoryFacts;

    /// One line for people: what this machine is and what it lacks.
    fn describe(&self) -> String;
}

/// Properties of an open file or device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileFacts {
    /// In bytes.
    pub size: u64,
    /// Offsets and lengths of transfers must be multiples of this (in bytes, a power of two, at most 4096).
    pub align: u32,
    /// I/O bypasses the host's page cache.
    pub direct: bool,
    pub writable: bool,
    /// It is a disk with moving parts, or says so.
    pub rotational: bool,
    /// Largest transfer that the device takes in one request, in bytes.
    pub transfer_bytes_max: u32,
    pub disk: DiskNo,
}

/// An open file, closed when the last clone is dropped.
#[derive(Clone)]
pub struct OpenFile {
    pub file: File,
    pub facts: FileFacts,
    /// The same file through the host's page cache, for the last block: direct I/O cannot write it when the size is not
    /// a multiple of the alignment.
    pub tail: Option<File>,
    pub owner: Arc<dyn Any + Send + Sync>,
}
