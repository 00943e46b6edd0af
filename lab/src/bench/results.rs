//! All samples, by workload and contender, and their targets.

use std::fmt;

use crate::bench::sample::{Sample, Unit};
use crate::spread::Spread;

pub struct Subject {
    /// Its name, for `--only`.
    pub name: String,
    pub title: &'static str,
    pub about: &'static str,
    pub unit: Unit,
    /// Labels of the contenders.
    pub contenders: Vec<&'static str>,
    /// The targets of Awase.
    pub bounds: Vec<Bound>,
}

/// The samples of one workload: for each contender, in order, one a repetition.
pub struct Result {
    pub subject: Subject,
    pub samples: Vec<Vec<Sample>>,
    /// Why a contender could not be measured.
    pub failures: Vec<Option<String>>,
}

impl Result {
    pub fn new(subject: Subject) -> Result {
        let samples = vec![Vec::new(); subject.contenders.len()];
        let failures = vec![None; subject.contenders.len()];
        Result { subject, samples, failures }
    }

    /// A contender's value; `None` if it failed once.
    pub fn value(&self, contender: usize) -> Option<Spread> {
        if self.failures[contender].is_some() {
            return None;
        }
        Spread::of_any(self.samples[contender].iter().map(|sample| sample.value))
    }

    /// Processor time of the contender's server for each unit of work. Microseconds.
    pub fn cpu_us(&self, contender: usize) -> Option<Spread> {
        Spread::of_any(self.samples[contender].iter().filter_map(|sample| sample.cpu_us))
    }

    /// The medians of the contender's median and 99th percentile latency. Microseconds.
    pub fn latency_us(&self, contender: usize) -> Option<(f64, f64)> {
        let of = |pick: fn(&(f64, f64)) -> f64| {
            Spread::of_any(self.samples[contender].iter().filter_map(|sample| sample.latency_us.as_ref().map(pick)))
        };
        Some((of(|latency| latency.0)?.median, of(|latency| latency.1)?.median))
    }

    pub fn contender(&self, label: &str) -> Option<usize> {
        self.subject.contenders.iter().position(|contender| *contender == label)
    }

    /// Median of `label` over the largest median of `others`, and the spread of that over the repetitions.
    pub fn ratio(&self, label: &str, others: &[&str]) -> Option<Spread> {
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
        let spread = Spread::of_any(pairs)?;
        Some(Spread { median: self.value(of)?.median / best, ..spread })
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::Times(least, [other]) => write!(f, "at least {least} × {other}"),
            Bound::Times(least, others) => write!(f, "at least {least} × the better of {}", others.join(" and ")),
            Bound::AtMost(most) => write!(f, "at most {most}"),
            Bound::OfLimit(least, limit) => write!(f, "at least {least} of the limit, {limit}"),
        }
    }
}

/// What Awase's value is compared with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// At least this many times the best of these.
    Times(f64, &'static [&'static str]),
    /// At most this, in the workload's unit.
    AtMost(f64),
    /// At least this part of a limit, in the workload's unit.
    OfLimit(f64, f64),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::nfs;
    use crate::bench::workload::{PEERS, comparison, switches};

    fn measured(name: &str, values: &[(&str, &[f64])]) -> Result {
        let workload = comparison().into_iter().find(|workload| workload.name == name).unwrap();
        let mut result = Result::new(workload.subject());
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
        assert_eq!((ratio.median, ratio.least, ratio.most), (2.0, 1.5, 2.25));
    }

    #[test]
    fn nothing_is_said_of_who_was_not_measured() {
        assert_eq!(measured("copy_in", &[("Awase", &[6.0])]).ratio("Awase", PEERS), None);
    }

    #[test]
    fn every_bound_is_on_those_who_take_part() {
        let disks = comparison().into_iter().map(|workload| workload.subject());
        for subject in disks.chain(nfs::workload::WORKLOADS.iter().map(nfs::workload::Workload::subject)) {
            for bound in &subject.bounds {
                let others = if let Bound::Times(_, others) = bound { others } else { &[][..] };
                let all = others.iter().chain(&["Awase"]);
                assert!(all.clone().all(|label| subject.contenders.contains(label)), "{}: {bound:?}", subject.name);
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
