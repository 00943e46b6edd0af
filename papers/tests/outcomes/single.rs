//! What single experiments promise beyond their tables: other seeds, other machines, parameters at their ends.

use std::sync::atomic::AtomicU64;

use papers::{Cell, DEFAULT_SEED, Experiment, Results, Run, Table};

use super::{modern, of, usual};

type Changes = [(&'static str, f64)];

fn named(name: &str) -> &'static Experiment {
    papers::named(name).expect("registered")
}

/// Runs an experiment with some parameters changed. It takes the steps that it announces.
fn simulate(name: &str, changes: &[(&str, f64)], seed: u64) -> Results {
    let (experiment, done) = (named(name), AtomicU64::new(0));
    let mut parameters = experiment.parameters();
    for (name, value) in changes {
        parameters.set(name, *value).expect("known and in range");
    }
    let results = experiment.simulate(&Run { experiment, parameters: &parameters, seed, done: &done, is_brief: false });
    assert_eq!(done.into_inner(), experiment.steps(&parameters), "the progress bar ends where it should");
    results
}

/// All findings hold but those that are recorded as refuted.
fn assert_findings(name: &str, results: &Results) {
    let refuted = named(name).sheet().target.as_ref().map_or(&[][..], |target| &target.refuted);
    let is_recorded = |text: &str| refuted.iter().any(|begins| text.starts_with(begins.as_str()));
    let missed = results.findings.iter().filter(|f| !f.holds && !is_recorded(&f.text)).map(|f| f.text.as_str());
    let missed: Vec<&str> = missed.collect();
    assert!(missed.is_empty(), "{name}: {missed:#?}");
}

fn table<'a>(results: &'a Results, name: &str) -> &'a Table {
    results.tables.iter().find(|table| table.name == name).expect("a table of that name")
}

fn cells(results: &Results) -> impl Iterator<Item = &Cell> {
    results.tables.iter().flat_map(|table| table.cells.iter().flatten())
}

/// The first cells of the first two rows of a table.
fn two(results: &Results, name: &str) -> [f64; 2] {
    [0, 1].map(|row| table(results, name).cells[row][0].simulated.expect("simulated"))
}

#[test]
fn the_same_seed_gives_the_same_results_to_the_last_bit() {
    let all: [(&str, &Changes); 10] = [
        ("ws-2", &[]),
        ("ws-table2", &[]),
        ("ws-table3", &[]),
        ("ws-table4", &[("file.size", 0.5), ("file.count", 2.0)]),
        ("ws-table5", &[("file.size", 0.5), ("file.count", 2.0)]),
        ("ws-7", &[]),
        ("mp-table2", &[("run.reads", 100.0), ("run.runs", 1.0)]),
        ("oltp", &[("transactions", 600.0)]),
        ("dsm", &[("share.nodes", 256.0)]),
        ("uio", &[("rounds", 2.0)]),
    ];
    for (name, few) in all {
        let first = if few.is_empty() { usual(name) } else { &simulate(name, few, DEFAULT_SEED) };
        assert_eq!(*first, simulate(name, few, DEFAULT_SEED), "{name}");
    }
}

#[test]
fn another_seed_finds_the_same_though_not_the_same_numbers() {
    let all: [(&str, &Changes); 5] = [
        ("ws-table6", &[]),
        ("ws-7", &[]),
        ("mp-table1", &[]),
        ("oltp", &[("transactions", 600.0)]),
        ("dsm", &[("share.nodes", 256.0)]),
    ];
    for (name, few) in all {
        let other = simulate(name, few, 2);
        let first = if few.is_empty() { usual(name) } else { &simulate(name, few, DEFAULT_SEED) };
        assert_ne!(other.tables, first.tables, "{name}");
        assert_findings(name, &other);
        for table in other.tables.iter().take(3).filter(|_| name == "mp-table1") {
            let explained = table.agreement().and_then(|agreement| agreement.explained);
            assert!(explained.expect("published") > 0.9, "{}", table.name);
        }
    }
    assert_findings("ws-7", &simulate("ws-7", &[], 3));
}

#[test]
fn what_the_techniques_promise_holds_on_a_machine_of_2026_too() {
    let modern = |name| of(modern::all(), name);
    for name in ["ws-table2", "ws-table3", "uio"] {
        assert_findings(name, modern(name));
    }
    for name in ["ws-table4", "ws-table5"] {
        let [less, more] = two(modern(name), "throughput");
        assert!(more > 1.2 * less, "{name}: {less:?} {more:?}");
    }
    let [mapped, unmapped] = two(modern("uio"), "rates");
    assert!(unmapped > mapped * 10.0, "{mapped} {unmapped}");
}

#[test]
fn tables_4_and_5_differ_little_by_where_the_files_lie() {
    for name in ["ws-table4", "ws-table5"] {
        let others = (2..=3).map(|seed| two(&simulate(name, &[], seed), "throughput"));
        let all: Vec<[f64; 2]> = others.chain([two(usual(name), "throughput")]).collect();
        for row in 0..2 {
            let numbers = || all.iter().map(|pair| pair[row]);
            let (least, most) = (numbers().fold(f64::MAX, f64::min), numbers().fold(0.0, f64::max));
            assert!(most < 1.1 * least, "{name}: {all:?}");
        }
    }
}

