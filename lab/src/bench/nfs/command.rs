//! `awase-lab bench nfs`: workloads on one file server.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;

use super::run::{Directories, Reached, measure};
use super::workload::{Client, Measure, Setup, Workload, workloads};
use crate::bench::results::{self, Subject, retain};
use crate::bench::sample::{Sample, show};
use crate::bench::slow_disk::Disk;
use crate::bench::{host, programs, repetitions, report};
use crate::measure::load::{Endpoint, Load, Operation, Outcome, Stop, prepare};
use crate::measure::process::Interrupted;

/// Drive workloads on one NFSv3 server, with many requests in flight, and print what it reaches.
///
/// The servers are Awase and NFS-Ganesha, started here in turn (as root), or one that answers already (--server). Files
/// named load-* are made in the export; those of a server that is not started here stay there. The first number of each
/// line is that of the workload's unit.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  awase-lab bench nfs --server 127.0.0.1:20490 --export /srv/files --workload write_sync
  awase-lab bench nfs --server 127.0.0.1:20490 --export /srv/files --workload write_sync --in-flight 64 --seconds 10
  awase-lab bench nfs --workload slow_write_sync --workload slow_write_sync_extend --reps 3
  awase-lab bench nfs --contender Awase")]
pub struct Nfs {
    /// Where NFS answers.
    #[arg(long, value_name = "HOST:PORT", requires = "export")]
    server: Option<String>,
    /// Where MOUNT answers, if not on the same port.
    #[arg(long, value_name = "PORT", requires = "server")]
    mount_port: Option<u16>,
    /// Path of the export.
    #[arg(long, value_name = "PATH", requires = "server")]
    export: Option<String>,
    /// The user who calls.
    #[arg(long, default_value_t = 0)]
    uid: u32,
    /// Its group.
    #[arg(long, default_value_t = 0)]
    gid: u32,
    /// Only those whose names begin so (may be repeated).
    #[arg(long, value_name = "NAME", conflicts_with = "server")]
    contender: Vec<String>,
    /// The Awase to measure; otherwise the one beside this program.
    #[arg(long, value_name = "PATH")]
    awase: Option<PathBuf>,
    /// Where the files are made: on a disk, with 3 GiB free.
    #[arg(long, value_name = "DIR", default_value = "target")]
    directory: PathBuf,
    /// The workload (may be repeated); all that fit the server if none is named. --list shows them.
    #[arg(long, value_name = "NAME")]
    workload: Vec<String>,
    /// How long each goes on, in seconds; those on files that are not cached go through them once.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Repetitions; otherwise 5, with --server 1.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    reps: Option<u32>,
    /// Where benchmarks-files.md and .svg go; docs, or target where only a part is measured.
    #[arg(long, value_name = "DIR", conflicts_with = "server")]
    output: Option<PathBuf>,
    /// Requests in flight on each connection, instead of the workload's.
    #[arg(long, value_name = "N")]
    in_flight: Option<u32>,
    /// Clients, each on a connection and files of its own, instead of the workload's.
    #[arg(long, value_name = "N")]
    connections: Option<u32>,
    /// KiB of a request, instead of the workload's.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    request_kib: Option<u32>,
    /// MiB of a file, instead of the workload's.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1048576))]
    file_mib: Option<u64>,
    /// Print the names of the workloads and end.
    #[arg(long)]
    list: bool,
}

impl Nfs {
    pub fn run(&self, interrupted: &Interrupted) -> Result<()> {
        if self.list {
            return results::list(&workloads());
        }
        let workloads = self.workloads()?;
        match &self.server {
            Some(server) => self.on_server(&self.endpoint(server)?, &workloads, interrupted),
            None => self.side_by_side(workloads, interrupted),
        }
    }

    fn workloads(&self) -> Result<Vec<Workload>> {
        let mut all = workloads();
        let mut selected = Vec::new();
        for name in &self.workload {
            let named = all.iter().find(|workload| workload.subject.name == *name);
            selected.push(named.with_context(|| format!("no workload {name}; --list shows them"))?.clone());
        }
        if self.workload.is_empty() {
            // The disk of a server that was started elsewhere is unknown.
            let fits =
                |setup: &Setup| (setup.disk, setup.measure, setup.client) == (Disk::Local, Measure::Load, Client::Own);
            all.retain(|workload| self.server.is_none() || fits(&workload.setup));
            selected = all;
        }
        selected.iter_mut().for_each(|workload| workload.setup.load = self.changed(workload.setup.load));
        Ok(selected)
    }

    fn changed(&self, load: Load) -> Load {
        Load {
            request_bytes: self.request_kib.map_or(load.request_bytes, |kib| kib << 10),
            file_bytes: self.file_mib.map_or(load.file_bytes, |mib| mib << 20),
            connections: self.connections.unwrap_or(load.connections),
            in_flight: self.in_flight.unwrap_or(load.in_flight),
            ..load
        }
    }

