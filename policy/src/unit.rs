//! The units that cross function boundaries: never a bare integer.

use std::fmt;
use std::ops::{Add, AddAssign, Range, Sub};
use std::time::Duration;

/// Bytes in one cache block and in one frame.
pub const BLOCK_BYTES: u64 = 4096;

/// The job of a client, to which work is charged. 0 is work without a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u32);

/// A time in nanoseconds since the machine started. A policy never reads a clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    pub const ZERO: Instant = Instant(0);

    pub const fn from_ns(ns: u64) -> Self {
        Instant(ns)
    }

    /// Nanoseconds since the machine started.
    pub const fn ns(self) -> u64 {
        self.0
    }

    /// Time passed since `earlier`; zero when `earlier` is later.
    pub fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, rhs: Duration) -> Instant {
        let ns = u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX);
        Instant(self.0.saturating_add(ns))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, rhs: Duration) {
        *self = *self + rhs;
    }
}

impl Sub<Instant> for Instant {
    type Output = Duration;
    fn sub(self, rhs: Instant) -> Duration {
        self.since(rhs)
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6} s", self.0 as f64 / 1e9)
    }
}

/// A block of [`BLOCK_BYTES`] on one device, counted from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockNo(pub u64);

impl BlockNo {
    /// The block that holds the byte at `at`.
    pub const fn holding(at: ByteOffset) -> Self {
        BlockNo(at.0 / BLOCK_BYTES)
    }

    pub const fn start(self) -> ByteOffset {
        ByteOffset(self.0 * BLOCK_BYTES)
    }
}

impl Add<u64> for BlockNo {
    type Output = BlockNo;
    fn add(self, rhs: u64) -> BlockNo {
        BlockNo(self.0 + rhs)
    }
}

/// A position on a device or in a file, in bytes from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteOffset(pub u64);

impl Add<u64> for ByteOffset {
    type Output = ByteOffset;
    fn add(self, rhs: u64) -> ByteOffset {
        ByteOffset(self.0 + rhs)
    }
}

impl fmt::Display for ByteOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Bytes on a device: `at .. at + len`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ByteRange {
    pub at: ByteOffset,
    pub len: u64,
}

impl ByteRange {
    pub const fn new(at: u64, len: u64) -> Self {
        ByteRange { at: ByteOffset(at), len }
    }

    /// First byte after the range.
    pub const fn end(self) -> ByteOffset {
        ByteOffset(self.at.0 + self.len)
    }

    /// The blocks that the range touches, whole or in part.
    pub const fn blocks(self) -> Range<u64> {
        if self.len == 0 {
            let b = self.at.0 / BLOCK_BYTES;
            return b..b;
        }
        self.at.0 / BLOCK_BYTES..(self.at.0 + self.len).div_ceil(BLOCK_BYTES)
    }
}

/// A processor of Awase: one thread pinned to one core, or a modelled one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessorId(pub u16);

/// A cached device (one export's disk, one file).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u16);

/// Whether a client waits for a request (WS-4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    Synchronous,
    /// Write-back and read-ahead: no client waits.
    Asynchronous,
}

/// What a completed write guarantees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stability {
    /// The data may be lost at a crash until the next flush.
    Unstable,
    /// The data are on stable storage (NBD FUA, NFS `FILE_SYNC`).
    Stable,
}
