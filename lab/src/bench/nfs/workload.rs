//! The workloads on file servers, and the targets of Awase.

use std::time::Duration;

use crate::bench::contender::{Contender, Peer};
use crate::bench::results::{self, Bound};
use crate::bench::sample::Unit;
use crate::measure::load::{Load, Operation, Order, Stability};

pub const SLOW_FLUSH: Duration = Duration::from_millis(5);

/// Delay of the delayed link, each way.
pub const LINK_DELAY: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disk {
    /// The disk of this machine.
    Local,
    /// A disk whose flush takes [`SLOW_FLUSH`].
    SlowFlush,
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
}

pub type Workload = results::Workload<Setup>;

const AWASE: Contender = Contender::awase("Awase", "");
const GANESHA: Contender = Contender::new("NFS-Ganesha", Peer::Ganesha);
const GANESHA_DURABLE: Contender = Contender::new("NFS-Ganesha, chattr +D", Peer::GaneshaOnSynchronousDirectory);
const ALONE: Contender = Contender::awase("gathering off", "--switch flush_gathering=off");
/// The same work without a server, where that shows the limit.
const RAW: Contender = Contender::new("the machine alone", Peer::Raw);

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

/// Random 8 KiB WRITEs within the file, each durable before its reply.
const OVERWRITE: Operation = Operation::Overwrite(Order::Random, Stability::FileSync);
const EXTEND: Operation = Operation::Extend(Stability::FileSync);
const READ: Operation = Operation::Read(Order::Sequential);
const READ_RANDOM: Operation = Operation::Read(Order::Random);
/// The whole file, then a COMMIT.
const UNSTABLE: Operation = Operation::Overwrite(Order::Sequential, Stability::Unstable { commit_bytes: 256 << 20 });

/// On this machine's disk, over loopback.
const fn local(load: Load) -> Setup {
    Setup { load, disk: Disk::Local, link: Link::Loopback, cache: Cache::AsMade, measure: Measure::Load }
}

fn requests(name: &'static str, title: &'static str, load: Load) -> Workload {
    Workload::new(name, title, Unit::RequestsASecond, &[AWASE, GANESHA], local(load))
}

/// On the disk with a slow flush.
fn slow(name: &'static str, title: &'static str, load: Load) -> Workload {
    let setup = Setup { disk: Disk::SlowFlush, ..local(load) };
    Workload::new(name, title, Unit::RequestsASecond, &[AWASE, GANESHA, ALONE, RAW], setup)
}

const fn times_ganesha(least: f64) -> Bound {
    Bound::Times(least, &["NFS-Ganesha"])
}

/// At least 0.8 of the rate at which each flush covers all that is in flight.
const fn of_flush_limit(in_flight: u32) -> Bound {
    Bound::OfLimit(0.8, in_flight as f64 * 1e6 / SLOW_FLUSH.as_micros() as f64)
}

pub fn workloads() -> Vec<Workload> {
    [stable_writes(), names_and_streams(), clients()].concat()
}

