//! `awase lab`: the program `awase-lab` in place of this one.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, bail};

const PROGRAM: &str = "awase-lab";

/// Becomes `awase-lab`: the one beside this program, else the first in `PATH`.
///
/// # Errors
/// When it is not installed.
pub fn lab(arguments: &[OsString]) -> anyhow::Result<Infallible> {
    let beside = std::env::current_exe().context("cannot tell where this program is")?.with_file_name(PROGRAM);
    for program in [beside, PROGRAM.into()] {
        let error = Command::new(&program).args(arguments).exec();
        if error.kind() != ErrorKind::NotFound {
            return Err(error).with_context(|| format!("cannot run {}", program.display()));
        }
    }
    bail!(
        "the laboratory is a program of its own, {PROGRAM}, which is not installed: build it beside this one (cargo build --release --package awase-lab)"
    )
}
