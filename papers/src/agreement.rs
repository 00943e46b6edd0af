//! How a table's predicted cells agree with the published ones, against rivals that need no model; and what an
//! experiment should reach.
//!
//! Only predictions count: a cell that a parameter was fitted on, or that an input determines, is left out.

use serde::{Deserialize, Serialize};

use crate::result::{Cell, Results, Table};

/// With fewer cells, an explained variance says nothing.
pub const CELLS_MIN: usize = 6;
/// The least scale of differences in points: what the papers' own repetitions differ by.
const NOISE_POINTS: f64 = 1.0;

/// Predicted cells, together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Agreement {
    pub cells: usize,
    /// The largest difference, with its sign: in percent, or in points where the table's differences are.
    pub worst: f64,
    /// The mean of the differences without signs.
    pub mean: f64,
    /// Of the published cells' variance about their mean, the part that the model explains: 1 if all is right, 0 if the
    /// mean does as well, negative if the mean does better. `None` where the cells are too few or do not differ.
    pub explained: Option<f64>,
    /// The same of rivals: a straight line through the row, and the bound of devices and processors.
    pub line_explains: Option<f64>,
    pub bound_explains: Option<f64>,
}

/// A predicted cell: its place in the row, both numbers, and the bound.
#[derive(Clone, Copy)]
struct Pair {
    x: f64,
    paper: f64,
    simulated: f64,
    bound: Option<f64>,
    difference: f64,
}

impl Table {
    /// Of each row; `None` for rows without a predicted cell.
    pub fn row_agreements(&self) -> Vec<Option<Agreement>> {
        (0..self.cells.len()).map(|row| self.row_agreement(row)).collect()
    }

    fn row_agreement(&self, row: usize) -> Option<Agreement> {
        let pairs = self.pairs(row);
        let line = line(&pairs);
        agreement(&pairs, mean(pairs.iter().map(|pair| pair.paper)), line)
    }

    /// Of all rows, against the mean of all.
    pub fn agreement(&self) -> Option<Agreement> {
        let pairs: Vec<Pair> = (0..self.cells.len()).flat_map(|row| self.pairs(row)).collect();
        agreement(&pairs, mean(pairs.iter().map(|pair| pair.paper)), None)
    }

    /// The part of the variance about its own mean that is explained of each row, sorted from the least: of rows with
    /// enough cells, which differ by more than noise.
    pub fn rows_explained(&self) -> Vec<f64> {
        let rows = (0..self.cells.len()).filter(|row| self.differs(*row));
        let mut rows: Vec<f64> = rows.filter_map(|row| self.row_agreement(row)?.explained).collect();
        rows.sort_by(f64::total_cmp);
        rows
    }

    /// Names of the rows that are left out there, though they have enough cells: their published cells differ by no more
    /// than noise.
    pub fn rows_of_noise(&self) -> Vec<&str> {
        let has_part = |row: usize| self.row_agreement(row).is_some_and(|row| row.explained.is_some());
        let rows = (0..self.cells.len()).filter(|row| !self.differs(*row) && has_part(*row));
        rows.filter_map(|row| self.rows.get(row).map(String::as_str)).collect()
    }

    /// Do the published cells of a row differ by more than noise?
    fn differs(&self, row: usize) -> bool {
        !self.in_points || self.span(row) > NOISE_POINTS
    }

    fn pairs(&self, row: usize) -> Vec<Pair> {
        let pair = |(column, cell): (usize, &Cell)| {
            let predicted = !cell.fitted && !cell.input;
            let (paper, simulated) = (cell.paper.filter(|_| predicted)?, cell.simulated?);
            let difference = if self.in_points { cell.difference()? } else { cell.difference_percent()? };
            let x = self.columns.get(column).and_then(|name| name.parse().ok()).unwrap_or(column as f64);
            Some(Pair { x, paper, simulated, bound: cell.bound, difference })
        };
        self.cells[row].iter().enumerate().filter_map(pair).collect()
    }

