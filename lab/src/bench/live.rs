//! `awase-lab bench live`: every switch on this machine (`awase lab run live`), and the figures that are to be reached.

mod figures;
mod tables;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::bench::{figure, host, programs};
use crate::measure::process::{Interrupted, unless};
use tables::Tables;

/// Measure every switch of Awase on this machine, and compare with the figures that are to be reached.
#[derive(Debug, Args)]
pub struct Live {
    /// Repetitions.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    reps: u32,
    /// Seconds that each cell is measured.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5)]
    seconds: f64,
    /// The program to measure; otherwise the one beside this program.
    #[arg(long, value_name = "PATH")]
    awase: Option<PathBuf>,
    /// Where the image of the servers is made: on a disk, with 0.5 GiB free.
    #[arg(long, value_name = "DIR", default_value = "target")]
    directory: PathBuf,
    /// Write the report from a `live.json` that there is, and measure nothing.
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Where benchmarks-live.md goes.
    #[arg(long, value_name = "DIR", default_value = "docs")]
    output: PathBuf,
}

impl Live {
    /// # Errors
    /// When the program is missing or fails, or the report cannot be written.
    pub fn run(&self, interrupted: &Interrupted) -> Result<()> {
        fs::create_dir_all(&self.directory).with_context(|| self.directory.display().to_string())?;
        let place = tempfile::Builder::new().prefix("bench-").tempdir_in(&self.directory)?;
        let measured = match &self.from {
            Some(file) => file.clone(),
            None => self.measure(place.path(), interrupted)?,
        };
        let text = fs::read_to_string(&measured).with_context(|| measured.display().to_string())?;
        let tables = Tables::read(&text).with_context(|| measured.display().to_string())?;
        figure::write(&self.output, "benchmarks-live.md", &self.report(&tables, place.path()))
    }

    fn measure(&self, place: &Path, interrupted: &Interrupted) -> Result<PathBuf> {
        let awase = programs::awase(self.awase.as_deref())?;
        let out = place.join("report");
        let mut command = Command::new(&awase);
        command.args(["lab", "run", "live", "--out"]).arg(&out);
        command.args(["--set", &format!("run.repetitions={}", self.reps)]);
        command.args(["--set", &format!("run.seconds={}", self.seconds)]);
        // Its progress is shown. It receives Ctrl-C, too, and cleans up before it ends.
        let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status();
        let status = status.with_context(|| awase.display().to_string())?;
        unless(interrupted)?;
        if !status.success() {
            bail!("awase lab run live failed");
        }
        Ok(out.join("live.json"))
    }

    fn report(&self, tables: &Tables, place: &Path) -> String {
        let mut given = String::new();
        if self.reps != 5 {
            given += &format!(" --reps {}", self.reps);
        }
        if self.seconds != 0.5 {
            given += &format!(" --seconds {}", self.seconds);
        }
        let arguments = if given.is_empty() { given } else { format!(" ARGS=\"{}\"", given.trim_start()) };
        let place = fs::canonicalize(place).unwrap_or_else(|_| place.to_owned());
        format!(
            "# Benchmarks: every switch, live\n\nWritten by `make bench-live{arguments}`; do not edit.\n\n- {}\n- awase {}\n\
             - Repetitions: {}; {} s a cell\n\n## Figures to reach\n\n{}\n{}\n## How it is measured\n\n{}",
            host::facts(&place).join("\n- "),
            env!("CARGO_PKG_VERSION"),
            self.reps,
            self.seconds,
            figures::table(tables),
            tables.markdown(),
            tables.notes(),
        )
    }
}
