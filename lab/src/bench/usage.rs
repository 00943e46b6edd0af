//! `awase-lab bench usage`: what a light client gets next to a heavy one, with job usage considered (WS-7) and without.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;

use crate::bench::{host, programs};
use crate::local::clients::{Clients, Generator, Time};
use crate::local::{Export, Host, Medium, Protocol, Server, ServerConfig};
use crate::measure::load::{Load, Operation, Order, Outcome, Stability};
use crate::measure::process::{Interrupted, unless};
use crate::measure::spread::Spread;

const CONNECTIONS: u32 = 8;

/// Requests in flight on each of its connections.
const DEPTH: u32 = 64;

/// Target: the light client's 99th percentile next to the heavy one, as a multiple of its idle one.
const RATIO_MAX: f64 = 3.0;

/// Target: requests a second of a client that is alone with the switch on, as a multiple of those with it off.
const ALONE_MIN: f64 = 0.98;

const EXPORT: &str = "disk";
const IMAGE_MIB: u64 = 64;

/// The heavy client starts this long before the light one.
const MARGIN: Duration = Duration::from_millis(500);

/// The server's memory: room for the image. Bytes.
const MEMORY: u64 = 256 << 20;

/// Measure a light client (one cached 4 KiB read in flight, Unix socket) beside a heavy one (8 connections with 64 in
/// flight each, TCP) that reads or writes 4 KiB, with the switch `usage` on and off. The server has one core, the clients
/// have the others, and the heavy client gives way to the light one there: what is seen is the server's part. Each of them
/// is measured alone, too.
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

/// Of each repetition: a client's median and 99th percentile in microseconds, its requests a second, and those of the
/// other client.
#[derive(Default)]
struct Seen {
    p50_us: Vec<f64>,
    p99_us: Vec<f64>,
    rate: Vec<f64>,
    other_rate: Vec<f64>,
}

impl Seen {
    fn add(&mut self, client: &Outcome, other: Option<&Outcome>) {
        self.p50_us.push(client.latencies.percentile_us(50.0));
        self.p99_us.push(client.latencies.percentile_us(99.0));
        self.rate.push(client.rate());
        self.other_rate.extend(other.map(Outcome::rate));
    }
}

/// A client alone, or beside another one, with the switch on and off.
struct Case {
    name: &'static str,
    client: Clients,
    other: Option<Clients>,
    on: Seen,
    off: Seen,
}

impl Case {
    fn new(name: &'static str, client: Clients, other: Option<Clients>) -> Case {
        Case { name, client, other, on: Seen::default(), off: Seen::default() }
    }

    /// Requests a second with the switch on, as a multiple of those with it off.
    fn rate_ratio(&self) -> f64 {
        median(&self.on.rate) / median(&self.off.rate)
    }
}

const READS: Operation = Operation::Read(Order::Random);
const WRITES: Operation = Operation::Overwrite(Order::Random, Stability::Flushed { writes: 0 });

const fn clients(protocol: Protocol, operation: Operation, in_flight: u32) -> Clients {
    let load = Load::new(operation, 4, in_flight);
    Clients { protocol, load: Load { file_bytes: IMAGE_MIB << 20, shared: true, ..load } }
}

const LIGHT: Clients = clients(Protocol::Nbd(EXPORT), READS, 1);

fn heavy(operation: Operation) -> Clients {
    let one = clients(Protocol::NbdOverTcp(EXPORT), operation, DEPTH);
    Clients { load: Load { connections: CONNECTIONS, ..one.load }, ..one }
}

impl Usage {
    /// Prints a table.
    ///
    /// # Errors
    /// When the program is missing or fails.
    pub fn run(&self, interrupted: &Interrupted) -> Result<()> {
        let place = tempfile::tempdir().context("a temporary directory")?;
        let host = Host::new(place.path(), &programs::awase(self.awase.as_deref())?).ended_by(interrupted);
        let medium = Medium::Ram { bytes: IMAGE_MIB << 20 };
        let exports = vec![Export { name: EXPORT, medium }];
        let config = ServerConfig { processors: 1, memory: MEMORY, exports, ..ServerConfig::default() };
        let server = host.serve(&config)?;
        generator(&host, &server).fill(&LIGHT)?;
        let mut alone = [
            Case::new("light, alone", LIGHT, None),
            Case::new("heavy, alone, reads", heavy(READS), None),
            Case::new("heavy, alone, writes", heavy(WRITES), None),
        ];
        let mut beside = [
            Case::new("light beside reads", LIGHT, Some(heavy(READS))),
            Case::new("light beside writes", LIGHT, Some(heavy(WRITES))),
        ];
        for repetition in 0..self.reps {
            for Case { client, other, on, off, .. } in alone.iter_mut().chain(&mut beside) {
                let mut turns = [(on, "true"), (off, "false")];
                // Each repetition begins with the other value.
                turns.rotate_left(repetition as usize % 2);
                for (seen, usage) in turns {
                    unless(interrupted)?;
                    server.set("usage", usage)?;
                    let time = Time { warm: MARGIN, measured: Duration::from_secs(self.seconds.into()) };
                    let (client, other) = generator(&host, &server).run(client, other.as_ref(), time)?;
                    seen.add(&client, other.as_ref());
                }
            }
        }
        drop(server);
        let table = self.table(&alone, &beside);
        print!("{table}");
        if let Some(path) = &self.output {
            fs::write(path, &table).with_context(|| path.display().to_string())?;
        }
        Ok(())
    }

