//! How free an experiment is: what its agreement with the paper owes to numbers that nobody published.
//!
//! Each judged, inferred or fitted number is set to both ends of its plausible range, the others as they are; and all
//! are drawn from their ranges together, many times. Whoever doubts a number sees what hangs on it.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use serde::{Deserialize, Serialize};

use crate::experiment::{Experiment, Run};
use crate::parameter::{Parameter, Parameters};
use crate::result::{Results, Table};

/// Random machines of an experiment.
pub const DRAWS: usize = 100;
/// Below this share of the draws, an experiment that meets its target does so only at a point.
const POINT_PERCENT: f64 = 10.0;

/// The sensitivities of an experiment, in the paper's machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sensitivity {
    pub seed: u64,
    pub target: String,
    /// Names of the compared tables, each with what is told of it.
    pub measures: Vec<[String; 2]>,
    /// With all numbers as they are.
    pub usual: Trial,
    pub numbers: Vec<Number>,
    pub draws: Draws,
}

/// A free number, and what happens at the ends of its range.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Number {
    pub name: String,
    pub kind: String,
    pub unit: String,
    pub value: f64,
    pub least: f64,
    pub most: f64,
    pub at_least: Trial,
    pub at_most: Trial,
}

/// A machine, and what it gave.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// In the order of [`Sensitivity::measures`].
    pub agreement: Vec<f64>,
    pub is_met: bool,
    /// Findings that do not hold.
    pub refuted: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Draws {
    pub count: usize,
    /// Of them, those that meet the target.
    pub met: usize,
    /// Of each measure: the worst tenth, the middle, the best tenth.
    pub spread: Vec<[f64; 3]>,
    /// Findings with the share of draws in which they hold, in percent.
    pub held: Vec<(String, f64)>,
}

impl Sensitivity {
    /// How many numbers are of a kind.
    pub fn count(&self, kind: &str) -> usize {
        self.numbers.iter().filter(|number| number.kind == kind).count()
    }

    pub fn met_percent(&self) -> f64 {
        self.draws.met as f64 * 100.0 / self.draws.count.max(1) as f64
    }

    /// The first line of a report: does the agreement rest on a point?
    pub fn verdict(&self) -> String {
        let Draws { count, met, .. } = self.draws;
        let of_draws = format!("{met} of {count} random draws from all of their ranges meet the target");
        let [judged, inferred, fitted] = ["judged", "inferred", "fitted"].map(|kind| self.count(kind));
        let rests = format!("{judged} judged, {inferred} inferred and {fitted} fitted numbers");
        if !self.usual.is_met {
            return format!("Misses its target ({}). It rests on {rests}; {of_draws}.", self.target);
        }
        let holds = if self.met_percent() < POINT_PERCENT { "Holds only at a point" } else { "Meets its target" };
        format!("{holds} ({}). It rests on {rests}; {of_draws}.", self.target)
    }

    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).map(|text| text + "\n").unwrap_or_default()
    }
}

/// The recorded sensitivities of an experiment: `papers/recorded/NAME.sensitivity.json`.
pub fn recorded(name: &str) -> Option<Sensitivity> {
    let (_, text) = RECORDED.iter().find(|(of, _)| *of == name)?;
    serde_json::from_str(text).ok()
}

macro_rules! files {
    ($($name:literal)*) => {
        &[$(($name, include_str!(concat!("../recorded/", $name, ".sensitivity.json")))),*]
    };
}

/// Those of experiments with published numbers.
pub const RECORDED: &[(&str, &str)] = files![
    "dsm" "mp-table1" "mp-table2" "oltp" "uio" "ws-table2" "ws-table3" "ws-table4" "ws-table5" "ws-table6"
];