    fn endpoint(&self, server: &str) -> Result<Endpoint> {
        let nfs = server.to_socket_addrs().ok().and_then(|mut all| all.next());
        let nfs = nfs.with_context(|| format!("--server {server}: not HOST:PORT of a host that is known"))?;
        let mount = SocketAddr::new(nfs.ip(), self.mount_port.unwrap_or(nfs.port()));
        let export = self.export.clone().context("--export is needed")?;
        Ok(Endpoint { nfs, mount, export, uid: self.uid, gid: self.gid })
    }

    fn on_server(&self, endpoint: &Endpoint, workloads: &[Workload], interrupted: &Interrupted) -> Result<()> {
        for Workload { subject, setup } in workloads {
            prepare(endpoint, &setup.load, &Stop::when(interrupted))?;
            let reached = Reached::new(endpoint, setup.link)?;
            for _ in 0..self.reps.unwrap_or(1) {
                let duration = Duration::from_secs(self.seconds);
                let measured = measure(&reached.endpoint, None, subject.unit, setup, duration, interrupted)?;
                print(subject, setup, &measured.0, &measured.1);
            }
        }
        Ok(())
    }

    fn side_by_side(&self, mut workloads: Vec<Workload>, interrupted: &Interrupted) -> Result<()> {
        let awase = programs::awase(self.awase.as_deref())?;
        if !self.contender.is_empty() {
            retain(&mut workloads, |contender| self.contender.iter().any(|name| contender.label.starts_with(name)));
        }
        let mut directories = Directories::new(&self.directory, &awase, interrupted)?;
        let host = host::facts(directories.directory());
        let (duration, repetitions) = (Duration::from_secs(self.seconds), self.reps.unwrap_or(5));
        let results = repetitions::run(
            &workloads,
            repetitions,
            interrupted,
            |_| Ok(()),
            |workload, contender| directories.measure(workload, contender, duration),
        )?;
        let setting = report::Setting {
            title: "Benchmarks: directories",
            reached: "over TCP on loopback",
            peers: "servers",
            cpu: report::CPU_OF_SERVER,
            command: self.command_line(),
            host,
            versions: programs::versions_of_files(&awase),
            scale: format!("Repetitions: {repetitions}; each of {} s where nothing else is said", self.seconds),
            notes: include_str!("notes.md"),
        };
        report::write(&self.output(), "benchmarks-files", &setting, &results, &[])
    }

    fn is_part(&self) -> bool {
        let changed = [self.in_flight, self.connections, self.request_kib].iter().any(Option::is_some);
        changed || self.file_mib.is_some() || !self.workload.is_empty() || !self.contender.is_empty()
    }

    fn output(&self) -> PathBuf {
        self.output.clone().unwrap_or_else(|| if self.is_part() { "target" } else { "docs" }.into())
    }

    /// The command line that repeats this run.
    fn command_line(&self) -> String {
        let mut line = "make bench-files".to_owned();
        let mut flags: Vec<String> = self.reps.map(|reps| format!("--reps {reps}")).into_iter().collect();
        flags.extend(self.workload.iter().map(|name| format!("--workload {name}")));
        flags.extend(self.contender.iter().map(|name| format!("--contender {name:?}")));
        if !flags.is_empty() {
            line += &format!(" ARGS={:?}", flags.join(" "));
        }
        line
    }
}

fn print(subject: &Subject, setup: &Setup, sample: &Sample, outcome: &Outcome) {
    let cpu = sample.cpu_us.map_or(String::new(), |cpu| format!(", {} µs CPU of the server", show(cpu)));
    let limit = match setup.disk {
        Disk::Local | Disk::QuickFlush => String::new(),
        Disk::SlowFlush => format!(", {:.2} of the flush limit", outcome.rate() / setup.flush_limit()),
    };
    println!(
        "{:24} {} {}; {} requests/s, {} MiB/s{limit}{cpu}",
        subject.name,
        show(sample.value),
        subject.unit.name(),
        show(outcome.rate()),
        show(outcome.bytes_a_second() / 1048576.0),
    );
    let percentiles = [50.0, 90.0, 99.0, 99.9, 100.0];
    let latency: Vec<String> = percentiles
        .iter()
        .map(|percent| format!("{percent} % {}", show(outcome.latencies.percentile_us(*percent))))
        .collect();
    let commits = if outcome.commits > 0 { format!("; {} COMMITs", outcome.commits) } else { String::new() };
    let what = if setup.load.operation == Operation::CreateRemove { "CREATEs and REMOVEs" } else { "requests" };
    println!("{:24} {} {what}, latency in µs: {}{commits}", "", outcome.requests, latency.join(", "));
}
