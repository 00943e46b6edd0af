//! `awase lab`: replaces this program by `awase-lab`.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, bail};

const PROGRAM: &str = "awase-lab";

/// Executes `awase-lab`: the one in this program's directory, else the first in `PATH`.
///
/// # Errors
/// When it is not installed.
pub fn lab(arguments: &[OsString]) -> anyhow::Result<Infallible> {
    let neighbour = std::env::current_exe().context("the path of this program is unknown")?.with_file_name(PROGRAM);
    for program in [neighbour, PROGRAM.into()] {
        let error = Command::new(&program).args(arguments).exec();
        if error.kind() != ErrorKind::NotFound {
            return Err(error).with_context(|| format!("cannot run {}", program.display()));
        }
    }
    bail!(
        "the laboratory is a program of its own, {PROGRAM}, which is not installed: build it (cargo build --release --package awase-lab)"
    )
}