    /// What a difference in points of this row is compared with: the span of its published cells.
    pub(crate) fn span(&self, row: usize) -> f64 {
        let paper = || self.cells[row].iter().filter_map(|cell| cell.paper);
        (paper().fold(f64::MIN, f64::max) - paper().fold(f64::MAX, f64::min)).max(NOISE_POINTS)
    }
}

fn agreement(pairs: &[Pair], rival: f64, line: Option<[f64; 2]>) -> Option<Agreement> {
    if pairs.is_empty() {
        return None;
    }
    let worst = pairs.iter().map(|pair| pair.difference).fold(0.0, |a: f64, b| if b.abs() > a.abs() { b } else { a });
    let total: f64 = pairs.iter().map(|pair| (pair.paper - rival).powi(2)).sum();
    let explained = |by: &dyn Fn(&Pair) -> Option<f64>| {
        let missed: Option<f64> = pairs.iter().map(|pair| Some((pair.paper - by(pair)?).powi(2))).sum();
        missed.filter(|_| pairs.len() >= CELLS_MIN && total > 0.0).map(|missed| 1.0 - missed / total)
    };
    Some(Agreement {
        cells: pairs.len(),
        worst,
        mean: mean(pairs.iter().map(|pair| pair.difference.abs())),
        explained: explained(&|pair| Some(pair.simulated)),
        line_explains: explained(&|pair| line.map(|[a, b]| a + b * pair.x)),
        bound_explains: explained(&|pair| pair.bound),
    })
}

/// 0 without numbers.
fn mean(of: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = of.fold((0.0, 0), |(sum, count), value| (sum + value, count + 1));
    sum / f64::from(count.max(1))
}

/// The straight line with the least squares through the published cells of a row.
fn line(pairs: &[Pair]) -> Option<[f64; 2]> {
    let (x, y) = (mean(pairs.iter().map(|pair| pair.x)), mean(pairs.iter().map(|pair| pair.paper)));
    let spread: f64 = pairs.iter().map(|pair| (pair.x - x).powi(2)).sum();
    let slope = pairs.iter().map(|pair| (pair.x - x) * (pair.paper - y)).sum::<f64>() / spread;
    (spread > 0.0).then_some([y - slope * x, slope])
}

/// What an experiment should reach beside the paper. What is not given is not asked for.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Target {
    /// Tables that count; all with predicted cells if none is named.
    tables: Vec<String>,
    /// The largest difference of a predicted cell, in percent (in points where a table's differences are).
    within: Option<f64>,
    /// The least part of the variance that is explained, of each table.
    explained: Option<f64>,
    /// The same of each row, against the row's mean.
    each_row: Option<f64>,
    /// Beginnings of findings that must hold.
    findings: Vec<String>,
    /// Parts of the sentences in which it is not met on the paper's machine, as recorded: a test compares.
    pub missed: Vec<String>,
    /// Beginnings of findings that do not hold there, as recorded.
    pub refuted: Vec<String>,
    /// What would have to be known for it to be met.
    pub unknown: Option<String>,
}

