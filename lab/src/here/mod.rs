//! The papers' experiments on this host: the real kernel of Awase, its disk, its memory, its processors.
//!
//! One file a table. What is measured goes into [`Cell::here`](crate::Cell::here) of the experiment's own tables where a
//! cell is the same thing, and whole, with its spread, into tables of its own. It never stands where a simulated number
//! does.

mod host;
mod layer;
pub mod live;
mod mp_table1;
mod rounds;
mod server;
mod task;
mod this_host;
mod uio;
mod ws_2;
mod ws_table2;
mod ws_table3;
mod ws_table4;
mod ws_table5;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::parameter::Parameters;
use crate::result::{Plot, Results, Table};
pub use host::{Export, HereError, Host, Medium, SCRATCH_BYTES_MAX, Served, Serving, Setup, Spent, Stage};
pub use this_host::LabHost;

/// What an experiment measures on this host.
pub trait Here: Sync {
    /// Of which experiment: its name.
    fn experiment(&self) -> &'static str;

    /// How many steps of [`HereRun::done`] it takes.
    fn steps(&self, effort: Effort, parameters: &Parameters) -> u64;

    /// How long it takes, about, where that is more than some seconds.
    fn takes(&self, _effort: Effort, _parameters: &Parameters) -> Option<Duration> {
        None
    }

    /// Measures.
    ///
    /// # Errors
    /// When the host has not what is needed, or its disk fails.
    fn measure(&self, run: &HereRun<'_>) -> Result<Measured, HereError>;
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effort {
    /// For people: some seconds.
    #[default]
    Usual,
    /// As little as gives all numbers, whatever they are worth.
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

/// One run of a measurement.
pub struct HereRun<'a> {
    pub host: &'a dyn Host,
    pub effort: Effort,
    /// What the experiment is told. Only one that is measured and not simulated minds them.
    pub parameters: &'a Parameters,
    /// Steps done, for whoever draws the progress.
    pub done: &'a AtomicU64,
}

impl HereRun<'_> {
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
    pub cells: Vec<HereCell>,
    /// All numbers, with their spreads.
    pub tables: Vec<Table>,
    /// The same, to look at.
    pub plots: Vec<Plot>,
    /// What a reader should know.
    pub notes: Vec<String>,
}

/// A number for a cell.
#[derive(Clone, Debug, PartialEq)]
pub struct HereCell {
    /// The table's name; `None`: the experiment's first.
    pub table: Option<&'static str>,
    /// The row's name, or the beginning of it.
    pub row: String,
    /// The column's name, or the beginning of it.
    pub column: String,
    /// In the table's unit.
    pub value: f64,
}

impl Measured {
    /// Puts the numbers beside those of the same experiment. Returns those for which it has no cell: the tables of what
    /// was measured have all.
    pub fn merge_into(self, results: &mut Results) -> Vec<HereCell> {
        let unplaced = self.cells.into_iter().filter(|cell| !cell.place(results)).collect();
        results.tables.extend(self.tables);
        results.plots.extend(self.plots);
        results.notes.extend(self.notes);
        unplaced
    }
}

impl HereCell {
    /// Puts the number into its cell, if there is one.
    fn place(&self, results: &mut Results) -> bool {
        let table = match self.table {
            Some(name) => results.tables.iter_mut().find(|table| table.name == name),
            None => results.tables.first_mut(),
        };
        let Some(table) = table else { return false };
        let (row, column) = (position(&table.rows, &self.row), position(&table.columns, &self.column));
        let found = row.zip(column).and_then(|(row, column)| table.cells.get_mut(row)?.get_mut(column));
        found.map(|cell| cell.here = Some(self.value)).is_some()
    }
}

/// Where the name stands, or else the first that begins with it as a word (of any name, nothing is the beginning).
fn position(names: &[String], wanted: &str) -> Option<usize> {
    let begins = |name: &String| {
        let rest = name.strip_prefix(wanted);
        rest.is_some_and(|rest| wanted.is_empty() || !rest.starts_with(char::is_alphanumeric))
    };
    names.iter().position(|name| name == wanted).or_else(|| names.iter().position(begins))
}

/// All that can be measured.
pub fn measurements() -> &'static [&'static dyn Here] {
    &[
        &ws_2::DynamicCache,
        &ws_table2::BlockMerge,
        &ws_table3::Priority,
        &ws_table4::Rendezvous,
        &ws_table5::ReadAhead,
        &mp_table1::DeviceAccess,
        &uio::UnmappedIo,
        &live::Switches,
    ]
}

/// What the experiment of that name measures here, if anything.
pub fn named(experiment: &str) -> Option<&'static dyn Here> {
    measurements().iter().copied().find(|here| here.experiment() == experiment)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::Cell;

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
        let cell =
            |row: &str, value| HereCell { table: Some("a"), row: row.to_owned(), column: "write".to_owned(), value };
        let measured = Measured { cells: vec![cell("with", 5.0), cell("none", 6.0)], ..Measured::default() };
        let unplaced = measured.merge_into(&mut results);
        assert_eq!(unplaced, [cell("none", 6.0)], "what has no place is told");
        let cells = &results.tables[0].cells;
        assert_eq!(cells[0][0], Cell::of(1.0, 2.0));
        assert_eq!(cells[1][0], Cell { here: Some(5.0), ..Cell::of(3.0, 4.0) });
    }

    #[test]
    fn every_measurement_is_found_by_the_name_of_its_experiment() {
        for here in measurements() {
            let found = named(here.experiment()).map(Here::experiment);
            assert_eq!(found, Some(here.experiment()));
        }
        assert!(named("ws-table9").is_none());
    }
}
