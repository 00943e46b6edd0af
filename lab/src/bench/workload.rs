//! The workloads of the comparison, and one for each switch.

use crate::bench::fio::{Job, Length, Pattern};
use crate::bench::results::{Bound, Subject};
use crate::bench::sample::Unit;
use crate::bench::server::Peer;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Image {
    /// The large one, read-only unless a workload says otherwise: for reads that no cache answers.
    Large,
    /// The small one, which fits into the caches.
    Small,
}

/// The memory that Awase's cache may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Awase sizes its cache itself.
    Auto,
    Mib(u64),
    TenthOfImage,
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

#[derive(Clone, Debug)]
pub struct Contender {
    /// Its name in the report.
    pub label: &'static str,
    pub peer: Peer,
}

#[derive(Clone, Debug)]
pub struct Workload {
    /// Its name, for `--only`.
    pub name: String,
    pub title: &'static str,
    pub about: &'static str,
    pub unit: Unit,
    pub contenders: Vec<Contender>,
    pub image: Image,
    pub memory: Memory,
    /// What is cached before the client begins.
    pub cache: Cache,
    pub client: Client,
}

impl Workload {
    pub fn subject(&self) -> Subject {
        let contenders = self.contenders.iter().map(|contender| contender.label).collect();
        let bounds = FIGURES.iter().filter(|(name, _)| *name == self.name).map(|(_, bound)| *bound).collect();
        Subject { name: self.name.clone(), title: self.title, about: self.about, unit: self.unit, contenders, bounds }
    }
}

/// The other servers that export files.
pub const PEERS: &[&str] = &["nbdkit file", "qemu-nbd"];

/// 64 MiB of cache, the payload of 256 · 128 requests of 4 KiB, and an idle server. MiB.
const CROWD_MIB_MAX: f64 = 64.0 + 128.0 + 32.0;

/// The targets of Awase.
const FIGURES: &[(&str, Bound)] = &[
    ("random_read_uncached", Bound::Times(0.9, &["raw file (io_uring)"])),
    ("random_read_cached", Bound::Times(1.8, &["nbdkit memory"])),
    ("sequential_read_cached", Bound::Times(1.3, &["nbdkit memory"])),
    ("random_write", Bound::Times(1.0, PEERS)),
    ("synchronous_write", Bound::Times(1.5, PEERS)),
    ("copy_in", Bound::Times(1.0, PEERS)),
    ("copy_out", Bound::Times(1.0, PEERS)),
    ("memory_idle", Bound::AtMost(32.0)),
    ("memory_crowd", Bound::AtMost(CROWD_MIB_MAX)),
    ("memory_bookkeeping", Bound::AtMost(2.0)),
];

const READ: Job = Job::new(Pattern::RandomRead, 4, 32);
/// Where no cache may answer, no block is read twice.
const READ_ONCE: Job = Job { length: Length::AsAskedOnce, ..READ };
const WRITE: Job = Job::new(Pattern::RandomWrite, 4, 32);
const SEQUENTIAL: Job = Job::new(Pattern::Read, 128, 8);
const SINGLE: Job = Job::new(Pattern::RandomRead, 4, 1);
const SYNCHRONOUS: Job = Job { writes_a_flush: 1, ..Job::new(Pattern::RandomWrite, 8, 16) };
const AWASE: Peer = Peer::Awase(&[]);

