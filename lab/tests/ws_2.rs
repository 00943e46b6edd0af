//! WS-2: what the paper says of the dynamic buffer cache holds on the simulated machines.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use lab::{Cell, Experiment, Parameters, Results, Run, named};

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
