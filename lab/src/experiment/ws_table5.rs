//! The workstation paper's table 5: NFS reads by the number of blocks that the client reads ahead.

use crate::parameter::{Origin, Parameters};
use crate::result::{Axis, Cell, Drawing, Finding, Plot, Results, Series, Source, Table};

use super::nfs::{self, Load, Outcome, Setting, is_of_1991, measure};
use super::workstation::parameter;
use super::{Experiment, Run};

/// Blocks ahead, KB/s.
const PAPER: [(u64, f64); 2] = [(1, 505.7), (4, 787.7)];
const AHEAD: [u64; 11] = [0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16];

const LOOK_AHEAD: &str = "on the cell with one block ahead: with the drive's own prefetch the simulated machine reads \
     1,070 KB/s there";
const DAEMONS: Origin = Origin::Derived(
    "as many as the machines of table 4 have; with fewer than the blocks read ahead, \
     some would not be",
);

pub struct WsTable5;

impl Experiment for WsTable5 {
    fn name(&self) -> &'static str {
        "ws-table5"
    }

    fn title(&self) -> &'static str {
        "NFS reads: one block read ahead by the client, or several"
    }

    fn about(&self) -> &'static str {
        "A process reads a file over NFS from start to end, 8 KB at a time. With one call after another the Ethernet, \
         the server's processor, its disk and the client's processor mostly wait for each other. While the process works on \
         one block, the client's daemons can fetch the next ones: one, as was usual, or several. Several calls are then \
         under way, and each part works on another one. Look at how busy each part is: throughput grows until one of \
         them is busy all the time. The server's disk is helped in yet another way: several blocks wait for it at once, lie \
         side by side, and are read with one command (section 3 of the paper)."
    }

    fn paper(&self) -> &'static str {
        "Tezuka, Improved Performance of Workstation Unix Kernel, section 5, table 5"
    }

    fn parameters(&self) -> Parameters {
        let mut all = nfs::parameters();
        if let Some(look_ahead) = all.iter_mut().find(|parameter| parameter.name == "disk.read_ahead") {
            look_ahead.default = 0.0;
            look_ahead.origin = Origin::Fitted(LOOK_AHEAD);
        }
        all.extend([
            parameter(
                ("client.biods", ""),
                "daemons of the client; at least one more than blocks are read ahead",
                16.0,
                0.0..=256.0,
                DAEMONS,
            ),
            parameter(("server.nfsds", ""), "processes of the server", 16.0, 1.0..=256.0, DAEMONS),
            parameter(
                ("file.count", ""),
                "files read one after another, each somewhere else on the disk",
                4.0,
                1.0..=256.0,
                Origin::Chosen("so that the mean depends little on where a file lies"),
            ),
        ]);
        Parameters::new(self.name(), all)
    }

    fn modern(&self) -> &'static [(&'static str, f64)] {
        nfs::MODERN
    }

    fn steps(&self, parameters: &Parameters) -> u64 {
        2 * AHEAD.len() as u64 * parameters.get("file.count") as u64
    }

    fn simulate(&self, run: &Run<'_>) -> Results {
        let old = is_of_1991(run);
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
                throughput(at(1), at(4), old),
                nfs::gain((PAPER[0].1, PAPER[1].1), (at(1), at(4)), old),
                sweep(&disk, &memory),
                nfs::utilisation(&names, &busy),
            ],
            plots: plots(&disk, &memory, old),
            findings: findings(&disk, &memory, old),
            notes: if old { notes(&memory) } else { nfs::modern_notes() },
        }
    }
}

fn blocks(ahead: u64) -> String {
    match ahead {
        1 => "1 block".to_owned(),
        ahead => format!("{ahead} blocks"),
    }
}

fn throughput(one: &Outcome, four: &Outcome, old: bool) -> Table {
    let cell = |(paper, outcome): (f64, &Outcome)| Cell {
        paper: old.then_some(paper),
        fitted: old && paper == PAPER[0].1,
        ..Cell::simulated(outcome.throughput())
    };
    Table {
        name: "throughput".into(),
        title: "Table 5: NFS read throughput".into(),
        unit: "KB/s".into(),
        rows_are: "read ahead".into(),
        rows: PAPER.iter().map(|(ahead, _)| blocks(*ahead)).collect(),
        columns_are: "throughput".into(),
        columns: vec!["read".into()],
        cells: vec![vec![cell((PAPER[0].1, one))], vec![cell((PAPER[1].1, four))]],
        digits: 1,
        ..Table::default()
    }
}

fn sweep(disk: &[Outcome], memory: &[Outcome]) -> Table {
    let row = |outcomes: &[Outcome]| outcomes.iter().map(|outcome| Cell::simulated(outcome.throughput())).collect();
    Table {
        name: "blocks".into(),
        title: "Read throughput by the number of blocks read ahead".into(),
        unit: "KB/s".into(),
        rows_are: "the file is read".into(),
        rows: vec!["from the server's disk".into(), "from the server's memory".into()],
        columns_are: "blocks ahead".into(),
        columns: AHEAD.iter().map(u64::to_string).collect(),
        cells: vec![row(disk), row(memory)],
        digits: 1,
        ..Table::default()
    }
}

fn plots(disk: &[Outcome], memory: &[Outcome], old: bool) -> Vec<Plot> {
    let line = |name: &str, outcomes: &[Outcome], of: &dyn Fn(&Outcome) -> f64| Series {
        name: name.into(),
        source: Source::Simulated,
        points: AHEAD.iter().zip(outcomes).map(|(ahead, outcome)| (*ahead as f64, of(outcome))).collect(),
    };
    let paper = Series {
        name: "from disk".into(),
        source: Source::Paper,
        points: PAPER.iter().map(|(ahead, kilobytes)| (*ahead as f64, *kilobytes)).collect(),
    };
    let throughput = |outcome: &Outcome| outcome.throughput();
    let busy = nfs::PARTS.iter().enumerate().map(|(part, name)| line(name, disk, &|o| o.utilisation()[part])).collect();
    let simulated = [line("from disk", disk, &throughput), line("from memory", memory, &throughput)];
    let x = || Axis::linear("blocks read ahead", "");
    vec![
        Plot {
            name: "throughput".into(),
            title: "Table 5 and beyond: NFS read throughput".into(),
            drawing: Drawing::Lines,
            x: x(),
            y: Axis::linear("throughput", "KB/s"),
            series: old.then_some(paper).into_iter().chain(simulated).collect(),
        },
        Plot {
            name: "busy".into(),
            title: "How busy each part is, the file on the server's disk".into(),
            drawing: Drawing::Lines,
            x: x(),
            y: Axis::linear("busy", "%"),
            series: busy,
        },
    ]
}

fn findings(disk: &[Outcome], memory: &[Outcome], old: bool) -> Vec<Finding> {
    let at = |ahead: u64| AHEAD.iter().position(|a| *a == ahead).map_or(&disk[0], |at| &disk[at]);
    let paper = (PAPER[0].1, PAPER[1].1);
    let headline = nfs::headline("With four blocks ahead in place of one, a file is read", paper, (at(1), at(4)), old);
    if !old {
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
