//! WS table 2: what merging neighbouring blocks into one transfer is worth.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use crate::model::Simulation;
use crate::model::disk::{Disk, DiskCounters};
use machine::drive::Drive;
use policy::readahead::Mode;

use super::workstation::{disk_parameters, drive, drive_on_bus, file_system, parameter, queue, system_parameters};
use super::{Experiment, Run, in_the_paper};
use crate::parameter::{Origin, Parameters};
use crate::result::{Axis, Cell as TableCell, Drawing, Finding, Plot, Results, Series, Source, Table};

const NAME: &str = "ws-table2";
const PAPER: [[f64; 2]; 2] = [[327.7, 630.2], [827.5, 765.6]];
const BUS: &str = "data between drive and memory, with all that the handshake costs: on reading with merging (765.6 \
                   KB/s), where hardly anything else takes time. Asynchronous SCSI shakes hands for every byte over \
                   metres of cable: 1 to 2 MB/s were to be expected";
const FILE: &str = "all throughputs of the paper's tables 2, 4 and 5 are 8,192 KB over a time in whole tenths of a second \
                    (here 25.0, 13.0, 9.9 and 10.7 s): an 8 MB file";
/// Largest transfers of the sweep, in KB.
const BOUNDS_KB: [u32; 7] = [8, 16, 32, 64, 128, 256, 512];

pub struct WsTable2;

/// What is switched on. The paper's line "with merging" is all three.
#[derive(Clone, Copy)]
struct Techniques {
    contiguous: bool,
    merge_kb: Option<u32>,
    blocks_ahead: bool,
}

#[derive(Clone, Copy, Default)]
struct Throughput {
    write: f64,
    read: f64,
    writing: DiskCounters,
}

impl Experiment for WsTable2 {
    fn name(&self) -> &'static str {
        NAME
    }

    fn title(&self) -> &'static str {
        "Block merge: throughput of a file on a SCSI disk, with neighbouring blocks in one transfer and without"
    }

    fn about(&self) -> &'static str {
        "A UNIX of 1990 gives its disk one command for each block of 8 KB. By the time a command has gone to the disk, the \
         place where the next block lies has passed under the head, and the disk must turn once more: half of its time is \
         waiting. So the file system was made to leave a gap between blocks, which halves what a SCSI disk could give when \
         it is asked for much at a time. The technique turns this round: blocks lie side by side, and those that wait in \
         the queue side by side go to the disk in one command, of no more than 128 KB; a reader has several blocks fetched \
         ahead. Look at the first plot for what it is worth, and at the third for what each part of it gives."
    }

    fn paper(&self) -> &'static str {
        "Tezuka, Improved Performance of Workstation Unix Kernel, section 3, table 2"
    }

    fn parameters(&self) -> Parameters {
        let mut all = disk_parameters("hd639", (0.895, Origin::Fitted(BUS)));
        all.extend(system_parameters());
        let section = Origin::Paper("section 3: merged blocks are bounded at 128 KB");
        let gap =
            Origin::Published("newfs of 4.3BSD (-d): 4 ms between blocks; with merging the paper changes it to none");
        let ahead = Origin::Derived("the paper fetches several blocks ahead; as many as one transfer takes");
        all.extend([
            parameter(("fs.rotdelay", "ms"), "gap between blocks without merging", 4.0, 0.0..=50.0, gap),
            parameter(("queue.transfer", "KB"), "largest merged transfer", 128.0, 8.0..=4096.0, section),
            parameter(("readahead.blocks", ""), "blocks ahead with merging", 16.0, 1.0..=1024.0, ahead),
            parameter(("file.size", "KB"), "the file", 8192.0, 256.0..=65_536.0, Origin::Derived(FILE)),
        ]);
        Parameters::new(NAME, all)
    }

    fn modern(&self) -> &'static [(&'static str, f64)] {
        // 512 KB are a transfer of today's kernels. The processor: a system call of 0.2 us, a block of 8 KB in 1.5 us.
        &[
            ("disk.nvme", 1.0),
            ("queue.depth", 64.0),
            ("queue.transfer", 512.0),
            ("readahead.blocks", 64.0),
            ("fs.maxbpg", 2048.0),
            ("cpu.call", 0.0002),
            ("cpu.block", 0.0015),
            ("file.size", 65_536.0),
        ]
    }

    fn steps(&self, parameters: &Parameters) -> u64 {
        let others = if parameters.get("disk.nvme") < 0.5 { 2 * OTHERS.len() } else { 0 };
        (STAGES.len() + BOUNDS_KB.len() + others) as u64
    }

    fn simulate(&self, run: &Run<'_>) -> Results {
        let drive = drive(run);
        let bound_kb = run.get("queue.transfer") as u32;
        let staged =
            |techniques: Techniques| Techniques { merge_kb: techniques.merge_kb.map(|_| bound_kb), ..techniques };
        let stages = STAGES.map(|(_, techniques)| measure(run, drive, staged(techniques)));
        let [(_, none), .., (_, all)] = STAGES;
        let bounds = BOUNDS_KB.map(|kb| measure(run, drive, Techniques { merge_kb: Some(kb), ..all }));
        let [without, .., with] = stages;
        let is_old = run.get("disk.nvme") < 0.5;
        let mut tables = vec![table(without, with, is_old), parts(&stages)];
        if is_old {
            let of =
                |name| drive_on_bus(run, name).map(|drive| [none, all].map(|kind| measure(run, drive, staged(kind))));
            tables.push(other_disks(&OTHERS.map(|(name, _)| of(name).unwrap_or_default())));
        }
        Results {
            tables,
            plots: vec![bars(without, with, is_old), by_bound(&bounds), parts_plot(&stages), holding(&bounds)],
            findings: findings(&stages, &bounds, is_old),
            notes: notes(is_old),
        }
    }
}

