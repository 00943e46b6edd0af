//! MP table 2 and figure 5: which processor should take a disk's interrupt.

use std::time::Duration;

use policy::delivery::Method;
use policy::unit::ProcessorId;

use super::Run;
use super::top1::{self, MASTER, Setup};
use crate::model::completion;
use crate::result::{Finding, Results, Source, Table};

const WAIT: u32 = 100;

/// Names in the paper.
const METHODS: [(&str, Method); 6] = [
    ("2a-1", Method::Fixed(MASTER)),
    ("2a-2", Method::Fixed(ProcessorId(1))),
    ("2b-1", Method::Initiator),
    ("2b-2", Method::Idle),
    ("2b-3", Method::Busiest),
    ("2b-4", Method::All),
];
/// Columns whose mean orders the methods: 4 to 9 processes.
const COMPARED: std::ops::Range<usize> = 3..9;

/// The paper's own words for ten wait counts: nearly 20 ms.
const NEARLY_MS: f64 = 20.0;

/// Processes of the tables beyond the paper's.
const SOME: [u32; 5] = [4, 6, 8, 9, 12];
/// Work on another processor than the initiator that its cache would have saved.
const REMOTE_MS: [f64; 3] = [0.0, 0.1, 0.3];
/// Of a mixed load: every second process computes ten times as long.
const MIXED: [u32; 2] = [20, 200];
/// Runs of such a load: processes that differ never come into step, so that runs differ by percents.
const MIXED_RUNS: u32 = 16;

pub(super) const STEPS: u64 = (2 * METHODS.len() * top1::PROCESSES.len()
    + 2 * METHODS.len() * SOME.len()
    + REMOTE_MS.len() * 2 * SOME.len()
    + METHODS.len()) as u64;

pub(super) fn simulate(run: &Run<'_>) -> Results {
    let [disk, ..] = top1::setup(run.parameters);
    let table = table(run, &Setup { wait: top1::wait(run.parameters, WAIT), ..disk });
    let plots = vec![run.plot("figure5", table.lines(str::to_owned))];
    let mut results = Results { plots, findings: vec![headline(run, &table)], ..Results::default() };
    if run.compares() {
        results.findings.extend(findings(&table));
        results.notes = run.notes(&[]);
    }
    results.tables.push(table);
    if !run.is_brief {
        beyond(run, &disk, &mut results);
    }
    results
}

fn table(run: &Run<'_>, setup: &Setup) -> Table {
    let counts = top1::process_counts(setup.processors);
    run.table("delivery", gains(run, setup, &counts)).of_rows(METHODS.map(|(name, _)| name)).of_columns(&counts)
}

/// The gain of each method over the first, in percent, by number of processes.
fn gains(run: &Run<'_>, setup: &Setup, counts: &[u32]) -> Vec<Vec<f64>> {
    gains_of_runs(run, setup, counts, run.get("run.runs") as u32)
}

fn gains_of_runs(run: &Run<'_>, setup: &Setup, counts: &[u32], runs: u32) -> Vec<Vec<f64>> {
    let times = |method: Method| -> Vec<f64> {
        let time = |processes: &u32| {
            run.step();
            top1::loop_ms(&Setup { delivery: method, processes: *processes, ..*setup }, run.seed, runs)
        };
        counts.iter().map(time).collect()
    };
    let loops = METHODS.map(|(_, method)| times(method));
    let gain = |(first, time): (&f64, &f64)| (first / time - 1.0) * 100.0;
    loops.iter().map(|times| loops[0].iter().zip(times).map(gain).collect()).collect()
}

/// At the paper's own wait; with work that a cache would have saved; with processes that differ.
fn beyond(run: &Run<'_>, disk: &Setup, results: &mut Results) {
    let counts = top1::process_counts(disk.processors);
    let names = METHODS.map(|(name, _)| name);
    let nearly = Setup { wait: Duration::from_nanos((NEARLY_MS * 1e5) as u64) * WAIT, ..*disk };
    let nearly = gains(run, &nearly, &counts);
    if run.compares() {
        let means: Vec<f64> = nearly.iter().map(|gains| gains[COMPARED].iter().sum::<f64>()).collect();
        let ordered = means[5] < means[4] && means[4] < means[1] && means[1] < means[0];
        results.findings.push(Finding::new("The order holds with the paper's own 20 ms for ten counts, too", ordered));
    }
    results.tables.push(run.table("nearly", nearly).of_rows(names).of_columns(&counts));
    let [one, other] = MIXED.map(|count| top1::wait(run.parameters, count));
    let mixed_load = Setup { wait: one, other_wait: Some(other), ..*disk };
    let mixed = gains_of_runs(run, &mixed_load, &SOME, MIXED_RUNS);
    let mixed_idle = idle_gains(run, &mixed_load);
    results.tables.push(run.table("mixed", mixed).of_rows(names).of_columns(SOME));
    let disk = Setup { wait: top1::wait(run.parameters, WAIT), ..*disk };
    let affinity = REMOTE_MS.map(|ms| {
        let remote = Duration::from_nanos((ms * 1e6) as u64);
        let setup = Setup { interrupt: completion::Costs { remote, ..disk.interrupt }, ..disk };
        SOME.map(|processes| {
            let [master, initiator] = [Method::Fixed(MASTER), Method::Initiator].map(|delivery| {
                run.step();
                top1::loop_ms(&Setup { delivery, processes, ..setup }, run.seed, run.get("run.runs") as u32)
            });
            (master / initiator - 1.0) * 100.0
        })
    });
    results.tables.push(run.table("affinity", affinity).of_rows(REMOTE_MS).of_columns(SOME));
    let realistic = gains_of_runs(run, &Setup { is_random: true, ..disk }, &SOME, MIXED_RUNS);
    let handled = METHODS.map(|(_, delivery)| {
        run.step();
        let ran = top1::run(&Setup { delivery, processes: u32::from(disk.processors), ..disk }, run.seed);
        [ran.initiator, ran.own_cache]
    });
    if run.compares() {
        results.findings.extend(beyond_findings(&mixed_idle, &realistic, &affinity, &handled));
    }
    results.tables.push(run.table("realistic", realistic).of_rows(names).of_columns(SOME));
    results.tables.push(run.table("handled", handled).of_rows(names));
}

