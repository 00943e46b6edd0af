//! The workstation: its numbers, and a run of it.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use machine::drive::Drive;
use machine::drive::flash::Flash;
use machine::drive::mechanical::{Mechanical, SeekCurve};
use machine::sim::model::buffers::{Buffers, Config, DiskBlock};
use machine::sim::model::disk::Disk;
use machine::sim::model::memory::Memory;
use machine::sim::model::{Simulation, Virtual};
use policy::cache::Kind;
use policy::unit::Instant;
use policy::{queue, sizing, writeback};

use crate::experiment::Run;

/// The drive of the machine of 1991. Those of the other years have its shape.
const LIKE: &str = "scsi-1991";

/// 4.3BSD's least number of buffers.
const BSD_BUFFERS_MIN: u64 = 16;

/// Buffers that a machine's memory has room for, at least: with less nothing can be told apart.
const BUFFERS_MIN: f64 = 512.0;

/// What does not come to an end within a day of virtual time never does.
const PATIENCE: Duration = Duration::from_secs(86_400);

const MB: f64 = (1 << 20) as f64;

/// A workstation's numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hardware {
    pub(super) mips: f64,
    /// Bytes.
    pub(super) memory: u64,
    pub(super) memory_access_ns: f64,
    /// MB (10^6 bytes) a second.
    pub(super) memory_rate: f64,
    /// Share of memory.
    resident: f64,
    disk: DiskNumbers,
    /// Bytes.
    pub(super) buffer: u64,
    call_instructions: f64,
    reserve_permille: u64,
    fixed: f64,
    interval: Duration,
    seed: u64,
}

#[derive(Clone, Copy, Debug)]
struct DiskNumbers {
    access_ms: f64,
    rate: f64,
    /// MB (10^6 bytes).
    size: f64,
    rpm: f64,
    units: f64,
    overhead_ms: f64,
}

/// One column of the paper's table 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Generation {
    pub(super) name: &'static str,
    mips: f64,
    memory_mb: f64,
    memory_access_ns: f64,
    memory_rate: f64,
    access_ms: f64,
    rate: f64,
    size: f64,
}

/// Table 1 of the paper.
pub(super) const GENERATIONS: [Generation; 4] = [
    generation("1986, MC68020", 2.3, 8.0, [100.0, 16.7], [30.0, 1.0, 150.0]),
    generation("1988, MC68030", 5.3, 16.0, [80.0, 50.0], [24.0, 2.0, 280.0]),
    generation("1991, R3000", 25.0, 64.0, [80.0, 100.0], [20.0, 2.4, 1280.0]),
    generation("1993, R4000", 80.0, 256.0, [60.0, 260.0], [18.0, 3.0, 3000.0]),
];

const fn generation(
    name: &'static str,
    mips: f64,
    memory_mb: f64,
    [memory_access_ns, memory_rate]: [f64; 2],
    [access_ms, rate, size]: [f64; 3],
) -> Generation {
    Generation { name, mips, memory_mb, memory_access_ns, memory_rate, access_ms, rate, size }
}

/// How the cache is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Setup {
    /// A tenth of memory, or what nobody else needs?
    pub(super) dynamic: bool,
    pub(super) replacement: Kind,
    /// Written steadily, or every 30 s?
    pub(super) smooth: bool,
    /// Does the disk queue let those who wait go first (WS-4)?
    pub(super) priority: bool,
    /// Does it merge neighbours (WS-3)?
    pub(super) merge: bool,
}

impl Setup {
    /// As 4.3BSD.
    pub(super) const BSD: Setup =
        Setup { dynamic: false, replacement: Kind::Lru, smooth: false, priority: false, merge: false };
    /// As the paper: the size follows memory.
    pub(super) const PAPER: Setup = Setup { dynamic: true, ..Setup::BSD };
    /// As Awase, with the disk queue of 4.3BSD still: one technique at a time.
    pub(super) const AWASE: Setup = Setup { replacement: Kind::S3Fifo, smooth: true, ..Setup::PAPER };
}