/// Simulates the ends and `draws` random machines, on `threads` threads; `progress` counts machines. `None` without a
/// target.
pub fn measure(
    experiment: &'static Experiment,
    seed: u64,
    draws: usize,
    threads: NonZeroUsize,
    progress: &AtomicU64,
) -> Option<Sensitivity> {
    let sheet = experiment.sheet();
    let target = sheet.target.as_ref()?;
    let free: Vec<&Parameter> = sheet.free().collect();
    let machine = |changes: &[(&'static str, f64)]| {
        let mut parameters = experiment.parameters();
        // Plausible ranges are within what the model accepts: a test requires it.
        changes.iter().for_each(|(name, value)| drop(parameters.set(name, *value)));
        parameters
    };
    let ends = free.iter().flat_map(|of| [*of.plausible.start(), *of.plausible.end()].map(|end| vec![(of.name, end)]));
    let mut random = Random(seed);
    let drawn = (0..draws).map(|_| free.iter().map(|of| (of.name, random.of(of))).collect::<Vec<_>>());
    let machines: Vec<Parameters> =
        std::iter::once(Vec::new()).chain(ends).chain(drawn).map(|changes| machine(&changes)).collect();
    let results = all(experiment, &machines, seed, threads, progress);
    let measured: Vec<&Table> = results[0].tables.iter().filter(|table| table.agreement().is_some()).collect();
    let measures: Vec<[String; 2]> =
        measured.iter().map(|table| [table.name.clone(), measure_of(table).0.to_owned()]).collect();
    let trials: Vec<Trial> = results
        .iter()
        .map(|results| Trial {
            agreement: measures.iter().map(|[name, _]| agreement(results, name)).collect(),
            is_met: target.misses(results).is_empty(),
            refuted: results
                .findings
                .iter()
                .filter(|finding| !finding.holds)
                .map(|finding| finding.text.clone())
                .collect(),
        })
        .collect();
    let numbers = free.iter().zip(trials[1..].chunks(2)).map(|(of, ends)| Number {
        name: of.name.to_owned(),
        kind: of.origin.kind().to_owned(),
        unit: of.unit.to_owned(),
        value: of.default,
        least: *of.plausible.start(),
        most: *of.plausible.end(),
        at_least: ends[0].clone(),
        at_most: ends[1].clone(),
    });
    let first = 1 + 2 * free.len();
    Some(Sensitivity {
        seed,
        target: target.phrase(),
        usual: trials[0].clone(),
        numbers: numbers.collect(),
        draws: summary(&results[0], &results[first..], &trials[first..], &measures),
        measures,
    })
}

fn summary(usual: &Results, results: &[Results], trials: &[Trial], measures: &[[String; 2]]) -> Draws {
    let spread = (0..measures.len()).map(|measure| {
        let mut of: Vec<f64> = trials.iter().map(|trial| trial.agreement[measure]).collect();
        // From the worst on: errors from the largest, explained parts from the least.
        of.sort_by(f64::total_cmp);
        if measures[measure][1] != EXPLAINED {
            of.reverse();
        }
        [0.1, 0.5, 0.9].map(|part| of.get((part * of.len() as f64) as usize).copied().unwrap_or(f64::NAN))
    });
    // Findings are told apart by their place: their texts have numbers.
    assert!(results.iter().all(|results| results.findings.len() == usual.findings.len()));
    let held = usual.findings.iter().enumerate().map(|(number, finding)| {
        let holds = |results: &&Results| results.findings.get(number).is_some_and(|finding| finding.holds);
        let count = results.iter().filter(holds).count();
        (finding.text.clone(), count as f64 * 100.0 / results.len().max(1) as f64)
    });
    Draws {
        count: trials.len(),
        met: trials.iter().filter(|trial| trial.is_met).count(),
        spread: spread.collect(),
        held: held.collect(),
    }
}

const EXPLAINED: &str = "part of the variance explained";

/// What tells best how a table agrees, and its value.
fn measure_of(table: &Table) -> (&'static str, f64) {
    let agreement = table.agreement();
    let worst = agreement.map_or(f64::NAN, |agreement| agreement.worst.abs());
    match agreement.and_then(|agreement| agreement.explained) {
        Some(explained) if table.in_points => (EXPLAINED, explained),
        _ if table.in_points => ("largest difference, points", worst),
        _ => ("largest difference, %", worst),
    }
}

fn agreement(results: &Results, name: &str) -> f64 {
    let table = results.tables.iter().find(|table| table.name == name);
    // Four digits: more would only make records longer.
    table.map_or(f64::NAN, |table| (measure_of(table).1 * 1e4).round() / 1e4)
}

/// The published part of an experiment on each of these machines.
fn all(
    experiment: &'static Experiment,
    machines: &[Parameters],
    seed: u64,
    threads: NonZeroUsize,
    progress: &AtomicU64,
) -> Vec<Results> {
    let results: Vec<Mutex<Results>> = machines.iter().map(|_| Mutex::default()).collect();
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..threads.get() {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(parameters) = machines.get(index) else { return };
                    let run = Run { experiment, parameters, seed, done: &AtomicU64::new(0), is_brief: true };
                    *results[index].lock().unwrap_or_else(PoisonError::into_inner) = experiment.simulate(&run);
                    progress.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    results.into_iter().map(|one| one.into_inner().unwrap_or_else(PoisonError::into_inner)).collect()
}

/// Machines that [`measure`] simulates.
pub fn steps(experiment: &Experiment, draws: usize) -> u64 {
    (1 + 2 * experiment.sheet().free().count() + draws) as u64
}

/// `SplitMix64` (Steele, Lea, Flood, OOPSLA 2014).
struct Random(u64);

impl Random {
    /// Uniform in the plausible range.
    fn of(&mut self, parameter: &Parameter) -> f64 {
        let (least, most) = (*parameter.plausible.start(), *parameter.plausible.end());
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        let part = (bits >> 11) as f64 / (1u64 << 53) as f64;
        if parameter.is_whole() {
            (least + (part * (most - least + 1.0)).floor()).min(most)
        } else {
            least + part * (most - least)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameter::Origin;

    #[test]
    fn drawn_numbers_fill_their_range_and_counts_stay_whole() {
        let of = |unit, plausible: std::ops::RangeInclusive<f64>| Parameter {
            name: "n",
            about: "",
            unit,
            default: *plausible.start(),
            range: plausible.clone(),
            origin: Origin::Judged("for this test"),
            plausible,
        };
        let mut random = Random(1);
        let counts: Vec<f64> = (0..200).map(|_| random.of(&of("", 4.0..=8.0))).collect();
        assert!((4..=8).all(|count| counts.contains(&f64::from(count))), "{counts:?}");
        assert!(counts.iter().all(|count| count.fract() == 0.0 && (4.0..=8.0).contains(count)));
        let times: Vec<f64> = (0..200).map(|_| random.of(&of("ms", 4.0..=8.0))).collect();
        assert!(times.iter().any(|time| *time < 4.2) && times.iter().any(|time| *time > 7.8));
    }

    #[test]
    fn what_meets_its_target_by_chance_only_is_said_to_hold_at_a_point() {
        let trial = Trial { is_met: true, ..Trial::default() };
        let draws = Draws { count: 100, met: 3, spread: Vec::new(), held: Vec::new() };
        let sensitivity = Sensitivity {
            seed: 1,
            target: "all right".to_owned(),
            measures: Vec::new(),
            usual: trial,
            numbers: Vec::new(),
            draws,
        };
        assert!(sensitivity.verdict().starts_with("Holds only at a point (all right)"), "{}", sensitivity.verdict());
        let more = Draws { met: 30, ..sensitivity.draws.clone() };
        assert!(Sensitivity { draws: more, ..sensitivity }.verdict().starts_with("Meets its target"));
    }
}
