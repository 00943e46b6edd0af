//! The connections, with their rates since the last sample.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde_json::Value;

use super::section::{Section, bytes, items, text, uptime};
use super::view::View;

pub(super) const CONNECTIONS: &str = "connections";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SortKey {
    /// Requests per second.
    #[default]
    Requests,
    /// Bytes per second, in and out.
    Bytes,
    InFlight,
    Age,
    Client,
    Export,
}

impl SortKey {
    const ALL: [SortKey; 6] =
        [SortKey::Requests, SortKey::Bytes, SortKey::InFlight, SortKey::Age, SortKey::Client, SortKey::Export];

    /// The next, cyclically.
    pub(super) fn next(self) -> SortKey {
        let at = SortKey::ALL.iter().position(|sort_key| *sort_key == self).unwrap_or(0);
        SortKey::ALL[(at + 1) % SortKey::ALL.len()]
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            SortKey::Requests => "requests/s",
            SortKey::Bytes => "bytes/s",
            SortKey::InFlight => "in flight",
            SortKey::Age => "age",
            SortKey::Client => "client",
            SortKey::Export => "export",
        }
    }
}

/// Rates per second; `None` before the second sample.
#[derive(Clone, Copy, Default)]
struct Rates {
    requests: Option<f64>,
    received: Option<f64>,
    sent: Option<f64>,
}

pub(super) fn section(view: &View, sort_key: SortKey) -> Section {
    let (before, passed) = view.before().unzip();
    let before = before.into_iter().flat_map(|before| items(&before["connected"]));
    let before: BTreeMap<u64, &Value> = before.map(|row| (number(row), row)).collect();
    let rates_of = |row| {
        let known = before.get(&number(row)).zip(passed);
        known.map_or_else(Rates::default, |(old, passed)| rates(row, old, passed))
    };
    let mut rows: Vec<(&Value, Rates)> = items(&view.status["connected"]).map(|row| (row, rates_of(row))).collect();
    rows.sort_by_key(|(row, _)| number(row));
    rows.sort_by(|(one, of_one), (other, of_other)| {
        let text = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
        let whole = |rate: Option<f64>| rate.unwrap_or(0.0) as u64;
        let transferred = |of: &Rates| whole(of.received) + whole(of.sent);
        match sort_key {
            SortKey::Requests => Reverse(whole(of_one.requests)).cmp(&Reverse(whole(of_other.requests))),
            SortKey::Bytes => Reverse(transferred(of_one)).cmp(&Reverse(transferred(of_other))),
            SortKey::InFlight => one["in_flight"].as_u64().cmp(&other["in_flight"].as_u64()).reverse(),
            SortKey::Age => number(one).cmp(&number(other)),
            SortKey::Client => text(one, "client").cmp(&text(other, "client")),
            SortKey::Export => text(one, "export").cmp(&text(other, "export")),
        }
    });
    Section {
        title: CONNECTIONS,
        head: &["no.", "via", "cpu", "age", "req/s", "in flight", "in/s", "out/s", "client", "export"],
        rows: rows.into_iter().map(|(row, of)| cells(row, of)).collect(),
    }
}

fn cells(row: &Value, rates: Rates) -> Vec<String> {
    let several = row["several_exports"].as_bool() == Some(true);
    vec![
        text(&row["number"]),
        text(&row["protocol"]),
        text(&row["processor"]),
        row["age_s"].as_f64().map(uptime).unwrap_or_default(),
        rates.requests.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.0}")),
        text(&row["in_flight"]),
        transferred(rates.received),
        transferred(rates.sent),
        text(&row["client"]),
        if several { "(several)".to_owned() } else { text(&row["export"]) },
    ]
}

fn transferred(rate: Option<f64>) -> String {
    rate.map_or_else(|| "-".to_owned(), |rate| bytes(&Value::from(rate as u64)))
}

fn rates(now: &Value, before: &Value, passed: f64) -> Rates {
    let rate = |key: &str| Some(now[key].as_u64()?.checked_sub(before[key].as_u64()?)? as f64 / passed);
    Rates { requests: rate("requests"), received: rate("received_bytes"), sent: rate("sent_bytes") }
}

fn number(row: &Value) -> u64 {
    row["number"].as_u64().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(number: u64, requests: u64, sent: u64, client: &str, export: Option<&str>) -> Value {
        json!({
            "number": number, "protocol": "nbd", "client": client, "export": export, "several_exports": false,
            "processor": 0, "age_s": 61.0, "requests": requests, "in_flight": number % 3,
            "received_bytes": 0, "sent_bytes": sent,
        })
    }

    fn numbers(view: &View, sort_key: SortKey) -> Vec<String> {
        section(view, sort_key).rows.into_iter().map(|row| row[0].clone()).collect()
    }

    #[test]
    fn rates_are_matched_by_connection_and_rows_sorted_by_any_key() {
        let before =
            json!({ "process": 1, "connected": [row(1, 100, 0, "z", Some("a")), row(2, 7, 10, "gone", None)] });
        let now = json!({ "process": 1, "connected": [
            row(1, 300, 0, "z", Some("a")), row(3, 900, 0, "new", Some("b")), row(2, 7, 2058, "y", None),
        ] });
        let view = View::between(before, now, 2.0);
        let section_ = section(&view, SortKey::Requests);
        assert_eq!(section_.rows[0][..6], ["1", "nbd", "0", "0:01:01", "100", "1"].map(str::to_owned));
        // No rate is known of a new connection.
        assert_eq!(section_.rows.iter().find(|row| row[0] == "3").expect("the new one")[4], "-");
        assert_eq!(numbers(&view, SortKey::Requests), ["1", "2", "3"]);
        assert_eq!(numbers(&view, SortKey::Bytes), ["2", "1", "3"]);
        assert_eq!(numbers(&view, SortKey::InFlight), ["2", "1", "3"]);
        assert_eq!(numbers(&view, SortKey::Age), ["1", "2", "3"]);
        assert_eq!(numbers(&view, SortKey::Client), ["3", "2", "1"]);
        assert_eq!(numbers(&view, SortKey::Export), ["2", "1", "3"]);
        let mut sort_key = SortKey::default();
        for _ in 0..SortKey::ALL.len() {
            sort_key = sort_key.next();
        }
        assert_eq!(sort_key, SortKey::default(), "cyclic");
    }

    #[test]
    fn control_characters_in_names_are_replaced() {
        let status = json!({ "process": 1, "connected": [row(1, 0, 0, "\u{1b}[2J", Some("a\nb"))] });
        let view = View::between(status.clone(), status, 1.0);
        assert!(section(&view, SortKey::Age).rows[0].iter().all(|cell| !cell.contains(char::is_control)));
    }
}
