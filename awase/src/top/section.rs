//! A table of the screen, and how its cells are written.

use serde_json::Value;

use crate::config::show_bytes;

pub(super) struct Section {
    pub title: &'static str,
    pub head: &'static [&'static str],
    pub rows: Vec<Vec<String>>,
}

/// Heads of columns of numbers, which are right-aligned.
const NUMBERS: &[&str] = &[
    "process",
    "up",
    "connections",
    "requests",
    "requests/s",
    "transfers",
    "transfers/s",
    "size",
    "limit",
    "in use",
    "dirty",
    "processor",
    "core",
    "no.",
    "cpu",
    "age",
    "req/s",
    "in flight",
    "in/s",
    "out/s",
    "recent use",
    "commits",
    "commits/s",
    "conflicts/s",
    "aborts/s",
    "log",
    "tables",
    "50 %",
    "99 %",
    "calls/s",
    "service",
    "monitor",
    "program",
    "path",
    "overhead",
    "idle",
];

impl Section {
    pub(super) fn is_number(&self, column: usize) -> bool {
        self.head.get(column).is_some_and(|head| NUMBERS.contains(head))
    }
}

/// Width of each column. Characters.
pub(super) fn widths(section: &Section) -> Vec<u16> {
    let width = |column: usize| {
        let cells = section.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        let head = section.head.get(column).map_or(0, |head| head.chars().count());
        cells.chain([head]).max().unwrap_or(0).min(usize::from(u16::MAX)) as u16
    };
    (0..section.head.len()).map(width).collect()
}

pub(super) fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// Names are not trusted: control characters, which would move a terminal's cursor, are replaced.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

pub(super) fn bytes(value: &Value) -> String {
    let Some(bytes) = value.as_u64() else { return String::new() };
    match bytes {
        0..1024 => format!("{bytes} B"),
        _ if bytes.is_multiple_of(1 << 30) => show_bytes(bytes),
        0x400..0x10_0000 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        0x10_0000..0x4000_0000 => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

pub(super) fn uptime(seconds: f64) -> String {
    let seconds = seconds as u64;
    let (days, hours, minutes) = (seconds / 86400, seconds / 3600 % 24, seconds / 60 % 60);
    match days {
        0 => format!("{hours}:{minutes:02}:{:02}", seconds % 60),
        _ => format!("{days}d {hours}:{minutes:02}"),
    }
}
