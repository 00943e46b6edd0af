//! A simulated directory tree: effects of [`TreeCall`]s and of operations on its files, and what a power cut leaves.
//! Its assumptions about file systems are numbered in the [module above](super).

mod attributes;
mod background;
mod calls;
mod commit;
mod config;
mod crash;
mod errseq;
mod files;
mod in_flight;
mod inode;
mod journal;
mod lifecycle;
mod naming;
mod outside;
mod permission;
mod reports;

use std::collections::{BTreeMap, BTreeSet};

use super::bytes::Bytes;
use super::disk::Drive;
use super::ids::HostId;
use super::random::Random;
use inode::{Body, Directory, Inode, Stat};
use journal::NameChange;
use machine::Errno;
use machine::tree::{Kind, Node, Time, TreeReply};
use permission::Credentials;

pub use config::{TreeConfig, TreeCounters};
pub(super) use in_flight::{OpenInode, TreeJob};
pub(super) use reports::take as take_reports;

/// The number of the root directory.
const ROOT: u64 = 2;

/// What a call returns.
type Answer = Result<TreeReply, Errno>;

/// The beginning of every world, in seconds since 1970.
const EPOCH_SECONDS: i64 = 1_700_000_000;

/// The time of day at a time of a world, after these steps of its clock. All in nanoseconds.
pub(super) fn time_of_day(now: u64, steps: i64) -> Time {
    let since = now as i64 + steps;
    let (seconds, nanoseconds) = (since.div_euclid(1_000_000_000), since.rem_euclid(1_000_000_000));
    Time { seconds: EPOCH_SECONDS + seconds, nanoseconds: nanoseconds as u32 }
}

pub(super) struct SimTree {
    pub(super) host: HostId,
    pub(super) config: TreeConfig,
    /// Timing and faults.
    pub(super) disk: Drive,
    pub(super) counters: TreeCounters,
    id: u16,
    inodes: BTreeMap<u64, Inode>,
    /// Numbers below `numbers` that are not in use.
    free: BTreeSet<u64>,
    numbers: u64,
    generations: u32,
    /// Nodes without a name that may not be dropped yet.
    nameless: BTreeSet<u64>,
    /// Changes of names and attributes so far.
    changes: u64,
    /// Captures for syncs so far.
    captures: u64,
    /// Changes of names that are not durable, oldest first.
    unsynced: Vec<NameChange>,
    /// Bytes allocated by its files.
    used: u64,
    /// Of the time of day, in nanoseconds.
    pub(super) clock_steps: i64,
}

impl SimTree {
    pub(super) fn new(host: HostId, id: u16, config: TreeConfig, random: Random) -> Self {
        let disk = Drive::new(config.disk.clone(), random);
        let time = Time { seconds: EPOCH_SECONDS, nanoseconds: 0 };
        let stat = Stat { mode: 0o755, uid: 0, gid: 0, accessed: time, modified: time, changed: time };
        let root = Inode::new(ROOT, 0, Kind::Directory, stat, Body::Directory(Directory::new(ROOT)));
        SimTree {
            host,
            config,
            disk,
            counters: TreeCounters::default(),
            id,
            inodes: BTreeMap::from([(ROOT, root)]),
            free: BTreeSet::new(),
            numbers: ROOT + 1,
            generations: 0,
            nameless: BTreeSet::new(),
            changes: 0,
            captures: 0,
            unsynced: Vec::new(),
            used: 0,
            clock_steps: 0,
        }
    }

    /// The time `now` in the resolution of the file system.
    fn time(&self, now: u64) -> Time {
        time_of_day(now - now % u64::from(self.config.tick_ns.max(1)), self.clock_steps)
    }

    fn next_change(&mut self) -> u64 {
        self.changes += 1;
        self.changes
    }

    /// The number of `node`, if it exists.
    fn find(&self, node: Node) -> Result<u64, Errno> {
        let stale = Errno(libc::ESTALE);
        let number: [u8; 8] = node.as_bytes().get(..8).and_then(|bytes| bytes.try_into().ok()).ok_or(stale)?;
        let inode = self.inodes.get(&u64::from_be_bytes(number)).ok_or(stale)?;
        if inode.links == 0 || inode.node() != node { Err(stale) } else { Ok(inode.number) }
    }

    fn find_directory(&self, node: Node) -> Result<u64, Errno> {
        let number = self.find(node)?;
        self.inodes[&number].directory().map(|_| number).ok_or(Errno(libc::ENOTDIR))
    }

    /// The inode `number`, which exists: numbers are from [`find`](Self::find) and from directories.
    fn inode_mut(&mut self, number: u64) -> &mut Inode {
        self.inodes.get_mut(&number).unwrap_or_else(|| unreachable!("inode {number}"))
    }

    fn directory(&self, number: u64) -> &Directory {
        self.inodes[&number].directory().unwrap_or_else(|| unreachable!("inode {number} is no directory"))
    }

    fn directory_mut(&mut self, number: u64) -> &mut Directory {
        self.inode_mut(number).directory_mut().unwrap_or_else(|| unreachable!("inode {number} is no directory"))
    }

    /// Makes a node without an entry, for `cred` in the directory `dir`.
    fn add_inode(&mut self, cred: Credentials<'_>, dir: u64, kind: Kind, mode: u32, body: Body) -> Inode {
        let parent = self.inodes[&dir].stat;
        let inherits = parent.mode & permission::SET_GID != 0;
        let gid = if inherits { parent.gid } else { cred.gid() };
        let mut mode = cred.granted_mode(mode, gid);
        if inherits && kind == Kind::Directory {
            mode |= permission::SET_GID;
        }
        let time = cred.time;
        let stat = Stat { mode, uid: cred.uid(), gid, accessed: time, modified: time, changed: time };
        let number = self.free.pop_first().unwrap_or_else(|| {
            self.numbers += 1;
            self.numbers - 1
        });
        self.generations += 1;
        Inode::new(number, self.generations, kind, stat, body)
    }

    fn new_bytes(&self) -> Body {
        Body::File(Bytes::new(self.config.disk.sector_bytes, 0))
    }

    /// Runs `change` on the bytes of a file and accounts for their space.
    fn on_bytes<T>(&mut self, number: u64, change: impl FnOnce(&mut Bytes, &mut Drive) -> T) -> Result<T, Errno> {
        let bytes = self.inodes.get_mut(&number).and_then(Inode::bytes_mut).ok_or(Errno(libc::ESTALE))?;
        let before = bytes.allocated();
        let result = change(bytes, &mut self.disk);
        self.used = self.used + bytes.allocated() - before;
        Ok(result)
    }

    fn space(&self) -> u64 {
        self.config.disk.size.min(self.disk.space_max.unwrap_or(u64::MAX))
    }

    fn room(&self) -> u64 {
        self.space().saturating_sub(self.used)
    }

    /// Whether this name may be created, removed or renamed.
    fn check_name(name: &[u8]) -> Result<(), Errno> {
        match name {
            b"." | b".." => Err(Errno::INVALID),
            _ => Self::check_any_name(name),
        }
    }

    fn check_any_name(name: &[u8]) -> Result<(), Errno> {
        if name.len() > machine::tree::NAME_BYTES_MAX {
            return Err(Errno(libc::ENAMETOOLONG));
        }
        let valid = !name.is_empty() && !name.contains(&b'/') && !name.contains(&0);
        if valid { Ok(()) } else { Err(Errno::INVALID) }
    }
}
