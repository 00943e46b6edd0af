//! Finding nodes where the host does not open them by handle: at the places where they were seen, and, if they are not
//! there, by a search of the whole tree.
//!
//! The identifier of a node holds its inode number and what distinguishes it from earlier or later nodes with that
//! number: the file system's handle, or the birth time. What is found is compared with it, so a wrong place never leads
//! to another node. All paths begin at the root, so nothing outside the tree is ever found.
//!
//! A node that is not at its place was moved or removed on the host. The tree is searched for it once, recording all
//! places seen on the path, so after a restart without places one search finds all nodes. Searches take at most a tenth
//! of the time; callers are asked to retry in between, and while one runs (`EBUSY`).

use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock, RwLockWriteGuard};

use super::HostTree;
use super::call::{self, MountId};
use super::listing::Records;
use super::node::Found;
use super::places::{Place, Places};
use crate::Errno;
use crate::linux::file_system::FileSystem;
use crate::tree::{InodeNo, Node};

/// Levels of a node below the root, at most.
const DEPTH_MAX: usize = 4096;

/// Maximum of nodes remembered as removed.
const GONE_MAX: usize = 16 << 10;

/// A search shorter than this needs no pause after it.
const SHORT: Duration = Duration::from_millis(20);

/// So long the searches of others are waited for: a host that hangs must not keep all threads of the tree from whatever is
/// found.
const OTHERS_MAX: Duration = Duration::from_secs(1);

/// The pause after a search, as a multiple of its duration.
const PAUSE: u32 = 9;

/// Inode numbers of entries that mean unknown: 0, and with FUSE all ones in 32 bits.
const NUMBERS_UNKNOWN: [InodeNo; 2] = [InodeNo(0), InodeNo(0xffff_ffff)];

/// File systems store times of birth in steps of this at most.
const BIRTH_STEP_NS: i128 = 1000;

/// With Linux 6.13 and later a time of birth may be ahead of the clock that they are taken from, by two steps of it (7 ms were
/// seen). One further ahead than this is of another machine's clock.
const BIRTH_AHEAD_NS: i128 = 50_000_000;

/// The end of a step of the clock, at most 10 ms, is looked for this often, and at most that many times.
const CLOCK_WAIT: Duration = Duration::from_millis(1);
const CLOCK_WAITS_MAX: usize = 100;

/// The first byte of an identifier: what follows the number. No file system uses these as types of handles.
const ROOT: u8 = 0xfc;
const BIRTH: u8 = 0xfd;
const HANDLE: u8 = 0xfe;

/// What distinguishes nodes that have the same number at different times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Distinction {
    Handle,
    Birth,
}

