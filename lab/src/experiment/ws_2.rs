//! WS-2: the dynamic buffer cache. The paper describes its benefits and the side effects that had to be cured, and
//! publishes no numbers: the tables are predictions, on the machines of its table 1.

mod giving;
mod host;
mod machine;
mod operations;
mod reading;
mod scanning;
mod storm;
mod writing;

use super::Run;
use crate::result::{Cell, Results, Series, Table};
use machine::Hardware;

pub(super) const STEPS: u64 = 37;

pub(super) fn simulate(run: &Run<'_>) -> Results {
    let hardware = Hardware::of(run);
    let mut results = Results::default();
    reading::run(run, &hardware, &mut results);
    scanning::run(run, &hardware, &mut results);
    writing::run(run, &hardware, &mut results);
    storm::run(run, &hardware, &mut results);
    giving::run(run, &hardware, &mut results);
    operations::run(run, &hardware, &mut results);
    results.notes = notes(&hardware, run.is_modern());
    results
}

fn notes(hardware: &Hardware, modern: bool) -> Vec<String> {
    // The first three are of the machine of 1991.
    let mut notes: Vec<String> = NOTES.iter().skip(if modern { 3 } else { 0 }).map(|note| (*note).to_owned()).collect();
    if hardware.buffer > 64 << 10 {
        notes.push(format!(
            "A buffer stands for {} KB here, so that a large machine can be simulated in a moment: a transfer takes \
             longer than in truth, and latencies are no finer than that.",
            hardware.buffer >> 10
        ));
    }
    notes
}

const NOTES: [&str; 8] = [
    "The paper publishes no numbers for this section: all cells are predictions, none is fitted.",
    "(a) and (b) The first reading and writing are both at 703 KB/s on the machine of 1991; the paper's table 2 has 630 \
     and 328 KB/s without merging, on a disk that it does not name.",
    "(a) What a cached block costs hangs on the processor's part of a read: 0.46 ms here, from 4.2BSD's published share of a \
     VAX and table 1's memory. McVoy and Kleiman (1991) report far more for SunOS 4.1, 64,000 instructions a block, disk \
     driver and interrupt included: with cost.call=64000 the second reading is slower, and the knee is at the same place.",
    "(b) With Awase's write-back, writers wait when 40 % of the cache are dirty, and what is written reaches the disk within \
     about 30 s, not as soon as it can: blocks that change again are written once, and what a crash may take is bounded.",
    "(c) The load keeps the disk busy most of the time, with either way of writing: somebody always waits for a write. The \
     storm has all of it wait at once.",
    "(d) Dirty memory can be given back as fast as it can be written. The policy lets 40 % of the cache be dirty, whatever \
     the disk writes in a second: after half of memory was written, programs wait. Merging (WS-3) makes it shorter, not good.",
    "(d) Paging is not simulated: what programs never got they would have had to page.",
    "(e) Each buffer looked at counts as a miss of the processor's cache, with few buffers too: the first rows are too dear.",
];

/// A table of simulated cells. Of the table: name, title, unit, digits; of rows and columns: kind and names.
fn grid(
    (name, title, unit, digits): (&str, &str, &str, usize),
    (rows_are, rows): (&str, Vec<String>),
    (columns_are, columns): (&str, Vec<String>),
    cells: Vec<Vec<Cell>>,
) -> Table {
    Table::new(name, title).unit(unit, digits).rows(rows_are, rows).columns(columns_are, columns).cells(cells)
}

fn line(name: &str, points: Vec<(f64, f64)>) -> Series {
    Series::simulated(name, points)
}
