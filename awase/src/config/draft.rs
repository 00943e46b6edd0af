//! An export as written, key by key, before the keys are checked against each other.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use kernel::device::Faults;
use nfs::{IpNet, Squashed};
use policy::access;

use super::directory::Directory;
use super::export::{Disk, Export, Kind, StableWrites};
use super::export_keys::EXPORT_KEYS;
use super::key::{Entry, apply};
use super::problem::{Place, Problem};

/// Keys that only disks have.
const OF_DISKS: &[&str] = &[
    "description",
    "size",
    "block_size",
    "stable_writes",
    "access",
    "latency",
    "delay",
    "faults.read_permille",
    "faults.write_permille",
    "faults.flush_permille",
    "faults.seed",
];

/// Keys that only directories have.
const OF_DIRECTORIES: &[&str] = &["mount", "clients", "secure", "squash", "anonymous_uid", "anonymous_gid"];

#[derive(Clone, Debug, Default)]
pub struct Draft {
    pub name: Option<String>,
    pub description: Option<String>,
    pub kind: Option<Kind>,
    pub path: Option<PathBuf>,
    /// Bytes.
    pub size: Option<u64>,
    pub read_only: Option<bool>,
    /// Bytes.
    pub block_size: Option<u32>,
    pub create: Option<bool>,
    pub stable_writes: Option<StableWrites>,
    pub access: Option<access::Mode>,
    pub latency: Option<Duration>,
    pub delay: Option<Duration>,
    pub faults: Faults,
    pub mount: Option<String>,
    pub clients: Option<Vec<IpNet>>,
    pub secure: Option<bool>,
    pub squash: Option<Squashed>,
    pub anonymous_uid: Option<u32>,
    pub anonymous_gid: Option<u32>,
    pub place: Place,
    /// A key was refused.
    pub was_refused: bool,
    /// Where each key was set.
    places: BTreeMap<String, Place>,
}

impl Draft {
    pub fn at(place: Place) -> Draft {
        Draft { place, ..Draft::default() }
    }

    /// # Errors
    /// When there is no such key or its value is not allowed.
    pub fn take(&mut self, entry: &Entry) -> Result<(), Problem> {
        let shown = self.key(&entry.key);
        apply(EXPORT_KEYS, self, entry, &shown)?;
        self.places.insert(entry.key.clone(), entry.place.clone());
        Ok(())
    }

    /// A key of this export, in messages.
    pub fn key(&self, key: &str) -> String {
        match &self.name {
            Some(name) => format!("export {name:?} {key}"),
            None => format!("export {key}"),
        }
    }

    /// A problem with a key, at the line of the key if it was set.
    pub fn problem(&self, key: &str, what: impl Into<String>) -> Problem {
        Problem::new(self.places.get(key).unwrap_or(&self.place), self.key(key), what)
    }

    pub fn missing(&self, key: &str) -> Problem {
        self.problem(key, "is missing")
    }

    pub fn refuse_keys_of_other_kinds(&self, kind: Kind) -> Result<(), Problem> {
        let others = match kind {
            Kind::Disk(_) => OF_DIRECTORIES,
            Kind::Directory => OF_DISKS,
        };
        if let Some(key) = others.iter().find(|key| self.places.contains_key(**key)) {
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
        match stray.into_iter().find(|(_, is_stray)| *is_stray) {
            Some(("create", _)) if self.path.is_none() && disk != Disk::Ram => {
                Err(self.missing("path").allowed("with create, the path of the file to make"))
            }
            Some((key, _)) => Err(self.stray(key, Kind::Disk(disk))),
            None => Ok(()),
        }
    }

    fn stray(&self, key: &str, kind: Kind) -> Problem {
        self.problem(key, format!("does not go with kind = {:?}", kind.name()))
    }
}

/// The draft from which `export` would be read, for printing.
impl From<&Export> for Draft {
    fn from(export: &Export) -> Draft {
        use super::export::{Behaviour, Store};
        let mut draft = Draft {
            name: Some(export.name.clone()),
            description: Some(export.description.clone()).filter(|text| !text.is_empty()),
            kind: Some(Kind::Disk(export.kind)),
            read_only: Some(export.read_only),
            block_size: Some(export.block_size),
            stable_writes: Some(export.stable_writes),
            access: export.access,
            delay: Some(export.delay).filter(|delay| !delay.is_zero()),
            faults: export.faults,
            place: export.place.clone(),
            ..Draft::default()
        };
        match &export.behaviour {
            Behaviour::Plain => {}
            Behaviour::FixedLatency(latency) => draft.latency = Some(*latency),
        }
        match &export.store {
            Store::File { path, size, create } => {
                draft.path = Some(path.clone());
                draft.size = *size;
                draft.create = create.then_some(true);
            }
            Store::Block { path } => draft.path = Some(path.clone()),
            Store::Ram { size } => draft.size = Some(*size),
        }
        draft
    }
}

impl From<&Directory> for Draft {
    fn from(directory: &Directory) -> Draft {
        Draft {
            name: Some(directory.name.clone()),
            kind: Some(Kind::Directory),
            path: Some(directory.path.clone()),
            create: directory.create.then_some(true),
            read_only: Some(directory.read_only),
            mount: Some(directory.mount.clone()),
            clients: Some(directory.clients.clone()).filter(|clients| !clients.is_empty()),
            secure: Some(directory.secure),
            squash: Some(directory.squash.squashed),
            anonymous_uid: Some(directory.squash.uid),
            anonymous_gid: Some(directory.squash.gid),
            place: directory.place.clone(),
            ..Draft::default()
        }
    }
}
