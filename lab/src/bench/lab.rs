//! `awase-lab bench lab`: how fast virtual time passes, and what all experiments of the lab take.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use rustix::time::{ClockId, clock_gettime};

use crate::bench::figure::{self, Figure};
use crate::bench::{host, programs};
use crate::measure::process::{Interrupted, unless};
use crate::measure::spread::Spread;

/// Events in one measurement of the engine.
const EVENTS: u64 = 20_000_000;

/// Target of the engine.
const EVENTS_A_SECOND_MIN: f64 = 5e6;
const SECONDS_MAX: f64 = 60.0;
const MEBIBYTES_MAX: f64 = 500.0;

/// Measure events of the simulator a second on one core, and time and memory of `awase lab run all`.
#[derive(Debug, Args)]
pub struct Lab {
    /// Repetitions.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    reps: u32,
    /// The program to measure; otherwise the one beside this program.
    #[arg(long, value_name = "PATH")]
    awase: Option<PathBuf>,
    /// Where benchmarks-lab.md goes.
    #[arg(long, value_name = "DIR", default_value = "docs")]
    output: PathBuf,
}

fn show(spread: Spread, factor: f64, digits: usize) -> String {
    spread.scaled(factor).shown(|value| format!("{value:.digits$}"))
}

impl Lab {
    /// # Errors
    /// When the program is missing or fails, or the report cannot be written.
    pub fn run(&self, interrupted: &Interrupted) -> Result<()> {
        let awase = programs::awase(self.awase.as_deref())?;
        let directory = tempfile::tempdir().context("a temporary directory")?;
        let mut speeds = Vec::new();
        let mut all = Vec::new();
        for _ in 0..self.reps {
            unless(interrupted)?;
            let before = processor_time()?;
            let events = papers::speed::mix(EVENTS, papers::DEFAULT_SEED);
            speeds.push(events as f64 / (processor_time()? - before).as_secs_f64());
            all.push(seconds_of(&awase, "all", directory.path())?);
        }
        let (speed, all) = (Spread::of(speeds), Spread::of(all));
        // Every child so far ran all experiments.
        let mebibytes = children_peak_bytes()? as f64 / f64::from(1 << 20);
        println!("events: {} million/s", show(speed, 1e-6, 1));
        println!("awase lab run all: {} s, {mebibytes:.0} MiB", show(all, 1.0, 2));
        let mut each = String::new();
        for experiment in papers::simulated() {
            let seconds = seconds_of(&awase, experiment.name(), directory.path())?;
            each += &format!("| {} | {} | {seconds:.2} |\n", experiment.name(), experiment.sheet().title);
        }
        figure::write(&self.output, "benchmarks-lab.md", &self.report(speed, all, mebibytes, &each))
    }

    fn report(&self, speed: Spread, all: Spread, mebibytes: f64, each: &str) -> String {
        let arguments = if self.reps == 5 { String::new() } else { format!(" ARGS=\"--reps {}\"", self.reps) };
        let figures = [
            Figure::new(
                "Events of the simulator on one core",
                format!("at least {:.0} million/s", EVENTS_A_SECOND_MIN / 1e6),
                Some((format!("{} million/s", show(speed, 1e-6, 1)), speed.median >= EVENTS_A_SECOND_MIN)),
            ),
            Figure::new(
                "`awase lab run all` on all cores",
                format!("at most {SECONDS_MAX:.0} s"),
                Some((format!("{} s", show(all, 1.0, 2)), all.median <= SECONDS_MAX)),
            ),
            Figure::new(
                "Its memory, at the most",
                format!("at most {MEBIBYTES_MAX:.0} MiB"),
                Some((format!("{mebibytes:.0} MiB"), mebibytes <= MEBIBYTES_MAX)),
            ),
        ];
        format!(
            "# Benchmarks: the lab\n\nWritten by `make bench-lab{arguments}`; do not edit.\n\n- {}\n- awase {}\n\
             - Repetitions: {}\n\nNumbers are medians (smallest … largest of all repetitions).\n\n\
             ## Figures to reach\n\n{}\n\
             Events are counted by the second of processor time. They are entries of the agenda and turns of tasks, of a mix (`papers/src/speed.rs`) of {} tasks that sleep, share a\n\
             resource and send each other messages, and of a hundred timers of a model without tasks.\n\n\
             ## Each experiment alone\n\n| experiment | | s |\n|---|---|---|\n{each}",
            host::facts_without_disk().join("\n- "),
            env!("CARGO_PKG_VERSION"),
            self.reps,
            figure::table("figure", &figures),
            papers::speed::TASKS,
        )
    }
}

/// Wall-clock time of an experiment with its report.
fn seconds_of(awase: &Path, name: &str, directory: &Path) -> Result<f64> {
    let start = Instant::now();
    let mut command = Command::new(awase);
    command.args(["lab", "run", name, "--out"]).arg(directory.join("report"));
    let output = command.stdin(Stdio::null()).output().with_context(|| awase.display().to_string())?;
    if !output.status.success() {
        bail!("awase lab run {name} failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(start.elapsed().as_secs_f64())
}

/// CPU time of this thread: other load on the host does not count.
pub(crate) fn processor_time() -> Result<Duration> {
    Ok(Duration::try_from(clock_gettime(ClockId::ThreadCPUTime))?)
}

/// The largest resident set of any child that has ended.
fn children_peak_bytes() -> Result<u64> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: getrusage fills the structure that it is given, which lives until it returns.
    let usage = unsafe {
        if libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr()) != 0 {
            return Err(std::io::Error::last_os_error()).context("getrusage");
        }
        usage.assume_init()
    };
    // In KiB (getrusage(2)).
    Ok(usage.ru_maxrss.max(0) as u64 * 1024)
}
