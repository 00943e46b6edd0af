//! Results of an experiment, as text for a terminal.

use super::freedom::{agreements, first_lines, trial};
use super::sums::{BY_ROW, agreement, by_row, phrases};
use super::{
    Closeness, SOURCES, difference, difference_unit, is_compared, is_grid, letters, shown, source_name, sources, value,
    wrap,
};
use crate::order::Outcome;
use crate::result::{Cell, Results, Source, Table};

#[derive(Clone, Copy, Debug)]
pub struct Terminal {
    pub colour: bool,
    pub width: usize,
}

#[derive(Clone, Copy)]
pub(super) enum Tone {
    Plain,
    Bold,
    Faint,
    Good,
    Fair,
    Bad,
}

const GAP: usize = 2;
/// Between the columns of a grid, so that the papers' thirteen fit in one line.
const GRID_GAP: usize = 1;

/// A column of text, its cells padded to the widest.
pub(super) struct Column {
    pub(super) cells: Vec<(String, Tone)>,
    right: bool,
}

impl Terminal {
    pub fn outcome(&self, outcome: &Outcome) -> String {
        let (order, results) = (&outcome.order, &outcome.results);
        let experiment = order.experiment;
        let mut text = format!("{}  {}\n", self.toned(&order.name(), Tone::Bold), experiment.sheet().title);
        let under = format!("{} · {} · seed {}", experiment.sheet().paper, outcome.place(), order.seed);
        text += &self.wrapped(&under, "", Tone::Faint);
        for (name, now, usual) in order.changed() {
            let unit = order.parameters.iter().find(|(of, _)| of.name == name).map_or("", |(of, _)| of.unit);
            let changed = format!("set: {name} = {} {unit} (otherwise {})", value(now), value(usual));
            text += &self.wrapped(&changed, "", Tone::Fair);
        }
        for line in first_lines(outcome) {
            text += &self.wrapped(&line, "", Tone::Bold);
        }
        for table in &results.tables {
            text.push('\n');
            text += &self.table(table);
        }
        text + &self.findings(results) + &self.rests_on(outcome)
    }

    /// An experiment in some lines: what it rests on, and a line for each table and each finding that does not hold.
    pub fn summary(&self, outcome: &Outcome) -> String {
        let (order, results) = (&outcome.order, &outcome.results);
        let mut text = format!("{}  {}\n", self.toned(&order.name(), Tone::Bold), order.experiment.sheet().title);
        for line in first_lines(outcome) {
            text += &self.wrapped(&line, "  ", Tone::Plain);
        }
        for table in &results.tables {
            if let Some(agreement) = agreement(table) {
                text += &self.wrapped(&format!("{}: {agreement}", table.name), "  ", Tone::Plain);
            }
        }
        for (number, finding) in results.findings.iter().enumerate().filter(|(n, finding)| *n == 0 || !finding.holds) {
            let (mark, tone) = if finding.holds { ("✓", Tone::Good) } else { ("✗", Tone::Bad) };
            let lines = wrap(&finding.text, self.width - 4);
            let indent = if number == 0 { Tone::Bold } else { Tone::Plain };
            text += &format!("  {} {}\n", self.toned(mark, tone), self.toned(&lines.join("\n    "), indent));
        }
        let sums: Vec<String> = phrases(results).into_iter().map(|(phrase, _)| phrase).collect();
        text + &self.wrapped(&sums.join(" · "), "  ", Tone::Faint)
    }

    /// Who decides, and what hangs on the free numbers.
    fn rests_on(&self, outcome: &Outcome) -> String {
        let mut text = String::new();
        let decisions = outcome.decisions();
        if !decisions.is_empty() {
            text += "\nWho decides\n";
        }
        for decision in decisions {
            text += &format!("  - {}\n", wrap(&decision, self.width - 4).join("\n    "));
        }
        let Some(of) = outcome.sensitivity() else { return text };
        text += "\nHow free it is\n";
        text += &self.wrapped(&agreements(&of), "  ", Tone::Faint);
        let mut columns =
            ["number", "kind", "value", "least", "gives", "most", "gives"].map(|head| Column::head(head, false));
        for number in &of.numbers {
            let cells = [
                number.name.clone(),
                number.kind.clone(),
                format!("{} {}", value(number.value), number.unit),
                value(number.least),
                trial(&of, &number.at_least),
                value(number.most),
                trial(&of, &number.at_most),
            ];
            columns.iter_mut().zip(cells).for_each(|(column, cell)| column.cells.push((cell, Tone::Plain)));
        }
        text += &self.columns(&columns);
        for (finding, percent) in &of.draws.held {
            let lines = wrap(finding, self.width - 26);
            text += &format!("  {percent:>3.0} % of the draws hold  {}\n", lines.join("\n                          "));
        }
        text
    }

