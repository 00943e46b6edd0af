//! The tables 2 and 3 of the workstation paper on other machines: findings that hold, parameters at their ends.

use super::{assert_findings, named, simulate};

#[test]
fn on_a_device_of_2026_what_the_techniques_promise_holds() {
    for name in ["ws-table2", "ws-table3"] {
        assert_findings(&simulate(name, named(name).modern(), 1));
    }
}

#[test]
fn the_same_seed_gives_the_same_and_a_changed_parameter_does_not() {
    for name in ["ws-table2", "ws-table3"] {
        assert_eq!(simulate(name, &[], 1), simulate(name, &[], 1));
        assert_ne!(simulate(name, &[], 1).tables[0], simulate(name, &[("disk.rpm", 5400.0)], 1).tables[0]);
    }
}

#[test]
fn every_parameter_may_be_at_either_end_of_its_range() {
    for name in ["ws-table2", "ws-table3"] {
        let parameters = named(name).parameters();
        for (parameter, _) in parameters.iter() {
            for value in [*parameter.range.start(), *parameter.range.end()] {
                // Less of both than by default: this is about panics, not about figures.
                let less = [("file.size", 1024.0), ("starve.time", 1.0)];
                let less = less.into_iter().filter(|(name, _)| parameters.iter().any(|(known, _)| known.name == *name));
                let changes: Vec<(&str, f64)> = less.chain([(parameter.name, value)]).collect();
                let results = simulate(name, &changes, 1);
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
