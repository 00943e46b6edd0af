//! WS table 3: the worth of priority for synchronous disk requests.

mod report;
mod starvation;

use std::time::Duration;

use crate::drive::Access;
use crate::model::Simulation;
use crate::model::disk::{Completed, Disk};
use crate::model::ffs::Waits;
use policy::queue;
use policy::readahead::Mode;
use policy::unit::{Class, Instant};

use super::Run;
use super::workstation::{drive, file_system, queue};
use crate::result::Results;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// As in 4.3BSD: by position only.
    Position,
    /// Synchronous first.
    Priority,
    /// Synchronous first, but requests past their deadline alternate with them.
    PriorityWithDeadline,
}

#[derive(Clone, Debug, Default)]
struct Written {
    returned: Duration,
    /// When all was on the disk.
    done: Duration,
    waits: Waits,
    /// Data blocks in order of completion.
    blocks: Vec<Completed>,
}

pub(super) const STEPS: u64 = 6;

pub(super) fn simulate(run: &Run<'_>) -> Results {
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

fn queue_of(run: &Run<'_>, order: Order) -> queue::Config {
    let transfer = (run.get("queue.transfer") * 1024.0) as u32;
    let plain = queue(run, Some(transfer), order != Order::Position);
    let deadline = match order {
        Order::Position => Duration::ZERO,
        Order::Priority => run.ms("queue.deadline_in_table"),
        Order::PriorityWithDeadline => run.ms("queue.deadline"),
    };
    if deadline.is_zero() { plain } else { queue::Config { asynchronous_deadline: deadline, ..plain } }
}

fn blocks(run: &Run<'_>) -> u64 {
    (run.get("file.size") / run.get("fs.block")) as u64
}

fn write(run: &Run<'_>, order: Order) -> Written {
    let simulation = Simulation::new(run.seed);
    let drive = drive(run);
    let disk = Disk::new(&simulation, drive, queue_of(run, order));
    disk.keep_log_of(|served| served.access == Access::Write && served.class == Class::Asynchronous);
    let fs = file_system(run, &simulation, (&disk, &drive), run.get("fs.rotdelay"), Mode::Fixed { blocks: 1 });
    let count = blocks(run);
    let time = simulation.clone();
    let written = simulation.complete(async move {
        let mut file = fs.create(0).await;
        fs.write(&mut file, count).await;
        let returned = time.now() - Instant::ZERO;
        fs.settle().await;
        Written { returned, done: time.now() - Instant::ZERO, waits: fs.waits(), blocks: disk.log() }
    });
    written.unwrap_or_default()
}
