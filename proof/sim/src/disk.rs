//! A simulated disk: the duration of operations, and their effect at the end on its bytes, or on those of a file that
//! lies on it.

use std::rc::Rc;

use policy::unit::{ByteRange, Stability};

use crate::bytes::Bytes;
use crate::change::{Change, Payload};
use crate::config::DiskConfig;
use crate::faults::{Injections, OpClass};
use crate::ids::HostId;
use crate::random::Random;
use crate::transfer::{gather, scatter_into};
use machine::{Errno, Op, Segments, total_len};

/// Operations on a disk since it was added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskCounters {
    pub reads: u64,
    pub writes: u64,
    pub stable_writes: u64,
    pub flushes: u64,
    pub zeroes_and_discards: u64,
    /// Bytes requested by reads.
    pub bytes_read: u64,
    /// Bytes requested by writes.
    pub bytes_written: u64,
}

/// The disk's state of an operation in flight.
#[derive(Debug, Default)]
pub(crate) struct DiskJob {
    pub(crate) fault: Option<Errno>,
    /// Of a buffered write: the error of its write-back.
    pub(crate) background: Option<Errno>,
    /// A flush covers all changes up to this one.
    pub(crate) covers: u64,
    /// Numbers and generations of a tree's files, with the changes of them that it covers, too.
    pub(crate) others: Vec<(u64, u32, u64)>,
    /// The data of a write when it started.
    data: Option<Rc<Vec<u8>>>,
}

impl DiskJob {
    pub(crate) fn payload(&self) -> Payload {
        Payload::Bytes(self.data.clone().unwrap_or_default())
    }

    pub(crate) fn data_len(&self) -> u64 {
        self.data.as_ref().map_or(0, |data| data.len() as u64)
    }

    /// A device may fetch the data of a write early or late: code that changes them meanwhile must tolerate either.
    ///
    /// # Safety
    /// The memory of the segments is valid.
    pub(crate) unsafe fn fetch_late(&mut self, from: &Segments, len: u64, random: &mut Random) {
        if random.permille(500) {
            let mut late = Vec::with_capacity(len as usize);
            // SAFETY: guaranteed by the caller.
            unsafe { gather(from, len, &mut late) };
            self.data = Some(Rc::new(late));
        }
    }
}

/// Timing and faults.
#[derive(Debug)]
pub(crate) struct Drive {
    pub(crate) config: DiskConfig,
    pub(crate) injections: Injections,
    pub(crate) counters: DiskCounters,
    pub(crate) random: Random,
    /// Maximum of allocated bytes.
    pub(crate) space_max: Option<u64>,
    /// When each channel becomes free, in nanoseconds.
    channels: Vec<u64>,
}

#[derive(Debug)]
pub(crate) struct Disk {
    pub(crate) host: HostId,
    pub(crate) drive: Drive,
    pub(crate) bytes: Bytes,
}

/// What changes of some bytes are bound by.
pub(crate) struct Bounds {
    /// Most bytes, and the error of a write that lies beyond.
    pub(crate) size_max: u64,
    pub(crate) beyond: Errno,
    /// A write that is cut short ends at a multiple of this.
    pub(crate) align: u64,
    /// Bytes that may still be allocated.
    pub(crate) room: u64,
}

impl Disk {
    pub(crate) fn new(host: HostId, config: DiskConfig, random: Random) -> Self {
        let bytes = Bytes::new(config.sector_bytes, config.size);
        Disk { host, drive: Drive::new(config, random), bytes }
    }

    /// Starts `op`, which must be aligned to `align` bytes, and returns its end in nanoseconds. Errors are those of the
    /// request itself.
    ///
    /// # Safety
    /// The memory of its segments is valid.
    pub(crate) unsafe fn start(&mut self, now: u64, op: &Op, align: u32, job: &mut DiskJob) -> Result<u64, Errno> {
        let size = self.drive.config.size;
        self.drive.check(op, align, |at, len| {
            // The host zeroes a partial last block by itself.
            let is_aligned = (at | len) & (u64::from(align) - 1) == 0 || at.checked_add(len) == Some(size);
            let valid = len > 0 && is_aligned && at.checked_add(len).is_some_and(|end| end <= size);
            if valid { Ok(()) } else { Err(Errno::INVALID) }
        })?;
        job.covers = self.bytes.latest_change();
        // SAFETY: guaranteed by the caller.
        unsafe { self.drive.begin(now, op, job) }
    }

