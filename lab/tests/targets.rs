//! How near each published table must come, and what every experiment owes its reader on the paper's machine.

mod outcomes;

use std::sync::OnceLock;

use lab::{Cell, Origin, Outcome, Results, Setting, Table};
use outcomes::outcomes;

/// All experiments on the papers' machines, run once.
fn all() -> &'static [Outcome] {
    static ALL: OnceLock<Vec<Outcome>> = OnceLock::new();
    ALL.get_or_init(|| outcomes(Setting::Paper, &[]))
}

fn results(name: &str) -> &'static Results {
    &all().iter().find(|outcome| outcome.order.name() == name).expect("an experiment of that name").results
}

fn table(experiment: &str, name: &str) -> &'static Table {
    results(experiment).tables.iter().find(|table| table.name == name).expect("a table of that name")
}

/// The published cells among these, each of which is there.
fn published<'a>(cells: impl IntoIterator<Item = &'a Cell>) -> Vec<&'a Cell> {
    let published: Vec<&Cell> = cells.into_iter().filter(|cell| cell.paper.is_some()).collect();
    assert!(!published.is_empty(), "nothing published is there to compare with");
    published
}

fn assert_within_percent<'a>(cells: impl IntoIterator<Item = &'a Cell>, most: f64) {
    for cell in published(cells) {
        let off = cell.difference_percent().expect("simulated");
        assert!(off.abs() <= most, "{off:+.1} %: {cell:?}");
    }
}

fn assert_within_points<'a>(cells: impl IntoIterator<Item = &'a Cell>, most: f64) {
    for cell in published(cells) {
        let off = cell.difference().expect("simulated");
        assert!(off.abs() <= most, "{off:+.1} points: {cell:?}");
    }
}

fn cells(table: &Table) -> impl Iterator<Item = &Cell> {
    table.cells.iter().flatten()
}

/// The second row over the first, column by column.
fn ratios(table: &Table) -> Vec<Cell> {
    let ratio = |(less, more): (&Cell, &Cell)| Cell {
        paper: less.paper.zip(more.paper).map(|(less, more)| more / less),
        simulated: less.simulated.zip(more.simulated).map(|(less, more)| more / less),
        ..Cell::default()
    };
    table.cells[0].iter().zip(&table.cells[1]).map(ratio).collect()
}

#[test]
fn ws_table_2_cells_and_ratios_are_within_15_percent() {
    let table = table("ws-table2", "throughput");
    assert_within_percent(cells(table), 15.0);
    assert_within_percent(&ratios(table), 15.0);
}

#[test]
fn ws_table_3_cells_and_ratios_are_within_15_percent() {
    let table = table("ws-table3", "times");
    assert_within_percent(cells(table), 15.0);
    assert_within_percent(&ratios(table), 15.0);
}

#[test]
fn ws_tables_4_and_5_cells_and_ratios_are_within_15_percent() {
    for experiment in ["ws-table4", "ws-table5"] {
        let throughput = table(experiment, "throughput");
        assert_within_percent(cells(throughput), 15.0);
        assert_within_percent(&ratios(throughput), 15.0);
        assert_within_percent(cells(table(experiment, "gain")), 15.0);
    }
}

#[test]
fn ws_table_6_means_are_within_5_percent_and_the_gain_within_3_points() {
    let means: Vec<Cell> = table("ws-table6", "mean").cells.iter().map(|row| row[0]).collect();
    assert_within_percent(&means, 5.0);
    let gain = |of: fn(&Cell) -> Option<f64>| Some((of(&means[1])? / of(&means[0])? - 1.0) * 100.0);
    let gain = Cell { paper: gain(|cell| cell.paper), simulated: gain(|cell| cell.simulated), ..Cell::default() };
    assert_within_points([&gain], 3.0);
}

#[test]
fn mp_table_1_ramdisk_without_wait_is_within_15_percent_and_each_device_explained() {
    assert_within_percent(&table("mp-table1", "ramdisk").cells[0], 15.0);
    // Four fifths are what was asked for; this is what was reached.
    for (name, least) in [("scsihd", 0.92), ("testdev", 0.92), ("ramdisk", 0.99)] {
        let explained = table("mp-table1", name).variance_explained().expect("published");
        assert!(explained > least, "{name}: {explained}");
    }
}

