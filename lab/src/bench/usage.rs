//! `awase-lab bench usage`: what a light client gets beside a heavy one, with usage of jobs looked at (WS-7) and without.

mod load;

use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;

use self::load::{At, Connection, Kind};
use crate::bench::process::{Interrupted, Process};
use crate::bench::{host, programs};

/// Connections of the heavy client.
const CONNECTIONS: usize = 8;

/// Requests that it has in flight on each.
const DEPTH: usize = 64;

/// What is aimed for: how many times its idle 99th percentile the light client's may be beside the heavy one.
const RATIO_MAX: f64 = 3.0;

const EXPORT: &str = "disk";
const IMAGE_MIB: u64 = 64;

/// The heavy client begins so much before the light one.
const MARGIN: Duration = Duration::from_millis(500);

const START_PATIENCE: Duration = Duration::from_secs(30);

/// Measure a light client (one cached 4 KiB read in flight, Unix socket) beside a heavy one (8 connections with 64 in
/// flight each, TCP) that reads or writes 4 KiB, with the switch `usage` on and off. The server has one core, the clients
/// have the others, and the heavy client gives way to the light one there: what is seen is the server's part.
#[derive(Debug, Args)]
pub struct Usage {
    /// Repetitions.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    reps: u32,
    /// How many seconds each measurement of the light client takes.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// The program to measure; otherwise the one beside this program.
    #[arg(long, value_name = "PATH")]
    awase: Option<PathBuf>,
    /// Where the table goes as well.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Of each repetition: the light client's median and 99th percentile in microseconds, and requests a second of both.
#[derive(Default)]
struct Seen {
    p50_us: Vec<f64>,
    p99_us: Vec<f64>,
    light: Vec<f64>,
    heavy: Vec<f64>,
}

impl Seen {
    fn add(&mut self, mut took: Vec<Duration>, seconds: f64) -> Result<()> {
        took.sort_unstable();
        let at = |part: f64| took.get(((took.len() as f64 - 1.0) * part) as usize);
        let (Some(p50), Some(p99)) = (at(0.5), at(0.99)) else { bail!("the light client got no answer") };
        self.p50_us.push(p50.as_secs_f64() * 1e6);
        self.p99_us.push(p99.as_secs_f64() * 1e6);
        self.light.push(took.len() as f64 / seconds);
        Ok(())
    }
}

/// What was seen beside a heavy client that asks for one kind, with the switch on and off.
struct Beside {
    kind: Kind,
    on: Seen,
    off: Seen,
}

impl Beside {
    fn new(kind: Kind) -> Beside {
        Beside { kind, on: Seen::default(), off: Seen::default() }
    }
}

impl Usage {
    /// Measures and prints a table.
    ///
    /// # Errors
    /// When the program is missing or fails.
    pub fn run(&self, interrupted: &Interrupted) -> Result<()> {
        let awase = programs::awase(self.awase.as_deref())?;
        let place = tempfile::tempdir().context("a temporary directory")?;
        let server = Server::start(&awase, place.path(), interrupted)?;
        let (mut idle, mut beside) = (Seen::default(), [Beside::new(Kind::Read), Beside::new(Kind::Write)]);
        for _ in 0..self.reps {
            if interrupted.load(Ordering::Relaxed) {
                bail!("interrupted");
            }
            idle.add(self.light(&server)?, self.seconds.into())?;
            for Beside { kind, on, off } in &mut beside {
                for (seen, usage) in [(on, true), (off, false)] {
                    server.set_usage(usage)?;
                    self.beside_heavy(&server, *kind, seen)?;
                }
            }
        }
        server.process.stop()?;
        let table = self.table(&idle, &beside);
        print!("{table}");
        if let Some(path) = &self.output {
            fs::write(path, &table).with_context(|| path.display().to_string())?;
        }
        Ok(())
    }

    fn light(&self, server: &Server) -> Result<Vec<Duration>> {
        let client = || {
            keep_off_first_core();
            Connection::open(&server.unix(), EXPORT)?.one_at_a_time(Duration::from_secs(self.seconds.into()))
        };
        // In a thread of its own: where it may run is for it alone.
        thread::scope(|scope| joined(scope.spawn(client))).context("the light client")
    }

    fn beside_heavy(&self, server: &Server, kind: Kind, seen: &mut Seen) -> Result<()> {
        let ends = AtomicBool::new(false);
        let client = || {
            keep_off_first_core();
            give_way();
            Connection::open(&At::Port(server.port), EXPORT)?.keep_in_flight(kind, DEPTH, &ends)
        };
        let (light, answered, seconds) = thread::scope(|scope| {
            let began = Instant::now();
            let heavy: Vec<_> = (0..CONNECTIONS).map(|_| scope.spawn(client)).collect();
            thread::sleep(MARGIN);
            let light = self.light(server);
            ends.store(true, Ordering::Relaxed);
            let answered: io::Result<u64> = heavy.into_iter().map(joined).sum();
            (light, answered, began.elapsed().as_secs_f64())
        });
        seen.add(light?, self.seconds.into())?;
        seen.heavy.push(answered.context("the heavy client")? as f64 / seconds);
        Ok(())
    }

