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

const EXPORT: &str = "disk";
const IMAGE_MIB: u64 = 64;

/// The heavy client starts this long before the light one.
const MARGIN: Duration = Duration::from_millis(500);

/// The server's memory: room for the image. Bytes.
const MEMORY: u64 = 256 << 20;

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

/// The light client, measured with a heavy one, with the switch on and off.
struct Compared {
    /// The heavy client's requests: their name in the table, and the operation.
    asks: &'static str,
    operation: Operation,
    on: Seen,
    off: Seen,
}

impl Compared {
    fn new(asks: &'static str, operation: Operation) -> Compared {
        Compared { asks, operation, on: Seen::default(), off: Seen::default() }
    }
}

const READS: Operation = Operation::Read(Order::Random);
const WRITES: Operation = Operation::Overwrite(Order::Random, Stability::Flushed { writes: 0 });

const fn clients(protocol: Protocol, operation: Operation, in_flight: u32) -> Clients {
    let load = Load::new(operation, 4, in_flight);
    Clients { protocol, load: Load { file_bytes: IMAGE_MIB << 20, shared: true, ..load } }
}

const LIGHT: Clients = clients(Protocol::Nbd(EXPORT), READS, 1);

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
        let time = |warm| Time { warm, measured: Duration::from_secs(self.seconds.into()) };
        let reads = Compared::new("reads", READS);
        let (mut idle, mut compared) = (Seen::default(), [reads, Compared::new("writes", WRITES)]);
        for _ in 0..self.reps {
            idle.add(&generator(&host, &server).run(&LIGHT, None, time(Duration::ZERO))?.0);
            for Compared { operation, on, off, .. } in &mut compared {
                let heavy = clients(Protocol::NbdOverTcp(EXPORT), *operation, DEPTH);
                let heavy = Clients { load: Load { connections: CONNECTIONS, ..heavy.load }, ..heavy };
                for (seen, usage) in [(on, "true"), (off, "false")] {
                    unless(interrupted)?;
                    server.set("usage", usage)?;
                    let (light, heavy) = generator(&host, &server).run(&LIGHT, Some(&heavy), time(MARGIN))?;
                    seen.add(&light);
                    seen.heavy.extend(heavy.as_ref().map(Outcome::rate));
                }
            }
        }
        drop(server);
        let table = self.table(&idle, &compared);
        print!("{table}");
        if let Some(path) = &self.output {
            fs::write(path, &table).with_context(|| path.display().to_string())?;
        }
        Ok(())
    }

    fn table(&self, idle: &Seen, compared: &[Compared]) -> String {
        let idle_p99_us = median(&idle.p99_us);
        let ratio = |seen: &Seen| median(&seen.p99_us) / idle_p99_us;
        let row = |name: &str, seen: &Seen| {
            let heavy = if seen.heavy.is_empty() { String::new() } else { format!("{:.0}", median(&seen.heavy)) };
            format!(
                "| {name} | {:.0} | {} | {:.1} | {:.0} | {heavy} |\n",
                median(&seen.p50_us),
                Spread::of(seen.p99_us.iter().copied()).shown(|value| format!("{value:.0}")),
                ratio(seen),
                median(&seen.light),
            )
        };
        let (mut rows, mut aims) = (String::new(), Vec::new());
        for Compared { asks, on, off, .. } in compared {
            rows += &row(&format!("beside {asks}, usage on"), on);
            rows += &row(&format!("beside {asks}, usage off"), off);
            let reached = if ratio(on) <= RATIO_MAX { "reached" } else { "**not reached**" };
            aims.push(format!("beside {asks} {reached}"));
        }
        format!(
            "# Benchmarks: a light client beside a heavy one\n\n\
             Written by `awase-lab bench usage` (`cargo run --release --package awase-lab bench usage`), which says how it measures.\n\n\
             - {}\n- Repetitions: {}, of {} s each; medians (smallest … largest)\n\n\
             | | light: 50 % µs | 99 % µs | times idle | requests/s | heavy: requests/s |\n|---|---|---|---|---|---|\n\
             {}{rows}\nAimed for: at most {RATIO_MAX} times idle with usage on; {}.\n",
            host::facts_without_disk().join("\n- "),
            self.reps,
            self.seconds,
            row("alone", idle),
            aims.join(", "),
        )
    }
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
    fn the_table_says_how_many_times_idle_it_is_and_whether_that_is_what_is_aimed_for() {
        let usage = Usage { reps: 1, seconds: 1, awase: None, output: None };
        let seen = |p99: &[f64]| Seen { p50_us: vec![10.0], p99_us: p99.to_vec(), light: vec![1.0], heavy: vec![2.0] };
        let compared = [
            Compared { on: seen(&[130.0, 90.0, 100.0]), off: seen(&[4000.0]), ..Compared::new("reads", READS) },
            Compared { on: seen(&[121.0]), off: seen(&[4000.0]), ..Compared::new("writes", WRITES) },
        ];
        let table = usage.table(&seen(&[40.0]), &compared);
        assert!(table.contains("| beside reads, usage on | 10 | 100 (90 … 130) | 2.5 | 1 | 2 |"), "{table}");
        assert!(table.contains("| beside writes, usage off | 10 | 4000 (4000 … 4000) | 100.0 |"), "{table}");
        assert!(table.contains("; beside reads reached, beside writes **not reached**."), "{table}");
    }
}
