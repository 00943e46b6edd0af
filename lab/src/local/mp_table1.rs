//! MP table 1 on this host: `iotest` with funnelled and with symmetric access, on up to the paper's nine processors.
//!
//! Funnelled and symmetric are the values of the switch `access`: what is measured is the funnel of the kernel's queues.
//! The paper's times, including those of its disk and test device, are divided by [`FASTER`]: processors have become
//! faster by more than that.

use std::sync::Arc;
use std::time::Duration;

use kernel::device::DeviceRef;
use kernel::request::Context;
use kernel::{Kernel, Processor, Switches};
use machine::Errno;
use papers::drive::mechanical::{Mechanical, SeekCurve};
use papers::parameter::Parameters;
use papers::result::{Axis, Cell, Plot, Series, Table};
use policy::access::Mode;
use policy::unit::{BLOCK_BYTES, ByteRange, Instant, ProcessorId};

use super::repetitions::{Repetitions, Spread, interleaved};
use super::task::{self, JOB};
use super::{Effort, LocalError, LocalRun, Measured, Medium, Setup};

/// Divisor of the paper's times.
const FASTER: u32 = 100;

/// Duration of a wait count in the paper: ten, about 20 ms (MP footnote 3).
const WAIT: Duration = Duration::from_millis(2);

/// Service time of `testdev` in the paper (MP section 3.3).
const TESTDEV: Duration = Duration::from_millis(17);

/// A spinning process yields after this time, in the paper's terms: a time slice of a Unix of the time.
const TIME_SLICE: Duration = Duration::from_millis(100);

/// Processors that ran processes in the paper.
const PROCESSORS_MAX: u16 = 9;

/// Fewer than the paper's thirteen, but repeated: on a host with other load only repetition helps.
const PROCESSES: [u64; 8] = [1, 2, 3, 4, 6, 9, 12, 20];
const WAITS: [u32; 6] = [0, 10, 20, 50, 100, 200];
const DEVICES: [&str; 3] = ["scsihd", "testdev", "ramdisk"];
/// Values of the switch `access`, in the order of [`Times`].
const MODES: [Mode; 2] = [Mode::Funnel, Mode::Symmetric];

/// Size of the devices; a process starts over when it has read them. Bytes.
const DEVICE_BYTES: u64 = 16 << 20;

/// Target time of one cell, unless a few loops of each process take longer: less than a time slice of the host, so that
/// some runs are not interrupted by other programs.
const CELL_TIME: Duration = Duration::from_millis(2);
const LOOPS_MIN: u64 = 2;
const LOOPS_MAX: u64 = 2000;

const ROUNDS: Repetitions = Repetitions { most: 5, time_max: Duration::from_millis(3000) };

pub(super) fn steps(effort: Effort, _: &Parameters) -> u64 {
    let rounds = u64::from(effort.pick(ROUNDS.most, 1));
    rounds * (DEVICES.len() * waits(effort).len() * processes(effort).len()) as u64
}

pub(super) fn measure(run: &LocalRun<'_>) -> Result<Measured, LocalError> {
    let processors = run.host.processors().min(PROCESSORS_MAX);
    let mut measured = Measured::default();
    if processors < 2 {
        run.step(steps(run.effort, run.parameters));
        measured.notes.push("Here: one processor only, so there is nothing to funnel to.".to_owned());
        return Ok(measured);
    }
    for name in DEVICES {
        let gains = on(run, name, processors)?;
        for (row, gains) in gains.chunks(processes(run.effort).len()).enumerate() {
            for (column, times) in gains.iter().enumerate() {
                let (wait, count) = (waits(run.effort)[row], processes(run.effort)[column]);
                measured.cell(name, wait.to_string(), count.to_string(), gain(times));
            }
        }
        measured.tables.push(gain_table(run.effort, name, processors, &gains));
        measured.plots.push(gain_plot(run.effort, name, processors, &gains));
        measured.notes.push(disturbance(name, &gains));
    }
    measured.notes.push(format!(
        "Here: {processors} processors (the paper had nine), and every time of the paper {FASTER} times shorter: waits, \
         time slices, testdev and the modelled disk, which run in real time; as in the simulated table it reads nothing \
         ahead, and no reads are merged. Funnelled and symmetric are the values of the switch access: with the former, \
         only the first processor starts devices. Completions arrive where the device was started."
    ));
    Ok(measured)
}