/// Bytes of a buffer: what is asked for, in pages, and no more than one in so many parts of memory.
fn buffer(bytes: f64, memory_mb: f64) -> u64 {
    let most = memory_mb * MB / BUFFERS_MIN;
    (bytes.min(most) as u64 / 1024).max(1) * 1024
}

impl Hardware {
    /// As the parameters say.
    pub(super) fn of(run: &Run<'_>) -> Self {
        Hardware {
            mips: run.get("cpu.mips"),
            memory: (run.get("memory.size") * MB) as u64,
            memory_access_ns: run.get("memory.access"),
            memory_rate: run.get("memory.rate"),
            resident: run.get("memory.resident") / 100.0,
            disk: DiskNumbers {
                access_ms: run.get("disk.access"),
                rate: run.get("disk.rate"),
                size: run.get("disk.size"),
                rpm: run.get("disk.rpm"),
                units: run.get("disk.units"),
                overhead_ms: run.get("disk.overhead"),
            },
            buffer: buffer(run.get("buffer.size") * 1024.0, run.get("memory.size")),
            call_instructions: run.get("cost.call"),
            reserve_permille: (run.get("cache.reserve") * 10.0) as u64,
            fixed: run.get("cache.fixed") / 100.0,
            interval: Duration::from_secs_f64(run.get("sync.interval")),
            seed: run.seed,
        }
    }

    /// That machine of table 1, with 4.3BSD's blocks, a disk that is but for table 1 that of 1991, and the rest of this one.
    pub(super) fn at(self, then: &Generation) -> Self {
        Hardware {
            mips: then.mips,
            memory: (then.memory_mb * MB) as u64,
            buffer: buffer(8192.0, then.memory_mb),
            memory_access_ns: then.memory_access_ns,
            memory_rate: then.memory_rate,
            disk: DiskNumbers {
                access_ms: then.access_ms,
                rate: then.rate,
                size: then.size,
                rpm: 3600.0,
                units: 0.0,
                overhead_ms: 2.2,
            },
            ..self
        }
    }

    /// Buffers that memory has room for.
    pub(super) fn buffers(&self) -> u64 {
        self.memory / self.buffer
    }

    /// Blocks on the disk.
    pub(super) fn disk_blocks(&self) -> u64 {
        (self.disk.size * 1e6) as u64 / self.buffer
    }

    /// Bytes that kernel and programs always have.
    pub(super) fn resident(&self) -> u64 {
        (self.memory as f64 * self.resident) as u64
    }

    /// What a read or write call takes when it needs no disk: the call, and copying a block. Each byte crosses the
    /// memory's bus twice, and each word of four takes a load and a store.
    pub(super) fn call(&self) -> Duration {
        let bus_us = 2.0 / self.memory_rate;
        let instructions_us = 2.0 / 4.0 / self.mips;
        // A vector unit copies more than a word at a time; no machine here is slower than its memory for that.
        let copy_us = if self.mips > 1000.0 { bus_us } else { bus_us + instructions_us };
        let us = self.buffer as f64 * copy_us + self.call_instructions / self.mips;
        Duration::from_nanos((us * 1e3) as u64)
    }

    /// What clearing so much new memory takes.
    pub(super) fn clear(&self, bytes: u64) -> Duration {
        Duration::from_nanos((bytes as f64 / self.memory_rate * 1e3) as u64)
    }

