//! What the paper says of its table 1, as statements that can fail.

use std::ops::Range;

use super::super::Run;
use super::WAITS;
use crate::result::{Cell, Finding, Table};

/// The technique's worth: the largest gains of the three devices, over the published cells or, without any, all.
pub(super) fn headline(run: &Run<'_>, tables: &[Table]) -> Finding {
    let largest = |table: &Table, of: &dyn Fn(&Cell) -> bool| {
        let counted = table.cells.iter().flatten().filter(|cell| of(cell));
        counted.filter_map(|cell| cell.simulated).fold(0.0, f64::max)
    };
    let is_counted = |cell: &Cell| !run.compares() || cell.paper.is_some();
    let paper = |table: &Table, text: fn(f64) -> String| {
        let most = table.cells.iter().flatten().filter_map(|cell| cell.paper).fold(0.0, f64::max);
        run.in_the_paper(|| text(most))
    };
    let [disk, fixed, memory] = [0, 1, 2].map(|of| largest(&tables[of], &is_counted));
    // Where the paper has no number, since its measurements differed too much.
    let empty = largest(&tables[0], &|cell| !is_counted(cell));
    let empty =
        if run.compares() { format!(", and {empty:.0} % in cells that the paper left empty") } else { String::new() };
    let times: fn(f64) -> String = |gain| format!("{:.1}", 1.0 + gain / 100.0);
    let percent: fn(f64) -> String = |gain| format!("{gain:.0} %");
    Finding::new(
        format!(
            "Where any processor may start the device, ramdisk serves up to {} times as many reads{}, scsihd up to {} \
             more{}{empty}, testdev up to {} more{}",
            times(memory),
            paper(&tables[2], times),
            percent(disk),
            paper(&tables[0], percent),
            percent(fixed),
            paper(&tables[1], percent),
        ),
        memory > 100.0,
    )
}

pub(super) fn all(tables: &[Table]) -> Vec<Finding> {
    let gain = |table: usize, row: usize, column: usize| tables[table].cells[row][column].simulated.unwrap_or(f64::NAN);
    let is_published = |table: usize, row: usize, column: usize| tables[table].cells[row][column].paper.is_some();
    // Published cells of these tables, rows and columns.
    let all = |tables: &[usize], rows: Range<usize>, columns: Range<usize>, most: f64| {
        tables.iter().all(|&table| {
            let cells = rows.clone().flat_map(|row| columns.clone().map(move |column| (row, column)));
            let mut published = cells.filter(|&(row, column)| is_published(table, row, column));
            published.all(|(row, column)| gain(table, row, column).abs() <= most)
        })
    };
    let largest = WAITS.iter().enumerate().flat_map(|(row, _)| (1..9).map(move |column| (row, column)));
    let published = largest.filter(|&(row, column)| is_published(0, row, column));
    let largest = published.map(|(row, column)| gain(0, row, column)).fold(0.0, f64::max);
    vec![
        Finding::new("A process alone gains little: at most 10 %", all(&[0, 1, 2], 0..6, 0..1, 10.0)),
        Finding::new(
            "With more processes than processors little is gained on scsihd and testdev: at most 4 % with ten, 1 % with more",
            all(&[0, 1], 0..6, 9..10, 4.0) && all(&[0, 1], 0..6, 10..13, 1.0),
        ),
        Finding::new("The same on ramdisk, where the funnel is not saturated", all(&[2], 3..6, 9..13, 3.0)),
        Finding::new(
            "Nothing is gained where testdev is saturated",
            all(&[1], 0..1, 0..13, 1.0) && all(&[1], 1..2, 2..13, 1.0),
        ),
        Finding::new(
            "On ramdisk the funnel itself saturates: without wait, nine processes gain more than fivefold",
            gain(2, 0, 8) > 400.0,
        ),
        Finding::new("scsihd gains up to about 25 %: whole rotations", (20.0..30.0).contains(&largest)),
        Finding::new(
            "scsihd gains hardly anything with wait 50, though it does with 20 and with 100",
            all(&[0], 3..4, 0..6, 2.0) && gain(0, 2, 2) > 15.0 && gain(0, 4, 2) > 5.0,
        ),
        Finding::new("The more often a device is used, the more is gained: on ramdisk with two to eight processes", {
            (1..8).all(|column| (1..6).all(|row| gain(2, row, column) < gain(2, row - 1, column)))
        }),
    ]
}
