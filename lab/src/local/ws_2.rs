//! WS section 2 on this host: a file read again, a burst of writes, and a reader during write-back, with a cache of a
//! tenth of memory and one that may take all of it.

use std::sync::Arc;
use std::time::Duration;

use kernel::request::Context;
use kernel::{Processor, Volume};
use machine::Errno;
use papers::drive::mechanical::Mechanical;
use papers::parameter::Parameters;
use policy::unit::{BLOCK_BYTES, ByteRange, ProcessorId};
use policy::writeback;

use super::repetitions::{Repetitions, Spread, interleaved, table};
use super::task::{self, JOB, REQUEST_BYTES, request_at};
use super::ws_table4::{close, open_volume};
use super::ws_table5::read_through;
use super::{Effort, LocalError, LocalRun, Measured, Medium, Setup};

/// Memory of the machine that uses the host's disk: the file is half of it, the burst a quarter. Bytes.
const MEMORY: u64 = 256 << 20;

/// Memory of an old workstation with a SCSI disk, which is modelled in real time (WS table 1: 1988). Bytes.
const MEMORY_OLD: u64 = 16 << 20;

/// A burst that exceeds a tenth of the old machine's memory. Bytes.
const BURST_OLD: u64 = 2 << 20;

const READ: Repetitions = Repetitions { most: 5, time_max: Duration::from_millis(2500) };
const BURST: Repetitions = Repetitions { most: 5, time_max: Duration::from_secs(1) };
const BURST_MODEL: Repetitions = Repetitions { most: 1, time_max: Duration::ZERO };

const FIRST: ProcessorId = ProcessorId(0);

const CACHES: [&str; 2] = ["fixed 10 %", "dynamic"];

pub(super) fn steps(effort: Effort, _: &Parameters) -> u64 {
    2 * u64::from(effort.pick(READ.most + BURST.most + BURST_MODEL.most + 1, 4))
}

pub(super) fn measure(run: &LocalRun<'_>) -> Result<Measured, LocalError> {
    let memory = run.pick(MEMORY, 48 << 20);
    let reads = read_twice(run, READ, memory)?;
    let (bytes, medium) = (memory / 4, Medium::Disk { bytes: memory / 2 });
    let bursts = burst(run, BURST, medium, memory, bytes)?;
    let medium = Medium::Mechanical { bytes: 280 << 20, model: Mechanical::named("hd639") };
    let bytes_old = run.pick(BURST_OLD, 64 << 10);
    let bursts_old = burst(run, BURST_MODEL, medium, MEMORY_OLD, bytes_old)?;
    let storms = storm(run)?;

    let name_disk = run.host.disk();
    let mut measured = Measured::default();
    let (mut reading, mut returning, mut storm_reads) = (Vec::new(), Vec::new(), Vec::new());
    for (cache, [first, second]) in CACHES.iter().zip(&reads) {
        reading.push((format!("{cache}: first reading"), *first));
        reading.push((format!("{cache}: second reading"), *second));
    }
    for (medium, bytes, bursts) in
        [(name_disk.as_str(), bytes, &bursts), ("hd639 in real time", bytes_old, &bursts_old)]
    {
        let rows = CACHES.iter().zip(bursts);
        returning.extend(rows.map(|(cache, [ms])| (format!("{} KB to {medium}, {cache}", bytes >> 10), *ms)));
    }
    for (how, [median, slow, worst]) in ["all at once", "smooth"].iter().zip(&storms) {
        let rows = [("median", median), ("99 of 100 are faster than", slow), ("the slowest", worst)];
        storm_reads.extend(rows.map(|(which, ms)| (format!("write-back {how}: {which}"), *ms)));
    }
    let title = format!("a file of {} MB, with {} MB of memory", memory >> 21, memory >> 20);
    measured.tables.push(table("here-reading", &title, "MB/s", 0, reading));
    let title = format!("until all `write`s of a burst have returned; a quarter of {} MB of memory", memory >> 20);
    measured.tables.push(table("here-writing", &title, "ms", 2, returning));
    measured.tables.push(table(
        "here-storm",
        "reads of 4 KB from hd639 in real time, beside a writer",
        "ms",
        0,
        storm_reads,
    ));
    measured.notes.push(format!(
        "Here: a volume on {name_disk} past the page cache, in a kernel whose cache may take {} MB or a tenth of \
         that; the modelled disk's has {} MB. Beside the reader a file grows by {} KB/s, synced every {} s in place of \
         30 s, and neither arm has priorities.",
        memory >> 20,
        MEMORY_OLD >> 20,
        (REQUEST_BYTES >> 10) * 1000 / WRITER_PAUSE.as_millis() as u64,
        STORM_INTERVAL.as_secs()
    ));
    Ok(measured)
}

fn setup(memory: u64, arm: usize) -> Setup {
    Setup::with_memory(memory).switched(|switches| switches.dynamic_cache = arm == 1)
}

/// MB/s of the first and the second pass over the file.
fn read_twice(run: &LocalRun<'_>, repetitions: Repetitions, memory: u64) -> Result<Vec<[Spread; 2]>, LocalError> {
    let bytes = memory / 2;
    interleaved(run, repetitions, 2, |arm| {
        let stage = run.host.start(&setup(memory, arm))?;
        let volume = open_volume(stage.kernel(), stage.device(&Medium::Disk { bytes })?)?;
        let mut rates = [0.0; 2];
        for rate in &mut rates {
            let reader = Arc::clone(&volume);
            let took = task::run(stage.kernel(), move |cpu| read_through(cpu, reader, bytes))??;
            *rate = bytes as f64 / f64::from(1 << 20) / took.as_secs_f64().max(1e-9);
        }
        close(stage.kernel(), volume)?;
        Ok(rates)
    })
}

