//! What the paper counted or used without publishing numbers: I/O by device, modules in memory, test update.

use std::collections::BTreeSet;

use super::super::Run;
use super::account::{Account, Path};
use super::costs::{Costs, mix};
use super::devices::{ANSWERS, DISKS, JOURNAL, MESSAGES, SYSTEM};
use super::mainframe::{self, Load, Ran};
use super::techniques;
use crate::model::Simulation;
use crate::result::{Finding, Results, Series, Table};

/// Modules in memory.
const RESIDENT: [u64; 6] = [0, 4, 8, 16, 32, 64];

/// Of devices before and after, of modules the same, and the load test that writes images of what it changes.
pub(super) const STEPS: u64 = 2 + 2 * RESIDENT.len() as u64 + 1;

pub(super) fn add(run: &Run<'_>, (before, after): (&Account, &Account), results: &mut Results) {
    devices(run, results);
    modules(run, results);
    test_update(run, [before, after], results);
}

fn load(run: &Run<'_>) -> Load {
    Load { transactions: run.get("transactions") as u64, mix: mix(run, "heavy") }
}

fn ran(run: &Run<'_>, costs: &Costs, has_all: bool, load: Load) -> Ran {
    let ran = mainframe::watch(costs, techniques(run, 1.0, |_| has_all), load, run.seed);
    run.step();
    ran
}

/// I/O a second and percent busy, by device (1.2 (1)).
fn devices(run: &Run<'_>, results: &mut Results) {
    let of = |has_all: bool| {
        let ran = ran(run, &Costs::of(run), has_all, load(run));
        let seconds = ran.time.as_secs_f64();
        let rates = ran.used.iter().map(|used| [used.ios as f64 / seconds, used.busy_ns as f64 / 1e7 / seconds]);
        let rates: Vec<[f64; 2]> = rates.collect();
        let mut disks = rates[DISKS..].to_vec();
        disks.sort_by(|one, other| one[0].total_cmp(&other[0]));
        let mean = |of: usize| disks.iter().map(|disk| disk[of]).sum::<f64>() / disks.len() as f64;
        let [least, most] = [disks[0], disks[disks.len() - 1]];
        [rates[MESSAGES], rates[ANSWERS], rates[JOURNAL], least, [mean(0), mean(1)], most]
    };
    let (before, after) = (of(false), of(true));
    results
        .tables
        .push(run.table("devices", before.iter().zip(&after).map(|(before, after)| [*before, *after].concat())));
    let busiest = |rates: &[[f64; 2]; 6]| rates.iter().map(|rate| rate[1]).fold(0.0, f64::max);
    results.findings.push(Finding::new(
        format!(
            "No device is the bottleneck (1.2 (1)): the busiest one is busy {:.0} % of the time before, {:.0} % after",
            busiest(&before),
            busiest(&after)
        ),
        busiest(&before) < 50.0 && busiest(&after) < 80.0,
    ));
}

/// Modules of the system by how many are kept in memory (1.2 (4)).
fn modules(run: &Run<'_>, results: &mut Results) {
    let rows = RESIDENT.map(|resident| {
        let mut costs = Costs::of(run);
        costs.modules.resident = resident;
        let [before, after] = [false, true].map(|has_all| ran(run, &costs, has_all, load(run)));
        let busy = after.used[SYSTEM].busy_ns as f64 / 1e7 / after.time.as_secs_f64();
        [before.loads, before.account.per_hour(), after.account.per_hour(), busy]
    });
    let table = run.table("modules", rows).of_rows(RESIDENT);
    let title = table.title.replace("{modules}", &run.get("modules.count").to_string());
    results.tables.push(Table { title, ..table });
    let line = |name: &str, of: usize| {
        Series::simulated(name, RESIDENT.map(|resident| resident as f64).into_iter().zip(rows.map(|row| row[of])))
    };
    results.plots.push(run.plot("modules", vec![line("before", 1), line("after", 2)]));
    let [none, .., sixteen, _, all] = rows;
    results.findings.push(Finding::new(
        format!(
            "To keep the sixteen most used modules in memory saves most of what all would (1.2 (4)): {:.1} loads a \
             transaction become {:.1}, {:.0} transactions an hour {:.0} (all: {:.0})",
            none[0], sixteen[0], none[1], sixteen[1], all[1]
        ),
        sixteen[0] < 0.5 * none[0] && sixteen[1] - none[1] > 0.5 * (all[1] - none[1]),
    ));
}

/// The data base after a load test: restored from tape, or put back by test update (1.1).
fn test_update(run: &Run<'_>, [_, after]: [&Account; 2], results: &mut Results) {
    let Load { transactions, mix } = load(run);
    let random = Simulation::new(run.seed);
    let (disks, of_disk) = (run.get("disks"), run.get("db.disk") * 1e6 / BLOCK_BYTES);
    let on_disks = mix.ios - 3.0;
    let updates = (transactions as f64 * on_disks * run.get("tx.updates") / 100.0) as u64;
    let changed: BTreeSet<u64> = (0..updates).map(|_| random.below(((disks * of_disk) as u64).max(1))).collect();
    let changed = changed.len() as f64;
    // The old block is written once, beside the first change of it.
    let images = mainframe::Load {
        transactions,
        mix: super::workload::Mix { ios: mix.ios + changed / transactions as f64, ..mix },
    };
    let slowed = ran(run, &Costs::of(run), true, images).account;
    let tape_s = disks * run.get("db.disk") / run.get("tape.rate");
    let access_s = (run.get("disk.seek") + run.get("disk.rotation") / 2.0 + run.get("disk.transfer")) / 1e6;
    // Read where it was put, written where it was; all disks at once.
    let images_s = changed * 2.0 * access_s / disks;
    let rows =
        [[after.per_hour(), 0.0, tape_s], [slowed.per_hour(), changed, images_s], [after.per_hour(), changed, 0.0]];
    results.tables.push(run.table("test-update", rows));
    results.findings.push(Finding::new(
        format!(
            "Test update spares the tape (1.1): {:.0} s in place of {:.0} to put the data base back",
            images_s, tape_s
        ),
        images_s * 10.0 < tape_s,
    ));
    results.findings.push(Finding::new(
        format!(
            "How it is done decides what is measured: images of old blocks cost {:.0} % of the transactions, changes that \
             are kept apart none",
            (1.0 - slowed.per_hour() / after.per_hour()) * 100.0
        ),
        slowed.per_hour() < 0.95 * after.per_hour() && after.rate(Path::IoCompletion) > 0.0,
    ));
}

const BLOCK_BYTES: f64 = 4096.0;
