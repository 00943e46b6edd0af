//! From the name of a node to the node, and back.
//!
//! Nodes are found by file handles (open_by_handle_at(2)), or, where the host does not let us or has none, as
//! [`super::search`] does it. By handle they are found on the file system of the tree, which may hold more than the tree. Of a
//! directory it is found out, by going up, whether it lies in the tree. Of anything else that can't be found out
//! at any bearable cost (it may have any number of names, anywhere): a name of a file elsewhere on the same file
//! system is not refused. Knfsd does the same unless told to (`no_subtree_check`). Who gives names to strangers must make
//! them impossible to forge.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};

use super::HostTree;
use super::attributes;
use super::call;
use crate::Errno;
use crate::tree::{Attributes, Node};

/// Directories known to lie in the tree, at most. A directory that somebody on the host moves out of the tree is served
/// until it is forgotten.
const VERIFIED_MAX: usize = 16 << 10;

/// Levels that a directory may lie below one that is known.
const DEPTH_MAX: usize = 4096;

/// A node that was found, open as a place only (`O_PATH`), or, when it was just made, otherwise.
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
        attributes::of(&self.status)
    }

    /// The file type bits of its mode.
    pub(super) fn kind(&self) -> u32 {
        u32::from(self.status.stx_mode) & libc::S_IFMT
    }

    pub(super) fn is_directory(&self) -> bool {
        self.kind() == libc::S_IFDIR
    }

    /// Asks again, after something changed.
    pub(super) fn refresh(&mut self) -> Result<(), Errno> {
        self.status = call::status(self.fd.as_fd())?;
        Ok(())
    }
}

/// The directory that a thread keeps open while it makes several changes in it: opened once, and looked up once. Not for
/// longer, for nobody could unmount its file system.
#[derive(Default)]
struct Held {
    is_holding: bool,
    directory: Option<(u32, Node, Rc<OwnedFd>)>,
}

thread_local! {
    static HELD: RefCell<Held> = RefCell::default();
}

/// This thread keeps the directory open that it uses, until this is dropped.
#[must_use = "the directory is kept open only as long as this lives"]
pub(in crate::linux) struct Holding(());

/// Has this thread keep the directory open that it uses.
pub(in crate::linux) fn hold_directory() -> Holding {
    HELD.with_borrow_mut(|held| held.is_holding = true);
    Holding(())
}

impl Drop for Holding {
    fn drop(&mut self) {
        HELD.take();
    }
}

/// Directories that are known to lie in the tree.
#[derive(Default)]
pub(super) struct Verified(Mutex<HashSet<Node>>);

impl Verified {
    fn contains(&self, node: &Node) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(node)
    }

    fn insert(&self, nodes: &[Node]) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() + nodes.len() > VERIFIED_MAX {
            // They are found again one by one. To remember who was asked for last would cost more than it saves.
            known.clear();
        }
        known.extend(nodes.iter().take(VERIFIED_MAX));
    }

    pub(super) fn remove(&self, node: &Node) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(node);
    }
}

