//! How long terminals wait for their calls.

use std::collections::BTreeMap;

use serde_json::Value;

use super::section::{Section, items};
use super::view::View;

/// Calls since the previous status, by their time in nanoseconds at most.
type Calls = BTreeMap<u64, u64>;

/// The calls of all databases, if there are any.
pub(super) fn section(view: &View) -> Option<Section> {
    let now = calls(&view.status)?;
    let row = view.before().map_or_else(
        || vec!["-".to_owned(); 3],
        |(before, passed)| {
            let before = calls(before).unwrap_or_default();
            // A server that has just begun still learns how long a tick is: its bounds move a little.
            let earlier = |ns: u64| before.range(ns * 97 / 100..=ns * 103 / 100).next().map_or(0, |(_, count)| *count);
            let since: Calls = now.iter().map(|(ns, count)| (*ns, count.saturating_sub(earlier(*ns)))).collect();
            let rate = since.values().sum::<u64>() as f64 / passed;
            vec![format!("{rate:.0}"), shown(percentile(&since, 50)), shown(percentile(&since, 99))]
        },
    );
    Some(Section { title: "calls of terminals", head: &["calls/s", "50 %", "99 %"], rows: vec![row] })
}

fn calls(status: &Value) -> Option<Calls> {
    let is_wanted = |row: &&Value| row["service"] == "postgres" && row["class"] == "call";
    let row = items(&status["latencies"]).find(is_wanted)?;
    let bucket = |pair: &Value| Some(((pair[0].as_f64()? * 1e9).round() as u64, pair[1].as_u64()?));
    Some(items(&row["buckets"]).filter_map(bucket).collect())
}

/// Nanoseconds that this part did not exceed.
fn percentile(calls: &Calls, percent: u64) -> Option<u64> {
    let wanted = (calls.values().sum::<u64>() * percent).div_ceil(100).max(1);
    let mut sum = 0;
    let reached = calls.iter().find(|(_, count)| {
        sum += **count;
        sum >= wanted
    });
    reached.map(|(ns, _)| *ns)
}

fn shown(ns: Option<u64>) -> String {
    match ns {
        None => "-".to_owned(),
        Some(ns) if ns < 1_000_000 => format!("{:.0} µs", ns as f64 / 1e3),
        Some(ns) => format!("{:.1} ms", ns as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(buckets: &[(f64, u64)]) -> Value {
        let other = json!({ "service": "nbd", "class": "read", "buckets": [[1.0, 7]] });
        json!({ "process": 1, "latencies": [other, { "service": "postgres", "class": "call", "buckets": buckets }] })
    }

    #[test]
    fn percentiles_are_those_of_the_calls_since_the_last_look() {
        let before = status(&[(0.005, 1000)]);
        let now = status(&[(0.0001, 98), (0.0002, 1), (0.005, 1001)]);
        let rows = section(&View::between(before, now, 2.0)).expect("calls").rows;
        assert_eq!(rows, [["50", "100 µs", "200 µs"]]);
        let quiet = section(&View::between(status(&[(0.005, 10)]), status(&[(0.005, 10)]), 2.0)).expect("calls").rows;
        assert_eq!(quiet, [["0", "-", "-"]]);
    }

    #[test]
    fn a_server_without_calls_shows_none() {
        assert!(section(&View::between(json!({ "process": 1 }), json!({ "process": 1 }), 1.0)).is_none());
    }
}
