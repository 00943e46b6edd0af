//! The workloads of the comparison, and one for each switch.

use super::fio::{Job, Length};
use crate::bench::contender::{Contender, Memory, Peer};
use crate::bench::results::{self, Bound};
use crate::bench::sample::Unit;
use crate::measure::load::{Load, Operation, Order, Stability};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Image {
    /// The large one, read-only unless a workload says otherwise: for reads that no cache answers.
    Large,
    /// The small one, which fits into the caches.
    Small,
}

/// The state of the server's cache when the client begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Nothing is cached, neither by the server, which is fresh, nor by the host.
    Cold,
    /// The whole image was read through the server (or written into it, if it stores its data in memory).
    Filled,
}

#[derive(Clone, Copy, Debug)]
pub enum Client {
    Fio {
        /// Run one after another.
        before: &'static [Job],
        /// Run concurrently after that; the first is measured.
        jobs: &'static [Job],
    },
    /// nbdcopy of a file into the export, flushed.
    CopyIn,
    /// nbdcopy of the export to nowhere.
    CopyOut,
    /// `qemu-img bench`, 4 KiB in order, 32 in flight.
    QemuImg {
        /// Writes, with a flush after every 64; otherwise reads.
        write: bool,
    },
    /// Memory in use before any client connects.
    IdleMemory,
    /// The most memory in use under jobs.
    PeakMemory(Job),
    /// Memory in use when the cache is full.
    FilledMemory,
    /// Memory that a server takes for a larger cache beyond the cache itself.
    Bookkeeping,
}

/// How a workload on a disk is set up.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub image: Image,
    pub memory: Memory,
    /// What is cached before the client begins.
    pub cache: Cache,
    pub client: Client,
}

pub type Workload = results::Workload<Setup>;

const AWASE: Contender = Contender::awase("Awase", "");
const NBDKIT_FILE: Contender = Contender::new("nbdkit file", Peer::NbdkitFile);
const NBDKIT_MEMORY: Contender = Contender::new("nbdkit memory", Peer::NbdkitMemory);
const QEMU_NBD: Contender = Contender::new("qemu-nbd", Peer::QemuNbd);
const RAW: Contender = Contender::new("raw file (io_uring)", Peer::Raw);

/// The other servers that export files.
pub const PEERS: &[&str] = &["nbdkit file", "qemu-nbd"];

/// 64 MiB of cache, the payload of 256 · 128 requests of 4 KiB, and an idle server. MiB.
const CROWD_MIB_MAX: f64 = 64.0 + 128.0 + 32.0;

const RANDOM_READ: Operation = Operation::Read(Order::Random);
/// Nothing is flushed.
const RANDOM_WRITE: Operation = Operation::Overwrite(Order::Random, Stability::Flushed { writes: 0 });

const READ: Job = Job::new(RANDOM_READ, 4, 32);
/// Where no cache may answer, no block is read twice.
const READ_ONCE: Job = Job { length: Length::AsGivenOnce, ..READ };
const WRITE: Job = Job::new(RANDOM_WRITE, 4, 32);
const SEQUENTIAL: Job = Job::new(Operation::Read(Order::Sequential), 128, 8);
const SINGLE: Job = Job::new(RANDOM_READ, 4, 1);
const SYNCHRONOUS: Load = Load::new(Operation::Overwrite(Order::Random, Stability::Flushed { writes: 1 }), 8, 16);

/// Fresh servers, the small image, and memory as they like.
const fn small(client: Client) -> Setup {
    Setup { image: Image::Small, memory: Memory::Auto, cache: Cache::Cold, client }
}

const fn large(mib: u64, client: Client) -> Setup {
    Setup { image: Image::Large, memory: Memory::Mib(mib), ..small(client) }
}

const fn fio(jobs: &'static [Job]) -> Client {
    Client::Fio { before: &[], jobs }
}

const fn filled(client: Client) -> Setup {
    Setup { cache: Cache::Filled, ..small(client) }
}

pub fn comparison() -> Vec<Workload> {
    [cached_and_not(), writes_and_copies(), memory()].concat()
}

