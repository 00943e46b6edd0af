//! The tables and findings of the OLTP experiment.

use super::super::Run;
use super::account::{Account, Path};
use super::costs::Costs;
use super::trace::{TYPES, is_frequent};
use super::{DISKS, Measured, OfMix, Published, QUANTA};
use crate::result::{Finding, Results, Table};

pub(super) fn results(run: &Run<'_>, measured: &Measured) -> Results {
    Results {
        tables: vec![
            rates_of(run, ends(measured)),
            gains_of(run, ends(measured)),
            saved_of(run, [&measured.heavy.before, &measured.heavy.alone[0]]),
            shares(run, &measured.heavy.before),
            techniques(run, measured),
            time(run, measured),
            counts(run, measured),
            trace_table(run, measured),
            quanta(run, measured),
            by_disks(run, measured),
        ],
        plots: Vec::new(),
        findings: findings(run, measured),
        notes: run.notes(&[]),
    }
}

/// The tables and findings that rest on published numbers alone.
pub(super) fn published(run: &Run<'_>, Published { heavy, light }: &Published) -> Results {
    let ends = [heavy, light].map(|[before, _, after]| [before, after]);
    let first = [heavy, light].map(|[before, first, _]| [before, first]);
    Results {
        tables: vec![rates_of(run, ends), gains_of(run, ends), saved_of(run, first[0])],
        findings: vec![order_of_mixes(ends), first_technique(first[0])],
        ..Results::default()
    }
}

/// Of each mix, an account before and one after.
type Ends<'a> = [&'a Account; 2];

fn order_of_mixes([heavy, light]: [Ends<'_>; 2]) -> Finding {
    let gain = |[before, after]: Ends<'_>| after.per_hour() / before.per_hour();
    Finding::new("The heavy mix gains more than the light one (5)", gain(heavy) > gain(light))
}

fn first_technique([before, first]: Ends<'_>) -> Finding {
    // Of each second that a transaction took before.
    let ms = 1000.0 - before.per_hour() / first.per_hour() * 1000.0;
    Finding::new(
        "Technique (1) saves what the paper counts for it, 32 ms a second, within half as much again (4 (1))",
        ms < 48.0,
    )
}

fn ends(Measured { heavy, light, .. }: &Measured) -> [Ends<'_>; 2] {
    [heavy, light].map(|mix| [&mix.before, mix.after()])
}

fn rates_of(run: &Run<'_>, ends: [Ends<'_>; 2]) -> Table {
    run.table("rates", ends.map(|ends| ends.map(Account::per_hour)))
}

/// After over before, in percent.
fn gains_of(run: &Run<'_>, ends: [Ends<'_>; 2]) -> Table {
    let published = run.published("rates").iter().map(|rates| [(rates[1] / rates[0] - 1.0) * 100.0]);
    let gain = |[before, after]: Ends<'_>| [(after.per_hour() / before.per_hour() - 1.0) * 100.0];
    let mut table = run.table("gains", ends.map(gain)).beside(published);
    // Its rate after was fitted.
    table.cells[0][0].fitted = run.compares();
    table
}

/// Technique (1): the paper counts what is not saved of the running program's state, and nothing else.
fn saved_of(run: &Run<'_>, [before, first]: Ends<'_>) -> Table {
    let ms = before.per_second(before.own_ns[Path::StateSave as usize]) / 1e6;
    let alone = (first.per_hour() / before.per_hour() - 1.0) * 100.0;
    run.table("saved", [[ms, alone]])
}

fn shares(run: &Run<'_>, before: &Account) -> Table {
    let of = |is_part: fn(Path) -> bool| before.share(true, is_part);
    let shares =
        [of(|path| !path.is_user()), of(Path::is_user), before.trace_share(), of(Path::is_io), before.idle_share()];
    run.table("shares", [shares])
}

fn techniques(run: &Run<'_>, Measured { heavy, light, .. }: &Measured) -> Table {
    let row = |of: &dyn Fn(&OfMix) -> [f64; 2]| [heavy, light].map(of).concat();
    let none = row(&|mix| [mix.before.per_hour(); 2]);
    let each = (0..6).map(|one| row(&|mix| [mix.alone[one].per_hour(), mix.together[one].per_hour()]));
    run.table("techniques", std::iter::once(none).chain(each))
}

/// Milliseconds a transaction of each path, of the trace, and without work.
fn milliseconds(account: &Account) -> Vec<f64> {
    let others = [account.trace_ns.iter().sum(), account.idle_ns];
    account.own_ns.into_iter().chain(others).map(|ns| account.ms_a_transaction(ns)).collect()
}

