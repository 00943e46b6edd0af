//! `awase-lab list`, `show` and `run`: lists, describes and runs the papers' experiments, and writes the report.

use std::fs;
use std::io::{self, IsTerminal};
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::{self, available_parallelism};
use std::time::Duration;

use anyhow::{Context, bail};
use awase::config::{Place, Problem, Problems, nearest};
use awase::tell::print;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use papers::report::terminal::Terminal;
use papers::report::{Heading, files};
use papers::{
    Experiment, Failed, Order, Outcome, Parameters, Progress, Results, Setting, experiments, named, order, sensitivity,
};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::bench::programs;
use crate::cli::{Machine, RunArguments, Side};
use crate::{Effort, Host, LocalRun, local};

/// Columns of a line. Wider tables continue below.
const WIDTH: usize = 100;

/// Interval between updates of a measurement's progress.
const BAR_PERIOD: Duration = Duration::from_millis(100);

/// A process ended by a signal exits with this plus its number, as shells report it.
const EXIT_SIGNAL: i32 = 128;

const ALL: &str = "all";

/// # Errors
/// When standard output cannot be written.
pub fn list() -> anyhow::Result<()> {
    print(terminal().list(experiments()).as_bytes())
}

/// Prints the description of an experiment and its parameters.
///
/// # Errors
/// [`Problems`] when there is no such experiment.
pub fn show(name: &str) -> anyhow::Result<()> {
    print(terminal().description(experiment("lab show", name)?).as_bytes())
}

fn terminal() -> Terminal {
    let colour = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    Terminal { colour, width: WIDTH }
}

/// Runs experiments and writes the report.
///
/// # Errors
/// When a name or value is wrong ([`Problems`]), an experiment panics, or the report cannot be written.
pub fn run(arguments: &RunArguments) -> anyhow::Result<ExitCode> {
    let chosen = chosen(arguments)?;
    let orders = orders(arguments, &chosen)?;
    // Fails before the work is done.
    fs::create_dir_all(&arguments.out).with_context(|| format!("--out: cannot make {}", arguments.out.display()))?;
    let mut outcomes = Vec::new();
    let mut code = ExitCode::SUCCESS;
    for result in simulated(arguments.on, orders) {
        match result {
            Ok(outcome) => outcomes.push(outcome),
            Err(failed) => {
                eprintln!("awase-lab: {failed}");
                code = ExitCode::FAILURE;
            }
        }
    }
    if arguments.sensitivity {
        measure_sensitivities(&mut outcomes)?;
    }
    if !measure(arguments, &mut outcomes)? {
        code = ExitCode::FAILURE;
    }
    let is_whole = arguments.full || chosen.len() == 1 || arguments.on != Side::Sim;
    let shown = |outcome: &Outcome| if is_whole { terminal().outcome(outcome) } else { terminal().summary(outcome) };
    let text: Vec<String> = outcomes.iter().map(shown).collect();
    print(text.join(if is_whole { "\n\n" } else { "\n" }).as_bytes())?;
    if !is_whole {
        print(b"\nAll tables: --full, or the report.\n")?;
    }
    let heading = Heading { version: env!("CARGO_PKG_VERSION").to_owned(), command: command_line(arguments) };
    write(&arguments.out, &outcomes, &heading)?;
    print(format!("\nReport: {}\n", arguments.out.join("report.html").display()).as_bytes())?;
    Ok(code)
}

/// The results in virtual time; empty ones for orders that are only measured on this machine.
fn simulated(on: Side, orders: Vec<Order>) -> Vec<Result<Outcome, Failed>> {
    let is_simulated = |order: &Order| on != Side::Local && order.experiment.is_simulated();
    let (orders, others): (Vec<Order>, Vec<Order>) = orders.into_iter().partition(is_simulated);
    let others = others.into_iter().map(|order| Ok(Outcome { order, results: Results::default(), measured: None }));
    if orders.is_empty() {
        return others.collect();
    }
    let bar = bar();
    let threads = available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let results = order::run(orders, threads, |progress| show_progress(&bar, progress));
    bar.finish_and_clear();
    results.into_iter().chain(others).collect()
}

/// Measures what hangs on the free numbers of each experiment that has a target, in the paper's machine.
fn measure_sensitivities(outcomes: &mut [Outcome]) -> anyhow::Result<()> {
    let threads = available_parallelism().unwrap_or(NonZeroUsize::MIN);
    for outcome in outcomes.iter_mut().filter(|outcome| outcome.order.setting == Setting::Paper) {
        let order = &outcome.order;
        if !order.changed().is_empty() {
            let what = "is of the paper's machine as it is; leave out --set";
            return Err(Problems::from(Problem::new(&flag("--sensitivity"), "", what)).into());
        }
        let (experiment, seed) = (order.experiment, order.seed);
        let done = AtomicU64::new(0);
        let total = sensitivity::steps(experiment, sensitivity::DRAWS);
        let drawn = Progress { done: 0, total, running: vec![format!("{}: free numbers", order.name())] };
        outcome.measured = shown_meanwhile(drawn, &done, || {
            sensitivity::measure(experiment, seed, sensitivity::DRAWS, threads, &done)
        });
    }
    Ok(())
}

