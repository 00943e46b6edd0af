//! An export as written, key by key, before the keys are checked against each other.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use kernel::device::Faults;
use nfs::{IpNet, Names, Squashed};
use policy::access;

use super::cluster::Backing;
use super::form::named;
use super::key::shown;
use super::kind::{Disk, KINDS, Kind, StableWrites};
use super::problem::{Place, Problem};

/// Keys about the volume of a disk or database.
pub(super) const OF_VOLUMES: &[&str] = &[
    "size",
    "overlay",
    "overlay_size",
    "stable_writes",
    "access",
    "latency",
    "delay",
    "faults.read_permille",
    "faults.write_permille",
    "faults.flush_permille",
    "faults.seed",
];

/// Keys that only disks have, besides.
const OF_DISKS: &[&str] = &["description", "block_size", "homes", "backing", "shared_device"];

/// Keys that a shared disk does not have, besides those of faults.
const OF_OWN_DISKS: &[&str] =
    &["path", "create", "read_only", "overlay", "overlay_size", "stable_writes", "access", "delay"];

/// Keys that only shared disks have.
pub(super) const OF_SHARED_DISKS: &[&str] = &["homes", "backing", "shared_device"];

/// Keys that only directories have.
const OF_DIRECTORIES: &[&str] =
    &["mount", "clients", "secure", "squash", "anonymous_uid", "anonymous_gid", "names", "persistent_handles"];

#[derive(Clone, Debug, Default)]
pub struct Draft {
    pub name: Option<String>,
    pub description: Option<String>,
    pub kind: Option<Kind>,
    pub path: Option<PathBuf>,
    /// Bytes.
    pub size: Option<u64>,
    pub read_only: Option<bool>,
    pub overlay: Option<bool>,
    /// Bytes.
    pub overlay_size: Option<u64>,
    /// Bytes.
    pub block_size: Option<u32>,
    pub create: Option<bool>,
    pub stable_writes: Option<StableWrites>,
    pub access: Option<access::Mode>,
    pub latency: Option<Duration>,
    pub delay: Option<Duration>,
    pub faults: Faults,
    pub mount: Option<String>,
    /// Empty: all.
    pub clients: Vec<IpNet>,
    pub secure: Option<bool>,
    pub squash: Option<Squashed>,
    pub anonymous_uid: Option<u32>,
    pub anonymous_gid: Option<u32>,
    pub names: Option<Names>,
    pub persistent_handles: Option<bool>,
    /// Empty: all.
    pub homes: Vec<String>,
    pub backing: Option<Backing>,
    pub shared_device: Option<PathBuf>,
    /// Of a database.
    pub programs: Option<PathBuf>,
    /// It describes a database, not an export.
    pub is_database: bool,
    pub place: Place,
    /// A key was refused.
    pub was_refused: bool,
    /// Where each key was set.
    pub(super) places: BTreeMap<String, Place>,
}

/// The table in which it is described.
pub(super) fn table(is_database: bool) -> &'static str {
    if is_database { "database" } else { "export" }
}

impl Draft {
    pub fn at(place: Place) -> Draft {
        Draft { place, ..Draft::default() }
    }

    /// A key of this export, in messages.
    pub fn key(&self, key: &str) -> String {
        shown(table(self.is_database), self.name.as_deref(), key)
    }

    /// A problem with a key, at the line of the key if it was set.
    pub fn problem(&self, key: &str, what: impl Into<String>) -> Problem {
        Problem::new(self.places.get(key).unwrap_or(&self.place), self.key(key), what)
    }

    pub fn missing(&self, key: &str) -> Problem {
        self.problem(key, "is missing")
    }

    pub fn refuse_keys_of_other_kinds(&self, kind: Kind) -> Result<(), Problem> {
        let (others, more) = match kind {
            Kind::Disk(_) => (OF_DIRECTORIES, &[][..]),
            Kind::Directory => (OF_VOLUMES, OF_DISKS),
        };
        if let Some(key) = others.iter().chain(more).find(|key| self.places.contains_key(**key)) {
            return Err(self.stray(key, kind));
        }
        match kind {
            Kind::Disk(disk) => self.refuse_keys_of_other_disks(disk),
            Kind::Directory => Ok(()),
        }
    }

    fn refuse_keys_of_other_disks(&self, disk: Disk) -> Result<(), Problem> {
        let stray = [
            ("path", self.path.is_some() && disk == Disk::Ram),
            ("create", self.create.is_some() && (self.path.is_none() || matches!(disk, Disk::Ram | Disk::Block))),
            ("size", self.size.is_some() && disk == Disk::Block),
            ("latency", self.latency.is_some() && disk != Disk::TestDevice),
        ];
        let others = if disk == Disk::Shared { OF_OWN_DISKS } else { OF_SHARED_DISKS };
        let faults = OF_VOLUMES.iter().filter(|key| disk == Disk::Shared && key.starts_with("faults."));
        if let Some(key) = others.iter().chain(faults).find(|key| self.places.contains_key(**key)) {
            return Err(self.stray(key, Kind::Disk(disk)));
        }
        match stray.into_iter().find(|(_, is_stray)| *is_stray) {
            Some(("create", _)) if self.path.is_none() && disk != Disk::Ram => {
                Err(self.missing("path").allowed("with create, the path of the file to make"))
            }
            Some((key, _)) => Err(self.stray(key, Kind::Disk(disk))),
            None => Ok(()),
        }
    }

    fn stray(&self, key: &str, kind: Kind) -> Problem {
        self.problem(key, format!("does not go with kind = {}", (named(KINDS).show)(&kind).unwrap_or_default()))
    }
}
