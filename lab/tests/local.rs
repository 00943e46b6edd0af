//! What the lab measures on this host, as small as it can be: that all numbers come, not what they are.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use lab::local::{Effort, Host, LocalError, LocalRun, Measured, ServerConfig, named};
use papers::{Cell, Results, Source, Table};
use tempfile::TempDir;
use testkit::server::AWASE;

fn host() -> (TempDir, Host) {
    let directory = tempfile::tempdir().expect("temporary directory");
    let host = Host::new(directory.path(), Path::new(&*AWASE));
    (directory, host)
}

/// Measures with all its steps.
fn attempt(host: &Host, experiment: &str) -> Result<Measured, LocalError> {
    let (local, done) = (named(experiment).expect("a measurement"), AtomicU64::new(0));
    let parameters = papers::named(experiment).expect("an experiment").parameters();
    let measured = (local.measure)(&LocalRun { host, effort: Effort::Tiny, parameters: &parameters, done: &done })?;
    assert_eq!(done.load(Ordering::Relaxed), (local.steps)(Effort::Tiny, &parameters), "all steps are done");
    Ok(measured)
}

/// Measures in a directory of its own, and looks that nothing is left in it. `None` where the file system can't bypass
/// the page cache: then that must have been said.
fn measure(experiment: &str) -> Option<Measured> {
    let (directory, host) = host();
    let measured = attempt(&host, experiment);
    assert_eq!(names_in(directory.path()), 0, "scratch has no name, even while it is there");
    match measured {
        Ok(measured) => Some(measured),
        Err(LocalError::NoDirectIo(where_)) => {
            assert_eq!(where_, directory.path());
            testkit::skip::note("the file system of temporary files has no direct I/O");
            None
        }
        Err(error) => panic!("{experiment}: {error}"),
    }
}

fn names_in(directory: &Path) -> usize {
    std::fs::read_dir(directory).expect("read").count()
}

/// All cells are there, measured here and nowhere else, and `right`.
fn check(tables: &[Table], right: impl Fn(f64) -> bool) {
    assert!(!tables.is_empty());
    for table in tables {
        assert_eq!(table.cells.len(), table.rows.len(), "{}", table.name);
        for (row, cells) in table.rows.iter().zip(&table.cells) {
            assert_eq!(cells.len(), table.columns.len(), "{}: {row}", table.name);
            for cell in cells {
                let local = cell.local.unwrap_or_else(|| panic!("{}: {row} has an empty cell", table.name));
                assert!(right(local), "{}: {row}: {local}", table.name);
                assert_eq!(*cell, Cell { local: Some(local), ..Cell::default() }, "nothing but what was measured");
            }
        }
    }
}

#[test]
fn every_table_of_the_workstation_is_measured_with_all_its_cells_and_leaves_no_file() {
    for experiment in ["ws-2", "ws-table2", "ws-table3", "ws-table4", "ws-table5"] {
        let Some(measured) = measure(experiment) else { continue };
        check(&measured.tables, |number| number > 0.0 && number.is_finite());
        assert!(measured.cells.iter().all(|cell| cell.value > 0.0), "{experiment}");
        assert!(!measured.notes.is_empty(), "{experiment}: a note says what was measured");
    }
}

#[test]
fn the_multiprocessor_s_table_has_all_cells_for_its_three_devices() {
    let Some(measured) = measure("mp-table1") else { panic!("it needs no file") };
    let names: Vec<_> = measured.tables.iter().map(|table| table.name.as_str()).collect();
    if names.is_empty() {
        assert!(measured.notes[0].contains("one processor"), "{:?}", measured.notes);
        testkit::skip!("one processor");
    }
    assert_eq!(names, ["here-scsihd", "here-testdev", "here-ramdisk"]);
    // Percent by which one is faster than the other: less than all of its time.
    check(&measured.tables, |percent| percent > -100.0 && percent.is_finite());
}

#[test]
fn a_shared_disk_is_read_at_one_node_through_nbd_and_mapped_beside_nfs_and_the_disk() {
    let (directory, host) = host();
    let measured = match attempt(&host, "dsm") {
        Err(LocalError::NoDirectIo(_)) => testkit::skip!("the file system of temporary files has no direct I/O"),
        measured => measured.expect("measured"),
    };
    drop(host);
    assert_eq!(names_in(directory.path()), 0, "nothing is left");
    check(&measured.tables, |number| number > 0.0 && number.is_finite());
    let of_ganesha = measured.tables[0].rows.iter().filter(|row| row.starts_with("NFS-Ganesha")).count();
    assert!(of_ganesha <= 1, "once, where it is installed");
    let rows: Vec<usize> = measured.tables.iter().map(|table| table.rows.len()).collect();
    assert_eq!((rows, measured.cells.len()), (vec![6 + of_ganesha, 4, 2], 4));
}