fn time(run: &Run<'_>, Measured { heavy, light, .. }: &Measured) -> Table {
    let mut columns = [&heavy.before, heavy.after(), &light.before, light.after()].map(milliseconds);
    for column in &mut columns {
        column.push(column.iter().sum());
    }
    let rows = (0..columns[0].len()).map(|row| columns.each_ref().map(|column| column[row]));
    let paths = Path::ALL.iter().map(|(_, name)| *name);
    run.table("time", rows).of_rows(paths.chain(["system trace", "idle", "all"]))
}

fn counts(run: &Run<'_>, Measured { heavy, light, .. }: &Measured) -> Table {
    let row = |account: &Account| {
        let completions = account.rate(Path::IoCompletion);
        let interrupts = account.per_second(account.interrupts);
        [
            completions,
            interrupts,
            completions / interrupts.max(1e-9),
            account.rate(Path::Dispatch),
            account.rate(Path::SubDispatch),
            account.rate(Path::ModeSwitch),
            account.rate(Path::Ask),
            account.per_second(account.records.iter().sum()) / 1000.0,
            account.ms_a_transaction(account.response_ns),
        ]
    };
    let table = run.table("counts", [&heavy.before, heavy.after(), &light.before, light.after()].map(row));
    let published =
        " (the paper, of a load without a name: more than 160 I/O completions, more than 100 sub-dispatches)";
    let published = if run.compares() { published } else { "" };
    Table { title: table.title + published, ..table }
}

/// The trace, path by path. A path has a type for each record that it can leave.
fn trace_table(run: &Run<'_>, Measured { heavy, .. }: &Measured) -> Table {
    let costs = Costs::of(run);
    let leaving = || Path::ALL.iter().filter(|(path, _)| heavy.before.records[*path as usize] > 0);
    let row = |path: Path| {
        let of = |account: &Account| {
            let ns = account.per_second(account.trace_ns[path as usize]) / 1e6;
            [account.per_second(account.records[path as usize]) / 1000.0, ns]
        };
        let ([before, before_ms], [after, after_ms]) = (of(&heavy.before), of(heavy.after()));
        [types(&costs, path) as f64, before, after, before_ms, after_ms]
    };
    let mut rows: Vec<[f64; 5]> = leaving().map(|(path, _)| row(*path)).collect();
    rows.push(std::array::from_fn(|column| rows.iter().map(|row| row[column]).sum()));
    run.table("trace", rows).of_rows(leaving().map(|(_, name)| *name).chain(["all"]))
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
    };
    let quanta = (0..QUANTA.len()).map(|number| quantum_ms(run, number));
    run.table("quanta", measured.quanta.iter().map(row)).of_rows(quanta)
}

/// The heavy mix by number of disks: I/O bound with few, processor bound with many.
fn by_disks(run: &Run<'_>, measured: &Measured) -> Table {
    // Of a transaction's I/O, message, answer and journal go elsewhere.
    let on_disks = 1.0 - 3.0 / run.get("tx.heavy.ios");
    let row = |(disks, [before, after]): (&usize, &[Account; 2])| {
        let each = after.rate(Path::IoCompletion) * on_disks / *disks as f64;
        [before.per_hour(), before.idle_share(), after.per_hour(), after.idle_share(), each]
    };
    run.table("disks", DISKS.iter().zip(&measured.disks).map(row)).of_rows(DISKS)
}

fn headline(run: &Run<'_>, measured: &Measured) -> Finding {
    let published = run.published("rates");
    let mix = |mix: &OfMix, paper: &[f64]| {
        let [before, after] = [mix.before.per_hour(), mix.after().per_hour()];
        let gain = run.in_the_paper(|| format!("{:.1}", paper[1] / paper[0]));
        format!("{after:.0} in place of {before:.0}, {:.1} times as many{gain}", after / before)
    };
    let Measured { heavy, light, .. } = measured;
    Finding::new(
        format!(
            "Transactions served in an hour with all six techniques: of the heavy mix {}; of the light mix {}.",
            mix(heavy, &published[0]),
            mix(light, &published[1]),
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
    if !run.compares() {
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
        order_of_mixes(ends(measured)),
        first_technique([before, &heavy.alone[0]]),
        Finding::new(
            "With one disk it is I/O bound, with the paper's 30 the processor is the bottleneck, before and after (1.2 (5))",
            measured.disks[0].iter().all(|account| account.idle_share() > 50.0)
                && measured.disks[5].iter().all(|account| account.idle_share() < 0.5),
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
