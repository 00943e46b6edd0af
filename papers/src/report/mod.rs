//! Reports: results for readers and for programs. Texts only; the caller writes them to files.
//!
//! None of them holds a time or anything else of the host: the same seed and version give the same bytes.

pub mod csv;
mod description;
mod escape;
mod freedom;
pub mod html;
pub mod json;
pub mod plot;
mod scale;
pub mod style;
mod sums;
mod tables;
pub mod terminal;

pub use html::Heading;

use crate::order::Outcome;
use crate::result::{Cell, Source, Table};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    pub name: String,
    pub text: String,
}

/// All files of a report: `report.html`, and for each experiment one of JSON and, for each table, one of CSV.
pub fn files(outcomes: &[Outcome], heading: &Heading) -> Vec<File> {
    let mut files = vec![File { name: "report.html".to_owned(), text: html::page(outcomes, heading) }];
    for outcome in outcomes {
        let name = outcome.order.name();
        files.push(File { name: format!("{name}.json"), text: json::outcome(outcome, &heading.version) });
        if let Some(measured) = &outcome.measured {
            files.push(File { name: format!("{name}.sensitivity.json"), text: measured.json() });
        }
        for table in &outcome.results.tables {
            files.push(File { name: format!("{name}-{}.csv", file_name(&table.name)), text: csv::table(table) });
        }
    }
    files
}

/// Replaces what file systems may not accept.
fn file_name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    name.chars().map(plain).collect()
}

/// How near a simulated number is to the published one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closeness {
    /// Within 5 % of it (of the span of the row's published cells, where cells differ in points).
    Close,
    /// Within 15 %, which is the target.
    Near,
    Far,
}

/// The target for the largest difference, in percent.
const AIM_PERCENT: f64 = 15.0;

impl Closeness {
    /// Of a cell in that row. Points are compared with the span of the row: a row with large numbers must not excuse
    /// what is wrong in the others.
    fn of(table: &Table, row: usize, cell: &Cell) -> Option<Self> {
        let percent = match table.in_points {
            true => cell.difference()? / table.span(row) * 100.0,
            false => cell.difference_percent()?,
        };
        Some(match percent.abs() {
            ..=5.0 => Closeness::Close,
            ..=AIM_PERCENT => Closeness::Near,
            _ => Closeness::Far,
        })
    }
}

/// `+3.4 %`, or `-1.2` for points.
fn difference(table: &Table, cell: &Cell) -> Option<String> {
    match table.in_points {
        true => cell.difference().map(|points| signed(points, table.digits.max(1), "")),
        false => cell.difference_percent().map(|percent| signed(percent, 1, " %")),
    }
}

fn difference_unit(table: &Table) -> &'static str {
    if table.in_points { "difference, points" } else { "difference" }
}

fn signed(value: f64, digits: usize, unit: &str) -> String {
    let text = number(value, digits);
    let sign = if text.starts_with('-') || text.trim_start_matches(['0', '.']).is_empty() { "" } else { "+" };
    format!("{sign}{text}{unit}")
}

/// With `digits` after the point, and commas between thousands from ten thousand on.
pub fn number(value: f64, digits: usize) -> String {
    grouped(value, digits, 5)
}

/// With `digits` after the point, and commas between thousands if there are so many digits before it.
pub fn grouped(value: f64, digits: usize, from: usize) -> String {
    if !value.is_finite() {
        return "n/a".to_owned();
    }
    let text = format!("{:.digits$}", value.abs());
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let nothing = text.trim_matches(['0', '.']).is_empty();
    let mut shown = if value < 0.0 && !nothing { "-".to_owned() } else { String::new() };
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && whole.len() >= from && (whole.len() - index).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    if digits > 0 {
        shown.push('.');
        shown.push_str(fraction);
    }
    shown
}

