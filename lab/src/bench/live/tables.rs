//! The tables of `live.json`, and the same as Markdown.

use anyhow::{Context, Result};
use serde_json::Value;

/// What `awase lab run live` has written.
pub(super) struct Tables {
    tables: Vec<Table>,
    notes: Vec<String>,
}

struct Table {
    name: String,
    title: String,
    unit: String,
    rows_are: String,
    columns: Vec<String>,
    rows: Vec<(String, Vec<Cell>)>,
}

/// A number that was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Cell {
    /// The number; none where there was nothing to compare.
    pub(super) here: Option<f64>,
    pub(super) paper: Option<f64>,
    /// Do repetitions differ by more?
    pub(super) within_noise: bool,
}

impl Tables {
    pub(super) fn read(text: &str) -> Result<Tables> {
        let value: Value = serde_json::from_str(text)?;
        let list = |key: &str| value[key].as_array().with_context(|| format!("{key:?} is missing"));
        let tables = list("tables")?.iter().map(table).collect();
        let notes = list("notes")?.iter().map(string).collect();
        Ok(Tables { tables, notes })
    }

    /// The cell of that table, row and column (counted from 0).
    pub(super) fn cell(&self, table: &str, row: &str, column: usize) -> Option<Cell> {
        let table = self.tables.iter().find(|of| of.name == table)?;
        let (_, cells) = table.rows.iter().find(|(name, _)| name == row)?;
        cells.get(column).copied()
    }

    pub(super) fn markdown(&self) -> String {
        self.tables.iter().map(|table| format!("\n{}", table.markdown())).collect()
    }

    /// What a reader should know.
    pub(super) fn notes(&self) -> String {
        self.notes.iter().map(|note| format!("- {note}\n")).collect()
    }
}

impl Table {
    fn markdown(&self) -> String {
        let unit = if self.unit.is_empty() { String::new() } else { format!(" ({})", self.unit) };
        let mut text = format!("## {}{unit}\n\n| {} |", self.title, self.rows_are);
        let has_paper = self.rows.iter().flat_map(|(_, cells)| cells).any(|cell| cell.paper.is_some());
        self.columns.iter().for_each(|column| text += &format!(" {column} |"));
        text += if has_paper { " in the paper |\n" } else { "\n" };
        text += &"|---".repeat(self.columns.len() + 1 + usize::from(has_paper));
        text += "|\n";
        for (name, cells) in &self.rows {
            text += &format!("| {name} |");
            cells.iter().for_each(|cell| text += &format!(" {} |", cell.show()));
            if has_paper {
                let published = cells.iter().enumerate().find_map(|(at, cell)| Some((at, cell.paper?)));
                text += &match published {
                    Some((at, ratio)) => format!(" {ratio:.2} ({}) |\n", self.columns[at]),
                    None => " – |\n".to_owned(),
                };
            } else {
                text += "\n";
            }
        }
        text
    }
}

impl Cell {
    /// With as many digits as say something.
    pub(super) fn show(&self) -> String {
        let Some(number) = self.here else { return "–".to_owned() };
        let digits = match number.abs() {
            100.0.. => 0,
            10.0.. => 1,
            1.0.. => 2,
            _ => 3,
        };
        format!("{}{}", crate::report::number(number, digits), if self.within_noise { " ~" } else { "" })
    }
}

fn table(value: &Value) -> Table {
    let names = |key: &str| value[key].as_array().into_iter().flatten().map(string).collect::<Vec<_>>();
    let cell = |cell: &Value| Cell {
        here: cell["here"].as_f64(),
        paper: cell["paper"].as_f64(),
        within_noise: cell["within_noise"].as_bool().unwrap_or(false),
    };
    let row = |row: &Value| row.as_array().into_iter().flatten().map(cell).collect();
    let cells = value["cells"].as_array().into_iter().flatten().map(row);
    Table {
        name: string(&value["name"]),
        title: string(&value["title"]),
        unit: string(&value["unit"]),
        rows_are: string(&value["rows_are"]),
        columns: names("columns"),
        rows: names("rows").into_iter().zip(cells).collect(),
    }
}

fn string(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) const TEXT: &str = r#"{ "notes": ["A server."], "tables": [{
        "name": "worth", "title": "What it is worth", "unit": "", "rows_are": "switch and value",
        "rows": ["trace: off", "quantum: off"], "columns": ["requests a second", "processor time"],
        "cells": [
            [{ "here": 0.99, "paper": null, "within_noise": true }, { "here": 1.01, "paper": 1.43 }],
            [{ "here": 1.25, "paper": null }, { "here": null, "paper": null }]
        ] }] }"#;

    #[test]
    fn a_table_is_written_with_the_papers_ratio_or_a_dash_and_what_is_noise() {
        let text = Tables::read(TEXT).unwrap().markdown();
        let expected = "\n## What it is worth\n\n| switch and value | requests a second | processor time | in the paper |\n\
                        |---|---|---|---|\n| trace: off | 0.990 ~ | 1.01 | 1.43 (processor time) |\n\
                        | quantum: off | 1.25 | – | – |\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_cell_is_found_by_its_names_and_none_is_made_up() {
        let tables = Tables::read(TEXT).unwrap();
        assert_eq!(tables.cell("worth", "quantum: off", 0).unwrap().here, Some(1.25));
        assert_eq!(tables.cell("worth", "quantum: 24ms", 0), None);
        assert!(Tables::read("{}").is_err());
    }
}
