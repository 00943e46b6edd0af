//! TOP-1 with OSF/1, and the test program `iotest`, of the multiprocessor paper.

mod parameters;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use crate::model::bus::Bus;
use crate::model::completion::{self, Completions};
use crate::model::disk::Disk;
use crate::model::processors::mach::{self, Mach};
use crate::model::processors::{self, Processors};
use crate::model::raw_device::{self, Backing, RawDevice};
use crate::model::wait::Resource;
use crate::model::{Simulation, Virtual};
use machine::drive::Drive;
use policy::access::{Access, Mode};
use policy::delivery::Method;
use policy::queue;
use policy::unit::{ByteRange, Instant, ProcessorId};

use crate::parameter::Parameters;

pub(super) use parameters::MODERN;
pub use parameters::{Table, parameters, setup, wait};

pub const MASTER: ProcessorId = ProcessorId(0);

/// Of TOP-1, that run OSF/1.
const PROCESSORS: u16 = 9;

/// Processes in the paper's tables.
pub const PROCESSES: [u32; 13] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20];

/// Bytes that `iotest` reads at a time.
const READ_BYTES: u64 = 4096;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Device {
    /// The SCSI disk behind the disk subsystem.
    Disk {
        drive: Drive,
        /// Commands that it takes at a time.
        depth: u16,
        /// The subsystem's work on a command.
        command: Duration,
    },
    /// Answers after a fixed time, so many at a time.
    Fixed { time: Duration, servers: u32 },
    Memory {
        /// Of a read, the processor's copy.
        copy: Duration,
        /// Beside it, what it takes of the bus.
        transfer: Duration,
        bursts: u32,
    },
}

/// A machine, and what it runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setup {
    pub processors: u16,
    pub costs: processors::Costs,
    pub interrupt: completion::Costs,
    pub read: raw_device::Costs,
    pub quantum: Duration,
    /// Is the master told of threads that want to go there?
    pub tells_master: bool,
    /// How often a system thread that is bound to the master runs.
    pub daemon_every: Duration,
    pub daemon_runs: Duration,
    pub device: Device,
    pub access: Mode,
    pub delivery: Method,
    /// From the start of one `iotest` to that of the next, on average.
    pub start_every: Duration,
    pub processes: u32,
    /// Reads of all of them that are measured, when all have been running for some time.
    pub reads: u32,
    /// How long it computes after each read.
    pub wait: Duration,
}

/// Is it the paper's machine, so that its numbers can stand beside?
pub fn is_the_papers(told: &Parameters) -> bool {
    told.get("machine.processors") == f64::from(PROCESSORS) && told.get("disk.flash") < 0.5
}

/// How many processes are run: those of the paper, or as many more as there are more processors.
pub fn process_counts(processors: u16) -> Vec<u32> {
    let (here, there) = (u32::from(processors), u32::from(PROCESSORS));
    let mut counts: Vec<u32> =
        PROCESSES.iter().map(|count| if *count == 1 { 1 } else { count * here / there }).collect();
    counts.iter_mut().for_each(|count| *count = (*count).max(1));
    counts.dedup();
    counts
}

/// Time from read to read of a process, in milliseconds: the mean of some runs.
pub fn loop_ms(setup: &Setup, seed: u64, runs: u32) -> f64 {
    let loops = (0..u64::from(runs)).map(|number| run(setup, seed.wrapping_mul(1000) + number).as_secs_f64());
    loops.sum::<f64>() * 1000.0 / f64::from(runs.max(1))
}

/// Runs it: the time from one read of a process to its next, on average.
fn run(setup: &Setup, seed: u64) -> Duration {
    let run = Simulation::new(seed);
    let order = order(&run, setup.processors);
    let (quantum, tells_master) = (setup.quantum, setup.tells_master);
    let config = mach::Config { processors: setup.processors, master: MASTER, quantum, tells_master };
    let processors = Processors::new(&run, setup.processors, setup.costs, Box::new(Mach::new(config, &order)));
    let completions = Completions::new(&run, &processors, setup.delivery, setup.interrupt);
    let access = Access::new(setup.access, MASTER);
    let device = RawDevice::new(&run, access, setup.read, completions, backing(&run, &setup.device));
    daemon(&processors, &run, setup);
    let reads = Rc::new(Cell::new(0));
    let mut start = Duration::ZERO;
    for _ in 0..setup.processes {
        start += setup.start_every.mul_f64(2.0 * run.fraction());
        iotest(&processors, &device, setup, start, Rc::clone(&reads));
    }
    // Not until each has read: one whose processor does nothing but take interrupts never does.
    run.run_until(Instant::ZERO + start);
    let warm = reads.get() + setup.reads / 10;
    run.run_while(|| reads.get() < warm);
    let began = run.now();
    run.run_while(|| reads.get() < warm + setup.reads);
    let a_read = (run.now() - began) / setup.reads.max(1);
    a_read * setup.processes
}

/// The order in which processors happened to become idle before the test began.
fn order(time: &Virtual, processors: u16) -> Vec<ProcessorId> {
    let mut order: Vec<_> = (0..processors).map(ProcessorId).collect();
    for place in (1..order.len()).rev() {
        order.swap(place, time.below(place as u64 + 1) as usize);
    }
    order
}

fn backing(time: &Virtual, device: &Device) -> Backing {
    match *device {
        Device::Memory { copy, transfer, bursts } => Backing::Memory { bus: Bus::new(time), transfer, bursts, copy },
        Device::Fixed { time: answer, servers } => {
            Backing::Fixed { servers: Resource::new(time, servers), time: answer }
        }
        Device::Disk { drive, depth, command } => {
            let config = queue::Config { merge: false, elevator: true, depth, ..queue::Config::default() };
            let controller = Resource::new(time, 1);
            Backing::Disk { controller, command, disk: Disk::new(time, drive, config) }
        }
    }
}

/// What cannot be killed: system threads that only `unix_master` can run. They come at random.
fn daemon(processors: &Processors, time: &Virtual, setup: &Setup) {
    let (time, every, runs) = (time.clone(), setup.daemon_every, setup.daemon_runs);
    processors.start(move |thread| async move {
        thread.bind(MASTER).await;
        loop {
            let pause = every.mul_f64(2.0 * time.fraction());
            thread.sleep_for(pause, MASTER).await;
            thread.run_in_kernel(runs).await;
        }
    });
}

fn iotest(processors: &Processors, device: &RawDevice, setup: &Setup, start: Duration, reads: Rc<Cell<u32>>) {
    let (device, wait) = (device.clone(), setup.wait);
    processors.start(move |thread| async move {
        // Programs are loaded one after another.
        thread.sleep_for(start, MASTER).await;
        for number in 0.. {
            device.read(&thread, ByteRange::new(number * READ_BYTES, READ_BYTES)).await;
            reads.set(reads.get() + 1);
            thread.compute(wait).await;
        }
    });
}
