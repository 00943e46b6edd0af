//! The content as tables, for a terminal or as text.

use kernel::counters::Activity;
use serde_json::Value;

use super::connections::{self, CONNECTIONS, SortKey};
use super::section::{Section, bytes, items, text, uptime, widths};
use super::view::View;

/// Most jobs on the screen.
const JOBS_MAX: usize = 12;

/// Most functions of a database on the screen.
const FUNCTIONS_MAX: usize = 12;

/// Title of the section that can be changed.
pub(super) const SWITCHES: &str = "switches";

/// Title of the section that is always visible.
pub(super) const SERVER: &str = "server";

/// Most connections in printed text.
const PRINTED_MAX: usize = 50;

pub(super) fn sections(view: &View, sort_key: SortKey) -> Vec<Section> {
    let connections = connections::section(view, sort_key);
    let (disks, exports) = (disks(view), exports(view));
    let mut all = vec![server(view), cache(view), processors(view), jobs(view), disks, exports];
    all.extend(shared(view));
    all.extend(misses(view));
    all.extend(mapped(view));
    all.extend(databases(view));
    all.extend(programs(view));
    all.extend(super::calls::section(view));
    all.extend([connections, switches(view)]);
    all
}

fn server(view: &View) -> Section {
    let status = &view.status;
    Section {
        title: SERVER,
        head: &["version", "process", "up", "connections", "requests", "requests/s", "machine"],
        rows: vec![vec![
            text(&status["version"]),
            text(&status["process"]),
            uptime(status["uptime_s"].as_f64().unwrap_or(0.0)),
            text(&status["connections"]),
            text(&status["requests"]),
            rate(view, "/requests"),
            text(&status["machine"]),
        ]],
    }
}

fn cache(view: &View) -> Section {
    let cache = &view.status["cache"];
    let row = ["bytes", "target_bytes", "used_bytes", "dirty_bytes"].map(|key| bytes(&cache[key]));
    Section { title: "cache", head: &["size", "limit", "in use", "dirty"], rows: vec![row.into()] }
}

fn processors(view: &View) -> Section {
    let row = |(index, processor): (usize, &Value)| {
        let [id, core] = ["id", "core"].map(|key| text(&processor[key]));
        let first = [id, core, rate(view, &format!("/processors/{index}/requests"))];
        first.into_iter().chain(shares(view, index)).collect()
    };
    Section {
        title: "processors",
        head: &["processor", "core", "requests/s", "service", "monitor", "program", "path", "overhead", "idle"],
        rows: items(&view.status["processors"]).enumerate().map(row).collect(),
    }
}

/// Of a processor's time, in the order of [`Activity::ALL`].
fn shares(view: &View, processor: usize) -> Vec<String> {
    let of = |activity: &Activity| view.rate(&format!("/processors/{processor}/activities/{}", activity.name()));
    let rates: Vec<Option<f64>> = Activity::ALL.iter().map(of).collect();
    let sum: f64 = rates.iter().flatten().sum();
    let share = |rate: Option<f64>| rate.filter(|_| sum > 0.0).map(|rate| format!("{:.0}%", 100.0 * rate / sum));
    rates.into_iter().map(|rate| share(rate).unwrap_or_else(|| "-".to_owned())).collect()
}

fn jobs(view: &View) -> Section {
    let row = |job: &Value| {
        let at = |key: &str| view.rate_in("jobs", "id", &job["id"], key);
        let [name, connections, requests] = ["name", "connections", "requests"].map(|key| text(&job[key]));
        let shown = |rate: Option<f64>, unit: f64, after: &str| {
            rate.map_or_else(|| "-".to_owned(), |rate| format!("{:.0}{after}", rate / unit))
        };
        let late = format!("{:.1} ms", job["recent_ns"].as_f64().unwrap_or(0.0) / 1e6);
        let used = shown(at("used_ns"), 1e7, "%");
        vec![name, connections, requests, shown(at("requests"), 1.0, ""), used, late, bytes(&job["dirty_bytes"])]
    };
    Section {
        title: "jobs",
        head: &["client", "connections", "requests", "requests/s", "processor", "recent use", "dirty"],
        rows: items(&view.status["jobs"]).take(JOBS_MAX).map(row).collect(),
    }
}

fn disks(view: &View) -> Section {
    let row = |disk: &Value| {
        let at = |key: &str| shown(view.rate_in("disks", "disk", &disk["disk"], key));
        let [name, requests, transfers] = ["disk", "requests", "transfers"].map(|key| text(&disk[key]));
        vec![name, requests, at("requests"), transfers, at("transfers")]
    };
    Section {
        title: "disks",
        head: &["disk", "requests", "requests/s", "transfers", "transfers/s"],
        rows: items(&view.status["disks"]).map(row).collect(),
    }
}