#[test]
fn blocks_are_read_through_mapped_buffers_and_without_and_shootdowns_are_reported_where_they_are_counted() {
    let Some(measured) = measure("uio") else { return };
    // None or few shootdowns, or no clock tick of processor time, is a result.
    check(&measured.tables, |number| number >= 0.0 && number.is_finite());
    let are_counted = std::fs::read_to_string("/proc/interrupts").is_ok_and(|text| text.contains("TLB:"));
    let are_reported = measured.tables.iter().any(|table| table.name == "here-shootdowns");
    assert_eq!(are_reported, are_counted);
    assert!(measured.cells.iter().all(|cell| cell.value > 0.0), "{:?}", measured.cells);
}

#[test]
fn every_switch_is_measured_on_a_server_of_its_own_which_is_gone_after_and_leaves_nothing() {
    let (directory, host) = host();
    let measured = attempt(&host, "live").expect("measured");
    drop(host);
    assert_eq!(names_in(directory.path()), 0, "nothing is left");
    let table = |name: &str| measured.tables.iter().find(|table| table.name == name).expect("a table");
    for (switch, _) in lab::local::live::switches() {
        let found = table("worth").rows.iter().any(|row| row.starts_with(switch));
        assert!(found || row_of_several(table("worth"), switch), "{switch}: {:?}", table("worth").rows);
    }
    // Of single requests all is known, of rounds nothing: one is no repetition, and every difference noise or not.
    check(&[table("rates").clone(), table("recording").clone()], |number| number > 0.0 && number.is_finite());
    check(&[table("latencies").clone(), table("costs").clone()], |number| number >= 0.0 && number.is_finite());
    for (row, cells) in table("rates").rows.iter().zip(&table("costs").cells) {
        let entries = cells[1].local.expect("counted");
        assert!(entries > 0.0 || !row.starts_with("quantum"), "{row}: a server that never enters the kernel");
    }
}

/// Is it among switches that are set together?
fn row_of_several(table: &Table, switch: &str) -> bool {
    table.rows.iter().any(|row| row.contains(switch))
}

#[test]
fn a_measurement_that_is_interrupted_ends_with_its_server() {
    let (directory, host) = host();
    host.interrupted().store(true, Ordering::Relaxed);
    for experiment in ["live", "uio"] {
        let error = attempt(&host, experiment).expect_err("nobody wants it");
        assert!(matches!(error, LocalError::Interrupted), "{experiment}: {error}");
    }
    assert_eq!(names_in(directory.path()), 0);
}

#[test]
fn a_server_that_does_not_start_is_reported_with_its_message() {
    let (_directory, host) = host();
    let switches = vec![("prioriti", "off")];
    let config = ServerConfig { processors: 1, memory: 32 << 20, switches, ..ServerConfig::default() };
    let error = host.serve(&config).err().expect("no such switch").to_string();
    assert!(error.contains("did you mean \"priority\"?"), "{error}");
}

#[test]
fn the_six_techniques_are_measured_alone_and_together_with_a_server_and_terminals() {
    let (directory, host) = host();
    let measured = attempt(&host, "oltp").expect("measured");
    drop(host);
    assert_eq!(names_in(directory.path()), 0, "nothing is left");
    check(&measured.tables, |rate| rate > 0.0 && rate.is_finite());
    for (plot, name) in measured.plots.iter().zip(["here-alone", "here-cumulative"]) {
        let of_mixes: Vec<_> = plot.series.iter().filter(|series| series.source == Source::Local).collect();
        let is_full =
            of_mixes.iter().all(|series| series.points.iter().map(|(group, _)| *group).eq((0..7).map(f64::from)));
        assert!(plot.name == name && of_mixes.len() == 2 && is_full, "{plot:?}");
    }
    assert_eq!(measured.plots.len(), 2);
    let published = |name: &str| papers::named("oltp").expect("the experiment").sheet().form(name);
    let tables = ["techniques", "rates", "gains"].map(|name| {
        let mut table = published(name);
        table.cells = vec![vec![Cell::default(); table.columns.len()]; table.rows.len()];
        table
    });
    let mut results = Results { tables: tables.to_vec(), ..Results::default() };
    assert!(measured.merge_into(&mut results).is_empty(), "all have their place");
    let cells = results.tables[..3].iter().flat_map(|table| table.cells.iter().flatten());
    assert!(cells.into_iter().all(|cell| cell.local.is_some()), "each cell is measured");
}

#[test]
fn numbers_from_here_stand_beside_the_published_ones() {
    let Some(measured) = measure("ws-table4") else { return };
    let published = Table {
        name: "throughput".to_owned(),
        rows: vec!["without rendezvous".to_owned(), "with rendezvous".to_owned()],
        columns: vec!["write".to_owned()],
        cells: vec![vec![Cell::of(98.5, 98.0)], vec![Cell::of(440.4, 440.0)]],
        ..Table::default()
    };
    let mut results = Results { tables: vec![published], ..Results::default() };
    assert!(measured.merge_into(&mut results).is_empty(), "all have their place");
    for (row, (paper, simulated)) in results.tables[0].cells.iter().zip([(98.5, 98.0), (440.4, 440.0)]) {
        assert!(row[0].local.is_some_and(|local| local > 0.0));
        assert_eq!((row[0].paper, row[0].simulated), (Some(paper), Some(simulated)));
    }
}
