//! The workloads on file servers, and the targets of Awase (`workloads.toml`).

use std::sync::LazyLock;
use std::time::Duration;

use serde::Deserialize;

use crate::bench::contender::Contender;
use crate::bench::results;
use crate::bench::slow_disk::{Disk, SLOW_FLUSH};
use crate::measure::load::Load;

/// Delay of the delayed link, each way.
pub const LINK_DELAY: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Link {
    #[default]
    Loopback,
    /// A link with a delay of [`LINK_DELAY`] each way.
    Delayed,
}

/// The state of the caches when the load begins.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Cache {
    /// As creating the files left it.
    #[default]
    AsMade,
    /// Nothing is cached, neither by the server, which is fresh, nor by the host; the files are read once.
    Cold,
    /// The files were read through the server once.
    Warm,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// The load, until its time is over; one pass through the files if they are cold.
    #[default]
    Load,
    /// The server's memory under the load, without its cache.
    Memory,
    /// Files of a tree a second; of the load, only the number of requests in flight matters.
    Tree(Tree),
}

/// What is done with a tree of small files.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
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
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Client {
    /// The driver of this program.
    #[default]
    Own,
    /// libnfs's asynchronous calls.
    Libnfs,
    /// A Linux kernel in an emulated guest.
    Guest,
}

/// How a workload on a file server is set up.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setup {
    pub load: Load,
    #[serde(default)]
    pub disk: Disk,
    #[serde(default)]
    pub link: Link,
    /// What is cached before the load.
    #[serde(default)]
    pub cache: Cache,
    #[serde(default)]
    pub measure: Measure,
    #[serde(default)]
    pub client: Client,
}

pub type Workload = results::Workload<Setup>;

impl Setup {
    /// The load with the contender's number of requests in flight.
    pub fn load_for(&self, contender: &Contender) -> Load {
        Load { in_flight: contender.in_flight.unwrap_or(self.load.in_flight), ..self.load }
    }

    /// Files of a tree that libnfs makes or removes, of 1 to 16 KiB, ten in a directory; fewer where one after the other waits
    /// for a slow flush.
    pub fn tree_files(&self) -> u32 {
        if self.disk == Disk::SlowFlush { 3_000 } else { 20_000 }
    }

    /// Requests a second if every flush of the slow disk covers all that is in flight.
    pub fn flush_limit(&self) -> f64 {
        f64::from(self.load.in_flight * self.load.connections) / SLOW_FLUSH.as_secs_f64()
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    workload: Vec<Workload>,
}

static FILE: LazyLock<File> = LazyLock::new(|| {
    toml::from_str(include_str!("workloads.toml")).unwrap_or_else(|error| panic!("workloads.toml: {error}"))
});

pub fn workloads() -> Vec<Workload> {
    FILE.workload.clone()
}

#[cfg(test)]
mod tests {
    use super::super::guest::work;
    use super::super::libnfs::operation;
    use super::*;
    use crate::bench::results::Bound;

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
    fn a_part_of_the_flush_limit_is_asked_of_the_slow_disk_alone_and_of_its_own_load() {
        for Workload { subject, setup } in workloads() {
            for bound in &subject.bounds {
                let Bound::OfLimit(_, limit) = bound else { continue };
                assert_eq!((setup.disk, *limit), (Disk::SlowFlush, setup.flush_limit()), "{}", subject.name);
            }
        }
    }
}
