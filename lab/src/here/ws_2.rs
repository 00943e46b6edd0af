//! WS section 2 on this host: a file read again, a burst of writes, and a reader beside the write-back, with a cache of a
//! tenth of memory and one that may take all of it.

use std::sync::Arc;
use std::time::Duration;

use kernel::request::Context;
use kernel::{Processor, Volume};
use machine::Errno;
use policy::unit::{BLOCK_BYTES, ByteRange};
use policy::writeback;

use super::rounds::{Rounds, Spread, interleaved, table};
use super::task::{self, JOB, REQUEST_BYTES, request_at};
use super::ws_table4::{close, open_volume};
use super::ws_table5::read_through;
use super::{Effort, Here, HereCell, HereError, HereRun, Measured, Medium, Setup, host};

/// Memory of the machine that is played on the host's disk: the file is half of it, the burst a quarter. Bytes.
const MEMORY: u64 = 256 << 20;

/// Memory of an old workstation with a SCSI disk, which is modelled in real time (WS table 1: 1988). Bytes.
const MEMORY_OLD: u64 = 16 << 20;

/// A burst that a tenth of it can't hold. Bytes.
const BURST_OLD: u64 = 2 << 20;

const READ: Rounds = Rounds { most: 5, time_max: Duration::from_millis(2500) };
const BURST: Rounds = Rounds { most: 5, time_max: Duration::from_secs(1) };
const BURST_MODEL: Rounds = Rounds { most: 1, time_max: Duration::ZERO };
const STORM: Rounds = Rounds { most: 2, time_max: Duration::from_secs(3) };

/// A cache of a tenth of memory, and a dynamic one.
const CACHES: [&str; 2] = ["fixed 10 %", "dynamic"];

/// The measurement.
pub(super) struct DynamicCache;

impl Here for DynamicCache {
    fn experiment(&self) -> &'static str {
        "ws-2"
    }

    fn steps(&self, effort: Effort) -> u64 {
        2 * u64::from(effort.pick(READ.most + BURST.most + BURST_MODEL.most + STORM.most, 4))
    }

    fn measure(&self, run: &HereRun<'_>) -> Result<Measured, HereError> {
        let once = Rounds { most: 1, time_max: Duration::ZERO };
        let memory = run.pick(MEMORY, 48 << 20);
        let reads = read_twice(run, run.pick(READ, once), memory)?;
        let (bytes, medium) = (memory / 4, Medium::Disk { bytes: memory / 2 });
        let bursts = burst(run, run.pick(BURST, once), medium, memory, bytes)?;
        let medium = Medium::Mechanical { bytes: 280 << 20, model: host::model("scsi-1991")? };
        let bytes_old = run.pick(BURST_OLD, 64 << 10);
        let bursts_old = burst(run, run.pick(BURST_MODEL, once), medium, MEMORY_OLD, bytes_old)?;
        let storms = storm(run, run.pick(STORM, once))?;

        let name_disk = run.host.disk();
        let mut measured = Measured::default();
        let (mut reading, mut returning, mut beside) = (Vec::new(), Vec::new(), Vec::new());
        for (cache, [first, second]) in CACHES.iter().zip(&reads) {
            reading.push((format!("{cache}: first reading"), *first));
            reading.push((format!("{cache}: second reading"), *second));
            for (column, spread) in [("first", first), ("second", second)] {
                let (row, column, value) = ((*cache).to_owned(), column.to_owned(), spread.median);
                measured.cells.push(HereCell { table: None, row, column, value });
            }
        }
        for (medium, bytes, bursts) in
            [(name_disk.as_str(), bytes, &bursts), ("scsi-1991 in real time", bytes_old, &bursts_old)]
        {
            let rows = CACHES.iter().zip(bursts);
            returning.extend(rows.map(|(cache, [ms])| (format!("{} KB to {medium}, {cache}", bytes >> 10), *ms)));
        }
        for (how, [median, slow, worst]) in ["all at once", "smooth"].iter().zip(&storms) {
            let rows = [("median", median), ("99 of 100 are faster than", slow), ("the slowest", worst)];
            beside.extend(rows.map(|(which, ms)| (format!("write-back {how}: {which}"), *ms)));
        }
        let title = format!("a file of {} MB, with {} MB of memory", memory >> 21, memory >> 20);
        measured.tables.push(table("here-reading", &title, "MB/s", 0, reading));
        let title = format!("until all `write`s of a burst have returned; a quarter of {} MB of memory", memory >> 20);
        measured.tables.push(table("here-writing", &title, "ms", 2, returning));
        measured.tables.push(table("here-storm", "reads of 4 KB beside a writer", "ms", 3, beside));
        measured.notes.push(format!(
            "Here: a volume on {name_disk} past the page cache, in a kernel whose cache may take {} MB or a tenth of \
             that; the modelled disk's has {} MB. Beside the reader {} MB/s of scattered blocks are written, and synced \
             every {} ms in place of 30 s.",
            memory >> 20,
            MEMORY_OLD >> 20,
            (DIRTY_A_TICK * BLOCK_BYTES * 1000) >> 20,
            STORM_INTERVAL.as_millis()
        ));
        Ok(measured)
    }
}