impl Distinction {
    /// The distinction available on the file system of an open node.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: there is none.
    pub(super) fn on(fd: BorrowedFd, file_system: FileSystem, handles_are_persistent: bool) -> Result<Self, Errno> {
        let status = call::status(fd)?;
        if handles_are_persistent && Distinction::Handle.name(fd, &status).is_ok() {
            return Ok(Distinction::Handle);
        }
        if !file_system.has_persistent_numbers() {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        Distinction::Birth.name(fd, &status).map(|_| Distinction::Birth)
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
    root_number: InodeNo,
    device: (u32, u32),
    mount: MountId,
    places: Mutex<Places>,
    /// Held for writing while the server moves a node and records it, for reading while a missing node is looked for.
    moving: RwLock<()>,
    last: Mutex<Option<Last>>,
    gone: Mutex<HashSet<Node>>,
}

struct Last {
    begun: Instant,
    ended: Instant,
    result: Result<(), Errno>,
}

#[allow(clippy::large_enum_variant, reason = "it is taken apart where it is made")]
enum AtPlace {
    Found(Found),
    /// Another node has its number by now.
    Replaced,
    Nothing,
}

impl Search {
    pub(super) fn new(
        root: BorrowedFd,
        path: &Path,
        state_dir: Option<&Path>,
        distinction: Distinction,
    ) -> Result<Self, Errno> {
        let status = call::status(root)?;
        let places = Places::open(state_dir, path).map_err(|error| crate::linux::syscall::errno(&error))?;
        Ok(Search {
            distinction,
            root_number: InodeNo(status.stx_ino),
            device: device_of(&status),
            mount: call::mount_of(&status),
            places: Mutex::new(places),
            moving: RwLock::new(()),
            last: Mutex::new(None),
            gone: Mutex::default(),
        })
    }

    /// The root's identifier, without a birth time: whatever directory has its number when the tree is opened.
    pub(super) fn root_node(&self) -> Result<Node, Errno> {
        let mut bytes = vec![ROOT];
        bytes.extend(self.root_number.0.to_be_bytes());
        Node::new(&bytes).ok_or(Errno(libc::EOVERFLOW))
    }

    /// The identifier of an open node.
    ///
    /// # Errors
    /// `EXDEV` when it lies on another file system.
    pub(super) fn name(&self, fd: BorrowedFd, status: &libc::statx) -> Result<Node, Errno> {
        // Numbers are valid on one file system only; a subvolume of Btrfs has its own device number.
        if call::mount_of(status) != self.mount || device_of(status) != self.device {
            return Err(Errno(libc::EXDEV));
        }
        if InodeNo(status.stx_ino) == self.root_number { self.root_node() } else { self.distinction.name(fd, status) }
    }

    /// Records a place of the node.
    pub(super) fn note(&self, dir: BorrowedFd, name: &CStr, node: &Node) {
        if let (Ok(status), Some(number)) = (call::status(dir), number_of(node)) {
            self.places.lock().put(number, Place { dir: InodeNo(status.stx_ino), name: name.to_bytes().to_vec() });
        }
    }

    /// The node is no longer here, nor, if it is `gone`, anywhere else.
    pub(super) fn forget(&self, dir: BorrowedFd, name: &CStr, node: &Node, gone: bool) {
        if gone {
            self.note_gone(node);
        }
        if let (Ok(status), Some(number)) = (call::status(dir), number_of(node)) {
            self.places.lock().forget(number, &Place { dir: InodeNo(status.stx_ino), name: name.to_bytes().to_vec() });
        }
    }

    fn note_gone(&self, node: &Node) {
        let mut gone = self.gone.lock();
        if gone.len() >= GONE_MAX {
            gone.clear();
        }
        gone.insert(*node);
    }

    /// Whether the node is known to be removed. Not finding it is no proof: it may be moved concurrently.
    pub(super) fn is_gone(&self, node: &Node) -> bool {
        self.gone.lock().contains(node)
    }

    /// Waits until nodes that are made have other times of birth than one with this status, which is about to be removed:
    /// the clock that they have them from advances in steps, and the next node may get its number at once.
    pub(super) fn outlive_birth(&self, status: &libc::statx) {
        let born = call::nanoseconds(status.stx_btime.tv_sec, status.stx_btime.tv_nsec);
        let is_young = || may_be_born_again(born, call::clock_of_files());
        for _ in 0..CLOCK_WAITS_MAX {
            if self.distinction != Distinction::Birth || !is_young() {
                return;
            }
            std::thread::sleep(CLOCK_WAIT);
        }
    }

    /// After a call. The thread acts as the server.
    pub(super) fn tidy(&self) {
        self.places.lock().tidy();
    }

    /// While this is held, a node may not be at its recorded place.
    pub(super) fn moving(&self) -> RwLockWriteGuard<'_, ()> {
        self.moving.write()
    }

    /// The names on the path from the root to the number, in reverse.
    fn path_to(&self, number: InodeNo) -> Option<Vec<Vec<u8>>> {
        let (places, mut path, mut at) = (self.places.lock(), Vec::new(), number);
        while at != self.root_number {
            if path.len() == DEPTH_MAX {
                return None;
            }
            let Place { dir, name } = places.get(at)?;
            path.push(name);
            at = dir;
        }
        Some(path)
    }
}

/// Whether a node that is made now may have the time of birth `born`. Both in nanoseconds.
fn may_be_born_again(born: i128, now: i128) -> bool {
    (-BIRTH_AHEAD_NS..BIRTH_STEP_NS).contains(&(now - born))
}

fn device_of(status: &libc::statx) -> (u32, u32) {
    (status.stx_dev_major, status.stx_dev_minor)
}

fn number_of(node: &Node) -> Option<InodeNo> {
    node.as_bytes().get(1..)?.first_chunk().map(|bytes| InodeNo(u64::from_be_bytes(*bytes)))
}

impl HostTree {
    /// The node of this identifier, opened with `O_PATH`.
    ///
    /// # Errors
    /// `ESTALE` when it is gone; `EBUSY` when that is not known yet.
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
        // The server may have moved it just now.
        let settled = search.moving.try_read_for(OTHERS_MAX).ok_or(Errno(libc::EBUSY))?;
        match self.look_at_place(search, node, number)? {
            AtPlace::Found(found) => return Ok(found),
            AtPlace::Replaced => {
                search.note_gone(node);
                return Err(stale);
            }
            AtPlace::Nothing => drop(settled),
        }
        let mut last = search.last.try_lock_for(OTHERS_MAX).ok_or(Errno(libc::EBUSY))?;
        // While waiting for the lock another search may have found it.
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