fn exports(view: &View) -> Section {
    let row = |export: &Value| {
        let mode = if export["read_only"].as_bool() == Some(true) { "read-only" } else { "" };
        vec![
            text(&export["name"]),
            text(&export["kind"]),
            bytes(&export["bytes"]),
            bytes(&export["dirty_bytes"]),
            text(&export["medium"]),
            mode.to_owned(),
        ]
    };
    Section {
        title: "exports",
        head: &["export", "kind", "size", "dirty", "medium", ""],
        rows: items(&view.status["exports"]).map(row).collect(),
    }
}

/// Shared disks that programs have mapped, if there are any.
fn mapped(view: &View) -> Option<Section> {
    let row = |(index, export): (usize, &Value)| {
        let shared = &export["shared"];
        shared["mappings"].as_u64().filter(|mappings| *mappings > 0)?;
        let [reads, writes] = ["mapped_read_bytes", "mapped_written_bytes"].map(|key| bytes(&shared[key]));
        let faults = rate(view, &format!("/exports/{index}/shared/faults"));
        Some(vec![text(&export["name"]), text(&shared["mappings"]), reads, writes, faults])
    };
    let rows: Vec<_> = items(&view.status["exports"]).enumerate().filter_map(row).collect();
    let head = &["shared disk", "programs", "read", "written", "faults/s"];
    (!rows.is_empty()).then_some(Section { title: "mapped into programs", head, rows })
}

/// Shared disks, if there are any.
fn shared(view: &View) -> Option<Section> {
    let row = |(index, export): (usize, &Value)| {
        let shared = &export["shared"];
        shared.as_object()?;
        let at = |key: &str| rate(view, &format!("/exports/{index}/shared/{key}"));
        let peers = format!("{} of {}", text(&shared["peers"]), text(&shared["of_peers"]));
        let [reads, writes, saving] =
            ["shared_bytes", "exclusive_bytes", "saving_bytes"].map(|key| bytes(&shared[key]));
        let rates = ["fetches", "invalidations", "grants", "forwards", "stores", "messages", "batches"].map(at);
        let first = [text(&export["name"]), peers, reads, writes, saving, text(&shared["awaited"])];
        let bounces = [at("bounces"), text(&shared["most_bounces"])];
        Some(first.into_iter().chain(rates).chain(bounces).collect())
    };
    let rows: Vec<_> = items(&view.status["exports"]).enumerate().filter_map(row).collect();
    let head = &[
        "shared disk",
        "peers",
        "shared",
        "exclusive",
        "saving",
        "awaited",
        "fetches/s",
        "invalidations/s",
        "grants/s",
        "forwards/s",
        "stores/s",
        "messages/s",
        "sends/s",
        "bounces/s",
        "most between",
    ];
    (!rows.is_empty()).then_some(Section { title: "shared disks", head, rows })
}

/// How long misses in shared disks take: this node's own, and those of all nodes that this home serves.
fn misses(view: &View) -> Option<Section> {
    let row = |(index, export): (usize, &Value)| {
        export["shared"].as_object()?;
        let mean = |part: &&str| {
            let at = |key| view.rate(&format!("/exports/{index}/shared/waits/{part}/{key}"));
            let (ns, count) = (at("ns")?, at("count").filter(|count| *count > 0.0)?);
            Some(format!("{:.0} µs", ns / count / 1e3))
        };
        let means = ["fetch", "home", "holder"].iter().map(|part| mean(part).unwrap_or_default());
        Some([text(&export["name"])].into_iter().chain(means).collect())
    };
    let rows: Vec<_> = items(&view.status["exports"]).enumerate().filter_map(row).collect();
    let head = &["shared disk", "fetch", "as home: to the grant", "as home: to the holder's answer"];
    (!rows.is_empty()).then_some(Section { title: "mean time of a miss", head, rows })
}

/// Databases and their functions, if there are any.
fn databases(view: &View) -> Option<Section> {
    let mut rows = Vec::new();
    for (index, database) in items(&view.status["databases"]).enumerate() {
        let at = |key: &str| rate(view, &format!("/databases/{index}/{key}"));
        let [commits, log, tree] =
            [text(&database["commits"]), bytes(&database["log_bytes"]), bytes(&database["tree_bytes"])];
        rows.push(vec![text(&database["name"]), commits, at("commits"), at("conflicts"), at("aborts"), log, tree]);
        for (place, function) in items(&database["functions"]).enumerate().take(FUNCTIONS_MAX) {
            let at = |key: &str| rate(view, &format!("/databases/{index}/functions/{place}/{key}"));
            let name = format!("  {}", text(&function["name"]));
            let nothing = String::new;
            rows.push(vec![
                name,
                text(&function["calls"]),
                at("calls"),
                nothing(),
                at("failures"),
                nothing(),
                nothing(),
            ]);
        }
    }
    let head = &["database", "commits", "commits/s", "conflicts/s", "aborts/s", "log", "tables"];
    (!rows.is_empty()).then_some(Section { title: "databases", head, rows })
}

