//! The workstation paper's table 4: NFS writes with and without the rendezvous of the server processes.

use std::collections::BTreeSet;

use policy::unit::Instant;

use crate::parameter::Parameters;
use crate::result::{Finding, Plot, Results, Series, Source, Table};

use super::Run;
use super::nfs::{self, Load, Outcome, Setting, measure};

const DAEMONS: [u32; 11] = [1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 24];
const SERVERS: [&str; 2] = ["without rendezvous", "with rendezvous"];
/// Files of each point of the sweep; fewer than of the table.
const SWEEP_FILES: u32 = 4;
/// Writes of the slower variant in the timeline.
const TIMELINE_WRITES: usize = 12;

pub(super) fn steps(parameters: &Parameters) -> u64 {
    2 * (parameters.get("file.count") as u64 + DAEMONS.len() as u64 * u64::from(SWEEP_FILES))
}

pub(super) fn simulate(run: &Run<'_>) -> Results {
    let of = |gather| {
        let (biods, nfsds) = (run.get("client.biods") as u32, run.get("server.nfsds") as u32);
        let files = run.get("file.count") as u32;
        measure(run, Setting { biods, nfsds, load: Load::Write { gather }, server_ahead: None, files })
    };
    let (without, with) = (of(false), of(true));
    let sweep = DAEMONS.map(|daemons| {
        [false, true].map(|gather| {
            let load = Load::Write { gather };
            measure(run, Setting { biods: daemons, nfsds: daemons, load, server_ahead: None, files: SWEEP_FILES })
        })
    });
    let daemons = [0, 1].map(|of| sweep.iter().map(move |pair| pair[of].throughput()));
    let daemons = run.table("daemons", daemons).of_columns(DAEMONS);
    let at = |daemons| DAEMONS.iter().position(|d| *d == daemons).map_or(0.0, |at| sweep[at][1].throughput());
    Results {
        plots: plots(run, &without, &with, &daemons),
        tables: vec![
            run.table("throughput", [[without.throughput()], [with.throughput()]]),
            nfs::gain(run, &without, &with),
            run.table("accesses", [[without.accesses(), 1.0], [with.accesses(), with.group()]]),
            run.table("busy", [without.utilisation(), with.utilisation()]).of_rows(SERVERS),
            daemons,
        ],
        findings: findings(run, &without, &with, &sweep),
        notes: run.notes(&[("eight", format!("{:.0}", at(8))), ("four", format!("{:.0}", at(4)))]),
    }
}

fn plots(run: &Run<'_>, without: &Outcome, with: &Outcome, daemons: &Table) -> Vec<Plot> {
    let published = run.published("throughput").iter().map(|row| row[0]);
    let throughputs = [without.throughput(), with.throughput()];
    let end = without.acknowledged.get(TIMELINE_WRITES).copied().unwrap_or_default();
    let ms = |at: Instant| at.ns() as f64 / 1e6;
    let steps = |name: &str, times: &mut dyn Iterator<Item = Instant>, each: f64| {
        Series::simulated(
            name,
            std::iter::once((0.0, 0.0))
                .chain(times.take_while(|at| *at <= end).enumerate().map(|(n, at)| (ms(at), (n + 1) as f64 * each))),
        )
    };
    // Requests merged into one command were issued at one moment.
    let commands = |outcome: &Outcome| outcome.served.iter().map(|served| served.issued).collect::<BTreeSet<_>>();
    let accesses = |name: &str, outcome: &Outcome| steps(name, &mut commands(outcome).into_iter(), 1.0);
    let acknowledged = |name: &str, outcome: &Outcome| steps(name, &mut outcome.acknowledged.iter().copied(), 8.0);
    vec![
        run.plot(
            "throughput",
            vec![
                Series::bars("throughput", Source::Paper, published),
                Series::bars("throughput", Source::Simulated, throughputs),
            ],
        ),
        run.plot("daemons", daemons.lines(str::to_owned)),
        run.plot("acknowledged", vec![acknowledged(SERVERS[0], without), acknowledged(SERVERS[1], with)]),
        run.plot("accesses", vec![accesses(SERVERS[0], without), accesses(SERVERS[1], with)]),
    ]
}

fn findings(run: &Run<'_>, without: &Outcome, with: &Outcome, sweep: &[[Outcome; 2]]) -> Vec<Finding> {
    let headline = nfs::headline(run, "With the rendezvous, a file is written", without, with);
    if !run.compares() {
        return vec![headline];
    }
    let alone: Vec<f64> = sweep.iter().map(|pair| pair[0].throughput()).collect();
    let (least, most) = alone.iter().fold((f64::MAX, 0.0f64), |(low, high), t| (low.min(*t), high.max(*t)));
    let gains: Vec<f64> = sweep.iter().map(|pair| pair[1].throughput() / pair[0].throughput()).collect();
    vec![
        headline,
        Finding::new(
            "Without the rendezvous a write needs three disk accesses",
            (without.accesses() - run.published("accesses")[0][0]).abs() < 0.05,
        ),
        Finding::new("With it, a write needs less than one", with.accesses() < 1.0),
        Finding::new("Without it, more daemons make writing no faster (within 10 %)", most <= 1.1 * least),
        Finding::new("With it, they do: 16 of them are at least 1.5 times as fast as 4", {
            let at = |daemons| DAEMONS.iter().position(|d| *d == daemons).map(|at| sweep[at][1].throughput());
            at(16) >= at(4).map(|four| 1.5 * four)
        }),
        Finding::new(
            "With one server process nobody can meet, and the rendezvous costs less than 10 %",
            gains[0] > 0.9,
        ),
        Finding::new(
            "From two on it gains, the more the more there are",
            gains[1..].is_sorted_by(|few, many| {
                // Tolerates a step of the elevator's order more or less.
                *many > 0.97 * few
            }) && gains[1] > 1.2,
        ),
    ]
}