#[test]
fn a_slower_ethernet_or_disk_makes_it_slower() {
    let with = |name, value| {
        two(&simulate("ws-table4", &[("file.size", 0.5), ("file.count", 2.0), (name, value)], 1), "throughput")[1]
    };
    let usual = with("file.size", 0.5);
    assert!(with("ethernet.rate", 2.0) < usual && with("disk.rpm", 1800.0) < usual);
}

#[test]
fn more_processors_gain_more_until_the_bus_is_full() {
    let results = usual("mp-table1");
    let without_wait: Vec<f64> = table(results, "scaled").cells.iter().filter_map(|row| row[0].simulated).collect();
    assert_eq!(without_wait.len(), 10);
    assert!(without_wait[..3].is_sorted(), "{without_wait:?}");
    assert!(without_wait[4..].iter().all(|gain| (300.0..900.0).contains(gain)), "{without_wait:?}");
}

#[test]
fn locks_and_completions_are_told_of_devices_that_have_them() {
    let rows = &table(usual("mp-table1"), "completions").rows;
    assert!(rows.len() == 6 && rows.iter().all(|row| !row.starts_with("ramdisk")), "{rows:?}");
    assert!(table(usual("mp-table1"), "caches").rows.iter().any(|row| row.starts_with("ramdisk")));
}

#[test]
fn what_nobody_published_decides_nothing_on_40_processors() {
    for change in [("cpu.io", 5.0), ("cpu.io", 20.0), ("ipi.deliver", 200.0), ("ipi.deliver", 1000.0)] {
        let [mapped, unmapped] = two(&simulate("uio", &[change], 1), "rates");
        assert!((mapped / 300.0 - 1.0).abs() < 0.2, "{change:?}: {mapped}");
        assert!((unmapped / 1000.0 - 1.0).abs() < 0.2, "{change:?}: {unmapped}");
    }
}

#[test]
fn nothing_of_the_dynamic_cache_is_marked_as_published_and_all_tables_are_complete() {
    let results = usual("ws-2");
    for table in &results.tables {
        assert_eq!(table.cells.len(), table.rows.len(), "{}", table.name);
        assert!(table.cells.iter().all(|row| row.len() == table.columns.len()), "{}", table.name);
    }
    assert!(
        cells(results)
            .all(|cell| { cell.paper.is_none() && !cell.fitted && cell.simulated.is_some_and(f64::is_finite) })
    );
    assert_eq!(results.plots.len(), 7);
    assert!(results.plots.iter().all(|plot| plot.series.iter().all(|series| !series.points.is_empty())));
}

#[test]
fn a_slow_disk_is_told_to_take_no_more_than_it_can() {
    // A buffer of 8 KB takes a second.
    let results = simulate("ws-2", &[("slow.write", 1000.0)], 1);
    let rates: Vec<f64> = table(&results, "slow").cells.iter().filter_map(|row| row[5].simulated).collect();
    assert_eq!(rates[0], 0.0, "nothing is written");
    // One request is counted when it begins.
    assert!(rates[1..].iter().all(|rate| (7.0..8.2).contains(rate)), "KB/s: {rates:?}");
}

#[test]
fn strange_machines_are_simulated_and_end() {
    for changes in [
        &[("memory.size", 4.0), ("buffer.size", 65_536.0)] as &Changes,
        &[("memory.resident", 50.0), ("cache.reserve", 50.0), ("giving.demand", 93.0), ("memory.size", 8.0)],
        &[("cache.fixed", 90.0), ("memory.size", 8.0)],
        &[("disk.rate", 0.1), ("disk.rpm", 20_000.0), ("memory.size", 4.0), ("storm.time", 40.0)],
    ] {
        assert!(cells(&simulate("ws-2", changes, 1)).all(|cell| cell.simulated.is_some()), "{changes:?}");
    }
}

#[test]
fn every_parameter_may_be_at_either_end_of_its_range_and_a_changed_one_is_seen() {
    for name in ["ws-table2", "ws-table3"] {
        assert_ne!(usual(name).tables[0], simulate(name, &[("disk.rpm", 5400.0)], 1).tables[0]);
        let parameters = named(name).parameters();
        for (parameter, _) in parameters.iter() {
            for value in [*parameter.range.start(), *parameter.range.end()] {
                // Less of both than by default: this is about panics, not about figures.
                let less = [("file.size", 1024.0), ("starve.time", 1.0)];
                let less = less.into_iter().filter(|(name, _)| parameters.iter().any(|(known, _)| known.name == *name));
                let changes: Vec<(&str, f64)> = less.chain([(parameter.name, value)]).collect();
                let results = simulate(name, &changes, 1);
                let is_finite = cells(&results).all(|cell| cell.simulated.is_some_and(f64::is_finite));
                assert!(is_finite, "{name} {} {value}", parameter.name);
            }
        }
    }
}