impl HostTree {
    /// The node of this name.
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
        // One without a name is still found as long as anybody on the host has it open. It is not in the tree any more.
        if found.status.stx_nlink == 0 {
            return Err(Errno(libc::ESTALE));
        }
        if found.is_directory() {
            self.verify(found.fd(), node)?;
        }
        Ok(found)
    }

    /// The directory of this name.
    ///
    /// # Errors
    /// `ENOTDIR` when it is none, `ESTALE` when it is gone, or lies outside the tree.
    pub(super) fn directory(&self, node: &Node) -> Result<Rc<OwnedFd>, Errno> {
        if self.search.is_some() {
            return Ok(Rc::new(self.find_directory(node)?.fd));
        }
        if let Some(held) = self.held(node) {
            return Ok(held);
        }
        let fd = call::open_node(self.mount(), node, libc::O_PATH | libc::O_DIRECTORY)?;
        self.verify(fd.as_fd(), node)?;
        let fd = Rc::new(fd);
        HELD.with_borrow_mut(|held| {
            if held.is_holding {
                held.directory = Some((self.number, *node, Rc::clone(&fd)));
            }
        });
        Ok(fd)
    }

    fn held(&self, node: &Node) -> Option<Rc<OwnedFd>> {
        HELD.with_borrow(|held| match &held.directory {
            Some((tree, of, fd)) if *tree == self.number && of == node => Some(Rc::clone(fd)),
            _ => None,
        })
    }

    /// The attributes of a node after a change; `None` when it is gone.
    pub(super) fn attributes_after(&self, node: &Node) -> Option<Attributes> {
        let status = match self.held(node) {
            Some(directory) => call::status(directory.as_fd()).ok().filter(|status| status.stx_nlink > 0),
            None => self.find(node).ok().map(|found| found.status),
        };
        status.as_ref().map(attributes::of)
    }

    /// The same, with what is known of it.
    pub(super) fn find_directory(&self, node: &Node) -> Result<Found, Errno> {
        let found = self.find(node)?;
        if found.is_directory() { Ok(found) } else { Err(Errno(libc::ENOTDIR)) }
    }

    /// What has the name in the directory, which must be verified.
    ///
    /// # Errors
    /// `EXDEV` when something is mounted there, and those of looking for it as whoever the thread acts for.
    pub(super) fn child(&self, dir: BorrowedFd, name: &CStr) -> Result<Found, Errno> {
        let opened = call::open_at(dir, name, libc::O_PATH | libc::O_NOFOLLOW, 0);
        let found = self.opened(opened.map_err(|errno| in_directory(dir, errno))?)?;
        self.note(dir, name, &found);
        Ok(found)
    }

    /// Keeps in mind what was found in the directory.
    pub(super) fn note(&self, dir: BorrowedFd, name: &CStr, found: &Found) {
        match &self.search {
            Some(search) => search.note(dir, name, &found.node),
            None if found.is_directory() => self.verified.insert(&[found.node]),
            None => {}
        }
    }

    /// The directory above one that is verified.
    pub(super) fn parent(&self, dir: BorrowedFd, node: &Node) -> Result<Found, Errno> {
        if *node == self.root_node {
            return self.find(node);
        }
        let opened = call::open_at(dir, c"..", libc::O_PATH | libc::O_DIRECTORY, 0);
        let found = self.opened(opened.map_err(|errno| in_directory(dir, errno))?)?;
        // Somebody may have moved the directory out of the tree since it was verified: no way leads further.
        match &self.search {
            Some(search) => self.find_by_place(search, &found.node),
            None => self.verify(found.fd(), &found.node).map(|()| found),
        }
    }

    /// What was opened or made in a directory of the tree.
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
        // A search finds what is in the tree only.
        if self.search.is_some() || self.is_known(node) {
            return Ok(());
        }
        let stale = Errno(libc::ESTALE);
        let mut way = vec![*node];
        let mut above = go_up(dir)?;
        while way.len() < DEPTH_MAX {
            let node = call::node_of(above.as_fd())?;
            let mount = call::mount_of(&call::status(above.as_fd())?);
            // Through the tree's root the way leads before it leaves the mount; at the top it leads nowhere.
            if mount != self.mount_id || way.last() == Some(&node) {
                return Err(stale);
            }
            if self.is_known(&node) {
                self.verified.insert(&way);
                return Ok(());
            }
            way.push(node);
            above = go_up(above.as_fd())?;
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

fn go_up(dir: BorrowedFd) -> Result<OwnedFd, Errno> {
    call::open_at(dir, c"..", libc::O_PATH | libc::O_DIRECTORY, 0).map_err(|errno| match errno.0 {
        // The mount shows only a part of the file system, and the directory is not in it.
        libc::ENOENT => Errno(libc::ESTALE),
        _ => errno,
    })
}

/// What an error of a call on names in `dir` means: in one that was removed the host finds nothing.
pub(super) fn in_directory(dir: BorrowedFd, errno: Errno) -> Errno {
    let removed = || call::status(dir).is_ok_and(|status| status.stx_nlink == 0);
    if errno.0 == libc::ENOENT && removed() { Errno(libc::ESTALE) } else { errno }
}
