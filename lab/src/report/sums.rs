//! The summary of a report.

use super::AIM_PERCENT;
use crate::result::{Cell, Results, Table};

/// With fewer published cells, the explained variance says nothing.
const VARIANCE_CELLS_MIN: usize = 6;

/// Key numbers of an experiment in words, each with whether it is as good as it should be.
pub(super) fn phrases(results: &Results) -> Vec<(String, bool)> {
    let mut phrases = Vec::new();
    let (held, findings) = (results.findings.iter().filter(|finding| finding.holds).count(), results.findings.len());
    if findings > 0 {
        phrases.push((format!("{held} of {findings} findings hold"), held == findings));
    }
    let (in_points, in_percent): (Vec<&Table>, Vec<&Table>) = results.tables.iter().partition(|table| table.in_points);
    // Fitted cells predict nothing.
    let predicted = in_percent.iter().flat_map(|table| table.cells.iter().flatten()).filter(|cell| !cell.fitted);
    let percents: Vec<f64> = predicted.filter_map(Cell::difference_percent).collect();
    if !percents.is_empty() {
        let within = percents.iter().filter(|percent| percent.abs() <= AIM_PERCENT).count();
        let text = format!("{within} of {} predicted cells within 15 % of the paper", percents.len());
        phrases.push((text, within == percents.len()));
    }
    if let Some(explained) = in_points.into_iter().filter_map(variance_explained).reduce(f64::min) {
        phrases.push((format!("variance explained {explained:.2} or more"), explained >= 0.7));
    }
    phrases
}

/// The explained variance of a table with enough cells.
pub(super) fn variance_explained(table: &Table) -> Option<f64> {
    let pairs = table.cells.iter().flatten().filter(|cell| cell.difference().is_some()).count();
    table.variance_explained().filter(|_| pairs >= VARIANCE_CELLS_MIN)
}
