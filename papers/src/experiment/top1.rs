//! TOP-1 with OSF/1, and the test program `iotest`, of the multiprocessor paper.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use crate::drive::Drive;
use crate::drive::flash::NVME_2026;
use crate::drive::mechanical::Mechanical;
use crate::model::bus::Bus;
use crate::model::completion::{self, Completions};
use crate::model::disk::Disk;
use crate::model::processors::mach::{self, Mach};
use crate::model::processors::{self, ProcessorCounters, Processors};
use crate::model::raw_device::{self, Backing, RawDevice};
use crate::model::wait::Resource;
use crate::model::{Simulation, Virtual};
use policy::access::{Access, Mode};
use policy::delivery::Method;
use policy::queue;
use policy::unit::{ByteRange, Instant, ProcessorId};

use super::Run;
use crate::parameter::Parameters;

pub const MASTER: ProcessorId = ProcessorId(0);

/// Processors of TOP-1 that run OSF/1.
const PROCESSORS: u16 = 9;

pub const PROCESSES: [u32; 13] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20];

const READ_BYTES: u64 = 4096;
/// Blocks that reads at random places fall on: a file system of 100 MB.
const PLACES: u64 = 25_600;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Device {
    /// The SCSI disk behind the disk subsystem.
    Disk {
        drive: Drive,
        /// Commands that it takes at a time.
        depth: u16,
        /// The subsystem's work on a command.
        command: Duration,
        /// How many of them take blocks in turn.
        disks: u32,
    },
    /// Answers after a fixed time, `servers` requests at a time.
    Fixed { time: Duration, servers: u32 },
    Memory {
        /// The processor's copy of a read.
        copy: Duration,
        /// Its concurrent use of the bus.
        transfer: Duration,
        bursts: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setup {
    pub processors: u16,
    pub costs: processors::Costs,
    pub interrupt: completion::Costs,
    pub read: raw_device::Costs,
    pub quantum: Duration,
    /// Is the master interrupted for threads that want to run there?
    pub notifies_master: bool,
    /// Interval of a system thread that is bound to the master.
    pub daemon_every: Duration,
    pub daemon_runs: Duration,
    pub device: Device,
    pub access: Mode,
    pub delivery: Method,
    /// From the start of one `iotest` to that of the next, on average.
    pub start_every: Duration,
    pub processes: u32,
    /// Measured reads of all processes, after all have been running for some time.
    pub reads: u32,
    /// Computing time after each read.
    pub wait: Duration,
    /// That of every second process, where they differ.
    pub other_wait: Option<Duration>,
    /// Are waits and places drawn, with these means, in place of a loop that repeats?
    pub is_random: bool,
}

/// What a run gave.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ran {
    /// From read to read of a process, in the mean.
    pub read: Duration,
    /// Of the time, in percent: the master worked, the device worked, processors spun for the driver's lock.
    pub master: f64,
    pub device: f64,
    pub spun: f64,
    /// In percent: dispatches on the processor where the thread ran last, whose cache has its data; completions on the
    /// processor that started them; tries of the driver's lock that found it free.
    pub own_cache: f64,
    pub initiator: f64,
    pub lock_free: f64,
}

pub fn is_top1(run: &Run<'_>) -> bool {
    run.get("machine.processors") == f64::from(PROCESSORS) && run.get("disk.flash") < 0.5
}

/// Numbers of processes: those of the paper, scaled with the number of processors.
pub fn process_counts(processors: u16) -> Vec<u32> {
    let (simulated, published) = (u32::from(processors), u32::from(PROCESSORS));
    let mut counts: Vec<u32> =
        PROCESSES.iter().map(|count| if *count == 1 { 1 } else { count * simulated / published }).collect();
    counts.iter_mut().for_each(|count| *count = (*count).max(1));
    counts.dedup();
    counts
}

/// Time from read to read of a process, in milliseconds: the mean of some runs.
pub fn loop_ms(setup: &Setup, seed: u64, runs: u32) -> f64 {
    let loops = (0..u64::from(runs)).map(|number| run(setup, seed.wrapping_mul(1000) + number).read.as_secs_f64());
    loops.sum::<f64>() * 1000.0 / f64::from(runs.max(1))
}

pub fn run(setup: &Setup, seed: u64) -> Ran {
    // Every second process may have another wait: they take turns.
    let setup = &mut *Box::new(*setup);
    let run = Simulation::new(seed);
    let order = order(&run, setup.processors);
    let (quantum, notifies_master) = (setup.quantum, setup.notifies_master);
    let config = mach::Config { processors: setup.processors, master: MASTER, quantum, notifies_master };
    let scheduler = Rc::new(RefCell::new(Mach::new(config, &order)));
    let processors = Processors::new(&run, setup.processors, setup.costs, scheduler);
    let completions = Completions::new(&run, &processors, setup.delivery, setup.interrupt);
    let access = Access::new(setup.access, MASTER);
    let device = RawDevice::new(&run, access, setup.read, completions, backing(&run, &setup.device));
    daemon(&processors, &run, setup);
    let reads = Rc::new(Cell::new(0));
    let mut start = Duration::ZERO;
    for _ in 0..setup.processes {
        start += setup.start_every.mul_f64(2.0 * run.fraction());
        iotest(&processors, &device, (&run, setup), start, Rc::clone(&reads));
        if let Some(other) = setup.other_wait {
            let one = setup.wait;
            (setup.wait, setup.other_wait) = (other, Some(one));
        }
    }
    // Not until each has read: a process whose processor only takes interrupts never does.
    run.run_until(Instant::ZERO + start);
    let warm = reads.get() + setup.reads / 10;
    run.run_while(|| reads.get() < warm);
    let began = run.now();
    let times = || [processors.busy(MASTER), device.busy(), device.spun()];
    let counts = || {
        let ProcessorCounters { dispatches, migrations, .. } = processors.counters();
        let (handled, tries) = (device.handled(), device.tries());
        [dispatches, dispatches - migrations, handled.all, handled.cached, tries.all, tries.free]
    };
    let (before, counted) = (times(), counts());
    run.run_while(|| reads.get() < warm + setup.reads);
    let took = run.now() - began;
    let (after, counts) = (times(), counts());
    let share = |of: usize| {
        let [all, part] = [of, of + 1].map(|of| (counts[of] - counted[of]) as f64);
        // None missed where there was none.
        if all > 0.0 { part * 100.0 / all } else { 100.0 }
    };
    let percent = |of: usize| (after[of] - before[of]).as_secs_f64() * 100.0 / took.as_secs_f64().max(1e-12);
    Ran {
        read: took / setup.reads.max(1) * setup.processes,
        master: percent(0),
        device: percent(1),
        spun: percent(2) / f64::from(setup.processors.max(1)),
        own_cache: share(0),
        initiator: share(2),
        lock_free: share(4),
    }
}

/// A random order in which processors became idle before the test.
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
        Device::Disk { drive, depth, command, disks } => {
            let config = queue::Config { merge: false, elevator: true, depth, ..queue::Config::default() };
            let controller = Resource::new(time, 1);
            let disks = (0..disks.max(1)).map(|_| Disk::new(time, drive, config.clone())).collect();
            Backing::Disk { controller, command, disks }
        }
    }
}

