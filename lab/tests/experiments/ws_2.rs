//! WS-2: what the paper says of the dynamic buffer cache holds on the simulated machines.

use std::sync::OnceLock;

use lab::{Cell, Results};

use super::{assert_findings, named, simulate};

fn usual() -> &'static Results {
    static USUAL: OnceLock<Results> = OnceLock::new();
    USUAL.get_or_init(|| simulate("ws-2", &[], 1))
}

#[test]
fn what_the_paper_says_holds_on_its_machine() {
    assert_findings(usual());
}

#[test]
fn it_holds_on_a_machine_of_2026_too() {
    let results = simulate("ws-2", named("ws-2").modern(), 1);
    assert_findings(&results);
    assert!(results.notes.iter().any(|note| note.contains("A buffer stands for")));
}

#[test]
fn the_same_seed_gives_the_same_results_to_the_last_bit() {
    assert_eq!(simulate("ws-2", &[], 1), *usual());
}

#[test]
fn nothing_is_marked_as_published_and_all_tables_are_complete() {
    let results = usual();
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
        let results = simulate("ws-2", changes, 1);
        assert!(
            results.tables.iter().flat_map(|table| table.cells.iter().flatten()).all(|cell| cell.simulated.is_some())
        );
    }
}
