//! All samples, by workload and contender, and their targets.

use std::fmt;

use crate::bench::contender::Contender;
use crate::bench::sample::{Sample, Unit};
use crate::measure::spread::Spread;

/// What is compared, in one figure.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Its name, for `--only`.
    pub name: &'static str,
    pub title: &'static str,
    pub about: &'static str,
    pub unit: Unit,
    pub contenders: Vec<Contender>,
    /// The targets of Awase.
    pub bounds: &'static [Bound],
}

/// A subject, and how it is set up: `S` is what only one kind of server needs.
#[derive(Clone, Debug)]
pub struct Workload<S> {
    pub subject: Subject,
    pub setup: S,
}

impl<S> Workload<S> {
    pub fn new(name: &'static str, title: &'static str, unit: Unit, contenders: &[Contender], setup: S) -> Self {
        let contenders = contenders.to_vec();
        Workload { subject: Subject { name, title, about: "", unit, contenders, bounds: &[] }, setup }
    }

    #[must_use]
    pub fn contenders(mut self, contenders: &[Contender]) -> Self {
        self.subject.contenders = contenders.to_vec();
        self
    }

    #[must_use]
    pub fn about(mut self, about: &'static str) -> Self {
        self.subject.about = about;
        self
    }

    #[must_use]
    pub fn bounds(mut self, bounds: &'static [Bound]) -> Self {
        self.subject.bounds = bounds;
        self
    }
}

/// Leaves only those contenders, and those workloads that have any.
pub fn retain<S>(workloads: &mut Vec<Workload<S>>, wanted: impl Fn(&Contender) -> bool) {
    workloads.retain_mut(|workload| {
        workload.subject.contenders.retain(&wanted);
        !workload.subject.contenders.is_empty()
    });
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
        self.subject.contenders.iter().position(|contender| contender.label == label)
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

    /// How many times better the first contender, a technique that is on, is than the others: over 1 if it helps.
    pub fn gain(&self) -> Option<f64> {
        let labels: Vec<&str> = self.subject.contenders.iter().map(|contender| contender.label).collect();
        let (on, off) = labels.split_first()?;
        let ratio = self.ratio(on, off)?.median;
        Some(if self.subject.unit.more_is_better() { ratio } else { 1.0 / ratio })
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
    use std::collections::BTreeSet;

    use super::*;
    use crate::bench::disks::{PEERS, comparison, switches};
    use crate::bench::nfs;

    fn measured(name: &str, values: &[(&str, &[f64])]) -> Result {
        let workload = comparison().into_iter().find(|workload| workload.subject.name == name).unwrap();
        let mut result = Result::new(workload.subject);
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
    fn a_contender_that_was_not_measured_has_no_ratio() {
        assert_eq!(measured("copy_in", &[("Awase", &[6.0])]).ratio("Awase", PEERS), None);
    }

    /// On disks, and on file servers.
    fn subjects() -> [Vec<Subject>; 2] {
        let disks = comparison().into_iter().chain(switches()).map(|workload| workload.subject);
        [disks.collect(), nfs::workloads().into_iter().map(|workload| workload.subject).collect()]
    }

    #[test]
    fn every_bound_is_on_contenders_of_the_workload() {
        for subject in subjects().concat() {
            for bound in subject.bounds {
                let others = if let Bound::Times(_, others) = bound { others } else { &[][..] };
                let has = |label: &&str| subject.contenders.iter().any(|contender| contender.label == *label);
                assert!(others.iter().chain(&["Awase"]).all(has), "{}: {bound:?}", subject.name);
            }
        }
    }

    #[test]
    fn names_of_workloads_are_distinct() {
        for subjects in subjects() {
            let names: BTreeSet<&str> = subjects.iter().map(|subject| subject.name).collect();
            assert_eq!(names.len(), subjects.len());
        }
    }
}
