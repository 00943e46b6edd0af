//! JSON, for programs: all parameters and results of an experiment.

use serde_json::{Value, json};

use super::origin;
use crate::order::{Outcome, Setting};
use crate::result::{Plot, Table};

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
    let value = json!({
        "experiment": experiment.name(),
        "title": experiment.sheet().title,
        "about": experiment.sheet().about,
        "paper": experiment.sheet().paper,
        "version": version,
        "seed": order.seed,
        "machine": match order.setting { Setting::Paper => "paper", Setting::Modern => "2026" },
        "command": order.command(),
        "parameters": parameters,
        "tables": results.tables.iter().map(table).collect::<Vec<_>>(),
        "plots": results.plots.iter().map(plot).collect::<Vec<_>>(),
        "findings": results.findings,
        "notes": results.notes,
    });
    format!("{value:#}\n")
}

fn table(table: &Table) -> Value {
    let mut value = json!(table);
    value["variance_explained"] = json!(super::sums::variance_explained(table));
    value
}

fn plot(plot: &Plot) -> Value {
    let mut value = json!(plot);
    // Only bars have groups.
    value["groups"] = value["groups"].take();
    value
}
