//! Finding nodes where the host can't be asked for them by handle: by the places where they were seen, and, when they are
//! not there, by a search of the whole tree.
//!
//! The name of a node holds its number on the file system and what tells it from others that had or will have that number:
//! the file system's handle, or the time of its birth. What is found is compared with it, so a place that is wrong never
//! leads to another node. All ways begin at the root, so nothing outside of the tree is ever found.
//!
//! A node that is not at its place was moved or removed by somebody on the host. The tree is searched for it once: all places
//! that are seen on the way are noted, so after a restart without the places one search finds them all. Searches take a
//! tenth of the time at most; who asks meanwhile is told to ask again (`EBUSY`).

use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockWriteGuard};
use std::time::{Duration, Instant};

use super::HostTree;
use super::call::{self, MountId};
use super::listing::Records;
use super::node::Found;
use super::places::{Place, Places};
use crate::Errno;
use crate::tree::Node;

/// Levels that a node may lie below the root.
const DEPTH_MAX: usize = 4096;

/// Nodes kept in mind of which it is certain that they are no more.
const GONE_MAX: usize = 16 << 10;

/// A search that takes less than this costs nobody anything.
const SHORT: Duration = Duration::from_millis(20);

/// So many times as long as a search took, none begins after it.
const PAUSE: u32 = 9;

/// What file systems put for the number of an entry that they don't know: 0, and FUSE all ones in 32 bits.
const NUMBERS_UNKNOWN: [u64; 2] = [0, 0xffff_ffff];

/// The first byte of names: what follows the number, which all have. No file system uses these as types of handles.
const ROOT: u8 = 0xfc;
const BIRTH: u8 = 0xfd;
const HANDLE: u8 = 0xfe;

/// What tells nodes apart that had the same number, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Distinction {
    Handle,
    /// The time when it was made.
    Birth,
}

impl Distinction {
    /// How the nodes of the file system that is open can be told apart; not at all is an error.
    pub(super) fn on(fd: BorrowedFd) -> Result<Self, Errno> {
        let status = call::status(fd)?;
        let [handle, birth] = [Distinction::Handle, Distinction::Birth].map(|how| how.name(fd, &status));
        if handle.is_ok() {
            return Ok(Distinction::Handle);
        }
        birth.map(|_| Distinction::Birth)
    }

    fn name(self, fd: BorrowedFd, status: &libc::statx) -> Result<Node, Errno> {
        let mut bytes = match self {
            Distinction::Handle => vec![HANDLE],
            Distinction::Birth => vec![BIRTH],
        };
        bytes.extend(status.stx_ino.to_be_bytes());
        match self {
            Distinction::Handle => bytes.extend(call::node_of(fd)?.as_bytes()),
            Distinction::Birth if status.stx_mask & libc::STATX_BTIME == 0 => return Err(Errno(libc::EOPNOTSUPP)),
            Distinction::Birth => {
                bytes.extend(status.stx_btime.tv_sec.to_be_bytes());
                bytes.extend(status.stx_btime.tv_nsec.to_be_bytes());
            }
        }
        Node::new(&bytes).ok_or(Errno(libc::EOVERFLOW))
    }
}

pub(super) struct Search {
    distinction: Distinction,
    root_number: u64,
    device: (u32, u32),
    mount: MountId,
    places: Mutex<Places>,
    /// Held for writing while we move something and note where to, for reading by who looks for what is not at its place.
    moving: RwLock<()>,
    last: Mutex<Option<Last>>,
    gone: Mutex<HashSet<Node>>,
}

struct Last {
    begun: Instant,
    ended: Instant,
    result: Result<(), Errno>,
}

/// What is at a place.
#[allow(clippy::large_enum_variant, reason = "it is taken apart where it is made")]
enum AtPlace {
    Found(Found),
    /// Its number is another node's by now.
    Replaced,
    Nothing,
}

impl Search {
    /// For the tree with this root.
    pub(super) fn new(root: BorrowedFd, path: &Path, keep_in: Option<&Path>) -> Result<Self, Errno> {
        let status = call::status(root)?;
        let places = Places::open(keep_in, path).map_err(|error| crate::linux::syscall::errno(&error))?;
        Ok(Search {
            distinction: Distinction::on(root)?,
            root_number: status.stx_ino,
            device: device_of(&status),
            mount: call::mount_of(&status),
            places: Mutex::new(places),
            moving: RwLock::new(()),
            last: Mutex::new(None),
            gone: Mutex::default(),
        })
    }

