//! Experiments whose numbers are made up, to see how they are shown.
#![allow(dead_code, reason = "each test program uses a part")]

use std::sync::LazyLock;

use lab::parameter::sheet::Sheet;
use lab::{Axis, Cell, Drawing, Experiment, Finding, Parameters, Plot, Results, Run, Series, Source, Table};

const SMALL_SHEET: &str = r#"
title = "Writes to a slow disk, with & without <priority>"
paper = "made up, table 3"
about = """
Directories and inodes are written synchronously, and they wait behind a long queue of data that nobody waits for. \
With priority they go first.

Look at how soon write returns: that is what a person waits for."""
modern = { "disk.rpm" = 15_000 }
[[parameter]]
name = "disk.rpm"
unit = "rpm"
value = 3600
source = { published = 'a data sheet "of" 1990, page 7' }
about = "a number of the <machine>"
range = [0, 20_000]

[[parameter]]
name = "file.size"
unit = "KB"
value = 1024
source = { paper = "section 4" }
about = "a number of the <machine>"
range = [0, 20_000]

[[parameter]]
name = "command.overhead"
unit = "ms"
value = 1.25
source = { fitted = "write without priority" }
about = "a number of the <machine>"
range = [0, 20_000]
"#;

const GRID_SHEET: &str = r#"
title = "Any processor starts the disk, or only the master"
paper = "made up, table 1"
about = "Where only one processor may start the disk, whoever wants it has to move there."
modern = { processors = 64 }
[[parameter]]
name = "processors"
value = 9
source = { paper = "section 2" }
about = "a number of the <machine>"
range = [0, 20_000]
"#;

/// A small table, bars and steps; text that HTML would take for its own.
pub static SMALL: LazyLock<Experiment> = LazyLock::new(|| made_up("made-up-small", SMALL_SHEET, |_| 2, small));

/// A grid of 6 by 13 in points, lines and a logarithmic axis.
pub static GRID: LazyLock<Experiment> = LazyLock::new(|| made_up("made-up-grid", GRID_SHEET, |_| 1, grid));

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

fn series(name: &str, source: Source, points: &[(f64, f64)]) -> Series {
    Series { name: name.to_owned(), source, points: points.to_vec() }
}

fn small(run: &Run<'_>) -> Results {
    let faster = 3600.0 / run.get("disk.rpm");
    run.step();
    let ends = [[4.9, 5.0], [1.5, 5.2]];
    let simulated = [[4.87, 5.11], [1.81, 5.3]].map(|row| row.map(|end| end * faster));
    let mut cells: Vec<Vec<Cell>> = ends
        .into_iter()
        .zip(simulated)
        .map(|(row, simulated)| row.into_iter().zip(simulated).map(|(p, s)| Cell::of(p, s)).collect())
        .collect();
    cells[0][0] = cells[0][0].fitted();
    cells[1][0].local = Some(0.02);
    let table = Table {
        name: "ends".into(),
        title: "Table 3: 1 MB written to a magneto-optical disk".into(),
        unit: "s".into(),
        rows_are: "scheduling".into(),
        rows: vec!["without priority".into(), "with priority".into()],
        columns_are: "until".into(),
        columns: vec!["write returns".into(), "I/O ends".into()],
        cells,
        in_points: false,
        digits: 2,
    };
    let points = |row: [f64; 2]| vec![(0.0, row[0]), (1.0, row[1])];
    let bars = Plot {
        name: "ends".into(),
        title: "When write returns, and when the disk has done it all".into(),
        drawing: Drawing::Bars(vec!["write returns".into(), "I/O ends".into()]),
        x: Axis::default(),
        y: Axis::linear("time", "s"),
        series: vec![
            series("without priority", Source::Paper, &points(ends[0])),
            series("without priority", Source::Simulated, &points(simulated[0])),
            series("with priority", Source::Paper, &points(ends[1])),
            series("with priority", Source::Simulated, &points(simulated[1])),
            series("with priority", Source::Local, &[(0.0, 0.3), (1.0, 0.9)]),
        ],
    };
    let queue = |scale: f64| (0..60).map(|i| (f64::from(i) / 10.0, scale * f64::from((i * 7) % 40))).collect();
    let steps = Plot {
        name: "queue".into(),
        title: "Requests that wait".into(),
        drawing: Drawing::Steps,
        x: Axis::linear("time", "s"),
        y: Axis::linear("requests", ""),
        series: vec![
            Series { name: "without priority".into(), source: Source::Simulated, points: queue(1.0) },
            Series { name: "with priority".into(), source: Source::Simulated, points: queue(0.4) },
        ],
    };
    run.step();
    Results {
        tables: vec![table],
        plots: vec![bars, steps],
        findings: vec![
            Finding::new("With priority write returns 2.7 times sooner (paper: 3.3 times)", true),
            Finding::new("No asynchronous request waits longer than its deadline", true),
            Finding::new("The whole takes <b>no</b> longer", false),
        ],
        notes: vec![
            "write returns 20 % later than published: the paper does not say how large the inode table of its \
             disk is, and seeks to it are longer here."
                .into(),
        ],
    }
}

