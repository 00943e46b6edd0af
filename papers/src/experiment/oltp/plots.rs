//! The plots of the OLTP experiment.

use super::super::Run;
use super::account::{Account, Path};
use super::report::quantum_ms;
use super::{DISKS, Measured, OfMix};
use crate::result::{Plot, Series, Source};

pub(super) fn all(run: &Run<'_>, measured: &Measured) -> Vec<Plot> {
    vec![
        steps_plot(run, measured),
        time_plot(run, &measured.heavy),
        quanta_plot(run, measured),
        disks_plot(run, measured),
    ]
}

fn steps_plot(run: &Run<'_>, measured: &Measured) -> Plot {
    let simulated = |name: &str, mix: &OfMix| {
        let rates = std::iter::once(&mix.before).chain(&mix.together);
        Series::bars(name, Source::Simulated, rates.map(Account::per_hour))
    };
    let published = ["heavy", "light"].into_iter().zip(run.published("rates"));
    let paper = published.map(|(name, of)| Series::paper(name, [(0.0, of[0]), (6.0, of[1])]));
    let simulated = [simulated("heavy", &measured.heavy), simulated("light", &measured.light)];
    run.plot("techniques", paper.chain(simulated).collect())
}

/// Parts of the time in the plot; then the trace.
const PARTS: [&[Path]; 7] = [
    &[Path::Application],
    &[Path::Edit],
    &[Path::Ask, Path::SubDispatch, Path::ModeSwitch, Path::OtherCalls],
    &[Path::IoRequest],
    &[Path::IoCompletion, Path::StateSave],
    &[Path::Dispatch, Path::ExitRoutine],
    &[Path::Names],
];

fn time_plot(run: &Run<'_>, heavy: &OfMix) -> Plot {
    let accounts = [
        ("before", &heavy.before),
        ("with (1)", &heavy.together[0]),
        ("with (1) and (2)", &heavy.together[1]),
        ("with (1) to (3)", &heavy.together[2]),
        ("with all six", heavy.after()),
    ];
    let times = |account: &Account| {
        let own_ns = PARTS.iter().map(|paths| paths.iter().map(|path| account.own_ns[*path as usize]).sum());
        let all_ns = own_ns.chain([account.trace_ns.iter().sum()]);
        all_ns.map(|ns| account.ms_a_transaction(ns)).collect::<Vec<_>>()
    };
    let bars = accounts.map(|(name, account)| Series::bars(name, Source::Simulated, times(account)));
    run.plot("time", bars.to_vec())
}

fn quanta_plot(run: &Run<'_>, measured: &Measured) -> Plot {
    let rates = measured.quanta.iter().enumerate();
    let points = rates.map(|(number, account)| (quantum_ms(run, number), account.per_hour()));
    run.plot("quanta", vec![Series::simulated("heavy", points)])
}

fn disks_plot(run: &Run<'_>, measured: &Measured) -> Plot {
    let line = |name: &str, of: usize| {
        let rates = measured.disks.iter().map(|pair| pair[of].per_hour());
        Series::simulated(name, DISKS.map(|disks| disks as f64).into_iter().zip(rates))
    };
    run.plot("disks", vec![line("before", 0), line("after", 1)])
}
