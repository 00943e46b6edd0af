//! The tables 2 and 3 of the workstation paper on other machines: findings that hold, parameters at their ends.

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

fn assert_findings(results: &Results) {
    for finding in &results.findings {
        assert!(finding.holds, "{}", finding.text);
    }
}

#[test]
fn on_a_device_of_2026_what_the_techniques_promise_holds() {
    for name in ["ws-table2", "ws-table3"] {
        assert_findings(&results(name, named(name).expect("registered").modern()));
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
