//! What no client can ask of a server: a kernel in this process, with the measurement's own tasks on its processors.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use kernel::device::DeviceRef;
use kernel::request::Context;
use kernel::trace::{TraceMemory, private_memory};
use kernel::{Processor, Volume};
use machine::Errno;
use papers::drive::mechanical::Mechanical;
use policy::unit::{BLOCK_BYTES, ByteRange, ProcessorId};

use super::super::clients::Time;
use super::super::task::{self, JOB, REQUEST_BYTES, request_at};
use super::super::ws_2;
use super::super::ws_table4::open_volume;
use super::super::{Host, LocalError, Medium, Setup, Stage};
use super::case::{Value, Work};
use super::recording::TRACE_WORDS;
use super::{Numbers, numbers};
use crate::measure::load::{Latencies, Outcome};

/// Size of the devices. Bytes.
const DEVICE_BYTES: u64 = 64 << 20;

/// Size of the writes that fill them. Bytes.
const FILL_BYTES: u64 = 64 << 10;

/// Memory of the kernel. Bytes.
const MEMORY: u64 = 64 << 20;

/// Interval of syncs, in place of 30 s.
const STORM_INTERVAL: Duration = Duration::from_secs(2);

/// One cell, on a kernel of its own.
pub(super) fn cell(
    host: &Host,
    work: &Work,
    value: &Value,
    processors: u16,
    time: Time,
) -> Result<Numbers, LocalError> {
    match *work {
        Work::Iotest { latency_us, processes, spin_us } => {
            let trace = Some(trace_memory());
            let setup = Setup { processors_max: processors, trace, ..Setup::with_memory(MEMORY) };
            let stage = host.start(&setup)?;
            set(&stage, value)?;
            let bytes = DEVICE_BYTES;
            let device = stage.device(&match latency_us {
                0 => Medium::Ram { bytes },
                us => Medium::FixedLatency { bytes, latency: Duration::from_micros(us) },
            })?;
            if latency_us == 0 {
                // RAM that was never written takes no memory, and reading it would be too fast.
                fill(&stage, &device)?;
            }
            iotest(&stage, &device, processes, Duration::from_micros(spin_us), time)
        }
        Work::Storm => storm(host, value, time),
        Work::Appends { a_flush } => appends(host, value, a_flush, time),
        Work::Clients { .. } => Err(LocalError::NoResult),
    }
}

/// A server's size, zeroed. Never freed, so all kernels, of which one runs at a time, share it.
fn trace_memory() -> TraceMemory {
    static MEMORY: OnceLock<TraceMemory> = OnceLock::new();
    let memory = *MEMORY.get_or_init(|| private_memory(TRACE_WORDS));
    memory.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    memory
}

fn set(stage: &Stage<'_>, value: &Value) -> Result<(), LocalError> {
    value.switches().try_for_each(|(switch, to)| stage.set(switch, to))
}

#[derive(Default)]
struct TaskOutcome {
    all: u64,
    counted: u64,
    latencies: Latencies,
    took: Duration,
}

impl TaskOutcome {
    fn count(&mut self, took: Duration, is_measured: bool) {
        self.all += 1;
        if is_measured {
            self.counted += 1;
            self.latencies.record(took);
        }
    }
}

fn combined(tasks: impl IntoIterator<Item = TaskOutcome>) -> Outcome {
    let mut outcome = Outcome::default();
    for task in tasks {
        outcome.all += task.all;
        outcome.requests += task.counted;
        outcome.elapsed = outcome.elapsed.max(task.took);
        outcome.latencies.add(&task.latencies);
    }
    outcome
}

fn fill(stage: &Stage<'_>, device: &DeviceRef) -> Result<(), LocalError> {
    let device = DeviceRef::clone(device);
    let filled = task::run(stage.kernel(), move |cpu| async move {
        for at in (0..DEVICE_BYTES).step_by(FILL_BYTES as usize) {
            task::write(&cpu, &device, ByteRange::new(at, FILL_BYTES), Context::synchronous(JOB)).await?;
        }
        Ok::<_, Errno>(())
    })?;
    Ok(filled?)
}

/// `processes` processes on each processor.
fn iotest(
    stage: &Stage<'_>,
    device: &DeviceRef,
    processes: u32,
    spin: Duration,
    time: Time,
) -> Result<Numbers, LocalError> {
    let before = stage.spent()?;
    let (processors, device) = (stage.kernel().processors(), DeviceRef::clone(device));
    let on = (0..processes).flat_map(|_| (0..processors).map(ProcessorId));
    let ended = task::run_all(stage.kernel(), on, move |number, cpu| process(cpu, device, number, spin, time))?;
    Ok(numbers(&combined(ended), before, stage.spent()?))
}

