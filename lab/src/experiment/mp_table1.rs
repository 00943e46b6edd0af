//! MP table 1 (a), (b), (c) and figure 4: the gain of a device driver that any processor may enter.

use policy::access::Mode;

use super::Run;
use super::top1::{self, Setup};
use crate::result::{Finding, Results, Series, Table};

const WAITS: [u32; 6] = [0, 10, 20, 50, 100, 200];
/// Numbers of processors beyond the paper's, each with as many processes.
const SCALED: [u16; 10] = [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
const SCALED_WAITS: [u32; 4] = [0, 10, 50, 200];

const DEVICES: [&str; 3] = ["scsihd", "testdev", "ramdisk"];

pub(super) const STEPS: u64 =
    (DEVICES.len() * WAITS.len() * top1::PROCESSES.len() + SCALED.len() * SCALED_WAITS.len()) as u64;

pub(super) fn simulate(run: &Run<'_>) -> Results {
    let setups = top1::setup(run.parameters);
    let tables: Vec<Table> = DEVICES.iter().zip(&setups).map(|(name, setup)| table(run, name, setup)).collect();
    let mut results = Results { findings: vec![headline(run, &tables)], ..Results::default() };
    if run.compares() {
        results.findings.extend(findings(&tables));
        let explained = tables.iter().filter_map(|table| Some(format!("{}: {}", table.name, explained(table)?)));
        results.notes = explained.chain(run.notes(&[])).collect();
    }
    let figure =
        |table: &Table| run.plot(&format!("figure4-{}", table.name), table.lines(|wait| format!("wait {wait}")));
    results.plots.extend(tables.iter().map(figure));
    results.tables = tables;
    let scaled = scaled(run, &setups[2]);
    results.plots.push(run.plot("scaled", by_processors(&scaled)));
    results.tables.push(scaled);
    results
}

/// What a note says of it.
pub(super) fn explained(table: &Table) -> Option<String> {
    let part = table.variance_explained()? * 100.0;
    Some(format!("{part:.1} % of the variance of the published cells is explained"))
}

fn table(run: &Run<'_>, name: &str, setup: &Setup) -> Table {
    let counts = top1::process_counts(setup.processors);
    let row = |count: u32| {
        let setup = Setup { wait: top1::wait(run.parameters, count), ..*setup };
        counts.iter().map(move |processes| gain(run, &Setup { processes: *processes, ..setup }))
    };
    run.table(name, WAITS.map(row)).of_rows(WAITS).of_columns(&counts)
}

/// How much faster processes get through without the funnel, in percent: the median of some runs.
fn gain(run: &Run<'_>, setup: &Setup) -> f64 {
    // Runs of few processes depend on how they began: they stay in step with clock and disk.
    let runs = run.get("run.runs") as u64 * if setup.processes <= 4 { 5 } else { 1 };
    let gain = |number: u64| {
        let seed = run.seed.wrapping_mul(1000) + number;
        let [funnel, symmetric] =
            [Mode::Funnel, Mode::Symmetric].map(|access| top1::loop_ms(&Setup { access, ..*setup }, seed, 1));
        (funnel / symmetric - 1.0) * 100.0
    };
    let mut gains: Vec<f64> = (0..runs.max(1)).map(gain).collect();
    run.step();
    gains.sort_by(f64::total_cmp);
    gains[gains.len() / 2]
}

/// The ramdisk of machines of other sizes, each with as many processes as processors.
fn scaled(run: &Run<'_>, setup: &Setup) -> Table {
    let row = |processors: u16| {
        let processes = u32::from(processors);
        let start_every = setup.start_every.min(setup.start_every * 10 / processes);
        let setup = Setup { processors, processes, start_every, ..*setup };
        SCALED_WAITS.map(|count| gain(run, &Setup { wait: top1::wait(run.parameters, count), ..setup }))
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

/// The technique's worth: the largest gains of the three devices, over the published cells or, without any, all.
fn headline(run: &Run<'_>, tables: &[Table]) -> Finding {
    let largest = |table: &Table| {
        let cells = || table.cells.iter().flatten();
        let counted = cells().filter(|cell| !run.compares() || cell.paper.is_some());
        let simulated = counted.filter_map(|cell| cell.simulated).fold(0.0, f64::max);
        let paper = cells().filter_map(|cell| cell.paper).fold(0.0, f64::max);
        (simulated, move |text: fn(f64) -> String| run.in_the_paper(|| text(paper)))
    };
    let [(disk, disk_paper), (fixed, fixed_paper), (memory, memory_paper)] = [0, 1, 2].map(|of| largest(&tables[of]));
    let times = |gain: f64| format!("{:.1}", 1.0 + gain / 100.0);
    let percent: fn(f64) -> String = |gain| format!("{gain:.0} %");
    Finding::new(
        format!(
            "Where any processor may start the device, ramdisk serves up to {} times as many reads{}, scsihd up to {} \
             more{}, testdev up to {} more{}",
            times(memory),
            memory_paper(times),
            percent(disk),
            disk_paper(percent),
            percent(fixed),
            fixed_paper(percent),
        ),
        memory > 100.0,
    )
}

fn findings(tables: &[Table]) -> Vec<Finding> {
    let gain = |table: usize, row: usize, column: usize| tables[table].cells[row][column].simulated.unwrap_or(f64::NAN);
    let is_published = |table: usize, row: usize, column: usize| tables[table].cells[row][column].paper.is_some();
    // Published cells of these tables, rows and columns.
    let all = |tables: &[usize], rows: std::ops::Range<usize>, columns: std::ops::Range<usize>, most: f64| {
        tables.iter().all(|&table| {
            let cells = rows.clone().flat_map(|row| columns.clone().map(move |column| (row, column)));
            let mut published = cells.filter(|&(row, column)| is_published(table, row, column));
            published.all(|(row, column)| gain(table, row, column).abs() <= most)
        })
    };
    let largest = WAITS.iter().enumerate().flat_map(|(row, _)| (1..9).map(move |column| (row, column)));
    let published = largest.filter(|&(row, column)| is_published(0, row, column));
    let largest = published.map(|(row, column)| gain(0, row, column)).fold(0.0, f64::max);
    vec![
        Finding::new("A process alone gains little: at most 10 %", all(&[0, 1, 2], 0..6, 0..1, 10.0)),
        Finding::new(
            "With more processes than processors little is gained on scsihd and testdev: at most 4 % with ten, 1 % with more",
            all(&[0, 1], 0..6, 9..10, 4.0) && all(&[0, 1], 0..6, 10..13, 1.0),
        ),
        Finding::new("The same on ramdisk, where the funnel is not saturated", all(&[2], 3..6, 9..13, 3.0)),
        Finding::new(
            "Nothing is gained where testdev is saturated",
            all(&[1], 0..1, 0..13, 1.0) && all(&[1], 1..2, 2..13, 1.0),
        ),
        Finding::new(
            "On ramdisk the funnel itself saturates: without wait, nine processes gain more than fivefold",
            gain(2, 0, 8) > 400.0,
        ),
        Finding::new("scsihd gains up to about 25 %: whole rotations", (20.0..30.0).contains(&largest)),
        Finding::new(
            "scsihd gains hardly anything with wait 50, though it does with 20 and with 100",
            all(&[0], 3..4, 0..6, 2.0) && gain(0, 2, 2) > 15.0 && gain(0, 4, 2) > 5.0,
        ),
    ]
}
