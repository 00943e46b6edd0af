//! What is measured of servers of files, and the figures that Awase is to reach.

use std::fmt;
use std::time::Duration;

use super::load::{Load, Operation, Order, Stability};
use super::server::Peer;
use crate::sample::Unit;

/// How long a flush of the slow disk takes.
pub const SLOW_FLUSH: Duration = Duration::from_millis(5);

/// How long a byte takes on the delayed link, each way.
pub const LINK_DELAY: Duration = Duration::from_millis(1);

/// Where the files lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disk {
    /// On the disk of this machine.
    Here,
    /// On one whose flush takes [`SLOW_FLUSH`].
    SlowFlush,
}

/// How clients reach the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Over loopback.
    Loopback,
    /// Over one that takes [`LINK_DELAY`] each way.
    Delayed,
}

/// The state of the caches when the load begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// As the making of the files left it.
    AsMade,
    /// Nothing is cached, neither by the server, which is fresh, nor by the host; the files are read once.
    Cold,
    /// The files were read through the server once.
    Warm,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// The load, until its time is over; once through the files where they are cold.
    Load,
    /// The server's memory in use under the load, beside its cache.
    Memory,
}

/// What is to be reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// At least so many times what NFS-Ganesha reaches in the same run.
    TimesGanesha(f64),
    /// At least so much of the limit: all requests in flight done by each flush.
    OfFlushLimit(f64),
    /// At most this, in the unit of the workload.
    AtMost(f64),
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::TimesGanesha(times) => write!(f, "at least {times} × NFS-Ganesha"),
            Bound::OfFlushLimit(part) => write!(f, "at least {part} of the flush limit"),
            Bound::AtMost(most) => write!(f, "at most {most}"),
        }
    }
}

/// Somebody who takes part.
#[derive(Clone, Copy, Debug)]
pub struct Contender {
    /// How it is named in the report.
    pub label: &'static str,
    /// Who.
    pub peer: Peer,
}

const AWASE: Contender = Contender { label: "Awase", peer: Peer::Awase(&[]) };
const GANESHA: Contender = Contender { label: "NFS-Ganesha", peer: Peer::Ganesha };
const ALONE: Contender =
    Contender { label: "Awase, gathering off", peer: Peer::Awase(&["--switch", "flush_gathering=off"]) };

/// One workload.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Its name.
    pub name: &'static str,
    /// Its title in the report.
    pub title: &'static str,
    /// What the number is.
    pub unit: Unit,
    /// What is done.
    pub load: Load,
    /// Where the files lie.
    pub disk: Disk,
    /// How clients reach the server.
    pub link: Link,
    /// What is cached before.
    pub cache: Cache,
    /// What is measured.
    pub measure: Measure,
    /// Who takes part.
    pub contenders: &'static [Contender],
    /// What Awase is to reach.
    pub bounds: &'static [Bound],
}

impl Workload {
    /// Requests a second at which every flush of the slow disk does all that is in flight.
    pub fn flush_limit(&self) -> f64 {
        f64::from(self.load.in_flight * self.load.connections) / SLOW_FLUSH.as_secs_f64()
    }
}

/// Random 8 KiB WRITEs, durable one by one, of bytes that the file has.
const OVERWRITE: Operation = Operation::Overwrite(Order::Random, Stability::FileSync);
const EXTEND: Operation = Operation::Extend(Stability::FileSync);
const READ: Operation = Operation::Read(Order::Sequential);
const READ_RANDOM: Operation = Operation::Read(Order::Random);
/// The whole file, then a COMMIT.
const UNSTABLE: Operation = Operation::Overwrite(Order::Sequential, Stability::Unstable { commit_bytes: 256 << 20 });

const fn here(name: &'static str, title: &'static str, load: Load, bounds: &'static [Bound]) -> Workload {
    Workload {
        name,
        title,
        unit: Unit::RequestsASecond,
        load,
        disk: Disk::Here,
        link: Link::Loopback,
        cache: Cache::AsMade,
        measure: Measure::Load,
        contenders: &[AWASE, GANESHA],
        bounds,
    }
}

const fn slow(name: &'static str, title: &'static str, load: Load, bounds: &'static [Bound]) -> Workload {
    Workload { disk: Disk::SlowFlush, contenders: &[AWASE, ALONE, GANESHA], ..here(name, title, load, bounds) }
}

/// In order, over the delayed link: a client that reads `ahead` blocks ahead has one more than that in flight.
const fn ahead(name: &'static str, title: &'static str, ahead: u32) -> Workload {
    Workload {
        unit: Unit::MibASecond,
        link: Link::Delayed,
        cache: Cache::Warm,
        ..here(name, title, Load::new(READ, 8, 1 + ahead), &[])
    }
}

