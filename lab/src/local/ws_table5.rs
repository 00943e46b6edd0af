//! WS table 5 on this host: a sequential reader of 8 KB, by the depth of read-ahead. (In the paper the reader is the
//! client of a file server, here a task on a volume: the read-ahead policy is the same.)

use std::sync::Arc;
use std::time::Duration;

use kernel::request::Context;
use kernel::{Processor, Volume};
use machine::Errno;
use policy::readahead::Mode;
use policy::unit::BLOCK_BYTES;

use super::repetitions::{Repetitions, Spread, interleaved, table};
use super::task::{self, JOB, REQUEST_BYTES, request_at};
use super::ws_table2::kb_a_second;
use super::ws_table4::{close, open_volume};
use super::{Effort, LocalError, LocalRun, Measured, Medium, Setup};
use crate::parameter::Parameters;

const MEMORY: u64 = 128 << 20;

/// Of a request that crosses a local network and a server.
const LATENCY: Duration = Duration::from_millis(1);

const DISTANT: Repetitions = Repetitions { most: 3, time_max: Duration::from_secs(3) };
const DISK: Repetitions = Repetitions { most: 5, time_max: Duration::from_secs(3) };

/// Blocks of 8 KB that are read ahead.
const AHEAD: [(&str, Mode); 5] = [
    ("0 blocks", Mode::Off),
    ("1 block", ahead(1)),
    ("4 blocks", ahead(4)),
    ("16 blocks", ahead(16)),
    ("adaptive", Mode::Adaptive { blocks_max: 512 }),
];

const fn ahead(requests: u64) -> Mode {
    Mode::Fixed { blocks: requests * (REQUEST_BYTES / BLOCK_BYTES) }
}

pub(super) fn steps(effort: Effort, _: &Parameters) -> u64 {
    AHEAD.len() as u64 * u64::from(effort.pick(DISTANT.most + DISK.most, 2))
}

pub(super) fn measure(run: &LocalRun<'_>) -> Result<Measured, LocalError> {
    let bytes = run.pick(2 << 20, 64 << 10);
    let medium = Medium::FixedLatency { bytes, latency: LATENCY };
    let distant = on(run, DISTANT, medium, bytes)?;
    let bytes = run.pick(32 << 20, 256 << 10);
    let disk = on(run, DISK, Medium::Disk { bytes }, bytes)?;

    let mut measured = Measured::default();
    let name_disk = run.host.disk();
    let mut rows = Vec::new();
    for (medium, arms) in [(name_disk.as_str(), &disk), ("a device that answers after 1 ms", &distant)] {
        rows.extend(AHEAD.iter().zip(arms).map(|((ahead, _), [rate])| (format!("{medium}: {ahead} ahead"), *rate)));
    }
    // The paper has one block and four.
    for ((ahead, _), [rate]) in
        AHEAD.iter().zip(&disk).filter(|((ahead, _), _)| ["1 block", "4 blocks"].contains(ahead))
    {
        measured.cell("throughput", *ahead, "", rate.median);
    }
    measured.tables.push(table("here-rate", "sequential reads of 8 KB, one at a time", "KB/s", 0, rows));
    measured.notes.push(format!(
        "Here: one reader on a volume on {name_disk} past the page cache, through a cache that has nothing of it; no \
         network is between them. The device that answers after 1 ms stands for one."
    ));
    Ok(measured)
}

fn on(
    run: &LocalRun<'_>,
    repetitions: Repetitions,
    medium: Medium,
    bytes: u64,
) -> Result<Vec<[Spread; 1]>, LocalError> {
    interleaved(run, repetitions, AHEAD.len(), |arm| {
        let setup = Setup::with_memory(MEMORY).switched(|switches| switches.read_ahead = AHEAD[arm].1);
        let stage = run.host.start(&setup)?;
        let volume = open_volume(stage.kernel(), stage.device(&medium)?)?;
        let reader = Arc::clone(&volume);
        let took = task::run(stage.kernel(), move |cpu| read_through(cpu, reader, bytes))??;
        close(stage.kernel(), volume)?;
        Ok([kb_a_second(bytes, took)])
    })
}

/// Reads the first `bytes` of the volume in order, into a buffer as `read` does. Returns how long that takes.
pub(super) async fn read_through(cpu: Processor, volume: Arc<Volume>, bytes: u64) -> Result<Duration, Errno> {
    let start = cpu.now();
    let mut buffer = Vec::with_capacity(REQUEST_BYTES as usize);
    for number in 0..bytes / REQUEST_BYTES {
        let range = request_at(0, number);
        let frames = match volume.try_read(&cpu, range) {
            Some(frames) => frames,
            None => volume.read(&cpu, range, Context::synchronous(JOB)).await?,
        };
        buffer.clear();
        frames.iter().for_each(|frame| buffer.extend_from_slice(frame.bytes()));
        std::hint::black_box(&buffer);
    }
    Ok(cpu.now().since(start))
}
