//! A steady stream of synchronous reads, concurrent with asynchronous writes of a file.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use crate::drive::Access;
use crate::model::Simulation;
use crate::model::disk::{Completed, Disk};
use policy::unit::{ByteRange, Class, Instant};

use super::super::Run;
use super::super::workstation::drive;
use super::{Order, blocks, queue_of};

#[derive(Clone, Debug, Default)]
pub(super) struct Starved {
    /// Observed time.
    pub(super) time: Duration,
    /// Blocks of the file that reached the disk, in order.
    pub(super) written: Vec<Completed>,
    /// Blocks of the file, all queued at the start.
    pub(super) of: u64,
    pub(super) reads: u64,
    pub(super) read_time: Duration,
}

impl Starved {
    /// The longest wait of a block, done or not.
    pub(super) fn longest_wait(&self) -> Duration {
        if (self.written.len() as u64) < self.of {
            return self.time;
        }
        self.written.iter().map(|block| block.done - block.arrived).max().unwrap_or_default()
    }
}

pub(super) fn watch(run: &Run<'_>, order: Order) -> Starved {
    let simulation = Simulation::new(run.seed);
    let drive = drive(run);
    let block = (run.get("fs.block") * 1024.0) as u64;
    // Within a small part of the disk: long seeks would only slow everything down.
    let places = (drive.size() / block / 64).clamp(1, 4096);
    let disk = Disk::new(&simulation, drive, queue_of(run, order));
    disk.keep_log_of(|served| served.access == Access::Write);
    let of = blocks(run);
    let reads = Rc::new(Cell::new((0, Duration::ZERO)));
    for _ in 0..run.get("starve.readers") as u64 {
        let (time, disk, reads) = (simulation.clone(), disk.clone(), Rc::clone(&reads));
        simulation.spawn(async move {
            loop {
                let issued = time.now();
                let at = time.below(places) * block;
                disk.read(ByteRange::new(at, block), Class::Synchronous).await;
                let (count, sum) = reads.get();
                reads.set((count + 1, sum + (time.now() - issued)));
            }
        });
    }
    let writer = disk.clone();
    simulation.spawn(async move {
        for number in 0..of {
            writer.submit(Access::Write, ByteRange::new((places + number) * block, block), Class::Asynchronous);
        }
    });
    let time = Duration::from_nanos((run.get("starve.time") * 1e9) as u64);
    simulation.run_until(Instant::ZERO + time);
    let (count, sum) = reads.get();
    Starved { time, written: disk.log(), of, reads: count, read_time: sum / (count.max(1) as u32) }
}
