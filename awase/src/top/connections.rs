//! The connections, each with what it did since the last look.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde_json::Value;

use super::sections::{Section, bytes, items, text, uptime};
use super::view::View;

/// The title of the section.
pub(super) const CONNECTIONS: &str = "connections";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Order {
    /// Most requests a second.
    #[default]
    Requests,
    /// Most bytes a second, in and out.
    Bytes,
    InFlight,
    Age,
    Client,
    Export,
}

impl Order {
    const ALL: [Order; 6] = [Order::Requests, Order::Bytes, Order::InFlight, Order::Age, Order::Client, Order::Export];

    /// The one after it, and round.
    pub(super) fn next(self) -> Order {
        let at = Order::ALL.iter().position(|order| *order == self).unwrap_or(0);
        Order::ALL[(at + 1) % Order::ALL.len()]
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Order::Requests => "requests/s",
            Order::Bytes => "bytes/s",
            Order::InFlight => "in flight",
            Order::Age => "age",
            Order::Client => "client",
            Order::Export => "export",
        }
    }
}

/// What a connection did, a second; `None` where that is not known yet.
#[derive(Clone, Copy, Default)]
struct Rates {
    requests: Option<f64>,
    received: Option<f64>,
    sent: Option<f64>,
}

/// The table.
pub(super) fn section(view: &View, order: Order) -> Section {
    let before: BTreeMap<u64, &Value> = view
        .before()
        .into_iter()
        .flat_map(|(before, _)| items(&before["connected"]))
        .map(|row| (number(row), row))
        .collect();
    let passed = view.before().map(|(_, passed)| passed);
    let mut rows: Vec<(&Value, Rates)> = items(&view.status["connected"])
        .map(|row| {
            (
                row,
                before
                    .get(&number(row))
                    .zip(passed)
                    .map_or_else(Rates::default, |(old, passed)| rates(row, old, passed)),
            )
        })
        .collect();
    rows.sort_by_key(|(row, _)| number(row));
    rows.sort_by(|(one, of_one), (other, of_other)| {
        let text = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
        let whole = |rate: Option<f64>| rate.unwrap_or(0.0) as u64;
        let transferred = |of: &Rates| whole(of.received) + whole(of.sent);
        match order {
            Order::Requests => Reverse(whole(of_one.requests)).cmp(&Reverse(whole(of_other.requests))),
            Order::Bytes => Reverse(transferred(of_one)).cmp(&Reverse(transferred(of_other))),
            Order::InFlight => one["in_flight"].as_u64().cmp(&other["in_flight"].as_u64()).reverse(),
            Order::Age => number(one).cmp(&number(other)),
            Order::Client => text(one, "client").cmp(&text(other, "client")),
            Order::Export => text(one, "export").cmp(&text(other, "export")),
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

    fn numbers(view: &View, order: Order) -> Vec<String> {
        section(view, order).rows.into_iter().map(|row| row[0].clone()).collect()
    }

    #[test]
    fn each_connection_has_its_own_rates_though_others_came_and_went_and_any_order_can_be_had() {
        let before =
            json!({ "process": 1, "connected": [row(1, 100, 0, "z", Some("a")), row(2, 7, 10, "gone", None)] });
        let now = json!({ "process": 1, "connected": [
            row(1, 300, 0, "z", Some("a")), row(3, 900, 0, "new", Some("b")), row(2, 7, 2058, "y", None),
        ] });
        let view = View::between(before, now, 2.0);
        let section_ = section(&view, Order::Requests);
        assert_eq!(section_.rows[0][..6], ["1", "nbd", "0", "0:01:01", "100", "1"].map(str::to_owned));
        // What came since is not known yet.
        assert_eq!(section_.rows.iter().find(|row| row[0] == "3").expect("the new one")[4], "-");
        assert_eq!(numbers(&view, Order::Requests), ["1", "2", "3"]);
        assert_eq!(numbers(&view, Order::Bytes), ["2", "1", "3"]);
        assert_eq!(numbers(&view, Order::InFlight), ["2", "1", "3"]);
        assert_eq!(numbers(&view, Order::Age), ["1", "2", "3"]);
        assert_eq!(numbers(&view, Order::Client), ["3", "2", "1"]);
        assert_eq!(numbers(&view, Order::Export), ["2", "1", "3"]);
        let mut order = Order::default();
        for _ in 0..Order::ALL.len() {
            order = order.next();
        }
        assert_eq!(order, Order::default(), "keys go round");
    }

    #[test]
    fn names_that_would_move_the_cursor_do_not() {
        let status = json!({ "process": 1, "connected": [row(1, 0, 0, "\u{1b}[2J", Some("a\nb"))] });
        let view = View::between(status.clone(), status, 1.0);
        assert!(section(&view, Order::Age).rows[0].iter().all(|cell| !cell.contains(char::is_control)));
    }
}
