//! Disks served over NBD, and their media.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kernel::device::{Faults, TESTDEV_LATENCY};
use policy::access;
use policy::unit::BLOCK_BYTES;

use super::cluster::Backing;
use super::draft::{Draft, table};
use super::given::show_bytes;
use super::key::shown;
use super::kind::{Disk, Kind, StableWrites};
use super::problem::{Place, Problem};

/// Size of the disk that is served when nothing is configured.
const DEFAULT_DISK_BYTES: u64 = 1 << 30;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Store {
    File {
        path: PathBuf,
        /// The size that it must have, or is created with. Bytes.
        size: Option<u64>,
        /// Create it, sparse, if it is missing.
        create: bool,
    },
    Block {
        path: PathBuf,
    },
    Ram {
        /// Bytes.
        size: u64,
    },
    /// A file or device that other nodes have open, too.
    Common {
        path: PathBuf,
        /// The size that it must have at least. Bytes.
        size: u64,
    },
}

/// A layer over the store that makes it behave like an old device.
#[derive(Clone, Debug, PartialEq)]
pub enum Behaviour {
    /// None.
    Plain,
    /// The time that every operation takes (MP: about 17 ms).
    FixedLatency(Duration),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Export {
    pub name: String,
    pub description: String,
    pub kind: Disk,
    pub store: Store,
    pub behaviour: Behaviour,
    pub read_only: bool,
    /// Smallest unit that clients may transfer. Bytes.
    pub block_size: u32,
    pub stable_writes: StableWrites,
    /// Which processors may start it; `None`: as the switch says.
    pub access: Option<access::Mode>,
    /// Injected into every operation.
    pub delay: Duration,
    pub faults: Faults,
    /// Changes go beside, up to so many bytes, and are dropped at the end.
    pub overlay: Option<u64>,
    /// Of a shared disk; empty: all nodes.
    pub homes: Vec<String>,
    /// It is the volume of a database, and not served over NBD.
    pub is_database: bool,
    pub place: Place,
}

impl Export {
    /// The disk that is served when no export is configured; `place` is where `data` was set.
    pub fn default_disk(data: &Path, place: Place) -> Export {
        Export {
            name: "disk".into(),
            description: "Awase's default disk".into(),
            kind: Disk::File,
            store: Store::File { path: data.join("disk.img"), size: Some(DEFAULT_DISK_BYTES), create: true },
            behaviour: Behaviour::Plain,
            read_only: false,
            block_size: 1,
            stable_writes: StableWrites::Auto,
            access: None,
            delay: Duration::ZERO,
            faults: Faults::default(),
            overlay: None,
            homes: Vec::new(),
            is_database: false,
            place,
        }
    }

    /// # Errors
    /// The first key that is missing, impossible or contradicts another.
    pub fn from_draft(name: String, kind: Disk, draft: Draft) -> Result<Export, Problem> {
        let behaviour = match kind {
            Disk::TestDevice => Behaviour::FixedLatency(draft.latency.unwrap_or(TESTDEV_LATENCY)),
            Disk::File | Disk::Block | Disk::Ram | Disk::Shared => Behaviour::Plain,
        };
        let read_only = draft.read_only.unwrap_or(false);
        let store = store(&draft, kind)?;
        if let (Store::File { create: true, .. }, true) = (&store, read_only) {
            return Err(draft.problem("create", "= true does not go with read_only = true"));
        }
        let overlay = overlay(&draft, read_only)?;
        let block_size = draft.block_size.unwrap_or(1);
        if let Some(size) = draft.size.filter(|size| !size.is_multiple_of(u64::from(block_size))) {
            let what = format!("= {:?} is not a multiple of block_size = {block_size}", show_bytes(size));
            return Err(draft.problem("size", what));
        }
        Ok(Export {
            description: draft.description.clone().unwrap_or_default(),
            kind,
            store,
            behaviour,
            read_only,
            block_size,
            stable_writes: draft.stable_writes.unwrap_or_default(),
            access: draft.access,
            delay: draft.delay.unwrap_or_default(),
            faults: draft.faults,
            overlay,
            homes: draft.homes.clone(),
            is_database: draft.is_database,
            name,
            place: draft.place,
        })
    }

    /// True when all that clients must not see changed within a connection is the same: then the disk stays open.
    pub fn has_same_medium(&self, other: &Export) -> bool {
        self.kind == other.kind
            && self.homes == other.homes
            && self.store == other.store
            && self.behaviour == other.behaviour
            && self.read_only == other.read_only
            && self.stable_writes == other.stable_writes
            && self.access == other.access
            && self.delay == other.delay
            && self.faults == other.faults
            && self.overlay == other.overlay
    }

    pub fn path(&self) -> Option<&Path> {
        match &self.store {
            Store::File { path, .. } | Store::Block { path } | Store::Common { path, .. } => Some(path),
            Store::Ram { .. } => None,
        }
    }

    /// Must nobody else have its medium open?
    pub fn writes_alone(&self) -> bool {
        !self.read_only && self.overlay.is_none() && !self.is_on_device()
    }

    /// Of a shared disk on a device that all nodes reach, which may be larger. Bytes.
    pub fn shared_size(&self) -> Option<u64> {
        if let Store::Common { size, .. } = self.store { Some(size) } else { None }
    }

