//! `awase-lab bench mount`: `awase mount` beside the best clients without a mount, the shortest file system in user space,
//! and other mounts of the same directory.

mod client;
mod run;
mod tree;
mod workload;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};
use clap::Args;

use crate::bench::results::{self, retain};
use crate::bench::{host, programs, repetitions, report};
use crate::measure::mounted::has_fuse;
use crate::measure::process::Interrupted;
use run::{Scale, Stage};
pub use workload::workloads;

/// Measures `awase mount` beside other clients on this machine (as root) and writes a report with a plot.
#[derive(Debug, Args)]
pub struct Mount {
    /// Small files, short runs, two repetitions: a minute, to see that all works.
    #[arg(long)]
    quick: bool,
    /// Only workloads whose names begin so (may be repeated); --list shows them.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Only contenders whose names begin so (may be repeated).
    #[arg(long, value_name = "NAME")]
    contender: Vec<String>,
    /// Repetitions; 5, or 2 with --quick.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    reps: Option<u32>,
    /// Print the names of the workloads and end.
    #[arg(long)]
    list: bool,
    /// The program to measure; otherwise the one beside this program.
    #[arg(long, value_name = "PATH")]
    awase: Option<PathBuf>,
    /// Where the files are made: on a disk, with 2 GiB free.
    #[arg(long, value_name = "DIR", default_value = "target")]
    directory: PathBuf,
    /// Where benchmarks-mount.md and .svg go; docs, or target where only a part is measured.
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
}

const FULL: Scale = Scale { file_bytes: 512 << 20, cached_bytes: 64 << 20, seconds: 2, sources: 400 };
const QUICK: Scale = Scale { file_bytes: 64 << 20, cached_bytes: 16 << 20, seconds: 1, sources: 40 };

impl Mount {
    /// # Errors
    /// When a program is missing, or a server or client fails.
    pub fn run(&self, interrupted: &Interrupted) -> Result<()> {
        let mut workloads = workloads();
        if self.list {
            return results::list(&workloads);
        }
        let begins = |name: &str, with: &[String]| with.is_empty() || with.iter().any(|one| name.starts_with(one));
        workloads.retain(|workload| begins(&workload.subject.name, &self.only));
        retain(&mut workloads, |contender| begins(contender.label, &self.contender));
        if workloads.is_empty() {
            bail!("no workload or contender has such a name; --list shows the workloads");
        }
        ensure!(has_fuse(), "/dev/fuse cannot be opened here");
        let awase = programs::awase(self.awase.as_deref())?;
        let scale = if self.quick { QUICK } else { FULL };
        let repetitions = self.reps.unwrap_or(if self.quick { 2 } else { 5 });
        let mut stage = Stage::new(&self.directory, &awase, scale, interrupted)?;
        let host = host::facts(stage.directory());
        let measure = |workload: &_, contender: &_| stage.measure(workload, contender);
        let results = repetitions::run(&workloads, repetitions, interrupted, |_| Ok(()), measure)?;
        let setting = report::Setting {
            title: "Benchmarks: mounts",
            reached: "over TCP on loopback where nothing else is said",
            peers: "clients",
            cpu: "mount's process, for each MiB, request or build; the server's and the program's that uses it are not in it.",
            command: self.command_line(),
            host,
            versions: programs::versions_of_mounts(&awase),
            scale: format!("Repetitions: {repetitions}; files of {} MiB", scale.file_bytes >> 20),
            notes: include_str!("notes.md"),
        };
        report::write(&self.output(), "benchmarks-mount", &setting, &results, &[])
    }

    fn is_part(&self) -> bool {
        self.quick || !self.only.is_empty() || !self.contender.is_empty()
    }

    fn output(&self) -> PathBuf {
        self.output.clone().unwrap_or_else(|| Path::new(if self.is_part() { "target" } else { "docs" }).to_owned())
    }

    /// The command line that repeats this run.
    fn command_line(&self) -> String {
        let mut flags: Vec<String> = self.quick.then(|| "--quick".to_owned()).into_iter().collect();
        flags.extend(self.reps.map(|reps| format!("--reps {reps}")));
        flags.extend(self.only.iter().map(|name| format!("--only {name}")));
        flags.extend(self.contender.iter().map(|name| format!("--contender {name:?}")));
        let line = "make bench-mount".to_owned();
        if flags.is_empty() { line } else { format!("{line} ARGS={:?}", flags.join(" ")) }
    }
}
