//! The numbers of TOP-1, each with its source.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::model::{completion, processors, raw_device};
use machine::drive::Drive;
use machine::drive::mechanical::Mechanical;
use policy::access::Mode;
use policy::delivery::Method;

use super::{Device, MASTER, Setup};
use crate::parameter::Origin::{self, Chosen, Derived, Fitted, Paper, Published};
use crate::parameter::{Parameter, Parameters};

/// Which table of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    Access,
    Delivery,
}

const ANY_MS: RangeInclusive<f64> = 0.0..=1000.0;

const SPIN: &str = "Table 1 (a), wait 100, 4 processes; the paper says `nearly 20 ms` (footnote 3)";
const SPIN_TAKEN: &str = "taken over from table 1, where it is fitted; the paper says `nearly 20 ms` (footnote 3)";
const ENTRY: &str = "2b-4 with 20 processes: there, eight more interrupts a read cost 1 %";
const ENTRY_TAKEN: &str = "taken over from table 2, where it is fitted on 2b-4 with 20 processes";
const BUS: &str = "Table 1 (c), wait 0, 9 processes: a copy and its misses keep the bus so long";
const BUS_UNUSED: &str = "as in table 1; not used here";

/// What an experiment on TOP-1 can be told.
pub fn parameters(experiment: &'static str, table: Table) -> Parameters {
    let first = table == Table::Access;
    let mut all = of_processors(first);
    all.extend(of_devices(first));
    let (reads, runs) = if first { (1200.0, 1.0) } else { (1000.0, 4.0) };
    all.extend([
        parameter(
            "run.start_every",
            "from the start of one process to the next, mean",
            "ms",
            100.0,
            ANY_MS,
            Chosen("a shell that starts programs one after another"),
        ),
        parameter(
            "run.reads",
            "reads measured in a run, of all processes",
            "",
            reads,
            10.0..=1e6,
            Chosen("enough for steady results"),
        ),
        parameter(
            "run.runs",
            "runs with different beginnings, averaged",
            "",
            runs,
            1.0..=100.0,
            Chosen("enough for steady results"),
        ),
    ]);
    Parameters::new(experiment, all)
}

fn parameter(
    name: &'static str,
    about: &'static str,
    unit: &'static str,
    default: f64,
    range: RangeInclusive<f64>,
    origin: Origin,
) -> Parameter {
    Parameter { name, about, unit, default, range, origin }
}

fn of_processors(first: bool) -> Vec<Parameter> {
    let spin = if first { Fitted(SPIN) } else { Derived(SPIN_TAKEN) };
    let entry = if first { Derived(ENTRY_TAKEN) } else { Fitted(ENTRY) };
    vec![
        parameter(
            "machine.processors",
            "that run the operating system",
            "",
            9.0,
            2.0..=1024.0,
            Paper("section 3.3: nine run OSF/1, the tenth serves the disks"),
        ),
        parameter("spin.ten_counts", "computing for ten wait counts", "ms", 19.12, 1e-6..=1000.0, spin),
        parameter(
            "clock.tick",
            "from one clock tick to the next",
            "ms",
            10.0,
            0.01..=1000.0,
            Published(
                "Mach, kernel/i386/mach_param.h: HZ 100, `clock tick each 10 ms`; OSF/1 for the AT386 descends from it",
            ),
        ),
        parameter(
            "scheduler.quantum",
            "time slice",
            "ms",
            100.0,
            0.01..=10_000.0,
            Published("Mach, kern/sched_prim.c: min_quantum = hz / 10; Black, IEEE Computer 23(5), 1990"),
        ),
        parameter(
            "scheduler.tells_master",
            "1: the master is interrupted for a thread that wants to go there",
            "",
            0.0,
            0.0..=1.0,
            Published("Mach 2.5 and OSF/1, kern/sched_prim.c, thread_setrun: `Don't do this remotely to master`"),
        ),
        parameter(
            "daemon.every",
            "between runs of a system thread on the master, mean",
            "ms",
            1000.0 / 7.0,
            0.1..=1e6,
            Derived(
                "the timers of network protocols, which cannot be killed: 5 + 2 a second (Leffler et al., `4.3BSD UNIX Operating System`, 1989: pr_fasttimo each 200 ms, pr_slowtimo each 500 ms)",
            ),
        ),
        parameter(
            "daemon.runs",
            "how long it runs",
            "ms",
            0.1,
            ANY_MS,
            Chosen("timers that find little to do; shorter than a process takes to come back to the master"),
        ),
        parameter(
            "processor.dispatch",
            "going over to another thread",
            "ms",
            0.1,
            ANY_MS,
            Chosen("order of a context switch of a 386 of 16 to 20 MHz"),
        ),
        parameter(
            "processor.migration",
            "more when it ran on another processor before",
            "ms",
            0.2,
            ANY_MS,
            Chosen("some hundred cache lines to fetch anew"),
        ),
        parameter("interrupt.entry", "a message interrupt that finds nothing to do", "ms", 0.25, ANY_MS, entry),
        parameter(
            "interrupt.handler",
            "completing a request and waking who waits",
            "ms",
            0.43,
            ANY_MS,
            Chosen(
                "of the order of a dispatch, a lock and some hundred instructions more than an entry; 0.41 to 0.44 keep table 2's order",
            ),
        ),
        parameter(
            "interrupt.spread",
            "between the first and the last of all processors that take an interrupt",
            "ms",
            0.02,
            ANY_MS,
            Chosen("they take it together, but for an instruction or a bus access"),
        ),
    ]
}

