//! The tables and findings of the OLTP experiment.

use super::super::Run;
use super::account::{Account, Path};
use super::costs::Costs;
use super::trace::{TYPES, is_frequent};
use super::{Measured, OfMix, QUANTA, TECHNIQUES};
use crate::result::{Cell, Finding, Results, Table};

/// Transactions an hour, before and after: of the heavy and of the light mix.
pub(super) const PUBLISHED: [[f64; 2]; 2] = [[10_500.0, 24_000.0], [20_000.0, 40_000.0]];

pub(super) fn results(run: &Run<'_>, measured: &Measured) -> Results {
    Results {
        tables: vec![
            rates(measured),
            shares(&measured.heavy.before),
            techniques(measured),
            time(measured),
            counts(measured, run.compares()),
            trace_table(run, measured),
            quanta(run, measured),
        ],
        plots: Vec::new(),
        findings: findings(run, measured),
        notes: if run.compares() { notes() } else { Vec::new() },
    }
}

pub(super) fn names(of: &[&str]) -> Vec<String> {
    of.iter().map(|name| (*name).to_owned()).collect()
}

fn rates(measured: &Measured) -> Table {
    let row = |published: [f64; 2], mix: &OfMix| {
        let rates = [mix.before.per_hour(), mix.after().per_hour()];
        published.into_iter().zip(rates).map(|(paper, rate)| Cell::of(paper, rate)).collect()
    };
    let mut cells: Vec<Vec<Cell>> = vec![row(PUBLISHED[0], &measured.heavy), row(PUBLISHED[1], &measured.light)];
    cells[0][1].fitted = true;
    Table::new("rates", "Section 5: transactions served, before and with all six techniques")
        .unit("transactions/h", 0)
        .rows("mix", ["heavy", "light"])
        .columns("system", ["before", "after"])
        .cells(cells)
}

fn shares(before: &Account) -> Table {
    let cells = [
        (80.0, before.share(true, |path| !path.is_user())),
        (20.0, before.share(true, Path::is_user)),
        (30.0, before.trace_share()),
        (45.6, before.share(true, Path::is_io)),
        (0.0, before.idle_share()),
    ];
    Table::new("shares", "Section 3: where the processor's time goes before (heavy mix; shares overlap)")
        .unit("% of the time", 1)
        .rows("system", ["before"])
        .columns("part", ["supervisor mode", "user mode", "system trace", "I/O handling", "idle"])
        .cells(vec![cells.map(|(paper, share)| Cell::of(paper, share)).to_vec()])
        .in_points()
}

fn techniques(measured: &Measured) -> Table {
    let mixes = [&measured.heavy, &measured.light];
    let row = |of: &dyn Fn(&OfMix) -> [f64; 2]| mixes.iter().flat_map(|mix| of(mix)).map(Cell::simulated).collect();
    let mut cells: Vec<Vec<Cell>> = vec![row(&|mix| [mix.before.per_hour(); 2])];
    cells.extend((0..6).map(|one| row(&|mix| [mix.alone[one].per_hour(), mix.together[one].per_hour()])));
    let mut rows = vec!["none".to_owned()];
    rows.extend((0..6).map(|one| format!("({}) {}", one + 1, TECHNIQUES[one])));
    Table::new("techniques", "Each technique alone, and with those before it")
        .unit("transactions/h", 0)
        .rows("technique", rows)
        .columns("mix", ["heavy, alone", "heavy, cumulative", "light, alone", "light, cumulative"])
        .cells(cells)
}

/// Milliseconds a transaction of each path, of the trace, and without work.
fn milliseconds(account: &Account) -> Vec<f64> {
    let mut all: Vec<f64> = account.own_ns.iter().map(|ns| account.ms_a_transaction(*ns)).collect();
    all.push(account.ms_a_transaction(account.trace_ns.iter().sum()));
    all.push(account.ms_a_transaction(account.idle_ns));
    all
}

fn parts() -> Vec<String> {
    let paths = Path::ALL.iter().map(|(_, name)| (*name).to_owned());
    paths.chain(names(&["system trace", "idle"])).collect()
}

fn time(measured: &Measured) -> Table {
    let Measured { heavy, light, .. } = measured;
    let mut columns = [&heavy.before, heavy.after(), &light.before, light.after()].map(milliseconds);
    for column in &mut columns {
        column.push(column.iter().sum());
    }
    let rows = [parts(), names(&["all"])].concat();
    let cells =
        (0..rows.len()).map(|row| columns.iter().map(|column| Cell::simulated(column[row])).collect()).collect();
    Table::new(
        "time",
        "Processor time for a transaction, before and with all six (trace records apart from what leaves them)",
    )
    .unit("ms", 2)
    .rows("part", rows)
    .columns("mix", ["heavy, before", "heavy, after", "light, before", "light, after"])
    .cells(cells)
}

