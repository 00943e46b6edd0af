//! WS table 2 on this host: a file of 8 KB blocks written and read one after another, with and without block merge.
//!
//! The blocks reach the disk's queue as a file system of the time requests them: writes asynchronously, as many as
//! memory holds; reads one by one, with read-ahead as the policy says. Read-ahead is the same in both arms: only the
//! queue's merging differs.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use kernel::device::DeviceRef;
use kernel::request::Context;
use kernel::wait::WaitList;
use kernel::{Kernel, Processor};
use machine::Errno;
use papers::drive::mechanical::Mechanical;
use papers::parameter::Parameters;
use policy::readahead::{self, ReadAhead};
use policy::unit::{BLOCK_BYTES, Class};

use super::repetitions::{Repetitions, Spread, interleaved, table};
use super::task::{self, InFlight, JOB, REQUEST_BYTES, request_at};
use super::{Effort, LocalError, LocalRun, Measured, Medium, Setup};

/// Memory of the kernel: more than what is in flight. Bytes.
const MEMORY: u64 = 64 << 20;

/// Writes in flight: what a cache of 16 MiB holds.
const WRITES_IN_FLIGHT: usize = 2048;

/// Read ahead at most: two of the paper's largest transfers (WS-3: 128 KB).
const READ_AHEAD_BLOCKS: u64 = 2 * (128 << 10) / BLOCK_BYTES;

/// The disk of the simulated table, and its size.
const DRIVE: &str = "hd1280";
const DRIVE_BYTES: u64 = 1220 << 20;

/// Repetitions on the host's disk, and on the modelled one.
const DISK: Repetitions = Repetitions { most: 7, time_max: Duration::from_secs(3) };
const MODEL: Repetitions = Repetitions { most: 2, time_max: Duration::from_secs(5) };

pub(super) fn steps(effort: Effort, _: &Parameters) -> u64 {
    2 * u64::from(effort.pick(DISK.most + MODEL.most, 2))
}

pub(super) fn measure(run: &LocalRun<'_>) -> Result<Measured, LocalError> {
    let bytes = run.pick(64 << 20, 1 << 20);
    let disk = on(run, DISK, Medium::Disk { bytes }, bytes)?;
    let bytes = run.pick(512 << 10, 32 << 10);
    let model = Mechanical::named(DRIVE);
    let scsi = on(run, MODEL, Medium::Mechanical { bytes: DRIVE_BYTES, model }, bytes)?;

    let mut measured = Measured::default();
    for (row, arm) in ["without", "with"].into_iter().zip(&disk) {
        for (column, spread) in ["write", "read"].into_iter().zip(arm) {
            measured.cell("throughput", row, column, spread.median);
        }
    }
    let name_disk = run.host.disk();
    let name_drive = format!("{DRIVE} in real time");
    let all = [(name_disk.as_str(), &disk), (name_drive.as_str(), &scsi)];
    let (mut rates, mut requests) = (Vec::new(), Vec::new());
    for (medium, arms) in all {
        for (how, [write, read, write_requests, read_requests]) in ["without merge", "with merge"].iter().zip(arms) {
            rates.push((format!("{medium}: write {how}"), *write));
            rates.push((format!("{medium}: read {how}"), *read));
            requests.push((format!("{medium}: write {how}"), *write_requests));
            requests.push((format!("{medium}: read {how}"), *read_requests));
        }
    }
    measured.tables.push(table("here-rate", "sequential 8 KB requests", "KB/s", 0, rates));
    measured.tables.push(table("here-requests", "requests in one transfer", "", 1, requests));
    measured.notes.push(format!(
        "Here: 8 KB requests to the queue of {name_disk} past the page cache; writing ends with a flush. A fast disk \
         with many requests under way takes small ones as fast as large ones."
    ));
    Ok(measured)
}

/// Without and with merge: KB/s written and read, requests a transfer written and read.
fn on(
    run: &LocalRun<'_>,
    repetitions: Repetitions,
    medium: Medium,
    bytes: u64,
) -> Result<Vec<[Spread; 4]>, LocalError> {
    interleaved(run, repetitions, 2, |arm| {
        let setup = Setup::with_memory(MEMORY).switched(|switches| switches.block_merge = arm == 1);
        let stage = run.host.start(&setup)?;
        let device = stage.device(&medium)?;
        let (count, kernel) = (bytes / REQUEST_BYTES, stage.kernel());
        let (written, write_requests) = timed(kernel, &device, count, write_file)?;
        let (read, read_requests) = timed(kernel, &device, count, read_file)?;
        Ok([kb_a_second(bytes, written), kb_a_second(bytes, read), write_requests, read_requests])
    })
}

