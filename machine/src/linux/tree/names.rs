//! Names in directories: lookup, removal, rename, link.

use std::ffi::{CStr, CString};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::os::fd::{AsFd, BorrowedFd};

use parking_lot::{Mutex, MutexGuard};

use super::HostTree;
use super::call;
use super::node::{Found, in_directory};
use super::permission::{CHANGE, SEARCH, WRITE};
use super::search::Search;
use crate::Errno;
use crate::tree::{Caller, NAME_BYTES_MAX, Node, TreeReply};

/// Locks for the names of directories, so that the node reported for a removed or replaced name is the one that had it:
/// between lookup and removal the host leaves a gap. Only programs on the host itself can still interfere.
pub(super) struct NameLocks([Mutex<()>; NAME_LOCKS]);

/// More than there are threads that may wait for one.
const NAME_LOCKS: usize = 64;

impl NameLocks {
    pub(super) fn new() -> Self {
        NameLocks([const { Mutex::new(()) }; NAME_LOCKS])
    }

    pub(super) fn of(&self, dir: &Node) -> MutexGuard<'_, ()> {
        self.lock(place(dir))
    }

    /// For two directories, which may be the same.
    fn of_both(&self, one: &Node, other: &Node) -> (MutexGuard<'_, ()>, Option<MutexGuard<'_, ()>>) {
        let (one, other) = (place(one), place(other));
        // In a fixed order, against deadlock.
        let first = self.lock(one.min(other));
        (first, (one != other).then(|| self.lock(one.max(other))))
    }

    fn lock(&self, place: usize) -> MutexGuard<'_, ()> {
        self.0[place].lock()
    }
}

fn place(dir: &Node) -> usize {
    let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(dir);
    hash as usize % NAME_LOCKS
}

/// A name that an entry may have.
///
/// # Errors
/// `EINVAL` for an invalid name, including `.` and `..`; `ENAMETOOLONG`.
pub(super) fn entry_name(name: &[u8]) -> Result<CString, Errno> {
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') {
        return Err(Errno::INVALID);
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(Errno(libc::ENAMETOOLONG));
    }
    CString::new(name).map_err(|_| Errno::INVALID)
}

impl HostTree {
    pub(super) fn lookup(&self, caller: Option<&Caller>, dir: &Node, name: &[u8]) -> Result<TreeReply, Errno> {
        let fd = self.directory(dir)?;
        let found = if matches!(name, b"." | b"..") {
            {
                self.require(caller, fd.as_fd(), SEARCH)?;
                let _acting = self.identity.act_as(caller)?;
                if !call::may(fd.as_fd(), SEARCH)? {
                    return Err(Errno(libc::EACCES));
                }
            }
            if name == b"." { self.find(dir)? } else { self.parent(fd.as_fd(), dir)? }
        } else {
            let name = entry_name(name)?;
            self.require(caller, fd.as_fd(), SEARCH)?;
            let _acting = self.identity.act_as(caller)?;
            self.child(fd.as_fd(), &name)?
        };
        Ok(TreeReply::Node(found.node, found.attributes()))
    }

    pub(super) fn read_link(&self, node: &Node) -> Result<TreeReply, Errno> {
        let found = self.find(node)?;
        if found.kind() != libc::S_IFLNK {
            return Err(Errno::INVALID);
        }
        call::read_link(found.fd()).map(TreeReply::Bytes)
    }

    pub(super) fn remove(&self, caller: Option<&Caller>, dir: &Node, name: &[u8]) -> Result<TreeReply, Errno> {
        let mut found = self.unlink(caller, dir, name, false)?;
        found.refresh()?;
        Ok(TreeReply::Node(found.node, found.attributes()))
    }

    pub(super) fn remove_directory(
        &self,
        caller: Option<&Caller>,
        dir: &Node,
        name: &[u8],
    ) -> Result<TreeReply, Errno> {
        self.unlink(caller, dir, name, true)?;
        Ok(TreeReply::Done)
    }

    fn unlink(&self, caller: Option<&Caller>, dir: &Node, name: &[u8], directory: bool) -> Result<Found, Errno> {
        let name = entry_name(name)?;
        let fd = self.directory(dir)?;
        let _names = self.name_locks.of(dir);
        let _acting = self.identity.act_as(caller)?;
        self.require(caller, fd.as_fd(), SEARCH)?;
        let found = self.child(fd.as_fd(), &name)?;
        self.require_removal(caller, fd.as_fd(), &found)?;
        self.outlive_birth(&found);
        call::unlink(fd.as_fd(), &name, directory).map_err(|errno| in_directory(fd.as_fd(), errno))?;
        self.lost_name(fd.as_fd(), &name, &found);
        Ok(found)
    }

