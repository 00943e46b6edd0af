//! All samples, by workload and contender, and their targets.

use std::fmt;
use std::io::Write as _;

use awase::tell;
use papers::parameter::Text;
use papers::parameter::sheet::text;
use serde::{Deserialize, Deserializer};

use crate::bench::contender::{Contender, Role};
use crate::bench::sample::{Sample, Unit};
use crate::measure::spread::Spread;

/// What is compared, in one figure.
#[derive(Clone, Debug, Deserialize)]
pub struct Subject {
    /// Its name, for `--only`.
    pub name: String,
    pub title: String,
    #[serde(default, deserialize_with = "text")]
    pub about: Text,
    pub unit: Unit,
    pub contenders: Vec<Contender>,
    /// The targets of Awase.
    #[serde(default)]
    pub bounds: Vec<Bound>,
}

/// A subject, and how it is set up: `S` is what only one kind of server needs.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload<S> {
    #[serde(flatten)]
    pub subject: Subject,
    pub setup: S,
}

/// Leaves only those contenders, and those workloads that have any.
pub fn retain<S>(workloads: &mut Vec<Workload<S>>, wanted: impl Fn(&Contender) -> bool) {
    workloads.retain_mut(|workload| {
        workload.subject.contenders.retain(&wanted);
        !workload.subject.contenders.is_empty()
    });
}

/// Prints the name, title and targets of each workload.
///
/// # Errors
/// When standard output cannot be written.
pub fn list<'a, S: 'a>(workloads: impl IntoIterator<Item = &'a Workload<S>>) -> anyhow::Result<()> {
    tell::print_by(|output| {
        workloads.into_iter().try_for_each(|Workload { subject, .. }| {
            let bounds: Vec<String> = subject.bounds.iter().map(Bound::to_string).collect();
            let bounds = if bounds.is_empty() { String::new() } else { format!(" ({})", bounds.join(", ")) };
            writeln!(output, "{:28} {}{bounds}", subject.name, subject.title)
        })
    })
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

    /// How many times better than the best of `others` the median of `label` is, and the spread of that over the
    /// repetitions.
    pub fn ratio(&self, label: &str, others: &[&str]) -> Option<Spread> {
        let of = self.contender(label)?;
        let others: Option<Vec<usize>> = others.iter().map(|other| self.contender(other)).collect();
        let others = others?;
        let medians = others.iter().map(|other| Some(self.value(*other)?.median)).collect::<Option<Vec<_>>>()?;
        let best = self.best(medians)?;
        let repetitions = others.iter().map(|other| self.samples[*other].len()).min()?.min(self.samples[of].len());
        let pairs = (0..repetitions).filter_map(|repetition| {
            let best = self.best(others.iter().map(|other| self.samples[*other][repetition].value))?;
            Some(self.times(self.samples[of][repetition].value, best))
        });
        let spread = Spread::of_any(pairs)?;
        Some(Spread { median: self.times(self.value(of)?.median, best), ..spread })
    }

    fn best(&self, values: impl IntoIterator<Item = f64>) -> Option<f64> {
        let best = if self.subject.unit.more_is_better() { f64::max } else { f64::min };
        values.into_iter().reduce(best)
    }

    /// How many times better a value is than another one.
    fn times(&self, value: f64, other: f64) -> f64 {
        if self.subject.unit.more_is_better() { value / other } else { other / value }
    }

    /// The best contender of a role that was measured.
    fn best_of(&self, role: Role) -> Option<usize> {
        let of_role = |index: &usize| self.subject.contenders[*index].role() == role && self.value(*index).is_some();
        let all = (0..self.subject.contenders.len()).filter(of_role);
        let value = |index: usize| self.value(index).map_or(0.0, |value| value.median);
        all.max_by(|one, other| self.times(value(*one), value(*other)).total_cmp(&1.0))
    }

    /// The contender that the others are a part of.
    pub fn limit(&self) -> Option<usize> {
        let roles = self.subject.contenders.iter().map(Contender::role);
        self.best_of(roles.filter(|role| matches!(role, Role::Limit(_))).max()?)
    }

    /// The best of the other servers.
    pub fn best_peer(&self) -> Option<usize> {
        self.best_of(Role::Peer)
    }

    /// How many times better one contender's median is than another one's.
    pub fn compared(&self, of: usize, with: usize) -> Option<f64> {
        Some(self.times(self.value(of)?.median, self.value(with)?.median))
    }

    /// How many times better the first contender, a technique that is on, is than the others: over 1 if it helps.
    pub fn gain(&self) -> Option<f64> {
        let labels: Vec<&str> = self.subject.contenders.iter().map(|contender| contender.label).collect();
        let (on, off) = labels.split_first()?;
        Some(self.ratio(on, off)?.median)
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::Times(least, [other]) => write!(f, "at least {least} × {other}"),
            Bound::Times(least, others) => write!(f, "at least {least} × the better of {}", others.join(" and ")),
            Bound::Of(one, least, other) => write!(f, "{one}: at least {least} × {other}"),
            Bound::AtMost(most) => write!(f, "at most {most}"),
            Bound::TimesLimit(least) => write!(f, "at least {least} × the limit"),
            Bound::CpuTimesLimit(most) => write!(f, "CPU time at most {most} × that of the limit"),
            Bound::OfLimit(least, limit) => write!(f, "at least {least} of the limit, {limit}"),
        }
    }
}

