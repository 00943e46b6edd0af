//! The tables, plots and findings of WS table 3.

use std::time::Duration;

use crate::drive::flash::NVME_2026;
use policy::unit::Instant;

use super::super::Run;
use super::Written;
use super::starvation::Starved;
use crate::result::{Axis, Cell, Finding, Plot, Results, Series, Table};

const PAPER: [[f64; 2]; 2] = [[4.9, 5.0], [1.5, 5.2]];
const ORDERS: [&str; 3] = ["without priority", "with priority", "with priority and deadline"];

pub(super) fn results(run: &Run<'_>, writes: &[Written; 3], starved: &[Starved; 3]) -> Results {
    let is_old = run.compares();
    let kilobytes = run.get("fs.block");
    Results {
        tables: vec![table(writes, is_old), waits(writes), starvation_table(starved)],
        plots: vec![timeline(writes, kilobytes), bars(writes, is_old), starvation_plot(starved, kilobytes)],
        findings: findings(run, writes, starved),
        notes: notes(writes, is_old),
    }
}

fn seconds(times: &[Written], of: fn(&Written) -> Duration) -> impl Iterator<Item = f64> {
    times.iter().map(move |written| of(written).as_secs_f64())
}

fn names(count: usize) -> Vec<String> {
    ORDERS[..count].iter().map(|name| (*name).to_owned()).collect()
}

fn table(writes: &[Written; 3], compare: bool) -> Table {
    let cell = |paper, simulated: Duration| Cell::of(paper, simulated.as_secs_f64());
    let row =
        |(paper, written): (&[f64; 2], &Written)| vec![cell(paper[0], written.returned), cell(paper[1], written.done)];
    let mut cells: Vec<Vec<Cell>> = PAPER.iter().zip(writes).map(row).collect();
    cells[1][0].fitted = true;
    Table::new("times", "Table 3: a file written, with priority scheduling and without")
        .unit("s", if compare { 2 } else { 5 })
        .rows("scheduling", names(2))
        .columns("until", ["write ends", "I/O ends"])
        .cells(cells)
}

fn waits(writes: &[Written; 3]) -> Table {
    let row = |written: &Written| {
        let mean = written.waits.time.as_secs_f64() * 1e3 / written.waits.count.max(1) as f64;
        let times = [written.returned.as_secs_f64() * 1e3, written.done.as_secs_f64() * 1e3];
        [times[0], times[1], written.waits.count as f64, mean].map(Cell::simulated).to_vec()
    };
    Table::new("waits", "What the program waited for")
        .unit("", 2)
        .rows("scheduling", names(3))
        .columns("measure", ["write ends, ms", "I/O ends, ms", "synchronous transfers", "mean wait for one, ms"])
        .cells(writes.iter().map(row).collect())
}

fn starvation_table(starved: &[Starved; 3]) -> Table {
    let row = |run: &Starved| {
        let share = run.written.len() as f64 * 100.0 / run.of.max(1) as f64;
        let reads = run.reads as f64 / run.time.as_secs_f64();
        let [wait, read] = [run.longest_wait(), run.read_time].map(|time| time.as_secs_f64() * 1e3);
        [share, wait, reads, read].map(Cell::simulated).to_vec()
    };
    Table::new("starvation", "A file beside an endless synchronous load")
        .unit("", 1)
        .rows("scheduling", names(3))
        .columns(
            "measure",
            ["of the file written, %", "longest wait of a block, ms", "reads a second", "mean time of a read, ms"],
        )
        .cells(starved.iter().map(row).collect())
}

/// Kilobytes completed over time, as steps from zero.
fn steps(name: String, mut times: Vec<Instant>, kilobytes: f64) -> Series {
    times.sort_unstable();
    let mut points = vec![(0.0, 0.0)];
    points.extend(times.iter().zip(1..).map(|(time, count)| (time.ns() as f64 / 1e9, f64::from(count) * kilobytes)));
    // Of a step with many blocks at the same moment, only the last point is visible.
    let mut seen: Vec<(f64, f64)> = Vec::with_capacity(points.len());
    for point in points {
        if seen.last().is_some_and(|last| last.0 == point.0) {
            seen.pop();
        }
        seen.push(point);
    }
    Series::simulated(name, seen)
}

fn timeline(writes: &[Written; 3], kilobytes: f64) -> Plot {
    let lines = |(order, written): (&&str, &Written)| {
        let handed = written.blocks.iter().map(|block| block.arrived).collect();
        let done = written.blocks.iter().map(|block| block.done).collect();
        [
            steps(format!("{order}: handed over by write"), handed, kilobytes),
            steps(format!("{order}: on the disk"), done, kilobytes),
        ]
    };
    Plot::steps(
        "timeline",
        "The program is done when its line has reached the top; the disk follows at its own pace",
        Axis::linear("time", "s"),
        Axis::linear("of the file", "KB"),
        ORDERS.iter().zip(&writes[..2]).flat_map(lines).collect(),
    )
}