    fn table(&self, idle: &Seen, beside: &[Beside]) -> String {
        let idle_p99_us = median(&idle.p99_us);
        let ratio = |seen: &Seen| median(&seen.p99_us) / idle_p99_us;
        let row = |name: &str, seen: &Seen| {
            let heavy = if seen.heavy.is_empty() { String::new() } else { format!("{:.0}", median(&seen.heavy)) };
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
        let (mut rows, mut aims) = (String::new(), Vec::new());
        for Beside { kind, on, off } in beside {
            let kind = match kind {
                Kind::Read => "reads",
                Kind::Write => "writes",
            };
            rows += &row(&format!("beside {kind}, usage on"), on);
            rows += &row(&format!("beside {kind}, usage off"), off);
            let reached = if ratio(on) <= RATIO_MAX { "reached" } else { "**not reached**" };
            aims.push(format!("beside {kind} {reached}"));
        }
        let host: Vec<String> =
            host::facts(Path::new("/")).into_iter().filter(|line| !line.starts_with("Disk")).collect();
        format!(
            "# Benchmarks: a light client beside a heavy one\n\n\
             Written by `awase-lab bench usage` (`cargo run --release --package awase-lab bench usage`), which says how it measures.\n\n\
             - {}\n- Repetitions: {}, of {} s each; medians (smallest … largest)\n\n\
             | | light: 50 % µs | 99 % µs | times idle | requests/s | heavy: requests/s |\n|---|---|---|---|---|---|\n\
             {}{rows}\nAimed for: at most {RATIO_MAX} times idle with usage on; {}.\n",
            host.join("\n- "),
            self.reps,
            self.seconds,
            row("alone", idle),
            aims.join(", "),
        )
    }
}

fn joined<T>(client: thread::ScopedJoinHandle<'_, io::Result<T>>) -> io::Result<T> {
    client.join().unwrap_or_else(|_| Err(io::Error::other("panicked")))
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The calling thread leaves the first core to the server, if there are others.
fn keep_off_first_core() {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    // SAFETY: an all-zero set is an empty one; the calls read and write it alone, within its length.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        (1..cores.min(libc::CPU_SETSIZE as usize)).for_each(|core| libc::CPU_SET(core, &mut set));
        if cores > 1 {
            libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
        }
    }
}

/// The calling thread runs only where nobody else wants to. (With the lowest priority alone, who is woken there still
/// waits for the end of a slice of time.)
fn give_way() {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameters live until it returns.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) };
}

struct Server {
    process: Process,
    awase: PathBuf,
    place: PathBuf,
    socket: PathBuf,
    port: u16,
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
        command.args(["--export", &format!("name={EXPORT},kind=ram,size={IMAGE_MIB}MiB")]);
        let process = Process::start(command, &place.join("server.log"), interrupted)?;
        let mut server = Server { process, awase: awase.to_owned(), place: place.to_owned(), socket, port };
        let deadline = Instant::now() + START_PATIENCE;
        let mut connection = loop {
            match Connection::open(&server.unix(), EXPORT) {
                Ok(connection) => break connection,
                Err(_) if Instant::now() < deadline => {}
                Err(error) => bail!("Awase did not start: {error}: {}", server.process.messages()),
            }
            if let Some(status) = server.process.ended()? {
                bail!("Awase ended ({status}): {}", server.process.messages());
            }
            thread::sleep(Duration::from_millis(5));
        };
        // Everything is cached.
        connection.read_all()?;
        Ok(server)
    }

    fn unix(&self) -> At {
        At::Unix(self.socket.clone())
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
        let beside = [
            Beside { kind: Kind::Read, on: seen(&[130.0, 90.0, 100.0]), off: seen(&[4000.0]) },
            Beside { kind: Kind::Write, on: seen(&[121.0]), off: seen(&[4000.0]) },
        ];
        let table = usage.table(&seen(&[40.0]), &beside);
        assert!(table.contains("| beside reads, usage on | 10 | 100 (90 … 130) | 2.5 | 1 | 2 |"), "{table}");
        assert!(table.contains("| beside writes, usage off | 10 | 4000 (4000 … 4000) | 100.0 |"), "{table}");
        assert!(table.contains("; beside reads reached, beside writes **not reached**."), "{table}");
    }
}
