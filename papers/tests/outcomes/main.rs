//! All experiments on one of the machines, concurrently, and what is promised of their outcomes; and single ones with other
//! seeds and parameters.

mod modern;
mod recorded;
mod single;
mod targets;

use std::num::NonZeroUsize;
use std::sync::OnceLock;
use std::thread::available_parallelism;

use papers::{DEFAULT_SEED, Order, Outcome, Results, Setting, order, simulated};

/// All experiments on the papers' machines, run once.
fn published() -> &'static [Outcome] {
    static ALL: OnceLock<Vec<Outcome>> = OnceLock::new();
    ALL.get_or_init(|| outcomes(Setting::Paper, &[]))
}

fn of<'a>(all: &'a [Outcome], name: &str) -> &'a Results {
    &all.iter().find(|outcome| outcome.order.experiment.name() == name).expect("an experiment of that name").results
}

/// What an experiment gives on the paper's machine.
fn usual(name: &str) -> &'static Results {
    of(published(), name)
}

/// The outcomes with these parameters changed, where an experiment has them.
fn outcomes(setting: Setting, changes: &[(&str, f64)]) -> Vec<Outcome> {
    let order = |experiment: &'static papers::Experiment| {
        let order = Order::new(experiment, setting, DEFAULT_SEED);
        let mut order = order.unwrap_or_else(|error| panic!("{}: {error}", experiment.name()));
        for (name, value) in changes {
            if order.parameters.iter().any(|(parameter, _)| parameter.name == *name) {
                order.parameters.set(name, *value).expect("in range");
            }
        }
        order
    };
    let threads = available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let is_there = |of: &&'static papers::Experiment| setting == Setting::Paper || !of.sheet().modern.is_empty();
    let outcomes = order::run(simulated().filter(is_there).map(order).collect(), threads, |_| {});
    outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(|failed| panic!("{failed}"))).collect()
}
