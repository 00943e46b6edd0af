//! `awase program`: checks, installs and lists the programs of a database.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use machine::linux::file::make_directories;
use transactions::program::{self, Function, Programs};

use crate::cli::{InstallArguments, ProgramArguments, ProgramCommand};
use crate::control::client::{Client, LoadedDatabase};
use crate::tell::{print, tell};

/// Does what the command line says.
///
/// # Errors
/// When a file is no program, or cannot be installed; when standard output cannot be written.
pub fn program(command: &ProgramCommand) -> anyhow::Result<ExitCode> {
    match command {
        ProgramCommand::Check { files } => check(files),
        ProgramCommand::Install(arguments) => install(arguments).map(|()| ExitCode::SUCCESS),
        ProgramCommand::List(arguments) => list(arguments),
    }
}

/// All of them, also after one that is wrong.
fn check(files: &[PathBuf]) -> anyhow::Result<ExitCode> {
    let (mut code, mut printed) = (ExitCode::SUCCESS, Ok(()));
    for file in files {
        match program::check(file) {
            Ok((program, functions)) => printed = printed.and(show(program.name(), &functions)),
            Err(fault) => {
                tell(fault);
                code = ExitCode::FAILURE;
            }
        }
    }
    printed.map(|()| code)
}

fn install(arguments: &InstallArguments) -> anyhow::Result<()> {
    let directory = directory(&arguments.program);
    make_directories(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let mut printed = Ok(());
    for file in &arguments.files {
        let (program, functions) = program::install(file, &directory)?;
        printed = printed.and(show(program.name(), &functions));
    }
    let printed = printed.and(print(format!("installed in {}\n", directory.display())));
    load(&arguments.program).and(printed)
}

/// Has the running server load them.
fn load(arguments: &ProgramArguments) -> anyhow::Result<()> {
    let socket = arguments.server.control_socket();
    let Ok(mut client) = Client::connect(&socket) else {
        let socket = socket.display();
        return print(format!("no server listens at {socket}; one that is started later loads them then\n"));
    };
    let loaded = client.load_programs()?;
    loaded.faults.iter().for_each(tell);
    let installed = std::fs::canonicalize(directory(arguments))?;
    let is_from_there = |of: &LoadedDatabase| of.directory.as_ref().is_none_or(|directory| *directory == installed);
    let (from_there, others): (Vec<_>, Vec<_>) = loaded.databases.into_iter().partition(is_from_there);
    if from_there.is_empty() {
        let place =
            |of: &LoadedDatabase| Some(format!("{:?} has its own in {}", of.name, of.directory.as_ref()?.display()));
        let places: Vec<_> = others.iter().filter_map(place).collect();
        let places = if places.is_empty() { "it has no database".into() } else { places.join(", ") };
        bail!("the server at {} loads no programs from there: {places}", socket.display());
    }
    let (open, absent): (Vec<_>, Vec<_>) = from_there.into_iter().partition(|of| of.is_open);
    for (says, databases) in
        [("loaded by the running server", open), ("loaded when the running server opens it", absent)]
    {
        let names: Vec<_> = databases.into_iter().map(|of| of.name).collect();
        if !names.is_empty() {
            print(format!("{says}: {}\n", names.join(", ")))?;
        }
    }
    Ok(())
}

fn list(arguments: &ProgramArguments) -> anyhow::Result<ExitCode> {
    let (programs, faults) = Programs::load(&directory(arguments));
    faults.iter().for_each(tell);
    for program in programs.programs() {
        let functions = programs.functions().into_iter().filter(|of| of.program().name() == program.name());
        show(program.name(), &functions.collect::<Vec<_>>())?;
    }
    Ok(if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn show(program: &str, functions: &[impl std::ops::Deref<Target = Function>]) -> anyhow::Result<()> {
    let functions: String = functions.iter().map(|function| format!("  {}\n", function.signature())).collect();
    print(format!("{program}\n{functions}"))
}

/// As a database has it that says nothing else (`programs` in `[[database]]`).
fn directory(arguments: &ProgramArguments) -> PathBuf {
    let default = || default_directory(&arguments.server.data, &arguments.database);
    arguments.programs.clone().unwrap_or_else(default)
}

fn default_directory(data: &Path, database: &str) -> PathBuf {
    data.join("programs").join(database)
}
