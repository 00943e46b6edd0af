//! MP table 2 and figure 5: which processor should take a disk's interrupt.

use policy::delivery::Method;
use policy::unit::ProcessorId;

use super::Run;
use super::mp_table1::explained;
use super::top1::{self, MASTER, Setup};
use crate::result::{Finding, Results, Source, Table};

const WAIT: u32 = 100;

/// Names in the paper.
const METHODS: [(&str, Method); 6] = [
    ("2a-1", Method::Fixed(MASTER)),
    ("2a-2", Method::Fixed(ProcessorId(1))),
    ("2b-1", Method::Initiator),
    ("2b-2", Method::Idle),
    ("2b-3", Method::Busiest),
    ("2b-4", Method::All),
];
/// Columns whose mean orders the methods: 4 to 9 processes.
const COMPARED: std::ops::Range<usize> = 3..9;

pub(super) const STEPS: u64 = (METHODS.len() * top1::PROCESSES.len()) as u64;

pub(super) fn simulate(run: &Run<'_>) -> Results {
    let table = table(run);
    let plots = vec![run.plot("figure5", table.lines(str::to_owned))];
    let mut results = Results { plots, findings: vec![headline(run, &table)], ..Results::default() };
    if run.compares() {
        results.findings.extend(findings(&table));
        results.notes = explained(&table).into_iter().chain(run.notes(&[])).collect();
    }
    results.tables.push(table);
    results
}

fn table(run: &Run<'_>) -> Table {
    let [disk, ..] = top1::setup(run.parameters);
    let disk = Setup { wait: top1::wait(run.parameters, WAIT), ..disk };
    let runs = run.get("run.runs") as u32;
    let counts = top1::process_counts(disk.processors);
    let times = |method: Method| -> Vec<f64> {
        let time = |processes: &u32| {
            run.step();
            top1::loop_ms(&Setup { delivery: method, processes: *processes, ..disk }, run.seed, runs)
        };
        counts.iter().map(time).collect()
    };
    let loops = METHODS.map(|(_, method)| times(method));
    let gains = loops.iter().map(|times| loops[0].iter().zip(times).map(|(first, time)| (first / time - 1.0) * 100.0));
    run.table("delivery", gains).of_rows(METHODS.map(|(name, _)| name)).of_columns(&counts)
}

fn mean(table: &Table, row: usize, source: Source) -> f64 {
    let gains = table.cells[row][COMPARED].iter().filter_map(|cell| cell.from(source));
    gains.sum::<f64>() / COMPARED.len() as f64
}

fn headline(run: &Run<'_>, table: &Table) -> Finding {
    let cost = |row: usize| {
        let of = |source| format!("{:.1} %", 0.0 - mean(table, row, source));
        of(Source::Simulated) + &run.in_the_paper(|| of(Source::Paper))
    };
    let [all, idle] = [5, 3].map(|row| mean(table, row, Source::Simulated));
    Finding::new(
        format!(
            "Over {} to {} processes, interrupts of all processors cost {}, of the busiest one {}, of an idle one {} of the \
             reads that interrupts of the master leave",
            table.columns[COMPARED.start],
            table.columns[COMPARED.end - 1],
            cost(5),
            cost(4),
            cost(3),
        ),
        all < idle + 0.1,
    )
}

fn findings(table: &Table) -> Vec<Finding> {
    let [first, second, initiator, idle, busiest, all] = std::array::from_fn(|row| mean(table, row, Source::Simulated));
    let worst = table.cells.iter().flatten().filter_map(|cell| cell.simulated).fold(0.0, f64::min);
    let beyond =
        |row: usize| table.cells[row][9..].iter().all(|cell| cell.simulated.is_some_and(|gain| gain.abs() < 1.0));
    let close = (initiator - first).abs().max((idle - first).abs());
    vec![
        Finding::new("2b-4 < 2b-3 < 2a-2 < 2a-1, by their means over 4 to 9 processes", {
            all < busiest && busiest < second && second < first
        }),
        Finding::new("2b-1 and 2b-2 are about as good as 2a-1, as the master is kept idle", close < 0.5),
        Finding::new("Even interrupts of all processors cost only a few percent", (-5.0..-1.0).contains(&worst)),
        Finding::new(
            "With more processes than processors nobody is idle, and all but 2b-4 are alike",
            (1..5).all(beyond),
        ),
    ]
}
