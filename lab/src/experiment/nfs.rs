//! The bench of section 5 of the workstation paper: a client and a server on an Ethernet, a file on the server's disk.

use std::rc::Rc;
use std::time::Duration;

use machine::drive::Drive;
use machine::drive::mechanical::{Mechanical, SeekCurve};
use machine::sim::model::Simulation;
use machine::sim::model::disk::{Disk, DiskCounters, Served};
use machine::sim::model::ethernet::{self, Ethernet};
use machine::sim::model::host::{Costs, Host};
use machine::sim::model::nfs_client::{Client, Message, Process, TRANSFER_BYTES};
use machine::sim::model::nfs_server::{self, Flushed, Placement, Server};
use policy::unit::{ByteOffset, Instant};
use policy::{queue, readahead};

use crate::parameter::{Origin, Parameter};
use crate::result::{Axis, Cell, Drawing, Plot, Series, Source, Table};

use super::Run;

/// As in the paper, a kilobyte has 1,024 bytes.
const KILOBYTE: f64 = 1024.0;
/// A block of indirect pointers is the first block behind the direct ones.
const DIRECT_BLOCKS: u64 = 12;

/// What is varied, beside what the parameters say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    /// Client daemons.
    pub(super) biods: u32,
    /// Server processes.
    pub(super) nfsds: u32,
    /// What is done with the file.
    pub(super) load: Load,
    /// How many files, one after another, each elsewhere on the disk.
    pub(super) files: u32,
}

/// What is done with the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    /// It is written.
    Write {
        /// With the rendezvous?
        gather: bool,
    },
    /// It is read.
    Read {
        /// Blocks that the client reads ahead.
        ahead: u64,
        /// From the server's memory?
        cached: bool,
    },
}

/// What came out, over all files.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// Bytes moved.
    bytes: f64,
    /// Time that it took.
    time: f64,
    ethernet: f64,
    disk: f64,
    server: f64,
    client: f64,
    accesses: f64,
    flushes: f64,
    flushed: f64,
    /// Of the first file: when writes were acknowledged.
    pub(super) acknowledged: Vec<Instant>,
    /// Of the first file: what the disk did.
    pub(super) served: Vec<Served>,
}

impl Outcome {
    /// KB/s.
    pub(super) fn throughput(&self) -> f64 {
        self.bytes / KILOBYTE / self.time
    }

    /// Disk accesses for each transfer of 8 KB.
    pub(super) fn accesses(&self) -> f64 {
        self.accesses / (self.bytes / TRANSFER_BYTES as f64)
    }

    /// Writes in a group.
    pub(super) fn group(&self) -> f64 {
        if self.flushes > 0.0 { self.flushed / self.flushes } else { 1.0 }
    }

    /// Percent of the time: Ethernet, disk, server's and client's processors.
    pub(super) fn utilisation(&self) -> [f64; 4] {
        [self.ethernet, self.disk, self.server, self.client].map(|busy| 100.0 * busy / self.time)
    }
}

/// Runs a setting.
pub(super) fn measure(run: &Run<'_>, setting: Setting) -> Outcome {
    let mut outcome = Outcome::default();
    for file in 0..setting.files.max(1) {
        one_file(run, setting, run.seed.wrapping_add(u64::from(file)), &mut outcome);
        run.step();
    }
    outcome
}

