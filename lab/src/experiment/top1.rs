//! TOP-1 with OSF/1, and the test program `iotest`, of the multiprocessor paper.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use machine::drive::Drive;
use machine::sim::model::bus::Bus;
use machine::sim::model::completion::{self, Completions};
use machine::sim::model::disk::Disk;
use machine::sim::model::processors::mach::{self, Mach};
use machine::sim::model::processors::{self, ProcessorCounters, Processors};
use machine::sim::model::raw_device::{self, Backing, RawDevice};
use machine::sim::model::wait::Resource;
use machine::sim::model::{Simulation, Virtual};
use policy::access::{Access, Mode};
use policy::delivery::Method;
use policy::queue;
use policy::unit::{ByteRange, Instant, ProcessorId};

/// `unix_master`, PU1.
pub const MASTER: ProcessorId = ProcessorId(0);

/// Bytes that `iotest` reads at a time.
const READ_BYTES: u64 = 4096;

/// What is read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Device {
    /// The SCSI disk behind the disk subsystem.
    Disk {
        /// Which disk.
        drive: Drive,
        /// Commands that it takes at a time.
        depth: u16,
        /// The subsystem's work on a command.
        command: Duration,
    },
    /// Answers after a fixed time, so many at a time.
    Fixed {
        /// How long.
        time: Duration,
        /// How many.
        servers: u32,
    },
    /// Shared memory.
    Memory {
        /// Of a read, the processor's copy.
        copy: Duration,
        /// Beside it, what it takes of the bus.
        transfer: Duration,
        /// In so many turns.
        bursts: u32,
    },
}

/// A machine, and what it runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setup {
    /// That run OSF/1.
    pub processors: u16,
    /// Of processors.
    pub costs: processors::Costs,
    /// Of interrupts.
    pub interrupt: completion::Costs,
    /// Of reads.
    pub read: raw_device::Costs,
    /// Time slice.
    pub quantum: Duration,
    /// How often a system thread that is bound to the master runs.
    pub daemon_every: Duration,
    /// How long.
    pub daemon_runs: Duration,
    /// What is read.
    pub device: Device,
    /// Who starts it.
    pub access: Mode,
    /// Who takes its completions.
    pub delivery: Method,
    /// How many `iotest`s.
    pub processes: u32,
    /// How often each reads.
    pub loops: u32,
    /// How long it computes after each read.
    pub wait: Duration,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Until all were through.
    pub elapsed: Duration,
    /// What the processors did.
    pub counters: ProcessorCounters,
    /// Events of the simulation.
    pub events: u64,
}

/// Runs it.
pub fn run(setup: &Setup, seed: u64) -> Outcome {
    let run = Simulation::new(seed);
    let order = order(&run, setup.processors);
    let config =
        mach::Config { processors: setup.processors, master: MASTER, quantum: setup.quantum, master_halts: true };
    let processors = Processors::new(&run, setup.processors, setup.costs, Box::new(Mach::new(config, &order)));
    let completions = Completions::new(&run, &processors, setup.delivery, setup.interrupt);
    let access = Access::new(setup.access, MASTER);
    let device = RawDevice::new(&run, access, setup.read, completions, backing(&run, &setup.device));
    daemon(&processors, &run, setup);
    let left = Rc::new(Cell::new(setup.processes));
    let ended = Rc::new(Cell::new(Instant::ZERO));
    for _ in 0..setup.processes {
        iotest(&processors, &run, &device, setup, Rc::clone(&left), Rc::clone(&ended));
    }
    run.run_while(|| left.get() > 0);
    Outcome { elapsed: ended.get() - Instant::ZERO, counters: processors.counters(), events: run.events() }
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

/// Reads, computes, and again.
fn iotest(
    processors: &Processors,
    time: &Virtual,
    device: &RawDevice,
    setup: &Setup,
    left: Rc<Cell<u32>>,
    ended: Rc<Cell<Instant>>,
) {
    let (time, device, loops, wait) = (time.clone(), device.clone(), u64::from(setup.loops), setup.wait);
    let start = setup.costs.tick.mul_f64(8.0 * time.fraction());
    processors.start(move |thread| async move {
        // Programs are loaded one after another.
        thread.sleep_for(start, MASTER).await;
        thread.compute(Duration::from_micros(time.below(20_000))).await;
        for number in 0..loops {
            device.read(&thread, ByteRange::new(number * READ_BYTES, READ_BYTES)).await;
            thread.compute(wait).await;
        }
        left.set(left.get() - 1);
        ended.set(time.now());
    });
}
