//! DSM figure 3 on this host: two nodes that share a disk in memory, and file servers, ours and NFS-Ganesha; a file of the
//! paper's size is read in order from each, with nothing of it in the reader's cache.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use papers::parameter::Parameters;
use tempfile::TempDir;

use super::repetitions::{Repetitions, Spread, alternating, table};
use super::task;
use super::ws_table4::{close, open_volume};
use super::ws_table5::read_through;
use super::{Effort, Host, LocalError, LocalRun, Measured, Medium, Protocol, ServerConfig, Setup};
use crate::bench::contender::{self, Contender};
use crate::measure::load::{Address, Length, Load, Operation, Order, Stability, Stop, Target, drive, nbd, prepare};
use crate::measure::process::Process;

/// What is read each time; also the pages that have a home together, which each node is in turn.
const FILE_BYTES: u64 = 1 << 20;

/// A block of the paper's file system.
const REQUEST_KIB: u32 = 8;

const FILL_KIB: u32 = 64;

const PAGE_KIB: u32 = 4;

const MEMORY: u64 = 256 << 20;

/// Each reads a part of the shared disk that was not read before.
const REPETITIONS: Repetitions = Repetitions { most: 15, time_max: Duration::from_secs(20) };

const EXPORT: &str = "shared";

/// One after the other, pages that another node has written; the home is a third node.
const PAGES_BYTES: u64 = 1 << 20;

/// Whether pages go straight from the node that has them (switch `forwarding`).
const FORWARDING: [(&str, bool); 2] = [("straight from it", true), ("through its home", false)];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arm {
    /// Through NBD, or mapped; from the node's own memory or from that of the other.
    Shared {
        is_mapped: bool,
        is_remote: bool,
    },
    Nfs,
    Disk,
    Ganesha,
}

const ARMS: [(&str, Arm); 7] = [
    ("the shared disk, from this node's memory", Arm::Shared { is_mapped: false, is_remote: false }),
    ("the shared disk, from the other node's memory", Arm::Shared { is_mapped: false, is_remote: true }),
    ("the same mapped, from this node's memory", Arm::Shared { is_mapped: true, is_remote: false }),
    ("the same mapped, from the other node's memory", Arm::Shared { is_mapped: true, is_remote: true }),
    ("NFS, from the server's memory", Arm::Nfs),
    ("the disk", Arm::Disk),
    // Where it is installed.
    ("NFS-Ganesha, from the host's memory", Arm::Ganesha),
];

const NFS: usize = 4;
const DISK: usize = 5;
const GANESHA: usize = 6;

pub(super) fn steps(effort: Effort, _: &Parameters) -> u64 {
    (ARMS.len() + FORWARDING.len()) as u64 * u64::from(effort.pick(REPETITIONS.most, 1))
}

pub(super) fn measure(run: &LocalRun<'_>) -> Result<Measured, LocalError> {
    let bytes = FILE_BYTES * 4 * u64::from(run.pick(REPETITIONS.most, 1) + 1);
    let nodes = start_nodes(run.host, &Cluster { names: &["a", "b"], bytes, homes: &["a", "b"], switches: "" })?;
    // By the second node, which then has all of it.
    let fill = Load {
        file_bytes: bytes,
        ..Load::new(Operation::Overwrite(Order::Sequential, Stability::Flushed { writes: 0 }), FILL_KIB, 4)
    };
    load(run.host, &nodes[1].target(), &fill)?;
    nbd::flush(&nodes[1].address(), EXPORT).map_err(failed)?;
    let files = run.host.serve(&ServerConfig {
        processors: run.host.processors(),
        memory: MEMORY,
        exports: Vec::new(),
        switches: Vec::new(),
        watched: false,
        program: None,
    })?;
    let missing = || LocalError::Load("the server does not offer NFS".to_owned());
    let target = files.target(Protocol::Nfs).ok_or_else(missing)?;
    begin_files(run.host, &target)?;
    let ganesha = start_ganesha(run.host)?;
    if let Some(ganesha) = &ganesha {
        begin_files(run.host, &ganesha.server.target)?;
    }
    let mut read = [0; ARMS.len()];
    let arms = if ganesha.is_some() { ARMS.len() } else { GANESHA };
    run.step((ARMS.len() - arms) as u64 * u64::from(run.pick(REPETITIONS.most, 1)));
    let times = alternating(run, REPETITIONS, arms, |arm| {
        let took = match ARMS[arm].1 {
            Arm::Shared { is_mapped, is_remote } => {
                // In groups of four: of each home one part to be read through NBD, and one that is mapped.
                let part = 4 * read[arm] + 2 * u64::from(is_mapped) + u64::from(is_remote);
                read[arm] += 1;
                let from = part * FILE_BYTES;
                if is_mapped {
                    nodes[0].read_mapped(from)?
                } else {
                    load(run.host, &nodes[0].target(), &Load { from, ..reading() })?
                }
            }
            Arm::Nfs => load(run.host, &target, &reading())?,
            Arm::Disk => read_disk(run.host)?,
            Arm::Ganesha => ganesha
                .as_ref()
                .map_or(Ok(Duration::ZERO), |ganesha| load(run.host, &ganesha.server.target, &reading()))?,
        };
        Ok([took.as_secs_f64() * 1e3])
    })?;
    drop(nodes);
    ganesha.map_or(Ok(()), |ganesha| ganesha.server.stop()).map_err(failed)?;
    let mut measured = report(run.host, &times);
    let times = take_pages(run)?;
    let spread = |arm: usize| Spread::of(times[arm].iter().map(|[time]| *time));
    let rows = FORWARDING.iter().enumerate().map(|(arm, (name, _))| ((*name).to_owned(), spread(arm))).collect();
    let title = "a page that another node has written, read at a third; its home is neither of them";
    measured.tables.push(table("here-forwarding", title, "µs", 1, rows));
    Ok(measured)
}

