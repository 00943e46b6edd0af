//! The tables, plots and findings of WS table 3.

use policy::unit::Instant;

use super::super::Run;
use super::Written;
use super::starvation::Starved;
use crate::result::{Finding, Plot, Results, Series, Source, Table};

const ORDERS: [&str; 3] = ["without priority", "with priority", "with priority and deadline"];

pub(super) fn results(run: &Run<'_>, writes: &[Written; 3], starved: &[Starved; 3]) -> Results {
    let kilobytes = run.get("fs.block");
    let later = (writes[1].done.as_secs_f64() / writes[0].done.as_secs_f64() - 1.0) * 100.0;
    Results {
        tables: vec![times(run, writes), waits(run, writes), starvation(run, starved)],
        plots: vec![timeline(run, writes, kilobytes), bars(run, writes), starvation_plot(run, starved, kilobytes)],
        findings: findings(run, writes, starved),
        notes: run.notes(&[("later", format!("{later:+.0}"))]),
    }
}

/// Seconds until write ends and until I/O ends.
fn ends(written: &Written) -> [f64; 2] {
    [written.returned, written.done].map(|end| end.as_secs_f64())
}

fn times(run: &Run<'_>, writes: &[Written; 3]) -> Table {
    let table = run.table("times", writes[..2].iter().map(ends)).of_rows(&ORDERS[..2]);
    Table { digits: if run.compares() { table.digits } else { 5 }, ..table }
}

fn waits(run: &Run<'_>, writes: &[Written; 3]) -> Table {
    let row = |written: &Written| {
        let mean = written.waits.time.as_secs_f64() * 1e3 / written.waits.count.max(1) as f64;
        let [returned, done] = ends(written);
        [returned * 1e3, done * 1e3, written.waits.count as f64, mean]
    };
    run.table("waits", writes.iter().map(row)).of_rows(ORDERS)
}

fn starvation(run: &Run<'_>, starved: &[Starved; 3]) -> Table {
    let row = |run: &Starved| {
        let share = run.written.len() as f64 * 100.0 / run.of.max(1) as f64;
        let reads = run.reads as f64 / run.time.as_secs_f64();
        let [wait, read] = [run.longest_wait(), run.read_time].map(|time| time.as_secs_f64() * 1e3);
        [share, wait, reads, read]
    };
    run.table("starvation", starved.iter().map(row)).of_rows(ORDERS)
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

fn timeline(run: &Run<'_>, writes: &[Written; 3], kilobytes: f64) -> Plot {
    let lines = |(order, written): (&&str, &Written)| {
        let handed = written.blocks.iter().map(|block| block.arrived).collect();
        let done = written.blocks.iter().map(|block| block.done).collect();
        [
            steps(format!("{order}: handed over by write"), handed, kilobytes),
            steps(format!("{order}: on the disk"), done, kilobytes),
        ]
    };
    run.plot("timeline", ORDERS.iter().zip(&writes[..2]).flat_map(lines).collect())
}

fn bars(run: &Run<'_>, writes: &[Written; 3]) -> Plot {
    let count = if run.compares() { 2 } else { 3 };
    let published = run.published("times");
    let of_end = |(end, name): (usize, &str)| {
        [
            Series::bars(name, Source::Paper, published.iter().map(|row| row[end])),
            Series::bars(name, Source::Simulated, writes[..count].iter().map(|written| ends(written)[end])),
        ]
    };
    let series = ["write ends", "I/O ends"].into_iter().enumerate().flat_map(of_end);
    run.plot("times", series.collect()).of_groups(&ORDERS[..count])
}

fn starvation_plot(measured: &Run<'_>, starved: &[Starved; 3], kilobytes: f64) -> Plot {
    let line = |(order, run): (&&str, &Starved)| {
        let mut line = steps((*order).to_owned(), run.written.iter().map(|block| block.done).collect(), kilobytes);
        // To the end, to show that nothing more happens.
        line.points.push((run.time.as_secs_f64(), run.written.len() as f64 * kilobytes));
        line
    };
    measured.plot("starvation", ORDERS.iter().zip(starved).map(line).collect())
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
        found.push(Finding::new("With priority the I/O ends later, as in the paper", with.done > without.done));
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
    let published = run.published("times");
    let gain = run.in_the_paper(|| format!("{:.1}", published[0][0] / published[1][0]));
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
