//! From a node's identifier to the node, and back.
//!
//! Nodes are found by file handle (open_by_handle_at(2)), or, where the host does not allow that or has none, by
//! [`super::search`]. By handle they are found on the file system of the tree, which may contain more than the tree.
//! For a directory it is verified, going up, that it lies in the tree. For other nodes that is too expensive (they may
//! have any number of names, anywhere): the handle of a file elsewhere on the same file system is not refused. Knfsd
//! behaves the same by default (`no_subtree_check`). A service must make handles unforgeable for untrusted clients.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;

use super::HostTree;
use super::call;
use super::changes::Watching;
use super::status;
use crate::Errno;
use crate::tree::{Attributes, Node};

/// Maximum of directories known to lie in the tree. One moved out of the tree on the host is served until forgotten.
const VERIFIED_MAX: usize = 16 << 10;

/// Levels of a directory below a known one, at most.
const DEPTH_MAX: usize = 4096;

/// An open node, with `O_PATH`, or, when it was just made, otherwise.
pub(super) struct Found {
    pub(super) fd: OwnedFd,
    pub(super) node: Node,
    pub(super) status: libc::statx,
}

impl Found {
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) fn attributes(&self) -> Attributes {
        status::attributes(&self.status)
    }

    /// The file type bits of its mode.
    pub(super) fn kind(&self) -> u32 {
        u32::from(self.status.stx_mode) & libc::S_IFMT
    }

    pub(super) fn is_directory(&self) -> bool {
        self.kind() == libc::S_IFDIR
    }

    /// Reads the status again, after a change.
    pub(super) fn refresh(&mut self) -> Result<(), Errno> {
        self.status = call::status(self.fd.as_fd())?;
        Ok(())
    }
}

/// The directory that a thread holds open while it makes several calls in it: opened once, and looked up once. No
/// longer, since its file system could not be unmounted.
#[derive(Default)]
struct Held {
    is_holding: bool,
    directory: Option<(u32, Node, Arc<OwnedFd>)>,
    /// Of that directory, if any name in it is changed.
    changes: Option<Watching>,
}

impl Held {
    fn is_of(&self, number: u32, node: &Node) -> bool {
        self.directory.as_ref().is_some_and(|(tree, of, _)| *tree == number && of == node)
    }
}

thread_local! {
    static HELD: RefCell<Held> = RefCell::default();
}

/// This thread holds the directory that it uses open until this is dropped.
pub(in crate::linux) struct Holding(());

/// See [`Holding`]. `None` if it does so already.
#[must_use = "the directory is held open only as long as this lives"]
pub(in crate::linux) fn hold_directory() -> Option<Holding> {
    let was_holding = HELD.with_borrow_mut(|held| std::mem::replace(&mut held.is_holding, true));
    // Lazily: one that is dropped ends the holding.
    (!was_holding).then(|| Holding(()))
}

impl Drop for Holding {
    fn drop(&mut self) {
        HELD.take();
    }
}

/// Whether since [`HostTree::attributes_before`] only these names were changed in the directory that this thread holds,
/// each once at most.
pub(super) fn was_only_change(names: &[&[u8]]) -> bool {
    HELD.with_borrow(|held| held.changes.as_ref().is_some_and(|watch| watch.saw_only(names)))
}

#[derive(Default)]
pub(super) struct Verified(Mutex<HashSet<Node>>);

impl Verified {
    fn contains(&self, node: &Node) -> bool {
        self.0.lock().contains(node)
    }

    fn insert(&self, nodes: &[Node]) {
        let mut known = self.0.lock();
        if known.len() + nodes.len() > VERIFIED_MAX {
            // They are verified again one by one. An LRU would cost more than it saves.
            known.clear();
        }
        known.extend(nodes.iter().take(VERIFIED_MAX));
    }

    pub(super) fn remove(&self, node: &Node) {
        self.0.lock().remove(node);
    }
}

impl HostTree {
    /// Opens a node.
    ///
    /// # Errors
    /// `ESTALE` when it is gone, or lies outside the tree.
    pub(super) fn find(&self, node: &Node) -> Result<Found, Errno> {
        let found = match &self.search {
            Some(search) => self.find_by_place(search, node)?,
            None => {
                let fd = call::open_node(self.mount(), node, libc::O_PATH | libc::O_NOFOLLOW)?;
                let status = call::status(fd.as_fd())?;
                Found { fd, node: *node, status }
            }
        };
        // One without a name can still be opened while a process on the host has it open, but has left the tree.
        if found.status.stx_nlink == 0 {
            return Err(Errno(libc::ESTALE));
        }
        if found.is_directory() {
            self.verify(found.fd(), node)?;
        }
        Ok(found)
    }

    /// Opens a directory.
    ///
    /// # Errors
    /// `ENOTDIR` when it is none, `ESTALE` when it is gone, or lies outside the tree.
    pub(super) fn directory(&self, node: &Node) -> Result<Arc<OwnedFd>, Errno> {
        if self.search.is_some() {
            return Ok(Arc::new(self.find_directory(node)?.fd));
        }
        if let Some(held) = self.held(node) {
            return Ok(held);
        }
        let fd = match self.directories.get(node) {
            Some(fd) => fd,
            None => {
                let fd = call::open_node(self.mount(), node, libc::O_PATH | libc::O_DIRECTORY)?;
                self.verify(fd.as_fd(), node)?;
                let fd = Arc::new(fd);
                self.directories.insert(*node, Arc::clone(&fd));
                fd
            }
        };
        HELD.with_borrow_mut(|held| {
            if held.is_holding {
                held.directory = Some((self.number, *node, Arc::clone(&fd)));
                held.changes = None;
            }
        });
        Ok(fd)
    }