/// Is it measured on this machine?
fn is_measured(on: Side, experiment: &Experiment) -> bool {
    on != Side::Sim || !experiment.is_simulated()
}

/// Adds the measurements on this machine, one experiment at a time so that they do not disturb each other. An error is
/// printed and the others continue; returns whether all succeeded.
fn measure(arguments: &RunArguments, outcomes: &mut [Outcome]) -> anyhow::Result<bool> {
    let outcomes = outcomes.iter_mut().filter(|outcome| is_measured(arguments.on, outcome.order.experiment));
    let mut outcomes = outcomes.peekable();
    if outcomes.peek().is_none() {
        return Ok(true);
    }
    let host = Host::new(&arguments.out, &programs::default_path()?);
    for signal in [SIGINT, SIGTERM] {
        // The first signal starts the cleanup; a second one ends the process at once.
        flag::register_conditional_shutdown(signal, EXIT_SIGNAL + signal, Arc::clone(host.interrupted()))?;
        flag::register(signal, Arc::clone(host.interrupted()))?;
    }
    let effort = if arguments.quick { Effort::Tiny } else { Effort::Usual };
    let mut measured: Vec<&str> = Vec::new();
    let mut all_well = true;
    for outcome in outcomes {
        let name = outcome.order.experiment.name();
        // With two simulated machines, the measurement goes to the first one's results.
        let Some(local) = local::named(name).filter(|_| !measured.contains(&name)) else { continue };
        measured.push(name);
        let parameters = &outcome.order.parameters;
        if let Some(takes) = local.takes {
            eprintln!("{name} on this machine takes about {} s", takes(effort, parameters).as_secs());
        }
        let done = AtomicU64::new(0);
        let total = (local.steps)(effort, parameters);
        let drawn = Progress { done: 0, total, running: vec![format!("{name} on this machine")] };
        let run = LocalRun { host: &host, effort, parameters, done: &done };
        match shown_meanwhile(drawn, &done, || (local.measure)(&run)) {
            Ok(measured) => drop(measured.merge_into(&mut outcome.results)),
            Err(error) => {
                all_well = false;
                eprintln!("awase: {name} on this machine: {error}");
            }
        }
        if host.is_interrupted() {
            bail!("interrupted");
        }
    }
    Ok(all_well)
}

/// Does `work`, with its progress on a bar.
fn shown_meanwhile<T>(mut progress: Progress, done: &AtomicU64, work: impl FnOnce() -> T) -> T {
    let bar = bar();
    thread::scope(|scope| {
        let (ended, end) = channel::<()>();
        let bar = &bar;
        scope.spawn(move || {
            while end.recv_timeout(BAR_PERIOD) == Err(RecvTimeoutError::Timeout) {
                progress.done = done.load(Ordering::Relaxed).min(progress.total);
                show_progress(bar, &progress);
            }
            bar.finish_and_clear();
        });
        let result = work();
        drop(ended);
        result
    })
}

fn write(directory: &Path, outcomes: &[Outcome], heading: &Heading) -> anyhow::Result<()> {
    for file in files(outcomes, heading) {
        let path = directory.join(&file.name);
        fs::write(&path, file.text).with_context(|| format!("--out: cannot write {}", path.display()))?;
    }
    Ok(())
}

/// The experiments of these names, each once, in the order of the list. `all`: those that have the requested side.
fn chosen(arguments: &RunArguments) -> Result<Vec<&'static Experiment>, Problems> {
    let needs_here = arguments.on != Side::Sim;
    let mut uses_parameters = false;
    for name in arguments.names.iter().filter(|name| *name != ALL) {
        let experiment = experiment("lab run", name)?;
        let name = experiment.name();
        uses_parameters |= !experiment.is_simulated();
        if needs_here && local::named(name).is_none() {
            let what = format!("{name} runs only in virtual time, not with the real kernel on this machine");
            return Err(Problem::new(&flag("--on"), "", what).allowed(measurable()).into());
        }
        if !experiment.is_simulated() && arguments.machine != Machine::Paper {
            let what = format!("{name} is measured on this machine, and simulates none");
            return Err(Problems::from(Problem::new(&flag("--machine"), "", what)));
        }
    }
    if arguments.on == Side::Local && !arguments.set.is_empty() && !uses_parameters {
        let what = "changes the simulated machine, and --on leaves that out";
        return Err(Problem::new(&flag("--set"), "", what).into());
    }
    let all = arguments.names.iter().any(|name| name == ALL);
    let is_chosen = |experiment: &&'static Experiment| match all {
        true if !experiment.is_simulated() => needs_here,
        true => arguments.on != Side::Local || local::named(experiment.name()).is_some(),
        false => arguments.names.iter().any(|name| name == experiment.name()),
    };
    Ok(experiments().iter().filter(is_chosen).collect())
}