    /// `alone`: the light client is the first.
    fn table(&self, alone: &[Case], beside: &[Case]) -> String {
        let idle_p99_us = median(&alone[0].on.p99_us);
        let times_idle = |seen: &Seen| median(&seen.p99_us) / idle_p99_us;
        let reached = |is_reached| if is_reached { "reached" } else { "**not reached**" };
        let (mut rows, mut aims) = (String::new(), Vec::new());
        for case in alone {
            rows += &row(case, |_| String::new());
            let ratio = case.rate_ratio();
            aims.push(format!("{} {ratio:.3} {}", case.name, reached(ratio >= ALONE_MIN)));
        }
        let mut beside_aims = Vec::new();
        for case in beside {
            rows += &row(case, |seen| format!("{:.1}", times_idle(seen)));
            let times = times_idle(&case.on);
            beside_aims.push(format!("{} {times:.1} {}", case.name, reached(times <= RATIO_MAX)));
        }
        format!(
            "# Benchmarks: a light client beside a heavy one\n\n\
             Written by `awase-lab bench usage` (`cargo run --release --package awase-lab bench usage`), which says how it measures.\n\n\
             - {}\n- Repetitions: {}, of {} s each; medians (smallest … largest)\n\n\
             | | 50 % µs | 99 % µs | times idle | requests/s | the heavy one beside it: requests/s |\n|---|---|---|---|---|---|\n\
             {rows}\nAimed for: alone, at least {ALONE_MIN} of the requests a second with usage off: {}.\n\
             Beside a heavy one, at most {RATIO_MAX} times idle at 99 %: {}.\n",
            host::facts_without_disk().join("\n- "),
            self.reps,
            self.seconds,
            aims.join(", "),
            beside_aims.join(", "),
        )
    }
}

/// The rows of a case. `times_idle` goes into its column.
fn row(case: &Case, times_idle: impl Fn(&Seen) -> String) -> String {
    let row = |usage: &str, seen: &Seen| {
        let other = if seen.other_rate.is_empty() { String::new() } else { format!("{:.0}", median(&seen.other_rate)) };
        format!(
            "| {}, usage {usage} | {:.0} | {} | {} | {:.0} | {other} |\n",
            case.name,
            median(&seen.p50_us),
            Spread::of(seen.p99_us.iter().copied()).shown(|value| format!("{value:.0}")),
            times_idle(seen),
            median(&seen.rate),
        )
    };
    row("on", &case.on) + &row("off", &case.off)
}

fn median(values: &[f64]) -> f64 {
    Spread::of(values.iter().copied()).median
}

/// The clients have all cores but the server's.
fn generator<'a>(host: &'a Host, server: &'a Server) -> Generator<'a> {
    Generator { host, server, processors: 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_says_how_far_from_idle_it_is_and_whether_that_is_what_is_aimed_for() {
        let usage = Usage { reps: 1, seconds: 1, awase: None, output: None };
        let seen = |p99: &[f64], rate: f64| Seen {
            p50_us: vec![10.0],
            p99_us: p99.to_vec(),
            rate: vec![rate],
            other_rate: vec![2.0],
        };
        let case = |name, on, off| Case { on, off, ..Case::new(name, LIGHT, None) };
        let alone = [
            case("light, alone", seen(&[40.0], 99.0), seen(&[40.0], 100.0)),
            case("heavy, alone", seen(&[1.0], 97.0), seen(&[1.0], 100.0)),
        ];
        let beside = [
            case("light beside reads", seen(&[130.0, 90.0, 100.0], 1.0), seen(&[4000.0], 1.0)),
            case("light beside writes", seen(&[121.0], 1.0), seen(&[4000.0], 1.0)),
        ];
        let table = usage.table(&alone, &beside);
        assert!(table.contains("| light beside reads, usage on | 10 | 100 (90 … 130) | 2.5 | 1 | 2 |"), "{table}");
        assert!(table.contains("| light beside writes, usage off | 10 | 4000 (4000 … 4000) | 100.0 |"), "{table}");
        assert!(
            table.contains(": light beside reads 2.5 reached, light beside writes 3.0 **not reached**."),
            "{table}"
        );
        assert!(table.contains(": light, alone 0.990 reached, heavy, alone 0.970 **not reached**."), "{table}");
    }
}
