//! The workloads on file servers, and the targets of Awase.

use std::time::Duration;

use crate::bench::contender::{Contender, Peer};
use crate::bench::results::{self, Bound};
use crate::bench::sample::Unit;
use crate::measure::load::{Load, Operation, Order, Stability};

pub const SLOW_FLUSH: Duration = Duration::from_millis(5);

/// As of an SSD with capacitors (judged). Unlike this machine's disk, it takes the same time for every server.
pub const QUICK_FLUSH: Duration = Duration::from_micros(100);

/// Files of a tree, of 1 to 16 KiB, ten in a directory.
pub const TREE_FILES: u32 = 3000;

/// Delay of the delayed link, each way.
pub const LINK_DELAY: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disk {
    /// The disk of this machine.
    Local,
    /// A disk whose flush takes [`SLOW_FLUSH`].
    SlowFlush,
    /// A disk whose flush takes [`QUICK_FLUSH`].
    QuickFlush,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    Loopback,
    /// A link with a delay of [`LINK_DELAY`] each way.
    Delayed,
}

/// The state of the caches when the load begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// As creating the files left it.
    AsMade,
    /// Nothing is cached, neither by the server, which is fresh, nor by the host; the files are read once.
    Cold,
    /// The files were read through the server once.
    Warm,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// The load, until its time is over; one pass through the files if they are cold.
    Load,
    /// The server's memory under the load, without its cache.
    Memory,
    /// Files of a tree a second; of the load, only the number of requests in flight matters.
    Tree(Tree),
}

/// What is done with a tree of small files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tree {
    /// Each file is created, written and closed, with the COMMIT that clients then send.
    Make,
    Remove,
}

impl Tree {
    /// What the clients are told.
    pub fn name(self) -> &'static str {
        match self {
            Tree::Make => "make",
            Tree::Remove => "remove",
        }
    }
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// The driver of this program.
    Own,
    /// libnfs's asynchronous calls.
    Libnfs,
    /// A Linux kernel in an emulated guest.
    Guest,
}

/// How a workload on a file server is set up.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub load: Load,
    pub disk: Disk,
    pub link: Link,
    /// What is cached before the load.
    pub cache: Cache,
    pub measure: Measure,
    pub client: Client,
}

pub type Workload = results::Workload<Setup>;

const AWASE: Contender = Contender::awase("Awase", "");
const GANESHA: Contender = Contender::new("NFS-Ganesha", Peer::Ganesha);
const GANESHA_DURABLE: Contender = Contender::new("NFS-Ganesha, chattr +D", Peer::GaneshaOnSynchronousDirectory);
const ORDERED: Contender = Contender::new("Awase", Peer::AwaseOrdered);
const DURABLE: Contender = Contender::awase("names durable", "");
const ALONE: Contender = Contender::awase("gathering off", "--switch flush_gathering=off");
const NULL: Contender = Contender::NULL;
const NULL_ASLEEP: Contender = Contender::NULL_ASLEEP;
const NULL_SPREAD: Contender = Contender::NULL_SPREAD;
const PASS: Contender = Contender::PASS;
const PASS_POLLING: Contender = Contender::PASS_POLLING;
/// Changes of names without a server.
const RAW: Contender = Contender::new("the host alone", Peer::Raw);

/// Requests in flight of the loads of stable writes.
const IN_FLIGHT: [u32; 4] = [1, 4, 16, 64];

/// A client that reads `blocks` blocks ahead has one more than that in flight.
const fn ahead(label: &'static str, blocks: u32) -> Contender {
    Contender { in_flight: Some(blocks + 1), ..Contender::awase(label, "") }
}

impl Setup {
    /// The load with the contender's number of requests in flight.
    pub fn load_for(&self, contender: &Contender) -> Load {
        Load { in_flight: contender.in_flight.unwrap_or(self.load.in_flight), ..self.load }
    }

    /// Requests a second if every flush of the slow disk covers all that is in flight.
    pub fn flush_limit(&self) -> f64 {
        f64::from(self.load.in_flight * self.load.connections) / SLOW_FLUSH.as_secs_f64()
    }
}

/// Files of stable writes: making them takes less time than the load.
const STABLE_FILE_BYTES: u64 = 64 << 20;