/// A parameter's value, as short as possible: without what binary fractions add in the last digits.
pub fn value(value: f64) -> String {
    let text = format!("{value}");
    let text = match text.split_once('.') {
        Some((_, fraction)) if fraction.len() > 12 => {
            let digits = fraction.bytes().take_while(|digit| *digit == b'0').count() + 12;
            format!("{value:.digits$}").trim_end_matches('0').trim_end_matches('.').to_owned()
        }
        _ => text,
    };
    match text.split_once('.') {
        None if value.abs() < 1e15 => number(value, 0),
        _ => text,
    }
}

const SOURCES: [Source; 3] = [Source::Paper, Source::Simulated, Source::Local];

fn source_name(source: Source) -> &'static str {
    match source {
        Source::Paper => "paper",
        Source::Simulated => "simulated",
        Source::Local => "this machine",
    }
}

/// Where its numbers come from.
fn sources(table: &Table) -> Vec<Source> {
    let has = |source: &Source| table.cells.iter().flatten().any(|cell| cell.from(*source).is_some());
    SOURCES.into_iter().filter(has).collect()
}

/// Are there simulated numbers beside published ones?
fn is_compared(table: &Table) -> bool {
    sources(table).starts_with(&[Source::Paper, Source::Simulated])
}

/// A cell's number of that source, with its marks; empty without one.
fn shown(table: &Table, cell: &Cell, source: Source) -> String {
    let mark = match source {
        Source::Simulated if cell.fitted => "*",
        Source::Simulated if cell.input && cell.paper.is_some() => "=",
        Source::Local if cell.within_noise => "~",
        _ => "",
    };
    cell.from(source).map(|value| number(value, digits(table, value)) + mark).unwrap_or_default()
}

/// Digits after the point: in a grid of percentages, large ones have three digits as the papers print them.
fn digits(table: &Table, value: f64) -> usize {
    let is_large = table.in_points && is_grid(table) && value.abs() >= 99.95;
    if is_large { table.digits.saturating_sub(1) } else { table.digits }
}

/// A large table is shown as a grid, a small one with a row for each cell.
fn is_grid(table: &Table) -> bool {
    table.rows.len() * table.columns.len() > 16
}

fn letters(text: &str) -> usize {
    text.chars().count()
}

/// Lines of at most `width` letters, broken between words.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if letters(line) + 1 + letters(word) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shown_with_their_digits_and_never_as_minus_nothing() {
        assert_eq!(number(-0.04, 1), "0.0");
        assert_eq!(number(1234.0, 0), "1234");
        assert_eq!(number(12345.678, 1), "12,345.7");
        assert_eq!(number(-1_234_567.0, 0), "-1,234,567");
        assert_eq!(number(f64::NAN, 1), "n/a");
        assert_eq!((value(0.125), value(20000.0)), ("0.125".to_owned(), "20,000".to_owned()));
        assert_eq!([value(0.1 + 0.2), value(11.700_000_000_000_001), value(1e-6)], ["0.3", "11.7", "0.000001"]);
    }

    #[test]
    fn differences_have_a_sign_unless_there_is_none() {
        let table = |in_points| Table { in_points, digits: 1, ..Table::default() };
        assert_eq!(difference(&table(false), &Cell::of(200.0, 230.0)), Some("+15.0 %".to_owned()));
        assert_eq!(difference(&table(true), &Cell::of(7.7, 5.2)), Some("-2.5".to_owned()));
        assert_eq!(difference(&table(true), &Cell::of(7.7, 7.7)), Some("0.0".to_owned()));
        assert_eq!(difference(&table(false), &Cell::of(0.0, 1.0)), None);
    }

    #[test]
    fn a_row_of_large_numbers_does_not_excuse_the_others() {
        let cells =
            vec![vec![Cell::of(0.0, 0.0), Cell::of(600.0, 620.0)], vec![Cell::of(8.0, 1.0), Cell::of(4.0, 4.0)]];
        let table = Table { in_points: true, cells, ..Table::default() };
        assert_eq!(Closeness::of(&table, 0, &table.cells[0][1]), Some(Closeness::Close));
        assert_eq!(Closeness::of(&table, 1, &table.cells[1][0]), Some(Closeness::Far));
    }

    #[test]
    fn names_of_files_stay_in_their_directory() {
        assert_eq!(file_name("../a b"), "..-a-b");
    }
}
