//! The program `awase-lab`.

use std::process::ExitCode;

use awase::config::Problems;
use awase::generate;
use clap::{CommandFactory, Parser};
use lab::cli::{Cli, Command};
use lab::{bench, command, limit};

/// Exit code of a wrong command line.
const EXIT_USAGE: u8 = 2;

fn main() -> ExitCode {
    match run(&Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("awase-lab: {error:#}");
            if error.is::<Problems>() { ExitCode::from(EXIT_USAGE) } else { ExitCode::FAILURE }
        }
    }
}

fn run(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::List => command::list()?,
        Command::Show { name } => command::show(name)?,
        Command::Run(arguments) => return command::run(arguments),
        Command::Bench { bench } => bench::run(bench)?,
        Command::Limit { limit } => limit::run(limit)?,
        Command::Completions { shell } => generate::completions(*shell, &mut Cli::command())?,
        Command::Man { directory } => generate::man(Cli::command(), directory.as_deref())?,
    }
    Ok(ExitCode::SUCCESS)
}