pub fn comparison() -> Vec<Workload> {
    let files = [AWASE, Peer::NbdkitFile, Peer::QemuNbd];
    let caches = [AWASE, Peer::NbdkitMemory, Peer::NbdkitFile];
    let with_raw = [AWASE, Peer::NbdkitFile, Peer::QemuNbd, Peer::Raw];
    let fio = |jobs: &'static [Job]| Client::Fio { before: &[], jobs };
    let small = |name: &str, title, about, unit, peers: &[Peer], cache, client| Workload {
        name: name.into(),
        title,
        about,
        unit,
        contenders: peers.iter().map(|peer| Contender { label: peer.label(), peer: peer.clone() }).collect(),
        image: Image::Small,
        memory: Memory::Auto,
        cache,
        client,
    };
    let requests = Unit::RequestsASecond;
    vec![
        Workload {
            image: Image::Large,
            memory: Memory::Mib(64),
            ..small(
                "random_read_uncached",
                "4 KiB random read, 32 in flight, not cached",
                "Each block of the large image is read at most once, in random order, and none of it is in the host's page \
                 cache before, so that no cache can answer; Awase's cache is 64 MiB besides.",
                requests,
                &with_raw,
                Cache::Cold,
                fio(&[READ_ONCE]),
            )
        },
        small(
            "random_read_cached",
            "4 KiB random read, 32 in flight, cached",
            "The whole image was read through the server before (written into nbdkit's memory plugin).",
            requests,
            &caches,
            Cache::Filled,
            fio(&[READ]),
        ),
        small(
            "sequential_read_cached",
            "128 KiB sequential read, 8 in flight, cached",
            "As above.",
            Unit::MibASecond,
            &caches,
            Cache::Filled,
            fio(&[SEQUENTIAL]),
        ),
        small(
            "latency_read_cached",
            "4 KiB random read, one in flight, cached",
            "As above; the time that one request takes.",
            Unit::MeanMicros,
            &caches,
            Cache::Filled,
            fio(&[SINGLE]),
        ),
        small(
            "random_write",
            "4 KiB random write, 32 in flight",
            "Nothing is cached before and nothing is flushed: Awase and nbdkit may keep what was written in memory, qemu-nbd \
             and raw write it to the disk's own cache.",
            requests,
            &with_raw,
            Cache::Cold,
            fio(&[WRITE]),
        ),
        small(
            "synchronous_write",
            "8 KiB random write, a flush after each, 16 in flight",
            "fio with fsync=1.",
            requests,
            &with_raw,
            Cache::Cold,
            fio(&[SYNCHRONOUS]),
        ),
        small(
            "copy_in",
            "nbdcopy of an image in",
            "From a file in the page cache into the export, with a flush at the end.",
            Unit::MibASecond,
            &files,
            Cache::Cold,
            Client::CopyIn,
        ),
        small(
            "copy_out",
            "nbdcopy of an image out",
            "From an export of which nothing is cached to nowhere (`null:`).",
            Unit::MibASecond,
            &files,
            Cache::Cold,
            Client::CopyOut,
        ),
        small(
            "qemu_img_read",
            "qemu-img bench, 4 KiB reads in order, 32 in flight, cached",
            "The whole image was read through the server before; qemu-nbd caches nothing.",
            requests,
            &[AWASE, Peer::NbdkitMemory, Peer::NbdkitFile, Peer::QemuNbd],
            Cache::Filled,
            Client::QemuImg { write: false },
        ),
        small(
            "qemu_img_write",
            "qemu-img bench, 4 KiB writes in order, a flush after every 64, 32 in flight",
            "",
            requests,
            &files,
            Cache::Cold,
            Client::QemuImg { write: true },
        ),
        Workload {
            memory: Memory::Auto,
            ..small(
                "memory_idle",
                "Memory of an idle server",
                "Resident size when it is ready and nobody has connected, with default settings.",
                Unit::Mib,
                &[AWASE, Peer::NbdkitFile, Peer::QemuNbd],
                Cache::Cold,
                Client::IdleMemory,
            )
        },
        Workload {
            memory: Memory::Mib(64),
            ..small(
                "memory_crowd",
                "Memory with 256 connections of 128 requests each",
                "The most memory in use under 4 KiB random reads; Awase's cache is 64 MiB.",
                Unit::Mib,
                &[AWASE, Peer::NbdkitFile, Peer::QemuNbd],
                Cache::Cold,
                Client::PeakMemory(Job { connections: 256, ..Job::new(Pattern::RandomRead, 4, 128) }),
            )
        },
        Workload {
            // Larger than either cache, also with --quick: only a full cache shows its cost.
            image: Image::Large,
            ..small(
                "memory_bookkeeping",
                "Book-keeping of the cache",
                "What the server takes more with a full cache of 320 MiB than with one of 64 MiB, beside the cache.",
                Unit::Percent,
                &[AWASE],
                Cache::Cold,
                Client::Bookkeeping,
            )
        },
    ]
}

