//! `awase-bench usage`: what a light client gets beside a heavy one, with usage of jobs looked at (WS-7) and without.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::fio::{Job, Length, Pattern, Report, Run, Target};
use crate::process::{Interrupted, Process};
use crate::{host, programs};

/// The light client: one cached read in flight.
const LIGHT: Job = Job::new(Pattern::RandomRead, 4, 1);

/// The heavy one: 8 connections, 64 in flight on each.
const HEAVY: Job = Job { connections: 8, ..Job::new(Pattern::RandomRead, 4, 64) };

/// What is aimed for: how many times its idle 99th percentile the light client's may be beside the heavy one.
const RATIO_MAX: f64 = 3.0;

const IMAGE_MIB: u64 = 256;

/// The heavy client begins so much before the light one, and ends as much after it. Seconds.
const MARGIN_S: u32 = 1;

const START_PATIENCE: Duration = Duration::from_secs(30);

/// Measure a light client (one cached 4 KiB read in flight, Unix socket) beside a heavy one (8 connections with 64 in
/// flight each, TCP), with the switch `usage` on and off. The server has one core, the clients have the others, and the
/// heavy client gives way to the light one there: what is seen is the server's part.
#[derive(Debug, Args)]
pub struct Usage {
    /// Repetitions.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    reps: u32,
    /// How long each measurement of the light client takes.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// The program to measure; otherwise the one beside this program.
    #[arg(long, value_name = "PATH")]
    awase: Option<PathBuf>,
    /// Where the table goes as well.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// What the light client got: each repetition's median and 99th percentile in microseconds, and requests a second of the
/// heavy one.
#[derive(Default)]
struct Seen {
    p50_us: Vec<f64>,
    p99_us: Vec<f64>,
    light: Vec<f64>,
    heavy: Vec<f64>,
}

impl Seen {
    fn add(&mut self, light: &Report, heavy: Option<&Report>) {
        self.p50_us.push(light.p50_us);
        self.p99_us.push(light.p99_us);
        self.light.push(light.rate);
        self.heavy.extend(heavy.map(|heavy| heavy.rate));
    }
}

impl Usage {
    /// Measures and prints a table.
    ///
    /// # Errors
    /// When a program is missing or fails.
    pub fn run(&self, interrupted: &Interrupted) -> Result<()> {
        let awase = programs::awase(self.awase.as_deref())?;
        let place = tempfile::tempdir().context("a temporary directory")?;
        let server = Server::start(&awase, place.path(), interrupted)?;
        let (mut idle, mut on, mut off) = (Seen::default(), Seen::default(), Seen::default());
        for _ in 0..self.reps {
            idle.add(&self.light(&server, interrupted)?, None);
            for (seen, usage) in [(&mut on, true), (&mut off, false)] {
                server.set_usage(usage)?;
                let heavy = self.heavy(&server);
                let process = heavy.run().start_as(&heavy.before(), interrupted)?;
                std::thread::sleep(Duration::from_secs(MARGIN_S.into()));
                let light = self.light(&server, interrupted)?;
                seen.add(&light, Some(&heavy.run().finish(process)?));
            }
        }
        server.process.stop()?;
        let table = self.table(&idle, &on, &off);
        print!("{table}");
        if let Some(path) = &self.output {
            fs::write(path, &table).with_context(|| path.display().to_string())?;
        }
        Ok(())
    }

    fn light(&self, server: &Server, interrupted: &Interrupted) -> Result<Report> {
        let client = Client {
            job: Job { length: Length::Seconds(self.seconds), ..LIGHT },
            uri: format!("nbd+unix:///disk?socket={}", server.socket.display()),
            log: server.place.join("light.log"),
            cores: server.clients_cores.clone(),
            gives_way: false,
        };
        client.run().finish(client.run().start_as(&client.before(), interrupted)?)
    }

    fn heavy(&self, server: &Server) -> Client {
        Client {
            job: Job { length: Length::Seconds(self.seconds + 2 * MARGIN_S), ..HEAVY },
            uri: format!("nbd://{}:{}/disk", Ipv4Addr::LOCALHOST, server.port),
            log: server.place.join("heavy.log"),
            cores: server.clients_cores.clone(),
            gives_way: true,
        }
    }

