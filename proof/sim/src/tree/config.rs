//! What a simulated directory tree is like, and how a seed chooses it.

use super::super::config::{DiskConfig, Latency};

#[derive(Clone, Debug)]
pub struct TreeConfig {
    /// The disk beneath. For the content of files hold its timing, sectors, alignment (of the direct ones), abilities
    /// and faults; its size is that of the file system.
    pub disk: DiskConfig,
    /// Time of a call that is no sync.
    pub call: Latency,
    pub sync: Latency,
    /// Nodes that there may be.
    pub nodes_max: u64,
    /// Names that a node may have; for a directory its subdirectories and two.
    pub links_max: u32,
    /// Largest file, in bytes.
    pub file_bytes_max: u64,
    /// Does every change fail with `EROFS`?
    pub read_only: bool,
    /// Times are multiples of this, in nanoseconds: changes within one tick can't be told apart by them.
    pub tick_ns: u32,
    /// Does the host report what others do to open files?
    pub watches: bool,
}

impl TreeConfig {
    /// A faultless tree on a flash disk of 64 MiB.
    pub fn new() -> Self {
        TreeConfig {
            disk: DiskConfig::new(64 << 20),
            call: Latency::us(2, 30),
            sync: Latency::us(200, 1_500),
            nodes_max: 100_000,
            links_max: 32_000,
            file_bytes_max: 1 << 43,
            read_only: false,
            tick_ns: 1,
            watches: true,
        }
    }

    /// A faultless tree on a disk whose timing, sectors and abilities are drawn from `seed`, as is whether the host reports
    /// what others do to files.
    pub fn drawn(seed: u64) -> Self {
        let disk = DiskConfig::drawn(64 << 20, seed);
        let sync = Latency::ns(disk.flush.ns_min, disk.flush.ns_max * 2);
        TreeConfig { disk, sync, watches: !seed.is_multiple_of(3), ..TreeConfig::new() }
    }
}

impl Default for TreeConfig {
    fn default() -> Self {
        TreeConfig::new()
    }
}

/// What was asked of a tree since it was added, besides the operations on its files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeCounters {
    /// Calls that are no syncs.
    pub calls: u64,
    pub syncs: u64,
    /// Nodes that the syncs named.
    pub nodes_synced: u64,
}
