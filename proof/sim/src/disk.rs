//! A simulated disk: the duration of operations, and their effect at the end.

use std::rc::Rc;

use policy::unit::{ByteRange, Stability};

use crate::change::{Change, Payload};
use crate::config::DiskConfig;
use crate::content::Content;
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
    /// A flush covers all changes up to this one.
    pub(crate) covers: u64,
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

#[derive(Debug)]
pub(crate) struct Disk {
    pub(crate) host: HostId,
    pub(crate) config: DiskConfig,
    pub(crate) content: Content,
    pub(crate) injections: Injections,
    pub(crate) counters: DiskCounters,
    pub(crate) random: Random,
    /// Maximum of allocated bytes.
    pub(crate) space_max: Option<u64>,
    /// When each channel becomes free, in nanoseconds.
    channels: Vec<u64>,
}

impl Disk {
    pub(crate) fn new(host: HostId, config: DiskConfig, random: Random) -> Self {
        config.check();
        Disk {
            host,
            content: Content::new(config.sector_bytes),
            channels: vec![0; config.channels as usize],
            injections: Injections::default(),
            counters: DiskCounters::default(),
            space_max: None,
            random,
            config,
        }
    }

    /// Starts `op`, which must be aligned to `align` bytes, and returns its end in nanoseconds. Errors are those of the
    /// request itself.
    ///
    /// # Safety
    /// The memory of its segments is valid.
    pub(crate) unsafe fn start(&mut self, now: u64, op: &Op, align: u32, job: &mut DiskJob) -> Result<u64, Errno> {
        self.check(op, align)?;
        job.covers = self.content.latest_change();
        // SAFETY: guaranteed by the caller.
        unsafe { self.begin(now, op, job) }
    }

