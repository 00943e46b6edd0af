//! The papers' experiments on this host: the real kernel of Awase, its disk, its memory, its processors.
//!
//! One file a table. A measured number goes into [`Cell::here`](papers::Cell::here) of the experiment's own table if
//! that has a cell for the same quantity, and always, with its spread, into a table of its own. It never stands where a
//! simulated number does.

pub(crate) mod clients;
mod drive;
mod dsm;
mod host;
mod layer;
pub mod live;
mod mp_table1;
mod oltp;
mod repetitions;
mod server;
mod setup;
mod task;
mod uio;
mod ws_2;
mod ws_table2;
mod ws_table3;
mod ws_table4;
mod ws_table5;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use papers::parameter::Parameters;
use papers::result::{Plot, Results, Table};

pub use host::{Host, Stage};
pub use server::Server;
pub use setup::{Export, LocalError, Medium, Program, Protocol, SCRATCH_BYTES_MAX, ServerConfig, Setup, Spent};

/// What an experiment measures on this host.
pub struct LocalExperiment {
    /// The experiment's name.
    pub experiment: &'static str,
    /// Steps of [`LocalRun::done`] that it takes.
    pub steps: fn(Effort, &Parameters) -> u64,
    /// Estimated time, if more than some seconds.
    pub takes: Option<fn(Effort, &Parameters) -> Duration>,
    /// Fails when the host lacks what is needed, or its disk fails.
    pub measure: fn(&LocalRun<'_>) -> Result<Measured, LocalError>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effort {
    /// The default: some seconds.
    #[default]
    Usual,
    /// The shortest run that gives all numbers, whatever their precision.
    Tiny,
}

impl Effort {
    pub(crate) fn pick<T>(self, usual: T, tiny: T) -> T {
        match self {
            Effort::Usual => usual,
            Effort::Tiny => tiny,
        }
    }
}

pub struct LocalRun<'a> {
    pub host: &'a Host,
    pub effort: Effort,
    /// The experiment's parameters. Only an experiment that is measured and not simulated uses them.
    pub parameters: &'a Parameters,
    /// Steps done, for the progress bar.
    pub done: &'a AtomicU64,
}

impl LocalRun<'_> {
    fn pick<T>(&self, usual: T, tiny: T) -> T {
        self.effort.pick(usual, tiny)
    }

    fn step(&self, steps: u64) {
        self.done.fetch_add(steps, Ordering::Relaxed);
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Numbers for cells of the experiment's own tables.
    pub cells: Vec<LocalCell>,
    /// All numbers, with their spreads.
    pub tables: Vec<Table>,
    pub plots: Vec<Plot>,
    /// Remarks for the reader.
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct LocalCell {
    /// The table's name.
    pub table: &'static str,
    /// The row's name, or a prefix of it.
    pub row: String,
    /// The column's name, or a prefix of it.
    pub column: String,
    /// In the table's unit.
    pub value: f64,
}

impl Measured {
    /// Adds a number for a cell of one of the experiment's own tables.
    fn cell(&mut self, table: &'static str, row: impl Into<String>, column: impl Into<String>, value: f64) {
        self.cells.push(LocalCell { table, row: row.into(), column: column.into(), value });
    }

    /// Puts the numbers into the experiment's results. Returns those without a cell: its own tables have them.
    pub fn merge_into(self, results: &mut Results) -> Vec<LocalCell> {
        let unplaced = self.cells.into_iter().filter(|cell| !cell.place(results)).collect();
        results.tables.extend(self.tables);
        results.plots.extend(self.plots);
        results.notes.extend(self.notes);
        unplaced
    }
}

impl LocalCell {
    /// Puts the number into its cell, if there is one.
    fn place(&self, results: &mut Results) -> bool {
        let Some(table) = results.tables.iter_mut().find(|table| table.name == self.table) else { return false };
        let (row, column) = (position(&table.rows, &self.row), position(&table.columns, &self.column));
        let found = row.zip(column).and_then(|(row, column)| table.cells.get_mut(row)?.get_mut(column));
        found.map(|cell| cell.local = Some(self.value)).is_some()
    }
}

/// Position of the name, or else of the first name of which it is a whole-word prefix (if empty: the first).
fn position(names: &[String], wanted: &str) -> Option<usize> {
    let begins = |name: &String| {
        let rest = name.strip_prefix(wanted);
        rest.is_some_and(|rest| wanted.is_empty() || !rest.starts_with(char::is_alphanumeric))
    };
    names.iter().position(|name| name == wanted).or_else(|| names.iter().position(begins))
}

pub static MEASUREMENTS: [LocalExperiment; 10] = [
    short("ws-2", ws_2::steps, ws_2::measure),
    short("ws-table2", ws_table2::steps, ws_table2::measure),
    short("ws-table3", ws_table3::steps, ws_table3::measure),
    short("ws-table4", ws_table4::steps, ws_table4::measure),
    short("ws-table5", ws_table5::steps, ws_table5::measure),
    short("mp-table1", mp_table1::steps, mp_table1::measure),
    short("uio", uio::steps, uio::measure),
    LocalExperiment { takes: Some(oltp::takes), ..short("oltp", oltp::steps, oltp::measure) },
    short("dsm", dsm::steps, dsm::measure),
    LocalExperiment { takes: Some(live::takes), ..short("live", live::steps, live::measure) },
];

/// One of some seconds.
const fn short(
    experiment: &'static str,
    steps: fn(Effort, &Parameters) -> u64,
    measure: fn(&LocalRun<'_>) -> Result<Measured, LocalError>,
) -> LocalExperiment {
    LocalExperiment { experiment, steps, takes: None, measure }
}

pub fn named(experiment: &str) -> Option<&'static LocalExperiment> {
    MEASUREMENTS.iter().find(|local| local.experiment == experiment)
}

#[cfg(test)]
mod tests {
    use super::*;
    use papers::result::Cell;

    #[test]
    fn a_number_goes_beside_its_cell_and_changes_no_other() {
        let table = Table {
            name: "a".to_owned(),
            rows: vec!["without merge".to_owned(), "with merge".to_owned()],
            columns: vec!["write".to_owned()],
            cells: vec![vec![Cell::of(1.0, 2.0)], vec![Cell::of(3.0, 4.0)]],
            ..Table::default()
        };
        let mut results = Results { tables: vec![table], ..Results::default() };
        let cell = |row: &str, value| LocalCell { table: "a", row: row.to_owned(), column: "write".to_owned(), value };
        let measured = Measured { cells: vec![cell("with", 5.0), cell("none", 6.0)], ..Measured::default() };
        let unplaced = measured.merge_into(&mut results);
        assert_eq!(unplaced, [cell("none", 6.0)], "what has no cell is returned");
        let cells = &results.tables[0].cells;
        assert_eq!(cells[0][0], Cell::of(1.0, 2.0));
        assert_eq!(cells[1][0], Cell { local: Some(5.0), ..Cell::of(3.0, 4.0) });
    }

    #[test]
    fn every_measurement_is_found_by_the_name_of_its_experiment() {
        for local in &MEASUREMENTS {
            assert!(papers::named(local.experiment).is_some(), "{}", local.experiment);
            assert_eq!(named(local.experiment).map(|found| found.experiment), Some(local.experiment));
        }
        assert!(named("ws-table9").is_none());
    }
}