    /// Applies the effect of `op` and returns its result.
    ///
    /// # Safety
    /// The memory of its segments is valid, and for reads not used by others.
    pub(crate) unsafe fn finish(&mut self, op: &Op, job: &mut DiskJob) -> Result<u64, Errno> {
        let DiskConfig { size, align, .. } = self.drive.config;
        let bounds = Bounds {
            size_max: size,
            beyond: Errno::NO_SPACE,
            align: u64::from(align),
            room: self.drive.space_max.map_or(u64::MAX, |max| max.saturating_sub(self.bytes.allocated())),
        };
        // SAFETY: guaranteed by the caller.
        unsafe { self.drive.finish(&mut self.bytes, &bounds, op, job) }
    }

    /// The change that `op`, in flight when its machine died, would have made.
    pub(crate) fn change_in_flight(&self, op: &Op, job: &DiskJob) -> Option<Change> {
        let change = self.bytes.within(&change_of(op, job)?);
        (change.len > 0).then_some(change)
    }

    /// Its process died.
    pub(crate) fn abandon(&mut self, in_flight: &[Change]) {
        self.drive.restart();
        self.bytes.content.abandon(in_flight, &mut self.drive.random);
    }

    pub(crate) fn power_cut(&mut self, in_flight: Vec<Change>) {
        self.drive.restart();
        self.bytes.content.power_cut(in_flight, &self.drive.config.faults, &mut self.drive.random);
    }
}

/// The change that `op` makes if it succeeds.
pub(crate) fn change_of(op: &Op, job: &DiskJob) -> Option<Change> {
    Some(match op {
        Op::Write { at, .. } => Change { at: at.0, len: job.data_len(), payload: job.payload() },
        Op::Zero { at, len, may_release: false, .. } => Change { at: at.0, len: *len, payload: Payload::Zeroes },
        Op::Zero { at, len, .. } | Op::Discard { at, len, .. } => {
            Change { at: at.0, len: *len, payload: Payload::Hole }
        }
        _ => return None,
    })
}

impl Drive {
    pub(crate) fn new(config: DiskConfig, random: Random) -> Self {
        config.check();
        Drive {
            channels: vec![0; config.channels as usize],
            injections: Injections::default(),
            counters: DiskCounters::default(),
            space_max: None,
            random,
            config,
        }
    }

    /// Forgets what is in flight: the channels are free again.
    pub(crate) fn restart(&mut self) {
        self.channels.fill(0);
    }

    /// Starts a valid request: decides whether it fails, its data and its end, which it returns.
    ///
    /// # Safety
    /// The memory of its segments is valid.
    pub(crate) unsafe fn begin(&mut self, now: u64, op: &Op, job: &mut DiskJob) -> Result<u64, Errno> {
        let Some(class) = OpClass::of(op) else {
            return Err(Errno::INVALID);
        };
        job.fault = self.draw_fault(class);
        let bytes = match op {
            Op::Read { into, .. } => total_len(into),
            Op::Write { from, .. } => total_len(from),
            _ => 0,
        };
        if let Op::Write { from, .. } = op {
            let mut data = Vec::with_capacity(bytes as usize);
            // SAFETY: guaranteed by the caller.
            unsafe { gather(from, bytes, &mut data) };
            job.data = Some(Rc::new(data));
        }
        self.count(op, bytes);
        Ok(self.end_of(now, op, bytes))
    }

    pub(crate) fn draw_fault(&mut self, class: OpClass) -> Option<Errno> {
        self.injections.on_start(class, &self.config.faults, &mut self.random)
    }

    /// Checks a request for what this can do; `range` checks what is zeroed or discarded.
    pub(crate) fn check(
        &self,
        op: &Op,
        align: u32,
        range: impl Fn(u64, u64) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let segments = |at: u64, segments: &Segments| {
            let lens = segments.iter().fold(0, |lens, segment| lens | u64::from(segment.len));
            segments.len() <= machine::SEGMENTS_MAX
                && (at | lens) & (u64::from(align) - 1) == 0
                && at.checked_add(total_len(segments)).is_some()
        };
        match op {
            Op::Read { at, into: memory, .. } | Op::Write { at, from: memory, .. } if !segments(at.0, memory) => {
                Err(Errno::INVALID)
            }
            Op::Zero { at, len, .. } if self.config.zero_supported => range(at.0, *len),
            Op::Discard { at, len, .. } if self.config.discard_supported => range(at.0, *len),
            Op::Zero { .. } | Op::Discard { .. } => Err(Errno::NOT_SUPPORTED),
            Op::FindData { .. } if !self.config.find_data_supported => Err(Errno::NOT_SUPPORTED),
            _ => Ok(()),
        }
    }

