//! `awase-lab bench usage`: what a light client gets next to a heavy one, with job usage considered (WS-7) and without.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::bench::process::{Interrupted, Process};
use crate::bench::{host, programs};
use crate::here::give_way;
use crate::load::{Address, Drive, Length, Load, Operation, Order, Outcome, Stability, Stop, Target, drive, nbd};
use crate::spread::Spread;

const CONNECTIONS: u32 = 8;

/// Requests in flight on each of its connections.
const DEPTH: u32 = 64;

/// Target: the light client's 99th percentile next to the heavy one, as a multiple of its idle one.
const RATIO_MAX: f64 = 3.0;

const EXPORT: &str = "disk";
const IMAGE_MIB: u64 = 64;

/// The heavy client starts this long before the light one.
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
    fn add(&mut self, light: &Outcome) {
        self.p50_us.push(light.latencies.percentile_us(50.0));
        self.p99_us.push(light.latencies.percentile_us(99.0));
        self.light.push(light.rate());
    }
}

/// Measured next to a heavy client, with the switch on and off.
struct Beside {
    /// The heavy client's requests: their name in the table, and the operation.
    asks: &'static str,
    operation: Operation,
    on: Seen,
    off: Seen,
}

impl Beside {
    fn new(asks: &'static str, operation: Operation) -> Beside {
        Beside { asks, operation, on: Seen::default(), off: Seen::default() }
    }
}

const READS: Operation = Operation::Read(Order::Random);
const WRITES: Operation = Operation::Overwrite(Order::Random, Stability::Flushed { writes: 0 });

const fn load(operation: Operation, in_flight: u32) -> Load {
    Load { file_bytes: IMAGE_MIB << 20, shared: true, ..Load::new(operation, 4, in_flight) }
}

impl Usage {
    /// Prints a table.
    ///
    /// # Errors
    /// When the program is missing or fails.
    pub fn run(&self, interrupted: &Interrupted) -> Result<()> {
        let awase = programs::awase(self.awase.as_deref())?;
        let place = tempfile::tempdir().context("a temporary directory")?;
        let server = Server::start(&awase, place.path(), interrupted)?;
        let asked = || interrupted.load(Ordering::Relaxed);
        let stop = Stop::when(&asked);
        drive(&server.unix(), &load(READS, 1).reading_once(), Length::OnePass, &stop)?;
        let (mut idle, mut beside) = (Seen::default(), [Beside::new("reads", READS), Beside::new("writes", WRITES)]);
        for _ in 0..self.reps {
            idle.add(&self.light(&server, &stop)?);
            for Beside { operation, on, off, .. } in &mut beside {
                for (seen, usage) in [(on, true), (off, false)] {
                    server.set_usage(usage)?;
                    self.beside_heavy(&server, *operation, seen, &stop)?;
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

    fn light(&self, server: &Server, stop: &Stop<'_>) -> Result<Outcome> {
        let length = Length::For { warm: Duration::ZERO, measured: Duration::from_secs(self.seconds.into()) };
        let client = || {
            keep_off_first_core();
            drive(&server.unix(), &load(READS, 1), length, stop)
        };
        // A separate thread: its affinity is its own.
        thread::scope(|scope| joined(scope.spawn(client))).context("the light client")
    }

    fn beside_heavy(&self, server: &Server, operation: Operation, seen: &mut Seen, stop: &Stop<'_>) -> Result<()> {
        let over = AtomicBool::new(false);
        let heavy = Load { connections: CONNECTIONS, ..load(operation, DEPTH) };
        let heavy = Drive::open(&server.tcp(), &heavy, Length::UntilOver)?;
        let client = || {
            keep_off_first_core();
            give_way();
            heavy.run(&Stop { over: &over, ..*stop })
        };
        let (light, heavy) = thread::scope(|scope| {
            let heavy = scope.spawn(client);
            thread::sleep(MARGIN);
            let light = self.light(server, stop);
            over.store(true, Ordering::Relaxed);
            (light, joined(heavy))
        });
        seen.add(&light?);
        seen.heavy.push(heavy.context("the heavy client")?.rate());
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
        for Beside { asks, on, off, .. } in beside {
            rows += &row(&format!("beside {asks}, usage on"), on);
            rows += &row(&format!("beside {asks}, usage off"), off);
            let reached = if ratio(on) <= RATIO_MAX { "reached" } else { "**not reached**" };
            aims.push(format!("beside {asks} {reached}"));
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

fn joined<T>(client: thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    client.join().unwrap_or_else(|_| bail!("panicked"))
}

fn median(values: &[f64]) -> f64 {
    Spread::of(values.iter().copied()).median
}

/// Keeps the calling thread off the first core, which is the server's, if there are others.
fn keep_off_first_core() {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    // SAFETY: an all-zero set is an empty one; the calls access only it, within its length.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        (1..cores.min(libc::CPU_SETSIZE as usize)).for_each(|core| libc::CPU_SET(core, &mut set));
        if cores > 1 {
            libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
        }
    }
}

struct Server {
    process: Process,
    awase: PathBuf,
    place: PathBuf,
    socket: PathBuf,
    port: u16,
}

impl Server {
    /// One processor, on the first core.
    fn start(awase: &Path, place: &Path, interrupted: &Interrupted) -> Result<Server> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let socket = place.join("nbd.sock");
        let mut command = Command::new(awase);
        command.arg("serve").arg("--data").arg(place).args(["--nfs", "none", "--processors", "1"]);
        command.args(["--nbd", &format!("{}:{port}", Ipv4Addr::LOCALHOST), "--nbd-unix"]).arg(&socket);
        command.args(["--export", &format!("name={EXPORT},kind=ram,size={IMAGE_MIB}MiB")]);
        let process = Process::start(command, &place.join("server.log"), interrupted)?;
        let mut server = Server { process, awase: awase.to_owned(), place: place.to_owned(), socket, port };
        let deadline = Instant::now() + START_PATIENCE;
        while let Err(error) = nbd::connect(&Address::Unix(server.socket.clone()), EXPORT) {
            if Instant::now() >= deadline {
                bail!("Awase did not start: {error:#}: {}", server.process.messages());
            }
            if let Some(status) = server.process.ended()? {
                bail!("Awase ended ({status}): {}", server.process.messages());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }

    fn unix(&self) -> Target {
        Target::Nbd { at: Address::Unix(self.socket.clone()), export: EXPORT.to_owned() }
    }

    fn tcp(&self) -> Target {
        let at = Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, self.port)));
        Target::Nbd { at, export: EXPORT.to_owned() }
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
            Beside { on: seen(&[130.0, 90.0, 100.0]), off: seen(&[4000.0]), ..Beside::new("reads", READS) },
            Beside { on: seen(&[121.0]), off: seen(&[4000.0]), ..Beside::new("writes", WRITES) },
        ];
        let table = usage.table(&seen(&[40.0]), &beside);
        assert!(table.contains("| beside reads, usage on | 10 | 100 (90 … 130) | 2.5 | 1 | 2 |"), "{table}");
        assert!(table.contains("| beside writes, usage off | 10 | 4000 (4000 … 4000) | 100.0 |"), "{table}");
        assert!(table.contains("; beside reads reached, beside writes **not reached**."), "{table}");
    }
}
