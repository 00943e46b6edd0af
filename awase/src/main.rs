//! The program `awase`.

use std::process::ExitCode;
use std::sync::Arc;

use awase::cli::{self, Cli, Command};
use awase::config::Problems;
use awase::tell::{self, tell};
use awase::{check, control, generate, guard, iotest, lab, load, mount, program, serve, top, trace};
use clap::Parser;

/// The configuration or the command line is wrong.
const EXIT_USAGE: u8 = 2;

fn main() -> ExitCode {
    // What would make a file larger than its limit (RLIMIT_FSIZE) fails with EFBIG; unhandled, the signal would end the
    // program. Ignored, it would also be ignored by the programs that this one starts.
    let _ = signal_hook::flag::register(libc::SIGXFSZ, Arc::default());
    let code = run(Cli::parse().command).unwrap_or_else(|error| {
        tell(format_args!("{error:#}"));
        // Problems of the configuration have an exit code of their own.
        if error.is::<Problems>() { ExitCode::from(EXIT_USAGE) } else { ExitCode::FAILURE }
    });
    tell::settle();
    code
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Serve(arguments) => serve::serve(&arguments.overrides()),
        Command::Check(arguments) => check::check(&arguments.overrides()),
        Command::Config(arguments) => generate::config(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Iotest(arguments) => iotest::iotest(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Top(arguments) => top::top(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Set(arguments) => control::set::set(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Keep(arguments) => control::keep::keep(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Program { command } => program::program(&command),
        Command::Trace(arguments) => trace::trace(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Mount(arguments) => mount::mount(&arguments),
        Command::Umount(arguments) => mount::umount(&arguments),
        Command::Load(arguments) => load::load(&arguments),
        Command::Guard => guard::run().map(|()| ExitCode::SUCCESS),
        Command::Lab { arguments } => match lab::lab(&arguments)? {},
        Command::Completions { shell } => generate::completions(shell, &mut cli::command()).map(|()| ExitCode::SUCCESS),
        Command::Man { directory } => generate::man(cli::command(), directory.as_deref()).map(|()| ExitCode::SUCCESS),
    }
}
