//! The workloads of the comparison.

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
    /// One as large as the small one, which has only holes, new for each server: what `make run` serves.
    Sparse,
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
const NULL: Contender = Contender::NULL;
const NULL_ASLEEP: Contender = Contender::NULL_ASLEEP;
const PASS: Contender = Contender::PASS;
const PASS_HALF: Contender = Contender::PASS_HALF;
const PASS_POLLING: Contender = Contender::PASS_POLLING;
const RAW: Contender = Contender::new("raw file (io_uring)", Peer::Raw);

/// The other servers that export files.
pub const PEERS: &[&str] = &["nbdkit file", "qemu-nbd"];

/// Those that answer from memory.
const CACHES: &[&str] = &["nbdkit memory", "nbdkit file"];

/// 64 MiB of cache, the payload of 256 · 128 requests of 4 KiB, and an idle server. MiB.
const CROWD_MIB_MAX: f64 = 64.0 + 128.0 + 32.0;

pub const RANDOM_READ: Operation = Operation::Read(Order::Random);
/// Nothing is flushed.
const RANDOM_WRITE: Operation = Operation::Overwrite(Order::Random, Stability::Flushed { writes: 0 });

pub const READ: Job = Job::new(RANDOM_READ, 4, 32);
/// Where no cache may answer, no block is read twice.
pub const READ_ONCE: Job = Job { length: Length::AsGivenOnce, ..READ };
pub const WRITE: Job = Job::new(RANDOM_WRITE, 4, 32);
pub const SEQUENTIAL: Job = Job::new(Operation::Read(Order::Sequential), 128, 8);
pub const SINGLE: Job = Job::new(RANDOM_READ, 4, 1);
pub const SYNCHRONOUS: Load = Load::new(Operation::Overwrite(Order::Random, Stability::Flushed { writes: 1 }), 8, 16);

/// Fresh servers, the small image, and memory as they like.
pub const fn small(client: Client) -> Setup {
    Setup { image: Image::Small, memory: Memory::Auto, cache: Cache::Cold, client }
}

pub const fn large(mib: u64, client: Client) -> Setup {
    Setup { image: Image::Large, memory: Memory::Mib(mib), ..small(client) }
}

pub const fn fio(jobs: &'static [Job]) -> Client {
    Client::Fio { before: &[], jobs }
}

pub const fn filled(client: Client) -> Setup {
    Setup { cache: Cache::Filled, ..small(client) }
}

pub fn comparison() -> Vec<Workload> {
    [cached(), not_cached(), writes(), flushes(), copies(), sparse(), qemu_img(), memory()].concat()
}

fn cached() -> Vec<Workload> {
    let caches = &[AWASE, NBDKIT_MEMORY, NBDKIT_FILE, NULL, NULL_ASLEEP];
    let requests = Unit::RequestsASecond;
    let four = filled(fio(const { &[Job { load: Load { connections: 4, ..READ.load }, ..READ }] }));
    let of_null = [Bound::TimesLimit(0.85), Bound::CpuTimesLimit(1.25)];
    let workload = |name, title, unit, setup| Workload::new(name, title, unit, caches, setup);
    vec![
        workload("random_read_cached", "4 KiB random read, 32 in flight, cached", requests, filled(fio(&[READ])))
            .about("The whole image was read through the server before (written into nbdkit's memory plugin).")
            .bounds(&[Bound::Times(1.8, &["nbdkit memory"])])
            .bounds(&of_null),
        workload(
            "random_read_cached_4",
            "4 KiB random read, 32 in flight on each of 4 connections, cached",
            requests,
            four,
        )
        .bounds(&of_null),
        workload(
            "sequential_read_cached",
            "128 KiB sequential read, 8 in flight, cached",
            Unit::MibASecond,
            filled(fio(&[SEQUENTIAL])),
        )
        .bounds(&[Bound::Times(1.3, &["nbdkit memory"])]),
        workload(
            "latency_read_cached",
            "4 KiB random read, one in flight, cached",
            Unit::MeanMicros,
            filled(fio(&[SINGLE])),
        )
        .about("The time that one request takes.")
        .bounds(&[Bound::Times(1.0, CACHES)]),
    ]
}