/// Microseconds for each page, forwarded and not.
fn take_pages(run: &LocalRun<'_>) -> Result<Vec<Vec<[f64; 1]>>, LocalError> {
    let begin = |(_, is_on): (&str, bool)| {
        let switches = format!("[switches]\nforwarding = {is_on}\nread_ahead = \"off\"\n");
        let names = &["a", "b", "c"];
        start_nodes(run.host, &Cluster { names, bytes: PAGES_BYTES, homes: &["a"], switches: &switches })
    };
    let clusters = FORWARDING.into_iter().map(begin).collect::<Result<Vec<_>, _>>()?;
    let pages = PAGES_BYTES / (u64::from(PAGE_KIB) << 10);
    alternating(run, REPETITIONS, clusters.len(), |arm| {
        let [_, writer, reader] = &clusters[arm][..] else { return Err(LocalError::Load("a node is missing".into())) };
        let of = |operation| Load { file_bytes: PAGES_BYTES, ..Load::new(operation, PAGE_KIB, 1) };
        let write = Operation::Overwrite(Order::Sequential, Stability::Flushed { writes: 0 });
        load(run.host, &writer.target(), &of(write))?;
        let took = load(run.host, &reader.target(), &of(Operation::Read(Order::Sequential)))?;
        Ok([took.as_secs_f64() * 1e6 / pages as f64])
    })
}

fn report(host: &Host, times: &[Vec<[f64; 1]>]) -> Measured {
    let spread = |arm: usize| Spread::of(times[arm].iter().map(|[time]| *time));
    // The better of both file servers.
    let of_ganesha = times.get(GANESHA).unwrap_or(&times[NFS]);
    let nfs: Vec<[f64; 1]> = times[NFS].iter().zip(of_ganesha).map(|([own], [other])| [own.min(*other)]).collect();
    let ratio = |of: &[[f64; 1]], arm: usize| Spread::of(of.iter().zip(&times[arm]).map(|([of], [time])| *of / *time));
    let mut measured = Measured::default();
    for (row, of) in [("NFS", &nfs), ("SCSI disk", &times[DISK])] {
        for (column, arm) in [("local", 0), ("remote", 1)] {
            measured.cell("ratios", row, column, ratio(of, arm).median);
        }
    }
    let named = |number: fn(&dyn Fn(usize) -> Spread, usize) -> Spread, of: &dyn Fn(usize) -> Spread, arms: usize| {
        (0..arms).map(|arm| (ARMS[arm].0.to_owned(), number(of, arm))).collect()
    };
    let each = |of: &dyn Fn(usize) -> Spread, arm: usize| of(arm);
    let title = "1 MiB read in order, 8 KiB at a time";
    measured.tables.push(table("here-times", title, "ms", 2, named(each, &spread, times.len())));
    let title = "how many times as fast as over NFS, by the better server each time";
    measured.tables.push(table("here-ratios", title, "times", 2, named(each, &|arm| ratio(&nfs, arm), NFS)));
    measured.notes.push(format!(
        "Here: nodes, file servers and reader are processes on this host; nodes and clients of NFS talk over loopback, \
         clients of the shared disk over a Unix socket. Nothing of what is read is cached by the reader's node before. The \
         disk is {}, past the page cache.",
        host.disk()
    ));
    measured
}

fn failed(error: anyhow::Error) -> LocalError {
    LocalError::Load(format!("{error:#}"))
}

fn reading() -> Load {
    Load { file_bytes: FILE_BYTES, ..Load::new(Operation::Read(Order::Sequential), REQUEST_KIB, 1) }
}

/// Drives a load through its region once.
fn load(host: &Host, target: &Target, load: &Load) -> Result<Duration, LocalError> {
    let outcome = drive(target, load, Length::OnePass, &Stop::when(host.interrupted())).map_err(failed)?;
    Ok(outcome.elapsed)
}

/// Writes the file that is read over NFS, and has it cached by the server.
fn begin_files(host: &Host, target: &Target) -> Result<(), LocalError> {
    if let Target::Nfs(endpoint) = target {
        prepare(endpoint, &reading(), &Stop::when(host.interrupted())).map_err(failed)?;
    }
    load(host, target, &reading()).map(drop)
}

/// The other file server, and the directory that it serves.
struct Ganesha {
    server: contender::Server,
    _place: TempDir,
}

