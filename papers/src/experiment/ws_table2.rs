//! WS table 2: the worth of merging neighbouring blocks into one transfer.

use std::time::Duration;

use crate::drive::Drive;
use crate::model::disk::{Disk, DiskCounters};
use crate::model::ffs::{FileSystem, Waits};
use crate::model::{Simulation, Virtual};
use policy::readahead::Mode;

use super::Run;
use super::workstation::{drive, drive_on_bus, file_system, queue};
use crate::parameter::Parameters;
use crate::result::{Finding, Plot, Results, Series, Source, Table};

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

/// Small files that are created one after another, each with one block.
const SMALL_FILES: u64 = 48;
/// Groups of cylinders that they lie in, as directories do.
const SMALL_GROUPS: u64 = 12;

pub(super) fn steps(parameters: &Parameters) -> u64 {
    let others = if parameters.get("disk.nvme") < 0.5 { 2 * OTHERS.len() } else { 0 };
    (STAGES.len() + BOUNDS_KB.len() + others + 3) as u64
}

pub(super) fn simulate(run: &Run<'_>) -> Results {
    let drive = drive(run);
    let bound_kb = run.get("queue.transfer") as u32;
    let staged = |techniques: Techniques| Techniques { merge_kb: techniques.merge_kb.map(|_| bound_kb), ..techniques };
    let stages = STAGES.map(|(_, techniques)| measure(run, drive, staged(techniques)));
    let [(_, none), .., (_, all)] = STAGES;
    let bounds = BOUNDS_KB.map(|kb| measure(run, drive, Techniques { merge_kb: Some(kb), ..all }));
    let [without, .., with] = stages;
    let throughput = run.table("throughput", [without, with].map(|run| [run.write, run.read]));
    let small =
        [(false, false), (true, false), (true, true)].map(|(cached, merge)| small_files(run, drive, cached, merge));
    let mut tables = vec![throughput, parts(run, &stages), run.table("small", small)];
    if run.compares() {
        let row = |(name, _)| {
            let [without, with] = [none, all].map(|kind| measure(run, drive_on_bus(run, name), staged(kind)));
            [without.write, without.read, with.write, with.read]
        };
        tables.push(run.table("disks", OTHERS.map(row)).of_rows(OTHERS.map(|(_, about)| about)));
    }
    let mut findings = findings(run, &stages, &bounds);
    if run.compares() {
        findings.extend(small_findings(&small));
    }
    Results {
        tables,
        plots: vec![bars(run, without, with), by_bound(run, &bounds), parts_plot(run, &stages), holding(run, &bounds)],
        findings,
        notes: run.notes(&[]),
    }
}

/// Other drives of the time, to show the influence of the drive.
const OTHERS: [(&str, &str); 2] = [("hd639", "Hitachi DK515C-78 (hd639)"), ("scsi-1990", "Seagate ST4766N (Wren VI)")];

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

fn small_findings(small: &[[f64; 6]; 3]) -> [Finding; 3] {
    let [evicted, cached, merged] = small.map(|row| row[0]);
    let [removing, removing_merged] = [small[1][3], small[2][3]];
    [
        Finding::new(
            "Cached directories, inodes and bitmaps speed up writing small files (section 2 (b))",
            cached < 0.95 * evicted,
        ),
        Finding::new("Merging does not make creating files faster: it is left unsolved (section 8 (c))", {
            merged > 0.95 * cached
        }),
        Finding::new(
            "Nor removing them: with all of it cached, each still waits for two writes (section 8 (c))",
            removing_merged > 0.95 * removing && small[2][4] >= 2.0,
        ),
    ]
}

