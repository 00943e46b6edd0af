//! What the workstation paper's tables 4 and 5 must come to.

use std::sync::atomic::AtomicU64;

use lab::{Cell, Results, Run};

fn run(name: &str, settings: &[(&str, f64)], seed: u64) -> Results {
    let experiment = lab::named(name).expect("known");
    let mut parameters = experiment.parameters();
    for (name, value) in settings {
        parameters.set(name, *value).expect("in range");
    }
    let done = AtomicU64::new(0);
    let results = experiment.simulate(&Run { parameters: &parameters, seed, done: &done });
    assert_eq!(done.into_inner(), experiment.steps(&parameters));
    results
}

fn cells(results: &Results) -> [Cell; 2] {
    let table = results.tables.iter().find(|table| table.name == "throughput").expect("the paper's");
    [table.cells[0][0], table.cells[1][0]]
}

fn assert_near_the_paper(results: &Results) {
    let [less, more] = cells(results);
    for cell in [less, more] {
        assert!(cell.difference_percent().expect("both").abs() < 15.0, "{cell:?}");
    }
    let gain = results.tables.iter().find(|table| table.name == "gain").expect("there").cells[0][0];
    assert!(gain.difference_percent().expect("both").abs() < 15.0, "{gain:?}");
    for finding in &results.findings {
        assert!(finding.holds, "{}", finding.text);
    }
}

#[test]
fn writes_with_and_without_the_rendezvous_are_within_15_percent_of_table_4_wherever_the_files_lie() {
    for seed in 2..4 {
        assert_near_the_paper(&run("ws-table4", &[], seed));
    }
}

#[test]
fn a_write_needs_three_disk_accesses_or_less_than_one() {
    let results = run("ws-table4", &[], 1);
    let table = results.tables.iter().find(|table| table.name == "accesses").expect("there");
    let accesses = |row: usize| table.cells[row][0].simulated.expect("is there");
    assert!((accesses(0) - 3.0).abs() < 0.05 && accesses(1) < 1.0);
}

#[test]
fn reads_ahead_are_within_15_percent_of_table_5_wherever_the_files_lie() {
    for seed in 2..4 {
        assert_near_the_paper(&run("ws-table5", &[], seed));
    }
}

#[test]
fn the_same_seed_gives_the_same_results_to_the_last_bit() {
    for name in ["ws-table4", "ws-table5"] {
        let settings = [("file.size", 0.5), ("file.count", 2.0)];
        assert_eq!(run(name, &settings, 7), run(name, &settings, 7));
    }
}

#[test]
fn on_a_machine_of_2026_the_techniques_still_gain() {
    for name in ["ws-table4", "ws-table5"] {
        let experiment = lab::named(name).expect("known");
        let results = run(name, experiment.modern(), 1);
        let [less, more] = cells(&results);
        assert!(more.simulated > less.simulated.map(|less| 1.2 * less), "{name}: {less:?} {more:?}");
    }
}

#[test]
fn a_slower_ethernet_or_disk_makes_it_slower() {
    let small = [("file.size", 0.5), ("file.count", 2.0)];
    let with = |setting| cells(&run("ws-table4", &[small[0], small[1], setting], 1))[1].simulated;
    let usual = with(small[0]);
    assert!(with(("ethernet.rate", 2.0)) < usual);
    assert!(with(("disk.rpm", 1800.0)) < usual);
}