fn waits(effort: Effort) -> &'static [u32] {
    effort.pick(&WAITS, &WAITS[..2])
}

fn processes(effort: Effort) -> &'static [u64] {
    effort.pick(&PROCESSES, &PROCESSES[..2])
}

fn medium(name: &str) -> Result<Medium, LocalError> {
    let bytes = DEVICE_BYTES;
    let model = match name {
        "scsihd" => {
            let model = Mechanical::named("scsi-1990");
            Mechanical {
                rpm: model.rpm * FASTER,
                head_switch: model.head_switch / FASTER,
                seek: SeekCurve {
                    single: model.seek.single / FASTER,
                    mean: model.seek.mean / FASTER,
                    full: model.seek.full / FASTER,
                },
                overhead: model.overhead / FASTER,
                bus_bytes_per_second: model.bus_bytes_per_second * u64::from(FASTER),
                read_ahead: false,
                ..model
            }
        }
        "testdev" => testdev(),
        _ => return Ok(Medium::Ram { bytes }),
    };
    Ok(Medium::Mechanical { bytes, model })
}

/// Each request takes the same time: nothing moves.
fn testdev() -> Mechanical {
    let none = Duration::ZERO;
    Mechanical {
        rpm: 600_000_000,
        sector_bytes: 512,
        sectors_per_track: 8,
        heads: 1,
        cylinders: 1,
        head_switch: none,
        track_skew: 0,
        cylinder_skew: 0,
        seek: SeekCurve { single: none, mean: none, full: none },
        overhead: TESTDEV / FASTER,
        bus_bytes_per_second: 1_000_000_000_000,
        buffer_bytes: 64 << 10,
        read_ahead: false,
        write_passes: 1,
        transfer_bytes_max: BLOCK_BYTES as u32,
    }
}

/// The result of one cell: seconds with funnelled and with symmetric access.
type Times = [Spread; 2];

/// How much faster symmetric access is, in percent (as in the paper's tables). It compares the least disturbed
/// repetitions: other load on the host only ever adds time, and at this scale more than the effect.
fn gain([funnelled, symmetric]: &Times) -> f64 {
    (funnelled.least / symmetric.least.max(1e-9) - 1.0) * 100.0
}

/// The precision of the numbers: how far repetitions of the same thing lie apart.
fn disturbance(name: &str, cells: &[Times]) -> String {
    let repetitions = cells.iter().flatten().map(|spread| spread.count).max().unwrap_or(0);
    if repetitions < 2 {
        return format!("Here, {name}: this host was too busy for a second repetition, and the numbers say little.");
    }
    let apart = cells.iter().flatten().map(|spread| (spread.most / spread.least.max(1e-9) - 1.0) * 100.0);
    let apart = Spread::of(apart).median;
    format!(
        "Here, {name}: the slowest of {repetitions} repetitions took {apart:.0} % longer than the fastest (median over the \
         cells). The table compares the fastest; differences far below that say little."
    )
}

/// Without merging, as in the simulated table.
fn setup(processors: u16) -> Setup {
    Setup { processors_max: processors, ..Setup::with_memory(64 << 20) }
        .switched(|switches| switches.block_merge = false)
}