fn one_file(run: &Run<'_>, setting: Setting, seed: u64, outcome: &mut Outcome) {
    let simulation = Simulation::new(seed);
    let ethernet = Ethernet::new(&simulation, wire(run));
    let processors = run.get("cpu.processors") as u32;
    let [client_host, server_host] =
        [0, 1].map(|_| Host::<Message>::new(&simulation, &ethernet, processors, costs(run)));
    client_host.connect(&simulation, &server_host);
    server_host.connect(&simulation, &client_host);
    let disk = Disk::new(&simulation, drive(run), request_queue(run));
    if outcome.served.is_empty() {
        disk.keep_log();
    }
    let blocks = (run.get("file.size") * 1024.0 * 1024.0) as u64 / TRANSFER_BYTES;
    let config = server_config(run, setting);
    let place = placement(run, &simulation, blocks);
    let server = Server::new(&simulation, &server_host, &disk, place, config);
    let client = Client::new(&simulation, &client_host, setting.biods);
    let process = Process { per_block: ms(run.get("cpu.syscall")) };
    let done = Rc::new(std::cell::Cell::new(false));
    let told = Rc::clone(&done);
    simulation.spawn(async move {
        match setting.load {
            Load::Write { .. } => client.write_file(blocks, process).await,
            Load::Read { ahead, .. } => client.read_file(blocks, fixed(ahead), process).await,
        }
        told.set(true);
    });
    simulation.run_while(|| !done.get());
    let DiskCounters { batches, busy, .. } = disk.counters();
    outcome.bytes += (blocks * TRANSFER_BYTES) as f64;
    outcome.time += simulation.now().ns() as f64 / 1e9;
    outcome.ethernet += ethernet.busy().as_secs_f64();
    outcome.disk += busy.as_secs_f64();
    outcome.server += server_host.busy().as_secs_f64() / f64::from(processors);
    outcome.client += client_host.busy().as_secs_f64() / f64::from(processors);
    outcome.accesses += batches as f64;
    let flushed = server.flushed();
    outcome.flushes += flushed.len() as f64;
    outcome.flushed += flushed.iter().map(|Flushed { writes, .. }| f64::from(*writes)).sum::<f64>();
    if outcome.served.is_empty() {
        (outcome.acknowledged, outcome.served) = (server.acknowledged(), disk.log());
    }
}

fn server_config(run: &Run<'_>, setting: Setting) -> nfs_server::Config {
    nfs_server::Config {
        processes: setting.nfsds,
        gather: matches!(setting.load, Load::Write { gather: true }),
        cached: matches!(setting.load, Load::Read { cached: true, .. }),
        read_ahead: fixed(run.get("server.readahead") as u64).mode,
    }
}

fn fixed(blocks: u64) -> readahead::Config {
    let mode = if blocks == 0 { readahead::Mode::Off } else { readahead::Mode::Fixed { blocks } };
    readahead::Config { mode, ..readahead::Config::default() }
}

fn wire(run: &Run<'_>) -> ethernet::Config {
    ethernet::Config {
        bits_per_second: (run.get("ethernet.rate") * 1e6) as u64,
        mtu_bytes: run.get("ethernet.mtu") as u64,
    }
}

fn costs(run: &Run<'_>) -> Costs {
    let rate = |name| (run.get(name) * 1e6) as u64;
    let checksum = rate("cpu.checksum");
    Costs {
        rpc: ms(run.get("cpu.rpc")),
        frame: ms(run.get("cpu.frame")),
        copy_bytes_per_second: rate("cpu.copy"),
        interface_bytes_per_second: rate("cpu.interface"),
        checksum_bytes_per_second: (checksum > 0).then_some(checksum),
        disk_access: ms(run.get("cpu.disk")),
    }
}

/// The disk of the paper's table 1, or a flash device.
fn drive(run: &Run<'_>) -> Drive {
    if run.get("disk.flash") != 0.0 {
        return named("nvme-2026");
    }
    let Drive::Mechanical(sheet) = named("scsi-1991") else { unreachable!("it has moving parts") };
    let mean = ms(run.get("disk.seek"));
    let model = Mechanical {
        rpm: run.get("disk.rpm") as u32,
        sectors_per_track: run.get("disk.sectors") as u32,
        // The shape of the curve stays.
        seek: SeekCurve {
            mean,
            full: mean.mul_f64(sheet.seek.full.as_secs_f64() / sheet.seek.mean.as_secs_f64()),
            ..sheet.seek
        },
        overhead: ms(run.get("disk.overhead")),
        read_ahead: run.get("disk.lookahead") != 0.0,
        ..sheet
    };
    Drive::Mechanical(model.formatted())
}

fn named(name: &str) -> Drive {
    Drive::named(name).unwrap_or_else(|| unreachable!("{name} is in the catalogue"))
}

/// One command at a time, in order of position, neighbours merged up to 128 KB, synchronous first (sections 3 and 4).
fn request_queue(run: &Run<'_>) -> queue::Config {
    let flash = run.get("disk.flash") != 0.0;
    queue::Config {
        elevator: !flash,
        depth: if flash { 64 } else { 1 },
        transfer_bytes_max: 128 << 10,
        ..queue::Config::default()
    }
}

