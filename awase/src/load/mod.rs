//! `awase load`: a load of transactions, as the OLTP paper's front-end processor made it: a mix by weight, from hundreds or
//! thousands of terminals, with its latencies and a check of what the database holds afterwards. It speaks PostgreSQL's
//! protocol, so it loads PostgreSQL, too.

mod check;
mod draw;
mod measure;
mod mix;
mod password;
mod plot;
mod report;
mod run;
mod terminal;
mod wire;

use std::process::ExitCode;

use anyhow::{Context as _, ensure};

use crate::cli::LoadArguments;
use crate::config::Problems;
use crate::tell::print;
pub use mix::Mix;
use wire::Target;

/// Makes the load and prints what was measured.
///
/// # Errors
/// When the mix is wrong, the server cannot be reached, a terminal is refused, all transactions fail or the result cannot be
/// written.
pub fn load(arguments: &LoadArguments) -> anyhow::Result<ExitCode> {
    let path = &arguments.mix;
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let wrong = |what: String| Problems::of_command("load", what);
    let mix = Mix::parse(&text).map_err(|error| wrong(format!("{} is not a mix: {error:#}", path.display())));
    let mut mix = mix?;
    mix.change(arguments).map_err(|error| wrong(error.to_string()))?;
    let target = Target::new(arguments.server.as_deref(), &mix.database, &mix.user)?;
    let before = check::ask_before(&target, &mix.checks)?;
    let progress = if arguments.quiet { run::Progress::None } else { run::Progress::Lines };
    let measured = run::run(&mix, &target, progress)?;
    let checks = check::compare(&target, &mix.checks, &before);
    let result = report::Report { mix: &mix, measured: &measured, checks: &checks };
    let printed = print(if arguments.json { format!("{:#}\n", result.json()) } else { result.to_string() });
    if let Some(path) = &arguments.plot {
        plot::write(path, &measured).with_context(|| format!("cannot write {}", path.display()))?;
    }
    printed?;
    ensure!(!measured.has_failed(), "no transaction succeeded");
    let is_right = checks.iter().all(check::Outcome::is_right);
    Ok(if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