/// Other drives of the time, to see how much hangs on which one it is.
const OTHERS: [(&str, &str); 2] =
    [("hd1280", "Hitachi DK516C-16 (hd1280), table 1 of the paper"), ("scsi-1990", "Seagate ST4766N (Wren VI)")];

/// What is added one after the other; the first and the last are the paper's lines.
const STAGES: [(&str, Techniques); 4] = [
    ("without", Techniques { contiguous: false, merge_kb: None, blocks_ahead: false }),
    ("blocks side by side", Techniques { contiguous: true, merge_kb: None, blocks_ahead: false }),
    ("and merged", Techniques { contiguous: true, merge_kb: Some(0), blocks_ahead: false }),
    ("and several blocks ahead", Techniques { contiguous: true, merge_kb: Some(0), blocks_ahead: true }),
];

fn measure(run: &Run<'_>, drive: Drive, techniques: Techniques) -> Throughput {
    let simulation = Simulation::new(run.seed);
    let queue = queue(run, techniques.merge_kb.map(|kb| kb << 10), false);
    let disk = Disk::new(&simulation, drive, queue);
    let rotdelay = if techniques.contiguous { 0.0 } else { run.get("fs.rotdelay") };
    let ahead = if techniques.blocks_ahead {
        Mode::Adaptive { blocks_max: run.get("readahead.blocks") as u64 }
    } else {
        Mode::Fixed { blocks: 1 }
    };
    let fs = file_system(run, &simulation, (&disk, &drive), rotdelay, ahead);
    let blocks = (run.get("file.size") / run.get("fs.block")) as u64;
    let block_kb = run.get("fs.block");
    let result = Rc::new(Cell::new(Throughput::default()));
    let (time, told) = (simulation.clone(), Rc::clone(&result));
    simulation.spawn(async move {
        let mut file = fs.create(0).await;
        let started = time.now();
        fs.write(&mut file, blocks).await;
        fs.settle().await;
        let kilobytes = file.blocks() as f64 * block_kb;
        let rate = |took: Duration| kilobytes / took.as_secs_f64().max(1e-9);
        let write = rate(time.now() - started);
        let writing = disk.counters();
        fs.forget();
        let started = time.now();
        fs.read(&mut file).await;
        told.set(Throughput { write, read: rate(time.now() - started), writing });
    });
    simulation.run();
    run.step();
    result.get()
}