fn setup(memory: u64, arm: usize) -> Setup {
    Setup::with_memory(memory).switched(|switches| switches.dynamic_cache = arm == 1)
}

/// MB/s of the first and the second reading.
fn read_twice(run: &HereRun<'_>, rounds: Rounds, memory: u64) -> Result<Vec<[Spread; 2]>, HereError> {
    let bytes = memory / 2;
    interleaved(run, rounds, 2, |arm| {
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

/// Milliseconds until the program has written its burst. What is dirty then is given up.
fn burst(
    run: &HereRun<'_>,
    rounds: Rounds,
    medium: Medium,
    memory: u64,
    bytes: u64,
) -> Result<Vec<[Spread; 1]>, HereError> {
    interleaved(run, rounds, 2, |arm| {
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

/// Between two of the writer's turns, and blocks that he writes in one.
const TICK: Duration = Duration::from_millis(1);
const DIRTY_A_TICK: u64 = 8;

/// Between two syncs, and the age at which a block is written when there are none.
const STORM_INTERVAL: Duration = Duration::from_millis(400);

/// The writer's blocks, apart from each other; the reader's lie behind them. Bytes.
const WRITTEN: u64 = 64 << 20;
const READ_FROM: u64 = 64 << 20;
const STRIDE_BLOCKS: u64 = 3;

/// Milliseconds that reads take beside a writer: median, 99th percentile, slowest. All at once every so often, and smooth.
fn storm(run: &HereRun<'_>, rounds: Rounds) -> Result<Vec<[Spread; 3]>, HereError> {
    let time = run.pick(3 * STORM_INTERVAL, Duration::from_millis(20));
    let medium = Medium::Disk { bytes: WRITTEN + READ_FROM };
    interleaved(run, rounds, 2, |arm| {
        let mut setup = Setup::with_memory(128 << 20).switched(|switches| switches.smooth_write_back = arm == 1);
        setup.write_back = writeback::Config { interval: STORM_INTERVAL, age: STORM_INTERVAL, ..setup.write_back };
        let stage = run.host.start(&setup)?;
        let volume = open_volume(stage.kernel(), stage.device(&medium)?)?;
        let writer = Arc::clone(&volume);
        let writing = task::start(stage.kernel(), policy::unit::ProcessorId(0), move |cpu| dirty(cpu, writer, time));
        let reader = Arc::clone(&volume);
        let mut times = task::run(stage.kernel(), move |cpu| read_beside(cpu, reader, time))??;
        writing.wait()??;
        volume.stop();
        times.sort_unstable();
        let at = |part: usize| times.get((times.len() * part / 100).min(times.len().saturating_sub(1)));
        Ok([50, 99, 100].map(|part| at(part).map_or(0.0, |time| time.as_secs_f64() * 1e3)))
    })
}

/// Writes scattered blocks at an even rate.
async fn dirty(cpu: Processor, volume: Arc<Volume>, time: Duration) -> Result<(), Errno> {
    let (start, places) = (cpu.now(), WRITTEN / BLOCK_BYTES / STRIDE_BLOCKS);
    let mut number = 0;
    while cpu.now().since(start) < time {
        for _ in 0..DIRTY_A_TICK {
            let at = number % places * STRIDE_BLOCKS * BLOCK_BYTES;
            let frames = task::filled(&cpu, BLOCK_BYTES, number).await;
            volume.write(&cpu, ByteRange::new(at, BLOCK_BYTES), frames, Context::synchronous(JOB)).await?;
            number += 1;
        }
        cpu.sleep(TICK).await;
    }
    Ok(())
}

/// Reads blocks that are not cached, one at a time, at moments that have nothing to do with the writer's.
async fn read_beside(cpu: Processor, volume: Arc<Volume>, time: Duration) -> Result<Vec<Duration>, Errno> {
    let (start, places) = (cpu.now(), READ_FROM / BLOCK_BYTES);
    let mut times = Vec::new();
    while cpu.now().since(start) < time {
        // Far apart: nothing is read ahead. 7919 is prime, so that every place has its turn.
        let at = READ_FROM + times.len() as u64 * 7919 % places * BLOCK_BYTES;
        let asked = cpu.now();
        volume.read(&cpu, ByteRange::new(at, BLOCK_BYTES), Context::synchronous(JOB)).await?;
        times.push(cpu.now().since(asked));
        cpu.sleep(TICK / 3).await;
    }
    Ok(times)
}