async fn process(
    cpu: Processor,
    device: DeviceRef,
    number: u64,
    spin: Duration,
    time: Time,
) -> Result<TaskOutcome, Errno> {
    let mut task = TaskOutcome::default();
    let warm = cpu.now() + time.warm;
    // Distinct places: neighbours would be merged.
    let mut at = number * (DEVICE_BYTES / 64);
    loop {
        let issued = cpu.now();
        task::read(&cpu, &device, ByteRange::new(at % DEVICE_BYTES, BLOCK_BYTES), Context::synchronous(JOB)).await?;
        let now = cpu.now();
        task.count(now.since(issued), issued >= warm);
        // At least one request is measured, however slow.
        if now >= warm + time.measured && task.counted > 0 {
            task.took = now.since(warm);
            return Ok(task);
        }
        at += 2 * BLOCK_BYTES;
        // A read ends with a yield, as a system call does: a funnel has other tasks' reads to start.
        cpu.yield_now().await;
        let end = now + spin;
        while cpu.now() < end {
            std::hint::spin_loop();
        }
    }
}

/// 8 KiB appends, one after another, with a flush after every `a_flush`.
fn appends(host: &Host, value: &Value, a_flush: u64, time: Time) -> Result<Numbers, LocalError> {
    let stage = host.start(&Setup { processors_max: 1, ..Setup::with_memory(MEMORY) })?;
    set(&stage, value)?;
    let model = Mechanical::named("scsi-1990");
    let volume = open_volume(stage.kernel(), stage.device(&Medium::Mechanical { bytes: DEVICE_BYTES, model })?)?;
    let before = stage.spent()?;
    let writer = Arc::clone(&volume);
    let written = task::run(stage.kernel(), move |cpu| append(cpu, writer, a_flush, time))??;
    let numbers = numbers(&combined([written]), before, stage.spent()?);
    volume.stop();
    Ok(numbers)
}

async fn append(cpu: Processor, volume: Arc<Volume>, a_flush: u64, time: Time) -> Result<TaskOutcome, Errno> {
    let mut task = TaskOutcome::default();
    let warm = cpu.now() + time.warm;
    loop {
        let issued = cpu.now();
        let range = request_at(0, task.all % (DEVICE_BYTES / REQUEST_BYTES));
        let frames = task::filled(&cpu, REQUEST_BYTES, task.all).await;
        volume.write(&cpu, range, frames, Context::synchronous(JOB)).await?;
        // A client's next request comes later: by then this write is in flight, and its neighbours queue behind it.
        cpu.yield_now().await;
        if (task.all + 1).is_multiple_of(a_flush) {
            volume.flush(&cpu, Context::synchronous(JOB)).await?;
        }
        let now = cpu.now();
        task.count(now.since(issued), issued >= warm);
        if now >= warm + time.measured && task.counted > 0 {
            task.took = now.since(warm);
            return Ok(task);
        }
    }
}

/// A reader, and a writer whose blocks are written smoothly or in periodic bursts.
fn storm(host: &Host, value: &Value, time: Time) -> Result<Numbers, LocalError> {
    let stage = host.start(&Setup { processors_max: 1, ..ws_2::stormy(STORM_INTERVAL) })?;
    set(&stage, value)?;
    let model = Mechanical::named("hd639");
    let volume = open_volume(stage.kernel(), stage.device(&Medium::Mechanical { bytes: DEVICE_BYTES, model })?)?;
    let before = stage.spent()?;
    let (writer, reader) = (Arc::clone(&volume), Arc::clone(&volume));
    let both = time.warm + time.measured;
    let first = ProcessorId(0);
    let writing = task::start(stage.kernel(), first, move |cpu| ws_2::grow(cpu, writer, both));
    let reading = task::start(stage.kernel(), first, move |cpu| async move {
        // The warm-up is measured, too: storms are few.
        let (start, mut task) = (cpu.now(), TaskOutcome::default());
        ws_2::read_concurrently(cpu.clone(), reader, both, |took| task.count(took, true)).await?;
        task.took = cpu.now().since(start);
        Ok::<_, Errno>(task)
    });
    writing.wait()??;
    let read = reading.wait()??;
    let numbers = numbers(&combined([read]), before, stage.spent()?);
    volume.stop();
    Ok(numbers)
}
