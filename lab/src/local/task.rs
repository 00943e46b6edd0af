//! Tasks on the processors of a stage, and what they share.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::sync::mpsc::Receiver;

use awase::processors::start_task;
use kernel::device::{Device, DeviceRef};
use kernel::queue::{DiskQueue, QueueCounters};
use kernel::request::{Action, Context, JobId, Outcome, Request};
use kernel::wait::WaitList;
use kernel::{Frames, Kernel, Processor};
use machine::Errno;
use policy::queue;
use policy::unit::{BLOCK_BYTES, ByteRange, ProcessorId};

use super::LocalError;

/// Request size of applications and file systems of the time (a block of the Berkeley file system), bytes.
pub(super) const REQUEST_BYTES: u64 = 8192;

pub(super) const JOB: JobId = JobId(1);

pub(super) struct Pending<T>(Receiver<T>);

impl<T> Pending<T> {
    pub(super) fn wait(self) -> Result<T, LocalError> {
        self.0.recv().map_err(|_| LocalError::NoResult)
    }
}

pub(super) fn start<T, F>(
    kernel: &Kernel,
    id: ProcessorId,
    task: impl FnOnce(Processor) -> F + Send + 'static,
) -> Pending<T>
where
    T: Send + 'static,
    F: Future<Output = T> + 'static,
{
    Pending(start_task(kernel, id, task))
}

/// Runs a task on the first processor to its end.
pub(super) fn run<T, F>(kernel: &Kernel, task: impl FnOnce(Processor) -> F + Send + 'static) -> Result<T, LocalError>
where
    T: Send + 'static,
    F: Future<Output = T> + 'static,
{
    start(kernel, ProcessorId(0), task).wait()
}

/// Runs a task on each of these processors, concurrently, to its end; each is given its number.
pub(super) fn run_all<T, F>(
    kernel: &Kernel,
    on: impl IntoIterator<Item = ProcessorId>,
    task: impl FnOnce(u64, Processor) -> F + Clone + Send + 'static,
) -> Result<Vec<T>, LocalError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Errno>> + 'static,
{
    let started = (0..).zip(on).map(|(number, id)| {
        let task = task.clone();
        start(kernel, id, move |cpu| task(number, cpu))
    });
    let started: Vec<_> = started.collect();
    started.into_iter().map(|task| Ok(task.wait()??)).collect()
}

pub(super) fn request_at(start: u64, number: u64) -> ByteRange {
    ByteRange::new(start + number * REQUEST_BYTES, REQUEST_BYTES)
}

/// Frames for a write of `bytes`, filled: a disk may treat zeroes specially.
pub(super) async fn filled(cpu: &Processor, bytes: u64, content: u64) -> Frames {
    let mut frames = cpu.kernel().allocate(cpu, bytes.div_ceil(BLOCK_BYTES) as usize).await;
    for frame in &mut frames {
        if let Some(bytes) = frame.bytes_mut() {
            bytes.fill(1 + (content % 251) as u8);
        }
    }
    frames
}

pub(super) async fn write(cpu: &Processor, device: &DeviceRef, range: ByteRange, how: Context) -> Result<(), Errno> {
    let frames = filled(cpu, range.len, range.at.0 / REQUEST_BYTES).await;
    device
        .perform(cpu, Request { action: Action::Write(range, frames), context: how })
        .await
        .and_then(Outcome::required)
}

pub(super) async fn read(cpu: &Processor, device: &DeviceRef, range: ByteRange, how: Context) -> Result<(), Errno> {
    let frames = cpu.kernel().allocate(cpu, range.len.div_ceil(BLOCK_BYTES) as usize).await;
    device.perform(cpu, Request { action: Action::Read(range, frames), context: how }).await.and_then(Outcome::required)
}

pub(super) async fn flush(cpu: &Processor, device: &DeviceRef) -> Result<(), Errno> {
    device
        .perform(cpu, Request { action: Action::Flush, context: Context::synchronous(JOB) })
        .await
        .and_then(Outcome::required)
}

/// Counters of the queue of the device's disk.
pub(super) fn queue_counters(kernel: &Kernel, device: &dyn Device) -> QueueCounters {
    kernel.queue_of_disk(device.facts().disk, || DiskQueue::new(queue::Config::default())).counters()
}

/// Requests of one processor in flight that have no waiter of their own.
#[derive(Default)]
pub(super) struct InFlight {
    count: Cell<usize>,
    failed: RefCell<Option<Errno>>,
    ended: WaitList,
}

impl InFlight {
    pub(super) fn begin(&self) {
        self.count.set(self.count.get() + 1);
    }

    pub(super) fn end(&self, result: Result<(), Errno>) {
        self.count.set(self.count.get() - 1);
        if let Err(errno) = result {
            self.failed.replace(Some(errno));
        }
        self.ended.wake_all();
    }

    /// Waits until at most `count` are in flight.
    ///
    /// # Errors
    /// When one has failed.
    pub(super) async fn until(&self, count: usize) -> Result<(), Errno> {
        self.ended.until(|| (self.count.get() <= count).then_some(())).await;
        self.failed.borrow().map_or(Ok(()), Err)
    }
}