    fn count(&mut self, op: &Op, bytes: u64) {
        let counters = &mut self.counters;
        match op {
            Op::Read { .. } => {
                counters.reads += 1;
                counters.bytes_read += bytes;
            }
            Op::Write { stability, .. } => {
                counters.writes += 1;
                counters.stable_writes += u64::from(*stability == Stability::Stable);
                counters.bytes_written += bytes;
            }
            Op::Flush { .. } => counters.flushes += 1,
            Op::Zero { .. } | Op::Discard { .. } => counters.zeroes_and_discards += 1,
            _ => {}
        }
    }

    fn end_of(&mut self, now: u64, op: &Op, bytes: u64) -> u64 {
        let config = &self.config;
        let random = &mut self.random;
        let mut ns = bytes * config.ns_per_kib / 1024;
        ns += match op {
            Op::Read { .. } | Op::FindData { .. } => config.read.draw(random),
            Op::Flush { .. } => config.flush.draw(random),
            _ => config.write.draw(random),
        };
        if let Op::Write { stability: Stability::Stable, .. } = op {
            ns += config.stable_extra.draw(random);
        }
        if random.permille(config.stall_permille) {
            ns += config.stall.draw(random);
        }
        if let Op::Flush { .. } = op {
            return now + ns;
        }
        match self.channels.iter_mut().min() {
            Some(free_at) => {
                *free_at = now.max(*free_at) + ns;
                *free_at
            }
            None => now + ns,
        }
    }

    /// Applies the effect of `op` on `bytes` and returns its result.
    ///
    /// # Safety
    /// The memory of its segments is valid, and for reads not used by others.
    pub(crate) unsafe fn finish(
        &mut self,
        bytes: &mut Bytes,
        bounds: &Bounds,
        op: &Op,
        job: &mut DiskJob,
    ) -> Result<u64, Errno> {
        match op {
            // SAFETY: guaranteed by the caller.
            Op::Read { at, into, .. } => unsafe { self.finish_read(bytes, at.0, into, job) },
            Op::Write { at, from, stability, .. } => {
                // SAFETY: as above.
                unsafe { self.finish_write(bytes, bounds, (at.0, from, *stability), job) }
            }
            Op::Flush { .. } => self.finish_flush(bytes, job),
            // It has no page cache.
            Op::WriteBack { .. } => job.fault.map_or(Ok(0), Err),
            Op::Zero { .. } => self.finish_change(bytes, OpClass::Zero, op, bounds, job),
            Op::Discard { .. } => self.finish_change(bytes, OpClass::Discard, op, bounds, job),
            Op::FindData { within, runs_max, runs, .. } => {
                job.fault.map_or(Ok(()), Err)?;
                // Fewer than there are: between those and the others the content may change.
                let most = self.random.between(1, *runs_max as u64) as usize;
                let (found, end) = bytes.find_data(*within, most);
                *runs.lock() = found;
                Ok(end.0)
            }
            Op::Populate { .. }
            | Op::Accept { .. }
            | Op::Receive { .. }
            | Op::Send { .. }
            | Op::Faults { .. }
            | Op::Tree(_) => Err(Errno::INVALID),
        }
    }

    unsafe fn finish_read(&mut self, bytes: &Bytes, at: u64, into: &Segments, job: &DiskJob) -> Result<u64, Errno> {
        let len = total_len(into).min(bytes.size().saturating_sub(at));
        if let Some(errno) = self.fault(OpClass::Read, at, len, job) {
            return Err(errno);
        }
        // SAFETY: guaranteed by the caller.
        unsafe { scatter_into(into, len, |passed, out| bytes.read(at + passed, out)) };
        // SAFETY: as above.
        unsafe { self.flip_by_chance(into, len) };
        Ok(len)
    }

    /// Flips a bit in one of the first `len` bytes, as often as configured.
    ///
    /// # Safety
    /// The memory of the segments is valid, and not used by others.
    unsafe fn flip_by_chance(&mut self, into: &Segments, len: u64) {
        if len == 0 || !self.random.permille(self.config.faults.read_flip_permille) {
            return;
        }
        let wrong = self.random.below(len);
        let flip = 1 << self.random.below(8);
        let flip_it = |passed: u64, bytes: &mut [u8]| {
            if let Some(byte) = wrong.checked_sub(passed).and_then(|i| bytes.get_mut(i as usize)) {
                *byte ^= flip;
            }
        };
        // SAFETY: guaranteed by the caller.
        unsafe { scatter_into(into, len, flip_it) };
    }