/// Of creating and of removing a file with one block: milliseconds, synchronous accesses, and waits for them.
fn small_files(run: &Run<'_>, drive: Drive, cached: bool, merge: bool) -> [f64; 6] {
    let simulation = Simulation::new(run.seed);
    let bound = merge.then(|| (run.get("queue.transfer") as u32) << 10);
    let disk = Disk::new(&simulation, drive, queue(run, bound, false));
    let fs = file_system(run, &simulation, (&disk, &drive), 0.0, Mode::Fixed { blocks: 1 });
    let took = simulation.complete(create_and_remove(simulation.clone(), fs, cached));
    run.step();
    let each = |from: (f64, Waits), to: (f64, Waits)| {
        let waited = (to.1.time - from.1.time).as_secs_f64() * 1e3;
        [to.0 - from.0, (to.1.count - from.1.count) as f64, waited].map(|sum| sum / SMALL_FILES as f64)
    };
    let Some([start, created, removed]) = took else { return [f64::NAN; 6] };
    let ([time, accesses, waits], [removing, removing_accesses, removing_waits]) =
        (each(start, created), each(created, removed));
    [time, accesses, waits, removing, removing_accesses, removing_waits]
}

/// The time in milliseconds and the waits so far: before, with all files created, with all removed.
async fn create_and_remove(time: Virtual, fs: FileSystem, cached: bool) -> [(f64, Waits); 3] {
    let so_far = || (time.now().ns() as f64 / 1e6, fs.waits());
    let look_up = async |home: u64| {
        if !cached {
            fs.forget();
        }
        fs.look_up(home).await;
    };
    let (mut files, start) = (Vec::new(), so_far());
    for number in 0..SMALL_FILES {
        look_up(number % SMALL_GROUPS).await;
        let mut file = fs.create(number % SMALL_GROUPS).await;
        fs.write(&mut file, 1).await;
        files.push(file);
    }
    fs.settle().await;
    let created = so_far();
    for (number, file) in (0..).zip(files) {
        look_up(number % SMALL_GROUPS).await;
        fs.remove(file).await;
    }
    [start, created, so_far()]
}

fn parts(of: &Run<'_>, stages: &[Throughput]) -> Table {
    let row = |run: &Throughput| {
        let commands = run.writing.batches as f64;
        let turning = run.writing.rotation.as_secs_f64() / run.writing.busy.as_secs_f64().max(1e-9) * 100.0;
        [run.write, run.read, commands, turning]
    };
    of.table("parts", stages.iter().map(row)).of_rows(STAGES.map(|(name, _)| name))
}

fn bars(run: &Run<'_>, without: Throughput, with: Throughput) -> Plot {
    let names = ["without merge", "with merge"];
    let paper = names.iter().zip(run.published("throughput"));
    let paper = paper.map(|(name, row)| Series::bars(*name, Source::Paper, row.iter().copied()));
    let simulated = names.iter().zip([without, with]);
    let simulated = simulated.map(|(name, run)| Series::bars(*name, Source::Simulated, [run.write, run.read]));
    run.plot("throughput", paper.chain(simulated).collect())
}

fn line(name: &str, bounds: &[Throughput], of: impl Fn(&Throughput) -> f64) -> Series {
    Series::simulated(name, BOUNDS_KB.map(f64::from).into_iter().zip(bounds.iter().map(of)))
}

fn by_bound(run: &Run<'_>, bounds: &[Throughput]) -> Plot {
    run.plot("bound", vec![line("write", bounds, |run| run.write), line("read", bounds, |run| run.read)])
}

fn holding(run: &Run<'_>, bounds: &[Throughput]) -> Plot {
    let held = |run: &Throughput| run.writing.busy.as_secs_f64() * 1e3 / run.writing.batches.max(1) as f64;
    run.plot("holding", vec![line("write", bounds, held)])
}

fn parts_plot(run: &Run<'_>, stages: &[Throughput]) -> Plot {
    let bars = |name: &str, of: fn(&Throughput) -> f64| Series::bars(name, Source::Simulated, stages.iter().map(of));
    run.plot("parts", vec![bars("write", |run| run.write), bars("read", |run| run.read)])
        .of_groups(STAGES.map(|(name, _)| name))
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
    let published = run.published("throughput");
    let gain = |access: usize| run.in_the_paper(|| format!("{:.1}", published[1][access] / published[0][access]));
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
