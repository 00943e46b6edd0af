//! A device layer that measurements use.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kernel::Processor;
use kernel::device::{Device, DeviceFacts, DeviceRef, Work};
use kernel::request::{Action, Outcome, Request};
use policy::unit::ByteRange;

/// Counts the requests of a device.
pub(super) struct Counted {
    below: DeviceRef,
    /// What a flush takes longer, as on a disk whose cache has to be written to the platters.
    slow_flush: Duration,
    transfers: AtomicU64,
    flushes: AtomicU64,
}

impl Counted {
    pub(super) fn new(below: DeviceRef, slow_flush: Duration) -> Self {
        Counted { below, slow_flush, transfers: AtomicU64::new(0), flushes: AtomicU64::new(0) }
    }

    pub(super) fn transfers(&self) -> u64 {
        self.transfers.load(Ordering::Relaxed)
    }

    pub(super) fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Relaxed)
    }
}

impl Device for Counted {
    fn facts(&self) -> DeviceFacts {
        self.below.facts()
    }

    fn perform<'a>(&'a self, cpu: &'a Processor, request: Request) -> Work<'a, Outcome> {
        let is_flush = matches!(request.action, Action::Flush);
        let counter = if is_flush { &self.flushes } else { &self.transfers };
        counter.fetch_add(1, Ordering::Relaxed);
        if !is_flush || self.slow_flush.is_zero() {
            return self.below.perform(cpu, request);
        }
        Box::pin(async move {
            cpu.sleep(self.slow_flush).await;
            self.below.perform(cpu, request).await
        })
    }

    fn expedite(&self, cpu: &Processor, range: ByteRange) {
        self.below.expedite(cpu, range);
    }
}
