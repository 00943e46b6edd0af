//! WS-2: the dynamic buffer cache. The paper describes what it is good for and which side effects had to be cured, and
//! publishes no numbers: the tables here are predictions, on the machines of its table 1.

mod giving;
mod machine;
mod operations;
mod parameters;
mod reading;
mod scanning;
mod storm;
mod writing;

use super::{Experiment, Run};
use crate::parameter::Parameters;
use crate::result::{Cell, Results, Series, Source, Table};
use machine::Hardware;

/// The experiment.
pub struct Ws2;

impl Experiment for Ws2 {
    fn name(&self) -> &'static str {
        "ws-2"
    }

    fn title(&self) -> &'static str {
        "The buffer cache: a tenth of memory against all that nobody else needs"
    }

    fn about(&self) -> &'static str {
        "4.3BSD gave about a tenth of memory to its buffer cache, for good. Sony's kernel let the cache have nearly all of \
         memory and give it back on demand: files are read again at the speed of memory, and write returns sooner. That \
         had side effects: searches made for few buffers, a sync every 30 s that holds up everybody, and memory taken from \
         programs. Look at where the throughput of a second reading falls (a), when write returns (b), what a reader waits \
         for while dirty buffers are written (c), how fast memory is given back (d), and what operations cost (e)."
    }

    fn paper(&self) -> &'static str {
        "Workstation paper, sections 1 (table 1: the machines) and 2; it publishes no measurement of this"
    }

    fn parameters(&self) -> Parameters {
        parameters::all()
    }

    fn modern(&self) -> &'static [(&'static str, f64)] {
        parameters::MODERN
    }

    fn steps(&self, _parameters: &Parameters) -> u64 {
        37
    }

    fn simulate(&self, run: &Run<'_>) -> Results {
        let hardware = Hardware::of(run);
        let mut results = Results::default();
        reading::run(run, &hardware, &mut results);
        scanning::run(run, &hardware, &mut results);
        writing::run(run, &hardware, &mut results);
        storm::run(run, &hardware, &mut results);
        giving::run(run, &hardware, &mut results);
        operations::run(run, &hardware, &mut results);
        results.notes = notes(&hardware);
        results
    }
}

fn notes(hardware: &Hardware) -> Vec<String> {
    let mut notes =
        vec!["The paper publishes no numbers for this section: all cells are predictions, none is fitted.".to_owned()];
    if hardware.buffer > 64 << 10 {
        notes.push(format!(
            "A buffer stands for {} KB here, so that a large machine can be simulated in a moment: what one transfer takes \
             is too long, and latencies are no finer than that.",
            hardware.buffer >> 10
        ));
    }
    notes
}

/// A table of simulated cells. Of the table: name, title, unit, digits; of rows and columns: what they are, and their names.
fn grid(
    (name, title, unit, digits): (&str, &str, &str, usize),
    (rows_are, rows): (&str, Vec<String>),
    (columns_are, columns): (&str, Vec<String>),
    cells: Vec<Vec<Cell>>,
) -> Table {
    Table {
        name: name.to_owned(),
        title: title.to_owned(),
        unit: unit.to_owned(),
        rows_are: rows_are.to_owned(),
        rows,
        columns_are: columns_are.to_owned(),
        columns,
        cells,
        in_points: false,
        digits,
    }
}

fn line(name: &str, points: Vec<(f64, f64)>) -> Series {
    Series { name: name.to_owned(), source: Source::Simulated, points }
}

/// What that part of the numbers, sorted, does not exceed; 0 of none.
fn percentile(sorted: &[f64], part: f64) -> f64 {
    let rank = (part * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}
