//! `awase-lab bench transactions`: what a checkpoint costs those who transact meanwhile, and how long a start takes after
//! a crash; and transactions beside PostgreSQL.

mod beside;
mod postgresql;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use awase::config::CONTROL_NAME;
use awase::control::client::Client;
use clap::Args;
use serde_json::Value;

use crate::bench::programs;
use crate::measure::process::{Interrupted, Process, unless};

/// Of what lies between two looks nobody knows whether a checkpoint was under way: it counts as if.
const LOOK_PERIOD: Duration = Duration::from_millis(2);

/// Its log is as large as logs become.
const SIZE: &str = "2GiB";

/// In front of the port, in the banner.
const PORT_MARK: &str = "postgres://127.0.0.1:";

/// How long the tables grow before latencies count.
const WARM: Duration = Duration::from_secs(10);

/// Transactions before a crash, at least; and the log that it finds, at least: a checkpoint begins at 32 MiB of rows in memory.
const TRANSACTIONS: u64 = 1_000_000;
const LOG_BYTES: u64 = 30 << 20;
const LOADERS: u32 = 128;

/// Bounds a load, which may be asked to last half as long.
const TIMEOUT: Duration = Duration::from_secs(600);
const SECONDS_MAX: i64 = 300;

/// Targets: the 99.9th percentile during a checkpoint as a multiple of that without; the start.
const RATIO_MAX: f64 = 3.0;
const START_MAX: Duration = Duration::from_secs(10);

const BANK: Script = Script {
    name: "bank",
    program: include_bytes!("../../../../program/bank.wasm"),
    text: "\\set a random(1, 1000)\n\\set b random(1, 1000)\nSELECT transfer(:a, :b, 1);\n",
    question: "SELECT balance(1)",
};

const TPCB: Script = Script {
    name: "tpcb",
    program: include_bytes!("../../../../program/tpcb.wasm"),
    text: "\\set aid random(1, 1000000)\n\\set tid random(1, 100)\n\\set bid random(1, 10)\n\
           \\set delta random(-5000, 5000)\nSELECT tpcb(:aid, :tid, :bid, :delta);\n",
    question: "SELECT tpcb_branches()",
};

/// Measure transactions while checkpoints are made and while none is, as TPC-B has them, on a million accounts, from
/// pgbench; then kill a server whose log holds more than 30 MiB, after a million transfers, and see how long the next start
/// takes until the first query is answered. With --beside, transactions beside PostgreSQL instead.
#[derive(Debug, Args)]
pub struct Transactions {
    /// Where the database is: on a disk, with 3 GiB free.
    #[arg(long, value_name = "DIR", default_value = "target")]
    directory: PathBuf,
    /// How many seconds transactions are measured, after 10 s in which the tables grow; not with --beside.
    #[arg(long, value_name = "N", default_value_t = 20, conflicts_with = "beside", value_parser = clap::value_parser!(u32).range(1..=SECONDS_MAX))]
    seconds: u32,
    /// Clients of pgbench; not with --beside, where each row has its own.
    #[arg(long, value_name = "N", default_value_t = 32, conflicts_with = "beside", value_parser = clap::value_parser!(u32).range(1..=1000))]
    clients: u32,
    /// Instead, measure transfers, TPC-B and reads on Awase and on PostgreSQL, also on a disk whose flush takes 5 ms (needs root).
    #[arg(long)]
    beside: bool,
    /// Beside PostgreSQL, only what has this in its name, such as transfer-32 or slow-flush; may be repeated.
    #[arg(long, value_name = "TEXT", requires = "beside")]
    only: Vec<String>,
    /// Beside PostgreSQL, how often each is measured.
    #[arg(long, value_name = "N", default_value_t = 3, requires = "beside", value_parser = clap::value_parser!(u32).range(1..=100))]
    reps: u32,
    /// Beside PostgreSQL, how many seconds each time.
    #[arg(long, value_name = "N", default_value_t = 2, requires = "beside", value_parser = clap::value_parser!(u32).range(1..=SECONDS_MAX))]
    each: u32,
    /// The program to measure; otherwise the one beside this program.
    #[arg(long, value_name = "PATH")]
    awase: Option<PathBuf>,
}

/// What the clients do.
struct Script {
    name: &'static str,
    program: &'static [u8],
    text: &'static str,
    question: &'static str,
}

impl Transactions {
    /// Prints what it finds.
    ///
    /// # Errors
    /// When a program is missing or fails.
    pub fn run(&self, interrupted: &Interrupted) -> Result<()> {
        let program = programs::awase(self.awase.as_deref())?;
        if self.beside {
            return self.beside(&program, interrupted);
        }
        let bed = |script| Bed::new(&self.directory, &program, script, interrupted);
        self.checkpoints(&bed(&TPCB)?)?;
        start_after_crash(&bed(&BANK)?)
    }

