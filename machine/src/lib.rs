//! The seam: what a processor may ask of the world, and nothing else.
//!
//! Operations are started and complete later; nothing here blocks, except that [`Machine::enter`] may park the
//! processor when it was told to. [`linux::uring`] and [`linux::threads`] keep this contract, and whatever
//! else implements [`Machine`]: everything above runs unchanged on each.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use policy::sizing::MemoryFacts;
use policy::unit::{ByteOffset, Instant, ProcessorId, Stability};
use smallvec::SmallVec;
use tree::TreeOp;

mod counter;
pub mod drive;
pub mod linux;
pub mod tree;

pub use counter::counter;

/// Names an operation under way: chosen by the caller of [`Machine::start`], returned in its [`Completion`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

/// An open file or block device. Shared by all processors of one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct File(pub u32);

/// One end of a connection. Belongs to the processor that accepted or connected it, or to the one it was handed to
/// while no operation was under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Connection(pub u32);

/// A socket that accepts connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Listener(pub u32);

/// A run of memory that was offered for registration with [`Machine::offer_region`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId(pub u16);

/// Memory from which many transfers will be made; a machine may register it with the host.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    pub id: RegionId,
    /// First byte.
    pub base: *mut u8,
    /// Length in bytes.
    pub len: usize,
}

/// A piece of memory to transfer from or into.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// First byte.
    pub ptr: *mut u8,
    /// Length in bytes, never 0.
    pub len: u32,
    /// The offered region that holds all of it, if one does.
    pub region: Option<RegionId>,
}

/// Pieces of memory in the order of the bytes on the disk or the wire.
pub type Segments = SmallVec<[Segment; 4]>;

/// Most segments that one operation may carry (Linux: `UIO_MAXIOV`).
pub const SEGMENTS_MAX: usize = 1024;

/// Bytes in `segments`, all together.
pub fn total_len(segments: &[Segment]) -> u64 {
    segments.iter().map(|s| u64::from(s.len)).sum()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTarget {
    /// The next byte that is stored (`SEEK_DATA`).
    Data,
    /// The next byte that is not (`SEEK_HOLE`); the end of the file counts as a hole.
    Hole,
}

/// An operation. What [`Completion::result`] holds when it succeeds is said at each.
#[derive(Debug)]
pub enum Op {
    /// Reads from a file. Result: bytes read; fewer than asked only at the end of the file.
    Read {
        file: File,
        /// Where the first byte lies.
        at: ByteOffset,
        into: Segments,
    },
    /// Writes to a file. Result: bytes written, which may be fewer than asked (the caller goes on from there).
    Write {
        file: File,
        /// Where the first byte goes.
        at: ByteOffset,
        from: Segments,
        /// `Stable`: forced unit access (`RWF_DSYNC`).
        stability: Stability,
    },
    /// Makes all completed writes to the file stable (`fdatasync`). Result: 0.
    Flush { file: File },
    /// Makes the range read as zeroes, without changing the size. Result: 0. Fails with `EOPNOTSUPP` where the host
    /// can't do it faster than by writing.
    Zero {
        file: File,
        /// First byte.
        at: ByteOffset,
        /// Length in bytes.
        len: u64,
        /// May the space be given back (a hole), or must it stay allocated?
        may_release: bool,
    },
    /// Tells that the range is no longer needed; on success it reads as zeroes. Result: 0.
    Discard {
        file: File,
        /// First byte.
        at: ByteOffset,
        /// Length in bytes.
        len: u64,
    },
    /// Finds stored data or a hole from `at` on. Result: its offset; `ENXIO` when there is no data from `at` on.
    Seek { file: File, at: ByteOffset, target: SeekTarget },
    /// Has the host provide the memory of a region of which no page is used yet, so that nobody who uses it later waits
    /// for that. Only a hint. Result: 0.
    Populate { region: Region },
    /// Accepts one connection. Result: the [`Connection`].
    Accept { listener: Listener },
    /// Receives what has arrived, at least one byte. Result: bytes received, 0 when the peer has closed.
    Receive {
        connection: Connection,
        /// Memory to fill, in order.
        into: Segments,
    },
    /// Sends. Result: bytes sent, at least one, which may be fewer than asked.
    Send { connection: Connection, from: Segments },
    /// Asks a directory tree. Result: 0, and the answer is in [`TreeOp::reply`](tree::TreeOp::reply).
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
    /// The operation is not supported.
    pub const NOT_SUPPORTED: Errno = Errno(libc::EOPNOTSUPP);
    /// The argument is not valid.
    pub const INVALID: Errno = Errno(libc::EINVAL);
    /// No such device or address; no data from here on.
    pub const NO_SUCH_ADDRESS: Errno = Errno(libc::ENXIO);
    pub const CONNECTION_RESET: Errno = Errno(libc::ECONNRESET);
    pub const CANCELLED: Errno = Errno(libc::ECANCELED);
    /// The file that the handle names is gone.
    pub const STALE: Errno = Errno(libc::ESTALE);
    /// The file would be larger than is possible.
    pub const FILE_TOO_LARGE: Errno = Errno(libc::EFBIG);
    /// The owner has as much as it may.
    pub const QUOTA_EXCEEDED: Errno = Errno(libc::EDQUOT);
    pub const TIMED_OUT: Errno = Errno(libc::ETIMEDOUT);
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

/// The end of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    pub token: Token,
    /// What came of it; see [`Op`].
    pub result: Result<u64, Errno>,
}

/// May [`Machine::enter`] wait when nothing is complete?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Park {
    /// No: take what is complete and return.
    No,
    /// Until something completes or the doorbell rings, at the latest at this moment.
    Until(Option<Instant>),
}

