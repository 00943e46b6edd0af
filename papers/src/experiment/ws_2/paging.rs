//! (f) Side effect (c) of the paper: memory that the cache has, programs must page for.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use crate::drive::Access;
use policy::unit::{ByteRange, Class, Instant};

use super::host::{Process, Setup};
use super::machine::Hardware;
use crate::experiment::Run;
use crate::result::{Finding, Results, Series};

/// Parts of memory that programs have or not: a page of 4 KB of 64 MB.
const PAGES: u64 = 16_384;
/// Shares of memory of fixed caches, percent.
const FIXED: [u32; 4] = [10, 30, 50, 70];
const DYNAMIC: [(&str, Setup); 2] =
    [("dynamic, LRU (the paper)", Setup::PAPER), ("dynamic, S3-FIFO (Awase)", Setup::AWASE)];

pub(super) const STEPS: u64 = (FIXED.len() + DYNAMIC.len()) as u64;

#[derive(Clone, Copy)]
struct Load {
    /// The program's working set, pages.
    pages: u64,
    /// From one touch of a page to the next.
    work: Duration,
    /// Of the touches, those that write.
    dirty_percent: u64,
    /// A set of files, blocks.
    blocks: u64,
    /// Until caches and programs have what they get, and as long again to measure.
    phase: Duration,
}

/// What happened so far.
#[derive(Clone, Copy, Default)]
struct Counts {
    touches: u64,
    faults: u64,
    blocks: u64,
}

/// The program's pages, in order of their last touch.
#[derive(Default)]
struct Pages {
    /// Of a resident page: its last touch, and whether it was written since it came.
    resident: BTreeMap<u64, (u64, bool)>,
    by_touch: BTreeMap<u64, u64>,
    /// Pages that have been somewhere: a new one is cleared, not read.
    known: Vec<bool>,
    touches: u64,
}

impl Pages {
    /// Touches a resident page; false if it is not.
    fn touch(&mut self, page: u64, writes: bool) -> bool {
        let Some((last, dirty)) = self.resident.get_mut(&page) else { return false };
        self.by_touch.remove(last);
        self.touches += 1;
        (*last, *dirty) = (self.touches, *dirty || writes);
        self.by_touch.insert(self.touches, page);
        true
    }

    /// The page that was touched least recently leaves; and whether it must be written.
    fn evict(&mut self) -> Option<(u64, bool)> {
        let (_, page) = self.by_touch.pop_first()?;
        self.resident.remove(&page).map(|(_, dirty)| (page, dirty))
    }

    fn add(&mut self, page: u64, writes: bool) {
        self.touches += 1;
        self.resident.insert(page, (self.touches, writes));
        self.by_touch.insert(self.touches, page);
    }
}

/// Touches pages of its set, half of the touches in a quarter of it, until `end`; then it gives its memory back.
async fn program(process: Process, load: Load, end: Instant, counts: Rc<RefCell<Counts>>) {
    let mut pages = Pages { known: vec![false; load.pages as usize], ..Pages::default() };
    let bytes = process.memory.total() / PAGES;
    // Behind all files.
    let swap = process.hardware.disk_blocks() / 4 * 3 * process.hardware.buffer;
    let place = |page: u64| ByteRange::new(swap + page * bytes, bytes);
    while process.time.now() < end {
        let near = process.time.below(2) == 0;
        let page = process.time.below(if near { (load.pages / 4).max(1) } else { load.pages });
        let writes = process.time.below(100) < load.dirty_percent;
        if !pages.touch(page, writes) {
            if !process.memory.take(bytes)
                && let Some((old, true)) = pages.evict()
            {
                process.disk.submit(Access::Write, place(old), Class::Asynchronous);
            }
            if std::mem::replace(&mut pages.known[page as usize], true) {
                counts.borrow_mut().faults += 1;
                process.disk.read(place(page), Class::Synchronous).await;
            } else {
                process.time.sleep(process.hardware.clear(bytes)).await;
            }
            pages.add(page, writes);
        }
        counts.borrow_mut().touches += 1;
        process.time.sleep(load.work).await;
    }
    process.memory.give_back(pages.resident.len() as u64 * bytes);
}

