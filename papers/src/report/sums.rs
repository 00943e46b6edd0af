//! The summary of a report.

use super::AIM_PERCENT;
use crate::agreement::Agreement;
use crate::result::{Cell, Results, Table};

/// The aims for the variance of a whole table and of each row.
const WHOLE_AIM: f64 = 0.8;
const ROW_AIM: f64 = 0.5;

/// Key numbers of an experiment in words, each with whether it is as good as it should be.
pub(super) fn phrases(results: &Results) -> Vec<(String, bool)> {
    let mut phrases = Vec::new();
    let (held, findings) = (results.findings.iter().filter(|finding| finding.holds).count(), results.findings.len());
    if findings > 0 {
        phrases.push((format!("{held} of {findings} findings hold"), held == findings));
    }
    let (in_points, in_percent): (Vec<&Table>, Vec<&Table>) = results.tables.iter().partition(|table| table.in_points);
    // Fitted cells predict nothing, nor do those that an input determines.
    let cells = in_percent.iter().flat_map(|table| table.cells.iter().flatten());
    let predicted = cells.filter(|cell| !cell.fitted && !cell.input);
    let percents: Vec<f64> = predicted.filter_map(Cell::difference_percent).collect();
    if !percents.is_empty() {
        let within = percents.iter().filter(|percent| percent.abs() <= AIM_PERCENT).count();
        let text = format!("{within} of {} predicted cells within 15 % of the paper", percents.len());
        phrases.push((text, within == percents.len()));
    }
    let explained = in_points.iter().filter_map(|table| table.agreement()?.explained).reduce(f64::min);
    if let Some(explained) = explained {
        let rows: Vec<f64> = in_points.iter().flat_map(|table| table.rows_explained()).collect();
        let half = rows.iter().filter(|part| **part >= ROW_AIM).count();
        let text = format!(
            "variance explained {explained:.2} or more, half of it in {half} of the {} rows that differ by more than a point",
            rows.len()
        );
        phrases.push((text, explained >= WHOLE_AIM && half == rows.len()));
    }
    phrases
}

/// What is said under a table of the agreement of all its predicted cells.
pub(super) fn agreement(table: &Table) -> Option<String> {
    let Agreement { cells, worst, mean, explained, bound_explains, .. } = table.agreement()?;
    let unit = if table.in_points { "points" } else { "%" };
    let mut text = format!("{cells} predicted: off by {mean:.1} {unit} in the mean, {worst:+.1} at most");
    if let Some(explained) = explained {
        text += &format!("; variance explained {explained:.2}");
        let rows = table.rows_explained();
        if let [least, .., most] = rows[..] {
            let middle = rows[rows.len() / 2];
            let which = match table.in_points {
                true => format!("of the {} rows that differ by more than a point", rows.len()),
                false => "of single rows".to_owned(),
            };
            text += &format!("; {which} {least:.2} to {most:.2}, {middle:.2} in the middle");
        }
        let left_out = table.rows_of_noise();
        if !left_out.is_empty() {
            text += &format!("; left out, as they differ by no more than a point: {}", left_out.join(", "));
        }
        text += &bound_explains.map(|part| format!(" (bounds alone: {part:.2})")).unwrap_or_default();
    }
    Some(text)
}

/// Agreement row by row, for tables with enough of it: name, cells, worst, and what model, straight line and bounds
/// explain of the variance about the row's mean.
pub(super) fn by_row(table: &Table) -> Vec<[String; 6]> {
    let shown = |part: Option<f64>| part.map_or_else(|| "–".to_owned(), |part| format!("{part:.2}"));
    let of_rows = table.rows.iter().zip(table.row_agreements());
    let rows: Vec<(&String, Agreement)> = of_rows.filter_map(|(name, row)| Some((name, row?))).collect();
    if rows.len() < 2 || rows.iter().all(|(_, row)| row.explained.is_none()) {
        return Vec::new();
    }
    let row = |(name, of): (&String, Agreement)| {
        let worst = super::signed(of.worst, 1, "");
        [
            name.clone(),
            of.cells.to_string(),
            worst,
            shown(of.explained),
            shown(of.line_explains),
            shown(of.bound_explains),
        ]
    };
    rows.into_iter().map(row).collect()
}

pub(super) const BY_ROW: [&str; 6] = ["row", "cells", "worst", "model", "straight line", "bounds"];