    fn checkpoints(&self, bed: &Bed<'_>) -> Result<()> {
        let server = bed.serve()?;
        bed.load(&server, self.clients, WARM, false)?.finish(TIMEOUT)?;
        let over = AtomicBool::new(false);
        let (looks, load) = thread::scope(|scope| {
            let looks = scope.spawn(|| bed.look(&over));
            let load = bed.load(&server, self.clients, Duration::from_secs(self.seconds.into()), true);
            let load = load.and_then(|load| load.finish(TIMEOUT));
            over.store(true, Ordering::SeqCst);
            (looks.join(), load)
        });
        let (looks, _) = (looks.map_err(|_| anyhow::anyhow!("a thread panicked"))??, load?);
        let checkpoints = looks.windows(2).filter(|pair| pair[1].is_checkpointing && !pair[0].is_checkpointing).count();
        let (mut during, mut without): (Vec<u64>, Vec<u64>) = (Vec::new(), Vec::new());
        for Done { end, latency } in bed.done()? {
            let latency_us = latency.as_micros() as u64;
            if is_during(&looks, end.saturating_sub(latency), end) { &mut during } else { &mut without }
                .push(latency_us);
        }
        println!("TPC-B, {} clients, {} s, {checkpoints} checkpoints; milliseconds\n", self.clients, self.seconds);
        println!("{:<22} {:>12} {:>8} {:>8} {:>8} {:>8}", "", "transactions", "50 %", "99 %", "99.9 %", "most");
        let mut p999 = Vec::new();
        for (name, latencies) in [("without a checkpoint", &mut without), ("during one", &mut during)] {
            latencies.sort_unstable();
            let at = |part: f64| {
                let index = (latencies.len() as f64 * part) as usize;
                latencies.get(index.min(latencies.len().saturating_sub(1))).map_or(f64::NAN, |us| *us as f64 / 1000.0)
            };
            let [p50, p99, most] = [0.5, 0.99, 1.0].map(at);
            println!("{name:<22} {:>12} {p50:>8.2} {p99:>8.2} {:>8.2} {most:>8.2}", latencies.len(), at(0.999));
            p999.push(at(0.999));
        }
        println!("\n99.9 %, during one to without: {:.2} (at most {RATIO_MAX} wanted)\n", p999[1] / p999[0]);
        Ok(())
    }
}

fn start_after_crash(bed: &Bed<'_>) -> Result<()> {
    let mut server = bed.serve()?;
    // Ended with the server.
    let _load = bed.load(&server, LOADERS, TIMEOUT, false)?;
    let begun = Instant::now();
    let (commits, log) = loop {
        unless(bed.interrupted)?;
        let database = bed.status()?;
        let number = |key: &str| database[key].as_u64().unwrap_or(0);
        let (commits, log) = (number("commits"), number("log_bytes"));
        if commits >= TRANSACTIONS && log >= LOG_BYTES {
            break (commits, log);
        }
        ensure!(begun.elapsed() < TIMEOUT, "only {commits} transactions, {log} bytes of log");
        thread::sleep(LOOK_PERIOD);
    };
    server.process.kill();
    let begun = Instant::now();
    let again = bed.serve()?;
    bed.ask(&again)?;
    let took = begun.elapsed();
    println!(
        "Killed after {commits} transactions with {:.1} MiB of log: the first query is answered {:.2} s after the start \
         (at most {} s wanted)",
        log as f64 / f64::from(1 << 20),
        took.as_secs_f64(),
        START_MAX.as_secs(),
    );
    Ok(())
}

/// A database with its server, its clients and where they leave their files.
struct Bed<'a> {
    place: tempfile::TempDir,
    program: &'a Path,
    script: &'a Script,
    interrupted: &'a Interrupted,
}

struct Serving {
    process: Process,
    port: String,
}

/// Whether a checkpoint was under way, at a time since 1970.
struct Look {
    at: Duration,
    is_checkpointing: bool,
}

/// A transaction: its end since 1970.
struct Done {
    end: Duration,
    latency: Duration,
}

impl Drop for Bed<'_> {
    /// Its servers were killed, and have left their traces in memory.
    fn drop(&mut self) {
        awase::trace::file::remove_of(&self.at("data"));
    }
}

