//! `awase lab`: the papers' experiments, run, shown and written down.

use std::fs;
use std::io::{self, IsTerminal};
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::ExitCode;
use std::thread::available_parallelism;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use lab::report::terminal::Terminal;
use lab::report::{Heading, files};
use lab::{Experiment, Order, Outcome, Parameters, Progress, Setting, experiments, named, order};

use crate::cli::{LabCommand, LabMachine, LabRunArguments, LabSide};
use crate::config::{Place, Problem, Problems};
use crate::generate::print;

/// As wide as tables of thirteen columns need.
const WIDTH: usize = 116;

/// Stands for every experiment.
const ALL: &str = "all";

/// Does what `lab` was told to.
///
/// # Errors
/// When a name or value is wrong ([`Problems`]), an experiment gives up, or the report cannot be written.
pub fn lab(command: &LabCommand) -> anyhow::Result<ExitCode> {
    match command {
        LabCommand::List => print(terminal().list(experiments()).as_bytes())?,
        LabCommand::Show { name } => print(terminal().description(experiment("lab show", name)?).as_bytes())?,
        LabCommand::Run(arguments) => return run(arguments),
    }
    Ok(ExitCode::SUCCESS)
}

fn terminal() -> Terminal {
    let colour = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    Terminal { colour, width: WIDTH }
}

fn run(arguments: &LabRunArguments) -> anyhow::Result<ExitCode> {
    let chosen = chosen(&arguments.names)?;
    refuse_here(arguments.on, &chosen)?;
    let orders = orders(arguments, &chosen)?;
    // Known before the work is done.
    fs::create_dir_all(&arguments.out).with_context(|| format!("--out: cannot make {}", arguments.out.display()))?;

    let bar = bar();
    let threads = available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let results = order::run(orders, threads, |progress| show(&bar, progress));
    bar.finish_and_clear();

    let mut code = ExitCode::SUCCESS;
    let mut outcomes: Vec<Outcome> = Vec::new();
    for result in results {
        match result {
            Ok(outcome) => outcomes.push(outcome),
            Err(failed) => {
                eprintln!("awase: {failed}");
                code = ExitCode::FAILURE;
            }
        }
    }
    let text: Vec<String> = outcomes.iter().map(|outcome| terminal().outcome(outcome)).collect();
    print(text.join("\n\n").as_bytes())?;
    let heading = Heading { version: env!("CARGO_PKG_VERSION").to_owned(), command: command_line(arguments) };
    write(&arguments.out, &outcomes, &heading)?;
    print(format!("\nReport: {}\n", arguments.out.join("report.html").display()).as_bytes())?;
    Ok(code)
}

fn write(directory: &Path, outcomes: &[Outcome], heading: &Heading) -> anyhow::Result<()> {
    for file in files(outcomes, heading) {
        let path = directory.join(&file.name);
        fs::write(&path, file.text).with_context(|| format!("--out: cannot write {}", path.display()))?;
    }
    Ok(())
}

/// The experiments of these names, each once, in the order of the list.
fn chosen(names: &[String]) -> Result<Vec<&'static dyn Experiment>, Problems> {
    for name in names.iter().filter(|name| *name != ALL) {
        experiment("lab run", name)?;
    }
    let asked =
        |experiment: &&'static dyn Experiment| names.iter().any(|name| name == ALL || name == experiment.name());
    Ok(experiments().iter().copied().filter(asked).collect())
}

fn experiment(place: &str, name: &str) -> Result<&'static dyn Experiment, Problems> {
    named(name).ok_or_else(|| {
        let known = experiments().iter().map(|experiment| experiment.name());
        let what = match nearest(name, known) {
            Some(near) => format!("is not an experiment; did you mean {near:?}?"),
            None => "is not an experiment; `awase lab list` tells which there are".to_owned(),
        };
        Problem::new(&Place::Flag(place.to_owned()), format!("{name:?}"), what).into()
    })
}

/// What is run, with its parameters: those of a machine, then those that are set.
fn orders(arguments: &LabRunArguments, chosen: &[&'static dyn Experiment]) -> anyhow::Result<Vec<Order>> {
    let settings: &[Setting] = match arguments.machine {
        LabMachine::Paper => &[Setting::Paper],
        LabMachine::Modern => &[Setting::Modern],
        LabMachine::Both => &[Setting::Paper, Setting::Modern],
    };
    known_somewhere(&arguments.set, chosen)?;
    let mut orders = Vec::new();
    for experiment in chosen {
        for setting in settings {
            let mut order = Order::new(*experiment, *setting, arguments.seed)?;
            set(&mut order.parameters, &arguments.set)?;
            orders.push(order);
        }
    }
    Ok(orders)
}

/// What none of the experiments has is misspelt.
fn known_somewhere(given: &[(String, f64)], chosen: &[&'static dyn Experiment]) -> Result<(), Problems> {
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

/// No experiment runs on this machine yet.
fn refuse_here(on: LabSide, chosen: &[&'static dyn Experiment]) -> Result<(), Problems> {
    let Some(first) = chosen.first().filter(|_| on != LabSide::Sim) else { return Ok(()) };
    let what = format!("{} runs only in virtual time, not with the real kernel on this machine", first.name());
    Err(Problem::new(&flag("--on"), "", what).into())
}

fn flag(name: &str) -> Place {
    Place::Flag(name.to_owned())
}

/// The word that was probably meant.
fn nearest<'a>(given: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let given = given.to_lowercase().replace('_', "-");
    known
        .map(|word| (word, strsim::damerau_levenshtein(&given, &word.replace('_', "-"))))
        .min_by_key(|(_, distance)| *distance)
        .filter(|(word, distance)| *distance <= (word.len() / 3).max(1))
        .map(|(word, _)| word)
}

/// On standard error, and nowhere if that is no terminal.
fn bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    let template = "{bar:32} {percent:>3} %  {elapsed}  {wide_msg}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("━╸ "));
    }
    bar
}

fn show(bar: &ProgressBar, progress: &Progress) {
    bar.set_length(progress.total);
    bar.set_position(progress.done);
    bar.set_message(progress.running.join(", "));
}

/// How to make the same report again. Not where it lies, so that it is the same everywhere.
fn command_line(arguments: &LabRunArguments) -> String {
    let mut command = format!("awase lab run {}", arguments.names.join(" "));
    match arguments.machine {
        LabMachine::Paper => {}
        LabMachine::Modern => command += " --machine 2026",
        LabMachine::Both => command += " --machine both",
    }
    if arguments.seed != lab::DEFAULT_SEED {
        command += &format!(" --seed {}", arguments.seed);
    }
    for (name, value) in &arguments.set {
        command += &format!(" --set {name}={value}");
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_names_find_the_nearest_and_others_none() {
        let known = || ["ws-table2", "ws-table3", "mp-table1"].into_iter();
        assert_eq!(nearest("ws-tabel3", known()), Some("ws-table3"));
        assert_eq!(nearest("WS_TABLE3", known()), Some("ws-table3"));
        assert_eq!(nearest("nonsense", known()), None);
        assert_eq!(nearest("disk.rmp", ["disk.rpm"].into_iter()), Some("disk.rpm"));
    }
}
