//! (g) Section 8 (b): a process with much slow I/O holds the buffers that others need. The paper leaves it unsolved.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use crate::drive::Drive;
use crate::drive::flash::Flash;
use crate::drive::mechanical::Mechanical;
use crate::model::buffers::{Content, DiskBlock, Write};
use crate::model::disk::Disk;
use policy::unit::Instant;

use super::super::percentile;
use super::host::{Process, Setup};
use super::machine::Hardware;
use crate::experiment::Run;
use crate::result::{Finding, Results};

/// The paper's own slow disk (table 3).
const OPTICAL: &str = "mo-1990";
/// Observed, after as long without counting.
const PHASE: Duration = Duration::from_secs(60);
/// Blocks of the fast disk that are read and written: a user's files, in 64ths of memory.
const USERS_SHARE: u64 = 64;

const CASES: [(&str, Setup, bool); 5] = [
    ("fixed (4.3BSD), nothing slow beside", Setup::BSD, false),
    ("fixed (4.3BSD)", Setup::BSD, true),
    ("dynamic (the paper)", Setup::PAPER, true),
    ("dynamic, priority (WS-4)", Setup { priority: true, ..Setup::PAPER }, true),
    ("dynamic, steady, priority (Awase)", Setup { priority: true, ..Setup::AWASE }, true),
];

pub(super) const STEPS: u64 = CASES.len() as u64;

#[derive(Default)]
struct Seen {
    /// Milliseconds.
    reads: Vec<f64>,
    writes: Vec<f64>,
    /// Bytes that the slow disk took while reads and writes were counted: not those that filled the cache before.
    slow_bytes: u64,
}

/// A disk that takes that long to write a buffer, or the optical disk of table 3.
fn slow_drive(hardware: &Hardware, write_ms: f64) -> Drive {
    if write_ms <= 0.0 {
        return Drive::Mechanical(Mechanical::named(OPTICAL));
    }
    let write = Duration::from_nanos((write_ms * 1e6) as u64);
    Drive::Flash(Flash {
        source: "parameters",
        size: 1 << 40,
        units: 1,
        stripe_bytes: hardware.buffer as u32,
        read: write / 10,
        write,
        overhead: Duration::ZERO,
        bus_bytes_per_second: u64::MAX,
    })
}

/// Writes a file without end to the slow disk, as fast as it may.
async fn write_slowly(process: Process, first: u64, how: Write) {
    // Comes round to its start before the disk's end.
    let blocks = process.hardware.buffers();
    for number in (0..blocks).cycle() {
        process.time.sleep(process.hardware.call()).await;
        process.buffers.write(DiskBlock(first + number), Content(1), how).await;
    }
}

/// A user: now and then a block of files on the fast disk is read, and another written.
async fn use_files(process: Process, pause: Duration, seen: Rc<RefCell<Seen>>) {
    let blocks = (process.hardware.buffers() / USERS_SHARE).max(4);
    loop {
        process.time.sleep(pause).await;
        let start = process.time.now();
        // Mostly files that are not cached yet.
        let anywhere = process.time.below(process.hardware.disk_blocks() / 2);
        process.buffers.read(DiskBlock(anywhere)).await;
        let read_ms = process.since(start) * 1e3;
        let start = process.time.now();
        let own = process.hardware.disk_blocks() / 2 + process.time.below(blocks);
        process.buffers.write(DiskBlock(own), Content(1), Write::Delayed).await;
        let write_ms = process.since(start) * 1e3;
        if process.time.now() >= Instant::ZERO + PHASE {
            let mut seen = seen.borrow_mut();
            seen.reads.push(read_ms);
            seen.writes.push(write_ms);
        }
    }
}

fn simulate(hardware: &Hardware, (setup, is_slow): (Setup, bool), write_ms: f64, pause: Duration) -> Seen {
    let host = hardware.start(setup);
    let first = hardware.disk_blocks();
    let slow = Disk::new(&host.run, slow_drive(hardware, write_ms), hardware.queue(setup));
    host.buffers.set_second(DiskBlock(first), slow.clone());
    let seen = Rc::new(RefCell::new(Seen::default()));
    if is_slow {
        let how = if setup.smooth { Write::Delayed } else { Write::Asynchronous };
        host.spawn(|process| write_slowly(process, first, how));
    }
    host.spawn(|process| use_files(process, pause, Rc::clone(&seen)));
    host.run.run_until(Instant::ZERO + PHASE);
    let before = slow.counters().bytes_written;
    host.run.run_until(Instant::ZERO + PHASE * 2);
    drop(host);
    let mut seen = seen.take();
    seen.slow_bytes = slow.counters().bytes_written - before;
    for times in [&mut seen.reads, &mut seen.writes] {
        times.sort_unstable_by(f64::total_cmp);
    }
    seen
}

/// Adds the table and the findings of (g).
pub(super) fn run(run: &Run<'_>, hardware: &Hardware, results: &mut Results) {
    let pause = Duration::from_secs_f64(run.get("storm.pause") / 1e3);
    let rows = CASES.map(|(_, setup, is_slow)| {
        let seen = simulate(hardware, (setup, is_slow), run.get("slow.write"), pause);
        run.step();
        let of = |times: &[f64]| [percentile(times, 0.5), percentile(times, 0.99)];
        let slow = seen.slow_bytes as f64 / 1024.0 / PHASE.as_secs_f64();
        let ([read, read_late], [write, write_late]) = (of(&seen.reads), of(&seen.writes));
        [read, read_late, write, write_late, seen.reads.len() as f64, slow]
    });
    results.tables.push(run.table("slow", rows).of_rows(CASES.map(|(name, ..)| name)));
    if !run.compares() {
        return;
    }
    let [alone, fixed, dynamic, _, awase] = rows;
    results.findings.extend([
        Finding::new(
            format!(
                "Section 8 (b): beside a writer to a slow disk half of a user's reads take {:.0} ms or more with the fixed \
                 cache, {:.0} without it",
                fixed[0], alone[0]
            ),
            fixed[0] > 2.0 * alone[0],
        ),
        Finding::new(
            format!("More buffers do not solve it, once they are full: {:.0} ms with the dynamic cache", dynamic[0]),
            dynamic[0] > 2.0 * alone[0],
        ),
        Finding::new(
            format!("Steady write-back leaves the user's reads alone: half take {:.0} ms or less", awase[0]),
            awase[0] < 1.5 * alone[0],
        ),
        Finding::new(
            format!(
                "It is not solved either: one limit on dirty buffers for all disks makes the user's writes wait for the slow \
                 disk, 99 % within {:.0} ms ({:.0} with nothing beside)",
                awase[3], alone[3]
            ),
            awase[3] > 10.0 * alone[3].max(1.0),
        ),
    ]);
}
