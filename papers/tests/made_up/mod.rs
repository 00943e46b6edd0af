//! Experiments whose numbers are made up, to see how they are shown.
#![allow(dead_code, reason = "each test program uses a part")]

use std::sync::LazyLock;

use papers::parameter::sheet::Sheet;
use papers::{Experiment, Finding, Parameters, Results, Run, Series, Source};

/// A small table, bars and steps; text that HTML would take for its own.
pub static SMALL: LazyLock<Experiment> =
    LazyLock::new(|| made_up("made-up-small", include_str!("small.toml"), |_| 2, small));

/// A grid of 6 by 13 in points, lines and a logarithmic axis.
pub static GRID: LazyLock<Experiment> =
    LazyLock::new(|| made_up("made-up-grid", include_str!("grid.toml"), |_| 1, grid));

pub static BROKEN: LazyLock<Experiment> =
    LazyLock::new(|| made_up("made-up-broken", "title = 'Gives up'", |_| 0, |_| panic!("on purpose")));

fn made_up(
    name: &'static str,
    sheet: &str,
    steps: fn(&Parameters) -> u64,
    simulate: fn(&Run<'_>) -> Results,
) -> Experiment {
    Experiment::new(name, steps, simulate).with_sheet(Box::leak(Box::new(Sheet::parse(name, sheet))))
}

fn small(run: &Run<'_>) -> Results {
    let (sheet, faster) = (run.experiment.sheet(), 3600.0 / run.get("disk.rpm"));
    run.step();
    let ends = [[4.87, 5.11], [1.81, 5.3]].map(|row| row.map(|end| end * faster));
    let mut table = sheet.table("ends", ends);
    table.cells[1][0].local = Some(0.02);
    let of_both = |((name, published), simulated): ((&String, &Vec<f64>), [f64; 2])| {
        let paper = Series::bars(name, Source::Paper, published.iter().copied());
        [paper, Series::bars(name, Source::Simulated, simulated)]
    };
    let bars = table.rows.iter().zip(sheet.published("ends")).zip(ends).flat_map(of_both);
    let bars = bars.chain([Series::bars("with priority", Source::Local, [0.3, 0.9])]);
    let queue = |name: &str, scale: f64| {
        Series::simulated(name, (0..60).map(|i| (f64::from(i) / 10.0, scale * f64::from((i * 7) % 40))))
    };
    let queues = vec![queue("without priority", 1.0), queue("with priority", 0.4)];
    run.step();
    Results {
        plots: vec![sheet.plot("ends", bars.collect()), sheet.plot("queue", queues)],
        tables: vec![table],
        findings: vec![
            Finding::new("With priority write returns 2.7 times sooner (paper: 3.3 times)", true),
            Finding::new("No asynchronous request waits longer than its deadline", true),
            Finding::new("The whole takes <b>no</b> longer", false),
        ],
        notes: sheet.notes.both.clone(),
    }
}

const WAITS: [f64; 6] = [0.0, 10.0, 50.0, 100.0, 500.0, 1000.0];
const PROCESSES: [f64; 13] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 12.0, 14.0, 16.0];

fn grid(run: &Run<'_>) -> Results {
    let sheet = run.experiment.sheet();
    let gain = |wait: f64, processes: f64| (processes - 1.0).min(12.0 - processes).max(0.0) * (8.0 - wait / 130.0);
    let simulated = |wait: f64, processes: f64| gain(wait, processes) * 1.1 - 2.0 + (processes * 7.0) % 3.0;
    let published = WAITS.map(|wait| PROCESSES.map(|processes| gain(wait, processes)));
    let table = sheet.table("scsihd", WAITS.map(|wait| PROCESSES.map(|processes| simulated(wait, processes))));
    let table = table.beside(published).of_rows(WAITS).of_columns(PROCESSES);
    let mut lines = table.lines(|wait| format!("wait {wait}"));
    lines.retain(|line| ["wait 0", "wait 100", "wait 500"].contains(&line.name.as_str()));
    let beyond = |name: &str, scale: f64| {
        let powers = (0..11).map(|power| f64::from(1 << power));
        Series::simulated(name, powers.map(|n| (n, scale * n / (1.0 + n / 40.0))))
    };
    let processors = vec![beyond("symmetric", 700.0), beyond("funnelled", 90.0)];
    run.step();
    Results {
        plots: vec![sheet.plot("scsihd", lines), sheet.plot("processors", processors)],
        tables: vec![table],
        findings: vec![Finding::new("Symmetric access is worth up to 45 % with as many processes as processors", true)],
        notes: Vec::new(),
    }
}
