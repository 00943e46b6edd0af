//! DSM figure 3 and table 1: PUMA-II as a shared RAM disk; then with writers, mapped, and with a thousand nodes.

mod beyond;
mod cluster;
mod figure3;
mod machine;
mod patterns;

use std::time::Duration;

use super::Run;
use crate::parameter::Parameters;
use crate::result::{Cell, Finding, Results, Series, Source, Table};

use figure3::Shares;
use machine::Machine;

pub(super) fn steps(parameters: &Parameters) -> u64 {
    1 + beyond::steps(parameters.get("share.nodes"))
}

pub(super) fn simulate(run: &Run<'_>) -> Results {
    let machine = Machine::of(run);
    let measured = Measured::of(&machine, run.seed);
    run.step();
    let mut results = Results {
        tables: vec![
            measured.ratios(run),
            measured.shares(run),
            run.table("times", measured.times_ms().map(|time| [time])),
        ],
        plots: vec![run.plot("times", vec![Series::bars("time", Source::Simulated, measured.times_ms())])],
        findings: measured.findings(run),
        notes: run.notes(&[]),
    };
    if !run.is_brief {
        beyond::buses(&machine, measured.nfs, run, &mut results);
        beyond::add(&machine, run, &mut results);
    }
    results
}

/// A file of the paper's size read, each way.
struct Measured {
    local: Shares,
    remote: Shares,
    mapped_local: Shares,
    mapped_remote: Shares,
    ram_disk: Duration,
    disk: Duration,
    nfs: Duration,
}

impl Measured {
    fn of(machine: &Machine, seed: u64) -> Self {
        Measured {
            local: figure3::shared(machine, false),
            remote: figure3::shared(machine, true),
            mapped_local: figure3::mapped(machine, false),
            mapped_remote: figure3::mapped(machine, true),
            ram_disk: figure3::ram_disk(machine),
            disk: figure3::disk(machine, seed),
            nfs: figure3::nfs(machine, seed),
        }
    }

    fn ratios(&self, run: &Run<'_>) -> Table {
        let ratio =
            |of: Duration| [self.local, self.remote].map(|shares| of.as_secs_f64() / shares.total().as_secs_f64());
        run.table("ratios", [self.nfs, self.disk].map(ratio))
    }

    fn shares(&self, run: &Run<'_>) -> Table {
        run.table("shares", [self.remote, self.mapped_remote].map(|shares| shares.percent()))
    }

    /// In the order of the table's rows.
    fn times_ms(&self) -> [f64; 7] {
        let [local, remote] = [self.local, self.remote].map(|shares| shares.total());
        let mapped = [self.mapped_local, self.mapped_remote].map(|shares| shares.total());
        [local, remote, self.ram_disk, self.disk, self.nfs, mapped[0], mapped[1]].map(|time| time.as_secs_f64() * 1e3)
    }

    /// What the paper found, if the machine is the paper's; and what mapping saves.
    fn findings(&self, run: &Run<'_>) -> Vec<Finding> {
        let saved = self.remote.total().as_secs_f64() / self.mapped_remote.total().as_secs_f64();
        let over_nfs = self.nfs.as_secs_f64() / self.remote.total().as_secs_f64();
        let mut findings = vec![Finding::new(
            format!(
                "Data in another node's memory are read {over_nfs:.1} times as fast as over NFS{}; mapped into the process, \
                 {saved:.1} times as fast as through the kernel.",
                run.in_the_paper(|| format!("{:.1}", run.published("ratios")[0][1])),
            ),
            over_nfs > 1.0 && saved > 1.0,
        )];
        if run.compares() {
            let worst = |cells: &[Cell], off: fn(&Cell) -> Option<f64>| {
                cells.iter().filter_map(off).fold(0.0, |worst: f64, off| worst.max(off.abs()))
            };
            let percent = worst(&self.ratios(run).cells.concat(), Cell::difference_percent);
            let points = worst(&self.shares(run).cells[0], Cell::difference);
            findings.extend([
                Finding::new(
                    format!("The four ratios of figure 3 are met within {percent:.1} % (15 %)."),
                    percent <= 15.0,
                ),
                Finding::new(
                    format!("The three shares of table 1 are met within {points:.1} points (5)."),
                    points <= 5.0,
                ),
                Finding::new("The RAM disk in the kernel is the fastest disk: nothing crosses the VME bus.", {
                    self.ram_disk < self.local.total()
                }),
            ]);
        }
        findings
    }
}
