//! What the first table of the multiprocessor paper promises.

use std::sync::OnceLock;

use lab::Results;

use super::{assert_findings, simulate, table};

fn results() -> &'static Results {
    static RESULTS: OnceLock<Results> = OnceLock::new();
    RESULTS.get_or_init(|| simulate("mp-table1", &[], 1))
}

#[test]
fn more_processors_gain_more_until_the_bus_is_full() {
    let scaled = table(results(), "scaled");
    let without_wait: Vec<f64> = scaled.cells.iter().filter_map(|row| row[0].simulated).collect();
    assert_eq!(without_wait.len(), 10);
    assert!(without_wait[..3].is_sorted(), "{without_wait:?}");
    assert!(without_wait[4..].iter().all(|gain| (300.0..900.0).contains(gain)), "{without_wait:?}");
}

#[test]
fn another_seed_finds_the_same_though_not_the_same_numbers() {
    let other = simulate("mp-table1", &[], 2);
    assert_ne!(other.tables, results().tables);
    assert_findings(&other);
    for table in &other.tables[..3] {
        assert!(table.variance_explained().expect("published") > 0.9, "{}", table.name);
    }
}