    fn drive(&self) -> Drive {
        let DiskNumbers { access_ms, rate, size, rpm, units, overhead_ms } = self.disk;
        let us = |us: f64| Duration::from_nanos((us * 1e3) as u64);
        if units >= 1.0 {
            return Drive::Flash(Flash {
                name: "flash",
                source: "parameters",
                size: (size * 1e6) as u64,
                units: units as u32,
                stripe_bytes: (self.buffer / 16).max(4096) as u32,
                read: us(access_ms * 1e3),
                write: us(access_ms * 250.0),
                overhead: us(overhead_ms * 1e3),
                bus_bytes_per_second: (rate * 1e6) as u64,
            });
        }
        let Some(Drive::Mechanical(like)) = Drive::named(LIKE) else { return Drive::all()[0] };
        let seek_ms = (access_ms - 30_000.0 / rpm).max(1.0);
        let sectors = ((rate * 1e6 * 60.0 / rpm / 512.0) as u32).max(1);
        let cylinder = f64::from(sectors * like.heads) * 512.0;
        let share = |time: Duration| time.mul_f64(seek_ms / 1e3 / like.seek.mean.as_secs_f64());
        let model = Mechanical {
            name: "table-1",
            source: "the paper's table 1; what that leaves open as scsi-1991",
            rpm: rpm as u32,
            sectors_per_track: sectors,
            cylinders: ((size * 1e6 / cylinder) as u32).max(100),
            seek: SeekCurve { single: share(like.seek.single), mean: us(seek_ms * 1e3), full: share(like.seek.full) },
            overhead: us(overhead_ms * 1e3),
            ..like
        };
        Drive::Mechanical(model.formatted())
    }

    fn queue(&self, setup: Setup) -> queue::Config {
        let has_arm = self.disk.units < 1.0;
        queue::Config {
            merge: setup.merge,
            // WS-3.
            transfer_bytes_max: 128 << 10,
            priority: setup.priority,
            elevator: has_arm,
            depth: if has_arm { 1 } else { 64 },
            // 4.3BSD's disksort lets nobody go out of order, however long he waited.
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

    /// Turns the machine on.
    pub(super) fn start(&self, setup: Setup) -> Host {
        let run = Simulation::new(self.seed);
        let memory = Memory::new(self.memory, self.resident());
        let disk = Disk::new(&run, self.drive(), self.queue(setup));
        let buffers = Buffers::new(&run, &disk, &memory, self.cache(setup));
        Host { run, hardware: *self, memory, buffers }
    }
}

/// A machine that runs.
pub(super) struct Host {
    pub(super) run: Simulation,
    pub(super) hardware: Hardware,
    pub(super) memory: Memory,
    pub(super) buffers: Buffers,
}

/// What a process has of it.
#[derive(Clone)]
pub(super) struct Process {
    pub(super) time: Virtual,
    pub(super) hardware: Hardware,
    pub(super) memory: Memory,
    pub(super) buffers: Buffers,
}

impl Host {
    /// Starts a process.
    pub(super) fn spawn<W: Future<Output = ()> + 'static>(&self, work: impl FnOnce(Process) -> W) {
        self.run.spawn(work(self.process()));
    }

    fn process(&self) -> Process {
        Process {
            time: self.run.clone(),
            hardware: self.hardware,
            memory: self.memory.clone(),
            buffers: self.buffers.clone(),
        }
    }

    /// Runs a process to its end and gives what it gives.
    pub(super) fn complete<T: 'static, W: Future<Output = T> + 'static>(
        &self,
        work: impl FnOnce(Process) -> W,
    ) -> Option<T> {
        let result = Rc::new(Cell::new(None));
        let (told, is_done) = (Rc::clone(&result), Rc::new(Cell::new(false)));
        let (work, done) = (work(self.process()), Rc::clone(&is_done));
        self.run.spawn(async move {
            told.set(Some(work.await));
            done.set(true);
        });
        let end = self.run.now() + PATIENCE;
        self.run.run_while(|| !is_done.get() && self.run.now() < end);
        result.take()
    }
}

impl Process {
    /// Reads blocks in order, each with the next one ahead, as 4.3BSD reads a file. Gives the seconds it took.
    pub(super) async fn read_file(&self, blocks: std::ops::Range<u64>) -> f64 {
        let start = self.time.now();
        for block in blocks.clone() {
            let next = Some(block + 1).filter(|next| *next < blocks.end);
            self.buffers.read_ahead(DiskBlock(block), next.map(DiskBlock)).await;
            self.time.sleep(self.hardware.call()).await;
        }
        self.since(start)
    }

    /// Seconds since then.
    pub(super) fn since(&self, start: Instant) -> f64 {
        (self.time.now() - start).as_secs_f64()
    }
}
