//! The kinds of exports, and what can be chosen of each.

/// Sizes are multiples of this, the smallest sector of any client. Bytes.
pub const SECTOR_BYTES: u64 = 512;

/// What is said where a modelled disk is asked for, as earlier versions had it.
pub const MECHANICAL: &str = "is not served any more: disks of 1990 are modelled in the laboratory (awase-lab run \
                              EXPERIMENT --on here)";

/// What an export can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Served over NBD.
    Disk(Disk),
    /// Served over NFS.
    Directory,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disk {
    File,
    Block,
    /// Memory; gone when the server ends.
    Ram,
    /// Completes after a fixed time (MP, section 4).
    TestDevice,
    /// One disk on all nodes of the cluster.
    Shared,
}

pub const KINDS: [(Kind, &str); 6] = [
    (Kind::Disk(Disk::File), "file"),
    (Kind::Disk(Disk::Block), "block"),
    (Kind::Disk(Disk::Ram), "ram"),
    (Kind::Disk(Disk::TestDevice), "testdev"),
    (Kind::Disk(Disk::Shared), "shared"),
    (Kind::Directory, "directory"),
];

/// How stable writes (forced unit access of NBD) become durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StableWrites {
    #[default]
    Auto,
    /// A write, then a flush.
    Flush,
    /// A write with forced unit access.
    ForcedUnitAccess,
}

pub const STABLE_WRITES: [(StableWrites, &str); 3] =
    [(StableWrites::Auto, "auto"), (StableWrites::Flush, "flush"), (StableWrites::ForcedUnitAccess, "fua")];
