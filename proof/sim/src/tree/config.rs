//! Properties of a simulated directory tree, and how a seed chooses them.

use super::super::config::{DiskConfig, Latency};

#[derive(Clone, Debug)]
pub struct TreeConfig {
    /// The disk. Its timing, sectors, alignment (for direct files), features and faults apply to the content of files;
    /// its size is that of the file system.
    pub disk: DiskConfig,
    /// Time of a call other than a sync.
    pub call: Latency,
    pub sync: Latency,
    pub nodes_max: u64,
    /// Maximum of names of a node; for a directory of its subdirectories plus two.
    pub links_max: u32,
    /// Largest file, in bytes.
    pub file_bytes_max: u64,
    /// Every change fails with `EROFS`.
    pub read_only: bool,
    /// Times are multiples of this, in nanoseconds: changes within one tick cannot be distinguished by them.
    pub tick_ns: u32,
    /// One journal for all changes of names: a power cut leaves a prefix of them, and every sync covers all (ext4).
    pub journal: bool,
    /// The host reports changes of open files by others, soon after them.
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
            journal: false,
            watches: true,
        }
    }

    /// A faultless tree whose disk's timing, sectors and features, and whether the host reports changes of files by
    /// others, are drawn from `seed`.
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

/// Calls on a tree since it was added, not counting the operations on its files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeCounters {
    /// Calls other than syncs.
    pub calls: u64,
    pub syncs: u64,
    /// Nodes in syncs.
    pub nodes_synced: u64,
}
