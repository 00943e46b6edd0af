//! The result tables: what each switch is worth, and the numbers behind it.

use super::super::repetitions::{Spread, table};
use super::super::{LocalRun, Measured};
use super::case::{Published, Value};
use super::{CPU, ENTRIES, MEDIAN, Measurements, Numbers, P99, RATE, Settings, recording};
use crate::result::{Axis, Cell, Plot, Series, Source, Table};

/// Fewer repetitions than this prove nothing.
const CERTAIN_MIN: usize = 3;

const PLOTTED: usize = 7;

/// Columns of the first table, and whether more is better.
const WORTH: [(&str, usize, bool); 5] = [
    ("requests/s", RATE, true),
    ("median", MEDIAN, false),
    ("99 of 100", P99, false),
    ("CPU time", CPU, false),
    ("entries", ENTRIES, false),
];

impl Measurements {
    /// The spread of one number of one value over the rounds.
    fn spread(&self, value: usize, number: usize) -> Spread {
        Spread::of(self.rounds[value].iter().map(|numbers: &Numbers| numbers[number]))
    }

    fn value(&self, value: usize) -> &'static Value {
        &self.case.values[value]
    }

    /// How many times better the default is than another value: the median of the rounds' ratios, since the numbers of
    /// one round meet the same state of the host.
    fn worth(&self, value: usize, number: usize, more_is_better: bool) -> Cell {
        let (default, other) = (self.spread(0, number), self.spread(value, number));
        let rounds = self.rounds[0].iter().zip(&self.rounds[value]);
        let ratio = Spread::of(
            rounds
                .map(|(default, other)| default[number] / other[number])
                .map(|ratio| if more_is_better { ratio } else { ratio.recip() }),
        )
        .median;
        let is_rare = default.count.min(other.count) < CERTAIN_MIN;
        let paper = match (self.value(value).paper, number) {
            (Some(Published::Rate([default, other])), RATE) => Some(default / other),
            (Some(Published::Cpu([default, other])), CPU) => Some(default / other),
            _ => None,
        };
        Cell {
            paper,
            local: ratio.is_finite().then_some(ratio),
            within_noise: default.overlaps(other) || is_rare,
            ..Cell::default()
        }
    }
}

pub(super) fn measured(run: &LocalRun<'_>, settings: Settings, all: &[Measurements], costs: Vec<Spread>) -> Measured {
    let costs = recording::WHAT.iter().map(|what| (*what).to_owned()).zip(costs).collect();
    let tables = vec![
        worth(all),
        numbers(all, "rates", "requests a second", ("", 0), &[("median", RATE)], true),
        numbers(
            all,
            "latencies",
            "how long requests take",
            ("us", 1),
            &[("median", MEDIAN), ("99 of 100", P99), ("999 of 1000", 3)],
            false,
        ),
        numbers(
            all,
            "costs",
            "what the server spends on a request",
            ("", 3),
            &[("processor time, us", CPU), ("kernel entries", ENTRIES)],
            false,
        ),
        table("recording", "what it costs to watch", "ns", 2, costs),
    ];
    Measured { tables, plots: plots(all), notes: notes(run, settings, all), ..Measured::default() }
}

fn worth(all: &[Measurements]) -> Table {
    let (mut rows, mut cells) = (Vec::new(), Vec::new());
    for of in all {
        for value in 1..of.case.values.len() {
            rows.push(format!("{}: {}", of.case.name, of.value(value).name));
            cells.push(WORTH.iter().map(|(_, number, more)| of.worth(value, *number, *more)).collect());
        }
    }
    Table::new("worth", "What each switch is worth on this machine: how many times more requests a second, sooner, less processor \
                time and fewer kernel entries with its default than with this value (~: the repetitions of both overlap)").unit("", 2).rows("switch and value", rows).columns("times", WORTH.iter().map(|(name, ..)| (*name).to_owned())).cells(cells)
}

/// One row a value, the medians of some of the numbers; a single number with its range.
fn numbers(
    all: &[Measurements],
    name: &str,
    title: &str,
    (unit, digits): (&str, usize),
    what: &[(&str, usize)],
    with_bounds: bool,
) -> Table {
    let (mut rows, mut cells) = (Vec::new(), Vec::new());
    let local = |value| Cell { local: Some(value), ..Cell::default() };
    for of in all {
        for value in 0..of.case.values.len() {
            rows.push(format!("{}: {}", of.case.name, of.value(value).name));
            let row = what.iter().flat_map(|(_, number)| {
                let spread = of.spread(value, *number);
                let bounds = with_bounds.then_some([spread.least, spread.most]);
                [spread.median].into_iter().chain(bounds.into_iter().flatten())
            });
            cells.push(row.map(local).collect());
        }
    }
    let mut columns: Vec<String> = what.iter().map(|(name, _)| (*name).to_owned()).collect();
    if with_bounds {
        columns.extend(["least", "most"].map(str::to_owned));
    }
    Table::new(name, format!("On this host: {title} (medians of the repetitions)"))
        .unit(unit, digits)
        .rows("switch and value", rows)
        .columns("", columns)
        .cells(cells)
}

/// The first of the other values of each case, a few cases a plot: their names need room.
fn plots(all: &[Measurements]) -> Vec<Plot> {
    let plot = |(number, cases): (usize, &[Measurements])| {
        let series = [Source::Local, Source::Paper].map(|source| {
            let points = cases.iter().enumerate().filter_map(|(group, of)| {
                let cell = of.worth(1, RATE, true);
                Some((group as f64, cell.from(source)?))
            });
            Series::of("requests a second", source, points)
        });
        let group = |of: &Measurements| format!("{}: {}", of.case.name, of.value(1).name);
        Plot::bars(
            format!("worth-{}", number + 1),
            "How many times more requests a second with the default than with this value",
            "switch and value",
            cases.iter().map(group),
            Axis::logarithmic("times", ""),
            series.to_vec(),
        )
    };
    all.chunks(PLOTTED).enumerate().map(plot).collect()
}

fn notes(run: &LocalRun<'_>, settings: Settings, all: &[Measurements]) -> Vec<String> {
    let cores = run.host.processors();
    let apart = match cores > settings.processors {
        true => "on cores that the server leaves to them",
        false => "on the server's own cores, since there are no others: that costs it some of its rate",
    };
    let mut notes = vec![format!(
        "A server of its own with {} processor{} of {cores}, over a Unix socket (NBD) and loopback (NFS); clients of the \
         lab's own {apart}. Many in flight: {}; several clients: {}. {} s a cell, {} repetitions in turn. The image and the \
         file lie on {}. Kernel entries are system calls of the processors for operations, and wake-ups that took one; \
         processor time is the whole server's, and includes looking out for work.",
        settings.processors,
        if settings.processors == 1 { "" } else { "s" },
        settings.depth,
        settings.clients,
        settings.seconds,
        settings.rounds,
        run.host.disk(),
    )];
    for of in all {
        notes.push(format!("{}: {}.", of.case.name, of.case.about));
        let source = of.case.source.iter();
        notes.extend(source.map(|source| format!("{}, the paper's ratio: {source}.", of.case.name)));
    }
    if cores < 2 {
        notes.push("There is one processor only: access and delivery have nothing to choose from.".to_owned());
    }
    notes.push(
        "Ratios of papers are those of other machines under other loads, and stand there to be compared in kind."
            .to_owned(),
    );
    notes
}