/// What programs ask of their tables, if there are any.
fn programs(view: &View) -> Option<Section> {
    let is_used = items(&view.status["databases"]).next().is_some();
    let row =
        |(name, count): (&String, &Value)| vec![name.clone(), text(count), rate(view, &format!("/programs/{name}"))];
    let rows = view.status["programs"].as_object()?.iter().map(row).collect();
    is_used.then_some(Section { title: "programs", head: &["program request", "requests", "requests/s"], rows })
}

fn switches(view: &View) -> Section {
    let row = |switch: &super::view::Switch| {
        vec![switch.name.clone(), switch.value.clone(), switch.technique.clone(), switch.about.clone()]
    };
    Section {
        title: SWITCHES,
        head: &["switch", "value", "technique", "what it does"],
        rows: view.switches.iter().map(row).collect(),
    }
}

fn text_of(section: &Section) -> String {
    let widths = widths(section);
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let cells: Vec<String> = cells
            .zip(&widths)
            .enumerate()
            .map(|(column, (cell, width))| {
                let width = usize::from(*width);
                if section.is_number(column) { format!("{cell:>width$}") } else { format!("{cell:width$}") }
            })
            .collect();
        format!("  {}", cells.join("  ")).trim_end().to_owned()
    };
    let mut lines = vec![section.title.to_owned(), line(&mut section.head.iter().copied())];
    let most = if section.title == CONNECTIONS { PRINTED_MAX } else { usize::MAX };
    lines.extend(section.rows.iter().take(most).map(|row| line(&mut row.iter().map(String::as_str))));
    if let Some(more) = section.rows.len().checked_sub(most).filter(|more| *more > 0) {
        lines.push(format!("  and {more} more"));
    }
    lines.join("\n") + "\n"
}

pub(super) fn page(sections: &[Section]) -> String {
    sections.iter().map(text_of).collect::<Vec<_>>().join("\n")
}

fn rate(view: &View, pointer: &str) -> String {
    shown(view.rate(pointer))
}

fn shown(rate: Option<f64>) -> String {
    rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.0}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(ticks: u64, gets: u64) -> Value {
        let activities = json!({
            "service": 0, "monitor": 2 * ticks, "program": ticks, "path": 0, "overhead": 0, "idle": 5 * ticks,
        });
        json!({
            "process": 1,
            "processors": [{ "id": 0, "core": 1, "connections": 3, "requests": 7, "activities": activities }],
            "databases": [{ "name": "bank" }],
            "programs": { "get": gets, "put": 4 },
        })
    }

    #[test]
    fn a_processors_time_is_shown_in_parts_of_what_has_passed() {
        let view = View::between(status(1000, 0), status(1800, 0), 2.0);
        assert_eq!(processors(&view).rows[0][3..], ["0%", "25%", "12%", "0%", "0%", "62%"]);
        let idle = View::between(status(1800, 0), status(1800, 0), 2.0);
        assert_eq!(processors(&idle).rows[0][3..], ["-"; 6]);
        let lines = text_of(&processors(&view));
        assert!(lines.lines().all(|line| line.len() <= 80), "{lines}");
    }

    #[test]
    fn the_mean_time_of_misses_is_of_those_since_the_last_sample() {
        let status = |count: u64, ns: u64| {
            let wait = json!({ "count": count, "ns": ns });
            let none = json!({ "count": 0, "ns": 0 });
            let waits = json!({ "fetch": wait, "home": none, "holder": none });
            json!({ "process": 1, "exports": [{ "name": "plain" }, { "name": "s", "shared": { "waits": waits } }] })
        };
        let view = View::between(status(2, 500_000), status(6, 800_000), 2.0);
        assert_eq!(misses(&view).expect("a section").rows, [["s", "75 µs", "", ""]]);
        assert!(misses(&View::between(json!({}), json!({ "exports": [{ "name": "plain" }] }), 1.0)).is_none());
    }

    #[test]
    fn what_programs_ask_is_shown_where_there_are_databases() {
        let view = View::between(status(0, 10), status(0, 30), 2.0);
        assert_eq!(programs(&view).expect("a section").rows, [["get", "30", "10"], ["put", "4", "0"]]);
        assert!(programs(&View::between(json!({}), json!({ "programs": { "get": 1 } }), 1.0)).is_none());
    }
}