    fn table(&self, idle: &Seen, on: &Seen, off: &Seen) -> String {
        let idle_p99_us = median(&idle.p99_us);
        let ratio = |seen: &Seen| median(&seen.p99_us) / idle_p99_us;
        let row = |name: &str, seen: &Seen| {
            let heavy = if seen.heavy.is_empty() { "".into() } else { format!("{:.0}", median(&seen.heavy)) };
            format!(
                "| {name} | {:.0} | {:.0} ({:.0} … {:.0}) | {:.1} | {:.0} | {heavy} |\n",
                median(&seen.p50_us),
                median(&seen.p99_us),
                seen.p99_us.iter().copied().fold(f64::INFINITY, f64::min),
                seen.p99_us.iter().copied().fold(0.0, f64::max),
                ratio(seen),
                median(&seen.light),
            )
        };
        let host: Vec<String> =
            host::facts(Path::new("/")).into_iter().filter(|line| !line.starts_with("Disk")).collect();
        format!(
            "# A light client beside a heavy one\n\n- {}\n- Repetitions: {}, of {} s each; medians (smallest … largest)\n\n\
             | | light: 50 % µs | 99 % µs | times idle | requests/s | heavy: requests/s |\n|---|---|---|---|---|---|\n\
             {}{}{}\nAimed for: at most {RATIO_MAX} times idle with usage on; {}.\n",
            host.join("\n- "),
            self.reps,
            self.seconds,
            row("alone", idle),
            row("usage on", on),
            row("usage off", off),
            if ratio(on) <= RATIO_MAX { "reached" } else { "**not reached**" },
        )
    }
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// How fio is run.
struct Client {
    job: Job,
    uri: String,
    log: PathBuf,
    /// Empty where there is one core only.
    cores: String,
    gives_way: bool,
}

impl Client {
    fn run(&self) -> Run<'_> {
        let target = Target::Uri(&self.uri);
        Run { jobs: std::slice::from_ref(&self.job), target, bytes: IMAGE_MIB << 20, seconds: 0, log: &self.log }
    }

    fn before(&self) -> Vec<&str> {
        let cores: &[&str] = if self.cores.is_empty() { &[] } else { &["taskset", "-c", &self.cores] };
        // With the lowest priority alone, who is woken there still waits for a slice of time.
        let idle: &[&str] = if self.gives_way { &["chrt", "--idle", "0"] } else { &[] };
        [cores, idle].concat()
    }
}

struct Server {
    process: Process,
    awase: PathBuf,
    place: PathBuf,
    socket: PathBuf,
    port: u16,
    clients_cores: String,
}

impl Server {
    /// With one processor, on the first core that there is.
    fn start(awase: &Path, place: &Path, interrupted: &Interrupted) -> Result<Server> {
        // Free a moment ago.
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let socket = place.join("nbd.sock");
        let mut command = Command::new(awase);
        command.arg("serve").arg("--data").arg(place).args(["--nfs", "none", "--processors", "1"]);
        command.args(["--nbd", &format!("{}:{port}", Ipv4Addr::LOCALHOST), "--nbd-unix"]).arg(&socket);
        command.args(["--export", &format!("name=disk,kind=ram,size={IMAGE_MIB}MiB")]);
        let mut process = Process::start(command, &place.join("server.log"), interrupted)?;
        let deadline = Instant::now() + START_PATIENCE;
        while UnixStream::connect(&socket).is_err() {
            if let Some(status) = process.ended()? {
                bail!("Awase ended ({status}): {}", process.messages());
            }
            if Instant::now() > deadline {
                bail!("Awase did not start within {} s: {}", START_PATIENCE.as_secs(), process.messages());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let clients_cores = if cores > 1 { format!("1-{}", cores - 1) } else { String::new() };
        let server = Server { process, awase: awase.to_owned(), place: place.to_owned(), socket, port, clients_cores };
        server.fill(interrupted)?;
        Ok(server)
    }

    /// Has everything in the cache.
    fn fill(&self, interrupted: &Interrupted) -> Result<()> {
        let uri = format!("nbd+unix:///disk?socket={}", self.socket.display());
        let (job, log) =
            (Job { length: Length::OnePass, ..Job::new(Pattern::Write, 1024, 4) }, self.place.join("fill"));
        let client = Client { job, uri, log, cores: String::new(), gives_way: false };
        client.run().finish(client.run().start(interrupted)?).map(drop)
    }

    fn set_usage(&self, on: bool) -> Result<()> {
        let set =
            Command::new(&self.awase).arg("set").arg("--data").arg(&self.place).arg(format!("usage={on}")).output();
        let output = set.context("cannot start awase set")?;
        if !output.status.success() {
            bail!("awase set: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_says_how_many_times_idle_it_is_and_whether_that_is_what_is_aimed_for() {
        let usage = Usage { reps: 1, seconds: 1, awase: None, output: None };
        let seen = |p99: &[f64]| Seen { p50_us: vec![10.0], p99_us: p99.to_vec(), light: vec![1.0], heavy: vec![2.0] };
        let table = usage.table(&seen(&[40.0]), &seen(&[130.0, 90.0, 100.0]), &seen(&[4000.0]));
        assert!(table.contains("| usage on | 10 | 100 (90 … 130) | 2.5 | 1 | 2 |"), "{table}");
        assert!(table.contains("| usage off | 10 | 4000 (4000 … 4000) | 100.0 |") && table.contains("; reached."));
        assert!(usage.table(&seen(&[40.0]), &seen(&[121.0]), &seen(&[4000.0])).contains("**not reached**"));
    }
}