    /// The root. Its name says nothing of its birth: whatever directory has its number when the tree is opened is it.
    pub(super) fn root_node(&self) -> Result<Node, Errno> {
        let mut bytes = vec![ROOT];
        bytes.extend(self.root_number.to_be_bytes());
        Node::new(&bytes).ok_or(Errno(libc::EOVERFLOW))
    }

    /// The name of what is open.
    ///
    /// # Errors
    /// `EXDEV` when it lies on another file system.
    pub(super) fn name(&self, fd: BorrowedFd, status: &libc::statx) -> Result<Node, Errno> {
        // Numbers mean nothing elsewhere, a subvolume of Btrfs included, which has a device number of its own.
        if call::mount_of(status) != self.mount || device_of(status) != self.device {
            return Err(Errno(libc::EXDEV));
        }
        if status.stx_ino == self.root_number { self.root_node() } else { self.distinction.name(fd, status) }
    }

    /// The node was seen here.
    pub(super) fn note(&self, dir: BorrowedFd, name: &CStr, node: &Node) {
        if let (Ok(status), Some(number)) = (call::status(dir), number_of(node)) {
            self.places().put(number, Place { dir: status.stx_ino, name: name.to_bytes().to_vec() });
        }
    }

    /// The node is not here any more, nor, if it is `gone`, anywhere.
    pub(super) fn forget(&self, dir: BorrowedFd, name: &CStr, node: &Node, gone: bool) {
        if gone {
            self.note_gone(node);
        }
        if let (Ok(status), Some(number)) = (call::status(dir), number_of(node)) {
            self.places().forget(number, &Place { dir: status.stx_ino, name: name.to_bytes().to_vec() });
        }
    }

    fn note_gone(&self, node: &Node) {
        let mut gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        if gone.len() >= GONE_MAX {
            gone.clear();
        }
        gone.insert(*node);
    }

    /// Is it certain that the node is no more? That it was not found is not enough: somebody may move it about.
    pub(super) fn is_gone(&self, node: &Node) -> bool {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner).contains(node)
    }

    /// While this is held something may be where it is not noted to be.
    pub(super) fn moving(&self) -> RwLockWriteGuard<'_, ()> {
        self.moving.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The names that lead from the root to the number, the last first.
    fn way(&self, number: u64) -> Option<Vec<Vec<u8>>> {
        let (places, mut way, mut at) = (self.places(), Vec::new(), number);
        while at != self.root_number {
            if way.len() == DEPTH_MAX {
                return None;
            }
            let Place { dir, name } = places.get(at)?;
            way.push(name);
            at = dir;
        }
        Some(way)
    }
}

fn device_of(status: &libc::statx) -> (u32, u32) {
    (status.stx_dev_major, status.stx_dev_minor)
}

fn number_of(node: &Node) -> Option<u64> {
    node.as_bytes().get(1..)?.first_chunk().map(|bytes| u64::from_be_bytes(*bytes))
}

impl HostTree {
    /// The node of this name, open as a place.
    ///
    /// # Errors
    /// `ESTALE` when it is gone; `EBUSY` when that can't be known now.
    pub(super) fn find_by_place(&self, search: &Search, node: &Node) -> Result<Found, Errno> {
        let stale = Errno(libc::ESTALE);
        let number = number_of(node).ok_or(stale)?;
        let asked = Instant::now();
        if search.is_gone(node) {
            return Err(stale);
        }
        if let AtPlace::Found(found) = self.look_at_place(search, node, number)? {
            return Ok(found);
        }
        // We may have moved it just now.
        let settled = search.moving.read().unwrap_or_else(PoisonError::into_inner);
        match self.look_at_place(search, node, number)? {
            AtPlace::Found(found) => return Ok(found),
            AtPlace::Replaced => {
                search.note_gone(node);
                return Err(stale);
            }
            AtPlace::Nothing => drop(settled),
        }
        let mut last = search.last.lock().unwrap_or_else(PoisonError::into_inner);
        // While we waited for it another search may have found it.
        if let AtPlace::Found(found) = self.look_at_place(search, node, number)? {
            return Ok(found);
        }
        if let Some(last) = last.as_ref() {
            let took = last.ended - last.begun;
            if last.begun >= asked {
                return Err(last.result.err().unwrap_or(stale));
            }
            if took > SHORT && last.ended.elapsed() < took * PAUSE {
                return Err(Errno(libc::EBUSY));
            }
        }
        let begun = Instant::now();
        let result = self.search_all(search, number);
        *last = Some(Last { begun, ended: Instant::now(), result });
        match self.look_at_place(search, node, number)? {
            AtPlace::Found(found) => Ok(found),
            AtPlace::Replaced => Err(stale),
            AtPlace::Nothing => Err(result.err().unwrap_or(stale)),
        }
    }