const WAITS: [f64; 6] = [0.0, 10.0, 50.0, 100.0, 500.0, 1000.0];
const PROCESSES: [f64; 13] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 12.0, 14.0, 16.0];

fn grid(run: &Run<'_>) -> Results {
    let gain = |wait: f64, processes: f64| (processes - 1.0).min(12.0 - processes).max(0.0) * (8.0 - wait / 130.0);
    let simulated = |wait: f64, processes: f64| gain(wait, processes) * 1.1 - 2.0 + (processes * 7.0) % 3.0;
    let cells = |wait: &f64| PROCESSES.map(|n| Cell::of(gain(*wait, n), simulated(*wait, n))).to_vec();
    let table = Table {
        name: "scsihd".into(),
        title: "Table 1 (a): scsihd, improvement of symmetric over funnelled access".into(),
        unit: "%".into(),
        rows_are: "wait count".into(),
        rows: WAITS.map(|wait| wait.to_string()).to_vec(),
        columns_are: "processes".into(),
        columns: PROCESSES.map(|processes| processes.to_string()).to_vec(),
        cells: WAITS.iter().map(cells).collect(),
        in_points: true,
        digits: 1,
    };
    let of = |wait: f64, source, from: &dyn Fn(f64, f64) -> f64| {
        series(&format!("wait {wait}"), source, &PROCESSES.map(|processes| (processes, from(wait, processes))))
    };
    let both = |wait: f64| [of(wait, Source::Paper, &gain), of(wait, Source::Simulated, &simulated)];
    let lines = Plot {
        name: "scsihd".into(),
        title: "Improvement of symmetric over funnelled access".into(),
        drawing: Drawing::Lines,
        x: Axis::linear("processes", ""),
        y: Axis::linear("improvement", "%"),
        series: [0.0, 100.0, 500.0].into_iter().flat_map(both).collect(),
    };
    let powers: Vec<f64> = (0..11).map(|power| f64::from(1 << power)).collect();
    let beyond = |scale: f64| powers.iter().map(|n| (*n, scale * n / (1.0 + n / 40.0))).collect::<Vec<_>>();
    let processors = Plot {
        name: "processors".into(),
        title: "Beyond the paper: up to 1,024 processors".into(),
        drawing: Drawing::Lines,
        x: Axis::logarithmic("processors", ""),
        y: Axis::logarithmic("reads", "1/s"),
        series: vec![
            series("symmetric", Source::Simulated, &beyond(700.0)),
            series("funnelled", Source::Simulated, &beyond(90.0)),
        ],
    };
    run.step();
    Results {
        tables: vec![table],
        plots: vec![lines, processors],
        findings: vec![Finding::new("Symmetric access is worth up to 45 % with as many processes as processors", true)],
        notes: Vec::new(),
    }
}
