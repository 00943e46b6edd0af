//! WS-7: CPU usage is inherited at fork and returned at exit.

mod workload;

use policy::usage::Inheritance;

use super::{Run, mean};
use crate::result::{Finding, Plot, Results, Series, Table};
use workload::{Kind, Load, Seen, Who, Windows, run_with};

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

/// Concurrently compiled sources, for each processor.
const COMPILERS: [u32; 2] = [1, 4];

pub(super) const STEPS: u64 = (KINDS.len() * (COMPILERS.len() * 2 + 2) + 1) as u64;

const NOBODY: Who = Who { interactive: false, long: false, compilers: 0, windows: Windows::None };

pub(super) fn simulate(run: &Run<'_>) -> Results {
    let load = Load::of(run);
    let simulate = |kind, who| {
        let seen = run_with(load, kind, who, run.seed);
        run.step();
        seen
    };
    let alone = simulate(KINDS[BSD].0, Who { interactive: true, ..NOBODY });
    let typing = KINDS
        .map(|(kind, _)| COMPILERS.map(|compilers| simulate(kind, Who { interactive: true, compilers, ..NOBODY })));
    let beside_long =
        KINDS.map(|(kind, _)| COMPILERS.map(|compilers| simulate(kind, Who { long: true, compilers, ..NOBODY })));
    let windows = KINDS.map(|(kind, _)| {
        [Windows::Own, Windows::Served]
            .map(|windows| simulate(kind, Who { interactive: true, compilers: COMPILERS[0], windows, ..NOBODY }))
    });
    let mut findings = findings(&alone, &typing, &beside_long);
    findings.extend(left_unsolved(run, &windows));
    Results {
        tables: vec![
            responses(run, &alone, &typing),
            shares(run, &beside_long),
            sources(run, &typing),
            served(run, &windows),
        ],
        plots: vec![distribution(run, &alone, &typing), priorities(run, &beside_long)],
        findings,
        notes: run.notes(&[]),
    }
}

/// A percentile; `part` from 0 to 1.
fn percentile(of: &[f64], part: f64) -> f64 {
    let mut sorted = of.to_vec();
    sorted.sort_by(f64::total_cmp);
    super::percentile(&sorted, part)
}

fn responses(run: &Run<'_>, alone: &Seen, typing: &[[Seen; 2]; 6]) -> Table {
    let times = |seen: &Seen| [0.5, 0.9, 0.99, 1.0].map(|part| percentile(&seen.responses_ms, part));
    let row = |seen: [&Seen; 2]| seen.map(times).concat();
    let rows = std::iter::once(row([alone, alone])).chain(typing.iter().map(|[one, four]| row([one, four])));
    let names = KINDS.map(|(_, name)| name);
    run.table("responses", rows).of_rows(["nothing beside it"].into_iter().chain(names))
}

/// The job's part of the time that it and the long process got. Percent.
fn share(seen: &Seen) -> f64 {
    100.0 * seen.job_s / (seen.job_s + seen.long_s)
}

fn shares(run: &Run<'_>, beside_long: &[[Seen; 2]; 6]) -> Table {
    by_kind(run, "shares", beside_long, share)
}

/// Keys answered by the program itself, and by a server that draws for another program, too.
fn served(run: &Run<'_>, windows: &[[Seen; 2]; 6]) -> Table {
    let time_s = run.get("time");
    let row = |[own, served]: &[Seen; 2]| {
        let of = |seen: &Seen| [0.5, 0.99].map(|part| percentile(&seen.responses_ms, part));
        let ([own, own_late], [served_half, served_late]) = (of(own), of(served));
        [own, own_late, served_half, served_late, 100.0 * served.server_s / time_s]
    };
    run.table("served", windows.iter().map(row)).of_rows(KINDS.map(|(_, name)| name))
}

/// The first of the problems that the paper leaves unsolved (section 8).
fn left_unsolved(run: &Run<'_>, windows: &[[Seen; 2]; 6]) -> Option<Finding> {
    let late = |kind: usize, how: usize| percentile(&windows[kind][how].responses_ms, 0.99);
    let (own, served) = (late(BOTH, 0), late(BOTH, 1));
    run.compares().then(|| {
        Finding::new(
            format!(
                "Section 8 (a) is left: with both, 99 % of keys are answered within {served:.0} ms where a server draws for \
                 another program, too, {own:.0} ms where each draws itself"
            ),
            served > 1.5 * own,
        )
    })
}

fn sources(run: &Run<'_>, typing: &[[Seen; 2]; 6]) -> Table {
    by_kind(run, "sources", typing, |seen| seen.sources as f64)
}

fn by_kind(run: &Run<'_>, name: &str, all: &[[Seen; 2]; 6], of: fn(&Seen) -> f64) -> Table {
    let table = run.table(name, all.iter().map(|both| both.iter().map(of)));
    table.of_rows(KINDS.map(|(_, name)| name)).of_columns(COMPILERS)
}

fn distribution(run: &Run<'_>, alone: &Seen, typing: &[[Seen; 2]; 6]) -> Plot {
    const PARTS: usize = 100;
    let points = |seen: &Seen| {
        let point = |part: usize| (percentile(&seen.responses_ms, part as f64 / PARTS as f64), part as f64);
        (1..=PARTS).map(point).collect::<Vec<_>>()
    };
    let series = |name: &str, seen: &Seen| Series::simulated(name, points(seen));
    let all = KINDS.iter().zip(typing).map(|((_, name), [_, four])| series(name, four));
    run.plot("responses", std::iter::once(series("nothing beside it", alone)).chain(all).collect())
}

fn priorities(run: &Run<'_>, beside_long: &[[Seen; 2]; 6]) -> Plot {
    const SECONDS: f64 = 40.0;
    let series = |kind: usize| {
        Series::simulated(
            KINDS[kind].1.to_owned(),
            beside_long[kind][0].priorities.iter().copied().filter(|(time_s, _)| *time_s <= SECONDS),
        )
    };
    run.plot("priorities", (BSD..=BOTH).map(series).collect())
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
