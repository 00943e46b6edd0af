//! The plots of the OLTP experiment.

use super::super::Run;
use super::account::{Account, Path};
use super::report::{PUBLISHED, names, quantum_ms};
use super::{Measured, OfMix};
use crate::result::{Axis, Plot, Series};

pub(super) fn all(run: &Run<'_>, measured: &Measured) -> Vec<Plot> {
    vec![steps_plot(measured), time_plot(&measured.heavy), quanta_plot(run, measured)]
}

fn steps_plot(measured: &Measured) -> Plot {
    let mut groups = names(&["before"]);
    groups.extend((1..=6).map(|last| if last == 1 { "(1)".to_owned() } else { format!("+({last})") }));
    let simulated = |name: &str, mix: &OfMix| {
        let rates = std::iter::once(&mix.before).chain(&mix.together);
        Series::simulated(name, rates.enumerate().map(|(x, account)| (x as f64, account.per_hour())))
    };
    let paper = |name: &str, of: [f64; 2]| Series::paper(name, [(0.0, of[0]), (6.0, of[1])]);
    Plot::bars(
        "techniques",
        "Transactions served as techniques are added",
        "techniques",
        groups,
        Axis::linear("served", "transactions/h"),
        vec![
            paper("heavy", PUBLISHED[0]),
            paper("light", PUBLISHED[1]),
            simulated("heavy", &measured.heavy),
            simulated("light", &measured.light),
        ],
    )
}

/// Parts of the time in the plot, with short names; then the trace.
const PARTS: [(&str, &[Path]); 7] = [
    ("applications", &[Path::Application]),
    ("OLTP", &[Path::Edit]),
    ("calls", &[Path::Ask, Path::SubDispatch, Path::ModeSwitch, Path::OtherCalls]),
    ("requests", &[Path::IoRequest]),
    ("completions", &[Path::IoCompletion, Path::StateSave]),
    ("dispatcher", &[Path::Dispatch, Path::ExitRoutine]),
    ("names", &[Path::Names]),
];

fn time_plot(heavy: &OfMix) -> Plot {
    let accounts = [
        ("before", &heavy.before),
        ("with (1)", &heavy.together[0]),
        ("with (1) and (2)", &heavy.together[1]),
        ("with (1) to (3)", &heavy.together[2]),
        ("with all six", heavy.after()),
    ];
    let points = |account: &Account| {
        let own_ns = PARTS.iter().map(|(_, paths)| paths.iter().map(|path| account.own_ns[*path as usize]).sum());
        let all_ns = own_ns.chain([account.trace_ns.iter().sum()]);
        all_ns.enumerate().map(|(x, ns)| (x as f64, account.ms_a_transaction(ns))).collect::<Vec<_>>()
    };
    Plot::bars(
        "time",
        "Where the processor's time goes: a heavy transaction",
        "part",
        PARTS.iter().map(|(name, _)| (*name).to_owned()).chain(names(&["trace"])),
        Axis::linear("processor time", "ms a transaction"),
        accounts.into_iter().map(|(name, account)| Series::simulated(name, points(account))).collect(),
    )
}

fn quanta_plot(run: &Run<'_>, measured: &Measured) -> Plot {
    let points = measured.quanta.iter().enumerate();
    Plot::lines(
        "quanta",
        "Transactions served by quantum, with all techniques (heavy mix)",
        Axis::logarithmic("quantum", "ms"),
        Axis::linear("served", "transactions/h"),
        vec![Series::simulated("heavy", points.map(|(number, account)| (quantum_ms(run, number), account.per_hour())))],
    )
}