fn not_cached() -> Vec<Workload> {
    let files = &[AWASE, NBDKIT_FILE, QEMU_NBD, PASS, PASS_POLLING, RAW];
    let one = large(64, fio(const { &[Job { length: Length::AsGivenOnce, ..SINGLE }] }));
    let workload = |name, title, unit, setup| Workload::new(name, title, unit, files, setup);
    vec![
        workload(
            "random_read_uncached",
            "4 KiB random read, 32 in flight, not cached",
            Unit::RequestsASecond,
            large(64, fio(&[READ_ONCE])),
        )
        .about(
            "Each block of the large image is read at most once, in random order, and none of it is in the host's page \
             cache before, so that no cache can answer; Awase's cache is 64 MiB besides.",
        )
        .bounds(&[Bound::TimesLimit(0.95), Bound::Times(0.9, &["raw file (io_uring)"])]),
        workload("latency_read_uncached", "4 KiB random read, one in flight, not cached", Unit::MeanMicros, one)
            .bounds(&[Bound::Times(1.0, PEERS)]),
    ]
}

fn writes() -> Vec<Workload> {
    let files = &[AWASE, NBDKIT_FILE, QEMU_NBD, NULL, RAW];
    let one = small(fio(const { &[Job { load: Load { in_flight: 1, ..WRITE.load }, ..WRITE }] }));
    let workload = |name, title, unit, setup| Workload::new(name, title, unit, files, setup);
    vec![
        workload("random_write", "4 KiB random write, 32 in flight", Unit::RequestsASecond, small(fio(&[WRITE])))
        .about(
            "Nothing is cached before and nothing is flushed: Awase and nbdkit may keep what was written in memory, \
             qemu-nbd and raw write it to the disk's own cache.",
        )
        .bounds(&[Bound::Times(1.0, PEERS)]),
        workload("latency_write", "4 KiB random write, one in flight", Unit::MeanMicros, one)
            .bounds(&[Bound::Times(1.0, PEERS)]),
    ]
}

const fn flushed(in_flight: u32, connections: u32) -> [Job; 1] {
    [Job { load: Load { in_flight, connections, ..SYNCHRONOUS }, ..WRITE }]
}

fn flushes() -> Vec<Workload> {
    let workload = |name, title, jobs: &'static [Job]| {
        // Half a group of one is one.
        let other = if jobs[0].load.in_flight == 1 { PASS_POLLING } else { PASS_HALF };
        let files = &[AWASE, NBDKIT_FILE, QEMU_NBD, PASS, other, RAW];
        Workload::new(name, title, Unit::RequestsASecond, files, small(fio(jobs)))
    };
    let of_pass = [Bound::TimesLimit(0.9)];
    vec![
        workload(
            "synchronous_write",
            "8 KiB random write, a flush after each, 16 in flight",
            const { &flushed(16, 1) },
        )
        .about("fio with fsync=1.")
        .bounds(&[Bound::Times(1.5, PEERS)])
        .bounds(&of_pass),
        workload(
            "synchronous_write_1",
            "8 KiB random write, a flush after each, one in flight",
            const { &flushed(1, 1) },
        )
        .bounds(&[Bound::Times(1.0, PEERS)]),
        workload(
            "synchronous_write_4",
            "8 KiB random write, a flush after each, 4 in flight",
            const { &flushed(4, 1) },
        )
        .bounds(&of_pass),
        workload(
            "synchronous_write_64",
            "8 KiB random write, a flush after each, 64 in flight",
            const { &flushed(64, 1) },
        )
        .bounds(&of_pass),
        workload(
            "synchronous_write_16_by_4",
            "8 KiB random write, a flush after each, 16 in flight on each of 4 connections",
            const { &flushed(16, 4) },
        )
        .bounds(&of_pass),
    ]
}