/// What Awase's value is compared with.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// At least this many times the best of these.
    Times(f64, #[serde(deserialize_with = "labels")] &'static [&'static str]),
    /// One contender at least so many times another one, whatever Awase's value is.
    Of(#[serde(deserialize_with = "text")] Text, f64, #[serde(deserialize_with = "text")] Text),
    /// At most this, in the workload's unit.
    AtMost(f64),
    /// At least this many times the contender that is the limit ([`Result::limit`]).
    TimesLimit(f64),
    /// At most this many times its processor time.
    CpuTimesLimit(f64),
    /// At least this part of a limit, in the workload's unit.
    OfLimit(f64, f64),
}

/// Workloads are read once.
fn labels<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<&'static [&'static str], D::Error> {
    let labels = Vec::<String>::deserialize(deserializer)?;
    Ok(labels.into_iter().map(|label| &*label.leak()).collect::<Vec<_>>().leak())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::bench::disks::{PEERS, comparison, switches};
    use crate::bench::{mount, nfs};

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

    #[test]
    fn what_the_limit_and_the_best_peer_are_is_said_by_what_contenders_do() {
        let values: &[(&str, &[f64])] =
            &[("Awase", &[6.0]), ("nbdkit file", &[2.0]), ("qemu-nbd", &[4.0]), ("pass", &[8.0])];
        let result = measured("copy_in", values);
        let label = |index: Option<usize>| index.map(|index| result.subject.contenders[index].label);
        assert_eq!((label(result.limit()), label(result.best_peer())), (Some("pass"), Some("qemu-nbd")));
        assert_eq!(result.compared(0, result.limit().unwrap()), Some(0.75));
        let late: &[(&str, &[f64])] = &[("Awase", &[20.0]), ("nbdkit file", &[40.0]), ("nbdkit memory", &[30.0])];
        let result = measured("latency_read_cached", late);
        assert_eq!(result.best_peer().map(|peer| result.subject.contenders[peer].label), Some("nbdkit memory"));
        assert_eq!(result.compared(0, result.best_peer().unwrap()), Some(1.5));
    }

    /// On disks, on file servers, and of mounts.
    fn subjects() -> [Vec<Subject>; 3] {
        let disks = comparison().into_iter().chain(switches()).map(|workload| workload.subject);
        let files = nfs::workloads().into_iter().map(|workload| workload.subject);
        let mounts = mount::workloads().into_iter().map(|workload| workload.subject);
        [disks.collect(), files.collect(), mounts.collect()]
    }

    #[test]
    fn every_bound_is_on_contenders_of_the_workload() {
        for subject in subjects().concat() {
            for bound in &subject.bounds {
                let others = match bound {
                    Bound::Times(_, others) => others.to_vec(),
                    Bound::Of(one, _, other) => vec![*one, *other],
                    _ => Vec::new(),
                };
                let has = |label: &&str| subject.contenders.iter().any(|contender| contender.label == *label);
                let is_limited = subject.contenders.iter().any(|contender| matches!(contender.role(), Role::Limit(_)));
                let needs_limit = matches!(bound, Bound::TimesLimit(_) | Bound::CpuTimesLimit(_));
                assert!(is_limited || !needs_limit, "{}: {bound:?}", subject.name);
                assert!(others.iter().chain(&["Awase"]).all(has), "{}: {bound:?}", subject.name);
            }
        }
    }

    #[test]
    fn a_key_that_no_workload_has_is_an_error() {
        let text = "name = 'a'\ntitle = 'A'\nunit = 'mib'\ncontenders = ['Awase']\nsetup = 1";
        assert!(toml::from_str::<Workload<u32>>(text).is_ok());
        assert!(toml::from_str::<Workload<u32>>(&format!("tittle = 'B'\n{text}")).is_err());
    }

    #[test]
    fn names_of_workloads_are_distinct() {
        for subjects in subjects() {
            let names: BTreeSet<&str> = subjects.iter().map(|subject| subject.name.as_str()).collect();
            assert_eq!(names.len(), subjects.len());
        }
    }
}