/// Milliseconds until the program has written its burst. What is dirty then is discarded.
fn burst(
    run: &LocalRun<'_>,
    repetitions: Repetitions,
    medium: Medium,
    memory: u64,
    bytes: u64,
) -> Result<Vec<[Spread; 1]>, LocalError> {
    interleaved(run, repetitions, 2, |arm| {
        let stage = run.host.start(&setup(memory, arm))?;
        let volume = open_volume(stage.kernel(), stage.device(&medium)?)?;
        let writer = Arc::clone(&volume);
        let took = task::run(stage.kernel(), move |cpu| write_burst(cpu, writer, bytes))??;
        volume.stop();
        Ok([took.as_secs_f64() * 1e3])
    })
}

async fn write_burst(cpu: Processor, volume: Arc<Volume>, bytes: u64) -> Result<Duration, Errno> {
    let start = cpu.now();
    for number in 0..bytes / REQUEST_BYTES {
        let frames = task::filled(&cpu, REQUEST_BYTES, number).await;
        volume.write(&cpu, request_at(0, number), frames, Context::synchronous(JOB)).await?;
    }
    Ok(cpu.now().since(start))
}

/// The writer's pause: a file that grows by 8 KB at a time.
const WRITER_PAUSE: Duration = Duration::from_millis(25);

/// Interval of syncs, in place of 30 s; without them, the age at which a block is written.
const STORM_INTERVAL: Duration = Duration::from_secs(3);

/// Duration of a run: one storm, and the time before and after it.
const STORM_TIME: Duration = Duration::from_secs(4);

/// The reader's blocks lie behind the writer's, and are read in no order. 7919 is prime, so that each is read.
const READ_FROM: u64 = 16 << 20;
const READ_BLOCKS: u64 = 1 << 13;
const READ_STEP: u64 = 7919;
const READER_PAUSE: Duration = Duration::from_millis(10);

/// An old machine that syncs periodically.
pub(super) fn stormy(interval: Duration) -> Setup {
    // The kernels that had storms had no priorities, which hide most of the effect.
    let mut setup = Setup::with_memory(MEMORY_OLD).switched(|switches| switches.priority = false);
    setup.write_back = writeback::Config { interval, age: interval, ..setup.write_back };
    setup
}

/// Milliseconds that reads take while another task writes: median, 99th percentile, slowest; with periodic syncs, and
/// smooth. Both run concurrently, each with a modelled disk of its own: the host only lets time pass.
fn storm(run: &LocalRun<'_>) -> Result<Vec<[Spread; 3]>, LocalError> {
    let time = run.pick(STORM_TIME, Duration::from_millis(50));
    let medium = Medium::Mechanical { bytes: 64 << 20, model: Mechanical::named("hd639") };
    let mut stages = Vec::new();
    for smooth in [false, true] {
        let setup = stormy(STORM_INTERVAL).switched(|switches| switches.smooth_write_back = smooth);
        let stage = run.host.start(&setup)?;
        let volume = open_volume(stage.kernel(), stage.device(&medium)?)?;
        let (writer, reader) = (Arc::clone(&volume), Arc::clone(&volume));
        let writing = task::start(stage.kernel(), FIRST, move |cpu| grow(cpu, writer, time));
        let reading = task::start(stage.kernel(), FIRST, move |cpu| async move {
            let mut times = Vec::new();
            read_concurrently(cpu, reader, time, |took| times.push(took)).await.map(|()| times)
        });
        stages.push((volume, writing, reading, stage));
    }
    let mut all = Vec::new();
    for (volume, writing, reading, _stage) in stages {
        writing.wait()??;
        let mut times = reading.wait()??;
        volume.stop();
        times.sort_unstable();
        let at = |part: usize| times.get((times.len() * part / 100).min(times.len().saturating_sub(1)));
        all.push([50, 99, 100].map(|part| Spread::of(at(part).map(|time| time.as_secs_f64() * 1e3))));
        run.step(1);
    }
    Ok(all)
}

/// Writes one block after another, at a steady rate.
pub(super) async fn grow(cpu: Processor, volume: Arc<Volume>, time: Duration) -> Result<(), Errno> {
    let start = cpu.now();
    for number in 0..READ_FROM / REQUEST_BYTES {
        if cpu.now().since(start) >= time {
            break;
        }
        let frames = task::filled(&cpu, REQUEST_BYTES, number).await;
        volume.write(&cpu, request_at(0, number), frames, Context::synchronous(JOB)).await?;
        cpu.sleep(WRITER_PAUSE).await;
    }
    Ok(())
}

/// Reads uncached blocks, one at a time, and records how long each takes.
pub(super) async fn read_concurrently(
    cpu: Processor,
    volume: Arc<Volume>,
    time: Duration,
    mut record: impl FnMut(Duration),
) -> Result<(), Errno> {
    let start = cpu.now();
    let mut places = (0..).map(|number| READ_FROM + number * READ_STEP % READ_BLOCKS * BLOCK_BYTES);
    while let Some(at) = places.next().filter(|_| cpu.now().since(start) < time) {
        let issued = cpu.now();
        volume.read(&cpu, ByteRange::new(at, BLOCK_BYTES), Context::synchronous(JOB)).await?;
        record(cpu.now().since(issued));
        cpu.sleep(READER_PAUSE).await;
    }
    Ok(())
}