fn counts(measured: &Measured, compares: bool) -> Table {
    let row = |account: &Account| {
        let completions = account.rate(Path::IoCompletion);
        let interrupts = account.per_second(account.interrupts);
        let response_ms = account.ms_a_transaction(account.response_ns);
        [
            completions,
            interrupts,
            completions / interrupts.max(1e-9),
            account.rate(Path::Dispatch),
            account.rate(Path::SubDispatch),
            account.rate(Path::ModeSwitch),
            account.rate(Path::Ask),
            account.per_second(account.records.iter().sum()) / 1000.0,
            response_ms,
        ]
        .map(Cell::simulated)
        .to_vec()
    };
    let Measured { heavy, light, .. } = measured;
    let mut cells: Vec<Vec<Cell>> =
        [&heavy.before, heavy.after(), &light.before, light.after()].into_iter().map(row).collect();
    // "More than": the paper gives the least.
    cells[0][0].paper = Some(160.0);
    cells[0][4].paper = Some(100.0);
    Table::new(
        "counts",
        match compares {
            true => "What happens in a second (the paper: more than 160 I/O completions, more than 100 sub-dispatches)",
            false => "What happens in a second",
        }
        .to_owned(),
    )
    .unit("a second; ms", 1)
    .rows("mix", ["heavy, before", "heavy, after", "light, before", "light, after"])
    .columns(
        "event",
        [
            "I/O completions",
            "I/O interrupts",
            "completions an interrupt",
            "dispatches",
            "sub-dispatches",
            "calls for supervisor mode",
            "calls of applications",
            "trace records",
            "response time (ms)",
        ],
    )
    .cells(cells)
}

/// The trace, path by path. A path has a type for each record that it can leave.
fn trace_table(run: &Run<'_>, measured: &Measured) -> Table {
    let costs = Costs::of(run);
    let Measured { heavy, .. } = measured;
    let leaving = || Path::ALL.iter().filter(|(path, _)| heavy.before.records[*path as usize] > 0);
    let row = |path: Path| {
        let of = |account: &Account| {
            let ns = account.per_second(account.trace_ns[path as usize]) / 1e6;
            [account.per_second(account.records[path as usize]) / 1000.0, ns]
        };
        let ([before, before_ms], [after, after_ms]) = (of(&heavy.before), of(heavy.after()));
        [types(&costs, path) as f64, before, after, before_ms, after_ms]
    };
    let mut cells: Vec<[f64; 5]> = leaving().map(|(path, _)| row(*path)).collect();
    cells.push(std::array::from_fn(|column| cells.iter().map(|row| row[column]).sum()));
    Table::new("trace", "The system trace of the heavy mix, by what leaves it (the system has more than 70 types)")
        .unit("a second; ms a second", 1)
        .rows("path", leaving().map(|(_, name)| (*name).to_owned()).chain(names(&["all"])))
        .columns("what", ["types", "records, before", "records, after", "ms, before", "ms, after"])
        .cells(cells.into_iter().map(|row| row.map(Cell::simulated).to_vec()).collect())
}

fn types(costs: &Costs, path: Path) -> u64 {
    let pass = if path == Path::IoRequest { costs.pass_records } else { 0 };
    (costs.records[path as usize] + pass).div_ceil(1000)
}

pub(super) fn quantum_ms(run: &Run<'_>, number: usize) -> f64 {
    run.get("quantum") * QUANTA[number] / 1000.0
}

fn quanta(run: &Run<'_>, measured: &Measured) -> Table {
    let row = |account: &Account| {
        let batch = account.rate(Path::IoCompletion) / account.per_second(account.interrupts).max(1e-9);
        [account.per_hour(), batch, account.ms_a_transaction(account.response_ns), account.idle_share()]
            .map(Cell::simulated)
            .to_vec()
    };
    Table::new("quanta", "Other quanta, with all techniques (heavy mix)")
        .unit("as named", 1)
        .rows("quantum (ms)", (0..QUANTA.len()).map(|number| quantum_ms(run, number).to_string()))
        .columns("measure", ["transactions/h", "completions an interrupt", "response time (ms)", "idle (%)"])
        .cells(measured.quanta.iter().map(row).collect())
}

