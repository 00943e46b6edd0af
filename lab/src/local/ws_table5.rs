//! WS table 5 on this host: a sequential reader of 8 KB, by the depth of read-ahead: as in the paper a program on a file
//! server's client (`awase mount`), over a link with a delay; and a task on a volume, where the policy is the same.

use std::fs::{self, File};
use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kernel::request::Context;
use kernel::{Processor, Volume};
use machine::Errno;
use papers::parameter::Parameters;
use policy::readahead::Mode;
use policy::unit::BLOCK_BYTES;

use super::repetitions::{Repetitions, Spread, interleaved, table};
use super::task::{self, JOB, REQUEST_BYTES, request_at};
use super::ws_table2::kb_a_second;
use super::ws_table4::{close, open_volume};
use super::{Effort, LocalError, LocalRun, Measured, Medium, Protocol, ServerConfig, Setup};
use crate::measure::link::DelayedLink;
use crate::measure::load::{Endpoint, Target};
use crate::measure::mounted::{Mounted, awase_mount, has_fuse};

const MEMORY: u64 = 128 << 20;

/// Of a request that crosses a local network and a server.
const LATENCY: Duration = Duration::from_millis(1);

/// Of the link between client and server, each way, and its bytes a second (1 Gbit/s).
const LINK_DELAY: Duration = Duration::from_millis(1);
const LINK_RATE: u64 = 125_000_000;

/// What is read through a mount.
const FILE: &str = "file";

const MOUNTED: Repetitions = Repetitions { most: 3, time_max: Duration::from_secs(10) };
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
    let most = if has_fuse() { MOUNTED.most } else { 0 };
    AHEAD.len() as u64 * u64::from(effort.pick(most + DISTANT.most + DISK.most, 2 + most.min(1)))
}

pub(super) fn measure(run: &LocalRun<'_>) -> Result<Measured, LocalError> {
    let bytes = run.pick(2 << 20, 64 << 10);
    let medium = Medium::FixedLatency { bytes, latency: LATENCY };
    let distant = on(run, DISTANT, medium, bytes)?;
    let bytes = run.pick(32 << 20, 256 << 10);
    let disk = on(run, DISK, Medium::Disk { bytes }, bytes)?;

    let mounted = if has_fuse() { Some(through_mount(run)?) } else { None };

    let mut measured = Measured::default();
    let name_disk = run.host.disk();
    let mut rows = Vec::new();
    let media = [(name_disk.as_str(), &disk), ("a device that answers after 1 ms", &distant)];
    let of_mount = mounted.iter().map(|arms| ("awase mount, 1 ms each way", arms));
    for (medium, arms) in of_mount.chain(media) {
        rows.extend(AHEAD.iter().zip(arms).map(|((ahead, _), [rate])| (format!("{medium}: {ahead} ahead"), *rate)));
    }
    // The paper has one block and four.
    let arms = AHEAD.iter().zip(mounted.as_ref().unwrap_or(&disk));
    for ((ahead, _), [rate]) in arms.filter(|((ahead, _), _)| ["1 block", "4 blocks"].contains(ahead)) {
        measured.cell("throughput", *ahead, "", rate.median);
    }
    measured.tables.push(table("here-rate", "sequential reads of 8 KB, one at a time", "KB/s", 0, rows));
    measured.notes.push(if mounted.is_some() {
        "Here: one program reads a file through awase mount, past the host's cache and its read-ahead, from a server on this \
         host that has it cached, over a link of 1 Gbit/s with a delay of 1 ms each way."
            .to_owned()
    } else {
        "Here without a mount: /dev/fuse cannot be opened.".to_owned()
    });
    measured.notes.push(format!(
        "Beside it one reader on a volume on {name_disk} past the page cache, through a cache that has nothing of it, and \
         on a device that answers after 1 ms; no network is between them."
    ));
    Ok(measured)
}

fn through_mount(run: &LocalRun<'_>) -> Result<Vec<[Spread; 1]>, LocalError> {
    let bytes = run.pick(4 << 20, 64 << 10);
    let switches = Vec::new();
    let config = ServerConfig { processors: 1, memory: MEMORY, switches, ..ServerConfig::default() };
    let (directory, server) = run.host.serve_alone(&config)?;
    let Some(Target::Nfs(endpoint)) = server.target(Protocol::Nfs) else {
        return Err(LocalError::Server("it serves no directory".to_owned()));
    };
    let at = directory.path().join("mounted");
    let failed = |error: anyhow::Error| LocalError::Server(format!("{error:#}"));
    let mount = |endpoint: &Endpoint, options: &str| {
        let command = awase_mount(run.host.program(), endpoint, options, &at);
        Mounted::new(command, &at, &directory.path().join("mount.log"), run.host.interrupted())
    };
    let make = || -> anyhow::Result<()> {
        fs::create_dir(&at)?;
        let mounted = mount(&endpoint, "")?;
        fs::write(at.join(FILE), vec![1; bytes as usize])?;
        mounted.end()
    };
    make().map_err(failed)?;
    interleaved(run, MOUNTED, AHEAD.len(), |arm| {
        let read = || -> anyhow::Result<Duration> {
            let link = DelayedLink::new(endpoint.nfs, LINK_DELAY, Some(LINK_RATE))?;
            let reached = Endpoint { nfs: link.address(), ..endpoint.clone() };
            let ahead = match AHEAD[arm].1 {
                Mode::Off => "0".to_owned(),
                Mode::Fixed { blocks } => blocks.to_string(),
                Mode::Adaptive { .. } => "adaptive".to_owned(),
            };
            let mounted = mount(&reached, &format!("direct_io,readahead={ahead}"))?;
            let took = read_file(&at.join(FILE), bytes)?;
            mounted.end()?;
            Ok(took)
        };
        Ok([kb_a_second(bytes, read().map_err(failed)?)])
    })
}

/// Reads a file in order. Returns how long that takes.
fn read_file(path: &std::path::Path, bytes: u64) -> anyhow::Result<Duration> {
    let (mut file, mut buffer) = (File::open(path)?, vec![0; REQUEST_BYTES as usize]);
    let start = Instant::now();
    for _ in 0..bytes / REQUEST_BYTES {
        file.read_exact(&mut buffer)?;
    }
    Ok(start.elapsed())
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