/// Funnelled and symmetric access, for each wait and, within that, for each number of processes.
fn on(run: &LocalRun<'_>, name: &str, processors: u16) -> Result<Vec<Times>, LocalError> {
    let stage = run.host.start(&setup(processors))?;
    let device = stage.device(&medium(name)?)?;
    let (waits, counts) = (waits(run.effort), processes(run.effort));
    interleaved(run, ROUNDS, waits.len() * counts.len(), |arm| {
        let load = Load::new(name, waits[arm / counts.len()], counts[arm % counts.len()], processors, run.effort);
        let mut took = [Duration::MAX; 2];
        // In both orders, so that neither mode is always the first. Long runs are not repeated in reverse.
        let turn = [0, 1, 1, 0];
        let half = if arm % 2 == 0 { &turn[..2] } else { &turn[2..] };
        for &mode in if load.is_long() { half } else { &turn[..] } {
            let fastest = &mut took[mode];
            *fastest = load.run(stage.kernel(), &device, MODES[mode])?.min(*fastest);
        }
        Ok(took.map(|took| took.as_secs_f64()))
    })
}

#[derive(Clone, Copy)]
struct Load {
    processes: u64,
    loops: u64,
    wait: Duration,
    expected: Duration,
}

impl Load {
    fn new(name: &str, wait: u32, processes: u64, processors: u16, effort: Effort) -> Self {
        let wait = WAIT * wait / FASTER;
        // Estimated time of one loop of all: they spin in parallel, and devices with moving parts serve one at a time.
        let device = if name == "ramdisk" { Duration::from_micros(3) } else { TESTDEV / FASTER };
        let spinning = wait * processes.div_ceil(processors.into()) as u32;
        let loop_of_all = spinning.max(device * processes as u32).max(wait + device);
        let loops = (CELL_TIME.as_nanos() / loop_of_all.as_nanos().max(1)) as u64;
        let loops = effort.pick(loops.clamp(LOOPS_MIN, LOOPS_MAX), LOOPS_MIN);
        Load { processes, loops, wait, expected: loop_of_all * loops as u32 }
    }

    fn is_long(&self) -> bool {
        self.expected > 2 * CELL_TIME
    }

    /// Time from the start of the first process to the end of the last.
    fn run(&self, kernel: &Arc<Kernel>, device: &DeviceRef, access: Mode) -> Result<Duration, LocalError> {
        let load = *self;
        let set = |switches: &mut Switches| -> Result<(), LocalError> {
            switches.access = access;
            Ok(())
        };
        kernel.change_switches(set)?;
        let device = DeviceRef::clone(device);
        let on = (0..self.processes).map(|number| place(number, load.processes, kernel.processors()));
        let spans = task::run_all(kernel, on, move |_, cpu| process(cpu, device, load, access))?;
        let span = spans.into_iter().reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)));
        span.map(|(first, last)| last.since(first)).ok_or(LocalError::NoResult)
    }
}

/// Where a process runs: the master is left idle while there are fewer processes than processors (MP section 5.2),
/// except that a single process runs where its reads are done (section 5.1).
fn place(number: u64, processes: u64, processors: u16) -> ProcessorId {
    let count = u64::from(processors);
    let processor = match processes {
        1 => 0,
        _ if processes < count => 1 + number % (count - 1),
        _ => number % count,
    };
    ProcessorId(processor as u16)
}

async fn process(cpu: Processor, device: DeviceRef, load: Load, access: Mode) -> Result<(Instant, Instant), Errno> {
    // A processor adopts the switch with its next time slice.
    while cpu.switches().access != access {
        cpu.yield_now().await;
    }
    let start = cpu.now();
    for number in 0..load.loops {
        let range = ByteRange::new(number * BLOCK_BYTES % DEVICE_BYTES, BLOCK_BYTES);
        task::read(&cpu, &device, range, Context::synchronous(JOB)).await?;
        // A read ends with a yield, as a system call does: the first processor has others' reads to start.
        cpu.yield_now().await;
        spin(&cpu, load.wait).await;
    }
    Ok((start, cpu.now()))
}

/// Uses the processor for `wait`, yielding after each time slice.
async fn spin(cpu: &Processor, wait: Duration) {
    let mut left = wait;
    while !left.is_zero() {
        let slice = left.min(TIME_SLICE / FASTER);
        let end = cpu.now() + slice;
        while cpu.now() < end {
            std::hint::spin_loop();
        }
        left -= slice;
        cpu.yield_now().await;
    }
}