    unsafe fn finish_write(
        &mut self,
        bytes: &mut Bytes,
        bounds: &Bounds,
        (at, from, stability): (u64, &Segments, Stability),
        job: &mut DiskJob,
    ) -> Result<u64, Errno> {
        let (asked, align) = (total_len(from), bounds.align);
        let mut len = asked.min(bounds.size_max.saturating_sub(at));
        if len == 0 && asked > 0 {
            return Err(bounds.beyond);
        }
        if let Some(errno) = self.fault(OpClass::Write, at, len, job) {
            self.tear(bytes, errno, &Change { at, len, payload: job.payload() });
            if stability == Stability::Stable && self.config.faults.failed_flush_drops {
                // The host may have split it into a write and a flush.
                bytes.drop_covered(bytes.latest_change(), &mut self.random);
            }
            return Err(errno);
        }
        if len > align && self.random.permille(self.config.faults.short_write_permille) {
            len = align * self.random.between(1, (len - 1) / align);
        }
        let fitting = bytes.fitting(at, len, bounds.room);
        if fitting < len {
            len = fitting - fitting % align;
        }
        if len == 0 && asked > 0 {
            return Err(Errno::NO_SPACE);
        }
        // SAFETY: guaranteed by the caller.
        unsafe { job.fetch_late(from, len, &mut self.random) };
        let lies = self.random.permille(self.config.faults.stable_lie_permille);
        bytes.write(&Change { at, len, payload: job.payload() }, stability == Stability::Stable && !lies);
        self.injections.written(ByteRange::new(at, len));
        Ok(len)
    }

    fn finish_change(
        &mut self,
        bytes: &mut Bytes,
        class: OpClass,
        op: &Op,
        bounds: &Bounds,
        job: &DiskJob,
    ) -> Result<u64, Errno> {
        let change = change_of(op, job).ok_or(Errno::INVALID)?;
        if let Some(errno) = self.fault(class, change.at, change.len, job) {
            if (class, errno) == (OpClass::Zero, Errno::NO_SPACE) {
                let end = change.at + self.random.below(change.len);
                let end = end - end % u64::from(self.config.sector_bytes);
                bytes.change_within(&Change { len: end.saturating_sub(change.at), ..change });
            } else {
                self.tear(bytes, errno, &change);
            }
            return Err(errno);
        }
        let len = bytes.within(&change).len;
        let allocates = class == OpClass::Zero && matches!(change.payload, Payload::Zeroes);
        let fitting = if allocates { bytes.fitting(change.at, len, bounds.room) } else { len };
        if fitting < len {
            // The host zeroes what fits before it finds out.
            bytes.change_within(&Change { len: fitting, ..change });
            return Err(Errno::NO_SPACE);
        }
        bytes.change_within(&change);
        Ok(0)
    }

    fn finish_flush(&mut self, bytes: &mut Bytes, job: &DiskJob) -> Result<u64, Errno> {
        let faults = self.config.faults;
        if let Some(errno) = job.fault {
            if faults.failed_flush_drops {
                let covers = self.dropped_by_failure(job.covers, bytes.latest_change());
                bytes.drop_covered(covers, &mut self.random);
            }
            return Err(errno);
        }
        if !self.random.permille(faults.flush_lie_permille) {
            bytes.flush(job.covers);
        }
        Ok(0)
    }

    /// The latest change that a failed flush may lose: those it covered, and often those complete before it failed.
    pub(crate) fn dropped_by_failure(&mut self, covered: u64, latest: u64) -> u64 {
        if self.random.permille(500) { latest } else { covered }
    }

    /// Time from the effect of an operation until its completion is seen, in nanoseconds.
    pub(crate) fn lateness(&mut self) -> u64 {
        if self.random.permille(self.config.late_permille) { self.config.late.draw(&mut self.random) } else { 0 }
    }

    fn fault(&self, class: OpClass, at: u64, len: u64, job: &DiskJob) -> Option<Errno> {
        job.fault.or_else(|| self.injections.on_range(class, ByteRange::new(at, len)))
    }

    /// A change failed with `errno`: it may have taken effect partly, but without extending a file.
    fn tear(&mut self, bytes: &mut Bytes, errno: Errno, change: &Change) {
        if errno == Errno::IO && change.len > 0 && self.config.faults.failed_write_tears {
            bytes.tear(change, self.random.next(), false);
        }
    }
}
