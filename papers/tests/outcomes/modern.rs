//! What every experiment owes its reader on a machine of 2026, where nothing published is there to compare with.

use std::sync::OnceLock;

use papers::{Outcome, Setting, Source, simulated};

use super::outcomes;

pub fn all() -> &'static [Outcome] {
    static ALL: OnceLock<Vec<Outcome>> = OnceLock::new();
    // Enough to see that it runs; the tables of the multiprocessor and of shared memory take long otherwise.
    let few = [("run.reads", 200.0), ("run.runs", 1.0), ("share.nodes", 256.0)];
    ALL.get_or_init(|| outcomes(Setting::Modern, &few))
}

#[test]
fn every_experiment_has_such_a_machine_or_says_why_not() {
    let without: Vec<_> = simulated().filter(|experiment| experiment.sheet().modern.is_empty()).collect();
    assert_eq!(without.iter().map(|experiment| experiment.name()).collect::<Vec<_>>(), ["ws-2", "oltp"]);
    for experiment in without {
        assert!(experiment.sheet().notes.paper.iter().any(|note| note.contains("no machine of 2026")));
    }
}

#[test]
fn every_number_is_simulated_and_finite() {
    for Outcome { order, results, .. } in all() {
        for table in &results.tables {
            let whole = table.cells.len() == table.rows.len();
            assert!(whole && table.cells.iter().all(|row| row.len() == table.columns.len()), "{}", table.name);
            let finite = table.cells.iter().flatten().all(|cell| cell.simulated.is_some_and(f64::is_finite));
            assert!(finite, "{}, {}: {:?}", order.name(), table.name, table.cells);
        }
        for plot in &results.plots {
            let points = || plot.series.iter().flat_map(|series| &series.points);
            assert!(points().next().is_some(), "{}, {}: nothing is drawn", order.name(), plot.name);
            assert!(points().all(|(x, y)| x.is_finite() && y.is_finite()), "{}, {}", order.name(), plot.name);
        }
    }
}

#[test]
fn nothing_published_is_shown_and_nothing_is_marked_as_fitted() {
    for Outcome { order, results, .. } in all() {
        let cells = || results.tables.iter().flat_map(|table| table.cells.iter().flatten());
        assert!(cells().all(|cell| cell.paper.is_none() && !cell.fitted), "{}", order.name());
        let mut series = results.plots.iter().flat_map(|plot| &plot.series);
        assert!(series.all(|series| series.source != Source::Paper), "{}", order.name());
        let titles = results.tables.iter().map(|table| &table.title);
        for text in titles.chain(results.findings.iter().map(|finding| &finding.text)) {
            for mark in ["(paper: ", "(the paper", "(the blog"] {
                assert!(!text.contains(mark), "{}: {text}", order.name());
            }
        }
    }
}

#[test]
fn the_first_finding_says_in_numbers_what_the_technique_is_worth() {
    for Outcome { order, results, .. } in all() {
        let first = results.findings.first().unwrap_or_else(|| panic!("{} finds nothing", order.name()));
        assert!(first.text.chars().filter(char::is_ascii_digit).count() >= 2, "{}: {}", order.name(), first.text);
        assert!(first.holds, "{}: {}", order.name(), first.text);
    }
}
