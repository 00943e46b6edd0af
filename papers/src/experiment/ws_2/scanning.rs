//! (a) A scan of twice the cache, concurrent with reads of hot blocks.

use std::cell::Cell as Shared;
use std::rc::Rc;
use std::time::Duration;

use policy::cache::Algorithm;

use super::host::{Process, Setup};
use super::machine::Hardware;
use crate::experiment::Run;
use crate::result::{Finding, Results};

/// With the queue of WS-4: in 4.3BSD's, which orders by position only, a reader behind the scanner waits until the scan
/// is over, whatever the cache does.
const CACHES: [(&str, Setup); 4] = [
    ("fixed, LRU (4.3BSD)", Setup { priority: true, ..Setup::BSD }),
    ("fixed, S3-FIFO", Setup { priority: true, replacement: Algorithm::S3Fifo, ..Setup::BSD }),
    ("dynamic, LRU", Setup { priority: true, ..Setup::PAPER }),
    ("dynamic, S3-FIFO (Awase)", Setup { priority: true, replacement: Algorithm::S3Fifo, ..Setup::PAPER }),
];

/// How often the hot blocks are read before the scan.
const WARMINGS: u32 = 4;

#[derive(Clone, Copy, Default)]
struct Hot {
    reads: u64,
    cached: u64,
    seconds: f64,
}

/// Reads hot blocks at random with pauses, until `is_over`.
async fn work(process: Process, hot_blocks: u64, pause: Duration, is_over: Rc<Shared<bool>>, hot: Rc<Shared<Hot>>) {
    while !is_over.get() {
        process.time.sleep(pause).await;
        let block = process.hardware.place(0, process.time.below(hot_blocks));
        let start = process.time.now();
        let read = process.buffers.read(block).await;
        process.time.sleep(process.hardware.call()).await;
        let before = hot.get();
        hot.set(Hot {
            reads: before.reads + 1,
            cached: before.cached + u64::from(read.cached),
            seconds: before.seconds + process.since(start),
        });
    }
}

/// The hot reads during the scan, and the time to read the hot blocks after it.
fn scan(hardware: &Hardware, setup: Setup, share: f64, pause: Duration) -> (Hot, f64) {
    let host = hardware.start(setup);
    let hot = Rc::new(Shared::new(Hot::default()));
    let seen = Rc::clone(&hot);
    let after = host.complete(move |process| async move {
        // The dynamic cache takes what it can get.
        let cache =
            if setup.dynamic { fill(&process).await } else { process.buffers.bytes_held() / process.hardware.buffer };
        let hot_blocks = ((cache as f64 * share) as u64).max(1);
        for _ in 0..WARMINGS {
            process.read_file(0, hot_blocks).await;
        }
        let is_over = Rc::new(Shared::new(false));
        process.time.spawn(work(process.clone(), hot_blocks, pause, Rc::clone(&is_over), seen));
        process.read_file(process.hardware.disk_blocks() / 8, 2 * cache).await;
        is_over.set(true);
        process.read_file(0, hot_blocks).await
    });
    (hot.get(), after.unwrap_or(0.0))
}

/// Fills the cache with blocks that are not read again. Returns how many fit.
async fn fill(process: &Process) -> u64 {
    process.read_file(process.hardware.disk_blocks() / 8 * 5, process.hardware.buffers()).await;
    process.buffers.bytes_held() / process.hardware.buffer
}

/// Adds the tables, plots and findings of the scan.
pub(super) fn run(run: &Run<'_>, hardware: &Hardware, results: &mut Results) {
    let share = run.get("scan.hot") / 100.0;
    let pause = Duration::from_secs_f64(run.get("scan.pause") / 1e3);
    let mut rows = Vec::new();
    let mut hits = Vec::new();
    for (_, setup) in CACHES {
        let (hot, after_s) = scan(hardware, setup, share, pause);
        let reads = hot.reads.max(1) as f64;
        let hit_percent = 100.0 * hot.cached as f64 / reads;
        hits.push(hit_percent);
        rows.push([hit_percent, hot.seconds / reads * 1e3, after_s]);
        run.step();
    }
    results.tables.push(run.table("scan", rows).of_rows(CACHES.map(|(name, _)| name)));
    results.findings.push(Finding::new(
        format!(
            "A scan of twice the cache leaves {:.0} % of the reads of blocks in use in the cache with \
                 S3-FIFO, {:.0} % with LRU",
            hits[3], hits[2]
        ),
        hits[3] > 95.0 && hits[2] < 75.0,
    ));
}
