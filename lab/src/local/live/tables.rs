//! The result tables: what each switch is worth, and the numbers behind it.

use papers::parameter::sheet;
use papers::result::{Cell, Plot, Series, Source, Table};

use super::super::repetitions::{Spread, table};
use super::super::{LocalRun, Measured};
use super::case::Published;
use super::{CPU, ENTRIES, MEDIAN, Measurements, Numbers, P99, P999, RATE, Settings, recording};

/// Fewer repetitions than this prove nothing.
const CERTAIN_MIN: usize = 3;

const PLOTTED: usize = 7;

/// Columns of the first table, and whether more is better.
const WORTH: [(usize, bool); 5] = [(RATE, true), (MEDIAN, false), (P99, false), (CPU, false), (ENTRIES, false)];

impl Measurements {
    /// The spread of one number of one value over the rounds.
    fn spread(&self, value: usize, number: usize) -> Spread {
        Spread::of(self.rounds[value].iter().map(|numbers: &Numbers| numbers[number]))
    }

    /// The row of a value in tables.
    fn name(&self, value: usize) -> String {
        format!("{}: {}", self.case.name, self.case.values[value].name)
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
        let paper = match (self.case.values[value].paper, number) {
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
        numbers(all, "rates", &[RATE], true),
        numbers(all, "latencies", &[MEDIAN, P99, P999], false),
        numbers(all, "costs", &[CPU, ENTRIES], false),
        table("recording", "what it costs to watch", "ns", 2, costs),
    ];
    Measured { tables, plots: plots(all), notes: notes(run, settings, all), ..Measured::default() }
}

fn worth(all: &[Measurements]) -> Table {
    let mut table = sheet::named("live").form("worth");
    for of in all {
        for value in 1..of.case.values.len() {
            table.rows.push(of.name(value));
            table.cells.push(WORTH.iter().map(|(number, more)| of.worth(value, *number, *more)).collect());
        }
    }
    table
}

/// One row a value, the medians of some of the numbers, or with their ranges.
fn numbers(all: &[Measurements], name: &str, what: &[usize], with_bounds: bool) -> Table {
    let mut table = sheet::named("live").form(name);
    let local = |value| Cell { local: Some(value), ..Cell::default() };
    for of in all {
        for value in 0..of.case.values.len() {
            table.rows.push(of.name(value));
            let row = what.iter().flat_map(|number| {
                let spread = of.spread(value, *number);
                let bounds = with_bounds.then_some([spread.least, spread.most]);
                [spread.median].into_iter().chain(bounds.into_iter().flatten())
            });
            table.cells.push(row.map(local).collect());
        }
    }
    table
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
        let plot = sheet::named("live").plot("worth", series.to_vec());
        Plot { name: format!("worth-{}", number + 1), ..plot }.of_groups(cases.iter().map(|of| of.name(1)))
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
