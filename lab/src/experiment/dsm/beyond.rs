//! Beyond the paper: several writers, each with a consistent buffer cache or with the memory mapped; and many more
//! nodes than a ring has.

use std::rc::Rc;
use std::time::Duration;

use super::super::Run;
use super::cluster::{AccessCosts, Pattern, Sizes, Traffic, share};
use super::machine::Machine;
use super::patterns::{Few, patterns};
use crate::result::{Axis, Cell, Finding, Plot, Results, Series, Table};

/// Writes among a hundred accesses.
const WRITES: [u64; 5] = [0, 1, 10, 50, 100];
/// How the workstations of the paper may use the shared memory.
const WAYS: [&str; 3] = ["no buffer cache", "buffer cache, consistent", "mapped"];
/// Shared pages: 256 KB.
const SHARED_PAGES: u64 = 64;
/// Accesses of each workstation.
const STEPS: u32 = 2000;
const NODES: [usize; 7] = [2, 4, 16, 64, 256, 1024, 4096];
/// Reported measures of each run.
const MEASURES: [(&str, &str, &str); 3] = [
    ("messages", "messages an access", ""),
    ("bytes", "bytes on the network an access", "bytes"),
    ("latency", "time of an access", "us"),
];

fn nodes(run: &Run<'_>) -> Vec<usize> {
    let most = run.get("share.nodes") as usize;
    NODES.into_iter().filter(|nodes| *nodes <= most).collect()
}

pub(super) fn steps(most: f64) -> u64 {
    let sizes = NODES.iter().filter(|nodes| **nodes as f64 <= most).count();
    (WAYS.len() * WRITES.len() + sizes * patterns().len() * 2) as u64
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
    let mut cells = Vec::new();
    for index in 0..WAYS.len() {
        let costs = way(machine, index);
        let of = |writes: u64| {
            let pattern: Rc<dyn Pattern> = Rc::new(Few { pages: SHARED_PAGES, writes });
            let network = machine.own_network();
            let traffic = share((stations, STEPS), &pattern, network, (costs, sizes(machine)), run.seed);
            run.step();
            Cell::simulated(traffic.latency_us() / 1000.0)
        };
        cells.push(WRITES.map(of).to_vec());
    }
    let value = |row: usize, column: usize| cells[row][column].simulated.unwrap_or_default();
    results.findings.extend([
        Finding::new(
            "A buffer cache that the policy keeps consistent pays as long as there is more reading than writing.",
            (0..3).all(|column| value(1, column) < value(0, column)),
        ),
        Finding::new(
            "The more is written, the less the buffer cache saves.",
            (1..WRITES.len()).all(|column| value(1, column) > value(1, column - 1)),
        ),
        Finding::new(
            "Mapped, an access takes less time than through the driver, however much is written.",
            (0..WRITES.len()).all(|column| value(2, column) < value(0, column)),
        ),
    ]);
    let series = |row: usize| {
        Series::simulated(
            WAYS[row].to_owned(),
            WRITES.iter().enumerate().map(|(column, writes)| (*writes as f64, value(row, column))),
        )
    };
    results.plots.push(Plot::lines(
        "writers",
        "Several writers: time of an access by how many of them write",
        Axis::linear("writes", "%"),
        Axis::linear("time of an access", "ms"),
        (0..WAYS.len()).map(series).collect(),
    ));
    results.tables.push(
        Table::new(
            "writers",
            format!("{stations} workstations read and write 256 KB: time of an access to a page, all of it"),
        )
        .unit("ms", 3)
        .rows("way", WAYS.map(str::to_owned).to_vec())
        .columns("writes", WRITES.iter().map(|writes| format!("{writes} %")))
        .cells(cells),
    );
}

fn measure(traffic: &Traffic, measure: usize) -> f64 {
    match measure {
        0 => traffic.messages_an_access(),
        1 => traffic.bytes_an_access(),
        _ => traffic.latency_us(),
    }
}

/// `[network][pattern][size]`: the ring, and lines of the same rate.
type Grid = Vec<Vec<Vec<Traffic>>>;

fn grid(machine: &Machine, run: &Run<'_>) -> Grid {
    let costs = AccessCosts { turnaround: machine.board.turnaround, think: machine.think, ..AccessCosts::default() };
    let of = |has_lines: bool| {
        let by_size = |pattern: &Rc<dyn Pattern>| {
            let at = |nodes: usize| {
                let steps = ((run.get("share.accesses") / nodes as f64) as u32).max(16);
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

const NETWORKS: [(&str, &str); 2] = [("ring", "one ring for all"), ("lines", "a line for each node")];

fn scaling(machine: &Machine, run: &Run<'_>, results: &mut Results) {
    let (grid, sizes) = (grid(machine, run), nodes(run));
    for (index, (name, title, unit)) in MEASURES.into_iter().enumerate() {
        for (network, (short, long)) in NETWORKS.into_iter().enumerate() {
            // On a saturated ring, nodes wait and meanwhile use what they have: traffic is counted without that.
            if index < 2 && network == 0 {
                continue;
            }
            let cell = |pattern: usize, size: usize| Cell::simulated(measure(&grid[network][pattern][size], index));
            results.tables.push(
                Table::new(format!("{name}-{short}"), format!("{title}, by sharing pattern: {long}"))
                    .unit(unit, if index == 1 { 0 } else { 2 })
                    .rows("nodes", sizes.iter().map(ToString::to_string))
                    .columns("pattern", patterns().iter().map(|(name, _)| (*name).to_owned()))
                    .cells(
                        (0..sizes.len()).map(|size| (0..patterns().len()).map(|p| cell(p, size)).collect()).collect(),
                    ),
            );
            results.plots.push(plot(&grid[network], &sizes, index, (short, long)));
        }
    }
    findings(&grid, results);
}

fn plot(patterned: &[Vec<Traffic>], sizes: &[usize], index: usize, (short, long): (&str, &str)) -> Plot {
    let (name, title, unit) = MEASURES[index];
    let points = |of: &[Traffic]| -> Vec<(f64, f64)> {
        // A logarithmic axis has no place for zero.
        let all = sizes.iter().zip(of).map(|(nodes, traffic)| (*nodes as f64, measure(traffic, index)));
        all.filter(|(_, value)| *value > 0.0).collect()
    };
    Plot::lines(
        format!("{name}-{short}"),
        format!("{title}: {long}"),
        Axis::logarithmic("nodes", ""),
        Axis::logarithmic(title, unit),
        patterns().iter().zip(patterned).map(|((name, _), of)| Series::simulated(*name, points(of))).collect(),
    )
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