    fn look_at_place(&self, search: &Search, node: &Node, number: InodeNo) -> Result<AtPlace, Errno> {
        let Some(found) = self.open_place(search, number)? else { return Ok(AtPlace::Nothing) };
        Ok(match self.opened(found) {
            Ok(found) if found.node == *node => AtPlace::Found(found),
            Ok(found) if InodeNo(found.status.stx_ino) == number => AtPlace::Replaced,
            Ok(_) | Err(Errno(libc::EXDEV | libc::ESTALE | libc::ENOENT)) => AtPlace::Nothing,
            Err(errno) => return Err(errno),
        })
    }

    /// Opens what is at the last place of the number.
    fn open_place(&self, search: &Search, number: InodeNo) -> Result<Option<OwnedFd>, Errno> {
        let Some(path) = search.path_to(number) else { return Ok(None) };
        let flags = libc::O_PATH | libc::O_NOFOLLOW;
        let mut at = call::open_at(self.root.as_fd(), c".", flags, 0)?;
        for name in path.iter().rev() {
            let Ok(name) = CString::new(&name[..]) else { return Ok(None) };
            at = match call::open_at(at.as_fd(), &name, flags, 0) {
                Ok(next) => next,
                // Another node is at that place by now, or the directory may not be entered any more.
                Err(Errno(libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::EACCES | libc::EPERM)) => return Ok(None),
                Err(errno) => return Err(errno),
            };
        }
        Ok(Some(at))
    }

    /// Records all visible places in the tree.
    ///
    /// # Errors
    /// When not all could be seen: `EBUSY` because a node moved meanwhile, and those of the host.
    fn search_all(&self, search: &Search, wanted: InodeNo) -> Result<(), Errno> {
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
                // Its contents could not be served either.
                Ok(()) | Err(Errno(libc::EACCES | libc::EPERM)) => {}
                Err(errno) => result = result.and(Err(errno)),
            }
        }
        result
    }

    fn search_directory(
        &self,
        search: &Search,
        number: InodeNo,
        wanted: InodeNo,
        found_directory: &mut dyn FnMut(InodeNo),
    ) -> Result<(), Errno> {
        let moved = Errno(libc::EBUSY);
        let place = self.open_place(search, number)?.ok_or(moved)?;
        let status = call::status(place.as_fd())?;
        if call::mount_of(&status) != search.mount || device_of(&status) != search.device {
            return Ok(());
        }
        if InodeNo(status.stx_ino) != number {
            return Err(moved);
        }
        let dir = call::open_at(place.as_fd(), c".", libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
        let mut buffer = vec![0u64; 4096];
        loop {
            // What the server moves itself is either still here or already recorded elsewhere.
            let _settled = search.moving.read();
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
                let mut places = search.places.lock();
                // Directories lead to all others, so they are always recorded.
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

/// The number of an entry, and whether it is a directory; `None` when it is gone by now.
fn entry_in(dir: BorrowedFd, name: &CStr, number: InodeNo, kind: u8) -> Option<(InodeNo, bool)> {
    if kind != libc::DT_UNKNOWN && !NUMBERS_UNKNOWN.contains(&number) {
        return Some((number, kind == libc::DT_DIR));
    }
    let entry = call::open_at(dir, name, libc::O_PATH | libc::O_NOFOLLOW, 0).ok()?;
    let status = call::status(entry.as_fd()).ok()?;
    Some((InodeNo(status.stx_ino), u32::from(status.stx_mode) & libc::S_IFMT == libc::S_IFDIR))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_of_birth_is_over_when_the_clock_has_advanced_by_a_step() {
        let (step, now) = (1_000_000, 1_700_000_000_000_000_123);
        for (born, expected) in [
            (now, true),
            (now - 123, true),
            (now - step, false),
            (now + 8 * step, true),
            (now + 1000 * step, false),
            (0, false),
        ] {
            assert_eq!(may_be_born_again(born, now), expected, "{born}");
        }
    }
}