/// A switch on and off. The flags are those of `awase serve`.
struct Technique {
    name: &'static str,
    title: &'static str,
    about: &'static str,
    unit: Unit,
    on: &'static [&'static str],
    off: &'static [&'static str],
    image: Image,
    memory: Memory,
    cache: Cache,
    client: Client,
}

const READS: Client = Client::Fio { before: &[], jobs: &[READ] };
const READS_ONCE: Client = Client::Fio { before: &[], jobs: &[READ_ONCE] };
const LARGE_READS: Client =
    Client::Fio { before: &[], jobs: &[Job { length: Length::AsAskedOnce, ..Job::new(Pattern::RandomRead, 128, 8) }] };

/// A twentieth of the image; the scan covers twelve times as much.
const HOT: Job = Job { region: (0, 5), length: Length::OnePass, ..READ };
const SCAN: Job = Job { region: (5, 65), length: Length::OnePass, ..SEQUENTIAL };

/// One reader of uncached blocks, next to a writer of other blocks.
const READER: Job = Job { region: (50, 100), ..SINGLE };
const WRITER: Job = Job { region: (0, 25), ..WRITE };
const STEADY_WRITER: Job = Job { region: (0, 25), rate_mib: 20, length: Length::Seconds(40), ..WRITE };

static TECHNIQUES: &[Technique] = &[
    Technique {
        name: "dynamic_cache",
        title: "4 KiB random read of the large image, 32 in flight, read once before",
        about: "Matters where the image is larger than a tenth of memory.",
        unit: Unit::RequestsASecond,
        on: &["--switch", "dynamic_cache=on"],
        off: &["--switch", "dynamic_cache=off"],
        image: Image::Large,
        memory: Memory::Auto,
        cache: Cache::Filled,
        client: READS,
    },
    Technique {
        name: "scan_resistant",
        title: "4 KiB random read of a hot twentieth of the image, after a scan of twelve times as much",
        about: "The hot part was read twice before; the cache holds a tenth of the image.",
        unit: Unit::RequestsASecond,
        on: &["--switch", "scan_resistant=on"],
        off: &["--switch", "scan_resistant=off"],
        image: Image::Large,
        memory: Memory::TenthOfImage,
        cache: Cache::Cold,
        client: Client::Fio { before: &[HOT, HOT, HOT, SCAN], jobs: &[HOT] },
    },
    Technique {
        name: "smooth_write_back",
        title: "4 KiB reads, one in flight, not cached, beside 20 MiB/s of writes for 40 s",
        about: "Off, all that was written goes to the disk every 30 s at once.",
        unit: Unit::P999Micros,
        on: &["--switch", "smooth_write_back=on"],
        off: &["--switch", "smooth_write_back=off"],
        image: Image::Large,
        memory: Memory::Mib(2048),
        cache: Cache::Cold,
        client: Client::Fio { before: &[], jobs: &[Job { length: Length::Seconds(40), ..READER }, STEADY_WRITER] },
    },
    Technique {
        name: "block_merge",
        title: "4 KiB writes in order, 32 in flight, a flush after every 256",
        about: "",
        unit: Unit::RequestsASecond,
        on: &["--switch", "block_merge=on"],
        off: &["--switch", "block_merge=off"],
        image: Image::Small,
        memory: Memory::Mib(512),
        cache: Cache::Cold,
        client: Client::Fio { before: &[], jobs: &[Job { writes_a_flush: 256, ..Job::new(Pattern::Write, 4, 32) }] },
    },
    Technique {
        name: "priority",
        title: "4 KiB reads, one in flight, not cached, beside 4 KiB random writes, 32 in flight",
        about: "The writes fill the cache and go to the disk asynchronously.",
        unit: Unit::P99Micros,
        on: &["--switch", "priority=on"],
        off: &["--switch", "priority=off"],
        image: Image::Large,
        memory: Memory::Mib(128),
        cache: Cache::Cold,
        client: Client::Fio { before: &[], jobs: &[READER, WRITER] },
    },
    Technique {
        name: "read_ahead",
        title: "16 KiB reads in order, one in flight, not cached",
        about: "",
        unit: Unit::MibASecond,
        on: &["--switch", "read_ahead=adaptive"],
        off: &["--switch", "read_ahead=off"],
        image: Image::Large,
        memory: Memory::Mib(256),
        cache: Cache::Cold,
        client: Client::Fio { before: &[], jobs: &[Job::new(Pattern::Read, 16, 1)] },
    },
    Technique {
        name: "flush_gathering",
        title: "8 KiB random write, a flush after each, 16 in flight on each of 4 connections",
        about: "",
        unit: Unit::RequestsASecond,
        on: &["--switch", "flush_gathering=on"],
        off: &["--switch", "flush_gathering=off"],
        image: Image::Small,
        memory: Memory::Mib(2048),
        cache: Cache::Cold,
        client: Client::Fio { before: &[], jobs: &[Job { connections: 4, ..SYNCHRONOUS }] },
    },
    Technique {
        name: "quantum",
        title: "4 KiB random read, 32 in flight, cached",
        about: "",
        unit: Unit::RequestsASecond,
        on: &["--switch", "quantum=adaptive"],
        off: &["--switch", "quantum=off"],
        image: Image::Small,
        memory: Memory::Mib(2048),
        cache: Cache::Filled,
        client: READS,
    },
    Technique {
        name: "unmapped_io",
        title: "128 KiB random read, 8 in flight, not cached",
        about: "",
        unit: Unit::MibASecond,
        on: &["--switch", "unmapped_io=on"],
        off: &["--switch", "unmapped_io=off"],
        image: Image::Large,
        memory: Memory::Mib(256),
        cache: Cache::Cold,
        client: LARGE_READS,
    },
    Technique {
        name: "huge_pages",
        title: "4 KiB random read, 32 in flight, cached",
        about: "",
        unit: Unit::RequestsASecond,
        on: &["--switch", "huge_pages=on"],
        off: &["--switch", "huge_pages=off"],
        image: Image::Small,
        memory: Memory::Mib(2048),
        cache: Cache::Filled,
        client: READS,
    },
    Technique {
        name: "registered_buffers",
        title: "128 KiB random read, 8 in flight, not cached",
        about: "",
        unit: Unit::MibASecond,
        on: &["--switch", "registered_buffers=on"],
        off: &["--switch", "registered_buffers=off"],
        image: Image::Large,
        memory: Memory::Mib(256),
        cache: Cache::Cold,
        client: LARGE_READS,
    },
    Technique {
        name: "engine",
        title: "4 KiB random read, 32 in flight, not cached; io_uring (on) or the thread pool (off)",
        about: "",
        unit: Unit::RequestsASecond,
        on: &["--engine", "io_uring"],
        off: &["--engine", "threads"],
        image: Image::Large,
        memory: Memory::Mib(64),
        cache: Cache::Cold,
        client: READS_ONCE,
    },
];

pub const ON_OFF: [&str; 2] = ["on", "off"];

/// Each switch of Awase on and off, under a load that it should affect.
pub fn switches() -> Vec<Workload> {
    let side = |label, flags| Contender { label, peer: Peer::Awase(flags) };
    TECHNIQUES
        .iter()
        .map(|technique| Workload {
            name: format!("switch_{}", technique.name),
            title: technique.title,
            about: technique.about,
            unit: technique.unit,
            contenders: vec![side(ON_OFF[0], technique.on), side(ON_OFF[1], technique.off)],
            image: technique.image,
            memory: technique.memory,
            cache: technique.cache,
            client: technique.client,
        })
        .collect()
}