/// Random 8 KiB WRITEs within the file, each durable before its reply.
const OVERWRITE: Operation = Operation::Overwrite(Order::Random, Stability::FileSync);
const EXTEND: Operation = Operation::Extend(Stability::FileSync);
const READ: Operation = Operation::Read(Order::Sequential);
const READ_RANDOM: Operation = Operation::Read(Order::Random);
/// The whole file, then a COMMIT.
const UNSTABLE: Operation = Operation::Overwrite(Order::Sequential, Stability::Unstable { commit_bytes: 256 << 20 });

/// On this machine's disk, over loopback.
const fn local(load: Load) -> Setup {
    Setup {
        load,
        disk: Disk::Local,
        link: Link::Loopback,
        cache: Cache::AsMade,
        measure: Measure::Load,
        client: Client::Own,
    }
}

const fn times_ganesha(least: f64) -> Bound {
    Bound::Times(least, &["NFS-Ganesha"])
}

/// At least 0.8 of the rate at which each flush covers all that is in flight.
const fn of_flush_limit(in_flight: u32) -> Bound {
    Bound::OfLimit(0.8, in_flight as f64 * 1e6 / SLOW_FLUSH.as_micros() as f64)
}

pub fn workloads() -> Vec<Workload> {
    [stable_writes(), names(), trees(), streams(), reads(), guests(), clients()].concat()
}

/// Stable writes by both clients, on both disks, overwriting and extending.
fn stable_writes() -> Vec<Workload> {
    let mut all = Vec::new();
    for client in [Client::Own, Client::Libnfs] {
        for disk in [Disk::Local, Disk::SlowFlush] {
            for operation in [OVERWRITE, EXTEND] {
                all.extend(IN_FLIGHT.map(|in_flight| stable_write(client, disk, operation, in_flight)));
            }
        }
    }
    let two = Load { connections: 2, ..Load::new(OVERWRITE, 8, 16) };
    all.push(
        Workload::new(
            "write_sync_two_clients",
            "8 KiB FILE_SYNC random write, two clients on two files, 16 in flight each",
            Unit::RequestsASecond,
            &[AWASE, GANESHA, PASS],
            local(two),
        )
        .bounds(&[times_ganesha(3.0)]),
    );
    all
}

/// Names of those with 16 in flight have no number.
fn stable_write(client: Client, disk: Disk, operation: Operation, in_flight: u32) -> Workload {
    let (mut name, mut title) = (String::from("write_sync"), String::from("8 KiB FILE_SYNC "));
    title += match operation {
        EXTEND => "write behind the end",
        _ => "random write",
    };
    title += &format!(", {in_flight} in flight");
    if operation == EXTEND {
        name += "_extend";
    }
    if disk == Disk::SlowFlush {
        name.insert_str(0, "slow_");
        title += ", a flush takes 5 ms";
    }
    if client == Client::Libnfs {
        name.insert_str(0, "libnfs_");
        title += ", libnfs";
    }
    if in_flight != 16 {
        name += &format!("_{in_flight}");
    }
    let load = Load { file_bytes: STABLE_FILE_BYTES, ..Load::new(operation, 8, in_flight) };
    let mut contenders = vec![AWASE, GANESHA, PASS];
    if in_flight == 1 {
        contenders.push(PASS_POLLING);
    }
    let mut bounds = vec![Bound::TimesLimit(0.8)];
    bounds.push(times_ganesha(if in_flight == 1 { 1.0 } else { 2.5 }));
    if (disk, operation, client) == (Disk::SlowFlush, OVERWRITE, Client::Own) {
        contenders.push(ALONE);
        bounds.push(of_flush_limit(in_flight));
        if in_flight == 16 {
            bounds.push(Bound::Times(4.47, &["gathering off"]));
        }
    }
    let setup = Setup { disk, client, ..local(load) };
    Workload::new(name, title, Unit::RequestsASecond, &contenders, setup).bounds(&bounds)
}

fn names() -> Vec<Workload> {
    let load = |in_flight| local(Load::new(Operation::CreateRemove, 8, in_flight));
    let workload = |name, title, contenders: &[Contender], setup| {
        Workload::new(name, title, Unit::RequestsASecond, contenders, setup)
    };
    let all = &[AWASE, GANESHA, RAW];
    let slow = Setup { disk: Disk::SlowFlush, ..load(16) };
    vec![
        workload("create_remove", "CREATE and REMOVE, 16 in flight", all, load(16)).bounds(&[times_ganesha(2.0)]),
        workload("create_remove_one", "CREATE and REMOVE, 1 in flight", all, load(1)),
        workload(
            "slow_create_remove",
            "CREATE and REMOVE, 16 in flight, a flush takes 5 ms",
            &[AWASE, GANESHA_DURABLE, GANESHA, RAW],
            slow,
        )
        .about(
            "NFS-Ganesha answers before changes are durable; on a directory with the attribute `D`, ext4 makes each of them \
             durable before it returns.",
        )
        .bounds(&[Bound::Times(2.0, &["NFS-Ganesha, chattr +D"])]),
    ]
}

