//! WS-7: CPU usage is inherited at fork and given back at exit.

#[cfg(test)]
mod tests;
mod workload;

use policy::usage::Inheritance;

use super::{Experiment, Run};
use crate::parameter::{Origin, Parameter, Parameters};
use crate::result::{Axis, Cell, Drawing, Finding, Plot, Results, Series, Source, Table};
use workload::{Kind, Load, Seen, Who, simulate};

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

/// Sources compiled at a time.
const COMPILERS: [u32; 2] = [1, 4];

pub struct Ws7;

impl Experiment for Ws7 {
    fn name(&self) -> &'static str {
        "ws-7"
    }

    fn title(&self) -> &'static str {
        "CPU usage is inherited at fork and given back at exit: typing beside a compilation"
    }

    fn about(&self) -> &'static str {
        "4.3BSD runs those first that used the processor least of late. A new process has used nothing, so a compilation, \
         which is a procession of new processes, is always urgent: whoever types beside it waits, now longer, now \
         shorter. When a child inherits what its parent used, and the parent takes over what the child used, the whole job \
         weighs as much as one long process. The paper gives no numbers; measured are the time from a key to its echo beside \
         one and four compilations at a time, and how the processor is shared between a compilation and one long \
         process. Look at the longest answers, and at the job's priority over time."
    }

    fn paper(&self) -> &'static str {
        "WS section 7 (no table)"
    }

    fn parameters(&self) -> Parameters {
        Parameters::new(self.name(), parameters())
    }

    fn modern(&self) -> &'static [(&'static str, f64)] {
        // One core of 2026 does in a fiftieth of the time what the processor of 1991 did.
        &[
            ("cpu.dispatch", 0.002),
            ("cpu.tick", 1.0),
            ("disk.access", 0.1),
            ("interactive.burst", 2.0),
            ("compile.cpp", 4.0),
            ("compile.ccom", 40.0),
            ("compile.c2", 20.0),
            ("compile.as", 4.0),
            ("compile.shell", 1.0),
            ("time", 60.0),
        ]
    }

    fn steps(&self, _parameters: &Parameters) -> u64 {
        (KINDS.len() * COMPILERS.len() * 2 + 1) as u64
    }

    fn simulate(&self, run: &Run<'_>) -> Results {
        let load = Load::of(run);
        let simulate = |kind, who| {
            let seen = simulate(load, kind, who, run.seed);
            run.step();
            seen
        };
        let alone = simulate(KINDS[BSD].0, Who { interactive: true, long: false, compilers: 0 });
        let typing = KINDS.map(|(kind, _)| {
            COMPILERS.map(|compilers| simulate(kind, Who { interactive: true, long: false, compilers }))
        });
        let beside_long = KINDS.map(|(kind, _)| {
            COMPILERS.map(|compilers| simulate(kind, Who { interactive: false, long: true, compilers }))
        });
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
}

fn parameters() -> Vec<Parameter> {
    use Origin::{Chosen, Paper, Published};
    const LEFFLER: Origin = Published("4.3BSD: hz = 100 (Leffler, McKusick, Karels, Quarterman, 1989)");
    const PASSES: Origin =
        Chosen("a source of some hundred lines on a machine of 25 MIPS; the proportions are those of pcc's passes");
    let parameter = |name, about, unit, default, range, origin| Parameter { name, about, unit, default, range, origin };
    vec![
        parameter("time", "how long is simulated", "s", 300.0, 10.0..=3600.0, Chosen("some 400 keys")),
        parameter(
            "cpu.dispatch",
            "to go over to another process",
            "ms",
            0.1,
            0.0..=10.0,
            Chosen("a judgement: some 2,500 instructions at 25 MIPS, misses of the cache included; 0.05 to 0.3 ms"),
        ),
        parameter("cpu.tick", "from one clock tick to the next", "ms", 10.0, 0.1..=100.0, LEFFLER),
        parameter("disk.access", "one read of the disk", "ms", 20.0, 0.0..=1000.0, Paper("table 1, 1991")),
        parameter("interactive.burst", "to answer a key", "ms", 30.0, 0.1..=1000.0, Chosen("an editor redraws lines")),
        parameter(
            "interactive.think_min",
            "pause between keys, the least",
            "ms",
            200.0,
            1.0..=10_000.0,
            Chosen("typing"),
        ),
        parameter(
            "interactive.think_max",
            "pause between keys, the most",
            "ms",
            1200.0,
            1.0..=100_000.0,
            Chosen("typing, with thought"),
        ),
        parameter("compile.shell", "make and cc for one source", "ms", 20.0, 0.0..=1000.0, PASSES),
        parameter("compile.cpp", "preprocessor", "ms", 80.0, 0.1..=10_000.0, PASSES),
        parameter("compile.ccom", "compiler", "ms", 300.0, 0.1..=10_000.0, PASSES),
        parameter("compile.c2", "optimizer", "ms", 80.0, 0.1..=10_000.0, PASSES),
        parameter("compile.as", "assembler", "ms", 100.0, 0.1..=10_000.0, PASSES),
        parameter("compile.reads", "reads of the disk in each of them", "", 2.0, 0.0..=100.0, PASSES),
    ]
}

