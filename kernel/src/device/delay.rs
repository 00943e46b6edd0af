//! Adds latency to a device, for tests and experiments.

use std::time::Duration;

use policy::unit::ByteRange;

use super::{Device, DeviceFacts, DeviceRef, FoundData, Work};
use crate::processor::Processor;
use crate::request::{Outcome, Request};

/// Delays every request by a fixed time; requests wait concurrently.
pub struct Delay {
    below: DeviceRef,
    by: Duration,
}

impl Delay {
    pub fn new(below: DeviceRef, by: Duration) -> Self {
        Delay { below, by }
    }
}

impl Device for Delay {
    fn facts(&self) -> DeviceFacts {
        // Reads of holes come here, too.
        DeviceFacts { may_be_sparse: false, ..self.below.facts() }
    }

    fn perform<'a>(&'a self, cpu: &'a Processor, request: Request) -> Work<'a, Outcome> {
        Box::pin(async move {
            cpu.sleep(self.by).await;
            self.below.perform(cpu, request).await
        })
    }

    fn expedite(&self, cpu: &Processor, range: ByteRange) {
        self.below.expedite(cpu, range);
    }

    fn find_data<'a>(&'a self, cpu: &'a Processor, within: ByteRange, runs_max: usize) -> Work<'a, FoundData> {
        self.below.find_data(cpu, within, runs_max)
    }
}