fn gain_table(effort: Effort, name: &str, processors: u16, gains: &[Times]) -> Table {
    let (waits, counts) = (waits(effort), processes(effort));
    let repetitions = gains.iter().map(|[times, _]| times.count).max().unwrap_or(0);
    let local = |times: &Times| Cell { local: Some(gain(times)), ..Cell::default() };
    Table {
        name: format!("here-{name}"),
        title: format!(
            "On this host: {name}, {processors} processors, improvement of symmetric over funnelled access (fastest of \
             {repetitions})"
        ),
        unit: "%".to_owned(),
        digits: 1,
        rows_are: "wait count".to_owned(),
        columns_are: "processes".to_owned(),
        cells: gains.chunks(counts.len()).map(|row| row.iter().map(local).collect()).collect(),
        in_points: true,
        ..Table::default()
    }
    .of_rows(waits)
    .of_columns(counts)
}

fn gain_plot(effort: Effort, name: &str, processors: u16, gains: &[Times]) -> Plot {
    let counts = processes(effort);
    let series = waits(effort).iter().zip(gains.chunks(counts.len())).map(|(wait, gains)| {
        Series::local(
            format!("wait {wait}"),
            counts.iter().zip(gains).map(|(&count, times)| (count as f64, gain(times))),
        )
    });
    Plot::lines(
        format!("here-{name}"),
        format!("On this host: {name}, {processors} processors"),
        Axis::linear("processes", ""),
        Axis::linear("improvement", "%"),
        series.collect(),
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use awase::stack::{disk_in_memory, queued};
    use kernel::device::{Device, DeviceFacts, RamDisk, Work};
    use kernel::request::{Outcome, Request};

    use super::super::Host;
    use super::*;

    /// A disk in memory that remembers which processors started it.
    struct Watched(RamDisk, Arc<Mutex<Vec<u16>>>);

    impl Device for Watched {
        fn facts(&self) -> DeviceFacts {
            self.0.facts()
        }

        fn perform<'a>(&'a self, cpu: &'a Processor, request: Request) -> Work<'a, Outcome> {
            self.1.lock().expect("not poisoned").push(cpu.id().0);
            self.0.perform(cpu, request)
        }
    }

    #[test]
    fn the_switch_decides_which_processors_start_the_device() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let host = Host::new(directory.path(), std::path::Path::new("awase"));
        if host.processors() < 2 {
            testkit::skip!("one processor");
        }
        let stage = host.start(&setup(2)).expect("started");
        let started = Arc::new(Mutex::default());
        let watched = Watched(RamDisk::new(DEVICE_BYTES, disk_in_memory()), Arc::clone(&started));
        let device = queued(stage.kernel(), Arc::new(watched), None, 1);
        let load = Load { loops: 20, ..Load::new("ramdisk", 0, 4, 2, Effort::Tiny) };
        let starts = |mode| {
            load.run(stage.kernel(), &device, mode).expect("it ends well");
            std::mem::take(&mut *started.lock().expect("not poisoned"))
        };
        let [funnel, symmetric] = MODES.map(starts);
        assert_eq!(funnel, [0; 80], "only the first");
        assert!(symmetric.len() == 80 && symmetric.contains(&1), "{symmetric:?}");
    }

    #[test]
    fn the_disk_is_the_simulated_one_but_for_its_speed() {
        let Ok(Medium::Mechanical { model, .. }) = medium("scsihd") else { panic!("a disk with an arm") };
        assert!(!model.read_ahead, "or the next process has its block from the drive's buffer");
        assert!(!setup(2).switches.block_merge);
    }

    #[test]
    fn the_master_is_kept_idle_while_there_are_fewer_processes_than_processors() {
        let places = |processes| (0..processes).map(|n| place(n, processes, 4).0).collect::<Vec<_>>();
        assert_eq!(places(1), [0]);
        assert_eq!(places(3), [1, 2, 3]);
        assert_eq!(places(5), [0, 1, 2, 3, 0]);
    }
}