/// All of them.
pub static WORKLOADS: &[Workload] = &[
    here(
        "write_sync",
        "8 KiB FILE_SYNC random write, 16 in flight",
        Load::new(OVERWRITE, 8, 16),
        &[Bound::TimesGanesha(3.0)],
    ),
    here(
        "write_sync_one",
        "8 KiB FILE_SYNC random write, 1 in flight",
        Load::new(OVERWRITE, 8, 1),
        &[Bound::TimesGanesha(1.2)],
    ),
    here(
        "write_sync_two_clients",
        "8 KiB FILE_SYNC random write, two clients on two files, 16 in flight each",
        Load { connections: 2, ..Load::new(OVERWRITE, 8, 16) },
        &[Bound::TimesGanesha(3.0)],
    ),
    here("write_sync_extend", "8 KiB FILE_SYNC write behind the end, 16 in flight", Load::new(EXTEND, 8, 16), &[]),
    slow(
        "slow_write_sync_4",
        "8 KiB FILE_SYNC random write, 4 in flight, a flush takes 5 ms",
        Load::new(OVERWRITE, 8, 4),
        &[Bound::OfFlushLimit(0.8)],
    ),
    slow(
        "slow_write_sync",
        "8 KiB FILE_SYNC random write, 16 in flight, a flush takes 5 ms",
        Load::new(OVERWRITE, 8, 16),
        &[Bound::TimesGanesha(4.0), Bound::OfFlushLimit(0.8)],
    ),
    slow(
        "slow_write_sync_64",
        "8 KiB FILE_SYNC random write, 64 in flight, a flush takes 5 ms",
        Load::new(OVERWRITE, 8, 64),
        &[Bound::OfFlushLimit(0.8)],
    ),
    slow(
        "slow_write_sync_extend",
        "8 KiB FILE_SYNC write behind the end, 16 in flight, a flush takes 5 ms",
        Load::new(EXTEND, 8, 16),
        &[Bound::TimesGanesha(2.0)],
    ),
    Workload {
        unit: Unit::MibASecond,
        ..here(
            "write_unstable",
            "64 KiB UNSTABLE sequential write of 256 MiB and COMMIT, 16 in flight",
            Load::new(UNSTABLE, 64, 16),
            &[Bound::TimesGanesha(4.0)],
        )
    },
    Workload {
        unit: Unit::MibASecond,
        cache: Cache::Warm,
        ..here(
            "read_cached",
            "1 MiB sequential read, 4 in flight, cached",
            Load::new(READ, 1024, 4),
            &[Bound::TimesGanesha(1.3)],
        )
    },
    Workload {
        cache: Cache::Warm,
        ..here(
            "read_random_cached",
            "8 KiB random read, 16 in flight, cached",
            Load::new(READ_RANDOM, 8, 16),
            &[Bound::TimesGanesha(2.5)],
        )
    },
    Workload {
        unit: Unit::MibASecond,
        cache: Cache::Cold,
        ..here(
            "read_cold",
            "64 KiB sequential read, 1 in flight, not cached",
            Load { file_bytes: 1 << 30, ..Load::new(READ, 64, 1) },
            &[Bound::TimesGanesha(1.5)],
        )
    },
    here(
        "create_remove",
        "CREATE and REMOVE, 16 in flight",
        Load::new(Operation::CreateRemove, 8, 16),
        &[Bound::TimesGanesha(2.0)],
    ),
    here("create_remove_one", "CREATE and REMOVE, 1 in flight", Load::new(Operation::CreateRemove, 8, 1), &[]),
    ahead("read_ahead_0", "8 KiB sequential read, nothing ahead, 1 ms each way", 0),
    ahead("read_ahead_1", "8 KiB sequential read, 1 block ahead, 1 ms each way", 1),
    ahead("read_ahead_4", "8 KiB sequential read, 4 blocks ahead, 1 ms each way", 4),
    Workload {
        unit: Unit::Mib,
        measure: Measure::Memory,
        ..here(
            "memory_crowd",
            "Memory beside the cache with 1,000 connections and 10,000 open files",
            Load { file_bytes: 8 << 10, connections: 1000, files: 10, ..Load::new(READ_RANDOM, 8, 1) },
            &[Bound::AtMost(200.0)],
        )
    },
];

/// The workload of a name.
pub fn named(name: &str) -> Option<&'static Workload> {
    WORKLOADS.iter().find(|workload| workload.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::nfs::drive::check;

    #[test]
    fn names_of_workloads_are_told_apart() {
        let names: BTreeSet<_> = WORKLOADS.iter().map(|workload| workload.name).collect();
        assert_eq!(names.len(), WORKLOADS.len());
    }

    #[test]
    fn every_load_can_be_driven() {
        for workload in WORKLOADS {
            check(&workload.load).unwrap_or_else(|error| panic!("{}: {error}", workload.name));
        }
    }

    #[test]
    fn the_limit_of_a_slow_disk_is_all_in_flight_a_flush() {
        let limit = |name| named(name).map(Workload::flush_limit);
        assert_eq!(limit("slow_write_sync_4"), Some(800.0));
        assert_eq!(limit("slow_write_sync"), Some(3200.0));
    }

    #[test]
    fn a_part_of_the_flush_limit_is_asked_of_the_slow_disk_alone() {
        for workload in WORKLOADS {
            let asked = workload.bounds.iter().any(|bound| matches!(bound, Bound::OfFlushLimit(_)));
            assert!(!asked || workload.disk == Disk::SlowFlush, "{}", workload.name);
        }
    }
}