fn table(without: Throughput, with: Throughput, compare: bool) -> Table {
    let cell =
        |paper, simulated| if compare { TableCell::of(paper, simulated) } else { TableCell::simulated(simulated) };
    let row = |paper: [f64; 2], run: Throughput| vec![cell(paper[0], run.write), cell(paper[1], run.read)];
    let mut cells = vec![row(PAPER[0], without), row(PAPER[1], with)];
    if compare {
        cells[1][1] = cells[1][1].fitted();
    }
    Table {
        name: "throughput".into(),
        title: "Table 2: throughput of a file with block merge and without".into(),
        unit: "KB/s".into(),
        rows_are: "block merge".into(),
        rows: vec!["without".into(), "with".into()],
        columns_are: "access".into(),
        columns: vec!["write".into(), "read".into()],
        cells,
        in_points: false,
        digits: 1,
    }
}

fn parts(stages: &[Throughput]) -> Table {
    let row = |run: &Throughput| {
        let commands = run.writing.batches as f64;
        let turning = run.writing.rotation.as_secs_f64() / run.writing.busy.as_secs_f64().max(1e-9) * 100.0;
        vec![run.write, run.read, commands, turning].into_iter().map(TableCell::simulated).collect()
    };
    Table {
        name: "parts".into(),
        title: "What each part of the technique gives".into(),
        unit: String::new(),
        rows_are: "technique".into(),
        rows: STAGES.iter().map(|(name, _)| (*name).to_owned()).collect(),
        columns_are: "measure".into(),
        columns: ["write, KB/s", "read, KB/s", "commands to write", "of that time, waiting for rotation, %"]
            .map(str::to_owned)
            .to_vec(),
        cells: stages.iter().map(row).collect(),
        in_points: false,
        digits: 0,
    }
}

fn other_disks(runs: &[[Throughput; 2]]) -> Table {
    let row = |[without, with]: &[Throughput; 2]| {
        [without.write, without.read, with.write, with.read].map(TableCell::simulated).to_vec()
    };
    Table {
        name: "disks".into(),
        title: "The same with other disks on the same bus".into(),
        unit: "KB/s".into(),
        rows_are: "disk".into(),
        rows: OTHERS.iter().map(|(_, about)| (*about).to_owned()).collect(),
        columns_are: "block merge and access".into(),
        columns: ["without, write", "without, read", "with, write", "with, read"].map(str::to_owned).to_vec(),
        cells: runs.iter().map(row).collect(),
        in_points: false,
        digits: 1,
    }
}

fn series(name: &str, source: Source, values: impl IntoIterator<Item = f64>) -> Series {
    let points = values.into_iter().enumerate().map(|(x, y)| (x as f64, y)).collect();
    Series { name: name.to_owned(), source, points }
}

fn bars(without: Throughput, with: Throughput, compare: bool) -> Plot {
    let mut all = Vec::new();
    if compare {
        all.push(series("without merge", Source::Paper, PAPER[0]));
        all.push(series("with merge", Source::Paper, PAPER[1]));
    }
    all.push(series("without merge", Source::Simulated, [without.write, without.read]));
    all.push(series("with merge", Source::Simulated, [with.write, with.read]));
    Plot {
        name: "throughput".into(),
        title: "What block merge is worth".into(),
        drawing: Drawing::Bars(vec!["write".into(), "read".into()]),
        x: Axis::linear("access", ""),
        y: Axis::linear("throughput", "KB/s"),
        series: all,
    }
}

fn by_bound(bounds: &[Throughput]) -> Plot {
    let line = |name: &str, of: fn(&Throughput) -> f64| Series {
        name: name.to_owned(),
        source: Source::Simulated,
        points: BOUNDS_KB.iter().map(|kb| f64::from(*kb)).zip(bounds.iter().map(of)).collect(),
    };
    Plot {
        name: "bound".into(),
        title: "Throughput by the bound on merged transfers: beyond 128 KB little is left to gain".into(),
        drawing: Drawing::Lines,
        x: Axis::logarithmic("largest transfer", "KB"),
        y: Axis::linear("throughput", "KB/s"),
        series: vec![line("write", |run| run.write), line("read", |run| run.read)],
    }
}

