//! CSV (RFC 4180): a line for each cell, numbers in full precision.

use crate::result::{Cell, Table};

pub fn table(table: &Table) -> String {
    let mut text = line(&[
        named(&table.rows_are, "row"),
        named(&table.columns_are, "column"),
        with_unit("paper", &table.unit),
        with_unit("simulated", &table.unit),
        with_unit("here", &table.unit),
        "no prediction".to_owned(),
    ]);
    for (row, cells) in table.rows.iter().zip(&table.cells) {
        for (column, cell) in table.columns.iter().zip(cells) {
            let fitted = match cell {
                Cell { fitted: true, .. } => "fitted",
                Cell { input: true, paper: Some(_), .. } => "input",
                _ => "",
            };
            let fitted = fitted.to_owned();
            let numbers = [cell.paper, cell.simulated, cell.local].map(number);
            let [paper, simulated, local] = numbers;
            text += &line(&[row.clone(), column.clone(), paper, simulated, local, fitted]);
        }
    }
    text
}

fn named(name: &str, otherwise: &str) -> String {
    if name.is_empty() { otherwise } else { name }.to_owned()
}

fn with_unit(name: &str, unit: &str) -> String {
    if unit.is_empty() { name.to_owned() } else { format!("{name} ({unit})") }
}

/// The shortest text that is distinct from all other numbers.
pub(crate) fn number(value: Option<f64>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// Fields as one line, with quotes where they are needed.
pub(crate) fn line(fields: &[String]) -> String {
    let quoted = |field: &String| match field.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field.clone(),
    };
    fields.iter().map(quoted).collect::<Vec<_>>().join(",") + "\r\n"
}

/// The fields of one line without its end.
pub(crate) fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut quoted = false;
    let mut characters = line.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '"' if quoted && characters.peek() == Some(&'"') => {
                characters.next();
                push(&mut fields, '"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            _ => push(&mut fields, character),
        }
    }
    fields
}

fn push(fields: &mut [String], character: char) {
    if let Some(last) = fields.last_mut() {
        last.push(character);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_a_comma_or_quotes_is_one_field_still() {
        let all = ["with, merge", "the \"usual\"", "plain", ""].map(str::to_owned);
        let written = line(&all);
        assert_eq!(written, "\"with, merge\",\"the \"\"usual\"\"\",plain,\r\n");
        assert_eq!(fields(written.trim_end()), all);
    }
}
