//! UIO on this host: random blocks of its disk, read into frames or through a buffer that is mapped for each I/O, on
//! one and on more processors; with the host's own count of TLB shootdowns.

use std::fs;
use std::time::{Duration, Instant};

use kernel::Processor;
use kernel::device::DeviceRef;
use kernel::request::Context;
use machine::Errno;
use papers::parameter::Parameters;
use papers::result::{Axis, Plot, Series};
use policy::unit::{BLOCK_BYTES, ByteRange, ProcessorId};

use super::repetitions::{Repetitions, Spread, interleaved, table};
use super::task::{self, JOB};
use super::{Effort, LocalError, LocalRun, Measured, Medium, Setup};
use crate::measure::spread::XorShift;

/// Size of the file. Bytes.
const FILE: u64 = 64 << 20;

/// Memory of the kernel: more than all reads in flight. Bytes.
const MEMORY: u64 = 64 << 20;

/// Reads in flight on each processor.
const DEPTH: u64 = 16;

const ROUNDS: Repetitions = Repetitions { most: 5, time_max: Duration::from_secs(3) };

/// Numbers of processors at most: one, half of them, all.
const COUNTS: u64 = 3;

const BUFFERS: [(bool, &str); 2] = [(false, "mapped"), (true, "unmapped")];

pub(super) fn steps(effort: Effort, _: &Parameters) -> u64 {
    u64::from(effort.pick(ROUNDS.most, 1)) * COUNTS * BUFFERS.len() as u64
}

pub(super) fn measure(run: &LocalRun<'_>) -> Result<Measured, LocalError> {
    let counts = counts(run.host.processors());
    let arms = counts.len() * BUFFERS.len();
    // Counts the steps for which the host has too few processors.
    run.step(steps(run.effort, run.parameters) - u64::from(run.pick(ROUNDS.most, 1)) * arms as u64);
    let spreads = interleaved(run, ROUNDS, arms, |arm| {
        let (is_unmapped, _) = BUFFERS[arm % BUFFERS.len()];
        read(run, counts[arm / BUFFERS.len()], is_unmapped)
    })?;
    Ok(measured(run, &counts, &spreads))
}

fn counts(all: u16) -> Vec<u16> {
    let mut counts = vec![1, (all / 2).max(1), all];
    counts.dedup();
    counts
}

/// Thousand reads a second, TLB shootdowns a read, and microseconds of processor time a read.
fn read(run: &LocalRun<'_>, processors: u16, is_unmapped: bool) -> Result<[f64; 3], LocalError> {
    let setup = Setup { processors_max: processors, ..Setup::with_memory(MEMORY) };
    let stage = run.host.start(&setup.switched(|switches| switches.unmapped_io = is_unmapped))?;
    let device = stage.device(&Medium::Disk { bytes: FILE })?;
    let time = run.pick(Duration::from_millis(150), Duration::from_millis(5));
    let (shootdowns, before) = (shootdowns(), stage.spent()?);
    let start = Instant::now();
    let on = (0..u64::from(stage.kernel().processors()) * DEPTH).map(|number| ProcessorId((number / DEPTH) as u16));
    let reads = task::run_all(stage.kernel(), on, move |number, cpu| read_for(cpu, device, number, time))?;
    let reads: u64 = reads.into_iter().sum();
    let took = start.elapsed();
    let each = |all: u64| all as f64 / reads.max(1) as f64;
    let shot_down = self::shootdowns().zip(shootdowns).map_or(0, |(now, then)| now.saturating_sub(then));
    let used = stage.spent()?.cpu.saturating_sub(before.cpu);
    Ok([reads as f64 / took.as_secs_f64() / 1000.0, each(shot_down), each(used.as_nanos() as u64) / 1000.0])
}

