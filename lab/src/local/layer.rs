//! Device layers that measurements use.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kernel::Processor;
use kernel::device::{Device, DeviceFacts, DeviceRef, Work};
use kernel::request::{Action, Outcome, Request};
use policy::unit::ByteRange;

/// A device whose flush takes a fixed time, like that of a disk whose cache has to be written to the platters.
pub(super) struct SlowFlush {
    pub(super) below: DeviceRef,
    pub(super) flush: Duration,
}

impl Device for SlowFlush {
    fn facts(&self) -> DeviceFacts {
        self.below.facts()
    }

    fn perform<'a>(&'a self, cpu: &'a Processor, request: Request) -> Work<'a, Outcome> {
        Box::pin(async move {
            if matches!(request.action, Action::Flush) {
                cpu.sleep(self.flush).await;
            }
            self.below.perform(cpu, request).await
        })
    }

    fn expedite(&self, cpu: &Processor, range: ByteRange) {
        self.below.expedite(cpu, range);
    }
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    transfers: AtomicU64,
    flushes: AtomicU64,
}

impl Counters {
    pub(super) fn transfers(&self) -> u64 {
        self.transfers.load(Ordering::Relaxed)
    }

    pub(super) fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Relaxed)
    }
}

/// A device that counts its requests.
pub(super) struct Counted {
    pub(super) below: DeviceRef,
    pub(super) counters: Arc<Counters>,
}

impl Device for Counted {
    fn facts(&self) -> DeviceFacts {
        self.below.facts()
    }

    fn perform<'a>(&'a self, cpu: &'a Processor, request: Request) -> Work<'a, Outcome> {
        let counter = match request.action {
            Action::Flush => &self.counters.flushes,
            _ => &self.counters.transfers,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        self.below.perform(cpu, request)
    }

    fn expedite(&self, cpu: &Processor, range: ByteRange) {
        self.below.expedite(cpu, range);
    }
}
