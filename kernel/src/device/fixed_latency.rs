//! The papers' `testdev`: a fixed latency (MP section 3.3).

use std::time::Duration;

use policy::unit::ByteRange;

use super::{Device, DeviceFacts, DeviceRef, FoundData, Work};
use crate::processor::Processor;
use crate::request::{Outcome, Request};

/// Each request ends this long after it was issued, if the device below is not slower.
pub struct FixedLatency {
    below: DeviceRef,
    latency: Duration,
}

/// Latency of the MP paper's `testdev`: about 17 ms.
pub const TESTDEV_LATENCY: Duration = Duration::from_millis(17);

impl FixedLatency {
    pub fn new(below: DeviceRef, latency: Duration) -> Self {
        FixedLatency { below, latency }
    }
}

impl Device for FixedLatency {
    fn facts(&self) -> DeviceFacts {
        // Reads of holes come here, too.
        DeviceFacts { may_be_sparse: false, ..self.below.facts() }
    }

    fn perform<'a>(&'a self, cpu: &'a Processor, request: Request) -> Work<'a, Outcome> {
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

    fn find_data<'a>(&'a self, cpu: &'a Processor, within: ByteRange, runs_max: usize) -> Work<'a, FoundData> {
        self.below.find_data(cpu, within, runs_max)
    }
}
