//! A modelled mechanical disk in real (or virtual) time: seek, rotation, transfer, one request after another.

use std::sync::{Mutex, PoisonError};

pub use machine::drive::mechanical::Mechanical as MechanicalModel;

use machine::drive::Access;
use machine::drive::mechanical::Mechanism;
use policy::unit::{ByteOffset, ByteRange, Instant};

use super::{Device, DeviceFacts, DeviceRef, SeekTarget, Work};
use crate::processor::Processor;
use crate::request::{Action, Request};

/// A device that takes the time of a mechanical disk; its content is that of the device below.
pub struct Mechanical {
    below: DeviceRef,
    model: MechanicalModel,
    mechanism: Mutex<Mechanism>,
}

impl Mechanical {
    /// A disk of that model with the content of `below`, and as many cylinders as that takes.
    pub fn new(below: DeviceRef, model: MechanicalModel) -> Self {
        let mechanism = Mutex::new(Mechanism::stretched(model, below.facts().size));
        Mechanical { below, model, mechanism }
    }

    /// Reserves the arm for a request and tells when it will be done.
    fn reserve(&self, now: Instant, action: &Action) -> Instant {
        let mut mechanism = self.mechanism.lock().unwrap_or_else(PoisonError::into_inner);
        let timing = match action {
            Action::Read(range, _) => mechanism.serve(now, Access::Read, *range),
            Action::Write(range, _) | Action::Zero { range, .. } => mechanism.serve(now, Access::Write, *range),
            Action::Discard(_) | Action::Flush => mechanism.serve_without_data(now),
        };
        timing.done
    }
}

impl Device for Mechanical {
    fn facts(&self) -> DeviceFacts {
        DeviceFacts { rotational: true, transfer_bytes_max: self.model.transfer_bytes_max, ..self.below.facts() }
    }

    fn perform<'a>(&'a self, cpu: &'a Processor, request: Request) -> Work<'a, ()> {
        Box::pin(async move {
            let end = self.reserve(cpu.now(), &request.action);
            cpu.sleep_until(end).await;
            self.below.perform(cpu, request).await
        })
    }

    fn expedite(&self, cpu: &Processor, range: ByteRange) {
        self.below.expedite(cpu, range);
    }

    fn seek<'a>(&'a self, cpu: &'a Processor, at: ByteOffset, target: SeekTarget) -> Work<'a, Option<ByteOffset>> {
        self.below.seek(cpu, at, target)
    }
}
