//! WS-2: the dynamic buffer cache. The paper describes its benefits and the side effects that had to be cured, and
//! publishes no numbers: the tables are predictions, on the machines of its table 1.

mod giving;
mod host;
mod machine;
mod operations;
mod paging;
mod reading;
mod scanning;
mod slow;
mod storm;
mod writing;

use super::Run;
use crate::result::Results;
use machine::Hardware;

pub(super) const STEPS: u64 = 37 + paging::STEPS + slow::STEPS;

pub(super) fn simulate(run: &Run<'_>) -> Results {
    let hardware = Hardware::of(run);
    let mut results = Results::default();
    reading::run(run, &hardware, &mut results);
    scanning::run(run, &hardware, &mut results);
    writing::run(run, &hardware, &mut results);
    storm::run(run, &hardware, &mut results);
    giving::run(run, &hardware, &mut results);
    operations::run(run, &hardware, &mut results);
    paging::run(run, &hardware, &mut results);
    slow::run(run, &hardware, &mut results);
    results.notes = run.notes(&[]);
    if hardware.buffer > 64 << 10 {
        results.notes.push(format!(
            "A buffer stands for {} KB here, so that a large machine can be simulated in a moment: a transfer takes \
             longer than in truth, and latencies are no finer than that.",
            hardware.buffer >> 10
        ));
    }
    results
}
