//! The bench of section 5 of the workstation paper: a client and a server on an Ethernet, a file on the server's disk.

use crate::model::Simulation;
use crate::model::disk::{Completed, Disk, DiskCounters};
use crate::model::ethernet::{self, Ethernet};
use crate::model::host::{Costs, Host};
use crate::model::nfs_client::{Client, Message, Process, TRANSFER_BYTES};
use crate::model::nfs_server::{self, Flushed, Placement, Server};
use policy::readahead;
use policy::unit::{ByteOffset, Instant};

use crate::result::{Finding, Table};

use super::Run;
use super::workstation::{drive, queue};

/// As in the paper, a kilobyte has 1,024 bytes.
const KILOBYTE: f64 = 1024.0;
/// "The maximum of a merged block is limited to 128 KB" (section 3).
const TRANSFER_BYTES_MAX: u32 = 128 << 10;

/// What is varied, in addition to the parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) biods: u32,
    pub(super) nfsds: u32,
    pub(super) load: Load,
    /// Blocks that the server reads ahead, if not the parameter's.
    pub(super) server_ahead: Option<u64>,
    /// Number of files, one after another, each in another place of the disk.
    pub(super) files: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    Write {
        /// With the rendezvous?
        gather: bool,
    },
    Read {
        /// Blocks that the client reads ahead.
        ahead: u64,
        cached: bool,
    },
}

/// Results over all files.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    bytes: f64,
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
    /// Of the first file: the disk's completed requests.
    pub(super) served: Vec<Completed>,
}

impl Outcome {
    pub(super) fn throughput(&self) -> f64 {
        self.bytes / KILOBYTE / self.time
    }

    /// Disk accesses for each transfer of 8 KB.
    pub(super) fn accesses(&self) -> f64 {
        self.accesses / (self.bytes / TRANSFER_BYTES as f64)
    }

    pub(super) fn group(&self) -> f64 {
        if self.flushes > 0.0 { self.flushed / self.flushes } else { 1.0 }
    }

    /// Percent of the time: Ethernet, disk, server's and client's processors.
    pub(super) fn utilisation(&self) -> [f64; 4] {
        [self.ethernet, self.disk, self.server, self.client].map(|busy| 100.0 * busy / self.time)
    }
}

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
    let disk = Disk::new(&simulation, drive(run), queue(run, Some(TRANSFER_BYTES_MAX), true));
    if outcome.served.is_empty() {
        disk.keep_log();
    }
    let blocks = (run.get("file.size") * 1024.0 * 1024.0) as u64 / TRANSFER_BYTES;
    let config = server_config(run, setting);
    let place = placement(run, &simulation, blocks);
    let server = Server::new(&simulation, &server_host, &disk, place, config);
    let client = Client::new(&simulation, &client_host, setting.biods);
    let process = Process { per_block: run.ms("cpu.syscall") };
    simulation.complete(async move {
        match setting.load {
            Load::Write { .. } => client.write_file(blocks, process).await,
            Load::Read { ahead, .. } => client.read_file(blocks, fixed(ahead), process).await,
        }
    });
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
        read_ahead: fixed(setting.server_ahead.unwrap_or(run.get("server.readahead") as u64)).mode,
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
        rpc: run.ms("cpu.rpc"),
        frame: run.ms("cpu.frame"),
        copy_bytes_per_second: rate("cpu.copy"),
        interface_bytes_per_second: rate("cpu.interface"),
        checksum_bytes_per_second: (checksum > 0).then_some(checksum),
        disk_access: run.ms("cpu.disk"),
    }
}

/// The inode, the block of pointers and the data, each at a random place of the disk.
fn placement(run: &Run<'_>, simulation: &Simulation, blocks: u64) -> Placement {
    // Two more, to place the inode and the pointers if they would fall into the data.
    let all = (drive(run).size() / TRANSFER_BYTES).saturating_sub(blocks + 2).max(1);
    let spread = ((all as f64 * run.get("file.spread")) as u64).clamp(1, all);
    let start = simulation.below(all - spread + 1);
    let at = |block: u64| ByteOffset(block * TRANSFER_BYTES);
    let [inode, pointers, data] = [0, 1, 2].map(|_| start + simulation.below(spread));
    let aside = |block: u64, by: u64| if (data..data + blocks).contains(&block) { data + blocks + by } else { block };
    Placement {
        inode: at(aside(inode, 0)),
        data: (data..data + blocks).map(at).collect(),
        allocation: vec![at(aside(pointers, 1)); blocks as usize],
    }
}

/// The speed-up, with the paper's.
pub(super) fn gain(run: &Run<'_>, less: &Outcome, more: &Outcome) -> Table {
    run.table("gain", [[more.throughput() / less.throughput()]]).beside([[published_gain(run)]])
}

fn published_gain(run: &Run<'_>) -> f64 {
    let published = run.published("throughput");
    published[1][0] / published[0][0]
}

/// The headline finding: `with it, a file is written`.
pub(super) fn headline(run: &Run<'_>, what: &str, less: &Outcome, more: &Outcome) -> Finding {
    let (less, more) = (less.throughput(), more.throughput());
    let gain = run.in_the_paper(|| format!("{:.1}", published_gain(run)));
    Finding::new(
        format!("{what} at {more:.0} KB/s instead of {less:.0}: {:.1} times as fast{gain}", more / less),
        more > less,
    )
}
