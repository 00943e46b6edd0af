//! `awase-lab bench disks`: Awase, nbdkit and qemu-nbd in one run, and each technique of Awase on and off.

mod fio;
mod run;
mod workload;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;

use crate::bench::contender::Peer;
use crate::bench::{host, programs, repetitions, report, results};
use crate::measure::process::Interrupted;
use run::{Images, Scale};
#[cfg(test)]
pub use workload::PEERS;
use workload::Workload;
pub use workload::{comparison, switches};

/// Measures Awase beside nbdkit and qemu-nbd on this machine and writes a report with a plot.
#[derive(Debug, Args)]
pub struct Disks {
    /// Small images, short runs, three repetitions: a few minutes, to see that all works.
    #[arg(long)]
    quick: bool,
    /// Only workloads whose names begin so (may be repeated); --list shows them.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Repetitions; 5, or 3 with --quick.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    reps: Option<u32>,
    /// Print the names of the workloads and end.
    #[arg(long)]
    list: bool,
    /// Leave Awase out.
    #[arg(long)]
    peers_only: bool,
    /// The program to measure; otherwise the one beside this program.
    #[arg(long, value_name = "PATH")]
    awase: Option<PathBuf>,
    /// Where the images are made: on a disk, with 6 GiB free (1.5 GiB with --quick).
    #[arg(long, value_name = "DIR", default_value = "target")]
    directory: PathBuf,
    /// Where benchmarks.md and benchmarks.svg go; docs, or target where only a part is measured.
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
}

const FULL: Scale = Scale { large_bytes: 4 << 30, small_bytes: 1 << 30, seconds: 5, requests: 200_000 };
const QUICK: Scale = Scale { large_bytes: 1 << 30, small_bytes: 256 << 20, seconds: 2, requests: 50_000 };

impl Disks {
    /// # Errors
    /// When a program is missing, or a server or client fails.
    pub fn run(&self, interrupted: &Interrupted) -> Result<()> {
        let (comparison, switches) = self.selected()?;
        if self.list {
            return results::list(comparison.iter().chain(&switches));
        }
        programs::check()?;
        let awase = match self.peers_only {
            true => PathBuf::new(),
            false => programs::awase(self.awase.as_deref())?,
        };
        let scale = if self.quick { QUICK } else { FULL };
        let repetitions = self.reps.unwrap_or(if self.quick { 3 } else { 5 });
        println!("making images in {}", self.directory.display());
        let images = Images::new(&self.directory, &awase, scale, interrupted)?;
        let run = |workloads: &[Workload]| {
            let prepare = |workload: &Workload| images.warm_disk(&workload.setup);
            repetitions::run(workloads, repetitions, interrupted, prepare, |workload, of| images.measure(workload, of))
        };
        let (comparison, switches) = (run(&comparison)?, run(&switches)?);
        let setting = report::Setting {
            title: "Benchmarks: disks",
            reached: "over Unix sockets",
            peers: "servers",
            cpu: report::CPU_OF_SERVER,
            command: self.command_line(),
            host: host::facts(images.directory()),
            versions: programs::versions((!self.peers_only).then_some(awase.as_path())),
            scale: format!(
                "Repetitions: {repetitions}; large image: {} MiB; small image and what is copied: {} MiB; fio runs for {} s",
                scale.large_bytes >> 20,
                scale.small_bytes >> 20,
                scale.seconds
            ),
            notes: include_str!("notes.md"),
        };
        report::write(&self.output(), "benchmarks", &setting, &comparison, &switches)
    }

    /// The selected workloads: the comparison and the switches.
    fn selected(&self) -> Result<(Vec<Workload>, Vec<Workload>)> {
        let (mut comparison, mut switches) = (comparison(), switches());
        if self.peers_only {
            results::retain(&mut comparison, |contender| !matches!(contender.peer, Peer::Awase(_)));
            switches.clear();
        }
        let names: Vec<&str> =
            comparison.iter().chain(&switches).map(|workload| workload.subject.name.as_str()).collect();
        if let Some(unknown) = self.only.iter().find(|only| !names.iter().any(|name| name.starts_with(*only))) {
            bail!("--only {unknown}: no workload has such a name; there are:\n  {}", names.join("\n  "));
        }
        let selected = |workload: &Workload| {
            self.only.is_empty() || self.only.iter().any(|only| workload.subject.name.starts_with(only))
        };
        comparison.retain(selected);
        switches.retain(selected);
        Ok((comparison, switches))
    }

    fn output(&self) -> PathBuf {
        let part = self.quick || self.peers_only || !self.only.is_empty();
        self.output.clone().unwrap_or_else(|| Path::new(if part { "target" } else { "docs" }).to_owned())
    }

    /// The command line that repeats this run.
    fn command_line(&self) -> String {
        let mut flags = Vec::new();
        flags.extend(self.quick.then(|| "--quick".to_owned()));
        flags.extend(self.peers_only.then(|| "--peers-only".to_owned()));
        flags.extend(self.reps.map(|reps| format!("--reps {reps}")));
        flags.extend(self.only.iter().map(|only| format!("--only {only}")));
        if flags.is_empty() {
            "make bench-disks".into()
        } else {
            format!("make bench-disks ARGS=\"{}\"", flags.join(" "))
        }
    }
}
