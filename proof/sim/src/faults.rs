//! What goes wrong on a simulated disk: by chance, or because a test asked for it.

use libc::EIO;
use policy::unit::ByteRange;

use crate::random::Random;
use machine::{Errno, Op};

/// Kinds of operations on disks and in trees, as faults know them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpClass {
    Read,
    /// [`Op::Write`], stable or not.
    Write,
    Flush,
    Zero,
    Discard,
    Seek,
    Call,
    /// [`Op::Tree`] with a sync.
    Sync,
}

impl OpClass {
    /// The class of `op`; none for those that are not on files.
    pub(crate) fn of(op: &Op) -> Option<Self> {
        match op {
            Op::Read { .. } => Some(OpClass::Read),
            Op::Write { .. } => Some(OpClass::Write),
            Op::Flush { .. } => Some(OpClass::Flush),
            Op::Zero { .. } => Some(OpClass::Zero),
            Op::Discard { .. } => Some(OpClass::Discard),
            Op::Seek { .. } => Some(OpClass::Seek),
            Op::Populate { .. } | Op::Accept { .. } | Op::Receive { .. } | Op::Send { .. } | Op::Tree(_) => None,
        }
    }
}

/// What goes wrong by chance, in operations of a thousand, and how it does. The numbers are those of the
/// [assumptions about media](super).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskFaults {
    /// M5: reads that fail with `EIO`.
    pub read_error_permille: u32,
    /// M5: writes (and discards and zeroings) that fail with `EIO`.
    pub write_error_permille: u32,
    /// M5: flushes that fail with `EIO`.
    pub flush_error_permille: u32,
    /// M6: writes of more than one aligned unit that write only a part of it and say so.
    pub short_write_permille: u32,
    /// M7: after a failed flush, or a failed stable write (which may be a write and a flush), each write that it covered
    /// or that was complete before it failed may be lost at the next power cut, even if later flushes succeed; reads may
    /// or may not still see it until then.
    pub failed_flush_drops: bool,
    /// M8: a write that fails with `EIO` may have written any of its sectors.
    pub failed_write_tears: bool,
    /// M1: of torn writes, how many have a sector that is part new and part old.
    pub sector_tear_permille: u32,
    /// M2: flushes that succeed without doing anything.
    pub flush_lie_permille: u32,
    /// M3: stable writes that are only in the cache when they complete.
    pub stable_lie_permille: u32,
    /// M4: reads that return one wrong byte.
    pub read_flip_permille: u32,
}

impl Default for DiskFaults {
    /// Nothing fails by chance; what is made to fail does so as badly as disks do.
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
            OpClass::Read => self.read_error_permille,
            OpClass::Write | OpClass::Zero | OpClass::Discard => self.write_error_permille,
            OpClass::Flush | OpClass::Sync => self.flush_error_permille,
            OpClass::Seek | OpClass::Call => 0,
        }
    }
}

/// Faults that a test asked for.
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
    /// Gone once all of it was written anew, as a sector that the drive can remap.
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

    /// Does an operation that starts now fail, wherever it goes?
    pub(crate) fn on_start(&mut self, class: OpClass, faults: &DiskFaults, random: &mut Random) -> Option<Errno> {
        if let Some(i) = self.next.iter().position(|fault| fault.class == class && fault.count > 0) {
            self.next[i].count -= 1;
            let errno = self.next[i].errno;
            self.next.retain(|fault| fault.count > 0);
            return Some(errno);
        }
        random.permille(faults.error_permille(class)).then_some(Errno(EIO))
    }

    /// Does an operation on `range` fail for where it goes?
    pub(crate) fn on_range(&self, class: OpClass, range: ByteRange) -> Option<Errno> {
        self.ranges.iter().any(|fault| fault.class == class && overlap(fault.range, range)).then_some(Errno(EIO))
    }

    /// Takes note that `range` was written: there the latent errors are gone.
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
