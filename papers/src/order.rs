//! Running experiments: several concurrently on the host's cores, each deterministic on one thread.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use thiserror::Error;

use crate::experiment::{Experiment, Run};
use crate::parameter::sheet::Decision;
use crate::parameter::{ParameterError, Parameters};
use crate::result::Results;
use crate::sensitivity::{self, Sensitivity};

/// Interval of progress reports.
const PROGRESS_PERIOD: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Setting {
    #[default]
    Paper,
    /// A machine of 2026.
    Modern,
}

pub struct Order {
    pub experiment: &'static Experiment,
    pub setting: Setting,
    pub parameters: Parameters,
    pub seed: u64,
}

pub struct Outcome {
    pub order: Order,
    pub results: Results,
    /// Measured now; without it, a report has the [recorded](sensitivity::recorded) one.
    pub measured: Option<Sensitivity>,
}

/// An experiment panicked: a bug of its own.
#[derive(Debug, Error)]
#[error("{experiment} failed with seed {seed} and these parameters: {message}")]
pub struct Failed {
    pub experiment: &'static str,
    pub seed: u64,
    pub message: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    pub done: u64,
    pub total: u64,
    pub running: Vec<String>,
}

impl Outcome {
    /// Was a machine simulated, or only this one measured?
    pub fn is_simulated(&self) -> bool {
        self.results.tables.iter().flat_map(|table| table.cells.iter().flatten()).any(|cell| cell.simulated.is_some())
    }

    /// What the agreement owes to numbers that nobody published: of the paper's machine as it is, where it was simulated.
    pub fn sensitivity(&self) -> Option<Sensitivity> {
        let is_as_recorded = self.order.setting == Setting::Paper && self.order.changed().is_empty();
        let recorded = || sensitivity::recorded(self.order.experiment.name()).filter(|_| is_as_recorded);
        self.measured.clone().or_else(recorded).filter(|_| self.is_simulated())
    }

    /// Who makes the decisions of the simulated machine: a sentence each.
    pub fn decisions(&self) -> Vec<String> {
        let decisions = self.order.experiment.sheet().decisions.iter().filter(|_| self.is_simulated());
        decisions.map(Decision::sentence).collect()
    }

    /// Where it ran: one phrase.
    pub fn place(&self) -> &'static str {
        let mut cells = self.results.tables.iter().flat_map(|table| table.cells.iter().flatten());
        let local = cells.any(|cell| cell.local.is_some());
        match (self.is_simulated(), local, self.order.setting) {
            (false, ..) => "measured on this machine",
            (true, false, Setting::Paper) => "on the paper's machine, simulated",
            (true, false, Setting::Modern) => "on a machine of 2026, simulated",
            (true, true, Setting::Paper) => "on the paper's machine, simulated, and on this one",
            (true, true, Setting::Modern) => "on a machine of 2026, simulated, and on this one",
        }
    }
}

impl Order {
    /// With the parameters of that machine.
    ///
    /// # Errors
    /// When the experiment's own machine of 2026 is out of its ranges.
    pub fn new(experiment: &'static Experiment, setting: Setting, seed: u64) -> Result<Self, ParameterError> {
        let mut parameters = experiment.parameters();
        if setting == Setting::Modern {
            experiment.sheet().modern.iter().try_for_each(|(name, value)| parameters.set(name, *value))?;
        }
        Ok(Order { experiment, setting, parameters, seed })
    }

    /// The name in files and headings: `ws-table3`, `ws-table3-2026`.
    pub fn name(&self) -> String {
        match self.setting {
            Setting::Paper => self.experiment.name().to_owned(),
            Setting::Modern => format!("{}-2026", self.experiment.name()),
        }
    }

    /// Parameters that differ from the chosen machine's: name, value, the machine's value.
    pub fn changed(&self) -> Vec<(&'static str, f64, f64)> {
        let usual = |name: &str, default: f64| match self.setting {
            Setting::Paper => default,
            Setting::Modern => self.experiment.sheet().modern_value(name).unwrap_or(default),
        };
        let all = self.parameters.iter().map(|(of, value)| (of.name, value, usual(of.name, of.default)));
        all.filter(|(_, value, usual)| value != usual).collect()
    }

    /// The command that repeats it.
    pub fn command(&self) -> String {
        let mut command = format!("awase lab run {}", self.experiment.name());
        if self.setting == Setting::Modern {
            command += " --machine 2026";
        }
        let set = self.changed().into_iter().map(|(name, value, _)| (name, value));
        command + &chosen(self.seed, set)
    }

    fn run(&self, done: &AtomicU64) -> Result<Results, Failed> {
        let run =
            Run { experiment: self.experiment, parameters: &self.parameters, seed: self.seed, done, is_brief: false };
        // An experiment that panics on strange parameters must not discard the others' results.
        let results = catch_unwind(AssertUnwindSafe(|| self.experiment.simulate(&run)));
        let mut results = results.map_err(|panic| Failed {
            experiment: self.experiment.name(),
            seed: self.seed,
            message: said(panic.as_ref()),
        })?;
        if self.setting == Setting::Modern {
            results.forget_the_paper();
        }
        Ok(results)
    }
}

/// Seed and parameters on a command line, where they are not the usual ones.
pub fn chosen<'a>(seed: u64, set: impl IntoIterator<Item = (&'a str, f64)>) -> String {
    let seed = if seed == DEFAULT_SEED { String::new() } else { format!(" --seed {seed}") };
    set.into_iter().fold(seed, |text, (name, value)| text + &format!(" --set {name}={value}"))
}

/// The default seed, with which results are recorded.
pub const DEFAULT_SEED: u64 = 1;

fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("it does not say why").to_owned()
}

/// Runs all on `threads` threads; the results are in the order of `orders`. The calling thread calls `progress`.
pub fn run(
    orders: Vec<Order>,
    threads: NonZeroUsize,
    mut progress: impl FnMut(&Progress),
) -> Vec<Result<Outcome, Failed>> {
    let steps: Vec<u64> = orders.iter().map(|order| order.experiment.steps(&order.parameters).max(1)).collect();
    let done: Vec<AtomicU64> = orders.iter().map(|_| AtomicU64::new(0)).collect();
    let next = AtomicUsize::new(0);
    let mut results: Vec<Option<Result<Results, Failed>>> = orders.iter().map(|_| None).collect();
    let mut running = BTreeSet::new();
    thread::scope(|scope| {
        let (sender, receiver) = channel();
        for _ in 0..threads.get().min(orders.len()) {
            let sender = sender.clone();
            let (next, orders, done) = (&next, &orders, &done);
            scope.spawn(move || {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(order) = orders.get(index) else { return };
                    let sent =
                        sender.send((index, None)).and_then(|()| sender.send((index, Some(order.run(&done[index])))));
                    // The receiver is gone.
                    if sent.is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        loop {
            match receiver.recv_timeout(PROGRESS_PERIOD) {
                Ok((index, None)) => {
                    running.insert(index);
                }
                Ok((index, Some(result))) => {
                    running.remove(&index);
                    done[index].store(steps[index], Ordering::Relaxed);
                    results[index] = Some(result);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            // The steps of an experiment are an estimate.
            let so_far = done.iter().zip(&steps).map(|(done, steps)| done.load(Ordering::Relaxed).min(*steps)).sum();
            let running = running.iter().map(|index| orders[*index].name()).collect();
            progress(&Progress { done: so_far, total: steps.iter().sum(), running });
        }
    });
    let both = orders.into_iter().zip(results);
    both.filter_map(|(order, result)| Some(result?.map(|results| Outcome { order, results, measured: None }))).collect()
}
