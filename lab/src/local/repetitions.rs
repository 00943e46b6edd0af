//! Repetitions: the compared arms alternate, so that other load on the host affects all alike.

use std::time::{Duration, Instant};

use papers::result::{Cell, Table};

use super::{LocalError, LocalRun};
pub(super) use crate::measure::spread::Spread;

#[derive(Clone, Copy, Debug)]
pub(super) struct Repetitions {
    pub(super) most: u32,
    /// No other round begins after this time.
    pub(super) time_max: Duration,
}

/// Measures each of `arms` in every round, each round in the reverse order of the one before; one round with little
/// effort. Returns, for each arm, the `N` numbers of each round.
pub(super) fn alternating<const N: usize>(
    run: &LocalRun<'_>,
    repetitions: Repetitions,
    arms: usize,
    mut measure: impl FnMut(usize) -> Result<[f64; N], LocalError>,
) -> Result<Vec<Vec<[f64; N]>>, LocalError> {
    let start = Instant::now();
    let mut values = vec![Vec::new(); arms];
    let most = run.pick(repetitions.most.max(1), 1);
    for round in 0..most {
        if round > 0 && start.elapsed() >= repetitions.time_max {
            run.step(u64::from(most - round) * arms as u64);
            break;
        }
        for position in 0..arms {
            let arm = if round % 2 == 0 { position } else { arms - 1 - position };
            // What an interruption stops may fail with any error.
            let measured = if run.host.is_interrupted() { Err(LocalError::Interrupted) } else { measure(arm) };
            values[arm].push(measured.map_err(|error| match run.host.is_interrupted() {
                true => LocalError::Interrupted,
                false => error,
            })?);
            run.step(1);
        }
    }
    Ok(values)
}

/// The same, but returns `N` spreads for each arm.
pub(super) fn interleaved<const N: usize>(
    run: &LocalRun<'_>,
    repetitions: Repetitions,
    arms: usize,
    measure: impl FnMut(usize) -> Result<[f64; N], LocalError>,
) -> Result<Vec<[Spread; N]>, LocalError> {
    let spreads =
        |rounds: Vec<[f64; N]>| std::array::from_fn(|number| Spread::of(rounds.iter().map(|all| all[number])));
    Ok(alternating(run, repetitions, arms, measure)?.into_iter().map(spreads).collect())
}

/// A table of measured values: one row a name, with the median and the range.
pub(super) fn table(name: &str, title: &str, unit: &str, digits: usize, rows: Vec<(String, Spread)>) -> Table {
    let local = |value| Cell { local: Some(value), ..Cell::default() };
    let counts = rows.iter().map(|(_, spread)| spread.count);
    let (least, most) = (counts.clone().min().unwrap_or(0), counts.max().unwrap_or(0));
    let times = if least == most { least.to_string() } else { format!("{least} to {most}") };
    Table {
        name: name.to_owned(),
        title: format!("On this host: {title} (repetitions in turn: {times})"),
        unit: unit.to_owned(),
        digits,
        rows_are: "what".to_owned(),
        columns_are: "of the repetitions".to_owned(),
        cells: rows.iter().map(|(_, s)| [s.median, s.least, s.most].map(local).to_vec()).collect(),
        ..Table::default()
    }
    .of_rows(rows.iter().map(|(name, _)| name))
    .of_columns(["median", "least", "most"])
}
