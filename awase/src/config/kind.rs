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
}

impl Kind {
    const NAMES: [(&'static str, Kind); 5] = [
        ("file", Kind::Disk(Disk::File)),
        ("block", Kind::Disk(Disk::Block)),
        ("ram", Kind::Disk(Disk::Ram)),
        ("testdev", Kind::Disk(Disk::TestDevice)),
        ("directory", Kind::Directory),
    ];

    /// The names, for people.
    pub const ALLOWED: &str = "\"file\", \"block\", \"ram\", \"testdev\", \"directory\"";

    /// The kind of that name.
    pub fn named(name: &str) -> Option<Kind> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
    }

    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, kind)| *kind == self).map_or("file", |(name, _)| name)
    }
}

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

impl StableWrites {
    const NAMES: [(&'static str, StableWrites); 3] =
        [("auto", StableWrites::Auto), ("flush", StableWrites::Flush), ("fua", StableWrites::ForcedUnitAccess)];

    pub fn named(name: &str) -> Option<StableWrites> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, way)| *way)
    }

    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, way)| *way == self).map_or("auto", |(name, _)| name)
    }
}