fn copies() -> Vec<Workload> {
    let (files, mib) = (&[AWASE, NBDKIT_FILE, QEMU_NBD, PASS], Unit::MibASecond);
    let sparse = |client| Setup { image: Image::Sparse, ..small(client) };
    let better = [Bound::Times(1.0, PEERS)];
    let workload = |name, title, unit, setup| Workload::new(name, title, unit, files, setup);
    vec![
        workload("copy_in", "nbdcopy of an image in", mib, small(Client::CopyIn))
            .about("From a file in the page cache into the export, with a flush at the end.")
            .bounds(&better),
        workload("copy_out", "nbdcopy of an image out", mib, small(Client::CopyOut))
            .about("From an export of which nothing is cached to nowhere (`null:`).")
            .bounds(&better),
        workload("copy_in_sparse", "nbdcopy of an image into a new sparse one", mib, sparse(Client::CopyIn))
            .bounds(&better),
        Workload::new(
            "copy_out_sparse",
            "nbdcopy of a new sparse image out",
            mib,
            &[AWASE, NBDKIT_FILE, QEMU_NBD],
            sparse(Client::CopyOut),
        )
        .about("What has no data needs no transfer: so pass, which transfers all, is no limit.")
        .bounds(&better),
    ]
}

fn sparse() -> Vec<Workload> {
    let mixed = Setup { image: Image::Sparse, ..small(fio(const { &[Job { is_mixed: true, ..READ }] })) };
    let files = &[AWASE, NBDKIT_FILE, QEMU_NBD, NULL];
    let workload = |name, title, unit, setup| Workload::new(name, title, unit, files, setup);
    vec![
        workload(
            "mixed_sparse",
            "4 KiB random reads and writes, 32 in flight, of a new sparse image",
            Unit::RequestsASecond,
            mixed,
        )
        .about(
            "fio's `randrw`, on what `make run` serves by default. Reads and writes count alike; nothing is flushed.",
        )
        .bounds(&[Bound::Times(1.0, PEERS)]),
    ]
}

fn qemu_img() -> Vec<Workload> {
    vec![
        Workload::new(
            "qemu_img_read",
            "qemu-img bench, 4 KiB reads in order, 32 in flight, cached",
            Unit::RequestsASecond,
            &[AWASE, NBDKIT_MEMORY, NBDKIT_FILE, QEMU_NBD, NULL],
            filled(Client::QemuImg { write: false }),
        )
        .about("The whole image was read through the server before; qemu-nbd caches nothing."),
        Workload::new(
            "qemu_img_write",
            "qemu-img bench, 4 KiB writes in order, a flush after every 64, 32 in flight",
            Unit::RequestsASecond,
            &[AWASE, NBDKIT_FILE, QEMU_NBD, NULL],
            small(Client::QemuImg { write: true }),
        )
        .about("The limit is without a disk: writes in order may go to it together."),
    ]
}

fn memory() -> Vec<Workload> {
    let files = &[AWASE, NBDKIT_FILE, QEMU_NBD];
    let crowd = Job { load: Load { connections: 256, ..Load::new(RANDOM_READ, 4, 128) }, ..READ };
    let crowd = Setup { memory: Memory::Mib(64), ..small(Client::PeakMemory(crowd)) };
    // Larger than either cache, also with --quick: only a full cache shows its cost.
    let bookkeeping = Setup { image: Image::Large, ..small(Client::Bookkeeping) };
    let workload = |name, title, unit, setup| Workload::new(name, title, unit, files, setup);
    vec![
        workload("memory_idle", "Memory of an idle server", Unit::Mib, small(Client::IdleMemory))
            .about("Resident size when it is ready and nobody has connected, with default settings.")
            .bounds(&[Bound::AtMost(32.0)]),
        workload("memory_crowd", "Memory with 256 connections of 128 requests each", Unit::Mib, crowd)
            .about("The most memory in use under 4 KiB random reads; Awase's cache is 64 MiB.")
            .bounds(&[Bound::AtMost(CROWD_MIB_MAX)]),
        Workload::new("memory_bookkeeping", "Book-keeping of the cache", Unit::Percent, &[AWASE], bookkeeping)
            .about("What the server takes more with a full cache of 320 MiB than with one of 64 MiB, beside the cache.")
            .bounds(&[Bound::AtMost(2.0)]),
    ]
}