fn measurable() -> String {
    let names = local::MEASUREMENTS.iter().map(|local| local.experiment);
    names.filter(|name| named(name).is_some()).collect::<Vec<_>>().join(", ")
}

fn experiment(place: &str, name: &str) -> Result<&'static Experiment, Problems> {
    named(name).ok_or_else(|| {
        let known = experiments().iter().map(|experiment| experiment.name());
        let what = match nearest(name, known) {
            Some(near) => format!("is not an experiment; did you mean {near:?}?"),
            None => "is not an experiment; `awase lab list` tells which there are".to_owned(),
        };
        Problem::new(&Place::Flag(place.to_owned()), format!("{name:?}"), what).into()
    })
}

/// The runs, with their parameters: those of a machine, then those that are set.
fn orders(arguments: &RunArguments, chosen: &[&'static Experiment]) -> anyhow::Result<Vec<Order>> {
    let settings: &[Setting] = match arguments.machine {
        _ if arguments.on == Side::Local => &[Setting::Paper],
        Machine::Paper => &[Setting::Paper],
        Machine::Modern => &[Setting::Modern],
        Machine::Both => &[Setting::Paper, Setting::Modern],
    };
    known_somewhere(&arguments.set, chosen)?;
    let mut orders = Vec::new();
    for experiment in chosen {
        let settings = if experiment.is_simulated() { settings } else { &settings[..1] };
        let is_there = |setting: &&Setting| **setting == Setting::Paper || !experiment.sheet().modern.is_empty();
        for setting in settings.iter().filter(is_there) {
            let mut order = Order::new(experiment, *setting, arguments.seed)?;
            set(&mut order.parameters, &arguments.set)?;
            orders.push(order);
        }
    }
    if orders.is_empty() {
        let what = "has no machine of 2026 of these; `awase lab show NAME` says which numbers one would need";
        return Err(Problems::from(Problem::new(&flag("--machine"), "", what)).into());
    }
    Ok(orders)
}

/// A parameter that none of the experiments has is misspelt.
fn known_somewhere(given: &[(String, f64)], chosen: &[&'static Experiment]) -> Result<(), Problems> {
    let mut known: Vec<&'static str> = Vec::new();
    for experiment in chosen {
        known.extend(experiment.parameters().iter().map(|(parameter, _)| parameter.name));
    }
    for (name, _) in given {
        if known.contains(&name.as_str()) {
            continue;
        }
        let (of, list) = match chosen {
            [one] => (one.name().to_owned(), format!("`awase lab show {}` lists them", one.name())),
            _ => ("any of these experiments".to_owned(), "`awase lab show NAME` lists those of one".to_owned()),
        };
        let what = match nearest(name, known.iter().copied()) {
            Some(near) => format!("is not a parameter of {of}; did you mean {near:?}?"),
            None => format!("is not a parameter of {of}; {list}"),
        };
        return Err(Problem::new(&flag("--set"), name.as_str(), what).into());
    }
    Ok(())
}

/// Sets those of `given` that these parameters have.
fn set(parameters: &mut Parameters, given: &[(String, f64)]) -> Result<(), Problems> {
    for (name, value) in given {
        if parameters.iter().any(|(parameter, _)| parameter.name == name) {
            parameters.set(name, *value).map_err(|error| Problem::new(&flag("--set"), "", error.to_string()))?;
        }
    }
    Ok(())
}

fn flag(name: &str) -> Place {
    Place::Flag(name.to_owned())
}

/// On standard error, and hidden if that is no terminal.
fn bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    let template = "{bar:32} {percent:>3} %  {elapsed}  {wide_msg}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("━╸ "));
    }
    bar
}

fn show_progress(bar: &ProgressBar, progress: &Progress) {
    bar.set_length(progress.total);
    bar.set_position(progress.done);
    bar.set_message(progress.running.join(", "));
}

/// The command that makes the same report. Without the directory, so that the report is the same everywhere.
fn command_line(arguments: &RunArguments) -> String {
    let mut command = format!("awase lab run {}", arguments.names.join(" "));
    match arguments.machine {
        Machine::Paper => {}
        Machine::Modern => command += " --machine 2026",
        Machine::Both => command += " --machine both",
    }
    match arguments.on {
        Side::Sim => {}
        Side::Local => command += " --on here",
        Side::Both => command += " --on both",
    }
    if arguments.quick {
        command += " --quick";
    }
    if arguments.sensitivity {
        command += " --sensitivity";
    }
    let set = arguments.set.iter().map(|(name, value)| (name.as_str(), *value));
    command + &order::chosen(arguments.seed, set)
}