/// Reads the files over and over.
async fn files(process: Process, blocks: u64, counts: Rc<RefCell<Counts>>) {
    for index in (0..blocks).cycle() {
        let next = (index + 1) % blocks;
        let place = |index| process.hardware.place(0, index);
        process.buffers.read_ahead(place(index), Some(place(next))).await;
        process.time.sleep(process.hardware.call()).await;
        counts.borrow_mut().blocks += 1;
    }
}

/// Touches and faults of the program and blocks of files a second, beside each other; blocks a second after the program.
fn simulate(hardware: &Hardware, setup: Setup, load: Load) -> [f64; 4] {
    let host = hardware.start(setup);
    let counts = Rc::new(RefCell::new(Counts::default()));
    let at = |phases: u32| Instant::ZERO + load.phase * phases;
    host.spawn(|process| files(process, load.blocks, Rc::clone(&counts)));
    host.spawn(|process| program(process, load, at(3), Rc::clone(&counts)));
    let mut seen = Vec::new();
    for phases in [2, 3, 4, 5] {
        host.run.run_until(at(phases));
        seen.push(*counts.borrow());
    }
    let rate =
        |of: fn(&Counts) -> u64, from: usize| (of(&seen[from + 1]) - of(&seen[from])) as f64 / load.phase.as_secs_f64();
    [rate(|c| c.touches, 0), rate(|c| c.faults, 0), rate(|c| c.blocks, 0), rate(|c| c.blocks, 2)]
}

/// Adds the table, the plot and the findings of (f).
pub(super) fn run(run: &Run<'_>, hardware: &Hardware, results: &mut Results) {
    let part = |name: &str| run.get(name) / 100.0;
    let load = Load {
        pages: ((PAGES as f64 * part("paging.set")) as u64).max(4),
        work: Duration::from_secs_f64(run.get("paging.work") / 1e3),
        dirty_percent: run.get("paging.dirty") as u64,
        blocks: ((hardware.buffers() as f64 * part("paging.files")) as u64).max(2),
        phase: Duration::from_secs_f64(run.get("paging.time")),
    };
    let kilobytes = hardware.buffer as f64 / 1024.0;
    let mut rows = Vec::new();
    let fixed = FIXED.map(|percent| {
        let mut with = *hardware;
        with.fixed = f64::from(percent) / 100.0;
        (with, Setup::BSD)
    });
    for (hardware, setup) in fixed.into_iter().chain(DYNAMIC.map(|(_, setup)| (*hardware, setup))) {
        let [touches, faults, beside, after] = simulate(&hardware, setup, load);
        rows.push([touches, faults, beside * kilobytes, after * kilobytes]);
        run.step();
    }
    let names = FIXED.map(|percent| format!("fixed, {percent} % of memory")).into_iter();
    let names = names.chain(DYNAMIC.map(|(name, _)| name.to_owned()));
    results.tables.push(run.table("paging", rows.iter().copied()).of_rows(names));
    let line = |name: &str, rows: &[[f64; 4]]| {
        Series::simulated(name, FIXED.iter().zip(rows).map(|(x, row)| (f64::from(*x), row[0])))
    };
    let [paper, awase] = [rows[4], rows[5]];
    results.plots.push(run.plot(
        "paging",
        vec![line("fixed cache", &rows[..4]), line(DYNAMIC[0].0, &[paper; 4]), line(DYNAMIC[1].0, &[awase; 4])],
    ));
    if !run.compares() {
        return;
    }
    results.findings.extend([
        Finding::new(
            format!(
                "Programs page for what a fixed cache has: {:.0} pages touched a second with a tenth of memory, {:.0} with half",
                rows[0][0], rows[2][0]
            ),
            rows[2][0] < 0.5 * rows[0][0],
        ),
        Finding::new(
            format!("Reallocated by load, programs have what they need: {:.0} pages touched a second", awase[0]),
            [paper, awase].iter().all(|row| row[0] > 0.9 * rows[0][0]),
        ),
        Finding::new(
            format!(
                "And files have what programs leave: read at {:.0} KB/s after the program's end, at {:.0} with a fixed half",
                awase[3], rows[2][3]
            ),
            [paper, awase].iter().all(|row| row[3] > 0.9 * rows[2][3]),
        ),
    ]);
}
