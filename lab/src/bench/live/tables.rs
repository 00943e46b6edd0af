//! The tables of `live.json`, read and written as Markdown.

use anyhow::Result;
use papers::result::{Cell, Table};
use serde::Deserialize;

#[derive(Deserialize)]
pub(super) struct Tables {
    tables: Vec<Table>,
    notes: Vec<String>,
}

impl Tables {
    pub(super) fn read(text: &str) -> Result<Tables> {
        Ok(serde_json::from_str(text)?)
    }

    pub(super) fn cell(&self, table: &str, row: &str, column: &str) -> Option<Cell> {
        let table = self.tables.iter().find(|of| of.name == table)?;
        let place = |names: &[String], wanted: &str| names.iter().position(|name| name == wanted);
        table.cells.get(place(&table.rows, row)?)?.get(place(&table.columns, column)?).copied()
    }

    pub(super) fn markdown(&self) -> String {
        self.tables.iter().map(|table| format!("\n{}", markdown(table))).collect()
    }

    pub(super) fn notes(&self) -> String {
        self.notes.iter().map(|note| format!("- {note}\n")).collect()
    }
}

fn markdown(table: &Table) -> String {
    let unit = if table.unit.is_empty() { String::new() } else { format!(" ({})", table.unit) };
    let mut text = format!("## {}{unit}\n\n| {} |", table.title, table.rows_are);
    let has_paper = table.cells.iter().flatten().any(|cell| cell.paper.is_some());
    table.columns.iter().for_each(|column| text += &format!(" {column} |"));
    text += if has_paper { " in the paper |\n" } else { "\n" };
    text += &"|---".repeat(table.columns.len() + 1 + usize::from(has_paper));
    text += "|\n";
    for (name, cells) in table.rows.iter().zip(&table.cells) {
        text += &format!("| {name} |");
        cells.iter().for_each(|cell| text += &format!(" {} |", show(*cell)));
        if has_paper {
            let published = cells.iter().enumerate().find_map(|(at, cell)| Some((at, cell.paper?)));
            text += &match published {
                Some((at, ratio)) => format!(" {ratio:.2} ({}) |\n", table.columns[at]),
                None => " – |\n".to_owned(),
            };
        } else {
            text += "\n";
        }
    }
    text
}

/// With as many digits as are significant.
pub(super) fn show(cell: Cell) -> String {
    let Some(number) = cell.local else { return "–".to_owned() };
    let digits = match number.abs() {
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        _ => 3,
    };
    format!("{}{}", papers::report::number(number, digits), if cell.within_noise { " ~" } else { "" })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) const TEXT: &str = r#"{ "notes": ["A server."], "tables": [{
        "name": "worth", "title": "What it is worth", "unit": "", "rows_are": "switch and value",
        "rows": ["trace: off", "quantum: off"], "columns": ["requests/s", "CPU time"],
        "cells": [
            [{ "here": 0.99, "paper": null, "within_noise": true }, { "here": 1.01, "paper": 1.43 }],
            [{ "here": 1.25, "paper": null }, { "here": null, "paper": null }]
        ] }] }"#;

    #[test]
    fn a_table_is_written_with_the_papers_ratio_or_a_dash_and_what_is_noise() {
        let text = Tables::read(TEXT).unwrap().markdown();
        let expected = "\n## What it is worth\n\n| switch and value | requests/s | CPU time | in the paper |\n\
                        |---|---|---|---|\n| trace: off | 0.990 ~ | 1.01 | 1.43 (CPU time) |\n\
                        | quantum: off | 1.25 | – | – |\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_cell_is_found_by_its_names_and_none_is_made_up() {
        let tables = Tables::read(TEXT).unwrap();
        assert_eq!(tables.cell("worth", "quantum: off", "requests/s").unwrap().local, Some(1.25));
        assert_eq!(tables.cell("worth", "quantum: 24ms", "requests/s"), None);
        assert!(Tables::read("{}").is_err());
    }
}
