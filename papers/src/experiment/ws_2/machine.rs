//! The numbers of the workstation.

use std::time::Duration;

use crate::drive::Drive;
use crate::drive::flash::Flash;
use crate::drive::mechanical::{Mechanical, SeekCurve};
use crate::model::buffers::DiskBlock;
use crate::model::ffs::layout::{Format, Layout};

use crate::experiment::Run;

/// The drive of the machine of 1991. Those of the other years have its shape.
const LIKE: &str = "hd1280";

/// 4.3BSD's least number of buffers.
pub(super) const BSD_BUFFERS_MIN: u64 = 16;

/// Least number of buffers in a machine's memory: with fewer, results are indistinguishable.
const BUFFERS_MIN: f64 = 512.0;

const MB: f64 = (1 << 20) as f64;

#[derive(Clone, Copy, Debug)]
pub(super) struct Hardware {
    pub(super) mips: f64,
    pub(super) memory: u64,
    pub(super) memory_access_ns: f64,
    /// MB (10^6 bytes) a second.
    pub(super) memory_rate: f64,
    resident: f64,
    disk: DiskNumbers,
    pub(super) buffer: u64,
    call_instructions: f64,
    pub(super) rotdelay_ms: f64,
    pub(super) reserve_permille: u64,
    pub(super) fixed: f64,
    pub(super) interval: Duration,
    pub(super) seed: u64,
}

#[derive(Clone, Copy, Debug)]
struct DiskNumbers {
    access_ms: f64,
    rate: f64,
    size: f64,
    rpm: f64,
    units: f64,
    overhead_ms: f64,
}

/// What differs from one machine of the paper's table 1 to the next.
const DIFFERENCES: [&str; 7] =
    ["cpu.mips", "memory.size", "memory.access", "memory.rate", "disk.access", "disk.rate", "disk.size"];

pub(super) const GENERATIONS: [(&str, [f64; 7]); 4] = [
    ("1986, MC68020", [2.3, 8.0, 100.0, 16.7, 30.0, 1.0, 150.0]),
    ("1988, MC68030", [5.3, 16.0, 80.0, 50.0, 24.0, 2.0, 280.0]),
    ("1991, R3000", [25.0, 64.0, 80.0, 100.0, 20.0, 2.4, 1280.0]),
    ("1993, R4000", [80.0, 256.0, 60.0, 260.0, 18.0, 3.0, 3000.0]),
];

/// 4.3BSD's blocks, and a disk that is otherwise that of 1991.
const OF_ALL_GENERATIONS: [(&str, f64); 4] =
    [("buffer.size", 8.0), ("disk.rpm", 3600.0), ("disk.units", 0.0), ("disk.overhead", 3.0)];

/// Bytes of a buffer: the given size in pages, but at most memory divided by [`BUFFERS_MIN`].
fn buffer(bytes: f64, memory_mb: f64) -> u64 {
    let most = memory_mb * MB / BUFFERS_MIN;
    (bytes.min(most) as u64 / 1024).max(1) * 1024
}

/// Sectors on a track, so that `rate` MB pass in a second.
fn sectors(rate: f64, rpm: f64) -> u32 {
    ((rate * 1e6 * 60.0 / rpm / 512.0) as u32).max(1)
}

impl Hardware {
    pub(super) fn of(run: &Run<'_>) -> Self {
        Hardware::with(&|name| run.get(name), run.seed)
    }

    /// A machine of table 1; the rest is that of the parameters.
    pub(super) fn of_generation(run: &Run<'_>, numbers: [f64; 7]) -> Self {
        let own = || DIFFERENCES.into_iter().zip(numbers).chain(OF_ALL_GENERATIONS);
        let get = |name: &str| own().find(|(of, _)| *of == name).map_or_else(|| run.get(name), |(_, number)| number);
        Hardware::with(&get, run.seed)
    }