/// The inode at one random place of the disk, and the data behind their indirect block at another one.
fn placement(run: &Run<'_>, simulation: &Simulation, blocks: u64) -> Placement {
    let length = blocks + DIRECT_BLOCKS + 1;
    let all = drive(run).size() / TRANSFER_BYTES - length - 1;
    let spread = ((all as f64 * run.get("file.spread")) as u64).clamp(1, all);
    let start = simulation.below(all - spread + 1);
    let at = |block: u64| ByteOffset(block * TRANSFER_BYTES);
    let [inode, indirect, data] = [0, 1, 2].map(|_| start + simulation.below(spread));
    // Never one and the same block.
    let aside = |block: u64, by: u64| if (data..data + blocks).contains(&block) { data + blocks + by } else { block };
    Placement {
        inode: at(aside(inode, 0)),
        data: (data..data + blocks).map(at).collect(),
        allocation: vec![at(aside(indirect, 1)); blocks as usize],
    }
}

fn ms(ms: f64) -> Duration {
    Duration::from_nanos((ms * 1e6) as u64)
}

/// The parameters that both tables have.
pub(super) fn parameters() -> Vec<Parameter> {
    let p = |name, about, unit, default, range, origin| Parameter { name, about, unit, default, range, origin };
    vec![
        p("ethernet.rate", "rate of the Ethernet", "Mb/s", 10.0, 1.0..=400_000.0, ETHERNET),
        p("ethernet.mtu", "data of the largest frame", "bytes", 1500.0, 576.0..=9000.0, ETHERNET),
        p("cpu.processors", "processors of each machine", "", 1.0, 1.0..=1024.0, Origin::Paper("table 1: one R3000")),
        p(
            "cpu.rpc",
            "one call, on each side: RPC, XDR, UDP, file system entry, process switch",
            "ms",
            1.0,
            0.0..=100.0,
            RPC,
        ),
        p("cpu.frame", "one frame sent or received: interrupt, driver, IP fragment", "ms", 0.2, 0.0..=10.0, FRAME),
        p("cpu.copy", "memory copied", "MB/s", 11.0, 0.1..=1_000_000.0, COPY),
        p(
            "cpu.interface",
            "copied to and from the Ethernet interface's own memory",
            "MB/s",
            6.0,
            0.1..=1_000_000.0,
            INTERFACE,
        ),
        p(
            "cpu.checksum",
            "summed for the UDP checksum; 0: it is not computed",
            "MB/s",
            0.0,
            0.0..=1_000_000.0,
            CHECKSUM,
        ),
        p("cpu.disk", "one disk access: driver, interrupt, process switch", "ms", 0.5, 0.0..=10.0, DISK_ACCESS),
        p("cpu.syscall", "read or write of the process, for each block", "ms", 0.2, 0.0..=10.0, DISK_ACCESS),
        p(
            "disk.flash",
            "1: a flash device (NVMe) in place of the disk",
            "",
            0.0,
            0.0..=1.0,
            Origin::Paper("table 1: a disk"),
        ),
        p("disk.rpm", "rotations", "rpm", 3600.0, 300.0..=20_000.0, DRIVE),
        p("disk.sectors", "sectors of 512 bytes on a track", "", 81.0, 8.0..=2000.0, DRIVE),
        p(
            "disk.seek",
            "mean seek",
            "ms",
            11.7,
            4.0..=200.0,
            Origin::Derived("table 1: 20 ms mean access, less half a rotation"),
        ),
        p("disk.overhead", "controller time of a command", "ms", 2.2, 0.0..=20.0, OVERHEAD),
        p(
            "disk.lookahead",
            "1: the drive goes on reading into its buffer after a read",
            "",
            0.0,
            0.0..=1.0,
            LOOK_AHEAD,
        ),
        p(
            "server.readahead",
            "blocks that the server reads ahead on its disk",
            "",
            1.0,
            0.0..=64.0,
            Origin::Paper("section 3: what 4.3BSD does"),
        ),
        p(
            "file.size",
            "size of the file",
            "MB",
            4.0,
            0.25..=64.0,
            Origin::Chosen("long enough that start and end don't count"),
        ),
        p("file.spread", "part of the disk over which inode and data are scattered", "", 1.0, 0.0..=1.0, SPREAD),
    ]
}