    /// As [`start`](Self::start), for a valid request: decides whether it fails, its data and its end.
    ///
    /// # Safety
    /// The memory of its segments is valid.
    pub(crate) unsafe fn begin(&mut self, now: u64, op: &Op, job: &mut DiskJob) -> Result<u64, Errno> {
        let Some(class) = OpClass::of(op) else {
            return Err(Errno::INVALID);
        };
        job.fault = self.injections.on_start(class, &self.config.faults, &mut self.random);
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

    fn check(&self, op: &Op, align: u32) -> Result<(), Errno> {
        let aligned = |at: u64, len: u64| (at | len) & (u64::from(align) - 1) == 0;
        let segments = |at: u64, segments: &Segments| {
            let lens = segments.iter().fold(0, |lens, segment| lens | u64::from(segment.len));
            segments.len() <= machine::SEGMENTS_MAX
                && aligned(at, lens)
                && at.checked_add(total_len(segments)).is_some()
        };
        let range = |at: u64, len: u64| {
            // The host zeroes a partial last block by itself.
            let is_aligned = aligned(at, len) || at.checked_add(len) == Some(self.config.size);
            len > 0 && is_aligned && at.checked_add(len).is_some_and(|end| end <= self.config.size)
        };
        let valid = match op {
            Op::Read { at, into, .. } => segments(at.0, into),
            Op::Write { at, from, .. } => segments(at.0, from),
            Op::Zero { at, len, .. } if self.config.zero_supported => range(at.0, *len),
            Op::Discard { at, len, .. } if self.config.discard_supported => range(at.0, *len),
            Op::Seek { .. } if self.config.seek_supported => true,
            Op::Zero { .. } | Op::Discard { .. } | Op::Seek { .. } => {
                return Err(Errno::NOT_SUPPORTED);
            }
            _ => true,
        };
        if valid { Ok(()) } else { Err(Errno::INVALID) }
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
            Op::Read { .. } | Op::Seek { .. } => config.read.draw(random),
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

    /// Applies the effect of `op` and returns its result.
    ///
    /// # Safety
    /// The memory of its segments is valid, and for reads not used by others.
    pub(crate) unsafe fn finish(&mut self, op: &Op, job: &mut DiskJob) -> Result<u64, Errno> {
        match op {
            // SAFETY: guaranteed by the caller.
            Op::Read { at, into, .. } => unsafe { self.finish_read(at.0, into, job) },
            Op::Write { at, from, stability, .. } => {
                // SAFETY: as above.
                unsafe { self.finish_write(at.0, from, *stability, job) }
            }
            Op::Flush { .. } => self.finish_flush(job),
            // It has no page cache.
            Op::WriteBack { .. } => job.fault.map_or(Ok(0), Err),
            Op::Zero { at, len, may_release, .. } => {
                let payload = if *may_release { Payload::Hole } else { Payload::Zeroes };
                self.finish_change(OpClass::Zero, Change { at: at.0, len: *len, payload }, job)
            }
            Op::Discard { at, len, .. } => {
                let change = Change { at: at.0, len: *len, payload: Payload::Hole };
                self.finish_change(OpClass::Discard, change, job)
            }
            Op::Seek { at, target, .. } => match job.fault {
                Some(errno) => Err(errno),
                None => self.content.seek(at.0, *target, self.config.size).ok_or(Errno::NO_SUCH_ADDRESS),
            },
            Op::Populate { .. } | Op::Accept { .. } | Op::Receive { .. } | Op::Send { .. } | Op::Tree(_) => {
                Err(Errno::INVALID)
            }
        }
    }

    unsafe fn finish_read(&mut self, at: u64, into: &Segments, job: &DiskJob) -> Result<u64, Errno> {
        let len = total_len(into).min(self.config.size.saturating_sub(at));
        if let Some(errno) = self.fault(OpClass::Read, at, len, job) {
            return Err(errno);
        }
        let content = &self.content;
        // SAFETY: guaranteed by the caller.
        unsafe { scatter_into(into, len, |passed, bytes| content.read(at + passed, bytes)) };
        // SAFETY: as above.
        unsafe { self.flip_by_chance(into, len) };
        Ok(len)
    }

    /// Flips a bit in one of the first `len` bytes, as often as configured.
    ///
    /// # Safety
    /// The memory of the segments is valid, and not used by others.
    pub(crate) unsafe fn flip_by_chance(&mut self, into: &Segments, len: u64) {
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
        at: u64,
        from: &Segments,
        stability: Stability,
        job: &mut DiskJob,
    ) -> Result<u64, Errno> {
        let asked = total_len(from);
        let mut len = asked.min(self.config.size.saturating_sub(at));
        if let Some(errno) = self.fault(OpClass::Write, at, len, job) {
            self.tear(errno, Change { at, len, payload: job.payload() });
            if stability == Stability::Stable && self.config.faults.failed_flush_drops {
                // The host may have split it into a write and a flush.
                self.content.drop_covered(self.content.latest_change(), &mut self.random);
            }
            return Err(errno);
        }
        let align = u64::from(self.config.align);
        if len > align && self.random.permille(self.config.faults.short_write_permille) {
            len = align * self.random.between(1, (len - 1) / align);
        }
        if let Some(max) = self.space_max {
            let fitting = self.content.fitting(at, len, max.saturating_sub(self.content.allocated()));
            len = len.min(fitting - fitting % align);
        }
        if len == 0 && asked > 0 {
            return Err(Errno::NO_SPACE);
        }
        // SAFETY: guaranteed by the caller.
        unsafe { job.fetch_late(from, len, &mut self.random) };
        let change = Change { at, len, payload: job.payload() };
        let lies = self.random.permille(self.config.faults.stable_lie_permille);
        self.content.apply(&change, stability == Stability::Stable && !lies);
        self.injections.written(ByteRange::new(at, len));
        Ok(len)
    }

    fn finish_change(&mut self, class: OpClass, change: Change, job: &DiskJob) -> Result<u64, Errno> {
        if let Some(errno) = self.fault(class, change.at, change.len, job) {
            self.tear(errno, change);
            return Err(errno);
        }
        self.content.apply(&change, false);
        Ok(0)
    }

    fn finish_flush(&mut self, job: &DiskJob) -> Result<u64, Errno> {
        let faults = &self.config.faults;
        if let Some(errno) = job.fault {
            if faults.failed_flush_drops {
                let covers = self.dropped_by_failure(job.covers, self.content.latest_change());
                self.content.drop_covered(covers, &mut self.random);
            }
            return Err(errno);
        }
        if !self.random.permille(faults.flush_lie_permille) {
            self.content.flush(job.covers);
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

    /// A change failed with `errno`: it may have taken effect partly.
    fn tear(&mut self, errno: Errno, change: Change) {
        if errno == Errno::IO && change.len > 0 && self.config.faults.failed_write_tears {
            let salt = self.random.next();
            self.content.apply_torn(&change, salt);
        }
    }

    /// The change that `op`, in flight when its machine died, would have made.
    pub(crate) fn change_in_flight(&self, op: &Op, job: &DiskJob) -> Option<Change> {
        let within = |at: u64, len: u64| len.min(self.config.size.saturating_sub(at));
        let change = match op {
            Op::Write { at, .. } => {
                let len = within(at.0, job.data_len());
                Change { at: at.0, len, payload: job.payload() }
            }
            Op::Zero { at, len, may_release: false, .. } => Change { at: at.0, len: *len, payload: Payload::Zeroes },
            Op::Zero { at, len, .. } | Op::Discard { at, len, .. } => {
                Change { at: at.0, len: *len, payload: Payload::Hole }
            }
            _ => return None,
        };
        (change.len > 0).then_some(change)
    }

    /// Its process died: the channels are free again.
    pub(crate) fn abandon(&mut self, in_flight: &[Change]) {
        self.channels.fill(0);
        self.content.abandon(in_flight, &mut self.random);
    }

    pub(crate) fn power_cut(&mut self, in_flight: Vec<Change>) {
        self.channels.fill(0);
        self.content.power_cut(in_flight, &self.config.faults, &mut self.random);
    }
}
