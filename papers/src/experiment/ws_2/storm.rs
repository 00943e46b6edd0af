//! (c) The sync storm and its cure: a reader's waits while dirty buffers are written.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use crate::model::buffers::{Content, DiskBlock, Write};
use policy::unit::Instant;

use super::super::percentile;
use super::host::{Process, Setup};
use super::machine::Hardware;
use crate::experiment::Run;
use crate::result::{Finding, Results, Series};

const CACHES: [(&str, Setup); 6] = [
    ("fixed, sync every 30 s (4.3BSD)", Setup::BSD),
    ("fixed, steady", Setup { smooth: true, ..Setup::BSD }),
    ("dynamic, sync every 30 s", Setup::PAPER),
    ("dynamic, steady", Setup { smooth: true, ..Setup::PAPER }),
    ("dynamic, sync, readers first (WS-4)", Setup { priority: true, ..Setup::PAPER }),
    ("dynamic, steady, readers first (Awase)", Setup { priority: true, ..Setup::AWASE }),
];

/// Sampling interval of the number of dirty buffers.
const NOTED_EVERY: Duration = Duration::from_millis(500);

#[derive(Default)]
struct Seen {
    /// Start and duration of each read, in seconds.
    reads: Vec<(f64, f64)>,
    /// Time in seconds, and number of dirty buffers.
    dirty: Vec<(f64, f64)>,
    disk_busy_percent: f64,
}

/// Intervals of operations, and the end of the run.
#[derive(Clone, Copy)]
struct Load {
    every: Duration,
    pause: Duration,
    end: Instant,
}

/// Repeatedly writes a part of a new block anywhere on the first half of the disk.
async fn write(process: Process, load: Load) {
    let blocks = process.hardware.disk_blocks() / 2;
    let mut next = process.time.now();
    loop {
        next += load.every;
        process.time.sleep_until(next).await;
        let block = DiskBlock(process.time.below(blocks));
        process.time.sleep(process.hardware.call()).await;
        process.buffers.write(block, Content(1), Write::Delayed).await;
    }
}

/// Periodically starts to read a block anywhere on the second half, whether the reads before are done or not: a waiting
/// read does not delay later ones.
async fn read(process: Process, load: Load, seen: Rc<RefCell<Seen>>) {
    let blocks = process.hardware.disk_blocks() / 2;
    loop {
        process.time.sleep(load.pause).await;
        let block = DiskBlock(blocks + process.time.below(blocks));
        process.time.spawn(read_one(process.clone(), block, Rc::clone(&seen)));
    }
}

async fn read_one(process: Process, block: DiskBlock, seen: Rc<RefCell<Seen>>) {
    let start = process.time.now();
    let read = process.buffers.read(block).await;
    process.time.sleep(process.hardware.call()).await;
    if !read.cached {
        seen.borrow_mut().reads.push((start.ns() as f64 / 1e9, process.since(start)));
    }
}

async fn note(process: Process, seen: Rc<RefCell<Seen>>) {
    loop {
        let now_s = process.time.now().ns() as f64 / 1e9;
        seen.borrow_mut().dirty.push((now_s, process.buffers.dirty_blocks() as f64));
        process.time.sleep(NOTED_EVERY).await;
    }
}

fn simulate(hardware: &Hardware, setup: Setup, load: Load) -> Seen {
    let host = hardware.start(setup);
    let seen = Rc::new(RefCell::new(Seen::default()));
    host.spawn(|process| write(process, load));
    host.spawn(|process| read(process, load, Rc::clone(&seen)));
    host.spawn(|process| note(process, Rc::clone(&seen)));
    host.run.run_until(load.end);
    let busy_s = host.disk.counters().busy.as_secs_f64();
    drop(host);
    let disk_busy_percent = 100.0 * busy_s / (load.end - Instant::ZERO).as_secs_f64();
    Seen { disk_busy_percent, ..seen.take() }
}

/// The worst of the reads that began in each second, for a legible plot.
fn worst_each_second(reads: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut in_order = reads.to_vec();
    in_order.sort_unstable_by(|one, other| one.0.total_cmp(&other.0));
    let mut worst: Vec<(f64, f64)> = Vec::new();
    for (began_s, took_s) in in_order {
        match worst.last_mut() {
            Some(last) if last.0 == began_s.floor() => last.1 = last.1.max(took_s * 1e3),
            _ => worst.push((began_s.floor(), took_s * 1e3)),
        }
    }
    worst
}

/// Adds the tables, plots and findings of (c).
pub(super) fn run(run: &Run<'_>, hardware: &Hardware, results: &mut Results) {
    let interval_s = run.get("sync.interval");
    let load = Load {
        every: Duration::from_secs_f64(1.0 / run.get("storm.rate")),
        pause: Duration::from_secs_f64(run.get("storm.pause") / 1e3),
        end: Instant::ZERO + Duration::from_secs_f64(run.get("storm.time")),
    };
    let mut all = Vec::new();
    for (_, setup) in CACHES {
        all.push(simulate(hardware, setup, load));
        run.step();
    }
    let latencies: Vec<Vec<f64>> = all.iter().map(|seen| counted(seen, interval_s)).collect();
    let row = |sorted: &Vec<f64>| [0.5, 0.9, 0.99, 1.0].map(|part| percentile(sorted, part) * 1e3);
    let names = CACHES.map(|(name, _)| name);
    results.tables.push(run.table("storm-latency", latencies.iter().map(row)).of_rows(names));
    let most = |seen: &Seen| seen.dirty.iter().map(|(_, dirty)| *dirty).fold(0.0, f64::max);
    let counts = all.iter().zip(&latencies);
    let counts = counts.map(|(seen, sorted)| [sorted.len() as f64, most(seen), seen.disk_busy_percent]);
    results.tables.push(run.table("storm-counts", counts).of_rows(names));
    plot(run, &all, results);
    find(&latencies, results);
}

/// Durations of the reads after the first sync, shortest first.
fn counted(seen: &Seen, interval_s: f64) -> Vec<f64> {
    let mut sorted: Vec<f64> =
        seen.reads.iter().filter(|(began, _)| *began >= interval_s).map(|(_, took)| *took).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted
}

fn plot(run: &Run<'_>, all: &[Seen], results: &mut Results) {
    let line = |index: usize, points: Vec<(f64, f64)>| Series::simulated(CACHES[index].0, points);
    let worst = [0, 2, 3, 5].map(|index| line(index, worst_each_second(&all[index].reads)));
    results.plots.push(run.plot("storm-latency", worst.to_vec()));
    let dirty = [0, 2, 3].map(|index| line(index, all[index].dirty.clone()));
    results.plots.push(run.plot("storm-dirty", dirty.to_vec()));
}

fn find(latencies: &[Vec<f64>], results: &mut Results) {
    let p99 = |index: usize| percentile(&latencies[index], 0.99) * 1e3;
    results.findings.push(Finding::new(
        format!(
            "Dynamic cache: with a sync every 30 s, 99 % of reads end within {:.0} ms; written steadily, within {:.0} ms",
            p99(2),
            p99(3)
        ),
        p99(2) > 5.0 * p99(3),
    ));
    results.findings.push(Finding::new(
        format!("The storm grows with the cache: 99 % within {:.0} ms become {:.0} ms", p99(0), p99(2)),
        p99(2) > 1.5 * p99(0),
    ));
    results.findings.push(Finding::new(
        format!("Steady write-back and readers first together: 99 % within {:.0} ms", p99(5)),
        p99(5) <= p99(3) && p99(5) <= p99(4),
    ));
}