fn bars(writes: &[Written; 3], compare: bool) -> Plot {
    let mut series = Vec::new();
    let group = |values: Vec<f64>| values.into_iter().enumerate().map(|(x, y)| (x as f64, y)).collect::<Vec<_>>();
    for (index, name) in ["write ends", "I/O ends"].into_iter().enumerate() {
        series.push(Series::paper(name, group(PAPER.iter().map(|row| row[index]).collect())));
        let of: fn(&Written) -> Duration = if index == 0 { |written| written.returned } else { |written| written.done };
        let points = group(seconds(writes, of).take(if compare { 2 } else { 3 }).collect());
        series.push(Series::simulated(name, points));
    }
    Plot::bars(
        "times",
        "When the program can go on, and when the disk is done",
        "scheduling",
        names(if compare { 2 } else { 3 }),
        Axis::linear("time", "s"),
        series,
    )
}

fn starvation_plot(starved: &[Starved; 3], kilobytes: f64) -> Plot {
    let line = |(order, run): (&&str, &Starved)| {
        let mut line = steps((*order).to_owned(), run.written.iter().map(|block| block.done).collect(), kilobytes);
        // To the end, to show that nothing more happens.
        line.points.push((run.time.as_secs_f64(), run.written.len() as f64 * kilobytes));
        line
    };
    Plot::steps(
        "starvation",
        "A file beside programs that read without pause: priority alone starves it",
        Axis::linear("time", "s"),
        Axis::linear("of the file on the disk", "KB"),
        ORDERS.iter().zip(starved).map(line).collect(),
    )
}

fn findings(run: &Run<'_>, writes: &[Written; 3], starved: &[Starved; 3]) -> Vec<Finding> {
    let [without, with, protected] = writes;
    let all = |run: &Starved| run.written.len() as u64 == run.of;
    let mut found = vec![
        headline(run, without, with),
        Finding::new(
            "What it costs the disk (longer seeks) is negligible: the I/O ends no more than 5 % later",
            with.done.as_secs_f64() <= 1.05 * without.done.as_secs_f64(),
        ),
        Finding::new("With a deadline, an endless synchronous load does not stop the file", all(&starved[2])),
    ];
    if run.compares() {
        found.push(Finding::new("Without priority, the program waits for nearly all of its data", {
            without.returned.as_secs_f64() > 0.85 * without.done.as_secs_f64()
        }));
        found.push(Finding::new("With priority, the program goes on in less than half of the time", {
            with.returned * 2 < without.returned && protected.returned * 2 < without.returned
        }));
        found.push(Finding::new("Priority alone lets an endless synchronous load starve the file", !all(&starved[1])));
    }
    found
}

fn headline(run: &Run<'_>, without: &Written, with: &Written) -> Finding {
    let is_old = run.compares();
    let [before, after] = [without, with].map(|written| written.returned.as_secs_f64());
    let (scale, unit, digits) = if is_old { (1.0, "s", 1) } else { (1e3, "ms", 3) };
    let gain = run.in_the_paper(|| format!("{:.1}", PAPER[0][0] / PAPER[1][0]));
    Finding::new(
        format!(
            "With priority, the program goes on after {:.digits$} {unit} instead of {:.digits$}: {:.1} times sooner{gain}",
            after * scale,
            before * scale,
            before / after,
        ),
        // On a device of 2026 the queue is mostly empty.
        if is_old { after < before } else { after <= before },
    )
}

fn notes(writes: &[Written; 3], is_old: bool) -> Vec<String> {
    if !is_old {
        let flash = NVME_2026.source;
        return vec![format!(
            "The device: {flash}. It serves many commands at a time, so there is little to wait for."
        )];
    }
    let later = (writes[1].done.as_secs_f64() / writes[0].done.as_secs_f64() - 1.0) * 100.0;
    vec![
        "Why there are so many synchronous transfers: to the file system, the optical disk is one with a single head and 31 \
         sectors a track, so that newfs makes groups of 16 cylinders of 248 KB each. A file of 1 MB goes through six of \
         them, and the bitmaps of each are read when its first block is taken."
            .into(),
        format!(
            "In the paper the I/O ends 4 % later with priority, here {later:+.0} %: here the drive is idle less often while \
             the program computes, and longer seeks cost less than that gains. With the paper's bound of 128 KB on a \
             transfer (queue.transfer=128), write ends with priority after 2.4 s: the transfer in the drive is what is \
             waited for."
        ),
        "The line with priority has no deadline, as the paper's system had none; with the policy's own (0.5 s) the second \
         table shows what protection costs."
            .into(),
    ]
}