/// `None`: it is not installed, or may not run.
fn start_ganesha(host: &Host) -> Result<Option<Ganesha>, LocalError> {
    let is_there = Command::new(contender::GANESHA).arg("-v").output().is_ok_and(|output| output.status.success());
    if !is_there || !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let io = |error: std::io::Error| LocalError::Server(error.to_string());
    let place = tempfile::Builder::new().prefix("awase-lab-").tempdir().map_err(io)?;
    let path = place.path().join("files");
    fs::create_dir(&path).map_err(io)?;
    let export = contender::Export::Directory { path: &path, group: 1 };
    let order = contender::Order { awase: host.program(), export, place: place.path() };
    let peer = Contender { label: "NFS-Ganesha", peer: contender::Peer::Ganesha, in_flight: None };
    let server = contender::Server::start(&peer, &order, host.interrupted()).map_err(failed)?;
    Ok(server.map(|server| Ganesha { server, _place: place }))
}

fn read_disk(host: &Host) -> Result<Duration, LocalError> {
    let stage = host.start(&Setup::with_memory(MEMORY))?;
    let volume = open_volume(stage.kernel(), stage.device(&Medium::Disk { bytes: FILE_BYTES })?)?;
    let reader = std::sync::Arc::clone(&volume);
    let took = task::run(stage.kernel(), move |cpu| read_through(cpu, reader, FILE_BYTES))??;
    close(stage.kernel(), volume)?;
    Ok(took)
}

/// A node of the cluster, which leaves no files.
struct Node {
    process: Process,
    data: TempDir,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.process.kill();
        awase::trace::file::remove_of(self.data.path());
    }
}

impl Node {
    fn address(&self) -> Address {
        Address::Unix(self.data.path().join("nbd.sock"))
    }

    fn target(&self) -> Target {
        Target::Nbd { at: self.address(), export: EXPORT.to_owned() }
    }

    /// A program reads a part of the disk in its memory. The mapping is made before.
    fn read_mapped(&self, from: u64) -> Result<Duration, LocalError> {
        let wrong = |error: shm::Error| LocalError::Load(format!("a mapped disk: {error}"));
        let mapping = shm::Options::at(self.data.path().join("shm")).open(EXPORT).map_err(wrong)?;
        let start = Instant::now();
        let words = mapping.atomics_u64(from as usize, FILE_BYTES as usize / size_of::<u64>());
        let words = words.ok_or_else(|| LocalError::Load("the mapped disk is too short".to_owned()))?;
        std::hint::black_box(words.iter().fold(0_u64, |sum, word| sum.wrapping_add(word.load(Relaxed))));
        Ok(start.elapsed())
    }
}

/// Nodes that share a disk of so many bytes.
struct Cluster<'a> {
    names: &'a [&'a str],
    bytes: u64,
    homes: &'a [&'a str],
    /// A part of the configuration.
    switches: &'a str,
}

/// Starts nodes, and waits until they are ready.
fn start_nodes(host: &Host, cluster: &Cluster<'_>) -> Result<Vec<Node>, LocalError> {
    let Cluster { names, bytes, homes, switches } = cluster;
    let io = |error: std::io::Error| LocalError::Server(error.to_string());
    let port = |_| TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let ports = names.iter().map(port).collect::<Result<Vec<_>, _>>().map_err(io)?;
    let peers = names.iter().zip(&ports).map(|(name, at)| format!("{name} = \"{at}\"")).collect::<Vec<_>>().join(", ");
    let start = |(name, at): (&&str, &std::net::SocketAddr)| {
        let data = tempfile::Builder::new().prefix("awase-lab-").tempdir().map_err(io)?;
        let config = data.path().join("node.toml");
        let text = format!(
            "{switches}[cluster]\nnode = \"{name}\"\nlisten = \"{at}\"\npeers = {{ {peers} }}\n\
             [[export]]\nname = \"{EXPORT}\"\nkind = \"shared\"\nsize = \"{bytes}B\"\nbacking = \"memory\"\n\
             homes = {homes:?}\n"
        );
        fs::write(&config, text).map_err(io)?;
        let command = command(host.program(), data.path(), &config);
        let log = data.path().join("node.log");
        let wrong = |error: anyhow::Error| LocalError::Server(format!("{error:#}"));
        let mut process = Process::start(command, &log, host.interrupted()).map_err(wrong)?;
        let address = Address::Unix(data.path().join("nbd.sock"));
        process.ready(|_| nbd::connect(&address, EXPORT).map(drop)).map_err(wrong)?;
        Ok(Node { process, data })
    };
    names.iter().zip(&ports).map(start).collect()
}

fn command(program: &Path, data: &Path, config: &Path) -> Command {
    let mut command = Command::new(program);
    command.arg("serve").arg("--data").arg(data).arg("--config").arg(config);
    command.args(["--memory", &MEMORY.to_string(), "--nbd", "none", "--nfs", "none", "--postgres", "none"]);
    command.args(["--metrics", "none"]).arg("--nbd-unix").arg(data.join("nbd.sock"));
    command.env_remove("NOTIFY_SOCKET").env_remove("LISTEN_FDS");
    command
}
