//! A node of a tree, and what of its attributes would survive a power cut.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};

use super::errseq::Errors;
use crate::bytes::Bytes;
use machine::Errno;
use machine::tree::{Kind, Node, Time};

/// Attribute versions that are tracked. A power cut leaves any of them, so an older one may be dropped.
const VERSIONS_MAX: usize = 16;

/// Cookies of `.` and `..`; those of other entries are larger.
pub(super) const COOKIE_SELF: u64 = 1;
pub(super) const COOKIE_PARENT: u64 = 2;

/// Attributes other than counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) accessed: Time,
    pub(super) modified: Time,
    pub(super) changed: Time,
}

#[derive(Debug)]
pub(super) struct Inode {
    pub(super) number: u64,
    pub(super) generation: u32,
    pub(super) kind: Kind,
    /// 0: it has no name any more. A directory has 2 and one for each subdirectory.
    pub(super) links: u32,
    pub(super) stat: Stat,
    pub(super) durable: Stat,
    /// The capture that `durable` is from.
    durable_as_of: u64,
    /// Attributes since `durable`, each with the number of the change that set it.
    versions: Vec<(u64, Stat)>,
    pub(super) body: Body,
    /// Owners of open files, and whether they are open for writing.
    pub(super) open: Vec<(Weak<()>, bool)>,
    pub(super) is_executed: bool,
    pub(super) committable: Committable,
    /// Buffered changes that the host will not be able to write back, and why.
    pub(super) failing: Vec<(u64, Errno)>,
    pub(super) errors: Errors,
    /// Changes of its content by other processes.
    pub(super) others: Arc<AtomicU64>,
}

/// What of a file's content others' flushes may cover.
#[derive(Debug, Default)]
pub(super) struct Committable {
    /// Changes that the host has in its page cache, oldest first.
    pub(super) cached: Vec<u64>,
    /// The latest change that was on the disk when a successful sync began, and when a successful flush did.
    committed: u64,
    flushed: u64,
}

impl Committable {
    /// Of the changes up to `latest`, the last one before which all are on the disk.
    pub(super) fn on_disk(&self, latest: u64) -> u64 {
        self.cached.first().map_or(latest, |first| first.saturating_sub(1))
    }

    /// A sync was successful at whose start this change was on the disk. Returns the latest that has survived.
    pub(super) fn on_committed(&mut self, change: u64) -> u64 {
        self.committed = self.committed.max(change);
        self.committed.min(self.flushed)
    }

    /// The same for the flush of any file.
    pub(super) fn on_flushed(&mut self, change: u64) -> u64 {
        self.flushed = self.flushed.max(change);
        self.committed.min(self.flushed)
    }

    pub(super) fn on_power_cut(&mut self) {
        self.cached.clear();
    }
}

#[derive(Debug)]
pub(super) enum Body {
    File(Bytes),
    Directory(Directory),
    SymbolicLink(Vec<u8>),
    Special,
}

impl Inode {
    pub(super) fn new(number: u64, generation: u32, kind: Kind, stat: Stat, body: Body) -> Self {
        let links = if kind == Kind::Directory { 2 } else { 1 };
        let (durable, durable_as_of) = (stat, 0);
        let (versions, open) = (Vec::new(), Vec::new());
        let others = Arc::default();
        let is_executed = false;
        let committable = Committable::default();
        let (failing, errors) = (Vec::new(), Errors::default());
        Inode {
            number,
            generation,
            kind,
            links,
            stat,
            durable,
            durable_as_of,
            versions,
            body,
            open,
            is_executed,
            committable,
            failing,
            errors,
            others,
        }
    }

    pub(super) fn node(&self) -> Node {
        let mut name = [0; 12];
        name[..8].copy_from_slice(&self.number.to_be_bytes());
        name[8..].copy_from_slice(&self.generation.to_be_bytes());
        Node::new(&name).unwrap_or_else(|| unreachable!("12 bytes fit"))
    }

    pub(super) fn directory(&self) -> Option<&Directory> {
        match &self.body {
            Body::Directory(directory) => Some(directory),
            _ => None,
        }
    }

    pub(super) fn directory_mut(&mut self) -> Option<&mut Directory> {
        match &mut self.body {
            Body::Directory(directory) => Some(directory),
            _ => None,
        }
    }

    pub(super) fn bytes(&self) -> Option<&Bytes> {
        match &self.body {
            Body::File(bytes) => Some(bytes),
            _ => None,
        }
    }

    pub(super) fn bytes_mut(&mut self) -> Option<&mut Bytes> {
        match &mut self.body {
            Body::File(bytes) => Some(bytes),
            _ => None,
        }
    }

    pub(super) fn is_open(&mut self) -> bool {
        self.open.retain(|(owner, _)| owner.strong_count() > 0);
        !self.open.is_empty()
    }

    pub(super) fn is_open_to_write(&mut self) -> bool {
        self.is_open() && self.open.iter().any(|(_, writable)| *writable)
    }

    /// Change number `change` set the present attributes.
    pub(super) fn note_version(&mut self, change: u64) {
        if self.versions.len() == VERSIONS_MAX {
            self.versions.remove(0);
        }
        self.versions.push((change, self.stat));
    }

    /// The attributes `stat`, captured as number `as_of` when `covers` was the latest change, are durable.
    pub(super) fn make_durable(&mut self, stat: Stat, as_of: u64, covers: u64) {
        if as_of >= self.durable_as_of {
            self.durable = stat;
            self.durable_as_of = as_of;
        }
        self.versions.retain(|(change, _)| *change > covers);
    }

    /// The attributes that a power cut may leave.
    pub(super) fn possible_stats(&self) -> Vec<Stat> {
        let versions = self.versions.iter().map(|(_, stat)| *stat);
        std::iter::once(self.durable).chain(versions).chain([self.stat]).collect()
    }

    /// A power cut left these attributes.
    pub(super) fn restore(&mut self, stat: Stat) {
        self.stat = stat;
        self.durable = stat;
        self.versions.clear();
        self.open.clear();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) number: u64,
    pub(super) cookie: u64,
}

/// The entries of a directory without `.` and `..`.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) parent: u64,
    names: BTreeMap<Vec<u8>, Slot>,
    by_cookie: BTreeMap<u64, Vec<u8>>,
    cookie: u64,
}

impl Directory {
    pub(super) fn new(parent: u64) -> Self {
        Directory { parent, names: BTreeMap::new(), by_cookie: BTreeMap::new(), cookie: COOKIE_PARENT }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    pub(super) fn get(&self, name: &[u8]) -> Option<Slot> {
        self.names.get(name).copied()
    }

    /// A cookie that was never used.
    pub(super) fn next_cookie(&mut self) -> u64 {
        self.cookie += 1;
        self.cookie
    }

    /// Sets or removes the entry `name`.
    pub(super) fn set(&mut self, name: &[u8], slot: Option<Slot>) {
        if let Some(old) = self.names.remove(name) {
            self.by_cookie.remove(&old.cookie);
        }
        if let Some(slot) = slot {
            self.names.insert(name.to_vec(), slot);
            self.by_cookie.insert(slot.cookie, name.to_vec());
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], Slot)> {
        self.names.iter().map(|(name, slot)| (name.as_slice(), *slot))
    }

    /// Entries with larger cookies, in order.
    pub(super) fn behind(&self, cookie: u64) -> impl Iterator<Item = (&[u8], Slot)> {
        let later = self.by_cookie.range(cookie.saturating_add(1)..);
        later.map(|(_, name)| (name.as_slice(), self.names[name]))
    }
}