fn of_devices(first: bool) -> Vec<Parameter> {
    let bus = if first { Fitted(BUS) } else { Chosen(BUS_UNUSED) };
    vec![
        parameter(
            "read.call",
            "system call outside of the driver",
            "ms",
            0.2,
            ANY_MS,
            Chosen("order of a system call of a 386 of 16 to 20 MHz"),
        ),
        parameter(
            "read.start",
            "raw I/O and the driver's upper half: wiring the buffer, starting the device",
            "ms",
            2.6,
            ANY_MS,
            Derived(
                "the funnelled ramdisk with wait 10 and nine or more processes is all the master's work: 9 T = 1.275 (19.1 ms + T), so a read takes 3.2 ms there; less the copy",
            ),
        ),
        parameter(
            "read.locked",
            "of it, holding the driver's lock",
            "ms",
            0.1,
            ANY_MS,
            Chosen("to queue a request and give the command"),
        ),
        parameter(
            "ramdisk.copy",
            "copying 4096 bytes, beside the bus",
            "ms",
            0.1,
            ANY_MS,
            Chosen("1,024 moves of four bytes at two to three cycles: what lies beside it is the bus"),
        ),
        parameter("ramdisk.bus", "what a copy keeps the memory bus", "ms", 0.48, ANY_MS, bus),
        parameter(
            "ramdisk.bursts",
            "turns in which it takes the bus",
            "",
            8.0,
            1.0..=256.0,
            Chosen("results hardly depend on it from 4 to 16"),
        ),
        parameter(
            "testdev.time",
            "until testdev answers",
            "ms",
            17.0,
            0.0..=10_000.0,
            Paper("section 3.3: about 17 ms"),
        ),
        parameter(
            "testdev.servers",
            "requests that testdev serves at a time",
            "",
            1.0,
            1.0..=65_536.0,
            Paper("section 5.1: its processing saturates; the rows where it does agree with one at a time"),
        ),
        parameter(
            "hd.command",
            "the disk subsystem's processor, for a command",
            "ms",
            1.3,
            ANY_MS,
            Chosen(
                "to take a command, give it to the disk, and send the completion: judged to be of the order of a driver's start and interrupt. Only its sum with spin.ten_counts decides when a read finds the disk, and that is what is fitted",
            ),
        ),
        parameter(
            "disk.flash",
            "0: a SCSI disk of 1990; 1: an NVMe device of 2026",
            "",
            0.0,
            0.0..=1.0,
            Derived(
                "Seagate ST4766N (CDC Wren VI), product manual 77765353-L: 3,597 rpm, 54 sectors; the paper does not name its disk. Without read-ahead: the steps of whole rotations of table 1 show that none was at work",
            ),
        ),
        parameter(
            "disk.depth",
            "commands that the disk takes at a time",
            "",
            1.0,
            1.0..=65_536.0,
            Chosen("SCSI-1 disks took one"),
        ),
    ]
}

