//! WS-7: CPU usage is inherited at fork and returned at exit.

mod workload;

use policy::usage::Inheritance;

use super::{Run, mean};
use crate::result::{Axis, Cell, Finding, Plot, Results, Series, Table};
use workload::{Kind, Load, Seen, Who, run_with};

const KINDS: [(Kind, &str); 6] = [
    (Kind::Bsd(Inheritance::NONE), "4.3BSD"),
    (Kind::Bsd(Inheritance { at_fork: true, at_exit: false }), "inherited at fork"),
    (Kind::Bsd(Inheritance { at_fork: false, at_exit: true }), "given back at exit"),
    (Kind::Bsd(Inheritance::BOTH), "both"),
    (Kind::Threads, "fair by process"),
    (Kind::Sessions, "fair by session"),
];
const BSD: usize = 0;
const BOTH: usize = 3;

/// Concurrently compiled sources.
const COMPILERS: [u32; 2] = [1, 4];

pub(super) const STEPS: u64 = (KINDS.len() * COMPILERS.len() * 2 + 1) as u64;

pub(super) fn simulate(run: &Run<'_>) -> Results {
    let load = Load::of(run);
    let simulate = |kind, who| {
        let seen = run_with(load, kind, who, run.seed);
        run.step();
        seen
    };
    let alone = simulate(KINDS[BSD].0, Who { interactive: true, long: false, compilers: 0 });
    let typing = KINDS
        .map(|(kind, _)| COMPILERS.map(|compilers| simulate(kind, Who { interactive: true, long: false, compilers })));
    let beside_long = KINDS
        .map(|(kind, _)| COMPILERS.map(|compilers| simulate(kind, Who { interactive: false, long: true, compilers })));
    Results {
        tables: vec![responses(&alone, &typing), shares(&beside_long), sources(&typing)],
        plots: vec![distribution(&alone, &typing), priorities(&beside_long)],
        findings: findings(&alone, &typing, &beside_long),
        notes: vec![
            "The paper has no table for this technique: it reports that answers came sooner and more evenly."
                .to_owned(),
        ],
    }
}

/// A percentile; `part` from 0 to 1.
fn percentile(of: &[f64], part: f64) -> f64 {
    let mut sorted = of.to_vec();
    sorted.sort_by(f64::total_cmp);
    super::percentile(&sorted, part)
}

fn names() -> Vec<String> {
    KINDS.iter().map(|(_, name)| (*name).to_owned()).collect()
}

fn responses(alone: &Seen, typing: &[[Seen; 2]; 6]) -> Table {
    const MEASURES: [(&str, f64); 4] = [("median", 0.5), ("90 %", 0.9), ("99 %", 0.99), ("longest", 1.0)];
    let cells = |seen: &Seen| MEASURES.map(|(_, part)| Cell::simulated(percentile(&seen.responses_ms, part)));
    let row = |seen: [&Seen; 2]| seen.into_iter().flat_map(cells).collect::<Vec<_>>();
    let columns = COMPILERS.iter().flat_map(|n| MEASURES.map(|(name, _)| format!("{name}, {n} at a time")));
    Table::new("responses", "From a key to its echo, beside a compilation of 1 or 4 sources at a time")
        .unit("ms", 0)
        .rows("scheduling", [vec!["nothing beside it".to_owned()], names()].concat())
        .columns("measure", columns)
        .cells(std::iter::once(row([alone, alone])).chain(typing.iter().map(|[one, four]| row([one, four]))).collect())
}

/// The job's part of the time that it and the long process got. Percent.
fn share(seen: &Seen) -> f64 {
    100.0 * seen.job_s / (seen.job_s + seen.long_s)
}

fn shares(beside_long: &[[Seen; 2]; 6]) -> Table {
    Table::new("shares", "What a compilation gets of the processor beside one long process")
        .unit("%", 1)
        .rows("scheduling", names())
        .columns("sources at a time", COMPILERS.iter().map(ToString::to_string))
        .cells(beside_long.iter().map(|both| both.iter().map(|seen| Cell::simulated(share(seen))).collect()).collect())
        .in_points()
}

fn sources(typing: &[[Seen; 2]; 6]) -> Table {
    Table::new("sources", "Sources compiled meanwhile, beside the typing")
        .unit("", 0)
        .rows("scheduling", names())
        .columns("sources at a time", COMPILERS.iter().map(ToString::to_string))
        .cells(
            typing.iter().map(|both| both.iter().map(|seen| Cell::simulated(seen.sources as f64)).collect()).collect(),
        )
}

fn distribution(alone: &Seen, typing: &[[Seen; 2]; 6]) -> Plot {
    const PARTS: usize = 100;
    let points = |seen: &Seen| {
        let point = |part: usize| (percentile(&seen.responses_ms, part as f64 / PARTS as f64), part as f64);
        (1..=PARTS).map(point).collect::<Vec<_>>()
    };
    let series = |name: &str, seen: &Seen| Series::simulated(name, points(seen));
    let all = KINDS.iter().zip(typing).map(|((_, name), [_, four])| series(name, four));
    Plot::lines(
        "responses",
        "Typing beside a compilation of 4 sources at a time: how many keys are answered within",
        Axis::logarithmic("from key to echo", "ms"),
        Axis::linear("keys", "%"),
        std::iter::once(series("nothing beside it", alone)).chain(all).collect(),
    )
}

fn priorities(beside_long: &[[Seen; 2]; 6]) -> Plot {
    const SECONDS: f64 = 40.0;
    let series = |kind: usize| {
        Series::simulated(
            KINDS[kind].1.to_owned(),
            beside_long[kind][0].priorities.iter().copied().filter(|(time_s, _)| *time_s <= SECONDS),
        )
    };
    Plot::steps(
        "priorities",
        "Priority of a compilation's newest process over time, beside one long process (less is more urgent)",
        Axis::linear("time", "s"),
        Axis::linear("priority", ""),
        (BSD..=BOTH).map(series).collect(),
    )
}

fn findings(alone: &Seen, typing: &[[Seen; 2]; 6], beside_long: &[[Seen; 2]; 6]) -> Vec<Finding> {
    let late = |seen: &Seen| percentile(&seen.responses_ms, 0.99);
    let (before, after) = (late(&typing[BSD][1]), late(&typing[BOTH][1]));
    let weight = |kind: usize| share(&beside_long[kind][0]);
    let jump = |kind: usize| mean(&beside_long[kind][0].jumps);
    vec![
        Finding::new(
            format!(
                "Beside four compilations, 99 % of keys are answered within {after:.0} ms with both, {before:.0} ms with none \
                 ({:.0} ms with nothing beside).",
                late(alone)
            ),
            after * 2.0 < before,
        ),
        Finding::new(
            format!(
                "A job of short processes one after the other weighs as much as one long process: {:.0} % of the processor with \
                 both, {:.0} % with none.",
                weight(BOTH),
                weight(BSD)
            ),
            (45.0..=55.0).contains(&weight(BOTH)) && weight(BSD) > 60.0,
        ),
        Finding::new(
            format!(
                "A new process changes the job's apparent priority by {:.1} with both, {:.1} with none.",
                jump(BOTH),
                jump(BSD)
            ),
            jump(BOTH) * 2.0 < jump(BSD),
        ),
        Finding::new(
            "The compilation itself loses little by it: at most a tenth of its sources.",
            typing[BOTH][1].sources as f64 >= 0.9 * typing[BSD][1].sources as f64,
        ),
    ]
}
