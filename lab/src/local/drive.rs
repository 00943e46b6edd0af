//! A mechanical disk in real time, as a device of the kernel: memory with the model's timing, request by request.

use std::sync::{Mutex, PoisonError};

use kernel::device::{Device, DeviceFacts, RamDisk, Work};
use kernel::processor::Processor;
use kernel::request::{Action, Outcome, Request};
use papers::drive::Access;
use papers::drive::mechanical::{Mechanical, Mechanism};
use policy::unit::{DiskNo, Instant};

pub struct DriveDevice {
    memory: RamDisk,
    transfer_bytes_max: u32,
    mechanism: Mutex<Mechanism>,
}

impl DriveDevice {
    /// A disk of that model, with as many cylinders as `size` bytes take. `disk` is its number.
    pub fn new(model: Mechanical, size: u64, disk: DiskNo) -> Self {
        DriveDevice {
            memory: RamDisk::new(size, disk),
            transfer_bytes_max: model.transfer_bytes_max,
            mechanism: Mutex::new(Mechanism::stretched(model, size)),
        }
    }

    /// Reserves the arm for a request; returns when the request will be done.
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

impl Device for DriveDevice {
    fn facts(&self) -> DeviceFacts {
        DeviceFacts { rotational: true, transfer_bytes_max: self.transfer_bytes_max, ..self.memory.facts() }
    }

    fn perform<'a>(&'a self, cpu: &'a Processor, request: Request) -> Work<'a, Outcome> {
        Box::pin(async move {
            cpu.sleep_until(self.reserve(cpu.now(), &request.action)).await;
            self.memory.perform(cpu, request).await
        })
    }
}
