//! Devices: one shape, stacked. From the top: queue, injectors of delay and faults, then a file, RAM or a model.

mod check;
mod delay;
mod fault;
mod file;
mod fixed_latency;
mod mapped;
mod mechanical;
mod ram;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use machine::{Errno, SeekTarget};
use policy::unit::{ByteOffset, ByteRange};

use crate::processor::Processor;
use crate::request::Request;

pub use check::Checked;
pub use delay::Delay;
pub use fault::{Fault, Faults, Operation};
pub use file::FileDevice;
pub use fixed_latency::{FixedLatency, TESTDEV_LATENCY};
pub(crate) use mapped::MappedBuffer;
pub use mechanical::{Mechanical, MechanicalModel};
pub use ram::RamDisk;

/// What is known of a device. Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    pub size: u64,
    pub writable: bool,
    pub rotational: bool,
    /// Largest transfer worth asking for at once.
    pub transfer_bytes_max: u32,
    /// Can it zero and discard faster than by writing zeroes?
    pub fast_zero: bool,
    /// Devices with the same number share one physical disk, and so a queue.
    pub disk: u64,
}

/// What a device's work comes to.
pub type Work<'a, T> = Pin<Box<dyn Future<Output = Result<T, Errno>> + 'a>>;

/// A device, or a layer that looks like one.
pub trait Device: Send + Sync {
    /// What is known of it.
    fn facts(&self) -> DeviceFacts;

    /// Does what is asked, on this processor. Ends when it is done: for a write with `Stability::Stable` and for a
    /// flush that means durable.
    fn perform<'a>(&'a self, cpu: &'a Processor, request: Request) -> Work<'a, ()>;

    /// Is everything done at once, by the processor that asks? Then nothing ever waits for it that could be put in order.
    fn is_immediate(&self) -> bool {
        false
    }

    /// Somebody waits now for what was asked for asynchronously in this range: it should go first.
    fn expedite(&self, _cpu: &Processor, _range: ByteRange) {}

    /// Finds stored data or a hole from `at` on, `None` when there is none. A device without holes is all data.
    fn seek<'a>(&'a self, _cpu: &'a Processor, at: ByteOffset, target: SeekTarget) -> Work<'a, Option<ByteOffset>> {
        let size = self.facts().size;
        Box::pin(async move {
            Ok(match target {
                SeekTarget::Data => (at.0 < size).then_some(at),
                SeekTarget::Hole => (at.0 < size).then_some(ByteOffset(size)),
            })
        })
    }
}

/// A device at any level of a stack.
pub type DeviceRef = Arc<dyn Device>;

/// Does `range` lie on a device of `size` bytes?
pub(crate) fn contains(size: u64, range: ByteRange) -> bool {
    range.at.0.checked_add(range.len).is_some_and(|end| end <= size)
}