fn cached_and_not() -> Vec<Workload> {
    let caches = &[AWASE, NBDKIT_MEMORY, NBDKIT_FILE];
    vec![
        Workload::new(
            "random_read_uncached",
            "4 KiB random read, 32 in flight, not cached",
            Unit::RequestsASecond,
            &[AWASE, NBDKIT_FILE, QEMU_NBD, RAW],
            large(64, fio(&[READ_ONCE])),
        )
        .about(
            "Each block of the large image is read at most once, in random order, and none of it is in the host's page \
             cache before, so that no cache can answer; Awase's cache is 64 MiB besides.",
        )
        .bounds(&[Bound::Times(0.9, &["raw file (io_uring)"])]),
        Workload::new(
            "random_read_cached",
            "4 KiB random read, 32 in flight, cached",
            Unit::RequestsASecond,
            caches,
            filled(fio(&[READ])),
        )
        .about("The whole image was read through the server before (written into nbdkit's memory plugin).")
        .bounds(&[Bound::Times(1.8, &["nbdkit memory"])]),
        Workload::new(
            "sequential_read_cached",
            "128 KiB sequential read, 8 in flight, cached",
            Unit::MibASecond,
            caches,
            filled(fio(&[SEQUENTIAL])),
        )
        .about("As above.")
        .bounds(&[Bound::Times(1.3, &["nbdkit memory"])]),
        Workload::new(
            "latency_read_cached",
            "4 KiB random read, one in flight, cached",
            Unit::MeanMicros,
            caches,
            filled(fio(&[SINGLE])),
        )
        .about("As above; the time that one request takes."),
    ]
}

fn writes_and_copies() -> Vec<Workload> {
    let files = &[AWASE, NBDKIT_FILE, QEMU_NBD];
    let with_raw = &[AWASE, NBDKIT_FILE, QEMU_NBD, RAW];
    let requests = Unit::RequestsASecond;
    let write = small(fio(&[WRITE]));
    let synchronous = small(fio(const { &[Job { load: SYNCHRONOUS, ..WRITE }] }));
    vec![
        Workload::new("random_write", "4 KiB random write, 32 in flight", requests, with_raw, write)
            .about(
                "Nothing is cached before and nothing is flushed: Awase and nbdkit may keep what was written in memory, \
                 qemu-nbd and raw write it to the disk's own cache.",
            )
            .bounds(&[Bound::Times(1.0, PEERS)]),
        Workload::new(
            "synchronous_write",
            "8 KiB random write, a flush after each, 16 in flight",
            requests,
            with_raw,
            synchronous,
        )
        .about("fio with fsync=1.")
        .bounds(&[Bound::Times(1.5, PEERS)]),
        Workload::new("copy_in", "nbdcopy of an image in", Unit::MibASecond, files, small(Client::CopyIn))
            .about("From a file in the page cache into the export, with a flush at the end.")
            .bounds(&[Bound::Times(1.0, PEERS)]),
        Workload::new("copy_out", "nbdcopy of an image out", Unit::MibASecond, files, small(Client::CopyOut))
            .about("From an export of which nothing is cached to nowhere (`null:`).")
            .bounds(&[Bound::Times(1.0, PEERS)]),
        Workload::new(
            "qemu_img_read",
            "qemu-img bench, 4 KiB reads in order, 32 in flight, cached",
            requests,
            &[AWASE, NBDKIT_MEMORY, NBDKIT_FILE, QEMU_NBD],
            filled(Client::QemuImg { write: false }),
        )
        .about("The whole image was read through the server before; qemu-nbd caches nothing."),
        Workload::new(
            "qemu_img_write",
            "qemu-img bench, 4 KiB writes in order, a flush after every 64, 32 in flight",
            requests,
            files,
            small(Client::QemuImg { write: true }),
        ),
    ]
}

fn memory() -> Vec<Workload> {
    let files = &[AWASE, NBDKIT_FILE, QEMU_NBD];
    let crowd = Job { load: Load { connections: 256, ..Load::new(RANDOM_READ, 4, 128) }, ..READ };
    let crowd = Setup { memory: Memory::Mib(64), ..small(Client::PeakMemory(crowd)) };
    // Larger than either cache, also with --quick: only a full cache shows its cost.
    let bookkeeping = Setup { image: Image::Large, ..small(Client::Bookkeeping) };
    vec![
        Workload::new("memory_idle", "Memory of an idle server", Unit::Mib, files, small(Client::IdleMemory))
            .about("Resident size when it is ready and nobody has connected, with default settings.")
            .bounds(&[Bound::AtMost(32.0)]),
        Workload::new("memory_crowd", "Memory with 256 connections of 128 requests each", Unit::Mib, files, crowd)
            .about("The most memory in use under 4 KiB random reads; Awase's cache is 64 MiB.")
            .bounds(&[Bound::AtMost(CROWD_MIB_MAX)]),
        Workload::new("memory_bookkeeping", "Book-keeping of the cache", Unit::Percent, &[AWASE], bookkeeping)
            .about("What the server takes more with a full cache of 320 MiB than with one of 64 MiB, beside the cache.")
            .bounds(&[Bound::AtMost(2.0)]),
    ]
}

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
        Workload::new(name, title, *unit, &contenders, *setup).about(about)
    };
    SWITCHES.iter().map(workload).collect()
}
