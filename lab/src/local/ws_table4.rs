//! WS table 4 on this host: writers who each need their 8 KB durable before they continue (NFS `FILE_SYNC`), with and
//! without the rendezvous.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kernel::device::DeviceRef;
use kernel::request::Context;
use kernel::volume::VolumeConfig;
use kernel::{ForcedUnitAccess, Kernel, Processor, Volume};
use machine::Errno;
use papers::parameter::Parameters;
use policy::unit::{ProcessorId, Stability};

use super::layer::Counted;
use super::repetitions::{Repetitions, Spread, interleaved, table};
use super::task::{self, JOB, REQUEST_BYTES, request_at};
use super::ws_table2::kb_a_second;
use super::{Effort, LocalError, LocalRun, Measured, Medium, Setup};

const MEMORY: u64 = 128 << 20;

/// The file; writers start over at its end. Bytes.
const FILE: u64 = 32 << 20;

/// Flush time of the slow disk: half a rotation at 7,200 rpm, and a little.
const SLOW_FLUSH: Duration = Duration::from_millis(5);

const ROUNDS: Repetitions = Repetitions { most: 3, time_max: Duration::from_secs(6) };

/// Concurrent writers: the daemons of a client of the time (four `biod`), and a busy server.
const WRITERS: [u64; 2] = [4, 16];

struct Arm {
    slow: bool,
    writers: u64,
    gathers: bool,
}

/// KB/s, flushes a write, disk accesses a write.
type Numbers<T> = [T; 3];

pub(super) fn steps(effort: Effort, _: &Parameters) -> u64 {
    arms().len() as u64 * u64::from(effort.pick(ROUNDS.most, 1))
}

pub(super) fn measure(run: &LocalRun<'_>) -> Result<Measured, LocalError> {
    let arms = arms();
    let time = run.pick(Duration::from_millis(200), Duration::from_millis(10));
    let numbers = interleaved(run, ROUNDS, arms.len(), |arm| on(run, &arms[arm], time))?;

    let mut measured = Measured::default();
    let name_disk = run.host.disk();
    let mut rows: [Vec<(String, Spread)>; 3] = Default::default();
    for (arm, numbers) in arms.iter().zip(&numbers) {
        let medium = if arm.slow { "memory with a flush of 5 ms" } else { &name_disk };
        let how = if arm.gathers { "with" } else { "without" };
        let name = format!("{medium}, {} writers, {how} rendezvous", arm.writers);
        rows.iter_mut().zip(numbers).for_each(|(rows, number)| rows.push((name.clone(), *number)));
        if !arm.slow && arm.writers == WRITERS[0] {
            measured.cell("throughput", how, "", numbers[0].median);
        }
    }
    let [rates, flushes, accesses] = rows;
    measured.tables.push(table("here-rate", "stable writes of 8 KB", "KB/s", 0, rates));
    measured.tables.push(table("here-flushes", "flushes of the disk a write", "", 3, flushes));
    measured.tables.push(table("here-accesses", "transfers and flushes of the disk a write", "", 3, accesses));
    measured.notes.push(format!(
        "Here: {} writers on one volume on {name_disk}, each of which waits until its 8 KB are durable; every write \
         is a transfer and a flush (no forced unit access).",
        WRITERS[0]
    ));
    Ok(measured)
}

fn arms() -> Vec<Arm> {
    let mut arms = Vec::new();
    for slow in [false, true] {
        for writers in WRITERS {
            arms.extend([false, true].map(|gathers| Arm { slow, writers, gathers }));
        }
    }
    arms
}

fn on(run: &LocalRun<'_>, arm: &Arm, time: Duration) -> Result<Numbers<f64>, LocalError> {
    let setup = Setup::with_memory(MEMORY).switched(|switches| switches.flush_gathering = arm.gathers);
    let stage = run.host.start(&setup)?;
    let bytes = run.pick(FILE, 1 << 20);
    let (medium, slow_flush) =
        if arm.slow { (Medium::Ram { bytes }, SLOW_FLUSH) } else { (Medium::Disk { bytes }, Duration::ZERO) };
    let device = Arc::new(Counted::new(stage.device(&medium)?, slow_flush));
    let kernel = stage.kernel();
    let volume = open_volume(kernel, device.clone())?;
    let writes = write_stably(kernel, &volume, arm.writers, bytes, time)?;
    let a_write = |count: u64| count as f64 / writes.count.max(1) as f64;
    let numbers = [
        kb_a_second(writes.count * REQUEST_BYTES, writes.took),
        a_write(device.flushes()),
        a_write(device.flushes() + device.transfers()),
    ];
    close(kernel, volume)?;
    Ok(numbers)
}

/// A volume on `device`, whose stable writes are a write and a flush.
pub(super) fn open_volume(kernel: &Arc<Kernel>, device: DeviceRef) -> Result<Arc<Volume>, LocalError> {
    let config = VolumeConfig {
        name: "lab".to_owned(),
        read_only: false,
        forced_unit_access: ForcedUnitAccess::Never,
        grows: false,
    };
    Volume::open(kernel, device, config, ProcessorId(0)).map_err(|error| LocalError::Start(error.to_string()))
}

/// Writes what is dirty, and ends the volume's write-back.
pub(super) fn close(kernel: &Kernel, volume: Arc<Volume>) -> Result<(), LocalError> {
    task::run(kernel, move |cpu| async move { volume.close(&cpu).await })??;
    Ok(())
}

struct Writes {
    count: u64,
    took: Duration,
}

fn write_stably(
    kernel: &Arc<Kernel>,
    volume: &Arc<Volume>,
    writers: u64,
    bytes: u64,
    time: Duration,
) -> Result<Writes, LocalError> {
    let (volume, next) = (Arc::clone(volume), Arc::new(AtomicU64::new(0)));
    let on = (0..writers).map(|number| ProcessorId((number % u64::from(kernel.processors())) as u16));
    let ended = task::run_all(kernel, on, move |_, cpu| writer(cpu, volume, next, bytes / REQUEST_BYTES, time))?;
    Ok(Writes { count: ended.iter().map(|of| of.0).sum(), took: ended.iter().map(|of| of.1).max().unwrap_or_default() })
}

/// Writes the next place that no other writer takes, until the time is over. Returns the writes and their time.
async fn writer(
    cpu: Processor,
    volume: Arc<Volume>,
    next: Arc<AtomicU64>,
    places: u64,
    time: Duration,
) -> Result<(u64, Duration), Errno> {
    let (start, mut count) = (cpu.now(), 0);
    while cpu.now().since(start) < time {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let frames = task::filled(&cpu, REQUEST_BYTES, number).await;
        let context = Context::synchronous(JOB).with_stability(Stability::Stable);
        volume.write(&cpu, request_at(0, number % places), frames, context).await?;
        count += 1;
    }
    Ok((count, cpu.now().since(start)))
}
