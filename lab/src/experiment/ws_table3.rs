//! WS table 3: what it is worth that synchronous disk requests go before asynchronous ones.

mod report;
mod starvation;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use crate::model::Simulation;
use crate::model::disk::{Disk, Served};
use crate::model::ffs::Waits;
use machine::drive::Access;
use policy::queue;
use policy::readahead::Mode;
use policy::unit::{Class, Instant};

use super::workstation::{disk_parameters, drive, file_system, parameter, queue, system_parameters};
use super::{Experiment, Run};
use crate::parameter::{Origin, Parameters};
use crate::result::Results;

const NAME: &str = "ws-table3";
const TRANSFER: &str = "on when write ends with priority (1.5 s): a synchronous request waits at least for the transfer that \
                        is in the drive. The paper's section 3 says 128 KB; this table was first published in April 1990 \
                        (its reference 8), perhaps with less";
const SPARSE: &str = "none: the paper measured without protection from starvation, and says that it is needed";

pub struct WsTable3;

/// How the queue is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// As 4.3BSD does: by position, whoever waits.
    Position,
    /// Synchronous first.
    Priority,
    /// Synchronous first, but who has waited for the deadline takes turns.
    PriorityWithDeadline,
}

/// What a write of the file came to.
#[derive(Clone, Debug, Default)]
struct Written {
    /// When the last system call returned.
    returned: Duration,
    /// When all was on the disk.
    done: Duration,
    waits: Waits,
    /// The blocks of data in the order in which they were done.
    blocks: Vec<Served>,
}

impl Experiment for WsTable3 {
    fn name(&self) -> &'static str {
        NAME
    }

    fn title(&self) -> &'static str {
        "Priority disk scheduling: how long a program waits that writes 1 MB to a magneto-optical disk"
    }

    fn about(&self) -> &'static str {
        "A program that writes a file does not wait for its data: they go to the disk while it runs on. It does wait for a \
         few small transfers that keep the file system's structure safe and known: the new file's inode and directory, \
         an indirect block, the bitmaps of each group of cylinders. A queue in order of position puts each of these behind \
         all the data that were handed over before, and so the program waits for its data after all. The technique: who is \
         waited for goes first. On a magneto-optical disk, which erases before it writes, the program is done three times \
         earlier; the disk is not. Look at the first plot: the data reach the disk at the same pace, but the program has \
         long gone on. Taken alone, this rule would let a steady stream of synchronous requests keep the others waiting \
         forever; the last plots show that, and the deadline that prevents it."
    }

    fn paper(&self) -> &'static str {
        "Tezuka, Improved Performance of Workstation Unix Kernel, section 4, table 3"
    }

    fn parameters(&self) -> Parameters {
        let bus = Origin::Chosen(
            "a judgement: the drive is asynchronous (Sony's driver table), a handshake of some 0.7 us for every byte; 1 to 2 \
             MB/s were usual",
        );
        let mut all = disk_parameters("mo-1990", (1.5, bus));
        all.extend(system_parameters());
        let merged = Origin::Derived("section 3: with merging, blocks lie in a row");
        let own = Origin::Chosen("the queue policy's own default");
        let starving = Origin::Chosen("enough that one of them always waits");
        all.extend([
            parameter(("fs.rotdelay", "ms"), "gap between blocks", 0.0, 0.0..=50.0, merged),
            parameter(
                ("queue.transfer", "KB"),
                "largest merged transfer",
                64.0,
                8.0..=4096.0,
                Origin::Fitted(TRANSFER),
            ),
            parameter(
                ("queue.deadline", "ms"),
                "deadline of asynchronous requests, where there is one",
                500.0,
                1.0..=1e6,
                own,
            ),
            parameter(
                ("queue.deadline_in_table", "ms"),
                "the same in the paper's table; 0 is none",
                0.0,
                0.0..=1e6,
                Origin::Paper(SPARSE),
            ),
            parameter(("file.size", "KB"), "the file", 1024.0, 64.0..=65_536.0, Origin::Paper("table 3: 1 MB")),
            parameter(
                ("starve.readers", ""),
                "programs that read without pause, to starve the file",
                2.0,
                1.0..=64.0,
                starving,
            ),
            parameter(
                ("starve.time", "s"),
                "for how long the readers are watched",
                30.0,
                0.1..=600.0,
                Origin::Chosen("several times what the file takes alone"),
            ),
        ]);
        Parameters::new(NAME, all)
    }

    fn modern(&self) -> &'static [(&'static str, f64)] {
        // The processor: a system call of 0.2 us, a block of 8 KB in 1.5 us. Groups as today's file systems make them
        // would be larger; they stay, so that there is something synchronous to wait for.
        &[
            ("disk.nvme", 1.0),
            ("queue.depth", 64.0),
            ("queue.transfer", 512.0),
            ("cpu.call", 0.0002),
            ("cpu.block", 0.0015),
            ("starve.readers", 64.0),
            ("starve.time", 0.3),
            ("file.size", 65_536.0),
        ]
    }

    fn steps(&self, _: &Parameters) -> u64 {
        6
    }

    fn simulate(&self, run: &Run<'_>) -> Results {
        let writes = [Order::Position, Order::Priority, Order::PriorityWithDeadline].map(|order| {
            let written = write(run, order);
            run.step();
            written
        });
        let starved = [Order::Position, Order::Priority, Order::PriorityWithDeadline].map(|order| {
            let starved = starvation::watch(run, order);
            run.step();
            starved
        });
        report::results(run, &writes, &starved)
    }
}

/// The queue that a run has.
fn queue_of(run: &Run<'_>, order: Order) -> queue::Config {
    let transfer = (run.get("queue.transfer") * 1024.0) as u32;
    let plain = queue(run, Some(transfer), order != Order::Position);
    let ms = |ms: f64| Duration::from_nanos((ms * 1e6) as u64);
    let deadline = match order {
        Order::Position => 0.0,
        Order::Priority => run.get("queue.deadline_in_table"),
        Order::PriorityWithDeadline => run.get("queue.deadline"),
    };
    if deadline > 0.0 { queue::Config { asynchronous_deadline: ms(deadline), ..plain } } else { plain }
}

fn blocks(run: &Run<'_>) -> u64 {
    (run.get("file.size") / run.get("fs.block")) as u64
}

/// Makes a file and writes it.
fn write(run: &Run<'_>, order: Order) -> Written {
    let simulation = Simulation::new(run.seed);
    let drive = drive(run);
    let disk = Disk::new(&simulation, drive, queue_of(run, order));
    disk.keep_log_of(|served| served.access == Access::Write && served.class == Class::Asynchronous);
    let fs = file_system(run, &simulation, (&disk, &drive), run.get("fs.rotdelay"), Mode::Fixed { blocks: 1 });
    let count = blocks(run);
    let result = Rc::new(RefCell::new(Written::default()));
    let (time, told) = (simulation.clone(), Rc::clone(&result));
    simulation.spawn(async move {
        let mut file = fs.create(0).await;
        fs.write(&mut file, count).await;
        let returned = time.now() - Instant::ZERO;
        fs.settle().await;
        *told.borrow_mut() =
            Written { returned, done: time.now() - Instant::ZERO, waits: fs.waits(), blocks: disk.log() };
    });
    simulation.run();
    result.take()
}