/// What to set for a machine of 2026.
pub(in crate::experiment) const MODERN: &[(&str, f64)] = &[
    ("machine.processors", 64.0),
    ("spin.ten_counts", 0.003),
    ("clock.tick", 1.0),
    ("scheduler.quantum", 3.0),
    ("scheduler.tells_master", 1.0),
    ("daemon.runs", 0.005),
    ("processor.dispatch", 0.0015),
    ("processor.migration", 0.001),
    ("interrupt.entry", 0.001),
    ("interrupt.handler", 0.0015),
    ("interrupt.spread", 0.0005),
    ("read.call", 0.0001),
    ("read.start", 0.0015),
    ("read.locked", 0.0001),
    ("ramdisk.copy", 0.0003),
    ("ramdisk.bus", 0.000_04),
    ("testdev.time", 0.05),
    ("testdev.servers", 64.0),
    ("hd.command", 0.0),
    ("disk.flash", 1.0),
    ("disk.depth", 1024.0),
    ("run.start_every", 0.1),
];

/// The machine that the parameters tell of, with one process that reads from memory and does not wait.
pub fn setup(told: &Parameters) -> [Setup; 3] {
    let ms = |name: &str| ms(told.get(name));
    let base = Setup {
        processors: told.get("machine.processors") as u16,
        costs: processors::Costs {
            dispatch: ms("processor.dispatch"),
            migration: ms("processor.migration"),
            tick: ms("clock.tick"),
        },
        interrupt: completion::Costs {
            entry: ms("interrupt.entry"),
            handler: ms("interrupt.handler"),
            spread: ms("interrupt.spread"),
        },
        read: raw_device::Costs { call: ms("read.call"), start: ms("read.start"), locked: ms("read.locked") },
        quantum: ms("scheduler.quantum"),
        tells_master: told.get("scheduler.tells_master") >= 0.5,
        daemon_every: ms("daemon.every"),
        daemon_runs: ms("daemon.runs"),
        device: Device::Disk { drive: drive(told), depth: told.get("disk.depth") as u16, command: ms("hd.command") },
        access: Mode::Symmetric,
        delivery: Method::Fixed(MASTER),
        start_every: ms("run.start_every"),
        processes: 1,
        reads: told.get("run.reads") as u32,
        wait: Duration::ZERO,
    };
    let fixed =
        Device::Fixed { time: ms("testdev.time") + ms("hd.command"), servers: told.get("testdev.servers") as u32 };
    let memory = Device::Memory {
        copy: ms("ramdisk.copy"),
        transfer: ms("ramdisk.bus"),
        bursts: told.get("ramdisk.bursts") as u32,
    };
    [base, Setup { device: fixed, ..base }, Setup { device: memory, ..base }]
}

/// How long a process computes for that wait count.
pub fn wait(told: &Parameters, count: u32) -> Duration {
    ms(told.get("spin.ten_counts") * f64::from(count) / 10.0)
}

fn drive(told: &Parameters) -> Drive {
    let [flash, disk] = ["nvme-2026", "scsi-1990"].map(Drive::named);
    match (flash, disk) {
        (Some(flash), _) if told.get("disk.flash") >= 0.5 => flash,
        (_, Some(Drive::Mechanical(model))) => Drive::Mechanical(Mechanical { read_ahead: false, ..model }),
        _ => unreachable!("the catalog has both"),
    }
}

fn ms(ms: f64) -> Duration {
    Duration::from_nanos((ms * 1e6 + 0.5) as u64)
}