fn holding(bounds: &[Throughput]) -> Plot {
    let held = |run: &Throughput| run.writing.busy.as_secs_f64() * 1e3 / run.writing.batches.max(1) as f64;
    Plot {
        name: "holding".into(),
        title: "Why there is a bound: how long one transfer holds the disk while others wait".into(),
        drawing: Drawing::Lines,
        x: Axis::logarithmic("largest transfer", "KB"),
        y: Axis::linear("mean time of a transfer", "ms"),
        series: vec![Series {
            name: "write".into(),
            source: Source::Simulated,
            points: BOUNDS_KB.iter().map(|kb| f64::from(*kb)).zip(bounds.iter().map(held)).collect(),
        }],
    }
}

fn parts_plot(stages: &[Throughput]) -> Plot {
    Plot {
        name: "parts".into(),
        title: "What each part of the technique gives".into(),
        drawing: Drawing::Bars(STAGES.iter().map(|(name, _)| (*name).to_owned()).collect()),
        x: Axis::linear("technique", ""),
        y: Axis::linear("throughput", "KB/s"),
        series: vec![
            series("write", Source::Simulated, stages.iter().map(|run| run.write)),
            series("read", Source::Simulated, stages.iter().map(|run| run.read)),
        ],
    }
}

fn findings(stages: &[Throughput; STAGES.len()], bounds: &[Throughput], is_old: bool) -> Vec<Finding> {
    let [without, _, merged, with] = stages;
    let headline = headline(without, with, is_old);
    if !is_old {
        return vec![
            headline,
            Finding::new("Several blocks ahead make reading at least five times faster", with.read > 5.0 * merged.read),
        ];
    }
    let bound = |kb| BOUNDS_KB.iter().position(|bound| *bound == kb).map_or(0.0, |at| bounds[at].write);
    vec![
        headline,
        Finding::new("Writing gains more than reading: the drive's own buffer helps readers already", {
            with.write / without.write > with.read / without.read
        }),
        Finding::new("With merge, writing is at least twice as fast", with.write >= 2.0 * without.write),
        Finding::new("A bound of 512 KB gives less than 20 % more than one of 128 KB", bound(512) < 1.2 * bound(128)),
    ]
}

/// What the technique is worth.
fn headline(without: &Throughput, with: &Throughput, is_old: bool) -> Finding {
    let gain = |access: usize| in_the_paper(is_old, || format!("{:.1}", PAPER[1][access] / PAPER[0][access]));
    Finding::new(
        format!(
            "With merge, a file is written at {:.0} KB/s instead of {:.0}, {:.1} times as fast{}, and read at {:.0} instead \
             of {:.0}, {:.1} times as fast{}",
            with.write,
            without.write,
            with.write / without.write,
            gain(0),
            with.read,
            without.read,
            with.read / without.read,
            gain(1),
        ),
        with.read > without.read && (with.write > without.write || !is_old),
    )
}

fn notes(is_old: bool) -> Vec<String> {
    if !is_old {
        let flash = Drive::named("nvme-2026").map_or("", |drive| drive.source());
        return vec![format!(
            "The device: {flash}. It has no rotation to save, and takes so many commands at a time that no block waits long \
             enough to meet its neighbour: merging finds little to do. What is left of the technique is to have several \
             blocks under way for one reader."
        )];
    }
    vec![
        "The paper does not say on which disk it measured. Of those that Sony's own driver knew, the Hitachi DK515C-78 \
         (hd639) is the largest of 1989 and 1990. Its track of 69 sectors and a gap of one block make a block every 24.2 \
         ms when each write just misses its turn: the 24.4 ms of the paper without merge."
            .into(),
        "The read without merge comes out some 11 % too fast: asynchronous SCSI is slower for small transfers than for large \
         ones, since each begins with selection, messages and reselection; the model's bus has one speed, and one time for \
         each command."
            .into(),
        "No source was found for the processor's time of a block (cpu.block). It hardly matters: from 1 to 4 ms no cell \
         changes by more than 6 %."
            .into(),
    ]
}
