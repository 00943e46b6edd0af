//! Devices: layers of one shape. From the top: an overlay's gate, queue, injectors of delay and faults, then a file or RAM.

mod check;
mod delay;
mod fault;
mod file;
mod fixed_latency;
mod numbers;
mod overlay;
mod ram;
mod transfer;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use machine::{Errno, FileFacts};
use policy::unit::{ByteOffset, ByteRange, DiskNo};

use crate::processor::Processor;
use crate::request::{Outcome, Request};

pub use check::Checked;
pub use delay::Delay;
pub use fault::{Fault, Faults, Operation};
pub use file::FileDevice;
pub use fixed_latency::{FixedLatency, TESTDEV_LATENCY};
pub(crate) use numbers::DeviceNumbers;
pub use numbers::TooManyDevices;
pub use overlay::{ChangedRun, Gated, HeldChanges, Overlay};
pub use ram::RamDisk;
pub(crate) use transfer::{transfer, write_all, zero_part};

/// Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    pub size: u64,
    pub writable: bool,
    pub rotational: bool,
    /// Largest useful transfer.
    pub transfer_bytes_max: u32,
    /// Can it zero and discard faster than by writing zeroes?
    pub fast_zero: bool,
    /// Is it a file of the host? What was never written of it may be a hole.
    pub may_be_sparse: bool,
    pub disk: DiskNo,
}

impl DeviceFacts {
    /// Of a device on a file of the host.
    pub(crate) fn of(facts: &FileFacts, fast_zero: bool) -> Self {
        let FileFacts { size, writable, rotational, transfer_bytes_max, disk, .. } = *facts;
        DeviceFacts { size, writable, rotational, transfer_bytes_max, fast_zero, may_be_sparse: true, disk }
    }
}

/// The future result of a device operation.
pub type Work<'a, T> = Pin<Box<dyn Future<Output = Result<T, Errno>> + 'a>>;

/// Runs of data for which a device is asked at once, at most: a thread of the machine finds them in a fraction of a
/// millisecond, and asking again costs a small part of that.
pub(crate) const DATA_RUNS_MAX: usize = 256;

/// The data in a range, from its start on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundData {
    /// In order; they may touch.
    pub runs: Vec<ByteRange>,
    /// Up to here, all that is not in them is holes.
    pub end: ByteOffset,
}

pub trait Device: Send + Sync {
    fn facts(&self) -> DeviceFacts;

    /// Performs a request on this processor. Completion of a flush, or of a write with `Stability::Stable`, means
    /// durable.
    fn perform<'a>(&'a self, cpu: &'a Processor, request: Request) -> Work<'a, Outcome>;

    /// Does every request complete at once on the calling processor? Then a queue has nothing to order.
    fn is_immediate(&self) -> bool {
        false
    }

    /// A client now waits for asynchronous requests in this range: promotes them.
    fn expedite(&self, _cpu: &Processor, _range: ByteRange) {}

    /// Finds at most `runs_max` runs (not 0) of data in `within`, a range of the device that is not empty, and looks at
    /// some of it at least. What is found of each byte was so at some time since the call. A device without holes is all
    /// data.
    fn find_data<'a>(&'a self, _cpu: &'a Processor, within: ByteRange, _runs_max: usize) -> Work<'a, FoundData> {
        Box::pin(async move { Ok(FoundData { runs: vec![within], end: within.end() }) })
    }
}

pub type DeviceRef = Arc<dyn Device>;

pub(crate) fn contains(size: u64, range: ByteRange) -> bool {
    range.at.0.checked_add(range.len).is_some_and(|end| end <= size)
}
