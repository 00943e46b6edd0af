//! The summary of a report.

use super::AIM_PERCENT;
use crate::result::{Results, Table};

/// With fewer published cells, the explained variance says nothing.
const VARIANCE_CELLS_MIN: usize = 6;

/// Key numbers of an experiment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// Cells that differ from the paper's in percent, without fitted ones, which predict nothing.
    pub predicted: usize,
    pub within: usize,
    /// The least variance explained of any table in points.
    pub variance_explained: Option<f64>,
    pub findings: usize,
    pub held: usize,
}

impl Summary {
    pub fn of(results: &Results) -> Self {
        let percents = || {
            let tables = results.tables.iter().filter(|table| !table.in_points);
            let cells = tables.flat_map(|table| table.cells.iter().flatten()).filter(|cell| !cell.fitted);
            cells.filter_map(|cell| cell.difference_percent())
        };
        let in_points = results.tables.iter().filter(|table| table.in_points);
        Summary {
            predicted: percents().count(),
            within: percents().filter(|percent| percent.abs() <= AIM_PERCENT).count(),
            variance_explained: in_points.filter_map(variance_explained).reduce(f64::min),
            findings: results.findings.len(),
            held: results.findings.iter().filter(|finding| finding.holds).count(),
        }
    }

    pub fn phrases(&self) -> Vec<(String, bool)> {
        let mut phrases = Vec::new();
        if self.findings > 0 {
            phrases.push((format!("{} of {} findings hold", self.held, self.findings), self.held == self.findings));
        }
        if self.predicted > 0 {
            let text = format!("{} of {} predicted cells within 15 % of the paper", self.within, self.predicted);
            phrases.push((text, self.within == self.predicted));
        }
        if let Some(explained) = self.variance_explained {
            phrases.push((format!("variance explained {explained:.2} or more"), explained >= 0.7));
        }
        phrases
    }
}

/// The explained variance of a table with enough cells.
pub(super) fn variance_explained(table: &Table) -> Option<f64> {
    let pairs = table.cells.iter().flatten().filter(|cell| cell.difference().is_some()).count();
    table.variance_explained().filter(|_| pairs >= VARIANCE_CELLS_MIN)
}
