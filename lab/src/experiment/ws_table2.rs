//! WS table 2: the worth of merging neighbouring blocks into one transfer.

use std::time::Duration;

use crate::drive::Drive;
use crate::drive::flash::NVME_2026;
use crate::model::Simulation;
use crate::model::disk::{Disk, DiskCounters};
use policy::readahead::Mode;

use super::Run;
use super::workstation::{drive, drive_on_bus, file_system, queue};
use crate::parameter::Parameters;
use crate::result::{Axis, Cell, Finding, Plot, Results, Series, Source, Table};

const PAPER: [[f64; 2]; 2] = [[327.7, 630.2], [827.5, 765.6]];
/// Largest transfers of the sweep, in KB.
const BOUNDS_KB: [u32; 7] = [8, 16, 32, 64, 128, 256, 512];

/// The techniques in use. The paper's line "with merging" is all three.
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

pub(super) fn steps(parameters: &Parameters) -> u64 {
    let others = if parameters.get("disk.nvme") < 0.5 { 2 * OTHERS.len() } else { 0 };
    (STAGES.len() + BOUNDS_KB.len() + others) as u64
}

pub(super) fn simulate(run: &Run<'_>) -> Results {
    let drive = drive(run);
    let bound_kb = run.get("queue.transfer") as u32;
    let staged = |techniques: Techniques| Techniques { merge_kb: techniques.merge_kb.map(|_| bound_kb), ..techniques };
    let stages = STAGES.map(|(_, techniques)| measure(run, drive, staged(techniques)));
    let [(_, none), .., (_, all)] = STAGES;
    let bounds = BOUNDS_KB.map(|kb| measure(run, drive, Techniques { merge_kb: Some(kb), ..all }));
    let [without, .., with] = stages;
    let mut tables = vec![table(without, with), parts(&stages)];
    if run.compares() {
        let of = |name| [none, all].map(|kind| measure(run, drive_on_bus(run, name), staged(kind)));
        tables.push(other_disks(&OTHERS.map(|(name, _)| of(name))));
    }
    Results {
        tables,
        plots: vec![bars(without, with), by_bound(&bounds), parts_plot(&stages), holding(&bounds)],
        findings: findings(run, &stages, &bounds),
        notes: notes(run.compares()),
    }
}

/// Other drives of the time, to show the influence of the drive.
const OTHERS: [(&str, &str); 2] =
    [("hd1280", "Hitachi DK516C-16 (hd1280), table 1 of the paper"), ("scsi-1990", "Seagate ST4766N (Wren VI)")];

/// Techniques added one after the other; the first and the last are the paper's lines.
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
    let time = simulation.clone();
    let throughput = simulation.complete(async move {
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
        Throughput { write, read: rate(time.now() - started), writing }
    });
    run.step();
    throughput.unwrap_or_default()
}

fn table(without: Throughput, with: Throughput) -> Table {
    let row = |paper: [f64; 2], run: Throughput| vec![Cell::of(paper[0], run.write), Cell::of(paper[1], run.read)];
    let mut cells = vec![row(PAPER[0], without), row(PAPER[1], with)];
    cells[1][1].fitted = true;
    Table::new("throughput", "Table 2: throughput of a file with block merge and without")
        .unit("KB/s", 1)
        .rows("block merge", ["without", "with"])
        .columns("access", ["write", "read"])
        .cells(cells)
}

fn parts(stages: &[Throughput]) -> Table {
    let row = |run: &Throughput| {
        let commands = run.writing.batches as f64;
        let turning = run.writing.rotation.as_secs_f64() / run.writing.busy.as_secs_f64().max(1e-9) * 100.0;
        vec![run.write, run.read, commands, turning].into_iter().map(Cell::simulated).collect()
    };
    Table::new("parts", "What each part of the technique gives")
        .unit("", 0)
        .rows("technique", STAGES.iter().map(|(name, _)| (*name).to_owned()))
        .columns("measure", ["write, KB/s", "read, KB/s", "commands to write", "of that time, waiting for rotation, %"])
        .cells(stages.iter().map(row).collect())
}

fn other_disks(runs: &[[Throughput; 2]]) -> Table {
    let row = |[without, with]: &[Throughput; 2]| {
        [without.write, without.read, with.write, with.read].map(Cell::simulated).to_vec()
    };
    Table::new("disks", "The same with other disks on the same bus")
        .unit("KB/s", 1)
        .rows("disk", OTHERS.iter().map(|(_, about)| (*about).to_owned()))
        .columns("block merge and access", ["without, write", "without, read", "with, write", "with, read"])
        .cells(runs.iter().map(row).collect())
}

fn series(name: &str, source: Source, values: impl IntoIterator<Item = f64>) -> Series {
    Series::of(name, source, values.into_iter().enumerate().map(|(x, y)| (x as f64, y)))
}

fn bars(without: Throughput, with: Throughput) -> Plot {
    Plot::bars(
        "throughput",
        "What block merge is worth",
        "access",
        ["write", "read"],
        Axis::linear("throughput", "KB/s"),
        vec![
            series("without merge", Source::Paper, PAPER[0]),
            series("with merge", Source::Paper, PAPER[1]),
            series("without merge", Source::Simulated, [without.write, without.read]),
            series("with merge", Source::Simulated, [with.write, with.read]),
        ],
    )
}

fn by_bound(bounds: &[Throughput]) -> Plot {
    let line = |name: &str, of: fn(&Throughput) -> f64| {
        Series::simulated(name, BOUNDS_KB.iter().map(|kb| f64::from(*kb)).zip(bounds.iter().map(of)))
    };
    Plot::lines(
        "bound",
        "Throughput by the bound on merged transfers: beyond 128 KB little is left to gain",
        Axis::logarithmic("largest transfer", "KB"),
        Axis::linear("throughput", "KB/s"),
        vec![line("write", |run| run.write), line("read", |run| run.read)],
    )
}

fn holding(bounds: &[Throughput]) -> Plot {
    let held = |run: &Throughput| run.writing.busy.as_secs_f64() * 1e3 / run.writing.batches.max(1) as f64;
    Plot::lines(
        "holding",
        "Why there is a bound: how long one transfer holds the disk while others wait",
        Axis::logarithmic("largest transfer", "KB"),
        Axis::linear("mean time of a transfer", "ms"),
        vec![Series::simulated("write", BOUNDS_KB.iter().map(|kb| f64::from(*kb)).zip(bounds.iter().map(held)))],
    )
}

fn parts_plot(stages: &[Throughput]) -> Plot {
    Plot::bars(
        "parts",
        "What each part of the technique gives",
        "technique",
        STAGES.iter().map(|(name, _)| (*name).to_owned()),
        Axis::linear("throughput", "KB/s"),
        vec![
            series("write", Source::Simulated, stages.iter().map(|run| run.write)),
            series("read", Source::Simulated, stages.iter().map(|run| run.read)),
        ],
    )
}

fn findings(run: &Run<'_>, stages: &[Throughput; STAGES.len()], bounds: &[Throughput]) -> Vec<Finding> {
    let [without, _, merged, with] = stages;
    let headline = headline(run, without, with);
    if !run.compares() {
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

fn headline(run: &Run<'_>, without: &Throughput, with: &Throughput) -> Finding {
    let gain = |access: usize| run.in_the_paper(|| format!("{:.1}", PAPER[1][access] / PAPER[0][access]));
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
        with.read > without.read && (with.write > without.write || !run.compares()),
    )
}

fn notes(is_old: bool) -> Vec<String> {
    if !is_old {
        let flash = NVME_2026.source;
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