/// Reads random blocks for `time`. Returns their number.
async fn read_for(cpu: Processor, device: DeviceRef, task: u64, time: Duration) -> Result<u64, Errno> {
    let end = cpu.now() + time;
    let (mut reads, mut random) = (0, XorShift(XorShift::SEED ^ task));
    while cpu.now() < end {
        let range = ByteRange::new(random.number() % (FILE / BLOCK_BYTES) * BLOCK_BYTES, BLOCK_BYTES);
        task::read(&cpu, &device, range, Context::synchronous(JOB)).await?;
        reads += 1;
    }
    Ok(reads)
}

/// TLB shootdowns of the whole host since boot, if it counts them.
fn shootdowns() -> Option<u64> {
    counted(&fs::read_to_string("/proc/interrupts").ok()?)
}

/// The sum over all processors in `/proc/interrupts`.
fn counted(interrupts: &str) -> Option<u64> {
    let line = interrupts.lines().find_map(|line| line.trim_start().strip_prefix("TLB:"))?;
    Some(line.split_whitespace().map_while(|word| word.parse::<u64>().ok()).sum())
}

fn measured(run: &LocalRun<'_>, counts: &[u16], spreads: &[[Spread; 3]]) -> Measured {
    let mut measured = Measured::default();
    let arms = || counts.iter().flat_map(|count| BUFFERS.map(|(_, buffers)| (*count, buffers)));
    for ((count, buffers), [rate, ..]) in arms().zip(spreads) {
        measured.cell("scaling", buffers, count.to_string(), rate.median);
    }
    let disk = run.host.disk();
    let rows = |what: usize| {
        let plural = |count: u16| if count == 1 { "" } else { "s" };
        let names = arms().map(|(count, buffers)| format!("{buffers}, {count} processor{}", plural(count)));
        names.zip(spreads.iter().map(|spread| spread[what])).collect::<Vec<_>>()
    };
    let title = format!("random blocks read from {disk}, {DEPTH} under way on each processor");
    measured.tables.push(table("here-rates", &title, "thousand/s", 1, rows(0)));
    if shootdowns().is_some() {
        measured.tables.push(table("here-shootdowns", "TLB shootdowns of the host", "a read", 3, rows(1)));
    }
    measured.tables.push(table("here-time", "processor time of Awase", "us a read", 1, rows(2)));
    measured.plots.push(plot(counts, spreads));
    measured.notes.push(format!(
        "Here: blocks of 4 KiB from {disk}, past the page cache, with unmapped_io on and off. With it off, a buffer is mapped \
         into the process for each read and unmapped after it, and the data are copied; the disk may be what limits the \
         rate, so the processor time is told too. {} Where a single processor runs Awase, nobody else has to drop a \
         translation.",
        match shootdowns() {
            Some(_) => "TLB shootdowns are those of the whole host (/proc/interrupts): other programs' are among them.",
            None => "This host does not count TLB shootdowns (no such line in /proc/interrupts).",
        }
    ));
    measured
}

fn plot(counts: &[u16], spreads: &[[Spread; 3]]) -> Plot {
    let series = BUFFERS.iter().enumerate().map(|(arm, (_, name))| {
        Series::local(
            *name,
            counts
                .iter()
                .zip(spreads.chunks(BUFFERS.len()))
                .map(|(count, spreads)| (f64::from(*count), spreads[arm][0].median)),
        )
    });
    Plot::lines(
        "here-scaling",
        "On this host: blocks read by number of processors",
        Axis::linear("processors", ""),
        Axis::linear("read", "thousand blocks a second"),
        series.collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shootdowns_are_summed_over_the_processors_and_nothing_is_made_up_where_none_are_counted() {
        let text = "           CPU0       CPU1\n  1:   9   9  IO-APIC\nTLB:    7129525    7143557   TLB shootdowns\n";
        assert_eq!(counted(text), Some(14_273_082));
        assert_eq!(counted("  1:   9   9  IO-APIC\n"), None);
    }

    #[test]
    fn one_half_and_all_of_the_processors_are_tried_once_each() {
        assert_eq!(counts(1), [1]);
        assert_eq!(counts(2), [1, 2]);
        assert_eq!(counts(64), [1, 32, 64]);
    }
}
