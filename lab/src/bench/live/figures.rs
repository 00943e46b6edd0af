//! The targets, each computed from one or two cells of the tables.

use super::tables::{Tables, show};
use crate::bench::figure::{self, Figure};
use crate::result::Cell;

/// Column of the table of worths.
const RATE: usize = 0;
const SOONER: usize = 1;
const CPU: usize = 3;
const ENTRIES: usize = 4;

/// Column of the table of costs.
const CPU_US: usize = 0;

/// Column of the table of recording.
const MEDIAN: usize = 0;

/// Column of the table of latencies.
const P99: usize = 1;

/// All figures, as Markdown.
pub(super) fn table(tables: &Tables) -> String {
    figure::table("figure", &figures(tables)) + NOTE
}

const NOTE: &str = "\nWhere a difference is less than what repetitions differ by (~), it is met only if the median is. The \
                    counters cannot be switched off: what is told is what those of one request take, with the look at the \
                    clock for eight that came together, in percent of the processor time of the cheapest request. Where the \
                    clients have no cores of their own, they take what the server gains, most of all in `access`, which is \
                    measured without any.\n";

fn figures(tables: &Tables) -> Vec<Figure> {
    let worth = |row: &str, column: usize| tables.cell("worth", row, column);
    let at_least = |row: &str, column: usize, least: f64| worth(row, column).and_then(|cell| ratio(cell, least));
    let recording = |row: &str, most: f64| {
        let ns = tables.cell("recording", row, MEDIAN)?.local?;
        Some((format!("{ns:.1} ns"), ns <= most))
    };
    vec![
        Figure::new(
            "A direct event with a time stamp of its own",
            "at most 12 ns",
            recording("direct event with a time stamp of its own", 12.0),
        ),
        Figure::new(
            "A direct event with the time stamp of its batch",
            "at most 3 ns",
            recording("direct event with the time stamp of its batch", 3.0),
        ),
        Figure::new("Tracing on against off, requests a second", "at least 0.98 ×", at_least("trace: off", RATE, 0.98)),
        Figure::new(
            "Direct against central, unthinned tracing, two processors: processor time",
            "measurably better",
            worth("trace, two recorders: unthinned", CPU).and_then(better),
        ),
        Figure::new(
            "Adaptive quantum against off, 32 in flight: kernel entries a request",
            "at least 1.3 × fewer",
            at_least("quantum, many in flight: off", ENTRIES, 1.3),
        ),
        Figure::new(
            "The same: requests a second",
            "not fewer",
            worth("quantum, many in flight: off", RATE).and_then(|cell| {
                let least = if cell.within_noise { 0.97 } else { 1.0 };
                ratio(cell, least)
            }),
        ),
        Figure::new(
            "Adaptive quantum against off, 1 in flight: median latency",
            "at most 3 % more",
            at_most_more(worth("quantum, 1 in flight: off", SOONER), 3.0),
        ),
        Figure::new(
            "Look-ahead and hottest first against both off, NBD",
            "at least 1.3 ×",
            at_least("hottest, look-ahead, NBD: off", RATE, 1.3),
        ),
        Figure::new("The same, NFS", "at least 1.3 ×", at_least("hottest, look-ahead, NFS: off", RATE, 1.3)),
        Figure::new(
            "Symmetric access against the funnel, RAM disk, two processors",
            "at least 1.5 ×",
            at_least("access: funnel", RATE, 1.5),
        ),
        Figure::new(
            "A light client beside a heavy one, with usage on: 99th percentile",
            "at most 3 × its value alone",
            light_client(tables),
        ),
        Figure::new("The counters of a request", "at most 1 %", counters(tables)),
        Figure::new(
            "The front end, watched, against none: processor time",
            "at most 1 % more",
            at_most_more(worth("front end: none", CPU), 1.0),
        ),
    ]
}

fn ratio(cell: Cell, least: f64) -> Option<(String, bool)> {
    let ratio = cell.local?;
    Some((format!("{} ×", show(cell)), ratio >= least))
}

fn better(cell: Cell) -> Option<(String, bool)> {
    Some((format!("{} ×", show(cell)), cell.local? > 1.0 && !cell.within_noise))
}

/// `most`: percent.
fn at_most_more(cell: Option<Cell>, most: f64) -> Option<(String, bool)> {
    let cell = cell?;
    let more = (1.0 / cell.local? - 1.0) * 100.0;
    Some((format!("{more:+.1} %{}", if cell.within_noise { " ~" } else { "" }), more <= most))
}

fn light_client(tables: &Tables) -> Option<(String, bool)> {
    let p99 = |row: &str| tables.cell("latencies", row, P99)?.local;
    // The light client's load without a heavy one.
    let alone = p99("quantum, 1 in flight: adaptive")?;
    let (on, off) = (p99("usage: on")? / alone, p99("usage: off")? / alone);
    Some((format!("{on:.1} × (off: {off:.1} ×)"), on <= 3.0))
}

fn counters(tables: &Tables) -> Option<(String, bool)> {
    let ns = tables.cell("recording", "counters of one request", MEDIAN)?.local?;
    let us = tables.cell("costs", "trace: off", CPU_US)?.local?;
    let percent = ns / (us * 1000.0) * 100.0;
    Some((format!("{percent:.2} % ({ns:.1} ns of {us:.2} us)"), percent <= 1.0))
}

#[cfg(test)]
mod tests {
    use super::super::tables::tests::TEXT;
    use super::*;

    #[test]
    fn a_figure_that_was_not_measured_is_not_met() {
        let tables = Tables::read(TEXT).unwrap();
        let text = table(&tables);
        assert!(
            text.contains("| Tracing on against off, requests a second | at least 0.98 × | 0.990 ~ × | yes |"),
            "{text}"
        );
        assert!(text.contains("| The same, NFS | at least 1.3 × | not measured | **no** |"), "{text}");
    }

    #[test]
    fn what_repetitions_may_differ_by_is_not_measurably_better() {
        let cell = |local, within_noise| Cell { local: Some(local), within_noise, ..Cell::default() };
        assert_eq!(better(cell(1.2, false)).map(|(_, met)| met), Some(true));
        assert_eq!(better(cell(1.2, true)).map(|(_, met)| met), Some(false));
        assert_eq!(better(cell(0.9, false)).map(|(_, met)| met), Some(false));
    }
}
