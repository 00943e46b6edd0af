//! `awase-bench`: Awase, nbdkit and qemu-nbd side by side in one run, and each technique of Awase on and off. And a load
//! driver for servers of files, with NFS-Ganesha as a peer.

mod fio;
mod host;
mod nfs;
mod plot;
mod process;
mod programs;
mod report;
mod results;
mod run;
mod sample;
mod server;
mod workload;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Parser;

use crate::process::Interrupted;
use crate::run::{Scale, Stand};
use crate::sample::show;
use crate::server::Peer;
use crate::workload::Workload;

/// Measures Awase beside nbdkit and qemu-nbd on this machine and writes a report with a plot.
#[derive(Debug, Parser)]
#[command(name = "awase-bench", version, max_term_width = 110, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
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

#[derive(Debug, clap::Subcommand)]
enum Command {
    Nfs(nfs::command::Nfs),
    SlowDisk(nfs::command::SlowDiskCommand),
}

const FULL: Scale = Scale { large_bytes: 4 << 30, small_bytes: 1 << 30, seconds: 5, requests: 200_000 };
const QUICK: Scale = Scale { large_bytes: 1 << 30, small_bytes: 256 << 20, seconds: 2, requests: 50_000 };

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("awase-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let interrupted = Interrupted::default();
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    match &arguments.command {
        Some(Command::Nfs(command)) => return command.run(&interrupted),
        Some(Command::SlowDisk(command)) => return command.run(&interrupted),
        None => {}
    }
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
    let stand = Stand::new(&arguments.directory, &awase, scale, &interrupted)?;
    let comparison = measure(&stand, comparison, repetitions, &interrupted)?;
    let switches = measure(&stand, switches, repetitions, &interrupted)?;

    let setting = report::Setting {
        command: command_line(arguments),
        host: host::facts(stand.directory()),
        versions: programs::versions((!arguments.peers_only).then_some(awase.as_path())),
        scale: format!(
            "Repetitions: {repetitions}; large image: {} MiB; small image and what is copied: {} MiB; fio runs for {} s",
            scale.large_bytes >> 20,
            scale.small_bytes >> 20,
            scale.seconds
        ),
    };
    let output = output(arguments);
    fs::create_dir_all(&output).with_context(|| output.display().to_string())?;
    let write = |name: &str, text: String| {
        let path = output.join(name);
        fs::write(&path, text).with_context(|| path.display().to_string())?;
        println!("written: {}", path.display());
        anyhow::Ok(())
    };
    write("benchmarks.svg", plot::svg(&comparison, &switches)?)?;
    write("benchmarks.md", report::markdown(&setting, &comparison, &switches, "benchmarks.svg"))?;
    let failed: usize = comparison.iter().chain(&switches).map(|result| result.failures.iter().flatten().count()).sum();
    if failed > 0 {
        bail!("{failed} could not be measured; the report says why");
    }
    Ok(())
}

/// The workloads that were asked for: the comparison and the switches.
fn selected(arguments: &Arguments) -> Result<(Vec<Workload>, Vec<Workload>)> {
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

fn output(arguments: &Arguments) -> PathBuf {
    let part = arguments.quick || arguments.peers_only || !arguments.only.is_empty();
    arguments.output.clone().unwrap_or_else(|| Path::new(if part { "target" } else { "docs" }).to_owned())
}

/// How to do it again.
fn command_line(arguments: &Arguments) -> String {
    let mut flags = Vec::new();
    flags.extend(arguments.quick.then(|| "--quick".to_owned()));
    flags.extend(arguments.peers_only.then(|| "--peers-only".to_owned()));
    flags.extend(arguments.reps.map(|reps| format!("--reps {reps}")));
    flags.extend(arguments.only.iter().map(|only| format!("--only {only}")));
    if flags.is_empty() { "make bench".into() } else { format!("make bench ARGS=\"{}\"", flags.join(" ")) }
}

/// Measures all contenders of all workloads, those of one workload in turn. Who fails is left out from there on, so that
/// an hour of numbers is not lost.
fn measure(
    stand: &Stand,
    workloads: Vec<Workload>,
    repetitions: u32,
    interrupted: &Interrupted,
) -> Result<Vec<results::Result>> {
    let start = Instant::now();
    let mut measured = Vec::new();
    let count = workloads.len();
    for (number, workload) in workloads.into_iter().enumerate() {
        println!("[{}/{count}, {} s] {}: {}", number + 1, start.elapsed().as_secs(), workload.name, workload.title);
        stand.warm_disk(&workload)?;
        let mut result = results::Result::new(workload);
        for repetition in 1..=repetitions {
            let contenders = result.workload.contenders.len();
            for turn in 0..contenders {
                // Each repetition begins with another, since who comes first may find the disk in another state.
                let index = (turn + repetition as usize - 1) % contenders;
                if result.failures[index].is_none() {
                    take(stand, &mut result, index, repetition, interrupted)?;
                }
            }
        }
        measured.push(result);
    }
    Ok(measured)
}

/// Measures one contender once and says what came of it.
fn take(
    stand: &Stand,
    result: &mut results::Result,
    index: usize,
    repetition: u32,
    interrupted: &Interrupted,
) -> Result<()> {
    let contender = &result.workload.contenders[index];
    match stand.measure(&result.workload, contender) {
        Ok(sample) => {
            let cpu = sample.cpu_us.map_or(String::new(), |cpu| format!(", {} µs CPU", show(cpu)));
            let unit = result.workload.unit.name();
            println!("  {repetition}: {:20} {} {unit}{cpu}", contender.label, show(sample.value));
            result.samples[index].push(sample);
        }
        Err(_) if interrupted.load(Ordering::Relaxed) => bail!("interrupted"),
        Err(error) => {
            println!("  {repetition}: {:20} failed: {error:#}", contender.label);
            result.failures[index] = Some(format!("{error:#}"));
        }
    }
    Ok(())
}
