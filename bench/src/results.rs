//! All samples, by workload and contender, and what is asked of them.

use crate::sample::{Sample, Summary};
use crate::workload::Workload;

/// The samples of one workload: for each contender, in its order, one a repetition.
pub struct Result {
    /// What was measured.
    pub workload: Workload,
    /// The samples.
    pub samples: Vec<Vec<Sample>>,
    /// Why a contender could not be measured.
    pub failures: Vec<Option<String>>,
}

impl Result {
    /// Without samples yet.
    pub fn new(workload: Workload) -> Result {
        let samples = vec![Vec::new(); workload.contenders.len()];
        let failures = vec![None; workload.contenders.len()];
        Result { workload, samples, failures }
    }

    /// What a contender reached; nothing if it failed once.
    pub fn value(&self, contender: usize) -> Option<Summary> {
        if self.failures[contender].is_some() {
            return None;
        }
        Summary::of(self.samples[contender].iter().map(|sample| sample.value))
    }

    /// Processor time of its server for each unit of work. Microseconds.
    pub fn cpu_us(&self, contender: usize) -> Option<Summary> {
        Summary::of(self.samples[contender].iter().filter_map(|sample| sample.cpu_us))
    }

    /// The medians of its median and its 99th percentile latency. Microseconds.
    pub fn latency_us(&self, contender: usize) -> Option<(f64, f64)> {
        let of = |pick: fn(&(f64, f64)) -> f64| {
            Summary::of(self.samples[contender].iter().filter_map(|sample| sample.latency_us.as_ref().map(pick)))
        };
        Some((of(|latency| latency.0)?.median, of(|latency| latency.1)?.median))
    }

    /// The place of a contender.
    pub fn contender(&self, label: &str) -> Option<usize> {
        self.workload.contenders.iter().position(|contender| contender.label == label)
    }

    /// Median of `label` over the largest median of `others`, and the spread of that over the repetitions.
    pub fn ratio(&self, label: &str, others: &[&str]) -> Option<Summary> {
        let of = self.contender(label)?;
        let others: Option<Vec<usize>> = others.iter().map(|other| self.contender(other)).collect();
        let others = others?;
        let best = others.iter().map(|other| self.value(*other)).collect::<Option<Vec<_>>>()?;
        let best = best.iter().map(|summary| summary.median).fold(f64::MIN, f64::max);
        let repetitions = others.iter().map(|other| self.samples[*other].len()).min()?.min(self.samples[of].len());
        let pairs = (0..repetitions).map(|repetition| {
            let best = others.iter().map(|other| self.samples[*other][repetition].value).fold(f64::MIN, f64::max);
            self.samples[of][repetition].value / best
        });
        let spread = Summary::of(pairs)?;
        Some(Summary { median: self.value(of)?.median / best, ..spread })
    }
}

/// What Awase's number is held against.
pub enum Bound {
    /// At least so many times the best of these.
    Times(f64, &'static [&'static str]),
    /// At most this, in the workload's unit.
    AtMost(f64),
}

/// A figure that Awase is to reach.
pub struct Figure {
    /// The workload that shows it.
    pub workload: &'static str,
    /// The bound.
    pub bound: Bound,
}

const PEERS: &[&str] = &["nbdkit file", "qemu-nbd"];

/// 64 MiB of cache, the payload of 256 · 128 requests of 4 KiB, and an idle server. MiB.
const CROWD_MIB_MAX: f64 = 64.0 + 128.0 + 32.0;

/// The figures.
pub const FIGURES: &[Figure] = &[
    Figure { workload: "random_read_uncached", bound: Bound::Times(0.9, &["raw file (io_uring)"]) },
    Figure { workload: "random_read_cached", bound: Bound::Times(1.8, &["nbdkit memory"]) },
    Figure { workload: "sequential_read_cached", bound: Bound::Times(1.3, &["nbdkit memory"]) },
    Figure { workload: "random_write", bound: Bound::Times(1.0, PEERS) },
    Figure { workload: "synchronous_write", bound: Bound::Times(1.5, PEERS) },
    Figure { workload: "copy_in", bound: Bound::Times(1.0, PEERS) },
    Figure { workload: "copy_out", bound: Bound::Times(1.0, PEERS) },
    Figure { workload: "memory_idle", bound: Bound::AtMost(32.0) },
    Figure { workload: "memory_crowd", bound: Bound::AtMost(CROWD_MIB_MAX) },
    Figure { workload: "memory_bookkeeping", bound: Bound::AtMost(2.0) },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{comparison, switches};

    fn measured(name: &str, values: &[(&str, &[f64])]) -> Result {
        let workload = comparison().into_iter().find(|workload| workload.name == name).unwrap();
        let mut result = Result::new(workload);
        for (label, values) in values {
            let contender = result.contender(label).unwrap();
            result.samples[contender].extend(values.iter().map(|value| Sample::bare(*value)));
        }
        result
    }

    #[test]
    fn a_ratio_is_to_the_best_of_the_others_and_its_spread_is_that_of_pairs() {
        let values: &[(&str, &[f64])] =
            &[("Awase", &[6.0, 9.0, 8.0]), ("nbdkit file", &[2.0, 3.0, 4.0]), ("qemu-nbd", &[4.0, 4.0, 2.0])];
        let ratio = measured("copy_in", values).ratio("Awase", PEERS).unwrap();
        assert_eq!((ratio.median, ratio.min, ratio.max), (2.0, 1.5, 2.25));
    }

    #[test]
    fn nothing_is_said_of_who_was_not_measured() {
        assert_eq!(measured("copy_in", &[("Awase", &[6.0])]).ratio("Awase", PEERS), None);
    }

    #[test]
    fn every_figure_names_a_workload_and_its_contenders() {
        for figure in FIGURES {
            let workload = comparison().into_iter().find(|workload| workload.name == figure.workload);
            let result = Result::new(workload.unwrap_or_else(|| panic!("{}", figure.workload)));
            assert!(result.contender("Awase").is_some(), "{}", figure.workload);
            if let Bound::Times(_, others) = figure.bound {
                assert!(others.iter().all(|other| result.contender(other).is_some()), "{}", figure.workload);
            }
        }
    }

    #[test]
    fn names_of_workloads_are_told_apart() {
        let mut names: Vec<String> = comparison().into_iter().chain(switches()).map(|workload| workload.name).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
