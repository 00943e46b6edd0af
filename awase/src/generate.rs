//! Prints what is generated from the tables: completions, manual pages, configurations.

use std::io;
use std::path::Path;

use anyhow::Context;
use clap_mangen::Man;

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
    let Some(directory) = directory else { return print(page(&man_of(command))?) };
    std::fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let mut command = command.disable_help_subcommand(true);
    command.build();
    write_pages(&command, directory).with_context(|| format!("cannot write to {}", directory.display()))
}

fn write_pages(command: &clap::Command, directory: &Path) -> io::Result<()> {
    for shown in command.get_subcommands().filter(|of| !of.is_hide_set()) {
        write_pages(shown, directory)?;
    }
    let man = man_of(command.clone());
    std::fs::write(directory.join(man.get_filename()), page(&man)?)
}

fn man_of(command: clap::Command) -> Man {
    // An empty date would be left out, and the source stand in its place.
    Man::new(command).date(" ").source(concat!("awase ", env!("CARGO_PKG_VERSION")))
}

/// Longer lines are texts. Bytes, with escapes.
const LINE_MAX: usize = 120;

/// A manual page in which indented lines, as examples and tables are, stay as they are: texts are filled.
fn page(man: &Man) -> io::Result<String> {
    let mut rendered = Vec::new();
    man.render(&mut rendered)?;
    let (mut page, mut is_indented) = (String::new(), false);
    for line in String::from_utf8_lossy(&rendered).lines() {
        if (line.starts_with(' ') && line.len() <= LINE_MAX) != is_indented {
            is_indented = !is_indented;
            page += if is_indented { ".nf\n" } else { ".fi\n" };
        }
        page += line;
        page.push('\n');
    }
    Ok(page)
}
