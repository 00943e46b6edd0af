//! Beyond the paper: several writers, each with a consistent buffer cache or with the memory mapped; and many more
//! nodes than a ring has.

use std::rc::Rc;
use std::time::Duration;

use super::super::Run;
use super::cluster::{AccessCosts, Pattern, Sizes, Traffic, share};
use super::figure3;
use super::machine::Machine;
use super::patterns::{Few, patterns};
use crate::model::memory_board;
use crate::result::{Finding, Results, Series, Table};

/// Writes among a hundred accesses.
const WRITES: [u64; 5] = [0, 1, 10, 50, 100];
/// How the workstations of the paper may use the shared memory: without a buffer cache, with a consistent one, mapped.
const WAYS: [usize; 3] = [0, 1, 2];
/// A word on the SBus against one on the VME bus: an assumption, since the paper only names it.
const SBUS_FASTER: u32 = 4;
/// Shared pages: 256 KB.
const SHARED_PAGES: u64 = 64;
/// Accesses of each workstation.
const STEPS: u32 = 2000;
const NODES: [usize; 6] = [2, 4, 16, 64, 256, 1024];
/// Accesses of each node, at least: with fewer, most of them would be the first to their page, which cost less.
const STEPS_MIN: u32 = 64;
/// As [`Grid`] has them.
const RING: usize = 0;
const LINES: usize = 1;
type Measure = fn(&Traffic) -> f64;
/// Measures that are reported. On a saturated ring, nodes wait and meanwhile use what they have: its traffic does not count.
const MEASURES: [(&str, usize, Measure); 4] = [
    ("messages-lines", LINES, Traffic::messages_an_access),
    ("bytes-lines", LINES, Traffic::bytes_an_access),
    ("latency-ring", RING, Traffic::latency_us),
    ("latency-lines", LINES, Traffic::latency_us),
];

fn nodes(run: &Run<'_>) -> Vec<usize> {
    let most = run.get("share.nodes") as usize;
    NODES.into_iter().filter(|nodes| *nodes <= most).collect()
}

pub(super) fn steps(most: f64) -> u64 {
    let sizes = NODES.iter().filter(|nodes| **nodes as f64 <= most).count();
    (WAYS.len() * WRITES.len() + sizes * patterns().len() * 2) as u64
}

/// The file read from remote memory: by the paper's board, one page after another, a page requested while the last one
/// still comes, and over a faster bus.
pub(super) fn buses(machine: &Machine, nfs: Duration, run: &Run<'_>, results: &mut Results) {
    let boards = [
        machine.board,
        memory_board::Config { commands: 1, ..machine.board },
        memory_board::Config { overlaps: true, ..machine.board },
        memory_board::Config { word: machine.board.word / SBUS_FASTER, ..machine.board },
    ];
    let shares = boards.map(|board| {
        let mut with = *machine;
        with.board = board;
        figure3::shared(&with, true)
    });
    let [together, alone, overlapped, faster] = shares.map(|shares| shares.total().as_secs_f64());
    let row = |shares: figure3::Shares| {
        let ([kernel, bus, network], total) = (shares.percent(), shares.total().as_secs_f64());
        [total * 1e3, kernel, bus, network, nfs.as_secs_f64() / total]
    };
    results.tables.push(run.table("buses", shares.map(row)));
    results.findings.extend([
        Finding::new(
            format!(
                "Page commands put into the FIFO at once save waits: a file is read {:.0} % sooner than with one after another",
                (alone / together - 1.0) * 100.0
            ),
            alone > 1.02 * together && overlapped <= together,
        ),
        Finding::new(
            format!(
                "A faster bus makes it faster, as the paper proposes, and leaves the kernel as the bottleneck: {:.0} % of \
                 the time with a quarter of VME's time a word",
                shares[3].percent()[0]
            ),
            faster < together && shares[3].percent()[0] > 50.0,
        ),
    ]);
}

/// Adds tables, plots and findings.
pub(super) fn add(machine: &Machine, run: &Run<'_>, results: &mut Results) {
    writers(machine, run, results);
    scaling(machine, run, results);
}

fn sizes(machine: &Machine) -> Sizes {
    Sizes { message: machine.board.message_bytes, page: machine.board.page_bytes }
}

/// Cost of reading or writing a whole page, for each way.
fn way(machine: &Machine, way: usize) -> AccessCosts {
    let page = machine.board.page_bytes;
    let bus = machine.board.copy(page);
    let (hit, miss, give_up) = match way {
        // Each access goes through the driver to the board.
        0 => (machine.kernel(page) + bus, machine.kernel(page) + bus, Duration::ZERO),
        // Only a page that has just arrived is fetched from the board, and only a written one is put there.
        1 => (machine.kernel_call + machine.copy(page), machine.kernel(page) + bus, bus),
        // The process reads and writes the board's memory itself.
        _ => (bus, machine.kernel_fault + bus, Duration::ZERO),
    };
    AccessCosts { hit, miss, give_up, turnaround: machine.board.turnaround, think: machine.think }
}

