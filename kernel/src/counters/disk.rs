//! Counters of a disk's queue, per processor.

use std::sync::OnceLock;

use policy::unit::ProcessorId;

use super::{Counter, LockReading};
use crate::request::Action;
use crate::trace::Event;

/// One processor's share.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct DiskBlock {
    arrived: Counter,
    ended: Counter,
    reads: Counter,
    writes: Counter,
    flushes: Counter,
    others: Counter,
    bytes_read: Counter,
    bytes_written: Counter,
    failed: Counter,
    ticks: Counter,
}

impl DiskBlock {
    /// A request was queued.
    pub(crate) fn arrive(&self) {
        self.arrived.add(1);
    }

    /// `requests` have ended.
    pub(crate) fn end(&self, requests: usize) {
        self.ended.add(requests as u64);
    }

    pub(crate) fn issue(&self, action: &Action) {
        match action {
            Action::Read(..) => self.reads.add(1),
            Action::Write(..) => self.writes.add(1),
            Action::Flush => self.flushes.add(1),
            Action::Zero { .. } | Action::Discard(_) => self.others.add(1),
        }
    }

    /// What was issued as `event` for `bytes` has ended.
    pub(crate) fn complete(&self, event: Event, bytes: u64, ticks: u64, is_ok: bool) {
        self.ticks.add(ticks);
        match event {
            _ if !is_ok => self.failed.add(1),
            Event::DeviceRead => self.bytes_read.add(bytes),
            Event::DeviceWrite => self.bytes_written.add(bytes),
            _ => {}
        }
    }
}

/// The blocks of all processors, made on first use.
#[derive(Default)]
pub(crate) struct DiskCounters(OnceLock<Box<[DiskBlock]>>);

impl DiskCounters {
    /// The block of one of `processors`, to be written by it only.
    pub(crate) fn of(&self, id: ProcessorId, processors: u16) -> &DiskBlock {
        let make = || (0..processors).map(|_| DiskBlock::default()).collect();
        &self.0.get_or_init(make)[usize::from(id.0)]
    }

    pub(crate) fn read(&self, lock: LockReading) -> DiskReading {
        let mut sum = DiskReading { lock, ..DiskReading::default() };
        let (mut arrived, mut ended) = (0, 0);
        for block in self.0.get().into_iter().flatten() {
            // Ended first: a request that arrives and ends during the reading must not make the depth negative.
            ended += block.ended.get();
            sum.reads += block.reads.get();
            sum.writes += block.writes.get();
            sum.flushes += block.flushes.get();
            sum.others += block.others.get();
            sum.bytes_read += block.bytes_read.get();
            sum.bytes_written += block.bytes_written.get();
            sum.failed += block.failed.get();
            sum.ticks += block.ticks.get();
            arrived += block.arrived.get();
        }
        sum.requests = arrived;
        sum.depth = arrived.saturating_sub(ended);
        sum
    }
}

/// Totals since the queue was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskReading {
    /// Requests queued.
    pub requests: u64,
    /// Those not ended: they wait, or are on the disk.
    pub depth: u64,
    pub reads: u64,
    pub writes: u64,
    pub flushes: u64,
    pub others: u64,
    /// Of transfers that succeeded.
    pub bytes_read: u64,
    pub bytes_written: u64,
    /// Transfers and flushes that failed.
    pub failed: u64,
    /// Sum of the durations of transfers and flushes. Ticks.
    pub ticks: u64,
    /// Use of the queue's lock.
    pub lock: LockReading,
}
