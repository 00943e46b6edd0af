//! What the second table of the multiprocessor paper promises.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use lab::{Experiment, Parameters, Results, Run, named};

fn experiment() -> &'static dyn Experiment {
    named("mp-table2").expect("it is registered")
}

fn simulate(parameters: &Parameters, seed: u64) -> Results {
    let done = AtomicU64::new(0);
    let results = experiment().simulate(&Run { parameters, seed, done: &done });
    assert_eq!(done.into_inner(), experiment().steps(parameters));
    results
}

fn results() -> &'static Results {
    static RESULTS: OnceLock<Results> = OnceLock::new();
    RESULTS.get_or_init(|| simulate(&experiment().parameters(), 1))
}

#[test]
fn the_six_methods_are_in_the_papers_order_and_what_it_found_holds() {
    for finding in &results().findings {
        assert!(finding.holds, "{}: {:?}", finding.text, results().tables[0].cells);
    }
}

#[test]
fn most_of_the_variance_is_explained_and_no_cell_is_far_off() {
    let table = &results().tables[0];
    let explained = table.variance_explained().expect("published");
    assert!(explained > 0.7, "{explained}");
    for cell in table.cells.iter().flatten() {
        assert!(cell.difference().is_none_or(|points| points.abs() < 1.5), "{cell:?}");
    }
    assert_eq!(table.cells.iter().flatten().filter(|cell| cell.fitted).count(), 1);
}

#[test]
fn the_same_seed_gives_the_same_bits() {
    let mut parameters = experiment().parameters();
    parameters.set("run.reads", 100.0).expect("in range");
    parameters.set("run.runs", 1.0).expect("in range");
    assert_eq!(simulate(&parameters, 7), simulate(&parameters, 7));
}

#[test]
fn a_machine_of_2026_runs_and_is_compared_with_nothing_published() {
    for name in ["mp-table1", "mp-table2"] {
        let experiment = named(name).expect("it is registered");
        let mut parameters = experiment.parameters();
        for (name, value) in experiment.modern() {
            parameters.set(name, *value).expect("in range");
        }
        parameters.set("run.reads", 200.0).expect("in range");
        let done = AtomicU64::new(0);
        let results = experiment.simulate(&Run { parameters: &parameters, seed: 1, done: &done });
        let cells: Vec<_> = results.tables.iter().flat_map(|table| table.cells.iter().flatten()).collect();
        assert!(cells.iter().all(|cell| cell.paper.is_none() && cell.simulated.is_some_and(f64::is_finite)));
    }
}
