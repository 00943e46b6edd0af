//! The tables of the workstation paper: cells and ratios near the published ones, and findings that hold.

use std::sync::atomic::AtomicU64;

use lab::{Results, Run, named};

/// Runs an experiment as it is, or changed.
fn results(name: &str, changes: &[(&str, f64)]) -> Results {
    let experiment = named(name).expect("registered");
    let mut parameters = experiment.parameters();
    for (name, value) in changes {
        parameters.set(name, *value).expect("known and in range");
    }
    let done = AtomicU64::new(0);
    let results = experiment.simulate(&Run { parameters: &parameters, seed: 1, done: &done });
    assert_eq!(done.into_inner(), experiment.steps(&parameters), "the progress bar ends where it should");
    results
}

/// Every published cell within `percent`, and every ratio of the second row to the first within `percent`.
fn assert_near(results: &Results, percent: f64) {
    let table = &results.tables[0];
    for (row, cells) in table.cells.iter().enumerate() {
        for (cell, column) in cells.iter().zip(&table.columns) {
            let Some(difference) = cell.difference_percent() else { continue };
            println!("{} {column}: {:?} {:?} {difference:+.1} %", table.rows[row], cell.paper, cell.simulated);
            assert!(difference.abs() <= percent, "{} {column}: {difference} %", table.rows[row]);
        }
    }
    for (column, (first, second)) in table.cells[0].iter().zip(&table.cells[1]).enumerate() {
        let ratio = |paper: bool| {
            let of = |cell: &lab::Cell| if paper { cell.paper } else { cell.simulated }.expect("both");
            of(second) / of(first)
        };
        let difference = (ratio(false) / ratio(true) - 1.0) * 100.0;
        println!("ratio of {}: {:.3} {:.3} {difference:+.1} %", table.columns[column], ratio(true), ratio(false));
        assert!(difference.abs() <= percent, "ratio of {}: {difference} %", table.columns[column]);
    }
}

fn assert_findings(results: &Results) {
    for finding in &results.findings {
        assert!(finding.holds, "{}", finding.text);
    }
}

fn fitted(results: &Results) -> usize {
    results.tables.iter().flat_map(|table| table.cells.iter().flatten()).filter(|cell| cell.fitted).count()
}

#[test]
fn table_2_is_reproduced_within_15_percent_with_one_cell_fitted() {
    let results = results("ws-table2", &[]);
    assert_near(&results, 15.0);
    assert_findings(&results);
    assert_eq!(fitted(&results), 1);
}

#[test]
fn table_3_is_reproduced_within_15_percent_with_one_cell_fitted() {
    let results = results("ws-table3", &[]);
    assert_near(&results, 15.0);
    assert_findings(&results);
    assert_eq!(fitted(&results), 1);
}

#[test]
fn on_a_device_of_2026_nothing_is_compared_with_the_paper() {
    for name in ["ws-table2", "ws-table3"] {
        let results = results(name, named(name).expect("registered").modern());
        assert!(results.tables.iter().flat_map(|table| table.cells.iter().flatten()).all(|cell| cell.paper.is_none()));
        assert_eq!(fitted(&results), 0);
        assert_findings(&results);
    }
}

#[test]
fn the_same_seed_gives_the_same_and_a_changed_parameter_does_not() {
    for name in ["ws-table2", "ws-table3"] {
        assert_eq!(results(name, &[]), results(name, &[]));
        assert_ne!(results(name, &[]).tables[0], results(name, &[("disk.rpm", 5400.0)]).tables[0]);
    }
}

#[test]
fn every_parameter_may_be_at_either_end_of_its_range() {
    for name in ["ws-table2", "ws-table3"] {
        let parameters = named(name).expect("registered").parameters();
        for (parameter, _) in parameters.iter() {
            for value in [*parameter.range.start(), *parameter.range.end()] {
                // Less of both than by default: this is about panics, not about figures.
                let less = [("file.size", 1024.0), ("starve.time", 1.0)];
                let less = less.into_iter().filter(|(name, _)| parameters.iter().any(|(known, _)| known.name == *name));
                let changes: Vec<(&str, f64)> = less.chain([(parameter.name, value)]).collect();
                let results = results(name, &changes);
                let mut cells = results.tables.iter().flat_map(|table| table.cells.iter().flatten());
                assert!(
                    cells.all(|cell| cell.simulated.is_some_and(f64::is_finite)),
                    "{name} {} {value}",
                    parameter.name
                );
            }
        }
    }
}
