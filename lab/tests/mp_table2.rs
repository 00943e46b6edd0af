//! What the second table of the multiprocessor paper promises.

use std::sync::atomic::AtomicU64;

use lab::{Experiment, Parameters, Results, Run, named};

fn experiment() -> &'static dyn Experiment {
    named("mp-table2").expect("it is registered")
}

fn simulate(parameters: &Parameters, seed: u64) -> Results {
    let done = AtomicU64::new(0);
    let results = experiment().simulate(&Run { parameters, seed, done: &done });
    assert_eq!(done.into_inner(), experiment().steps(parameters));
    results
}

#[test]
fn the_same_seed_gives_the_same_bits() {
    let mut parameters = experiment().parameters();
    parameters.set("run.reads", 100.0).expect("in range");
    parameters.set("run.runs", 1.0).expect("in range");
    assert_eq!(simulate(&parameters, 7), simulate(&parameters, 7));
}