/// The value below which that part of all lies.
fn percentile(of: &[f64], part: f64) -> f64 {
    let mut sorted = of.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = (part * sorted.len() as f64).ceil() as usize;
    sorted.get(place.saturating_sub(1)).copied().unwrap_or_default()
}

fn names() -> Vec<String> {
    KINDS.iter().map(|(_, name)| (*name).to_owned()).collect()
}

fn responses(alone: &Seen, typing: &[[Seen; 2]; 6]) -> Table {
    const MEASURES: [(&str, f64); 4] = [("median", 0.5), ("90 %", 0.9), ("99 %", 0.99), ("longest", 1.0)];
    let cells = |seen: &Seen| MEASURES.map(|(_, part)| Cell::simulated(percentile(&seen.responses_ms, part)));
    let row = |seen: [&Seen; 2]| seen.into_iter().flat_map(cells).collect::<Vec<_>>();
    let columns = COMPILERS.iter().flat_map(|n| MEASURES.map(|(name, _)| format!("{name}, {n} at a time")));
    Table {
        name: "responses".to_owned(),
        title: "From a key to its echo, beside a compilation of 1 or 4 sources at a time".to_owned(),
        unit: "ms".to_owned(),
        rows_are: "scheduling".to_owned(),
        rows: [vec!["nothing beside it".to_owned()], names()].concat(),
        columns_are: "measure".to_owned(),
        columns: columns.collect(),
        cells: std::iter::once(row([alone, alone])).chain(typing.iter().map(|[one, four]| row([one, four]))).collect(),
        in_points: false,
        digits: 0,
    }
}

/// Of what both got, the part that the job got. Percent.
fn share(seen: &Seen) -> f64 {
    100.0 * seen.job_s / (seen.job_s + seen.long_s)
}

fn shares(beside_long: &[[Seen; 2]; 6]) -> Table {
    Table {
        name: "shares".to_owned(),
        title: "What a compilation gets of the processor beside one long process".to_owned(),
        unit: "%".to_owned(),
        rows_are: "scheduling".to_owned(),
        rows: names(),
        columns_are: "sources at a time".to_owned(),
        columns: COMPILERS.iter().map(ToString::to_string).collect(),
        cells: beside_long.iter().map(|both| both.iter().map(|seen| Cell::simulated(share(seen))).collect()).collect(),
        in_points: true,
        digits: 1,
    }
}

fn sources(typing: &[[Seen; 2]; 6]) -> Table {
    Table {
        name: "sources".to_owned(),
        title: "Sources compiled meanwhile, beside the typing".to_owned(),
        unit: String::new(),
        rows_are: "scheduling".to_owned(),
        rows: names(),
        columns_are: "sources at a time".to_owned(),
        columns: COMPILERS.iter().map(ToString::to_string).collect(),
        cells: typing
            .iter()
            .map(|both| both.iter().map(|seen| Cell::simulated(seen.sources as f64)).collect())
            .collect(),
        in_points: false,
        digits: 0,
    }
}

fn distribution(alone: &Seen, typing: &[[Seen; 2]; 6]) -> Plot {
    const PARTS: usize = 100;
    let points = |seen: &Seen| {
        let point = |part: usize| (percentile(&seen.responses_ms, part as f64 / PARTS as f64), part as f64);
        (1..=PARTS).map(point).collect()
    };
    let series =
        |name: &str, seen: &Seen| Series { name: name.to_owned(), source: Source::Simulated, points: points(seen) };
    let all = KINDS.iter().zip(typing).map(|((_, name), [_, four])| series(name, four));
    Plot {
        name: "responses".to_owned(),
        title: "Typing beside a compilation of 4 sources at a time: how many keys are answered within".to_owned(),
        drawing: Drawing::Lines,
        x: Axis::logarithmic("from key to echo", "ms"),
        y: Axis::linear("keys", "%"),
        series: std::iter::once(series("nothing beside it", alone)).chain(all).collect(),
    }
}

fn priorities(beside_long: &[[Seen; 2]; 6]) -> Plot {
    /// Enough to see the rhythm.
    const SECONDS: f64 = 40.0;
    let series = |kind: usize| Series {
        name: KINDS[kind].1.to_owned(),
        source: Source::Simulated,
        points: beside_long[kind][0].priorities.iter().copied().filter(|(time_s, _)| *time_s <= SECONDS).collect(),
    };
    Plot {
        name: "priorities".to_owned(),
        title: "Priority of a compilation's newest process over time, beside one long process (less is more urgent)"
            .to_owned(),
        drawing: Drawing::Steps,
        x: Axis::linear("time", "s"),
        y: Axis::linear("priority", ""),
        series: (BSD..=BOTH).map(series).collect(),
    }
}

fn mean(of: &[f64]) -> f64 {
    of.iter().sum::<f64>() / of.len().max(1) as f64
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