    pub(super) fn rename(
        &self,
        caller: Option<&Caller>,
        from: (&Node, &[u8]),
        to: (&Node, &[u8]),
    ) -> Result<TreeReply, Errno> {
        let (from_name, to_name) = (entry_name(from.1)?, entry_name(to.1)?);
        let (from_dir, to_dir) = (self.directory(from.0)?, self.directory(to.0)?);
        let _names = self.name_locks.of_both(from.0, to.0);
        self.require(caller, from_dir.as_fd(), SEARCH)?;
        self.require(caller, to_dir.as_fd(), CHANGE)?;
        let _acting = self.identity.act_as(caller)?;
        let moved = self.child(from_dir.as_fd(), &from_name)?;
        self.require_removal(caller, from_dir.as_fd(), &moved)?;
        let replaced = self.child_if_any(to_dir.as_fd(), &to_name)?;
        if let Some(replaced) = &replaced {
            self.require_removal(caller, to_dir.as_fd(), replaced)?;
        }
        if from.0 != to.0 && moved.is_directory() {
            // Its `..` changes.
            self.require(caller, moved.fd(), WRITE)?;
        }
        // Two names of one node: the host leaves both.
        let replaced = replaced.filter(|replaced| replaced.node != moved.node);
        if let Some(replaced) = &replaced {
            self.outlive_birth(replaced);
        }
        let _moving = self.search.as_ref().map(Search::moving);
        call::rename((from_dir.as_fd(), &from_name), (to_dir.as_fd(), &to_name))
            .map_err(|errno| in_directory(to_dir.as_fd(), errno))?;
        if let Some(replaced) = &replaced {
            self.lost_name(to_dir.as_fd(), &to_name, replaced);
        }
        self.note(to_dir.as_fd(), &to_name, &moved);
        Ok(TreeReply::Renamed(moved.node, replaced.map(|replaced| replaced.node)))
    }

    fn child_if_any(&self, dir: BorrowedFd, name: &CStr) -> Result<Option<Found>, Errno> {
        match self.child(dir, name) {
            Err(Errno(libc::ENOENT)) => Ok(None),
            found => found.map(Some),
        }
    }

    pub(super) fn link(
        &self,
        caller: Option<&Caller>,
        node: &Node,
        dir: &Node,
        name: &[u8],
    ) -> Result<TreeReply, Errno> {
        let name = entry_name(name)?;
        let mut found = self.find(node)?;
        let fd = self.directory(dir)?;
        {
            self.require(caller, fd.as_fd(), CHANGE)?;
            let _names = self.name_locks.of(dir);
            let _acting = self.identity.act_as(caller)?;
            call::link(found.fd(), fd.as_fd(), &name).map_err(|errno| in_directory(fd.as_fd(), errno))?;
        }
        found.refresh()?;
        Ok(TreeReply::Attributes(found.attributes()))
    }

    /// Before a node loses a name, which may be its last one. See [`Search::outlive_birth`].
    fn outlive_birth(&self, found: &Found) {
        let is_last = found.is_directory() || found.status.stx_nlink <= 1;
        if let Some(search) = self.search.as_ref().filter(|_| is_last) {
            search.outlive_birth(&found.status);
        }
    }

    /// Drops what is held for a node that has lost this name: an open directory would stay allocated.
    fn lost_name(&self, dir: BorrowedFd, name: &CStr, found: &Found) {
        // No sync will follow, unless it has another name: then it is found.
        self.made.forget(&found.node);
        if let Some(search) = &self.search {
            let gone = call::status(found.fd()).is_ok_and(|status| status.stx_nlink == 0);
            search.forget(dir, name, &found.node, gone || found.is_directory());
        }
        if found.is_directory() {
            self.verified.remove(&found.node);
            self.directories.forget(&found.node);
            self.listings.forget(&found.node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_valid_names_of_one_entry_are_accepted() {
        for bad in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0b"] {
            assert_eq!(entry_name(bad), Err(Errno::INVALID), "{bad:?}");
        }
        assert_eq!(entry_name(&[b'a'; 256]), Err(Errno(libc::ENAMETOOLONG)));
        for good in [&b"..."[..], b" ", b"\xff", &[b'a'; 255]] {
            assert_eq!(entry_name(good).as_deref().map(CStr::to_bytes), Ok(good));
        }
    }
}