    fn findings(&self, results: &Results) -> String {
        let mut text = String::new();
        if !results.findings.is_empty() {
            text += "\nFindings\n";
        }
        for finding in &results.findings {
            let (mark, tone) = if finding.holds { ("✓ yes", Tone::Good) } else { ("✗ no ", Tone::Bad) };
            let lines = wrap(&finding.text, self.width - 9);
            text += &format!("  {}  {}\n", self.toned(mark, tone), lines.join("\n         "));
        }
        if !results.notes.is_empty() {
            text += "\nNotes\n";
        }
        for note in &results.notes {
            text += &format!("  - {}\n", wrap(note, self.width - 4).join("\n    "));
        }
        text
    }

    fn table(&self, table: &Table) -> String {
        let unit = if table.unit.is_empty() { String::new() } else { format!(" ({})", table.unit) };
        let mut text = self.wrapped(&format!("{}{unit}", table.title), "", Tone::Bold);
        text += &if is_grid(table) { self.grid(table) } else { self.rows(table) };
        if table.cells.iter().flatten().any(|cell| cell.fitted) {
            text += &self.wrapped("* a parameter was fitted on this cell: no prediction", "  ", Tone::Faint);
        }
        if table.cells.iter().flatten().any(|cell| cell.input && cell.paper.is_some()) {
            text += &self.wrapped("= an input determines this cell: no prediction", "  ", Tone::Faint);
        }
        if let Some(agreement) = agreement(table) {
            text += &self.wrapped(&agreement, "  ", Tone::Plain);
        }
        let rows = by_row(table);
        if !rows.is_empty() {
            text += &self.wrapped(
                "row by row, the part of the variance about the row's mean that is explained",
                "  ",
                Tone::Faint,
            );
            let mut columns = BY_ROW.map(|head| Column::head(head, true));
            for row in rows {
                columns.iter_mut().zip(row).for_each(|(column, cell)| column.cells.push((cell, Tone::Plain)));
            }
            text += &self.columns(&columns);
        }
        text
    }

    /// A row for each cell.
    fn rows(&self, table: &Table) -> String {
        let of_both = || table.rows.iter().enumerate().zip(&table.cells);
        let numbered =
            || of_both().flat_map(|((row, _), cells)| cells.iter().take(table.columns.len()).map(move |of| (row, of)));
        let cells = || numbered().map(|(_, cell)| cell);
        let mut columns = vec![Column::head(&table.rows_are, false)];
        let names = of_both().flat_map(|((_, row), cells)| {
            let name = |index| if index == 0 { row.clone() } else { String::new() };
            cells.iter().take(table.columns.len()).enumerate().map(move |(index, _)| (name(index), Tone::Plain))
        });
        columns[0].cells.extend(names);
        if table.columns.len() > 1 {
            let mut column = Column::head(&table.columns_are, false);
            let names = table.cells.iter().flat_map(|cells| table.columns.iter().take(cells.len()));
            column.cells.extend(names.map(|name| (name.clone(), Tone::Plain)));
            columns.push(column);
        }
        for source in sources(table) {
            let mut column = Column::head(source_name(source), true);
            column.cells.extend(cells().map(|cell| (shown(table, cell, source), Tone::Plain)));
            columns.push(column);
            if source == Source::Simulated && is_compared(table) {
                let mut column = Column::head(difference_unit(table), true);
                column.cells.extend(numbered().map(|(row, cell)| difference_shown(table, row, cell)));
                columns.push(column);
            }
        }
        self.columns(&columns)
    }

    /// As in the paper, with a block of rows for each row, and as many columns at a time as fit.
    fn grid(&self, table: &Table) -> String {
        let widest = |column: usize| {
            let cells = table.cells.iter().filter_map(|row| row.get(column));
            let texts = cells.flat_map(|cell| {
                let numbers = SOURCES.map(|source| shown(table, cell, source));
                numbers.into_iter().chain([difference(table, cell).unwrap_or_default()])
            });
            texts.map(|text| letters(&text)).chain([letters(&table.columns[column])]).max().unwrap_or(0)
        };
        let names = table.rows.iter().chain([&table.rows_are]).map(|name| letters(name)).max().unwrap_or(0);
        let kinds = letters(&table.columns_are).max("difference".len());
        // The last column has no gap behind it.
        let room = (self.width + GRID_GAP).saturating_sub(2 + names + 2 * GRID_GAP + kinds);
        let (mut text, mut first) = (String::new(), 0);
        while first < table.columns.len() {
            let mut used = 0;
            let fitting = (first..table.columns.len()).take_while(|column| {
                used += widest(*column) + GRID_GAP;
                used <= room
            });
            let end = first + fitting.count().max(1);
            if !text.is_empty() {
                text.push('\n');
            }
            text += &self.grid_part(table, first..end);
            first = end;
        }
        text
    }

