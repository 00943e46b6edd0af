//! What single experiments promise beyond their tables: other seeds, other machines, parameters at their ends.

mod mp_table1;
mod mp_table2;
mod ws_2;
mod ws_nfs;
mod ws_tables;

use std::sync::atomic::AtomicU64;

use lab::{Experiment, Results, Run, Table};

fn named(name: &str) -> &'static dyn Experiment {
    lab::named(name).expect("registered")
}

/// Runs an experiment with some parameters changed. It takes the steps that it announces.
fn simulate(name: &str, changes: &[(&str, f64)], seed: u64) -> Results {
    let (mut parameters, done) = (named(name).parameters(), AtomicU64::new(0));
    for (name, value) in changes {
        parameters.set(name, *value).expect("known and in range");
    }
    let results = named(name).simulate(&Run { parameters: &parameters, seed, done: &done });
    assert_eq!(done.into_inner(), named(name).steps(&parameters), "the progress bar ends where it should");
    results
}

fn assert_findings(results: &Results) {
    let missed: Vec<&str> = results.findings.iter().filter(|f| !f.holds).map(|f| f.text.as_str()).collect();
    assert!(missed.is_empty(), "{missed:#?}");
}

fn table<'a>(results: &'a Results, name: &str) -> &'a Table {
    results.tables.iter().find(|table| table.name == name).expect("a table of that name")
}
