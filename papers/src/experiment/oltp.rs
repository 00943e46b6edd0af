//! OLTP: the system's cost of a transaction, and six techniques that reduce it.

mod account;
mod beyond;
mod costs;
mod devices;
mod mainframe;
mod modules;
mod plots;
mod report;
mod trace;
mod workload;

use std::time::Duration;

use policy::quantum::Mode;

use super::Run;
use crate::result::Results;
use account::Account;
use costs::{Costs, mix};
use mainframe::{Load, Techniques};

/// Quanta tried with all techniques, as multiples of the parameter's quantum.
const QUANTA: [f64; 6] = [0.125, 0.25, 0.5, 1.0, 2.0, 4.0];

/// Numbers of disks, among them the paper's 30.
const DISKS: [usize; 7] = [1, 2, 4, 8, 15, 30, 60];

/// Before, each alone, and each with those before it but the first, which is alone; for two mixes.
pub(super) const STEPS: u64 = (2 * (1 + 6 + 5) + QUANTA.len() + 2 * DISKS.len()) as u64 + beyond::STEPS;

pub(super) fn simulate(run: &Run<'_>) -> Results {
    if run.is_brief {
        return report::published(run, &Published::of(run));
    }
    let measured = Measured::of(run);
    let mut results = Results { plots: plots::all(run, &measured), ..report::results(run, &measured) };
    beyond::add(run, (&measured.heavy.before, measured.heavy.after()), &mut results);
    results
}

struct OfMix {
    before: Account,
    alone: [Account; 6],
    /// With each technique and those before it.
    together: [Account; 6],
}

impl OfMix {
    fn after(&self) -> &Account {
        &self.together[5]
    }
}

/// Only what the paper has numbers of: before, with the first technique, and with all.
struct Published {
    heavy: [Account; 3],
    light: [Account; 3],
}

impl Published {
    fn of(run: &Run<'_>) -> Self {
        let costs = Costs::of(run);
        let transactions = run.get("transactions") as u64;
        let [heavy, light] = ["heavy", "light"].map(|name| {
            let load = Load { transactions, mix: mix(run, name) };
            [0, 1, 6].map(|count| mainframe::run(&costs, techniques(run, 1.0, |one| one < count), load, run.seed))
        });
        Published { heavy, light }
    }
}

struct Measured {
    heavy: OfMix,
    light: OfMix,
    /// The heavy mix with all techniques and [`QUANTA`].
    quanta: [Account; 6],
    /// The heavy mix with [`DISKS`]: before, and with all techniques.
    disks: [[Account; 2]; DISKS.len()],
}

impl Measured {
    fn of(run: &Run<'_>) -> Self {
        let costs = Costs::of(run);
        let transactions = run.get("transactions") as u64;
        let [heavy, light] = ["heavy", "light"].map(|name| Load { transactions, mix: mix(run, name) });
        let with = |techniques: Techniques, load: Load| {
            let account = mainframe::run(&costs, techniques, load, run.seed);
            run.step();
            account
        };
        let of_mix = |load: Load| {
            let alone: [Account; 6] = std::array::from_fn(|one| with(techniques(run, 1.0, |other| other == one), load));
            let together = std::array::from_fn(|last| match last {
                0 => alone[0],
                _ => with(techniques(run, 1.0, |other| other <= last), load),
            });
            OfMix { before: with(techniques(run, 1.0, |_| false), load), alone, together }
        };
        Measured {
            heavy: of_mix(heavy),
            light: of_mix(light),
            disks: DISKS.map(|disks| {
                [false, true].map(|all| {
                    let mut costs = costs.clone();
                    costs.disks = disks;
                    let account = mainframe::run(&costs, techniques(run, 1.0, |_| all), heavy, run.seed);
                    run.step();
                    account
                })
            }),
            quanta: std::array::from_fn(|number| with(techniques(run, QUANTA[number], |_| true), heavy)),
        }
    }
}

/// The techniques that `has` selects, with a multiple of the quantum.
fn techniques(run: &Run<'_>, quanta: f64, has: impl Fn(usize) -> bool) -> Techniques {
    let quantum = Duration::from_nanos((run.get("quantum") * quanta * 1000.0) as u64);
    Techniques {
        quantum: if has(0) { Mode::Fixed { quantum } } else { Mode::Off },
        is_trace_thinned: has(1),
        is_exit_immediate: has(2),
        is_mode_call_first: has(3),
        has_binary_names: has(4),
        looks_ahead: has(5),
    }
}
