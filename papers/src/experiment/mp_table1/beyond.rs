//! What the paper's table leaves open: the spread between runs, how busy master and device are, what caches and locks
//! have of it, a lock that is held long, arrays of disks, a load less regular than `iotest`, and many processors.

use std::time::Duration;

use policy::access::Mode;

use super::super::Run;
use super::super::top1::{self, Device, Setup};
use super::{WAITS, gains_of, median};
use crate::result::{Finding, Results, Series, Table};

/// Numbers of processors beyond the paper's, each with as many processes.
const SCALED: [u16; 10] = [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
const SCALED_WAITS: [u32; 4] = [0, 10, 50, 200];
/// Measured reads of each process there, at least.
const SCALED_READS: u32 = 12;

/// Processes of the tables beside the paper's.
const SOME: [u32; 6] = [1, 2, 4, 6, 9, 12];
/// Runs with different beginnings.
const SPREAD_RUNS: u64 = 5;
const BUSY_WAITS: [u32; 3] = [0, 20, 100];
const LOCKED_MS: [f64; 4] = [0.1, 0.5, 1.0, 2.0];
const LOCK_WAIT: u32 = 20;
/// Disks behind the driver's lock, without wait.
const LOCK_DISKS: [u32; 2] = [1, 8];
const SERVERS: [u32; 4] = [1, 2, 4, 9];
/// Disks of an array; TOP-1 has four (section 3.1).
const DISKS: [u32; 4] = [1, 2, 4, 8];
const ARRAY_WAIT: u32 = 20;
/// Mean wait counts of a load with waits and places at random.
const REALISTIC_WAITS: [u32; 3] = [20, 50, 100];
const REALISTIC_RUNS: u64 = 3;

pub(super) const STEPS: u64 = (SCALED.len() * SCALED_WAITS.len()
    + WAITS.len() * SOME.len()
    + 3 * BUSY_WAITS.len() * 2
    + LOCKED_MS.len() * (SOME.len() + LOCK_DISKS.len())
    + SERVERS.len() * SOME.len()
    + DISKS.len() * SOME.len()
    + REALISTIC_WAITS.len() * SOME.len()) as u64;

pub(super) fn add(run: &Run<'_>, setups: &[Setup; 3], results: &mut Results) {
    spread(run, &setups[0], results);
    busy(run, setups, results);
    let [disk, fixed, memory] = setups;
    locks(run, disk, results);
    results.tables.push(arrays(run, fixed));
    disks(run, disk, results);
    realistic(run, disk, results);
    let scaled = scaled(run, memory);
    results.plots.push(run.plot("scaled", by_processors(&scaled)));
    results.tables.push(scaled);
}

/// The largest gain of some runs of scsihd less the least.
fn spread(run: &Run<'_>, setup: &Setup, results: &mut Results) {
    let row = |count: u32| {
        SOME.map(|processes| {
            let setup = Setup { processes, wait: top1::wait(run.parameters, count), ..*setup };
            let gains = gains_of(&setup, run.seed.wrapping_add(100), SPREAD_RUNS);
            run.step();
            gains[gains.len() - 1] - gains[0]
        })
    };
    let table = run.table("spread", WAITS.map(row)).of_rows(WAITS).of_columns(SOME);
    if run.compares() {
        results.findings.push(empty_cells(&table, &results.tables[0]));
    }
    results.tables.push(table);
}

/// The paper left cells empty where measurements differed too much.
fn empty_cells(spread: &Table, published: &Table) -> Finding {
    let mut of = [Vec::new(), Vec::new()];
    for (row, cells) in spread.cells.iter().enumerate() {
        for (name, cell) in spread.columns.iter().zip(cells) {
            let column = published.columns.iter().position(|of| of == name);
            let is_empty = column.is_some_and(|column| published.cells[row][column].paper.is_none());
            of[usize::from(is_empty)].extend(cell.simulated);
        }
    }
    let [there, empty] = of.map(|spreads| super::super::mean(&spreads));
    Finding::new(
        format!(
            "The cells of scsihd that the paper left empty are those that differ from run to run: by {empty:.1} points in \
             the mean here, the others by {there:.1}"
        ),
        empty > 2.0 * there,
    )
}

/// Percent of the time with nine processes: master and device, funnelled and symmetric; and what caches and locks have
/// of it.
fn busy(run: &Run<'_>, setups: &[Setup; 3], results: &mut Results) {
    let (mut rows, mut caches, mut names) = (Vec::new(), Vec::new(), Vec::new());
    let (mut completions, mut of_completions) = (Vec::new(), Vec::new());
    for (name, setup) in super::DEVICES.iter().zip(setups) {
        for count in BUSY_WAITS {
            let [funnel, symmetric] = [Mode::Funnel, Mode::Symmetric].map(|access| {
                let processes = u32::from(setup.processors);
                let setup = Setup { access, processes, wait: top1::wait(run.parameters, count), ..*setup };
                let ran = top1::run(&setup, run.seed);
                run.step();
                ran
            });
            rows.push([funnel.master, funnel.device, symmetric.master, symmetric.device, symmetric.spun]);
            caches.push([funnel.own_cache, symmetric.own_cache]);
            let name = format!("{name}, wait {count}");
            if !matches!(setup.device, Device::Memory { .. }) {
                completions.push([symmetric.initiator, symmetric.lock_free]);
                of_completions.push(name.clone());
            }
            names.push(name);
        }
    }
    if run.compares() {
        let column = |of: usize| super::super::mean(&caches.iter().map(|row: &[f64; 2]| row[of]).collect::<Vec<_>>());
        let (funnelled, symmetric) = (column(0), column(1));
        results.findings.extend([
            Finding::new(
                format!("Watched, the funnel's master is saturated by ramdisk without wait: busy {:.0} %", rows[6][0]),
                rows[6][0] > 90.0,
            ),
            Finding::new(
                format!("Watched, testdev is saturated where nothing is gained (wait 0): busy {:.0} %", rows[3][3]),
                rows[3][1] > 90.0 && rows[3][3] > 90.0,
            ),
            Finding::new(
                format!(
                    "The funnel takes processes away from their caches: {funnelled:.0} % of dispatches are where the \
                     process ran last, {symmetric:.0} % without it"
                ),
                funnelled < 0.7 * symmetric,
            ),
        ]);
    }
    results.tables.push(run.table("busy", rows).of_rows(&names));
    results.tables.push(run.table("caches", caches).of_rows(names));
    results.tables.push(run.table("completions", completions).of_rows(of_completions));
}

/// The gain on scsihd if the driver holds its lock long, as for its head scheduling; and how often it is found free.
fn locks(run: &Run<'_>, setup: &Setup, results: &mut Results) {
    let held = |ms: f64| {
        let locked = Duration::from_nanos((ms * 1e6) as u64);
        Setup { read: crate::model::raw_device::Costs { locked: locked.min(setup.read.start), ..setup.read }, ..*setup }
    };
    let gains = LOCKED_MS.map(|ms| {
        SOME.map(|processes| {
            let gains =
                gains_of(&Setup { processes, wait: top1::wait(run.parameters, LOCK_WAIT), ..held(ms) }, run.seed, 3);
            run.step();
            median(gains)
        })
    });
    let uses = LOCKED_MS.map(|ms| {
        LOCK_DISKS.map(|count| {
            let setup = held(ms);
            let device = array(setup.device, count);
            let ran = top1::run(&Setup { processes: u32::from(setup.processors), device, ..setup }, run.seed);
            run.step();
            [ran.lock_free, ran.spun]
        })
    });
    if run.compares() {
        let [one, eight] = [0, 1].map(|column: usize| 100.0 - uses[LOCKED_MS.len() - 1][column][0]);
        results.findings.extend([
            Finding::new(
                format!(
                    "As the paper suspects, the lock costs more where the disk is used often: held for 2 ms and without \
                     wait it is found taken in {one:.0} % of the tries"
                ),
                one > 5.0,
            ),
            Finding::new(
                format!("On an array it does: with eight disks, in {eight:.0} %"),
                eight > 10.0,
            ),
        ]);
    }
    results.tables.push(run.table("locks", gains).of_rows(LOCKED_MS).of_columns(SOME));
    results.tables.push(run.table("lock-use", uses.map(|of| of.concat())).of_rows(LOCKED_MS));
}

/// The disk as an array of as many.
fn array(device: Device, count: u32) -> Device {
    match device {
        Device::Disk { drive, depth, command, .. } => Device::Disk { drive, depth, command, disks: count },
        other => other,
    }
}

/// The gain on scsihd if it is an array of disks that take blocks in turn.
fn disks(run: &Run<'_>, setup: &Setup, results: &mut Results) {
    let row = |count: u32| {
        SOME.map(|processes| {
            let (device, wait) = (array(setup.device, count), top1::wait(run.parameters, ARRAY_WAIT));
            let gains = gains_of(&Setup { processes, device, wait, ..*setup }, run.seed, 3);
            run.step();
            median(gains)
        })
    };
    let gains = DISKS.map(row);
    if run.compares() {
        let [one, four] = [0, 2].map(|row: usize| gains[row][3..5].iter().sum::<f64>() / 2.0);
        results.findings.push(Finding::new(
            format!(
                "What one disk hides an array shows: with six to nine processes and wait 20 symmetric access gains {four:.0} % \
                 on TOP-1's four disks, {one:.0} % on one"
            ),
            four > one + 5.0,
        ));
    }
    results.tables.push(run.table("disks", gains).of_rows(DISKS).of_columns(SOME));
}

/// The gain on scsihd with waits and places drawn at random, as programs have them.
fn realistic(run: &Run<'_>, setup: &Setup, results: &mut Results) {
    let row = |count: u32| {
        SOME.map(|processes| {
            let wait = top1::wait(run.parameters, count);
            let gains = gains_of(&Setup { processes, wait, is_random: true, ..*setup }, run.seed, REALISTIC_RUNS);
            run.step();
            median(gains)
        })
    };
    let gains = REALISTIC_WAITS.map(row);
    if run.compares() {
        let most = gains.iter().flatten().copied().fold(0.0, f64::max);
        let regular = results.tables[0].cells.iter().flatten().filter(|cell| cell.paper.is_some());
        let regular = regular.filter_map(|cell| cell.simulated).fold(0.0, f64::max);
        results.findings.push(Finding::new(
            format!(
                "With waits and places at random no rotation is lost as a whole: at most {most:.0} % are gained, with the \
                 paper's regular loop {regular:.0} %"
            ),
            most < 0.75 * regular,
        ));
    }
    results.tables.push(run.table("realistic", gains).of_rows(REALISTIC_WAITS).of_columns(SOME));
}

/// The gain on a device that serves several requests at a time, as an array of disks does.
fn arrays(run: &Run<'_>, setup: &Setup) -> Table {
    let row = |servers: u32| {
        SOME.map(|processes| {
            let device = match setup.device {
                Device::Fixed { time, .. } => Device::Fixed { time, servers },
                other => other,
            };
            let gains = gains_of(&Setup { processes, device, ..*setup }, run.seed, 3);
            run.step();
            median(gains)
        })
    };
    run.table("arrays", SERVERS.map(row)).of_rows(SERVERS).of_columns(SOME)
}

/// The ramdisk of machines of other sizes, each with as many processes as processors.
fn scaled(run: &Run<'_>, setup: &Setup) -> Table {
    let row = |processors: u16| {
        let processes = u32::from(processors);
        let start_every = setup.start_every.min(setup.start_every * 10 / processes);
        let reads = setup.reads.max(processes * SCALED_READS);
        let setup = Setup { processors, processes, start_every, reads, ..*setup };
        SCALED_WAITS.map(|count| {
            let gains = gains_of(&Setup { wait: top1::wait(run.parameters, count), ..setup }, run.seed, 1);
            run.step();
            median(gains)
        })
    };
    run.table("scaled", SCALED.map(row)).of_rows(SCALED).of_columns(SCALED_WAITS)
}

fn by_processors(table: &Table) -> Vec<Series> {
    let of_wait = |(column, wait): (usize, &String)| {
        let gains = table.cells.iter().filter_map(|cells| cells[column].simulated);
        Series::simulated(format!("wait {wait}"), SCALED.map(f64::from).into_iter().zip(gains))
    };
    table.columns.iter().enumerate().map(of_wait).collect()
}
