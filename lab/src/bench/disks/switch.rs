//! One workload for each switch of Awase, where it should matter.

use super::fio::{Job, Length};
use super::workload::{
    Client, Image, RANDOM_READ, READ, READ_ONCE, SEQUENTIAL, SINGLE, SYNCHRONOUS, Setup, WRITE, Workload, filled, fio,
    large, small,
};
use crate::bench::contender::{Contender, Memory};
use crate::bench::sample::Unit;
use crate::measure::load::{Load, Operation, Order, Stability};

const READS: Client = fio(&[READ]);
const LARGE_READS: Client = fio(&[Job { length: Length::AsGivenOnce, ..Job::new(RANDOM_READ, 128, 8) }]);

/// A twentieth of the image; the scan covers twelve times as much.
const HOT: Job = Job { region: (0, 5), length: Length::OnePass, ..READ };
const SCAN: Job = Job { region: (5, 65), length: Length::OnePass, ..SEQUENTIAL };

/// One reader of uncached blocks, next to a writer of other blocks.
const READER: Job = Job { region: (50, 100), ..SINGLE };
const WRITER: Job = Job { region: (0, 25), ..WRITE };
const STEADY_WRITER: Job = Job { region: (0, 25), rate_mib: 20, length: Length::Seconds(40), ..WRITE };
const STEADY_READER: Job = Job { length: Length::Seconds(40), ..READER };

const READS_IN_ORDER: Job = Job::new(Operation::Read(Order::Sequential), 16, 1);
const WRITES_IN_ORDER: Job =
    Job::new(Operation::Overwrite(Order::Sequential, Stability::Flushed { writes: 256 }), 4, 32);
const SEVERAL_SYNCHRONOUS: Job = Job { load: Load { connections: 4, ..SYNCHRONOUS }, ..WRITE };

/// Name, title, unit, flags that turn the switch on and off, a load that it should affect, and a remark.
type Switch = (&'static str, &'static str, Unit, [&'static str; 2], Setup, &'static str);

const IN_MEMORY: Setup = Setup { memory: Memory::Mib(2048), ..filled(READS) };

static SWITCHES: &[Switch] = &[
    (
        "switch_dynamic_cache",
        "4 KiB random read of the large image, 32 in flight, read once before",
        Unit::RequestsASecond,
        ["--switch dynamic_cache=on", "--switch dynamic_cache=off"],
        Setup { image: Image::Large, ..filled(READS) },
        "Matters where the image is larger than a tenth of memory.",
    ),
    (
        "switch_scan_resistant",
        "4 KiB random read of a hot twentieth of the image, after a scan of twelve times as much",
        Unit::RequestsASecond,
        ["--switch scan_resistant=on", "--switch scan_resistant=off"],
        Setup {
            memory: Memory::TenthOfImage,
            ..large(0, Client::Fio { before: &[HOT, HOT, HOT, SCAN], jobs: &[HOT] })
        },
        "The hot part was read twice before; the cache holds a tenth of the image.",
    ),
    (
        "switch_smooth_write_back",
        "4 KiB reads, one in flight, not cached, beside 20 MiB/s of writes for 40 s",
        Unit::P999Micros,
        ["--switch smooth_write_back=on", "--switch smooth_write_back=off"],
        large(2048, fio(&[STEADY_READER, STEADY_WRITER])),
        "Off, all that was written goes to the disk every 30 s at once.",
    ),
    (
        "switch_block_merge",
        "4 KiB writes in order, 32 in flight, a flush after every 256",
        Unit::RequestsASecond,
        ["--switch block_merge=on", "--switch block_merge=off"],
        Setup { memory: Memory::Mib(512), ..small(fio(&[WRITES_IN_ORDER])) },
        "",
    ),
    (
        "switch_priority",
        "4 KiB reads, one in flight, not cached, beside 4 KiB random writes, 32 in flight",
        Unit::P99Micros,
        ["--switch priority=on", "--switch priority=off"],
        large(128, fio(&[READER, WRITER])),
        "The writes fill the cache and go to the disk asynchronously.",
    ),
    (
        "switch_read_ahead",
        "16 KiB reads in order, one in flight, not cached",
        Unit::MibASecond,
        ["--switch read_ahead=adaptive", "--switch read_ahead=off"],
        large(256, fio(&[READS_IN_ORDER])),
        "",
    ),
    (
        "switch_flush_gathering",
        "8 KiB random write, a flush after each, 16 in flight on each of 4 connections",
        Unit::RequestsASecond,
        ["--switch flush_gathering=on", "--switch flush_gathering=off"],
        Setup { memory: Memory::Mib(2048), ..small(fio(&[SEVERAL_SYNCHRONOUS])) },
        "",
    ),
    (
        "switch_quantum",
        "4 KiB random read, 32 in flight, cached",
        Unit::RequestsASecond,
        ["--switch quantum=adaptive", "--switch quantum=off"],
        IN_MEMORY,
        "",
    ),
    (
        "switch_unmapped_io",
        "128 KiB random read, 8 in flight, not cached",
        Unit::MibASecond,
        ["--switch unmapped_io=on", "--switch unmapped_io=off"],
        large(256, LARGE_READS),
        "",
    ),
    (
        "switch_huge_pages",
        "4 KiB random read, 32 in flight, cached",
        Unit::RequestsASecond,
        ["--switch huge_pages=on", "--switch huge_pages=off"],
        IN_MEMORY,
        "",
    ),
    (
        "switch_registered_buffers",
        "128 KiB random read, 8 in flight, not cached",
        Unit::MibASecond,
        ["--switch registered_buffers=on", "--switch registered_buffers=off"],
        large(256, LARGE_READS),
        "",
    ),
    (
        "switch_engine",
        "4 KiB random read, 32 in flight, not cached; io_uring (on) or the thread pool (off)",
        Unit::RequestsASecond,
        ["--engine io_uring", "--engine threads"],
        large(64, fio(&[READ_ONCE])),
        "",
    ),
];

/// Each switch of Awase on and off.
pub fn switches() -> Vec<Workload> {
    let workload = |(name, title, unit, [on, off], setup, about): &Switch| {
        let contenders = [Contender::awase("on", on), Contender::awase("off", off)];
        Workload::new(*name, *title, *unit, &contenders, *setup).about(about)
    };
    SWITCHES.iter().map(workload).collect()
}
