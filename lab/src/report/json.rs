//! JSON, for programs: everything that an experiment was told and found.

use serde_json::{Value, json};

use super::{origin, source_name};
use crate::order::{Outcome, Setting};
use crate::result::{Axis, Drawing, Plot, Table};

/// One object, over several lines.
pub fn outcome(outcome: &Outcome, version: &str) -> String {
    let (order, results) = (&outcome.order, &outcome.results);
    let experiment = order.experiment;
    let parameters: Vec<Value> = order
        .parameters
        .iter()
        .map(|(parameter, value)| {
            let (kind, text) = origin(&parameter.origin);
            json!({
                "name": parameter.name, "about": parameter.about, "unit": parameter.unit,
                "value": value, "default": parameter.default,
                "min": parameter.range.start(), "max": parameter.range.end(),
                "origin": { "kind": kind, "text": text },
            })
        })
        .collect();
    let findings = results.findings.iter().map(|finding| json!({ "text": finding.text, "holds": finding.holds }));
    let value = json!({
        "experiment": experiment.name(),
        "title": experiment.title(),
        "about": experiment.about(),
        "paper": experiment.paper(),
        "version": version,
        "seed": order.seed,
        "machine": match order.setting { Setting::Paper => "paper", Setting::Modern => "2026" },
        "command": order.command(),
        "parameters": parameters,
        "tables": results.tables.iter().map(table).collect::<Vec<_>>(),
        "plots": results.plots.iter().map(plot).collect::<Vec<_>>(),
        "findings": findings.collect::<Vec<_>>(),
        "notes": results.notes,
    });
    format!("{value:#}\n")
}

fn table(table: &Table) -> Value {
    let cells = table.cells.iter().map(|row| {
        let cell = |cell: &crate::Cell| {
            let mut told = json!({
                "paper": cell.paper, "simulated": cell.simulated, "here": cell.here, "fitted": cell.fitted,
            });
            if cell.within_noise {
                told["within_noise"] = true.into();
            }
            told
        };
        Value::Array(row.iter().map(cell).collect())
    });
    json!({
        "name": table.name, "title": table.title, "unit": table.unit,
        "rows_are": table.rows_are, "rows": table.rows,
        "columns_are": table.columns_are, "columns": table.columns,
        "cells": cells.collect::<Vec<_>>(),
        "differences_in_points": table.in_points,
        "variance_explained": super::sums::variance_explained(table),
    })
}

fn plot(plot: &Plot) -> Value {
    let axis = |axis: &Axis| json!({ "label": axis.label, "unit": axis.unit, "logarithmic": axis.logarithmic });
    let series = plot.series.iter().map(|series| {
        let points: Vec<[f64; 2]> = series.points.iter().map(|(x, y)| [*x, *y]).collect();
        json!({ "name": series.name, "source": source_name(series.source), "points": points })
    });
    let (drawing, groups) = match &plot.drawing {
        Drawing::Lines => ("lines", None),
        Drawing::Steps => ("steps", None),
        Drawing::Bars(groups) => ("bars", Some(groups)),
    };
    json!({
        "name": plot.name, "title": plot.title, "drawing": drawing, "groups": groups,
        "x": axis(&plot.x), "y": axis(&plot.y), "series": series.collect::<Vec<_>>(),
    })
}