    fn look_at_place(&self, search: &Search, node: &Node, number: u64) -> Result<AtPlace, Errno> {
        let Some(found) = self.open_place(search, number)? else { return Ok(AtPlace::Nothing) };
        Ok(match self.opened(found) {
            Ok(found) if found.node == *node => AtPlace::Found(found),
            Ok(found) if found.status.stx_ino == number => AtPlace::Replaced,
            Ok(_) | Err(Errno(libc::EXDEV | libc::ESTALE | libc::ENOENT)) => AtPlace::Nothing,
            Err(errno) => return Err(errno),
        })
    }

    /// What is where the number was seen last.
    fn open_place(&self, search: &Search, number: u64) -> Result<Option<OwnedFd>, Errno> {
        let Some(way) = search.way(number) else { return Ok(None) };
        let flags = libc::O_PATH | libc::O_NOFOLLOW;
        let mut at = call::open_at(self.root.as_fd(), c".", flags, 0)?;
        for name in way.iter().rev() {
            let Ok(name) = CString::new(&name[..]) else { return Ok(None) };
            at = match call::open_at(at.as_fd(), &name, flags, 0) {
                Ok(next) => next,
                // Something else is there by now, or lies behind a directory that is not ours to enter any more.
                Err(Errno(libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::EACCES | libc::EPERM)) => return Ok(None),
                Err(errno) => return Err(errno),
            };
        }
        Ok(Some(at))
    }

    /// Notes all places in the tree that we may see.
    ///
    /// # Errors
    /// When not all could be seen: `EBUSY` because something moved meanwhile, and those of the host.
    fn search_all(&self, search: &Search, wanted: u64) -> Result<(), Errno> {
        let mut left = vec![search.root_number];
        let mut seen = HashSet::from([search.root_number]);
        let mut result = Ok(());
        while let Some(number) = left.pop() {
            let mut found_directory = |number| {
                if seen.insert(number) {
                    left.push(number);
                }
            };
            match self.search_directory(search, number, wanted, &mut found_directory) {
                // Nobody can be served what is in there.
                Ok(()) | Err(Errno(libc::EACCES | libc::EPERM)) => {}
                Err(errno) => result = result.and(Err(errno)),
            }
        }
        result
    }

    fn search_directory(
        &self,
        search: &Search,
        number: u64,
        wanted: u64,
        found_directory: &mut dyn FnMut(u64),
    ) -> Result<(), Errno> {
        let moved = Errno(libc::EBUSY);
        let place = self.open_place(search, number)?.ok_or(moved)?;
        let status = call::status(place.as_fd())?;
        if call::mount_of(&status) != search.mount || device_of(&status) != search.device {
            return Ok(());
        }
        if status.stx_ino != number {
            return Err(moved);
        }
        let dir = call::open_at(place.as_fd(), c".", libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
        let mut buffer = vec![0u64; 4096];
        loop {
            // What we move ourselves is either still here or already noted elsewhere.
            let _settled = search.moving.read().unwrap_or_else(PoisonError::into_inner);
            let bytes = match call::entries(dir.as_fd(), &mut buffer) {
                Ok(0) | Err(Errno(libc::ENOENT)) => return Ok(()),
                bytes => bytes?,
            };
            for record in Records::new(&buffer, bytes) {
                if matches!(record.name, b"." | b"..") {
                    continue;
                }
                let Ok(name) = CString::new(record.name) else { continue };
                let Some((entry, is_directory)) = entry_in(place.as_fd(), &name, record.number, record.kind) else {
                    continue;
                };
                let mut places = search.places();
                // Directories lead to all the rest, so they are noted in any case.
                if is_directory || entry == wanted || places.has_room() {
                    places.add(entry, Place { dir: number, name: record.name.to_vec() });
                }
                drop(places);
                if is_directory {
                    found_directory(entry);
                }
            }
        }
    }
}

/// The number of an entry, and whether it is a directory; nothing when it is gone by now.
fn entry_in(dir: BorrowedFd, name: &CStr, number: u64, kind: u8) -> Option<(u64, bool)> {
    if kind != libc::DT_UNKNOWN && !NUMBERS_UNKNOWN.contains(&number) {
        return Some((number, kind == libc::DT_DIR));
    }
    let entry = call::open_at(dir, name, libc::O_PATH | libc::O_NOFOLLOW, 0).ok()?;
    let status = call::status(entry.as_fd()).ok()?;
    Some((status.stx_ino, u32::from(status.stx_mode) & libc::S_IFMT == libc::S_IFDIR))
}