#[test]
fn mp_table_2_orders_the_methods_as_published_explains_7_tenths_and_is_nowhere_off_by_1_5_points() {
    let table = table("mp-table2", "delivery");
    let explained = table.variance_explained().expect("published");
    assert!(explained > 0.7, "{explained}");
    assert_within_points(cells(table), 1.5);
    // Over 4 to 9 processes.
    let mean = |row: usize| table.cells[row][3..9].iter().filter_map(|cell| cell.simulated).sum::<f64>() / 6.0;
    let [first, second, initiator, idle, busiest, all] = std::array::from_fn(mean);
    assert!(all < busiest && busiest < second && second < first, "{all} {busiest} {second} {first}");
    assert!((initiator - first).abs() < 0.5 && (idle - first).abs() < 0.5, "{initiator} {idle} {first}");
}

#[test]
fn oltp_rates_are_within_15_percent_and_shares_within_3_points() {
    assert_within_percent(cells(table("oltp", "rates")), 15.0);
    assert_within_points(cells(table("oltp", "shares")), 3.0);
}

#[test]
fn dsm_ratios_are_within_15_percent_and_shares_within_5_points() {
    assert_within_percent(cells(table("dsm", "ratios")), 15.0);
    assert_within_points(cells(table("dsm", "shares")), 5.0);
}

#[test]
fn uio_rates_are_within_20_percent() {
    assert_within_percent(cells(table("uio", "rates")), 20.0);
}

#[test]
fn what_the_papers_found_holds_in_every_experiment() {
    let all = all().iter().flat_map(|outcome| outcome.results.findings.iter().map(move |finding| (outcome, finding)));
    let missed = all.filter(|(_, finding)| !finding.holds);
    let missed: Vec<String> = missed.map(|(of, finding)| format!("{}: {}", of.order.name(), finding.text)).collect();
    assert!(missed.is_empty(), "{missed:#?}");
}

#[test]
fn the_first_finding_of_each_says_in_numbers_what_its_technique_is_worth_beside_the_papers() {
    for Outcome { order, results } in all() {
        let text = &results.findings.first().expect("a headline").text;
        assert!(text.chars().filter(char::is_ascii_digit).count() >= 2, "{}: {text}", order.name());
        let is_compared = results.tables.iter().flat_map(cells).any(|cell| cell.paper.is_some());
        assert_eq!(text.contains("(paper: "), is_compared, "{}: {text}", order.name());
    }
}

#[test]
fn at_most_one_cell_of_a_table_is_fitted_and_no_more_parameters_than_cells() {
    for Outcome { order, results } in all() {
        let fitted = |table: &Table| cells(table).filter(|cell| cell.fitted).count();
        for table in &results.tables {
            assert!(fitted(table) <= 1, "{}, {}", order.name(), table.name);
        }
        let parameters = order.parameters.iter().filter(|(of, _)| matches!(of.origin, Origin::Fitted(_))).count();
        let cells: usize = results.tables.iter().map(fitted).sum();
        assert!(parameters <= cells, "{}: {parameters} parameters fitted on {cells} cells", order.name());
        assert_eq!(parameters == 0, cells == 0, "{}: a cell is marked that nothing was fitted on", order.name());
    }
}

#[test]
fn every_table_and_plot_of_a_sheet_is_used_and_every_word_of_its_notes_and_titles_is_replaced() {
    for Outcome { order, results } in all() {
        let [tables, plots] = order.experiment.sheet().forms();
        let unused_tables = tables.iter().filter(|name| !results.tables.iter().any(|table| table.name == **name));
        let unused_plots = plots.iter().filter(|name| !results.plots.iter().any(|plot| plot.name == **name));
        let unused: Vec<_> = unused_tables.chain(unused_plots).collect();
        assert!(unused.is_empty(), "{}: {unused:?}", order.name());
        let titles =
            results.tables.iter().map(|table| &table.title).chain(results.plots.iter().map(|plot| &plot.title));
        let left: Vec<_> = results.notes.iter().chain(titles).filter(|text| text.contains(['{', '}'])).collect();
        assert!(left.is_empty(), "{}: {left:?}", order.name());
    }
}