/// Trees of small files: `tar x`, `git clone` and `rm -r` have one request in flight, package managers several.
fn trees() -> Vec<Workload> {
    let mut all = Vec::new();
    for (prefix, disk, flush) in [("", Disk::QuickFlush, "0.1 ms"), ("slow_", Disk::SlowFlush, "5 ms")] {
        for (client, by) in [(Client::Libnfs, "libnfs"), (Client::Guest, "guest")] {
            for (tree, what) in [(Tree::Make, "made"), (Tree::Remove, "removed")] {
                let in_flight: &[u32] = if client == Client::Guest { &[1] } else { &[1, 16] };
                all.extend(in_flight.iter().map(|&in_flight| {
                    let name = format!("{prefix}tree_{}_{by}_{in_flight}", tree.name());
                    let title = format!("small files {what}, {in_flight} in flight, {by}, a flush takes {flush}");
                    let load = Load::new(Operation::CreateRemove, 8, in_flight);
                    let setup = Setup { disk, client, measure: Measure::Tree(tree), ..local(load) };
                    let contenders = &[ORDERED, DURABLE, GANESHA];
                    Workload::new(name, title, Unit::FilesASecond, contenders, setup)
                        .about("Awase with `names = \"ordered\"`.")
                        .bounds(&[times_ganesha(1.2)])
                }));
            }
        }
    }
    all
}

fn streams() -> Vec<Workload> {
    let files = &[AWASE, GANESHA, PASS];
    let by_libnfs = |load| Setup { client: Client::Libnfs, ..local(load) };
    let title = "64 KiB UNSTABLE sequential write of 256 MiB and COMMIT";
    let bounds = [times_ganesha(2.0), Bound::TimesLimit(0.9)];
    let workload =
        |name, title: String, setup| Workload::new(name, title, Unit::MibASecond, files, setup).bounds(&bounds);
    vec![
        workload("write_unstable", format!("{title}, 16 in flight"), local(Load::new(UNSTABLE, 64, 16)))
            .bounds(&[times_ganesha(4.0)]),
        workload("write_unstable_one", format!("{title}, 1 in flight"), local(Load::new(UNSTABLE, 64, 1))),
        workload(
            "libnfs_write_unstable",
            format!("{title}, 16 in flight, libnfs"),
            by_libnfs(Load::new(UNSTABLE, 64, 16)),
        ),
    ]
}

fn reads() -> Vec<Workload> {
    let caches = &[AWASE, GANESHA, NULL, NULL_ASLEEP, NULL_SPREAD];
    let mut all = vec![cold_read()];
    for (client, prefix, suffix) in [(Client::Own, "", ""), (Client::Libnfs, "libnfs_", ", libnfs")] {
        let workload = |name, title, unit, load, least| {
            let setup = Setup { cache: Cache::Warm, client, ..local(load) };
            Workload::new(format!("{prefix}{name}"), format!("{title}{suffix}"), unit, caches, setup)
                .bounds(&[times_ganesha(least)])
        };
        let (mib, requests, of_null) = (Unit::MibASecond, Unit::RequestsASecond, [Bound::TimesLimit(0.85)]);
        let (large, small, one) =
            (Load::new(READ, 1024, 4), Load::new(READ_RANDOM, 8, 16), Load::new(READ_RANDOM, 8, 1));
        all.extend([
            workload("read_cached", "1 MiB sequential read, 4 in flight, cached", mib, large, 1.3).bounds(&of_null),
            workload("read_random_cached", "8 KiB random read, 16 in flight, cached", requests, small, 2.5)
                .bounds(&of_null),
            workload("read_random_cached_one", "8 KiB random read, 1 in flight, cached", requests, one, 1.0),
        ]);
    }
    all
}