    fn grid_part(&self, table: &Table, part: std::ops::Range<usize>) -> String {
        let (sources, compared) = (sources(table), is_compared(table));
        let alone = sources.len() == 1;
        let mut columns = vec![Column::head(&table.rows_are, false), Column::head(&table.columns_are, false)];
        columns.extend(part.clone().map(|column| Column::head(&table.columns[column], true)));
        for (number, (row, cells)) in table.rows.iter().zip(&table.cells).enumerate() {
            let mut line = |kind: &str, named: bool, of: &dyn Fn(&Cell) -> (String, Tone)| {
                columns[0].cells.push((if named { row.clone() } else { String::new() }, Tone::Bold));
                columns[1].cells.push((kind.to_owned(), Tone::Faint));
                for (index, column) in part.clone().enumerate() {
                    columns[index + 2].cells.push(cells.get(column).map_or((String::new(), Tone::Plain), of));
                }
            };
            // A row without a published number has none to show.
            let is_shown = |source: &&Source| {
                **source != Source::Paper || alone || cells.iter().any(|cell| cell.from(Source::Paper).is_some())
            };
            let sources: Vec<Source> = sources.iter().filter(is_shown).copied().collect();
            for source in &sources {
                let kind = if alone { "" } else { source_name(*source) };
                line(kind, *source == sources[0], &|cell| (shown(table, cell, *source), Tone::Plain));
                if *source == Source::Simulated && compared {
                    line("difference", false, &|cell| difference_shown(table, number, cell));
                }
            }
        }
        self.spaced(&columns, GRID_GAP)
    }

    pub(super) fn columns(&self, columns: &[Column]) -> String {
        self.spaced(columns, GAP)
    }

    fn spaced(&self, columns: &[Column], gap: usize) -> String {
        let gap = " ".repeat(gap);
        let rows = columns.iter().map(|column| column.cells.len()).max().unwrap_or(0);
        let widths: Vec<usize> = columns.iter().map(Column::width).collect();
        let mut text = String::new();
        for row in 0..rows {
            let mut line = String::from("  ");
            for (column, width) in columns.iter().zip(&widths).filter(|(_, width)| **width > 0) {
                let Some((cell, tone)) = column.cells.get(row) else { continue };
                let space = " ".repeat(width.saturating_sub(letters(cell)));
                let cell = self.toned(cell, *tone);
                line += &if column.right { format!("{space}{cell}{gap}") } else { format!("{cell}{space}{gap}") };
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    /// Wraps and indents text.
    pub(super) fn wrapped(&self, text: &str, indent: &str, tone: Tone) -> String {
        let lines = wrap(text, self.width - letters(indent));
        lines.iter().map(|line| format!("{indent}{}\n", self.toned(line, tone))).collect()
    }

    pub(super) fn toned(&self, text: &str, tone: Tone) -> String {
        let code = match tone {
            _ if !self.colour || text.is_empty() => return text.to_owned(),
            Tone::Plain => return text.to_owned(),
            Tone::Bold => "1",
            Tone::Faint => "2",
            Tone::Good => "32",
            Tone::Fair => "33",
            Tone::Bad => "31",
        };
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    }
}

impl Column {
    pub(super) fn head(name: &str, right: bool) -> Self {
        Column { cells: vec![(name.to_owned(), Tone::Faint)], right }
    }

    fn width(&self) -> usize {
        self.cells.iter().map(|(cell, _)| letters(cell)).max().unwrap_or(0)
    }
}

fn difference_shown(table: &Table, row: usize, cell: &Cell) -> (String, Tone) {
    let tone = match Closeness::of(table, row, cell) {
        _ if cell.fitted || cell.input => Tone::Faint,
        Some(Closeness::Close) => Tone::Good,
        Some(Closeness::Near) => Tone::Fair,
        Some(Closeness::Far) => Tone::Bad,
        None => Tone::Plain,
    };
    (difference(table, cell).unwrap_or_default(), tone)
}