fn writers(machine: &Machine, run: &Run<'_>, results: &mut Results) {
    let stations = (run.get("ring.stations") as usize).max(2);
    let times = WAYS.map(|index| {
        let costs = way(machine, index);
        WRITES.map(|writes| {
            let pattern: Rc<dyn Pattern> = Rc::new(Few { pages: SHARED_PAGES, writes });
            let network = machine.own_network();
            let traffic = share((stations, STEPS), &pattern, network, (costs, sizes(machine)), run.seed);
            run.step();
            traffic.latency_us() / 1000.0
        })
    });
    results.findings.extend([
        Finding::new(
            "A buffer cache that the policy keeps consistent pays as long as there is more reading than writing.",
            (0..3).all(|column| times[1][column] < times[0][column]),
        ),
        Finding::new(
            "The more is written, the less the buffer cache saves.",
            (1..WRITES.len()).all(|column| times[1][column] > times[1][column - 1]),
        ),
        Finding::new(
            "Mapped, an access takes less time than through the driver, however much is written.",
            (0..WRITES.len()).all(|column| times[2][column] < times[0][column]),
        ),
    ]);
    let table = run.table("writers", times).of_columns(WRITES.map(|writes| format!("{writes} %")));
    let points = |times: [f64; WRITES.len()]| WRITES.map(|writes| writes as f64).into_iter().zip(times);
    let series = table.rows.iter().zip(times).map(|(way, times)| Series::simulated(way, points(times)));
    results.plots.push(run.plot("writers", series.collect()));
    let title = table.title.replace("{stations}", &stations.to_string());
    results.tables.push(Table { title, ..table });
}

/// `[network][pattern][size]`: the ring, and lines of the same rate.
type Grid = Vec<Vec<Vec<Traffic>>>;

fn grid(machine: &Machine, run: &Run<'_>) -> Grid {
    let costs = AccessCosts { turnaround: machine.board.turnaround, think: machine.think, ..AccessCosts::default() };
    let of = |has_lines: bool| {
        let by_size = |pattern: &Rc<dyn Pattern>| {
            let at = |nodes: usize| {
                let steps = ((run.get("share.accesses") / nodes as f64) as u32).max(STEPS_MIN);
                let network = machine.network(nodes, has_lines);
                let traffic = share((nodes, steps), pattern, network, (costs, sizes(machine)), run.seed);
                run.step();
                traffic
            };
            nodes(run).into_iter().map(at).collect()
        };
        patterns().iter().map(|(_, pattern)| by_size(pattern)).collect()
    };
    vec![of(false), of(true)]
}

fn scaling(machine: &Machine, run: &Run<'_>, results: &mut Results) {
    let (grid, sizes, patterns) = (grid(machine, run), nodes(run), patterns());
    for (name, network, measure) in MEASURES {
        let patterned = &grid[network];
        let rows = (0..sizes.len()).map(|size| patterned.iter().map(move |of| measure(&of[size])));
        results.tables.push(run.table(name, rows).of_rows(&sizes).of_columns(patterns.iter().map(|(name, _)| name)));
        // A logarithmic axis has no place for zero.
        let points = |of: &[Traffic]| -> Vec<(f64, f64)> {
            let all = sizes.iter().zip(of).map(|(nodes, traffic)| (*nodes as f64, measure(traffic)));
            all.filter(|(_, value)| *value > 0.0).collect()
        };
        let series = patterns.iter().zip(patterned).map(|((name, _), of)| Series::simulated(*name, points(of)));
        results.plots.push(run.plot(name, series.collect()));
    }
    findings(&grid, results);
}

fn findings(grid: &Grid, results: &mut Results) {
    let last = grid[0][0].len() - 1;
    if last < 4 {
        return;
    }
    let messages = |pattern: usize, size: usize| grid[1][pattern][size].messages_an_access();
    let latency = |network: usize, pattern: usize, size: usize| grid[network][pattern][size].latency_us();
    // From 16 nodes on: with fewer, a node is often the home itself.
    results.findings.extend([
        Finding::new(
            format!(
                "What few nodes share costs no more messages among many: producer/consumer {:.1} an access among 16 nodes, \
                 {:.1} among the most; false sharing {:.1} and {:.1}; random {:.1} and {:.1}.",
                messages(2, 2),
                messages(2, last),
                messages(3, 2),
                messages(3, last),
                messages(4, 2),
                messages(4, last),
            ),
            (2..5).all(|pattern| messages(pattern, last) < 1.5 * messages(pattern, 2)),
        ),
        Finding::new(
            "No access costs more than a dozen messages on the mean, whatever the pattern: each invalidation was a read before.",
            (0..5).all(|pattern| (0..=last).all(|size| messages(pattern, size) < 12.0)),
        ),
        Finding::new(
            format!(
                "One ring is not enough for thousands: an access at random takes {:.0} times as long as with lines.",
                latency(0, 4, last) / latency(1, 4, last)
            ),
            latency(0, 4, last) > 10.0 * latency(1, 4, last),
        ),
        Finding::new(
            format!(
                "With lines, migratory pages come as fast among the most nodes ({:.0} us) as among 16 ({:.0} us); a page that \
                 all read and some write waits for its one home ({:.0} and {:.0} us).",
                latency(1, 1, last),
                latency(1, 1, 2),
                latency(1, 0, last),
                latency(1, 0, 2)
            ),
            latency(1, 1, last) < 1.5 * latency(1, 1, 2) && latency(1, 0, last) > 2.0 * latency(1, 0, 2),
        ),
    ]);
}