fn cold_read() -> Workload {
    let cold = Setup { cache: Cache::Cold, ..local(Load { file_bytes: 1 << 30, ..Load::new(READ, 64, 1) }) };
    let ahead = [
        AWASE,
        Contender::awase("nothing ahead", "--switch read_ahead=off"),
        Contender::awase("1 block ahead", "--switch read_ahead=1"),
        Contender::awase("4 blocks ahead", "--switch read_ahead=4"),
        GANESHA,
    ];
    Workload::new("read_cold", "64 KiB sequential read, 1 in flight, not cached", Unit::MibASecond, &ahead, cold)
        .about("Awase as it is, its read-ahead adapting to the client, and with a fixed one.")
        .bounds(&[times_ganesha(1.5)])
}

fn guests() -> Vec<Workload> {
    let by_guest = |load| Setup { client: Client::Guest, ..local(Load { file_bytes: STABLE_FILE_BYTES, ..load }) };
    vec![
        Workload::new(
            "guest_write_sync",
            "8 KiB sequential direct writes, 1 in flight, guest kernel",
            Unit::RequestsASecond,
            &[AWASE, GANESHA, PASS],
            by_guest(Load::new(OVERWRITE, 8, 1)),
        )
        .about("The guest's processor is emulated: what it reaches is bound by that, and tells of the order only."),
        Workload::new(
            "guest_read",
            "64 MiB read by a guest kernel, with its read-ahead",
            Unit::MibASecond,
            &[AWASE, GANESHA, NULL],
            Setup { cache: Cache::Warm, ..by_guest(Load::new(READ, 1024, 1)) },
        )
        .about("As above."),
    ]
}

fn clients() -> Vec<Workload> {
    let read = Load { file_bytes: 8 << 20, ..Load::new(READ, 8, 1) };
    let crowd = Load { file_bytes: 8 << 10, connections: 1000, files: 10, ..Load::new(READ_RANDOM, 8, 1) };
    vec![
        Workload::new(
            "read_ahead_client",
            "8 KiB sequential read over a slow link, the client reads 4 blocks ahead",
            Unit::MibASecond,
            &[ahead("Awase", 4), ahead("nothing ahead", 0), ahead("1 block ahead", 1), ahead("32 blocks ahead", 32)],
            Setup { link: Link::Delayed, cache: Cache::Warm, ..local(read) },
        )
        .about(
            "A client that reads ahead has so many requests more in flight; the link takes 1 ms each way. In the paper \
             (WS, Table 5) 1 block ahead reached 505.7 KB/s and 4 blocks 787.7 KB/s, 1.56 times as much.",
        )
        .bounds(&[Bound::Times(1.56, &["1 block ahead"])]),
        Workload::new(
            "memory_crowd",
            "Memory with 1,000 connections and 10,000 open files, 64 MiB of it Awase's cache",
            Unit::Mib,
            &[Contender::awase("Awase", "--memory 64MiB"), GANESHA],
            Setup { measure: Measure::Memory, ..local(crowd) },
        )
        .bounds(&[Bound::AtMost(200.0 + 64.0)]),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::guest::work;
    use super::super::libnfs::operation;
    use super::*;

    #[test]
    fn every_load_can_be_driven() {
        for Workload { subject, setup } in workloads() {
            setup.load.check().unwrap_or_else(|error| panic!("{}: {error}", subject.name));
            let by_others = match setup.client {
                Client::Own => Ok(()),
                Client::Libnfs if matches!(setup.measure, Measure::Tree(_)) => Ok(()),
                Client::Libnfs => operation(&setup.load).map(drop),
                Client::Guest => work(&setup).map(drop),
            };
            by_others.unwrap_or_else(|error| panic!("{}: {error}", subject.name));
        }
    }

    #[test]
    fn the_limit_of_a_slow_disk_is_all_in_flight_a_flush() {
        let limit = |name| Some(workloads().into_iter().find(|of| of.subject.name == name)?.setup.flush_limit());
        assert_eq!(limit("slow_write_sync_4"), Some(800.0));
        assert_eq!(limit("slow_write_sync"), Some(3200.0));
    }

    #[test]
    fn a_part_of_the_flush_limit_is_asked_of_the_slow_disk_alone() {
        for Workload { subject, setup } in workloads() {
            let is_limited = subject.bounds.iter().any(|bound| matches!(bound, Bound::OfLimit(..)));
            assert!(!is_limited || setup.disk == Disk::SlowFlush, "{}", subject.name);
        }
    }
}