impl Target {
    /// In a phrase: `cells within 20 %`.
    pub fn phrase(&self) -> String {
        let percent = |part: f64| format!("{:.0} %", part * 100.0);
        let of = if self.tables.is_empty() { String::new() } else { format!(" of {}", self.tables.join(", ")) };
        let within = self.within.map(|within| format!("every predicted cell{of} within {within} % (or points)"));
        let explained = self.explained.map(|part| format!("{} of each table's variance explained", percent(part)));
        let rows = self
            .each_row
            .map(|part| format!("{} of that of each row that differs by more than a point", percent(part)));
        let findings = (!self.findings.is_empty()).then(|| format!("holds: {}", self.findings.join("; ")));
        [within, explained, rows, findings].into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    /// Why it is not met: a sentence for each reason; none if it is.
    pub fn misses(&self, results: &Results) -> Vec<String> {
        let counts = |table: &&Table| self.tables.is_empty() || self.tables.contains(&table.name);
        let mut misses = Vec::new();
        for table in results.tables.iter().filter(counts) {
            let Some(Agreement { worst, explained, .. }) = table.agreement() else { continue };
            let unit = if table.in_points { "points" } else { "%" };
            if self.within.is_some_and(|within| worst.abs() > within) {
                misses.push(format!("{}: a predicted cell is off by {worst:+.0} {unit}", table.name));
            }
            if let Some((part, _)) = explained.zip(self.explained).filter(|(part, least)| part < least) {
                misses.push(format!("{}: {part:.2} of the variance explained", table.name));
            }
            let rows = table.rows_explained();
            let below = rows.iter().filter(|part| self.each_row.is_some_and(|least| **part < least)).count();
            if below > 0 {
                misses.push(format!("{}: {below} of {} rows explained less than asked for", table.name, rows.len()));
            }
        }
        for begin in &self.findings {
            let found = results.findings.iter().find(|finding| finding.text.starts_with(begin.as_str()));
            if found.is_none_or(|finding| !finding.holds) {
                misses.push(format!("does not hold: {begin}"));
            }
        }
        misses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: &[&[(f64, f64)]]) -> Table {
        let row = |cells: &&[(f64, f64)]| cells.iter().map(|(paper, simulated)| Cell::of(*paper, *simulated)).collect();
        let columns = (0..rows[0].len()).map(|column| column.to_string()).collect();
        Table { cells: rows.iter().map(row).collect(), columns, in_points: true, ..Table::default() }
    }

    const TRUTH: [f64; 6] = [1.0, 2.0, 6.0, 4.0, 5.0, 6.0];

    #[test]
    fn variance_is_explained_wholly_by_the_truth_and_not_at_all_by_the_mean() {
        let explained = |of: fn(f64) -> f64| {
            let cells = TRUTH.map(|paper| (paper, of(paper)));
            table(&[&cells]).agreement().expect("cells").explained
        };
        assert_eq!(explained(|paper| paper), Some(1.0));
        assert_eq!(explained(|_| 4.0), Some(0.0));
        assert_eq!(Table::default().agreement(), None);
        assert_eq!(table(&[&[(1.0, 1.0)]]).agreement().expect("a cell").explained, None, "too few");
    }

    #[test]
    fn rows_that_differ_hide_what_is_wrong_within_them() {
        // The model knows the rows' means and nothing else.
        let (low, high) = (TRUTH.map(|paper| (paper, 4.0)), TRUTH.map(|paper| (paper + 100.0, 104.0)));
        let table = table(&[&low, &high]);
        assert!(table.agreement().expect("cells").explained.expect("enough") > 0.99);
        assert_eq!(table.rows_explained(), [0.0, 0.0]);
        assert_eq!(table.row_agreements()[0].expect("cells").explained, Some(0.0));
    }

    #[test]
    fn what_was_fitted_or_put_in_is_no_prediction() {
        let mut table = table(&[&[(1.0, 9.0), (2.0, 9.0), (3.0, 3.5)]]);
        (table.cells[0][0].fitted, table.cells[0][1].input) = (true, true);
        let agreement = table.agreement().expect("one is left");
        assert_eq!((agreement.cells, agreement.worst), (1, 0.5));
    }

    #[test]
    fn a_straight_row_is_no_merit_of_the_model() {
        let cells: Vec<(f64, f64)> = (0..6).map(|n| (f64::from(n), f64::from(n))).collect();
        let agreement = table(&[&cells]).row_agreements()[0].expect("cells");
        assert_eq!((agreement.explained, agreement.line_explains), (Some(1.0), Some(1.0)));
    }

    #[test]
    fn a_target_says_what_is_missed() {
        let cells = TRUTH.map(|paper| (paper, 4.0));
        let results = Results { tables: vec![table(&[&cells])], ..Results::default() };
        let target = Target { explained: Some(0.5), findings: vec!["never".to_owned()], ..Target::default() };
        assert_eq!(target.misses(&results), [": 0.00 of the variance explained", "does not hold: never"]);
        assert!(Target { within: Some(5.0), ..Target::default() }.misses(&results).is_empty());
    }
}