const ETHERNET: Origin = Origin::Published("IEEE 802.3-1985, 10BASE5");
const RPC: Origin = Origin::Chosen(
    "within what was published: a call without data took a few milliseconds at least on machines of 27 MIPS (Macklem, \
     Not Quite NFS, USENIX Winter 1994, introduction), both sides and the wire together: 2.5 ms here",
);
const FRAME: Origin = Origin::Chosen(
    "5,000 instructions at the 25 MIPS of table 1. Bounded from above: NetBSD's le(4) says that machines of this class \
     (DECstation 5000/200, same processor and interface) keep up with 10 Mb/s, 1.2 ms a frame, copying included",
);
const COPY: Origin = Origin::Derived(
    "R3000 of 25 MHz with memory of 80 ns (table 1): about 9 cycles for a word of 4 bytes, of which 4 are its share of \
     a missed cache line of 16 bytes and 5 the store that is written through",
);
const INTERFACE: Origin = Origin::Chosen(
    "NetBSD sys/arch/newsmips/dev/if_le.c: the Am7990 of these machines has 16 KB of memory of its own, and the processor \
     copies every frame; its width of 16 bits at about the same cycle gives half of the rate of memory",
);
const CHECKSUM: Origin = Origin::Published(
    "Macklem, The 4.4BSD NFS Implementation (4.4BSD SMM:6), note 14: some implementations run with UDP checksums disabled; \
     those from Sun's reference port did",
);
const DISK_ACCESS: Origin =
    Origin::Chosen("some 10,000 (5,000 for a system call) instructions at the 25 MIPS of table 1");
const DRIVE: Origin = Origin::Published(
    "Hitachi DK516C-16, the 1,280 MB disk in Sony's driver table (4.4BSD sys/news3400/iodev/sddefs.c): 81 sectors at 60 \
     rotations a second are the 2.4 MB/s of table 1",
);
const OVERHEAD: Origin = Origin::Published(
    "Ruemmler and Wilkes, An introduction to disk drive modeling, IEEE Computer, March 1994: disks of that class",
);
const LOOK_AHEAD: Origin = Origin::Derived(
    "table 2: the paper's disk gave 630 KB/s read block by block and 766 merged. One that reads ahead would have given \
     more than twice that from 2.4 MB/s",
);
const SPREAD: Origin = Origin::Derived(
    "table 1 gives the mean access of the disk (20 ms), which is one over random places, and nothing says where the file \
     lies: so inode and data lie anywhere. A fresh Berkeley file system would lay them close",
);

/// What to set for a machine of 2026.
pub(super) const MODERN: &[(&str, f64)] = &[
    ("ethernet.rate", 25_000.0),
    ("ethernet.mtu", 9000.0),
    ("cpu.processors", 64.0),
    ("cpu.rpc", 0.005),
    ("cpu.frame", 0.001),
    ("cpu.copy", 10_000.0),
    // The interface reaches into memory by itself.
    ("cpu.interface", 1_000_000.0),
    ("cpu.disk", 0.003),
    ("cpu.syscall", 0.001),
    ("disk.flash", 1.0),
    ("file.size", 16.0),
];

/// The parts of [`Outcome::utilisation`].
pub(super) const PARTS: [&str; 4] = ["Ethernet", "server's disk", "server's processor", "client's processor"];

/// How busy each part is, one row for each outcome.
pub(super) fn utilisation(names: &[&str], outcomes: &[&Outcome]) -> Table {
    let row = |outcome: &&Outcome| outcome.utilisation().map(Cell::simulated).to_vec();
    Table {
        name: "busy".into(),
        title: "How busy each part is".into(),
        unit: "% of the time".into(),
        rows_are: "with".into(),
        rows: names.iter().map(ToString::to_string).collect(),
        columns_are: "part".into(),
        columns: PARTS.map(str::to_owned).to_vec(),
        cells: outcomes.iter().map(row).collect(),
        in_points: true,
        digits: 0,
    }
}

/// Bars: the paper's throughput beside the simulated one.
pub(super) fn compared(name: &str, title: &str, groups: &[&str], pairs: &[(f64, f64)]) -> Plot {
    let bars = |source, of: &dyn Fn(&(f64, f64)) -> f64| Series {
        name: "throughput".into(),
        source,
        points: pairs.iter().enumerate().map(|(group, pair)| (group as f64, of(pair))).collect(),
    };
    Plot {
        name: name.into(),
        title: title.into(),
        drawing: Drawing::Bars(groups.iter().map(ToString::to_string).collect()),
        x: Axis::default(),
        y: Axis::linear("throughput", "KB/s"),
        series: vec![bars(Source::Paper, &|pair| pair.0), bars(Source::Simulated, &|pair| pair.1)],
    }
}
