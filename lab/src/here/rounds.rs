//! Repetitions: what is compared takes turns, so that what happens on the host meanwhile meets all alike.

use std::time::{Duration, Instant};

use super::{HereError, HereRun};
use crate::result::{Cell, Table};

#[derive(Clone, Copy, Debug)]
pub(super) struct Rounds {
    /// Rounds at most; one at least.
    pub(super) most: u32,
    /// No other round begins when so much time has passed.
    pub(super) time_max: Duration,
}

/// What several measurements of one thing came to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) least: f64,
    pub(super) most: f64,
    pub(super) count: usize,
}

impl Spread {
    /// Of at least one value; all zero of none.
    pub(super) fn of(mut values: Vec<f64>) -> Self {
        values.sort_unstable_by(f64::total_cmp);
        let (Some(&least), Some(&most)) = (values.first(), values.last()) else { return Spread::default() };
        let middle = values.len() / 2;
        let median =
            if values.len().is_multiple_of(2) { (values[middle - 1] + values[middle]) / 2.0 } else { values[middle] };
        Spread { median, least, most, count: values.len() }
    }
}

/// Measures each of `arms` in turn, round after round, each round in the opposite order of the one before. A measurement
/// gives `N` numbers; returned are `N` spreads for each arm.
pub(super) fn interleaved<const N: usize>(
    run: &HereRun<'_>,
    rounds: Rounds,
    arms: usize,
    mut measure: impl FnMut(usize) -> Result<[f64; N], HereError>,
) -> Result<Vec<[Spread; N]>, HereError> {
    let start = Instant::now();
    let mut values: Vec<[Vec<f64>; N]> = (0..arms).map(|_| std::array::from_fn(|_| Vec::new())).collect();
    for round in 0..rounds.most.max(1) {
        if round > 0 && start.elapsed() >= rounds.time_max {
            run.step(u64::from(rounds.most - round) * arms as u64);
            break;
        }
        for turn in 0..arms {
            let arm = if round % 2 == 0 { turn } else { arms - 1 - turn };
            if run.host.is_interrupted() {
                return Err(HereError::Interrupted);
            }
            let numbers = measure(arm)?;
            values[arm].iter_mut().zip(numbers).for_each(|(all, number)| all.push(number));
            run.step(1);
        }
    }
    Ok(values.into_iter().map(|numbers| numbers.map(Spread::of)).collect())
}

/// A table of what was measured here: one row a name, with the median and what it lies between.
pub(super) fn table(name: &str, title: &str, unit: &str, digits: usize, rows: Vec<(String, Spread)>) -> Table {
    let here = |value| Cell { here: Some(value), ..Cell::default() };
    let counts = rows.iter().map(|(_, spread)| spread.count);
    let (least, most) = (counts.clone().min().unwrap_or(0), counts.max().unwrap_or(0));
    let times = if least == most { least.to_string() } else { format!("{least} to {most}") };
    Table {
        name: name.to_owned(),
        title: format!("On this host: {title} (repetitions in turn: {times})"),
        unit: unit.to_owned(),
        rows_are: "what".to_owned(),
        columns_are: "of the repetitions".to_owned(),
        columns: ["median", "least", "most"].map(str::to_owned).to_vec(),
        cells: rows.iter().map(|(_, s)| [s.median, s.least, s.most].map(here).to_vec()).collect(),
        rows: rows.into_iter().map(|(name, _)| name).collect(),
        in_points: false,
        digits,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_the_median_and_what_it_lies_between() {
        let spread = Spread::of(vec![3.0, 1.0, 2.0]);
        assert_eq!(spread, Spread { median: 2.0, least: 1.0, most: 3.0, count: 3 });
        assert_eq!(Spread::of(vec![4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert_eq!(Spread::of(Vec::new()), Spread::default());
    }
}