    fn held(&self, node: &Node) -> Option<Arc<OwnedFd>> {
        HELD.with_borrow(|held| {
            let is_it = held.is_of(self.number, node);
            held.directory.as_ref().filter(|_| is_it).map(|(.., fd)| Arc::clone(fd))
        })
    }

    /// The attributes of a directory before this thread, which holds it, changes a name in it; `None` where
    /// [`was_only_change`] could not tell.
    pub(super) fn attributes_before(&self, dir: &Node) -> Option<Attributes> {
        let fd = self.directory(dir).ok()?;
        let is_watched = HELD.with_borrow_mut(|held| {
            if !held.is_of(self.number, dir) {
                return false;
            }
            match &held.changes {
                // What happened before does not count.
                Some(watch) => _ = watch.saw_only(&[]),
                None => held.changes = Watching::begin((self.number, *dir), fd.as_fd()),
            }
            held.changes.is_some()
        });
        is_watched.then(|| call::status(fd.as_fd()).ok()).flatten().as_ref().map(status::attributes)
    }

    /// The attributes of a node after a change; `None` when it is gone.
    pub(super) fn attributes_after(&self, node: &Node) -> Option<Attributes> {
        let status = match self.held(node) {
            Some(directory) => call::status(directory.as_fd()).ok().filter(|status| status.stx_nlink > 0),
            None => self.find(node).ok().map(|found| found.status),
        };
        status.as_ref().map(status::attributes)
    }

    /// The same as [`Self::directory`], with its status.
    pub(super) fn find_directory(&self, node: &Node) -> Result<Found, Errno> {
        let found = self.find(node)?;
        if found.is_directory() { Ok(found) } else { Err(Errno(libc::ENOTDIR)) }
    }

    /// The node of a name in a verified directory.
    ///
    /// # Errors
    /// `EXDEV` when it is a mount point, and those of opening it as the user for whom the thread acts.
    pub(super) fn child(&self, dir: BorrowedFd, name: &CStr) -> Result<Found, Errno> {
        let opened = call::open_at(dir, name, libc::O_PATH | libc::O_NOFOLLOW, 0);
        let found = self.opened(opened.map_err(|errno| in_directory(dir, errno))?)?;
        self.note(dir, name, &found);
        Ok(found)
    }

    /// Records what was found in the directory.
    pub(super) fn note(&self, dir: BorrowedFd, name: &CStr, found: &Found) {
        match &self.search {
            Some(search) => search.note(dir, name, &found.node),
            None if found.is_directory() => self.verified.insert(&[found.node]),
            None => {}
        }
    }

    /// The parent of a verified directory.
    pub(super) fn parent(&self, dir: BorrowedFd, node: &Node) -> Result<Found, Errno> {
        if *node == self.root_node {
            return self.find(node);
        }
        let opened = call::open_at(dir, c"..", libc::O_PATH | libc::O_DIRECTORY, 0);
        let found = self.opened(opened.map_err(|errno| in_directory(dir, errno))?)?;
        // The directory may have been moved out of the tree since it was verified.
        match &self.search {
            Some(search) => self.find_by_place(search, &found.node),
            None => self.verify(found.fd(), &found.node).map(|()| found),
        }
    }

    /// The node that was opened or made in a directory of the tree.
    pub(super) fn opened(&self, fd: OwnedFd) -> Result<Found, Errno> {
        let status = call::status(fd.as_fd())?;
        if call::mount_of(&status) != self.mount_id {
            return Err(Errno(libc::EXDEV));
        }
        let node = match &self.search {
            Some(search) => search.name(fd.as_fd(), &status)?,
            None => call::node_of(fd.as_fd())?,
        };
        Ok(Found { fd, node, status })
    }

    fn verify(&self, dir: BorrowedFd, node: &Node) -> Result<(), Errno> {
        // A search finds only what is in the tree.
        if self.search.is_some() || self.is_known(node) {
            return Ok(());
        }
        let stale = Errno(libc::ESTALE);
        let mut unverified = vec![*node];
        let mut above = open_parent(dir)?;
        while unverified.len() < DEPTH_MAX {
            let node = call::node_of(above.as_fd())?;
            let mount = call::mount_of(&call::status(above.as_fd())?);
            // The path up passes the tree's root before it leaves the mount; at the top it repeats.
            if mount != self.mount_id || unverified.last() == Some(&node) {
                return Err(stale);
            }
            if self.is_known(&node) {
                self.verified.insert(&unverified);
                return Ok(());
            }
            unverified.push(node);
            above = open_parent(above.as_fd())?;
        }
        Err(stale)
    }

    fn is_known(&self, node: &Node) -> bool {
        *node == self.root_node || self.verified.contains(node)
    }

    fn mount(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }
}

fn open_parent(dir: BorrowedFd) -> Result<OwnedFd, Errno> {
    call::open_at(dir, c"..", libc::O_PATH | libc::O_DIRECTORY, 0).map_err(|errno| match errno.0 {
        // The mount shows only a part of the file system, and the directory is not in it.
        libc::ENOENT => Errno(libc::ESTALE),
        _ => errno,
    })
}

/// Translates an error of a call on names in `dir`: in a removed directory the host finds nothing.
pub(super) fn in_directory(dir: BorrowedFd, errno: Errno) -> Errno {
    let removed = || call::status(dir).is_ok_and(|status| status.stx_nlink == 0);
    if errno.0 == libc::ENOENT && removed() { Errno(libc::ESTALE) } else { errno }
}