/// System threads that cannot be killed and that only `unix_master` can run. They run at random times.
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

fn iotest(
    processors: &Processors,
    device: &RawDevice,
    (time, setup): (&Virtual, &Setup),
    start: Duration,
    reads: Rc<Cell<u32>>,
) {
    let (device, wait, is_random, time) = (device.clone(), setup.wait, setup.is_random, time.clone());
    processors.start(move |thread| async move {
        // Programs are loaded one after another.
        thread.sleep_for(start, MASTER).await;
        for number in 0.. {
            let place = if is_random { time.below(PLACES) } else { number };
            device.read(&thread, ByteRange::new(place * READ_BYTES, READ_BYTES)).await;
            reads.set(reads.get() + 1);
            thread.compute(if is_random { wait.mul_f64(2.0 * time.fraction()) } else { wait }).await;
        }
    });
}

/// The machines of the parameters, with one process that reads from memory and does not wait.
pub fn setup(parameters: &Parameters) -> [Setup; 3] {
    let ms = |name: &str| ms(parameters.get(name));
    let base = Setup {
        processors: parameters.get("machine.processors") as u16,
        costs: processors::Costs {
            dispatch: ms("processor.dispatch"),
            migration: ms("processor.migration"),
            tick: ms("clock.tick"),
        },
        interrupt: completion::Costs {
            entry: ms("interrupt.entry"),
            handler: ms("interrupt.handler"),
            spread: ms("interrupt.spread"),
            remote: ms("interrupt.remote"),
        },
        read: raw_device::Costs { call: ms("read.call"), start: ms("read.start"), locked: ms("read.locked") },
        quantum: ms("scheduler.quantum"),
        notifies_master: parameters.get("scheduler.tells_master") >= 0.5,
        daemon_every: ms("daemon.every"),
        daemon_runs: ms("daemon.runs"),
        device: Device::Disk {
            drive: drive(parameters),
            depth: parameters.get("disk.depth") as u16,
            command: ms("hd.command"),
            disks: 1,
        },
        access: Mode::Symmetric,
        delivery: Method::Fixed(MASTER),
        start_every: ms("run.start_every"),
        processes: 1,
        reads: parameters.get("run.reads") as u32,
        wait: Duration::ZERO,
        other_wait: None,
        is_random: false,
    };
    let fixed = Device::Fixed {
        time: ms("testdev.time") + ms("hd.command"),
        servers: parameters.get("testdev.servers") as u32,
    };
    let memory = Device::Memory {
        copy: ms("ramdisk.copy"),
        transfer: ms("ramdisk.bus"),
        bursts: parameters.get("ramdisk.bursts") as u32,
    };
    [base, Setup { device: fixed, ..base }, Setup { device: memory, ..base }]
}

pub fn wait(parameters: &Parameters, count: u32) -> Duration {
    ms(parameters.get("spin.ten_counts") * f64::from(count) / 10.0)
}

fn drive(parameters: &Parameters) -> Drive {
    match parameters.get("disk.flash") >= 0.5 {
        true => Drive::Flash(NVME_2026),
        false => Drive::Mechanical(Mechanical { read_ahead: false, ..Mechanical::named("scsi-1990") }),
    }
}

fn ms(ms: f64) -> Duration {
    Duration::from_nanos((ms * 1e6 + 0.5) as u64)
}