    fn with(get: &dyn Fn(&str) -> f64, seed: u64) -> Self {
        Hardware {
            mips: get("cpu.mips"),
            memory: (get("memory.size") * MB) as u64,
            memory_access_ns: get("memory.access"),
            memory_rate: get("memory.rate"),
            resident: get("memory.resident") / 100.0,
            disk: DiskNumbers {
                access_ms: get("disk.access"),
                rate: get("disk.rate"),
                size: get("disk.size"),
                rpm: get("disk.rpm"),
                units: get("disk.units"),
                overhead_ms: get("disk.overhead"),
            },
            buffer: buffer(get("buffer.size") * 1024.0, get("memory.size")),
            call_instructions: get("cost.call"),
            rotdelay_ms: get("fs.rotdelay"),
            reserve_permille: (get("cache.reserve") * 10.0) as u64,
            fixed: get("cache.fixed") / 100.0,
            interval: Duration::from_secs_f64(get("sync.interval")),
            seed,
        }
    }

    pub(super) fn buffers(&self) -> u64 {
        self.memory / self.buffer
    }

    pub(super) fn disk_blocks(&self) -> u64 {
        (self.disk.size * 1e6) as u64 / self.buffer
    }

    /// Distance between a file's blocks, in blocks: 4.3BSD leaves what passes under the head in `rotdelay`.
    pub(super) fn stride(&self) -> u64 {
        let DiskNumbers { rate, rpm, units, .. } = self.disk;
        if units >= 1.0 {
            return 1;
        }
        let format = Format {
            block_bytes: self.buffer,
            sectors_per_track: sectors(rate, rpm).into(),
            rotations_per_second: rpm / 60.0,
            rotdelay_ms: self.rotdelay_ms,
            ..Format::NEWFS
        };
        1 + Layout::new(format).gap_blocks()
    }

    /// Place of block `index` of a file that begins at `start`.
    pub(super) fn place(&self, start: u64, index: u64) -> DiskBlock {
        DiskBlock(start + index * self.stride())
    }

    /// Bytes that kernel and programs always have.
    pub(super) fn resident(&self) -> u64 {
        (self.memory as f64 * self.resident) as u64
    }

    /// Time of a read or write call that needs no disk: the call, and copying a block. Each byte crosses the memory's
    /// bus twice, and each word of four takes a load and a store.
    pub(super) fn call(&self) -> Duration {
        let bus_us = 2.0 / self.memory_rate;
        let instructions_us = 2.0 / 4.0 / self.mips;
        // A vector unit copies more than a word at a time: such a machine is limited by its memory.
        let copy_us = if self.mips > 1000.0 { bus_us } else { bus_us + instructions_us };
        let us = self.buffer as f64 * copy_us + self.call_instructions / self.mips;
        Duration::from_nanos((us * 1e3) as u64)
    }

    pub(super) fn has_arm(&self) -> bool {
        self.disk.units < 1.0
    }

    /// Time to clear new memory.
    pub(super) fn clear(&self, bytes: u64) -> Duration {
        Duration::from_nanos((bytes as f64 / self.memory_rate * 1e3) as u64)
    }

    pub(super) fn drive(&self) -> Drive {
        let DiskNumbers { access_ms, rate, size, rpm, units, overhead_ms } = self.disk;
        let us = |us: f64| Duration::from_nanos((us * 1e3) as u64);
        if units >= 1.0 {
            return Drive::Flash(Flash {
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
        let like = Mechanical::named(LIKE);
        let seek_ms = (access_ms - 30_000.0 / rpm).max(1.0);
        let sectors = sectors(rate, rpm);
        let cylinder = f64::from(sectors * like.heads) * 512.0;
        let share = |time: Duration| time.mul_f64(seek_ms / 1e3 / like.seek.mean.as_secs_f64());
        let model = Mechanical {
            rpm: rpm as u32,
            sectors_per_track: sectors,
            cylinders: ((size * 1e6 / cylinder) as u32).max(100),
            seek: SeekCurve { single: share(like.seek.single), mean: us(seek_ms * 1e3), full: share(like.seek.full) },
            overhead: us(overhead_ms * 1e3),
            ..like
        };
        Drive::Mechanical(model.formatted())
    }
}
