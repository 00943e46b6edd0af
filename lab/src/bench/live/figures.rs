//! The targets (`figures.toml`), each for one or two cells of the tables.

use papers::result::Cell;
use serde::Deserialize;

use super::tables::{Tables, show};
use crate::bench::figure::{self, Figure};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    figure: Vec<Aim>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Aim {
    name: String,
    target: String,
    /// Table, row, column.
    cell: [String; 3],
    rule: Rule,
}

/// What a cell must be.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Rule {
    AtMostNs(f64),
    AtLeast(f64),
    /// As many or more; a little fewer where repetitions differ by as much.
    NotFewer,
    /// By more than what repetitions differ by.
    Better,
    /// The inverse of the cell.
    AtMostPercentMore(f64),
    /// The light client's latency, to that without a heavy client.
    AtMostTimesAlone(f64),
    /// Nanoseconds, to the processor time of the cheapest request.
    AtMostPercentOfARequest(f64),
}

/// All figures, as Markdown.
pub(super) fn table(tables: &Tables) -> String {
    let File { figure: aims } =
        toml::from_str(include_str!("figures.toml")).unwrap_or_else(|error| panic!("figures.toml: {error}"));
    let figure = |Aim { name, target, cell: [table, row, column], rule }| {
        let cell: Option<Cell> = tables.cell(&table, &row, &column);
        Figure::new(name, target, cell.and_then(|cell| rule.judge(cell, tables)))
    };
    figure::table("figure", &aims.into_iter().map(figure).collect::<Vec<_>>()) + NOTE
}

const NOTE: &str = "\nWhere a difference is less than what repetitions differ by (~), it is met only if the median is. The \
                    counters cannot be switched off: what is told is what those of one request take, with the look at the \
                    clock for eight that came together, in percent of the processor time of the cheapest request. Where the \
                    clients have no cores of their own, they take what the server gains, most of all in `access`, which is \
                    measured without any.\n";

impl Rule {
    /// The measured figure, and whether that is as it must be; `None` if it was not measured.
    fn judge(self, cell: Cell, tables: &Tables) -> Option<(String, bool)> {
        let number = cell.local?;
        let times = || format!("{} ×", show(cell));
        Some(match self {
            Rule::AtMostNs(most) => (format!("{number:.1} ns"), number <= most),
            Rule::AtLeast(least) => (times(), number >= least),
            Rule::NotFewer => (times(), number >= if cell.within_noise { 0.97 } else { 1.0 }),
            Rule::Better => (times(), number > 1.0 && !cell.within_noise),
            Rule::AtMostPercentMore(most) => {
                let more = (1.0 / number - 1.0) * 100.0;
                (format!("{more:+.1} %{}", if cell.within_noise { " ~" } else { "" }), more <= most)
            }
            Rule::AtMostTimesAlone(most) => {
                let p99 = |row: &str| tables.cell("latencies", row, "99 of 100")?.local;
                // The light client's load without a heavy one.
                let alone = p99("quantum, 1 in flight: adaptive")?;
                let (on, off) = (number / alone, p99("usage: off")? / alone);
                (format!("{on:.1} × (off: {off:.1} ×)"), on <= most)
            }
            Rule::AtMostPercentOfARequest(most) => {
                let us = tables.cell("costs", "trace: off", "processor time, us")?.local?;
                let percent = number / (us * 1000.0) * 100.0;
                (format!("{percent:.2} % ({number:.1} ns of {us:.2} us)"), percent <= most)
            }
        })
    }
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
        let tables = Tables::read(TEXT).unwrap();
        let is_better = |cell: Cell| Rule::Better.judge(cell, &tables).map(|(_, met)| met);
        assert_eq!(is_better(cell(1.2, false)), Some(true));
        assert_eq!(is_better(cell(1.2, true)), Some(false));
        assert_eq!(is_better(cell(0.9, false)), Some(false));
    }
}
