//! The papers' `testdev`: it answers a fixed time after it was asked (MP section 3.3).

use std::time::Duration;

use policy::unit::{ByteOffset, ByteRange};

use super::{Device, DeviceFacts, DeviceRef, SeekTarget, Work};
use crate::processor::Processor;
use crate::request::Request;

/// Each request ends this long after it was issued, whatever the content device below takes.
pub struct FixedLatency {
    below: DeviceRef,
    latency: Duration,
}

/// What `testdev` of the MP paper takes: about 17 ms.
pub const TESTDEV_LATENCY: Duration = Duration::from_millis(17);

impl FixedLatency {
    /// A device with the content of `below`.
    pub fn new(below: DeviceRef, latency: Duration) -> Self {
        FixedLatency { below, latency }
    }
}

impl Device for FixedLatency {
    fn facts(&self) -> DeviceFacts {
        self.below.facts()
    }

    fn perform<'a>(&'a self, cpu: &'a Processor, request: Request) -> Work<'a, ()> {
        Box::pin(async move {
            let end = cpu.now() + self.latency;
            let result = self.below.perform(cpu, request).await;
            cpu.sleep_until(end).await;
            result
        })
    }

    fn expedite(&self, cpu: &Processor, range: ByteRange) {
        self.below.expedite(cpu, range);
    }

    fn seek<'a>(&'a self, cpu: &'a Processor, at: ByteOffset, target: SeekTarget) -> Work<'a, Option<ByteOffset>> {
        self.below.seek(cpu, at, target)
    }
}
