//! What the workstation paper's tables 4 and 5 must come to.

use lab::{Cell, Results};

use super::{assert_findings, named, simulate, table};

fn cells(results: &Results) -> [Cell; 2] {
    let table = table(results, "throughput");
    [table.cells[0][0], table.cells[1][0]]
}

fn assert_near_the_paper(results: &Results) {
    let [less, more] = cells(results);
    for cell in [less, more] {
        assert!(cell.difference_percent().expect("both").abs() < 15.0, "{cell:?}");
    }
    let gain = table(results, "gain").cells[0][0];
    assert!(gain.difference_percent().expect("both").abs() < 15.0, "{gain:?}");
    assert_findings(results);
}

#[test]
fn writes_with_and_without_the_rendezvous_are_within_15_percent_of_table_4_wherever_the_files_lie() {
    for seed in 2..4 {
        assert_near_the_paper(&simulate("ws-table4", &[], seed));
    }
}

#[test]
fn a_write_needs_three_disk_accesses_or_less_than_one() {
    let results = simulate("ws-table4", &[], 1);
    let table = table(&results, "accesses");
    let accesses = |row: usize| table.cells[row][0].simulated.expect("is there");
    assert!((accesses(0) - 3.0).abs() < 0.05 && accesses(1) < 1.0);
}

#[test]
fn reads_ahead_are_within_15_percent_of_table_5_wherever_the_files_lie() {
    for seed in 2..4 {
        assert_near_the_paper(&simulate("ws-table5", &[], seed));
    }
}

#[test]
fn the_same_seed_gives_the_same_results_to_the_last_bit() {
    for name in ["ws-table4", "ws-table5"] {
        let settings = [("file.size", 0.5), ("file.count", 2.0)];
        assert_eq!(simulate(name, &settings, 7), simulate(name, &settings, 7));
    }
}

#[test]
fn on_a_machine_of_2026_the_techniques_still_gain() {
    for name in ["ws-table4", "ws-table5"] {
        let results = simulate(name, named(name).modern(), 1);
        let [less, more] = cells(&results);
        assert!(more.simulated > less.simulated.map(|less| 1.2 * less), "{name}: {less:?} {more:?}");
    }
}

#[test]
fn a_slower_ethernet_or_disk_makes_it_slower() {
    let small = [("file.size", 0.5), ("file.count", 2.0)];
    let with = |setting| cells(&simulate("ws-table4", &[small[0], small[1], setting], 1))[1].simulated;
    let usual = with(small[0]);
    assert!(with(("ethernet.rate", 2.0)) < usual);
    assert!(with(("disk.rpm", 1800.0)) < usual);
}
