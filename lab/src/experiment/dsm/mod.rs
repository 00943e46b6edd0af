//! DSM figure 3 and table 1: PUMA-II as a shared RAM disk; then with writers, mapped, and with thousands of nodes.

mod beyond;
mod cluster;
mod figure3;
mod machine;
mod patterns;

use std::time::Duration;

use super::Run;
use crate::parameter::Parameters;
use crate::result::{Axis, Cell, Finding, Plot, Results, Series, Table};

use figure3::Shares;
use machine::Machine;

/// Table 1, in percent: kernel, VME bus, network.
const SHARES: [f64; 3] = [52.0, 33.0, 15.0];
/// Figure 3, from the text: speed relative to NFS and to a SCSI disk, with the data in local and in remote memory.
const RATIOS: [[f64; 2]; 2] = [[2.4, 2.0], [1.7, 1.4]];

pub(super) fn steps(parameters: &Parameters) -> u64 {
    1 + beyond::steps(parameters.get("share.nodes"))
}

pub(super) fn simulate(run: &Run<'_>) -> Results {
    let machine = Machine::of(run);
    let measured = Measured::of(&machine, run.seed);
    run.step();
    let mut results = Results {
        tables: vec![measured.ratios(), measured.shares(), measured.times()],
        plots: vec![measured.plot()],
        findings: measured.findings(run),
        notes: if run.compares() { notes() } else { Vec::new() },
    };
    beyond::add(&machine, run, &mut results);
    results
}

fn notes() -> Vec<String> {
    [
        "Figure 3 itself is lost; its ratios are those of the text. That of the RAM disk in the kernel is not told there.",
        "The kernel's share is fitted as a whole. Its copy to the process at the speed of memory is a fifth of it; the paper \
         calls the rest copies too. In the model it is the file system's and the driver's work for a page.",
        "The disk is not named in the paper; its sectors on a track are fitted, so that over SCSI only the ratio with local \
         data is predicted, and it follows from table 1 alone.",
        "NFS is 8 % slower than the paper's in the model: its processors are the bottleneck there, and what a call and a frame \
         cost them is judged, not measured on that machine.",
        "Mapped pages stay on the board: each word that is read again crosses the VME bus again, so a consistent buffer \
         cache beats the mapping where pages are read often. On a faster bus it would be the other way round.",
        "Accesses among many nodes begin with nobody holding anything, so the first ones count too: 16 for each of 4,096 nodes.",
        "With one ring for thousands of nodes each waits for all others; such a ring was never built.",
    ]
    .map(str::to_owned)
    .to_vec()
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

    fn ratios(&self) -> Table {
        let row = |index: usize, of: Duration| {
            let ratio = |shares: &Shares| of.as_secs_f64() / shares.total().as_secs_f64();
            vec![Cell::of(RATIOS[index][0], ratio(&self.local)), Cell::of(RATIOS[index][1], ratio(&self.remote))]
        };
        let mut cells = vec![row(0, self.nfs), row(1, self.disk)];
        cells[1][1].fitted = true;
        Table::new("ratios", "Figure 3: how many times as fast a file is read from the shared RAM disk")
            .unit("times", 2)
            .rows("as from", ["NFS", "SCSI disk"])
            .columns("data in memory", ["local", "remote"])
            .cells(cells)
    }

    fn shares(&self) -> Table {
        let cells = |shares: &Shares| shares.percent().map(Cell::simulated).to_vec();
        let simulated = self.remote.percent();
        let mut paper: Vec<Cell> = SHARES.iter().zip(simulated).map(|(paper, ours)| Cell::of(*paper, ours)).collect();
        paper[0].fitted = true;
        Table::new("shares", "Table 1: where the time goes when data come from remote memory")
            .unit("%", 1)
            .rows("way", ["read through the kernel", "mapped into the process"])
            .columns("part", ["kernel", "VME bus", "network"])
            .cells(vec![paper, cells(&self.mapped_remote)])
            .in_points()
    }

    fn ways(&self) -> [(&'static str, Duration); 7] {
        [
            ("shared RAM disk, local", self.local.total()),
            ("shared RAM disk, remote", self.remote.total()),
            ("RAM disk in the kernel", self.ram_disk),
            ("SCSI disk", self.disk),
            ("NFS over Ethernet", self.nfs),
            ("mapped, local", self.mapped_local.total()),
            ("mapped, remote", self.mapped_remote.total()),
        ]
    }

    fn times(&self) -> Table {
        let cells = self.ways().map(|(_, time)| vec![Cell::simulated(time.as_secs_f64() * 1e3)]).to_vec();
        Table::new("times", "The file read once from start to end")
            .unit("ms", 3)
            .rows("from", self.ways().map(|(name, _)| name.to_owned()).to_vec())
            .columns("time", ["time"])
            .cells(cells)
    }

    fn plot(&self) -> Plot {
        let points = self.ways().into_iter().enumerate().map(|(x, (_, time))| (x as f64, time.as_secs_f64() * 1e3));
        Plot::bars(
            "times",
            "Figure 3: a file read from start to end",
            "from",
            self.ways().map(|(name, _)| name.to_owned()).to_vec(),
            Axis::linear("time", "ms"),
            vec![Series::simulated("time", points)],
        )
    }

    /// What the paper found, if the machine is the paper's; and what mapping saves.
    fn findings(&self, run: &Run<'_>) -> Vec<Finding> {
        let saved = self.remote.total().as_secs_f64() / self.mapped_remote.total().as_secs_f64();
        let over_nfs = self.nfs.as_secs_f64() / self.remote.total().as_secs_f64();
        let mut findings = vec![Finding::new(
            format!(
                "Data in another node's memory are read {over_nfs:.1} times as fast as over NFS{}; mapped into the process, \
                 {saved:.1} times as fast as through the kernel.",
                run.in_the_paper(|| format!("{:.1}", RATIOS[0][1])),
            ),
            over_nfs > 1.0 && saved > 1.0,
        )];
        if run.is_papers() {
            let worst = self
                .ratios()
                .cells
                .iter()
                .flatten()
                .filter_map(Cell::difference_percent)
                .fold(0.0, |worst: f64, off| worst.max(off.abs()));
            let points = self.shares().cells[0]
                .iter()
                .filter_map(Cell::difference)
                .fold(0.0, |worst: f64, off| worst.max(off.abs()));
            findings.extend([
                Finding::new(format!("The four ratios of figure 3 are met within {worst:.1} % (15 %)."), worst <= 15.0),
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