pub(super) fn kb_a_second(bytes: u64, took: Duration) -> f64 {
    bytes as f64 / 1024.0 / took.as_secs_f64().max(1e-9)
}

/// How long a task took, and how many requests the queue merged into a transfer on average.
fn timed<F>(
    kernel: &Kernel,
    device: &DeviceRef,
    count: u64,
    work: impl FnOnce(Processor, DeviceRef, u64) -> F + Send + 'static,
) -> Result<(Duration, f64), LocalError>
where
    F: Future<Output = Result<(), Errno>> + 'static,
{
    let before = task::queue_counters(kernel, device.as_ref());
    let own = DeviceRef::clone(device);
    let took = task::run(kernel, move |cpu| async move {
        let start = cpu.now();
        work(cpu.clone(), own, count).await?;
        Ok::<_, Errno>(cpu.now().since(start))
    })??;
    let after = task::queue_counters(kernel, device.as_ref());
    let (requests, transfers) = (after.requests - before.requests, after.batches - before.batches);
    Ok((took, requests as f64 / transfers.max(1) as f64))
}

async fn write_file(cpu: Processor, device: DeviceRef, count: u64) -> Result<(), Errno> {
    let in_flight = Rc::new(InFlight::default());
    for number in 0..count {
        in_flight.until(WRITES_IN_FLIGHT).await?;
        in_flight.begin();
        let (own, device, ended) = (cpu.clone(), DeviceRef::clone(&device), Rc::clone(&in_flight));
        cpu.spawn(async move {
            let context = Context::asynchronous(JOB);
            ended.end(task::write(&own, &device, request_at(0, number), context).await);
        });
    }
    in_flight.until(0).await?;
    task::flush(&cpu, &device).await
}

/// The reader's blocks and their state.
struct Blocks {
    /// By number: not requested, requested, arrived.
    state: Vec<Cell<BlockState>>,
    arrivals: WaitList,
    in_flight: InFlight,
}

#[derive(Clone, Copy, PartialEq)]
enum BlockState {
    Absent,
    Requested,
    Arrived,
}

async fn read_file(cpu: Processor, device: DeviceRef, count: u64) -> Result<(), Errno> {
    let state = (0..count).map(|_| Cell::new(BlockState::Absent)).collect();
    let blocks = Rc::new(Blocks { state, arrivals: WaitList::default(), in_flight: InFlight::default() });
    let mode = readahead::Mode::Adaptive { blocks_max: READ_AHEAD_BLOCKS };
    let mut policy = ReadAhead::new(readahead::Config { mode, ..readahead::Config::default() });
    for number in 0..count {
        let range = request_at(0, number);
        // The reader's own request goes first.
        request(&cpu, &device, &blocks, number, Class::Synchronous);
        if let Some(ahead) = policy.on_read(range.blocks()) {
            let block_requests = REQUEST_BYTES / BLOCK_BYTES;
            for ahead in ahead.start.0 / block_requests..ahead.end.0.div_ceil(block_requests).min(count) {
                request(&cpu, &device, &blocks, ahead, Class::Asynchronous);
            }
        }
        let state = &blocks.state[number as usize];
        if state.get() == BlockState::Requested {
            device.expedite(&cpu, range);
            blocks.arrivals.until(|| (state.get() == BlockState::Arrived).then_some(())).await;
        }
    }
    blocks.in_flight.until(0).await
}

/// Requests a block that was not requested yet.
fn request(cpu: &Processor, device: &DeviceRef, blocks: &Rc<Blocks>, number: u64, class: Class) {
    if blocks.state[number as usize].get() != BlockState::Absent {
        return;
    }
    blocks.state[number as usize].set(BlockState::Requested);
    blocks.in_flight.begin();
    let (own, device, blocks) = (cpu.clone(), DeviceRef::clone(device), Rc::clone(blocks));
    cpu.spawn(async move {
        let context = Context { class, ..Context::synchronous(JOB) };
        let result = task::read(&own, &device, request_at(0, number), context).await;
        // Also after a failure: waiters learn of that from the requests in flight.
        blocks.state[number as usize].set(BlockState::Arrived);
        blocks.arrivals.wake_all();
        blocks.in_flight.end(result);
    });
}
