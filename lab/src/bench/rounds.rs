//! Rounds: every contender of a subject is measured once before any is measured twice.

use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::{Result, bail};

use crate::bench::process::Interrupted;
use crate::bench::results::{self, Subject};
use crate::bench::sample::{Sample, show};

pub trait Measure {
    /// Runs before the first contender of a subject.
    fn prepare(&mut self, subject: usize) -> Result<()>;

    fn measure(&mut self, subject: usize, contender: usize) -> Result<Sample>;
}

/// Measures all contenders of all subjects, those of one subject in turn. A contender that fails is left out from then
/// on, so that an hour of numbers is not lost.
pub fn run(
    measure: &mut impl Measure,
    subjects: Vec<Subject>,
    repetitions: u32,
    interrupted: &Interrupted,
) -> Result<Vec<results::Result>> {
    let start = Instant::now();
    let mut measured = Vec::new();
    let count = subjects.len();
    for (number, subject) in subjects.into_iter().enumerate() {
        println!("[{}/{count}, {} s] {}: {}", number + 1, start.elapsed().as_secs(), subject.name, subject.title);
        measure.prepare(number)?;
        let mut result = results::Result::new(subject);
        for repetition in 1..=repetitions {
            let contenders = result.subject.contenders.len();
            for turn in 0..contenders {
                // Each repetition begins with another contender, since the first may find the disk in another state.
                let index = (turn + repetition as usize - 1) % contenders;
                if result.failures[index].is_none() {
                    note(&mut result, index, repetition, measure.measure(number, index), interrupted)?;
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
    let label = result.subject.contenders[index];
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
