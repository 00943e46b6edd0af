//! Tables of the HTML report.

use std::fmt::Write as _;

use super::escape::escaped;
use super::sums::{BY_ROW, agreement, by_row};
use super::{Closeness, difference, difference_unit, file_name, is_compared, is_grid, shown, source_name, sources};
use crate::result::{Cell, Source, Table};

/// A table with its heading, differences shaded. `of` is the experiment's name for files.
pub(super) fn table(table: &Table, of: &str) -> String {
    let unit =
        if table.unit.is_empty() { String::new() } else { format!(" <small>({})</small>", escaped(&table.unit)) };
    let mut html = format!("<div class=table><h4>{}{unit}</h4>\n<div class=wide>", escaped(&table.title));
    html += &if is_grid(table) { grid(table) } else { list(table) };
    html += "</div>\n<p class=under>";
    if table.cells.iter().flatten().any(|cell| cell.fitted) {
        html += "<span>* a parameter was fitted on this cell: no prediction</span> ";
    }
    if table.cells.iter().flatten().any(|cell| cell.input && cell.paper.is_some()) {
        html += "<span>= an input determines this cell: no prediction</span> ";
    }
    if let Some(text) = agreement(table) {
        let _ = write!(html, "<span>{}</span> ", escaped(&text));
    }
    let file = format!("{of}-{}.csv", file_name(&table.name));
    let _ = writeln!(html, "<a href=\"{0}\">{0}</a></p>{1}</div>", escaped(&file), rows(table));
    html
}

/// Row by row, what the model and its rivals explain.
fn rows(table: &Table) -> String {
    let rows = by_row(table);
    if rows.is_empty() {
        return String::new();
    }
    let head: String = BY_ROW.iter().map(|name| format!("<th scope=col class=n>{name}</th>")).collect();
    let row = |cells: &[String; 6]| {
        let cells: String = cells.iter().map(|cell| format!("<td class=n>{}</td>", escaped(cell))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let body: String = rows.iter().map(row).collect();
    format!(
        "<details><summary>Row by row: the variance about the row's mean that the model explains, and its \
         rivals</summary>\n<table class=list><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></details>\n"
    )
}

fn list(table: &Table) -> String {
    let (sources, compared) = (sources(table), is_compared(table));
    let several = table.columns.len() > 1;
    let mut html = format!("<table class=list><thead><tr><th scope=col>{}</th>", escaped(&table.rows_are));
    if several {
        let _ = write!(html, "<th scope=col>{}</th>", escaped(&table.columns_are));
    }
    for source in &sources {
        let _ = write!(html, "<th scope=col class=n>{}</th>", source_name(*source));
        if *source == Source::Simulated && compared {
            let _ = write!(html, "<th scope=col class=n>{}</th>", difference_unit(table));
        }
    }
    html += "</tr></thead>\n<tbody>";
    for (number, (row, cells)) in table.rows.iter().zip(&table.cells).enumerate() {
        let span = cells.len().min(table.columns.len());
        for (index, (column, cell)) in table.columns.iter().zip(cells).enumerate() {
            html += if index == 0 { "<tr class=first>" } else { "<tr>" };
            if index == 0 {
                let _ = write!(html, "<th scope=rowgroup rowspan={span}>{}</th>", escaped(row));
            }
            if several {
                let _ = write!(html, "<th scope=row>{}</th>", escaped(column));
            }
            for source in &sources {
                let _ = write!(html, "<td class=\"n {}\">{}</td>", class(*source), shown(table, cell, *source));
                if *source == Source::Simulated && compared {
                    let text = difference(table, cell).unwrap_or_default();
                    let _ = write!(html, "<td class=\"n {}\">{text}</td>", shade(table, number, cell));
                }
            }
            html += "</tr>\n";
        }
    }
    html + "</tbody></table>"
}

/// As in the paper: simulated values, shaded, with the published ones below.
fn grid(table: &Table) -> String {
    let mut html = String::from("<table class=grid><thead><tr>");
    let corner = [table.rows_are.as_str(), table.columns_are.as_str()].map(escaped);
    let _ = write!(html, "<th scope=col>{} \\ {}</th>", corner[0], corner[1]);
    for column in &table.columns {
        let _ = write!(html, "<th scope=col class=n>{}</th>", escaped(column));
    }
    html += "</tr></thead>\n<tbody>";
    for (number, (row, cells)) in table.rows.iter().zip(&table.cells).enumerate() {
        let _ = write!(html, "<tr><th scope=row>{}</th>", escaped(row));
        for cell in cells {
            let tooltip =
                difference(table, cell).map(|text| format!(" title=\"difference {text}\"")).unwrap_or_default();
            let _ = write!(html, "<td class=\"n {}\"{tooltip}>", shade(table, number, cell));
            for source in [Source::Simulated, Source::Paper, Source::Local] {
                let text = shown(table, cell, source);
                if !text.is_empty() {
                    let _ = write!(html, "<span class={}>{text}</span>", class(source));
                }
            }
            html += "</td>";
        }
        html += "</tr>\n";
    }
    html += "</tbody></table>";
    let present = sources(table).into_iter();
    let present: Vec<String> =
        present.map(|source| format!("<span class={}>{}</span>", class(source), source_name(source))).collect();
    if present.len() > 1 { html + "<p class=key>" + &present.join(" ") + "</p>" } else { html }
}

fn class(source: Source) -> &'static str {
    match source {
        Source::Paper => "paper",
        Source::Simulated => "simulated",
        Source::Local => "here",
    }
}

fn shade(table: &Table, row: usize, cell: &Cell) -> &'static str {
    match Closeness::of(table, row, cell) {
        _ if cell.fitted || (cell.input && cell.paper.is_some()) => "fitted",
        Some(Closeness::Close) => "close",
        Some(Closeness::Near) => "near",
        Some(Closeness::Far) => "far",
        None => "",
    }
}
