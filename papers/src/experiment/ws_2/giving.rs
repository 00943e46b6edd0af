//! (d) Programs need memory for a while: how fast is it returned?

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use crate::model::buffers::Write;

use super::host::{Process, Setup};
use super::machine::Hardware;
use crate::experiment::Run;
use crate::result::{Finding, Plot, Results, Series};

/// Programs take memory in units of this fraction of it: a page of 4 KB of 64 MB.
const PAGES: u64 = 16_384;
/// Timeout after which a program pages instead of waiting.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Resolution of measured waits.
const GLANCE: Duration = Duration::from_micros(500);
const NOTED_EVERY: Duration = Duration::from_millis(200);
/// Observed time after the programs' end.
const AFTER: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    Reading,
    /// And then a file of this many parts of memory is written.
    Writing(u64),
}

const CASES: [(&str, Setup, Before); 5] = [
    ("fixed (4.3BSD)", Setup::BSD, Before::Reading),
    ("dynamic (Awase)", Setup::AWASE, Before::Reading),
    ("dynamic, a fifth of memory just written", Setup::AWASE, Before::Writing(5)),
    ("dynamic, half of memory just written", Setup::AWASE, Before::Writing(2)),
    (
        "the same, blocks end to end and merged (WS-3)",
        Setup { priority: true, merge: true, ..Setup::AWASE },
        Before::Writing(2),
    ),
];

#[derive(Clone, Default)]
struct Given {
    /// Free before the programs start, percent of memory: unused.
    idle_percent: f64,
    pages_waited: u64,
    longest_s: f64,
    waited_s: f64,
    /// Never obtained, percent of memory.
    missing_percent: f64,
    began_s: f64,
    cache: Vec<(f64, f64)>,
    programs: Vec<(f64, f64)>,
}

async fn note(process: Process, given: Rc<RefCell<Given>>) {
    let percent = |bytes: u64| 100.0 * bytes as f64 / process.memory.total() as f64;
    loop {
        let now_s = process.time.now().ns() as f64 / 1e9;
        let (cache, programs) = (percent(process.memory.cache()), percent(process.memory.programs()));
        {
            let mut given = given.borrow_mut();
            given.cache.push((now_s, cache));
            given.programs.push((now_s, programs));
        }
        process.time.sleep(NOTED_EVERY).await;
    }
}

/// Fills the cache, takes memory, holds it, returns it. Returns the time when it began to take.
async fn demand(process: Process, before: Before, demand: u64, hold: Duration, given: Rc<RefCell<Given>>) {
    let total = process.memory.total();
    process.read_file(0, process.hardware.buffers()).await;
    if let Before::Writing(part) = before {
        let start = process.hardware.disk_blocks() / 2;
        process.write_file(start, process.hardware.buffers() / part, Write::Delayed).await;
    }
    {
        let mut given = given.borrow_mut();
        given.idle_percent = 100.0 * process.memory.free() as f64 / total as f64;
        given.began_s = process.time.now().ns() as f64 / 1e9;
    }
    let taken = take(&process, demand, &given).await;
    process.time.sleep(hold).await;
    process.memory.give_back(taken);
    process.time.sleep(AFTER).await;
}

async fn take(process: &Process, demand: u64, given: &RefCell<Given>) -> u64 {
    let total = process.memory.total();
    let page = total / PAGES;
    let mut taken = 0;
    while taken < demand {
        let start = process.time.now();
        while !process.memory.take(page) {
            if process.time.now() - start >= TIMEOUT {
                given.borrow_mut().missing_percent = 100.0 * (demand - taken) as f64 / total as f64;
                return taken;
            }
            process.time.sleep(GLANCE).await;
        }
        taken += page;
        let waited_s = process.since(start);
        if waited_s > 0.0 {
            let mut given = given.borrow_mut();
            given.pages_waited += 1;
            given.waited_s += waited_s;
            given.longest_s = given.longest_s.max(waited_s);
        }
        // A page is cleared when it is first touched.
        process.time.sleep(process.hardware.clear(page)).await;
    }
    taken
}

fn simulate(hardware: &Hardware, setup: Setup, before: Before, share: f64, hold: Duration) -> Given {
    let host = hardware.start(setup);
    let given = Rc::new(RefCell::new(Given::default()));
    host.spawn(|process| note(process, Rc::clone(&given)));
    let bytes = (hardware.memory as f64 * share) as u64;
    host.complete(|process| demand(process, before, bytes, hold, Rc::clone(&given)));
    drop(host);
    given.take()
}

/// Adds the tables, plots and findings of (d).
pub(super) fn run(run: &Run<'_>, hardware: &Hardware, results: &mut Results) {
    let hold = Duration::from_secs_f64(run.get("giving.hold"));
    let share = run.get("giving.demand") / 100.0;
    let mut all = Vec::new();
    for (_, setup, before) in CASES {
        all.push(simulate(hardware, setup, before, share, hold));
        run.step();
    }
    let row = |given: &Given| {
        [
            given.idle_percent,
            given.pages_waited as f64,
            given.longest_s * 1e3,
            given.waited_s * 1e3,
            given.missing_percent,
        ]
    };
    results.tables.push(run.table("giving", all.iter().map(row)).of_rows(CASES.map(|(name, ..)| name)));
    results.plots.push(plot(run, &all));
    results.findings.push(Finding::new(
        format!(
            "Memory is given back within a second: {} pages had to be waited for, {:.0} ms together",
            all[1].pages_waited,
            all[1].waited_s * 1e3
        ),
        all[1].waited_s < 1.0 && all[1].missing_percent == 0.0,
    ));
    results.findings.push(Finding::new(
        format!(
            "Before the programs come, {:.0} % of memory is of no use with the fixed cache, {:.0} % with the dynamic one",
            all[0].idle_percent, all[1].idle_percent
        ),
        all[0].idle_percent > 4.0 * all[1].idle_percent,
    ));
    results.findings.push(Finding::new(
        format!(
            "A fifth of memory just written and not yet on the disk: programs wait for {:.0} ms together",
            all[2].waited_s * 1e3
        ),
        all[2].waited_s < 1.0 && all[2].missing_percent == 0.0,
    ));
}

fn plot(run: &Run<'_>, all: &[Given]) -> Plot {
    // From five seconds before the programs start.
    let shifted = |points: &[(f64, f64)], given: &Given| {
        points.iter().map(|(at, value)| (at - given.began_s, *value)).filter(|(at, _)| *at >= -5.0).collect::<Vec<_>>()
    };
    run.plot(
        "giving",
        vec![
            Series::simulated("kernel and programs", shifted(&all[1].programs, &all[1])),
            Series::simulated("dynamic cache", shifted(&all[1].cache, &all[1])),
            Series::simulated("dynamic cache, half of memory just written", shifted(&all[3].cache, &all[3])),
            Series::simulated("fixed cache", shifted(&all[0].cache, &all[0])),
        ],
    )
}
