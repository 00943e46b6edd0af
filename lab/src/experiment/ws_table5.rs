//! The workstation paper's table 5: NFS reads by the number of blocks that the client reads ahead.

use crate::parameter::Parameters;
use crate::result::{Axis, Cell, Finding, Plot, Results, Series, Table};

use super::Run;
use super::nfs::{self, Load, Outcome, Setting, measure};

/// Blocks ahead, KB/s.
const PAPER: [(u64, f64); 2] = [(1, 505.7), (4, 787.7)];
const AHEAD: [u64; 11] = [0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16];

pub(super) fn steps(parameters: &Parameters) -> u64 {
    2 * AHEAD.len() as u64 * parameters.get("file.count") as u64
}

pub(super) fn simulate(run: &Run<'_>) -> Results {
    let of = |ahead: u64, cached| {
        let biods = (run.get("client.biods") as u32).max(ahead as u32 + 1);
        let (nfsds, files) = (run.get("server.nfsds") as u32, run.get("file.count") as u32);
        measure(run, Setting { biods, nfsds, load: Load::Read { ahead, cached }, files })
    };
    let [disk, memory] = [false, true].map(|cached| AHEAD.map(|ahead| of(ahead, cached)));
    let at = |ahead: u64| AHEAD.iter().position(|a| *a == ahead).map_or(&disk[0], |at| &disk[at]);
    let names: Vec<String> = AHEAD.iter().map(|ahead| blocks(*ahead)).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let busy: Vec<&Outcome> = disk.iter().collect();
    Results {
        tables: vec![
            throughput(at(1), at(4)),
            nfs::gain((PAPER[0].1, PAPER[1].1), (at(1), at(4))),
            sweep(&disk, &memory),
            nfs::utilisation(&names, &busy),
        ],
        plots: plots(&disk, &memory),
        findings: findings(run, &disk, &memory),
        notes: if run.compares() { notes(&memory) } else { nfs::modern_notes() },
    }
}

fn blocks(ahead: u64) -> String {
    match ahead {
        1 => "1 block".to_owned(),
        ahead => format!("{ahead} blocks"),
    }
}

fn throughput(one: &Outcome, four: &Outcome) -> Table {
    let cell = |row: usize, outcome: &Outcome| Cell::of(PAPER[row].1, outcome.throughput());
    Table::new("throughput", "Table 5: NFS read throughput")
        .unit("KB/s", 1)
        .rows("read ahead", PAPER.iter().map(|(ahead, _)| blocks(*ahead)))
        .columns("throughput", ["read"])
        .cells(vec![vec![cell(0, one).fitted()], vec![cell(1, four)]])
}

fn sweep(disk: &[Outcome], memory: &[Outcome]) -> Table {
    let row = |outcomes: &[Outcome]| outcomes.iter().map(|outcome| Cell::simulated(outcome.throughput())).collect();
    Table::new("blocks", "Read throughput by the number of blocks read ahead")
        .unit("KB/s", 1)
        .rows("the file is read", ["from the server's disk", "from the server's memory"])
        .columns("blocks ahead", AHEAD.iter().map(u64::to_string))
        .cells(vec![row(disk), row(memory)])
}

fn plots(disk: &[Outcome], memory: &[Outcome]) -> Vec<Plot> {
    let line = |name: &str, outcomes: &[Outcome], of: &dyn Fn(&Outcome) -> f64| {
        Series::simulated(name, AHEAD.iter().zip(outcomes).map(|(ahead, outcome)| (*ahead as f64, of(outcome))))
    };
    let paper = Series::paper("from disk", PAPER.iter().map(|(ahead, kilobytes)| (*ahead as f64, *kilobytes)));
    let throughput = |outcome: &Outcome| outcome.throughput();
    let busy = nfs::PARTS.iter().enumerate().map(|(part, name)| line(name, disk, &|o| o.utilisation()[part])).collect();
    let throughputs = vec![paper, line("from disk", disk, &throughput), line("from memory", memory, &throughput)];
    let x = || Axis::linear("blocks read ahead", "");
    vec![
        Plot::lines(
            "throughput",
            "Table 5 and beyond: NFS read throughput",
            x(),
            Axis::linear("throughput", "KB/s"),
            throughputs,
        ),
        Plot::lines(
            "busy",
            "How busy each part is, the file on the server's disk",
            x(),
            Axis::linear("busy", "%"),
            busy,
        ),
    ]
}

fn findings(run: &Run<'_>, disk: &[Outcome], memory: &[Outcome]) -> Vec<Finding> {
    let at = |ahead: u64| AHEAD.iter().position(|a| *a == ahead).map_or(&disk[0], |at| &disk[at]);
    let paper = (PAPER[0].1, PAPER[1].1);
    let headline = nfs::headline(run, "With four blocks ahead in place of one, a file is read", paper, (at(1), at(4)));
    if !run.compares() {
        return vec![headline];
    }
    let ethernet = |outcome: &Outcome| outcome.utilisation()[0];
    vec![
        headline,
        Finding::new(
            "The gain goes with a better use of the Ethernet, as the paper says",
            ethernet(at(4)) > 1.2 * ethernet(at(1)),
        ),
        Finding::new(
            "With several blocks asked for at once, the disk reads more of them with one command",
            at(4).accesses() < 0.8 * at(1).accesses(),
        ),
        Finding::new("From the server's memory, one block ahead is enough to fill the Ethernet", {
            memory[1].utilisation()[0] > 85.0
        }),
    ]
}

fn notes(memory: &[Outcome]) -> Vec<String> {
    vec![
        format!(
            "Is the file in the server's memory or on its disk? The paper does not say. From memory the simulated machines \
             reach {:.0} KB/s with one block ahead, twice what was measured. To be that slow, each block would have to cost \
             nearly 19 ms of processor time more, on both machines together: some 470,000 instructions. And the {:.1} KB/s \
             measured with four blocks are about what the paper's table 2 gives for a merged read of a disk itself (765.6). \
             So the file is on \
             the disk.",
            memory[1].throughput(),
            PAPER[1].1,
        ),
        "The disk is then what all wait for: the Ethernet is used better because the disk is. One block at a time, it misses \
         its turn after each; blocks that wait together are read with one command."
            .to_owned(),
        "Whether the drive read on into its own buffer is the one fitted parameter: it did not, or the software between \
         was too slow to gain from it. With it (disk.read_ahead=1) one block ahead would be enough already."
            .to_owned(),
        "Processor costs are chosen within what was published. Any one of them twice or half as large moves no cell by \
         more than 8 %."
            .to_owned(),
        "Calls that are sent again, lost frames and collisions are left out.".to_owned(),
    ]
}
