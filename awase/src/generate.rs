//! Prints what is generated from the tables: completions, manual pages, configurations.

use std::path::Path;

use anyhow::Context;

use crate::cli::ConfigArguments;
use crate::config::{Config, reference, toml};
use crate::tell::print;

/// Prints the configuration in effect, or the reference of all keys.
///
/// # Errors
/// When the configuration is wrong.
pub fn config(arguments: &ConfigArguments) -> anyhow::Result<()> {
    let text = match arguments.reference {
        true => reference(),
        false => toml(&Config::load(&arguments.serve.overrides())?),
    };
    print(text)
}

/// # Errors
/// When standard output cannot be written.
pub fn completions(shell: clap_complete::Shell, command: &mut clap::Command) -> anyhow::Result<()> {
    let mut text = Vec::new();
    let name = command.get_name().to_owned();
    clap_complete::generate(shell, command, name, &mut text);
    print(text)
}

/// Prints the page of `command`, or writes it and those of its subcommands into `directory`.
///
/// # Errors
/// When they cannot be written.
pub fn man(command: clap::Command, directory: Option<&Path>) -> anyhow::Result<()> {
    let Some(directory) = directory else {
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page)?;
        return print(page);
    };
    std::fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    clap_mangen::generate_to(command, directory).with_context(|| format!("cannot write to {}", directory.display()))
}