fn headline(run: &Run<'_>, measured: &Measured) -> Finding {
    let mix = |mix: &OfMix, paper: [f64; 2]| {
        let [before, after] = [mix.before.per_hour(), mix.after().per_hour()];
        let gain = run.in_the_paper(|| format!("{:.1}", paper[1] / paper[0]));
        format!("{after:.0} in place of {before:.0}, {:.1} times as many{gain}", after / before)
    };
    let Measured { heavy, light, .. } = measured;
    Finding::new(
        format!(
            "Transactions served in an hour with all six techniques: of the heavy mix {}; of the light mix {}.",
            mix(heavy, PUBLISHED[0]),
            mix(light, PUBLISHED[1]),
        ),
        [heavy, light].iter().all(|mix| mix.after().per_hour() > mix.before.per_hour()),
    )
}

fn findings(run: &Run<'_>, measured: &Measured) -> Vec<Finding> {
    let Measured { heavy, light, .. } = measured;
    let mut findings = vec![headline(run, measured)];
    findings.push(Finding::new(
        "Every technique serves more transactions of either mix, alone and after the others.",
        [heavy, light].iter().all(|mix| {
            let rates: Vec<f64> = std::iter::once(&mix.before).chain(&mix.together).map(Account::per_hour).collect();
            let alone = mix.alone.iter().all(|account| account.per_hour() > mix.before.per_hour());
            alone && rates.windows(2).all(|pair| pair[1] > pair[0])
        }),
    ));
    if !run.is_papers() {
        return findings;
    }
    let before = &heavy.before;
    let largest = |mix: &OfMix| mix.alone.iter().all(|account| account.per_hour() <= mix.alone[1].per_hour());
    let counts = |account: &Account| {
        [Path::IoRequest, Path::ModeSwitch, Path::Ask, Path::SubDispatch].map(|path| account.times[path as usize])
    };
    let time = |path: Path| before.own_ns[path as usize] + before.trace_ns[path as usize];
    findings.extend([
        Finding::new("The trace gives most of the six (4 (2)).", largest(heavy) && largest(light)),
        Finding::new(
            "Before, the processor is never idle: it is the bottleneck (3).",
            before.idle_share() < 0.5 && light.before.idle_share() < 0.5,
        ),
        Finding::new(
            "Before, there are more than 160 I/O completions and more than 100 sub-dispatches a second (3 (4), (5)).",
            before.rate(Path::IoCompletion) > 160.0 && before.rate(Path::SubDispatch) > 100.0,
        ),
        Finding::new("Calls by number: B >= C > A >= D (3 (2)).", {
            let [b, c, a, d] = counts(before);
            b >= c && c > a && a >= d
        }),
        Finding::new(
            "Calls by time: B > D > A > C (3 (2)).",
            time(Path::IoRequest) > time(Path::SubDispatch)
                && time(Path::SubDispatch) > time(Path::Ask)
                && time(Path::Ask) > time(Path::ModeSwitch),
        ),
        Finding::new(
            "With the quantum, several completions are taken with one interrupt.",
            heavy.after().times[Path::IoCompletion as usize] > 3 * heavy.after().interrupts,
        ),
        Finding::new(
            "Few of the types of records make nearly all of the trace, so they are worth a path of their own (4 (2)).",
            {
                let costs = Costs::of(run);
                let frequent = || Path::ALL.iter().map(|(path, _)| *path).filter(|path| is_frequent(*path));
                let records: u64 = frequent().map(|path| before.records[path as usize]).sum();
                let few = frequent().map(|path| types(&costs, path)).sum::<u64>() * 3 < TYPES;
                few && records * 20 > before.records.iter().sum::<u64>() * 19
            },
        ),
        Finding::new("24 ms are enough: half of it serves less, twice as much hardly more.", {
            let [_, _, half, one, twice, _] = measured.quanta.map(|account| account.per_hour());
            half < one && twice < one * 1.02
        }),
    ]);
    findings
}

fn notes() -> Vec<String> {
    [
        "The sizes of the transactions follow from the paper's rates before (I/O and sub-dispatches a second over \
         transactions an hour): the two rates before check that the stated costs fill a second, and predict no more. \
         The heavy rate after is fitted by how much of a request's time a batch of requests shares, which the paper \
         does not tell; the light rate after is predicted.",
        "The paper's light mix gains less (2.0 times) than its heavy one (2.3 times); here both gain alike, and the light \
         one a little more, since the search for names is the same for any transaction. So its rate after is some 13 % \
         too high. What made the paper's light mix different is not told.",
        "Of the numbers that are chosen, none moves a rate by more than 7 % when it is halved or doubled.",
        "The load test keeps all regions full, so response times are those of a queue: regions over transactions a second.",
        "The paper counts 32 ms a second for the state that is not saved. Most of what completions after a quantum give \
         here is something else that it describes without a number: fewer dispatches, and one pass over the channels \
         for all requests that were stacked.",
    ]
    .map(str::to_owned)
    .to_vec()
}
