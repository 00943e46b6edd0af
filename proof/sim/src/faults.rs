//! Faults of a simulated disk: random, or requested by a test.

use libc::EIO;
use policy::unit::ByteRange;

use crate::random::Random;
use machine::{Errno, Op};

/// Classes of operations on disks and in trees, for faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpClass {
    Read,
    /// [`Op::Write`], stable or not.
    Write,
    /// What the host writes back, by itself, of an unstable write to a file of a tree through its page cache.
    Background,
    Flush,
    WriteBack,
    Zero,
    Discard,
    FindData,
    Call,
    /// [`Op::Tree`] with a sync.
    Sync,
}

impl OpClass {
    /// The class of `op`; `None` for those that are not on files.
    pub(crate) fn of(op: &Op) -> Option<Self> {
        match op {
            Op::Read { .. } => Some(OpClass::Read),
            Op::Write { .. } => Some(OpClass::Write),
            Op::Flush { .. } => Some(OpClass::Flush),
            Op::WriteBack { .. } => Some(OpClass::WriteBack),
            Op::Zero { .. } => Some(OpClass::Zero),
            Op::Discard { .. } => Some(OpClass::Discard),
            Op::FindData { .. } => Some(OpClass::FindData),
            Op::Populate { .. }
            | Op::Accept { .. }
            | Op::Receive { .. }
            | Op::Send { .. }
            | Op::Faults { .. }
            | Op::Tree(_) => None,
        }
    }
}

/// Random faults, in operations of a thousand, and their effects. The numbers are those of the
/// [assumptions about media](super).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskFaults {
    /// M5: reads, seeks and a tree's calls that fail with `EIO`.
    pub read_error_permille: u32,
    /// M5: writes (and discards and zeroings) that fail with `EIO`; half of the zeroings with `ENOSPC`, on the way. Also
    /// buffered writes to a tree's files of which the host finds that out later (T14).
    pub write_error_permille: u32,
    /// M5: flushes, and writing back before them, that fail with `EIO`.
    pub flush_error_permille: u32,
    /// M6: writes of more than one aligned unit that write only a part of it, and report its length.
    pub short_write_permille: u32,
    /// M7: after a failed flush, or a failed stable write (which may be a write and a flush), each write that it
    /// covered or that was complete before it failed may be lost at the next power cut, even if later flushes succeed;
    /// until then reads may or may not see it.
    pub failed_flush_drops: bool,
    /// M8: a write that fails with `EIO` may have written any of its sectors.
    pub failed_write_tears: bool,
    /// M1: torn writes that have a sector which is partly new and partly old.
    pub sector_tear_permille: u32,
    /// M2: flushes that succeed without effect.
    pub flush_lie_permille: u32,
    /// M3: stable writes that are only in the cache when they complete.
    pub stable_lie_permille: u32,
    /// M4: reads that return one wrong byte.
    pub read_flip_permille: u32,
}

impl Default for DiskFaults {
    /// No random faults; requested ones have the worst effects of real disks.
    fn default() -> Self {
        DiskFaults {
            read_error_permille: 0,
            write_error_permille: 0,
            flush_error_permille: 0,
            short_write_permille: 0,
            failed_flush_drops: true,
            failed_write_tears: true,
            sector_tear_permille: 0,
            flush_lie_permille: 0,
            stable_lie_permille: 0,
            read_flip_permille: 0,
        }
    }
}

impl DiskFaults {
    fn error_permille(&self, class: OpClass) -> u32 {
        match class {
            // A call reads directories and attributes before it changes anything.
            OpClass::Read | OpClass::FindData | OpClass::Call => self.read_error_permille,
            OpClass::Write | OpClass::Background | OpClass::Zero | OpClass::Discard => self.write_error_permille,
            OpClass::Flush | OpClass::Sync | OpClass::WriteBack => self.flush_error_permille,
        }
    }
}

/// Faults requested by a test.
#[derive(Debug, Default)]
pub(crate) struct Injections {
    next: Vec<NextFault>,
    ranges: Vec<RangeFault>,
}

#[derive(Debug)]
struct NextFault {
    class: OpClass,
    count: u32,
    errno: Errno,
}

#[derive(Debug)]
struct RangeFault {
    range: ByteRange,
    class: OpClass,
    /// Removed once all of it was rewritten, as a sector that the drive can remap.
    until_written: bool,
}

impl Injections {
    pub(crate) fn fail_next(&mut self, class: OpClass, count: u32, errno: Errno) {
        self.next.push(NextFault { class, count, errno });
    }

    pub(crate) fn fail_range(&mut self, range: ByteRange, class: OpClass, until_written: bool) {
        self.ranges.push(RangeFault { range, class, until_written });
    }

    pub(crate) fn clear(&mut self) {
        self.next.clear();
        self.ranges.clear();
    }

    /// The error of an operation that starts now, whatever its range.
    pub(crate) fn on_start(&mut self, class: OpClass, faults: &DiskFaults, random: &mut Random) -> Option<Errno> {
        if let Some(i) = self.next.iter().position(|fault| fault.class == class && fault.count > 0) {
            self.next[i].count -= 1;
            let errno = self.next[i].errno;
            self.next.retain(|fault| fault.count > 0);
            return Some(errno);
        }
        if !random.permille(faults.error_permille(class)) {
            return None;
        }
        // The host may find only on the way that it lacks the space.
        Some(if class == OpClass::Zero && random.permille(500) { Errno::NO_SPACE } else { Errno(EIO) })
    }

    /// The error of an operation on `range`, because of its range.
    pub(crate) fn on_range(&self, class: OpClass, range: ByteRange) -> Option<Errno> {
        self.ranges.iter().any(|fault| fault.class == class && overlap(fault.range, range)).then_some(Errno(EIO))
    }

    /// Removes latent errors of a `range` that was written.
    pub(crate) fn written(&mut self, range: ByteRange) {
        if !self.ranges.iter().any(|fault| fault.until_written && overlap(fault.range, range)) {
            return;
        }
        let mut left = Vec::with_capacity(self.ranges.len() + 1);
        for fault in self.ranges.drain(..) {
            if !fault.until_written {
                left.push(fault);
                continue;
            }
            let (from, to) = (fault.range.at.0, fault.range.end().0);
            for (from, to) in [(from, to.min(range.at.0)), (from.max(range.end().0), to)] {
                if from < to {
                    left.push(RangeFault { range: ByteRange::new(from, to - from), ..fault });
                }
            }
        }
        self.ranges = left;
    }
}

fn overlap(a: ByteRange, b: ByteRange) -> bool {
    a.at < b.end() && b.at < a.end()
}
