//! Recorded results: an experiment's tables, simulated with its defaults, so that a change of a policy or model that
//! moves a published table is noticed.

use std::collections::BTreeMap;

use crate::report::csv::{fields, line, number};
use crate::result::Results;

/// Simulated numbers are the same if they differ by no more than this part: the last bits of some functions are those
/// of the host's library.
const SAME_WITHIN: f64 = 1e-9;

const HEAD: &str = "table,row,column,simulated\r\n";

pub fn text(results: &Results) -> String {
    let mut text = HEAD.to_owned();
    for (key, value) in cells(results) {
        text += &line(&[key.0, key.1, key.2, number(Some(value))]);
    }
    text
}

/// Where results are not as recorded: a sentence for each such cell.
pub fn drifts(recorded: &str, results: &Results) -> Vec<String> {
    let mut before: BTreeMap<Key, String> = BTreeMap::new();
    for line in recorded.lines().skip(1) {
        if let Ok([table, row, column, value]) = <[String; 4]>::try_from(fields(line)) {
            before.insert((table, row, column), value);
        }
    }
    let mut drifts = Vec::new();
    for (key, now) in cells(results) {
        let (table, row, column) = &key;
        let place = format!("table {table}, row {row:?}, column {column:?}");
        match before.remove(&key) {
            None => drifts.push(format!("{place}: {now} is not recorded")),
            Some(then) => match then.parse::<f64>() {
                Ok(value) if same(value, now) => {}
                Ok(value) if value != 0.0 => {
                    let percent = (now / value - 1.0) * 100.0;
                    drifts.push(format!("{place}: {now}, recorded {then} ({percent:+.3} %)"));
                }
                _ => drifts.push(format!("{place}: {now}, recorded {then}")),
            },
        }
    }
    let gone = before.into_iter();
    drifts.extend(gone.map(|((table, row, column), then)| {
        format!("table {table}, row {row:?}, column {column:?}: nothing, recorded {then}")
    }));
    drifts
}

type Key = (String, String, String);

fn cells(results: &Results) -> Vec<(Key, f64)> {
    let mut cells = Vec::new();
    for table in &results.tables {
        for (row, of_row) in table.rows.iter().zip(&table.cells) {
            for (column, cell) in table.columns.iter().zip(of_row) {
                let key = (table.name.clone(), row.clone(), column.clone());
                cells.extend(cell.simulated.map(|value| (key, value)));
            }
        }
    }
    cells
}

fn same(a: f64, b: f64) -> bool {
    (a - b).abs() <= SAME_WITHIN * a.abs().max(b.abs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{Cell, Table};

    fn results(cells: [f64; 2]) -> Results {
        let table = Table {
            name: "speed".into(),
            rows: vec!["with, merge".into()],
            columns: vec!["read".into(), "write".into()],
            cells: vec![cells.map(Cell::simulated).to_vec()],
            ..Table::default()
        };
        Results { tables: vec![table], ..Results::default() }
    }

    #[test]
    fn the_same_results_have_not_drifted() {
        let recorded = text(&results([0.1 + 0.2, 1e-7]));
        assert!(drifts(&recorded, &results([0.1 + 0.2, 1e-7])).is_empty());
        assert!(drifts(&recorded, &results([0.3, 1e-7])).is_empty());
    }

    #[test]
    fn a_cell_that_drifts_is_named_with_both_numbers() {
        let recorded = text(&results([100.0, 2.0]));
        let drifts = drifts(&recorded, &results([101.0, 2.0]));
        let expected = "table speed, row \"with, merge\", column \"read\": 101, recorded 100 (+1.000 %)";
        assert_eq!(drifts, [expected]);
    }

    #[test]
    fn cells_that_come_and_go_are_drifts_too() {
        let recorded = text(&results([100.0, 2.0]));
        assert_eq!(drifts(&recorded, &Results::default()).len(), 2);
        assert_eq!(drifts(HEAD, &results([1.0, 2.0])).len(), 2);
    }
}
