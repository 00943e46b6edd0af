//! A run of the workstation: its disk, memory and cache, and the processes on it.

use std::future::Future;
use std::time::Duration;

use crate::model::buffers::{Buffers, Config, Content, Write};
use crate::model::disk::Disk;
use crate::model::memory::Memory;
use crate::model::{Simulation, Virtual};
use policy::cache::Algorithm;
use policy::unit::Instant;
use policy::{queue, sizing, writeback};

use super::machine::{BSD_BUFFERS_MIN, Hardware};

/// A run that takes longer, in virtual time, hangs.
const TIMEOUT: Duration = Duration::from_secs(86_400);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Setup {
    /// All memory that nobody else needs, or a tenth?
    pub(super) dynamic: bool,
    pub(super) replacement: Algorithm,
    /// Written steadily, or every 30 s?
    pub(super) smooth: bool,
    /// Does the disk queue prefer synchronous requests (WS-4)?
    pub(super) priority: bool,
    /// Are a file's blocks contiguous, and does the queue merge neighbours (WS-3)?
    pub(super) merge: bool,
}

impl Setup {
    pub(super) const BSD: Setup =
        Setup { dynamic: false, replacement: Algorithm::Lru, smooth: false, priority: false, merge: false };
    /// The paper's: the size follows memory.
    pub(super) const PAPER: Setup = Setup { dynamic: true, ..Setup::BSD };
    /// Awase's, still with the disk queue of 4.3BSD: one technique at a time.
    pub(super) const AWASE: Setup = Setup { replacement: Algorithm::S3Fifo, smooth: true, ..Setup::PAPER };
}

impl Hardware {
    pub(super) fn queue(&self, setup: Setup) -> queue::Config {
        let has_arm = self.has_arm();
        queue::Config {
            merge: setup.merge,
            transfer_bytes_max: 128 << 10,
            priority: setup.priority,
            elevator: has_arm,
            depth: if has_arm { 1 } else { 64 },
            // 4.3BSD's disksort never changes its order for a long wait.
            synchronous_deadline: if setup.priority { Duration::from_millis(50) } else { Duration::from_secs(86_400) },
            ..queue::Config::default()
        }
    }

    fn cache(&self, setup: Setup) -> Config {
        let fixed = ((self.memory as f64 * self.fixed) as u64 / self.buffer).max(BSD_BUFFERS_MIN) * self.buffer;
        let sizing = sizing::Config {
            mode: if setup.dynamic { sizing::Mode::Dynamic } else { sizing::Mode::Fixed { bytes: fixed } },
            reserve_bytes_min: 0,
            reserve_permille: self.reserve_permille,
            floor_bytes: BSD_BUFFERS_MIN * self.buffer,
            ..sizing::Config::default()
        };
        let write_back = writeback::Config {
            smooth: setup.smooth,
            interval: self.interval,
            background_blocks_max: ((1 << 30) / self.buffer).max(1),
            // 4.3BSD stops no writer.
            limit_permille: if setup.smooth { writeback::Config::default().limit_permille } else { 1000 },
            ..writeback::Config::default()
        };
        Config { buffer_bytes: self.buffer, replacement: setup.replacement, sizing, write_back }
    }

    pub(super) fn start(&self, setup: Setup) -> Host {
        let run = Simulation::new(self.seed);
        let memory = Memory::new(self.memory, self.resident());
        let disk = Disk::new(&run, self.drive(), self.queue(setup));
        let buffers = Buffers::new(&run, &disk, &memory, self.cache(setup));
        let mut hardware = *self;
        if setup.merge {
            // Merging needs blocks without gaps (WS-3).
            hardware.rotdelay_ms = 0.0;
        }
        Host { run, hardware, disk, memory, buffers }
    }
}

pub(super) struct Host {
    pub(super) run: Simulation,
    pub(super) disk: Disk,
    pub(super) hardware: Hardware,
    pub(super) memory: Memory,
    pub(super) buffers: Buffers,
}

/// A process's access to the run.
#[derive(Clone)]
pub(super) struct Process {
    pub(super) time: Virtual,
    pub(super) hardware: Hardware,
    pub(super) memory: Memory,
    pub(super) buffers: Buffers,
    pub(super) disk: Disk,
}

impl Host {
    pub(super) fn spawn<W: Future<Output = ()> + 'static>(&self, work: impl FnOnce(Process) -> W) {
        self.run.spawn(work(self.process()));
    }

    fn process(&self) -> Process {
        Process {
            time: self.run.clone(),
            hardware: self.hardware,
            memory: self.memory.clone(),
            buffers: self.buffers.clone(),
            disk: self.disk.clone(),
        }
    }

    /// Runs a process to its end and returns its result.
    pub(super) fn complete<T: 'static, W: Future<Output = T> + 'static>(
        &self,
        work: impl FnOnce(Process) -> W,
    ) -> Option<T> {
        self.run.complete_by(self.run.now() + TIMEOUT, work(self.process()))
    }
}

impl Process {
    /// Reads a file from `start` in order, each block with the next one ahead, as 4.3BSD does. Returns the seconds.
    pub(super) async fn read_file(&self, start: u64, blocks: u64) -> f64 {
        let began = self.time.now();
        for index in 0..blocks {
            let next = Some(index + 1).filter(|next| *next < blocks);
            let place = |index| self.hardware.place(start, index);
            self.buffers.read_ahead(place(index), next.map(place)).await;
            self.time.sleep(self.hardware.call()).await;
        }
        self.since(began)
    }

    /// Writes a file from `start` in order. Returns the seconds until the last write returned.
    pub(super) async fn write_file(&self, start: u64, blocks: u64, how: Write) -> f64 {
        let began = self.time.now();
        for index in 0..blocks {
            self.time.sleep(self.hardware.call()).await;
            self.buffers.write(self.hardware.place(start, index), Content(1), how).await;
        }
        self.since(began)
    }

    pub(super) fn since(&self, start: Instant) -> f64 {
        (self.time.now() - start).as_secs_f64()
    }
}
