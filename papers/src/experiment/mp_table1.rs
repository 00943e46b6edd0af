//! MP table 1 (a), (b), (c) and figure 4: the gain of a device driver that any processor may enter.

mod beyond;
mod findings;

use policy::access::Mode;

use super::Run;
use super::top1::{self, Device, Setup};
use crate::result::{Results, Source, Table};

const WAITS: [u32; 6] = [0, 10, 20, 50, 100, 200];
/// Rows that share a plot: curves of like size, or nobody sees the small ones.
const FIGURES: [&[usize]; 3] = [&[0], &[1, 2], &[3, 4, 5]];

const DEVICES: [&str; 3] = ["scsihd", "testdev", "ramdisk"];

/// Runs of a cell with different beginnings where processes are few: they stay in step with clock and disk.
const FEW_RUNS: u64 = 5;
const FEW: u32 = 4;

pub(super) const STEPS: u64 = (DEVICES.len() * WAITS.len() * top1::PROCESSES.len()) as u64 + beyond::STEPS;

pub(super) fn simulate(run: &Run<'_>) -> Results {
    let setups = top1::setup(run.parameters);
    let tables: Vec<Table> = DEVICES.iter().zip(&setups).map(|(name, setup)| table(run, name, setup)).collect();
    let mut results = Results { findings: vec![findings::headline(run, &tables)], ..Results::default() };
    if run.compares() {
        results.findings.extend(findings::all(&tables));
        results.notes = run.notes(&[]);
    }
    for table in &tables {
        results.plots.extend(figures(run, table));
    }
    results.tables = tables;
    if !run.is_brief {
        beyond::add(run, &setups, &mut results);
    }
    results
}

/// Figure 4 in parts: rows of like size, and simulated lines only where the paper has published ones.
fn figures(run: &Run<'_>, table: &Table) -> Vec<crate::result::Plot> {
    let part = |rows: &&[usize]| {
        let mut part = Table {
            rows: rows.iter().map(|row| table.rows[*row].clone()).collect(),
            cells: rows.iter().map(|row| table.cells[*row].clone()).collect(),
            ..table.clone()
        };
        let is_published = part.cells.iter().flatten().any(|cell| cell.paper.is_some());
        for cell in part.cells.iter_mut().flatten().filter(|cell| is_published && cell.paper.is_none()) {
            cell.simulated = None;
        }
        let plot = run.plot(&format!("figure4-{}", table.name), part.lines(|wait| format!("wait {wait}")));
        let waits = part.rows.join(", ");
        crate::result::Plot { title: format!("{}: wait {waits}", plot.title), ..plot }
    };
    FIGURES.iter().map(part).filter(|plot| plot.series.iter().any(|of| of.source == Source::Simulated)).collect()
}

fn table(run: &Run<'_>, name: &str, setup: &Setup) -> Table {
    let counts = top1::process_counts(setup.processors);
    let row = |count: u32| {
        let setup = Setup { wait: top1::wait(run.parameters, count), ..*setup };
        counts.iter().map(move |processes| median(gains(run, &Setup { processes: *processes, ..setup })))
    };
    let mut table = run.table(name, WAITS.map(row)).of_rows(WAITS).of_columns(&counts);
    for (cells, count) in table.cells.iter_mut().zip(WAITS) {
        let setup = Setup { wait: top1::wait(run.parameters, count), ..*setup };
        for (cell, processes) in cells.iter_mut().zip(&counts) {
            cell.bound = bound(&Setup { processes: *processes, ..setup });
        }
    }
    table
}

/// The gain, in percent, if nothing counted but the bounds: a process alone, the processors, the device or bus, and
/// the funnel's master. Not of a disk, whose time is a question of rotation.
fn bound(setup: &Setup) -> Option<f64> {
    let Setup { processors, processes, wait, read, .. } = *setup;
    let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    let (many, processors) = (f64::from(processes), f64::from(processors));
    let (work, device, funnelled) = match setup.device {
        Device::Disk { .. } => return None,
        Device::Fixed { time, servers } => (0.0, ms(time) / f64::from(servers.max(1)), ms(read.start)),
        Device::Memory { copy, transfer, .. } => (ms(copy + transfer), ms(transfer), ms(read.start + copy + transfer)),
    };
    let latency = if let Device::Fixed { time, .. } = setup.device { ms(time) } else { 0.0 };
    let processor = ms(wait + read.call + read.start) + work;
    let symmetric = (processor + latency).max(many / processors * processor).max(many * device);
    Some((symmetric.max(many * funnelled) / symmetric - 1.0) * 100.0)
}

/// How much faster processes get through without the funnel, in percent: of runs with different beginnings, sorted.
fn gains(run: &Run<'_>, setup: &Setup) -> Vec<f64> {
    let runs = run.get("run.runs") as u64 * if setup.processes <= FEW { FEW_RUNS } else { 1 };
    let gains = gains_of(setup, run.seed, runs.max(1));
    run.step();
    gains
}

fn gains_of(setup: &Setup, seed: u64, runs: u64) -> Vec<f64> {
    let gain = |number: u64| {
        let seed = seed.wrapping_mul(1000) + number;
        let [funnel, symmetric] =
            [Mode::Funnel, Mode::Symmetric].map(|access| top1::loop_ms(&Setup { access, ..*setup }, seed, 1));
        (funnel / symmetric - 1.0) * 100.0
    };
    let mut gains: Vec<f64> = (0..runs).map(gain).collect();
    gains.sort_by(f64::total_cmp);
    gains
}

fn median(sorted: Vec<f64>) -> f64 {
    sorted[sorted.len() / 2]
}