impl<'a> Bed<'a> {
    fn new(directory: &Path, program: &'a Path, script: &'a Script, interrupted: &'a Interrupted) -> Result<Bed<'a>> {
        fs::create_dir_all(directory)?;
        let place = tempfile::Builder::new().prefix("transactions-").tempdir_in(fs::canonicalize(directory)?)?;
        let at = |name: &str| place.path().join(name);
        fs::create_dir(at("programs"))?;
        fs::write(at("script.sql"), script.text)?;
        let text = format!(
            "data = {:?}\n[listen]\nnbd = []\nnbd_unix = []\nnfs = []\npostgres = [\"127.0.0.1:0\"]\npostgres_unix = []\n\
             [[database]]\nname = \"bank\"\npath = {:?}\nsize = {SIZE:?}\nprograms = {:?}\n",
            at("data"),
            at("bank.db"),
            at("programs"),
        );
        fs::write(at("awase.toml"), text)?;
        let bed = Bed { place, program, script, interrupted };
        bed.install(script)?;
        Ok(bed)
    }

    /// Adds the program of a script, which a server that is started later loads.
    fn install(&self, script: &Script) -> Result<()> {
        let file = self.at("programs").join(script.name).with_extension("wasm");
        Ok(fs::write(file, script.program)?)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    fn serve(&self) -> Result<Serving> {
        let mut command = Command::new(self.program);
        command.arg("serve").arg("--config").arg(self.at("awase.toml"));
        command.env_remove("NOTIFY_SOCKET").env_remove("LISTEN_FDS");
        let mut process = Process::start(command, &self.at("server.log"), self.interrupted)?;
        let port = process.ready(|process| {
            let banner = process.output();
            let (_, rest) = banner.split_once(PORT_MARK).context("it is not ready")?;
            Ok(rest.chars().take_while(char::is_ascii_digit).collect())
        })?;
        Ok(Serving { process, port })
    }

    fn load(&self, server: &Serving, clients: u32, time: Duration, logged: bool) -> Result<Process> {
        unless(self.interrupted)?;
        let mut command = Command::new("pgbench");
        command.args(["-h", "127.0.0.1", "-p", &server.port, "-n", "-M", "prepared", "-j", "1"]);
        command.args(["-c", &clients.to_string(), "-T", &time.as_secs().to_string(), "-f"]).arg(self.at("script.sql"));
        if logged {
            command.arg("-l").arg("--log-prefix").arg(self.at("latencies"));
        }
        command.arg("bank");
        Process::start(command, &self.at("pgbench.log"), &Arc::clone(self.interrupted))
            .context("pgbench is needed (Debian: postgresql)")
    }

    fn ask(&self, server: &Serving) -> Result<()> {
        let mut command = Command::new("psql");
        command.args(["-h", "127.0.0.1", "-p", &server.port, "-X", "-A", "-t", "-c", self.script.question, "bank"]);
        let answer = Process::start(command, &self.at("psql.log"), self.interrupted)?.finish(TIMEOUT)?;
        ensure!(!answer.trim().is_empty(), "no answer");
        Ok(())
    }

    fn status(&self) -> Result<Value> {
        let mut status = Client::connect(&self.at("data").join(CONTROL_NAME))?.status()?;
        Ok(status["databases"][0].take())
    }

    fn look(&self, over: &AtomicBool) -> Result<Vec<Look>> {
        let mut looks = Vec::new();
        while !over.load(Ordering::SeqCst) {
            let is_checkpointing = self.status()?["is_checkpointing"] == true;
            looks.push(Look { at: SystemTime::now().duration_since(UNIX_EPOCH)?, is_checkpointing });
            thread::sleep(LOOK_PERIOD);
        }
        Ok(looks)
    }

    /// What pgbench has logged: client, number, microseconds, script, end in seconds and microseconds.
    fn done(&self) -> Result<Vec<Done>> {
        let is_log = |name: &str| name.starts_with("latencies.");
        let mut done = Vec::new();
        for entry in fs::read_dir(self.place.path())? {
            let entry = entry?;
            if !is_log(&entry.file_name().to_string_lossy()) {
                continue;
            }
            for line in fs::read_to_string(entry.path())?.lines() {
                let fields: Vec<u64> = line.split(' ').filter_map(|field| field.parse().ok()).collect();
                let [_, _, latency, _, seconds, micros, ..] = fields[..] else { continue };
                let end = Duration::from_secs(seconds) + Duration::from_micros(micros);
                done.push(Done { end, latency: Duration::from_micros(latency) });
            }
        }
        ensure!(!done.is_empty(), "pgbench has logged nothing");
        Ok(done)
    }
}

/// Was a checkpoint under way at any time between these, as far as anybody has looked?
fn is_during(looks: &[Look], begin: Duration, end: Duration) -> bool {
    let first = looks.partition_point(|look| look.at < begin).saturating_sub(1);
    let last = looks.partition_point(|look| look.at <= end).min(looks.len().saturating_sub(1));
    looks.get(first..=last).is_some_and(|looks| looks.iter().any(|look| look.is_checkpointing))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_the_other_measurement_are_refused() {
        let parse = |options: &[&str]| {
            let command = Transactions::augment_args(clap::Command::new("transactions"));
            command.try_get_matches_from([&["transactions"], options].concat()).is_ok()
        };
        assert!(parse(&["--seconds", "300"]) && parse(&["--beside", "--each", "300"]));
        for others in [["--beside", "--seconds=5"], ["--beside", "--clients=5"], ["--each=5", "--reps=5"]] {
            assert!(!parse(&others), "{others:?}");
        }
    }

    #[test]
    fn a_transaction_is_during_a_checkpoint_if_any_look_at_or_beside_it_saw_one() {
        let looks: Vec<Look> = [(10, false), (20, true), (30, false), (40, false)]
            .map(|(ms, is_checkpointing)| Look { at: Duration::from_millis(ms), is_checkpointing })
            .into();
        let during = |begin, end| is_during(&looks, Duration::from_millis(begin), Duration::from_millis(end));
        assert!(during(12, 15) && during(22, 28) && during(5, 50) && during(20, 20));
        assert!(!during(1, 5) && !during(32, 35) && !during(45, 50));
        assert!(!is_during(&[], Duration::ZERO, Duration::MAX));
    }
}
