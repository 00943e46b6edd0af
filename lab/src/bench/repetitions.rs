//! Passes: every contender of a workload is measured once before any is measured twice.

use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::{Result, bail};

use crate::bench::contender::Contender;
use crate::bench::results::{self, Workload};
use crate::bench::sample::{Sample, show};
use crate::measure::process::Interrupted;

/// Measures all contenders of all workloads, those of one workload in turn; `prepare` runs before them. A contender that
/// fails is left out from then on, so that an hour of numbers is not lost.
pub fn run<S>(
    workloads: &[Workload<S>],
    repetitions: u32,
    interrupted: &Interrupted,
    prepare: impl Fn(&Workload<S>) -> Result<()>,
    mut measure: impl FnMut(&Workload<S>, &Contender) -> Result<Sample>,
) -> Result<Vec<results::Result>> {
    let start = Instant::now();
    let mut measured = Vec::new();
    for (number, workload) in workloads.iter().enumerate() {
        let (number, count, elapsed) = (number + 1, workloads.len(), start.elapsed().as_secs());
        println!("[{number}/{count}, {elapsed} s] {}: {}", workload.subject.name, workload.subject.title);
        prepare(workload)?;
        let mut result = results::Result::new(workload.subject.clone());
        for repetition in 1..=repetitions {
            let contenders = result.subject.contenders.len();
            for position in 0..contenders {
                // Each repetition begins with another contender, since the first may find the disk in another state.
                let index = (position + repetition as usize - 1) % contenders;
                if result.failures[index].is_none() {
                    let sample = measure(workload, &workload.subject.contenders[index]);
                    note(&mut result, index, repetition, sample, interrupted)?;
                }
            }
        }
        measured.push(result);
    }
    Ok(measured)
}

/// Records and prints the outcome of one measurement.
fn note(
    result: &mut results::Result,
    index: usize,
    repetition: u32,
    sample: Result<Sample>,
    interrupted: &Interrupted,
) -> Result<()> {
    let label = result.subject.contenders[index].label;
    match sample {
        Ok(sample) => {
            let cpu = sample.cpu_us.map_or(String::new(), |cpu| format!(", {} µs CPU", show(cpu)));
            println!("  {repetition}: {label:20} {} {}{cpu}", show(sample.value), result.subject.unit.name());
            result.samples[index].push(sample);
        }
        Err(_) if interrupted.load(Ordering::Relaxed) => bail!("interrupted"),
        Err(error) => {
            println!("  {repetition}: {label:20} failed: {error:#}");
            result.failures[index] = Some(format!("{error:#}"));
        }
    }
    Ok(())
}
