//! JSON, for programs: all parameters and results of an experiment.

use serde_json::{Value, json};

use crate::order::{Outcome, Setting};
use crate::result::{Plot, Table};

pub fn outcome(outcome: &Outcome, version: &str) -> String {
    let (order, results) = (&outcome.order, &outcome.results);
    let experiment = order.experiment;
    let parameters: Vec<Value> = order
        .parameters
        .iter()
        .map(|(parameter, value)| {
            let is_modern = order.setting == Setting::Modern && value != parameter.default;
            let modern = experiment.sheet().modern_origin(parameter.name);
            let origin = if is_modern { modern } else { parameter.origin };
            let (kind, text) = (origin.kind(), origin.text());
            let plausible =
                parameter.origin.is_free().then(|| [parameter.plausible.start(), parameter.plausible.end()]);
            json!({
                "name": parameter.name, "about": parameter.about, "unit": parameter.unit,
                "value": value, "default": parameter.default,
                "min": parameter.range.start(), "max": parameter.range.end(),
                "origin": { "kind": kind, "text": text }, "plausible": plausible,
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
        "decisions": outcome.decisions(),
        "sensitivity": outcome.sensitivity(),
    });
    format!("{value:#}\n")
}

fn table(table: &Table) -> Value {
    let mut value = json!(table);
    value["agreement"] = json!(table.agreement());
    value["variance_explained"] = json!(table.agreement().and_then(|agreement| agreement.explained));
    value["agreement_by_row"] = json!(table.row_agreements());
    value
}

fn plot(plot: &Plot) -> Value {
    let mut value = json!(plot);
    // Only bars have groups.
    value["groups"] = value["groups"].take();
    value
}
