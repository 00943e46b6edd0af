//! The workloads: those of the comparison, and one for each switch of Awase, where it should matter (`workloads.toml`).

use std::sync::LazyLock;

use serde::Deserialize;

use super::fio::Job;
use crate::bench::contender::Memory;
use crate::bench::results;
use crate::bench::slow_disk::Disk;

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Image {
    /// The large one, read-only unless a workload says otherwise: for reads that no cache answers.
    Large,
    /// The small one, which fits into the caches.
    Small,
    /// One as large as the small one, which has only holes, new for each server: what `make run` serves.
    Sparse,
}

/// The state of the server's cache when the client begins.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Cache {
    /// Nothing is cached, neither by the server, which is fresh, nor by the host.
    #[default]
    Cold,
    /// The whole image was read through the server (or written into it, if it stores its data in memory).
    Filled,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Client {
    Fio {
        /// Run one after another.
        #[serde(default)]
        before: Vec<Job>,
        /// Run concurrently after that; the first is measured.
        jobs: Vec<Job>,
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
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setup {
    pub image: Image,
    /// Where the image lies.
    #[serde(default)]
    pub disk: Disk,
    #[serde(default)]
    pub memory: Memory,
    /// What is cached before the client begins.
    #[serde(default)]
    pub cache: Cache,
    pub client: Client,
}

pub type Workload = results::Workload<Setup>;

/// The other servers that export files.
#[cfg(test)]
pub const PEERS: &[&str] = &["nbdkit file", "qemu-nbd"];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    comparison: Vec<Workload>,
    /// Each switch of Awase on and off, under a load that it should affect.
    switch: Vec<Workload>,
}

static FILE: LazyLock<File> = LazyLock::new(|| {
    toml::from_str(include_str!("workloads.toml")).unwrap_or_else(|error| panic!("workloads.toml: {error}"))
});

pub fn comparison() -> Vec<Workload> {
    FILE.comparison.clone()
}

/// Each switch of Awase on and off.
pub fn switches() -> Vec<Workload> {
    FILE.switch.clone()
}