fn stable_writes() -> Vec<Workload> {
    let two = Load { connections: 2, ..Load::new(OVERWRITE, 8, 16) };
    vec![
        requests("write_sync", "8 KiB FILE_SYNC random write, 16 in flight", Load::new(OVERWRITE, 8, 16))
            .bounds(const { &[times_ganesha(3.0)] }),
        requests("write_sync_one", "8 KiB FILE_SYNC random write, 1 in flight", Load::new(OVERWRITE, 8, 1))
            .bounds(const { &[times_ganesha(1.2)] }),
        requests(
            "write_sync_two_clients",
            "8 KiB FILE_SYNC random write, two clients on two files, 16 in flight each",
            two,
        )
        .bounds(const { &[times_ganesha(3.0)] }),
        requests(
            "write_sync_extend",
            "8 KiB FILE_SYNC write behind the end, 16 in flight",
            Load::new(EXTEND, 8, 16),
        ),
        slow(
            "slow_write_sync_4",
            "8 KiB FILE_SYNC random write, 4 in flight, a flush takes 5 ms",
            Load::new(OVERWRITE, 8, 4),
        )
        .bounds(const { &[of_flush_limit(4)] }),
        slow(
            "slow_write_sync",
            "8 KiB FILE_SYNC random write, 16 in flight, a flush takes 5 ms",
            Load::new(OVERWRITE, 8, 16),
        )
        .bounds(const { &[times_ganesha(4.0), of_flush_limit(16), Bound::Times(4.47, &["gathering off"])] }),
        slow(
            "slow_write_sync_64",
            "8 KiB FILE_SYNC random write, 64 in flight, a flush takes 5 ms",
            Load::new(OVERWRITE, 8, 64),
        )
        .bounds(const { &[of_flush_limit(64)] }),
        slow(
            "slow_write_sync_extend",
            "8 KiB FILE_SYNC write behind the end, 16 in flight, a flush takes 5 ms",
            Load::new(EXTEND, 8, 16),
        )
        .bounds(const { &[times_ganesha(2.0)] }),
        slow(
            "slow_create_remove",
            "CREATE and REMOVE, 16 in flight, a flush takes 5 ms",
            Load::new(Operation::CreateRemove, 8, 16),
        )
        .contenders(&[AWASE, GANESHA_DURABLE, GANESHA, RAW])
        .about(
            "NFS-Ganesha answers before changes are durable; on a directory with the attribute `D`, ext4 makes each of them \
             durable before it returns.",
        )
        .bounds(&[Bound::Times(2.0, &["NFS-Ganesha, chattr +D"])]),
    ]
}

fn names_and_streams() -> Vec<Workload> {
    let warm = |load| Setup { cache: Cache::Warm, ..local(load) };
    let cold = Setup { cache: Cache::Cold, ..local(Load { file_bytes: 1 << 30, ..Load::new(READ, 64, 1) }) };
    let ahead = [
        AWASE,
        Contender::awase("nothing ahead", "--switch read_ahead=off"),
        Contender::awase("1 block ahead", "--switch read_ahead=1"),
        Contender::awase("4 blocks ahead", "--switch read_ahead=4"),
        GANESHA,
    ];
    vec![
        Workload::new(
            "write_unstable",
            "64 KiB UNSTABLE sequential write of 256 MiB and COMMIT, 16 in flight",
            Unit::MibASecond,
            &[AWASE, GANESHA, RAW],
            local(Load::new(UNSTABLE, 64, 16)),
        )
        .bounds(const { &[times_ganesha(4.0)] }),
        Workload::new(
            "read_cached",
            "1 MiB sequential read, 4 in flight, cached",
            Unit::MibASecond,
            &[AWASE, GANESHA, RAW],
            warm(Load::new(READ, 1024, 4)),
        )
        .bounds(const { &[times_ganesha(1.3)] }),
        Workload::new(
            "read_random_cached",
            "8 KiB random read, 16 in flight, cached",
            Unit::RequestsASecond,
            &[AWASE, GANESHA],
            warm(Load::new(READ_RANDOM, 8, 16)),
        )
        .bounds(const { &[times_ganesha(2.5)] }),
        Workload::new("read_cold", "64 KiB sequential read, 1 in flight, not cached", Unit::MibASecond, &ahead, cold)
            .about("Awase as it is, its read-ahead adapting to the client, and with a fixed one.")
            .bounds(const { &[times_ganesha(1.5)] }),
        requests("create_remove", "CREATE and REMOVE, 16 in flight", Load::new(Operation::CreateRemove, 8, 16))
            .bounds(const { &[times_ganesha(2.0)] }),
        requests("create_remove_one", "CREATE and REMOVE, 1 in flight", Load::new(Operation::CreateRemove, 8, 1)),
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
    use super::*;

    #[test]
    fn every_load_can_be_driven() {
        for Workload { subject, setup } in workloads() {
            setup.load.check().unwrap_or_else(|error| panic!("{}: {error}", subject.name));
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
