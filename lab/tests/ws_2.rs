//! WS-2: what the paper says of the dynamic buffer cache holds on the simulated machines, and stays as it was recorded.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use lab::{Cell, Experiment, Parameters, Results, Run, Table, named};

fn experiment() -> &'static dyn Experiment {
    named("ws-2").expect("registered")
}

fn simulate(parameters: &Parameters) -> (Results, u64) {
    let done = AtomicU64::new(0);
    let results = experiment().simulate(&Run { parameters, seed: 1, done: &done });
    (results, done.into_inner())
}

/// Results and steps of a run as the paper's machine is.
fn usual() -> &'static (Results, u64) {
    static USUAL: OnceLock<(Results, u64)> = OnceLock::new();
    USUAL.get_or_init(|| simulate(&experiment().parameters()))
}

fn modern() -> Parameters {
    let mut parameters = experiment().parameters();
    for (name, value) in experiment().modern() {
        parameters.set(name, *value).expect("in range");
    }
    parameters
}

fn assert_findings(results: &Results) {
    let missed: Vec<&str> = results.findings.iter().filter(|f| !f.holds).map(|f| f.text.as_str()).collect();
    assert!(missed.is_empty(), "{missed:#?}");
}

fn table<'a>(results: &'a Results, name: &str) -> &'a Table {
    results.tables.iter().find(|table| table.name == name).expect("the table is there")
}

fn row(results: &Results, name: &str, row: &str) -> Vec<f64> {
    let table = table(results, name);
    let index = table.rows.iter().position(|name| name == row).expect("the row is there");
    table.cells[index].iter().map(|cell| cell.simulated.expect("simulated")).collect()
}

#[test]
fn what_the_paper_says_holds_on_its_machine_in_as_many_steps_as_announced() {
    let (results, steps) = usual();
    assert_findings(results);
    assert_eq!(*steps, experiment().steps(&experiment().parameters()));
}

#[test]
fn it_holds_on_a_machine_of_2026_too() {
    let parameters = modern();
    let (results, steps) = simulate(&parameters);
    assert_findings(&results);
    assert_eq!(steps, experiment().steps(&parameters));
    assert!(results.notes.iter().any(|note| note.contains("A buffer stands for")));
}

#[test]
fn the_same_seed_gives_the_same_results_to_the_last_bit() {
    assert_eq!(simulate(&experiment().parameters()).0, usual().0);
}

#[test]
fn nothing_is_said_to_be_published_and_all_tables_are_whole() {
    let (results, _) = usual();
    for table in &results.tables {
        assert_eq!(table.cells.len(), table.rows.len(), "{}", table.name);
        assert!(table.cells.iter().all(|row| row.len() == table.columns.len()), "{}", table.name);
        let is_predicted =
            |cell: &Cell| cell.paper.is_none() && !cell.fitted && cell.simulated.is_some_and(f64::is_finite);
        assert!(table.cells.iter().flatten().all(is_predicted), "{}", table.name);
    }
    assert_eq!(results.plots.len(), 6);
    assert!(results.plots.iter().all(|plot| plot.series.iter().all(|series| !series.points.is_empty())));
}

/// What was recorded when the experiment was written; within 2 %, so that a change of no consequence may pass.
#[test]
fn the_results_are_those_that_were_recorded() {
    let (results, _) = usual();
    let recorded: [(&str, &str, &[f64]); 8] = [
        ("reading", "50", &[46.58, 46.58, 1.883, 1.883, 1.883]),
        ("reading", "100", &[93.15, 93.15, 93.15, 85.62, 24.91]),
        ("generations", "1993, R4000", &[149.6, 149.6, 2.55, 58.74]),
        ("scan", "dynamic, S3-FIFO (Awase)", &[99.52, 0.61, 1.84]),
        ("write-returns", "fixed, asynchronous (4.3BSD)", &[0.0294, 0.0589, 0.1178, 0.2355, 2.33, 13.97, 37.26]),
        ("storm-latency", "dynamic, sync every 30 s", &[3095.5, 13_652.3, 24_449.1, 25_738.6]),
        ("storm-latency", "dynamic, steady, readers first (Awase)", &[35.6, 49.1, 66.4, 77.9]),
        ("giving", "dynamic, half of memory just written", &[9.1, 1192.0, 20.0, 13_444.0, 0.0]),
    ];
    for (name, of, values) in recorded {
        let now = row(results, name, of);
        let is_near = |(now, then): (&f64, &f64)| (now - then).abs() <= 0.02 * then.abs() + 1e-9;
        assert!(now.len() == values.len() && now.iter().zip(values).all(is_near), "{name}, {of}: {now:?}");
    }
}

#[test]
fn strange_machines_are_simulated_and_end() {
    for changes in [
        &[("memory.size", 4.0), ("buffer.size", 65_536.0)] as &[(&str, f64)],
        &[("memory.resident", 50.0), ("cache.reserve", 50.0), ("giving.demand", 93.0), ("memory.size", 8.0)],
        &[("cache.fixed", 90.0), ("memory.size", 8.0)],
        &[("disk.rate", 0.1), ("disk.rpm", 20_000.0), ("memory.size", 4.0), ("storm.time", 40.0)],
    ] {
        let mut parameters = experiment().parameters();
        for (name, value) in changes {
            parameters.set(name, *value).expect("in range");
        }
        let (results, _) = simulate(&parameters);
        assert!(
            results.tables.iter().flat_map(|table| table.cells.iter().flatten()).all(|cell| cell.simulated.is_some())
        );
    }
}
