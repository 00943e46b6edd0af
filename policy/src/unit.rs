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
    pub const MAX: BlockNo = BlockNo(u64::MAX);

    /// The block that holds the byte at `at`.
    pub const fn holding(at: ByteOffset) -> Self {
        BlockNo(at.0 / BLOCK_BYTES)
    }

    /// The first block that starts at `at` or after it.
    pub const fn not_before(at: ByteOffset) -> Self {
        BlockNo(at.0.div_ceil(BLOCK_BYTES))
    }

    pub const fn start(self) -> ByteOffset {
        ByteOffset(self.0 * BLOCK_BYTES)
    }

    /// The blocks `self .. end`.
    pub const fn to(self, end: BlockNo) -> BlockRange {
        BlockRange { start: self, end }
    }

    /// `len` blocks from this one on.
    pub const fn run(self, len: u64) -> BlockRange {
        self.to(BlockNo(self.0 + len))
    }
}

impl Add<u64> for BlockNo {
    type Output = BlockNo;
    fn add(self, rhs: u64) -> BlockNo {
        BlockNo(self.0 + rhs)
    }
}

impl Sub for BlockNo {
    type Output = u64;
    fn sub(self, rhs: BlockNo) -> u64 {
        self.0 - rhs.0
    }
}

impl Sub<u64> for BlockNo {
    type Output = BlockNo;
    fn sub(self, rhs: u64) -> BlockNo {
        BlockNo(self.0 - rhs)
    }
}

/// The blocks `start .. end` of one device. Unlike a [`Range`], it can be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockRange {
    pub start: BlockNo,
    pub end: BlockNo,
}

impl BlockRange {
    pub const fn len(self) -> u64 {
        self.end.0.saturating_sub(self.start.0)
    }

    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }

    pub fn contains(self, block: BlockNo) -> bool {
        self.start <= block && block < self.end
    }

    pub fn overlaps(self, other: BlockRange) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// The blocks that both have.
    pub fn intersection(self, other: BlockRange) -> BlockRange {
        self.start.max(other.start).to(self.end.min(other.end))
    }

    pub fn iter(self) -> impl DoubleEndedIterator<Item = BlockNo> {
        (self.start.0..self.end.0).map(BlockNo)
    }

    /// Its pieces of `len_max` blocks; the last may be shorter.
    pub fn pieces(self, len_max: u64) -> impl Iterator<Item = BlockRange> {
        let starts = (self.start.0..self.end.0).step_by(len_max as usize).map(BlockNo);
        starts.map(move |start| start.to(self.end.min(start + len_max)))
    }

    /// Its pieces, cut where a block's number is a multiple of `step`.
    #[inline]
    pub fn cut_at_multiples(self, step: u64) -> impl Iterator<Item = BlockRange> {
        let mut at = self.start;
        std::iter::from_fn(move || {
            let piece = at.to(self.end.min(BlockNo((at.0 / step + 1) * step)));
            at = piece.end;
            (!piece.is_empty()).then_some(piece)
        })
    }

    pub const fn bytes(self) -> ByteRange {
        ByteRange { at: self.start.start(), len: self.len() * BLOCK_BYTES }
    }
}

impl From<Range<u64>> for BlockRange {
    fn from(numbers: Range<u64>) -> Self {
        BlockNo(numbers.start).to(BlockNo(numbers.end))
    }
}

/// A position on a device or in a file, in bytes from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteOffset(pub u64);

impl ByteOffset {
    /// The bytes `self .. end`; none if `end` comes before.
    pub const fn to(self, end: ByteOffset) -> ByteRange {
        ByteRange { at: self, len: end.0.saturating_sub(self.0) }
    }

    /// Its offset within its block.
    pub const fn in_block(self) -> usize {
        (self.0 % BLOCK_BYTES) as usize
    }
}

impl Add<u64> for ByteOffset {
    type Output = ByteOffset;
    fn add(self, rhs: u64) -> ByteOffset {
        ByteOffset(self.0 + rhs)
    }
}

impl Sub for ByteOffset {
    type Output = u64;
    fn sub(self, rhs: ByteOffset) -> u64 {
        self.0 - rhs.0
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
    pub const fn blocks(self) -> BlockRange {
        let start = BlockNo::holding(self.at);
        if self.len == 0 { start.run(0) } else { start.to(BlockNo::not_before(self.end())) }
    }

    /// The blocks that lie entirely in the range.
    pub const fn whole_blocks(self) -> BlockRange {
        BlockNo::not_before(self.at).to(BlockNo::holding(self.end()))
    }
}

/// A processor of Awase: one thread pinned to one core, or a modelled one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessorId(pub u16);

/// A cached device (one export's disk, one file).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u16);

/// A physical disk, by the host's number: devices on the same one share a request queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DiskNo(pub u64);

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