/// Wakes a processor that is parked. May be rung from any thread.
pub trait Doorbell: Send + Sync {
    /// Makes a present or the next [`Machine::enter`] return at once.
    fn ring(&self);
}

/// What events are stamped with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TickSource {
    /// The clock: a tick is a nanosecond of [`Machine::now`].
    #[default]
    Clock,
    /// The host's counter, [`counter`]: cheaper, in a unit of its own.
    Counter,
}

/// One processor's view of the world. Used by one thread (or one modelled processor) only.
pub trait Machine {
    fn processor(&self) -> ProcessorId;

    /// The time. Monotonic, the same on all processors of a machine.
    fn now(&self) -> Instant;

    /// What its events are stamped with; the same on all processors of a machine.
    fn tick_source(&self) -> TickSource {
        TickSource::Clock
    }

    /// Starts an operation; the world sees it at the latest at the next [`enter`](Machine::enter).
    ///
    /// # Safety
    /// The memory of all its segments must stay valid, and for reads and receives untouched by anybody else, until
    /// its completion was returned or the machine was dropped.
    unsafe fn start(&mut self, token: Token, op: Op);

    /// Submits what was started, and appends to `done` what is complete; parks first if told to and nothing is.
    /// A simulated machine never parks: it notes until when it would have and returns.
    fn enter(&mut self, park: Park, done: &mut Vec<Completion>);

    /// Lets a short time pass without taking completions. Less where it does not matter: a simulated machine goes on.
    fn pause(&mut self, time: Duration);

    /// Ends a connection in both directions. Operations under way on it complete soon, the peer sees the end.
    fn shutdown(&mut self, connection: Connection);

    /// Frees a connection on which no operation is under way.
    fn close(&mut self, connection: Connection);

    /// Offers memory for registration. It is only a hint: transfers work without. A machine that registers nothing accepts
    /// every offer.
    ///
    /// # Errors
    /// The host's, where it declines: [`Errno::NO_MEMORY`] beyond the limit of locked memory.
    fn offer_region(&mut self, region: Region) -> Result<(), Errno>;

    /// Takes the offer back, when no operation on it is under way: the host holds on to none of its pages after.
    fn withdraw_region(&mut self, region: RegionId);

    /// How often this machine has entered the host's kernel since it was asked last: system calls of its thread for
    /// operations, and those with which it was woken or had others work for it. Clocks and sleep between operations are
    /// not among them.
    fn take_kernel_entries(&mut self) -> u64 {
        0
    }

    fn doorbell(&self) -> Arc<dyn Doorbell>;

    /// The time of day, as the host's files have it. It may be set, and jump.
    fn time_of_day(&self) -> tree::Time;

    /// How much memory there is and who uses it.
    fn memory(&self) -> MemoryFacts;

    /// One line for people: what this machine is and what it had to do without.
    fn describe(&self) -> String;
}

/// What is known of an open file or device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileFacts {
    /// Size in bytes.
    pub size: u64,
    /// Offsets and lengths of transfers must be multiples of this (bytes, a power of two, at most 4096).
    pub align: u32,
    /// Does I/O bypass the host's page cache?
    pub direct: bool,
    pub writable: bool,
    /// Is it a disk with moving parts (or does it say so)?
    pub rotational: bool,
    /// Largest transfer that the device takes in one piece, in bytes.
    pub transfer_bytes_max: u32,
    /// Which physical disk it lies on: files with the same number share a request queue.
    pub disk: u64,
}

/// An open file, closed when the last clone is dropped.
#[derive(Clone)]
pub struct OpenFile {
    pub file: File,
    /// What is known of it.
    pub facts: FileFacts,
    /// The same file through the host's page cache, for the last block, where direct I/O can't write it: when the size is
    /// no multiple of the alignment.
    pub tail: Option<File>,
    pub owner: Arc<dyn Any + Send + Sync>,
}