/// Gains of an idle processor over the master under the mixed load: of each run, the mean over the numbers of processes.
fn idle_gains(run: &Run<'_>, setup: &Setup) -> Vec<f64> {
    let gain = |number: u32| {
        let seed = run.seed.wrapping_mul(1000) + u64::from(number);
        let of = SOME.map(|processes| {
            let [master, idle] = [Method::Fixed(MASTER), Method::Idle]
                .map(|delivery| top1::run(&Setup { delivery, processes, ..*setup }, seed).read.as_secs_f64());
            (master / idle - 1.0) * 100.0
        });
        super::mean(&of)
    };
    (0..MIXED_RUNS).map(gain).collect()
}

fn beyond_findings(
    mixed_idle: &[f64],
    realistic: &[Vec<f64>],
    affinity: &[[f64; SOME.len()]; REMOTE_MS.len()],
    handled: &[[f64; 2]; METHODS.len()],
) -> Vec<Finding> {
    let worst = realistic.iter().flatten().fold(0.0f64, |worst, gain| worst.max(gain.abs()));
    let idle = super::mean(mixed_idle);
    let squares: f64 = mixed_idle.iter().map(|gain| (gain - idle) * (gain - idle)).sum();
    let count = mixed_idle.len() as f64;
    // Of the mean.
    let error = (squares / (count - 1.0).max(1.0) / count).sqrt();
    let saved = super::mean(&affinity[REMOTE_MS.len() - 1]) - super::mean(&affinity[0]);
    vec![
        Finding::new(
            format!(
                "With processes that differ an idle processor (2b-2) is worth more, as the paper expects: {idle:.1} % in the \
                 mean, give or take {error:.1}"
            ),
            idle > 0.5 && idle > 2.0 * error,
        ),
        Finding::new(
            format!("With waits and places at random the methods differ by {worst:.1} % at most"),
            worst < 5.0,
        ),
        Finding::new(
            format!(
                "2b-1 finds its request in the cache always, 2a-1 in {:.0} % of completions; that 0.3 ms of fetching hang on \
                 it is worth {saved:.1} points in the mean",
                handled[0][0]
            ),
            handled[2][0] > 99.9 && handled[0][0] < 50.0 && saved >= 0.0,
        ),
    ]
}

fn mean(table: &Table, row: usize, source: Source) -> f64 {
    let gains = table.cells[row][COMPARED].iter().filter_map(|cell| cell.from(source));
    gains.sum::<f64>() / COMPARED.len() as f64
}

fn headline(run: &Run<'_>, table: &Table) -> Finding {
    let cost = |row: usize| {
        let of = |source| format!("{:.1} %", 0.0 - mean(table, row, source));
        of(Source::Simulated) + &run.in_the_paper(|| of(Source::Paper))
    };
    let [all, idle] = [5, 3].map(|row| mean(table, row, Source::Simulated));
    Finding::new(
        format!(
            "Over {} to {} processes, interrupts of all processors cost {}, of the busiest one {}, of an idle one {} of the \
             reads that interrupts of the master leave",
            table.columns[COMPARED.start],
            table.columns[COMPARED.end - 1],
            cost(5),
            cost(4),
            cost(3),
        ),
        all < idle + 0.1,
    )
}

fn findings(table: &Table) -> Vec<Finding> {
    let [first, second, initiator, idle, busiest, all] = std::array::from_fn(|row| mean(table, row, Source::Simulated));
    let worst = table.cells.iter().flatten().filter_map(|cell| cell.simulated).fold(0.0, f64::min);
    let beyond =
        |row: usize| table.cells[row][9..].iter().all(|cell| cell.simulated.is_some_and(|gain| gain.abs() < 1.0));
    // Of 5, 6 and 7 processes.
    let few = |row: usize| table.cells[row][4..7].iter().filter_map(|cell| cell.simulated).sum::<f64>();
    let close = (initiator - first).abs().max((idle - first).abs());
    vec![
        Finding::new("2b-4 < 2b-3 < 2a-2 < 2a-1, by their means over 4 to 9 processes", {
            all < busiest && busiest < second && second < first
        }),
        Finding::new("2b-1 and 2b-2 are about as good as 2a-1, as the master is kept idle", close < 0.5),
        Finding::new("Even interrupts of all processors cost only a few percent", (-5.0..-1.0).contains(&worst)),
        Finding::new(
            "With 5 to 7 processes the busiest (2b-3) is worse than all (2b-4): of all, an idle one may win",
            few(4) < few(5),
        ),
        Finding::new("With 5 to 7 processes 2a-2 is better than 2b-3: PU2 may be idle", few(1) > few(4)),
        Finding::new(
            "With more processes than processors nobody is idle, and all but 2b-4 are alike",
            (1..5).all(beyond),
        ),
    ]
}