    /// Is it a shared disk on a device that all nodes reach?
    pub fn is_on_device(&self) -> bool {
        matches!(self.store, Store::Common { .. })
    }

    pub fn key(&self, key: &str) -> String {
        shown(table(self.is_database), Some(&self.name), key)
    }

    pub fn medium(&self) -> String {
        let store = match &self.store {
            Store::File { path, .. } => format!("file {}", path.display()),
            Store::Block { path } => format!("block device {}", path.display()),
            Store::Ram { .. } => "memory".to_owned(),
            Store::Common { path, .. } => format!("{}, which all nodes reach", path.display()),
        };
        let store = if self.overlay.is_some() { format!("{store}, which stays as it is") } else { store };
        match &self.behaviour {
            Behaviour::Plain if self.is_on_device() => format!("shared, on {store}"),
            Behaviour::Plain if self.kind == Disk::Shared => format!("shared, here on {store}"),
            Behaviour::Plain => store,
            Behaviour::FixedLatency(latency) => format!("testdev of {latency:?} over {store}"),
        }
    }
}

/// The draft from which `export` would be read, for printing.
impl From<&Export> for Draft {
    fn from(export: &Export) -> Draft {
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
            overlay: export.overlay.map(|_| true),
            overlay_size: export.overlay.filter(|size| *size != u64::MAX),
            homes: export.homes.clone(),
            is_database: export.is_database,
            place: export.place.clone(),
            ..Draft::default()
        };
        match &export.behaviour {
            Behaviour::Plain => {}
            Behaviour::FixedLatency(latency) => draft.latency = Some(*latency),
        }
        if export.kind == Disk::Shared {
            let path = export.path().map(Path::to_owned);
            match path.filter(|_| export.is_on_device()) {
                Some(path) => draft.shared_device = Some(path),
                None => {
                    draft.backing = Some(export.path().map_or(Backing::Memory, |path| Backing::Path(path.to_owned())))
                }
            }
            (draft.read_only, draft.stable_writes) = (None, None);
        }
        match &export.store {
            Store::File { size, .. } if export.kind == Disk::Shared => draft.size = *size,
            Store::File { path, size, create } => {
                draft.path = Some(path.clone());
                draft.size = *size;
                draft.create = create.then_some(true);
            }
            Store::Block { path } => draft.path = Some(path.clone()),
            Store::Ram { size } | Store::Common { size, .. } => draft.size = Some(*size),
        }
        draft
    }
}

/// `None`: changes go to the medium itself.
fn overlay(draft: &Draft, read_only: bool) -> Result<Option<u64>, Problem> {
    match (draft.overlay.unwrap_or(false), draft.overlay_size) {
        (false, None) => Ok(None),
        (false, Some(_)) => Err(draft.problem("overlay_size", "needs overlay = true")),
        (true, _) if read_only => Err(draft.problem("overlay", "= true does not go with read_only = true")),
        (true, size) => Ok(Some(size.unwrap_or(u64::MAX))),
    }
}

/// This node's part of a shared disk. Pages are blocks of the cache.
fn shared(draft: &Draft) -> Result<Store, Problem> {
    let size = draft.size.ok_or_else(|| draft.missing("size").allowed("a size such as \"1GiB\""))?;
    if !size.is_multiple_of(BLOCK_BYTES) {
        return Err(draft.problem("size", format!("= {:?} is not a multiple of {BLOCK_BYTES}", show_bytes(size))));
    }
    let backing = draft.backing.clone();
    if backing.is_some() && draft.shared_device.is_some() {
        return Err(draft.problem("shared_device", "does not go with backing").allowed("one of them"));
    }
    match &backing.or(draft.shared_device.clone().map(Backing::Device)) {
        None => {
            let allowed = "\"memory\", or the path of a file; or shared_device, a device that every node reaches";
            Err(draft.missing("backing").allowed(allowed))
        }
        Some(Backing::Memory) => Ok(Store::Ram { size }),
        Some(Backing::Device(path)) => Ok(Store::Common { path: path.clone(), size }),
        Some(Backing::Path(path)) => Ok(Store::File { path: path.clone(), size: Some(size), create: true }),
    }
}

fn store(draft: &Draft, kind: Disk) -> Result<Store, Problem> {
    if kind == Disk::Shared {
        return shared(draft);
    }
    match (kind, draft.path.clone()) {
        (Disk::File, None) => Err(draft.missing("path").allowed("the path of an image file")),
        (Disk::Block, None) => Err(draft.missing("path").allowed("the path of a block device")),
        (Disk::Block, Some(path)) => Ok(Store::Block { path }),
        (_, Some(path)) => {
            let create = draft.create.unwrap_or(false);
            if create && draft.size.is_none() {
                return Err(draft.missing("size").allowed("with create = true, the size of the file to make"));
            }
            Ok(Store::File { path, size: draft.size, create })
        }
        (Disk::Ram | Disk::TestDevice | Disk::Shared, None) => {
            let size = draft.size.ok_or_else(|| draft.missing("size").allowed("a size such as \"1GiB\""))?;
            Ok(Store::Ram { size })
        }
    }
}
