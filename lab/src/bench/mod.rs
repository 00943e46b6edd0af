//! `awase-lab bench`: Awase, nbdkit and qemu-nbd in one run, and each technique of Awase on and off; a load driver for
//! file servers, with NFS-Ganesha as a peer; the speed of the lab and of recording events; and every switch live.

mod event;
mod fio;
mod host;
mod lab;
mod live;
mod nfs;
mod plot;
pub(crate) mod process;
pub mod programs;
mod report;
mod results;
mod rounds;
mod run;
mod sample;
mod server;
mod usage;
mod workload;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};

use crate::bench::process::Interrupted;
use crate::bench::run::{Scale, Stand};
use crate::bench::sample::Sample;
use crate::bench::server::Peer;
use crate::bench::workload::Workload;

/// What is measured.
#[derive(Debug, Subcommand)]
pub enum Bench {
    Disks(Disks),
    Nfs(Box<nfs::command::Nfs>),
    SlowDisk(nfs::command::SlowDiskCommand),
    Lab(self::lab::Lab),
    Event(event::Command),
    Live(live::Live),
    Usage(usage::Usage),
}

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

/// # Errors
/// When a program is missing, or a server or client fails.
pub fn run(bench: &Bench) -> Result<()> {
    let interrupted = Interrupted::default();
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    match bench {
        Bench::Disks(disks) => measure_disks(disks, &interrupted),
        Bench::Nfs(command) => command.run(&interrupted),
        Bench::SlowDisk(command) => command.run(&interrupted),
        Bench::Lab(command) => command.run(&interrupted),
        Bench::Event(command) => command.run(),
        Bench::Live(command) => command.run(&interrupted),
        Bench::Usage(command) => command.run(&interrupted),
    }
}

fn measure_disks(arguments: &Disks, interrupted: &Interrupted) -> Result<()> {
    let (comparison, switches) = selected(arguments)?;
    if arguments.list {
        for workload in comparison.iter().chain(&switches) {
            println!("{:28} {}", workload.name, workload.title);
        }
        return Ok(());
    }
    programs::check()?;
    let awase = match arguments.peers_only {
        true => PathBuf::new(),
        false => programs::awase(arguments.awase.as_deref())?,
    };
    let scale = if arguments.quick { QUICK } else { FULL };
    let repetitions = arguments.reps.unwrap_or(if arguments.quick { 3 } else { 5 });
    println!("making images in {}", arguments.directory.display());
    let stand = Stand::new(&arguments.directory, &awase, scale, interrupted)?;
    let run = |workloads: Vec<Workload>| {
        let subjects = workloads.iter().map(Workload::subject).collect();
        rounds::run(&mut Subjects { stand: &stand, workloads }, subjects, repetitions, interrupted)
    };
    let (comparison, switches) = (run(comparison)?, run(switches)?);

    let setting = report::Setting {
        title: "Benchmarks: disks",
        reached: "over Unix sockets",
        command: command_line(arguments),
        host: host::facts(stand.directory()),
        versions: programs::versions((!arguments.peers_only).then_some(awase.as_path())),
        scale: format!(
            "Repetitions: {repetitions}; large image: {} MiB; small image and what is copied: {} MiB; fio runs for {} s",
            scale.large_bytes >> 20,
            scale.small_bytes >> 20,
            scale.seconds
        ),
        notes: include_str!("disks.md"),
    };
    report::write(&output(arguments), "benchmarks", &setting, &comparison, &switches)
}

struct Subjects<'a> {
    stand: &'a Stand,
    workloads: Vec<Workload>,
}

impl rounds::Measure for Subjects<'_> {
    fn prepare(&mut self, subject: usize) -> Result<()> {
        self.stand.warm_disk(&self.workloads[subject])
    }

    fn measure(&mut self, subject: usize, contender: usize) -> Result<Sample> {
        let workload = &self.workloads[subject];
        self.stand.measure(workload, &workload.contenders[contender])
    }
}

/// The selected workloads: the comparison and the switches.
fn selected(arguments: &Disks) -> Result<(Vec<Workload>, Vec<Workload>)> {
    let (mut comparison, mut switches) = (workload::comparison(), workload::switches());
    if arguments.peers_only {
        comparison.iter_mut().for_each(|workload| {
            workload.contenders.retain(|contender| !matches!(contender.peer, Peer::Awase(_)));
        });
        comparison.retain(|workload| !workload.contenders.is_empty());
        switches.clear();
    }
    let names: Vec<String> = comparison.iter().chain(&switches).map(|workload| workload.name.clone()).collect();
    if let Some(unknown) = arguments.only.iter().find(|only| !names.iter().any(|name| name.starts_with(*only))) {
        bail!("--only {unknown}: no workload has such a name; there are:\n  {}", names.join("\n  "));
    }
    let asked = |workload: &Workload| {
        arguments.only.is_empty() || arguments.only.iter().any(|only| workload.name.starts_with(only))
    };
    comparison.retain(asked);
    switches.retain(asked);
    Ok((comparison, switches))
}

fn output(arguments: &Disks) -> PathBuf {
    let part = arguments.quick || arguments.peers_only || !arguments.only.is_empty();
    arguments.output.clone().unwrap_or_else(|| Path::new(if part { "target" } else { "docs" }).to_owned())
}

/// The command line that repeats this run.
fn command_line(arguments: &Disks) -> String {
    let mut flags = Vec::new();
    flags.extend(arguments.quick.then(|| "--quick".to_owned()));
    flags.extend(arguments.peers_only.then(|| "--peers-only".to_owned()));
    flags.extend(arguments.reps.map(|reps| format!("--reps {reps}")));
    flags.extend(arguments.only.iter().map(|only| format!("--only {only}")));
    if flags.is_empty() { "make bench-disks".into() } else { format!("make bench-disks ARGS=\"{}\"", flags.join(" ")) }
}
