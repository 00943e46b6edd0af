//! Opening files for their content, and making nodes durable.

use std::collections::HashMap;
use std::fs::File as StdFile;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use super::HostTree;
use super::call;
use super::node::Found;
use super::watch;
use crate::Errno;
use crate::tree::{Node, OpenNode, TreeReply};

/// Maximum of files held open until they are synced.
const UNSYNCED_MAX: usize = 128;

/// New files, still open: they are likely to be synced soon, and finding and opening one anew takes longer than
/// creating it.
#[derive(Default)]
pub(super) struct Unsynced(Mutex<HashMap<Node, OwnedFd>>);

impl Unsynced {
    pub(super) fn insert(&self, node: Node, file: OwnedFd) {
        let mut files = self.0.lock();
        if files.len() < UNSYNCED_MAX {
            files.insert(node, file);
        }
    }

    pub(super) fn take(&self, node: &Node) -> Option<OwnedFd> {
        self.0.lock().remove(node)
    }
}

impl HostTree {
    /// Opens a node again, whose kind is known: opening a pipe or device has side effects.
    pub(super) fn reopen(&self, found: &Found, flags: libc::c_int) -> Result<OwnedFd, Errno> {
        match &self.search {
            Some(_) => self.as_owner(found, || call::open_again(found.fd(), flags)),
            None => call::open_node(self.root.as_fd(), &found.node, flags),
        }
    }

    pub(super) fn open_file(&self, node: &Node, writable: bool) -> Result<TreeReply, Errno> {
        if writable && self.read_only {
            return Err(Errno::READ_ONLY);
        }
        let found = self.find(node)?;
        match found.kind() {
            libc::S_IFREG => {}
            libc::S_IFDIR => return Err(Errno(libc::EISDIR)),
            _ => return Err(Errno::INVALID),
        }
        let open = || {
            let flags = if writable { libc::O_RDWR } else { libc::O_RDONLY };
            self.reopen(&found, flags).map(StdFile::from)
        };
        let file = open()?;
        let bytes_max = self.end_max(file.as_fd());
        let direct = self.disk.open_direct(file, writable)?;
        let mut buffered = None;
        if writable && direct.facts.direct {
            buffered = Some(self.disk.open_buffered(open()?, writable)?);
        }
        // Opened for writing, it is open for reading as well, and watched there.
        let watch = if writable { None } else { watch::watch(&direct) };
        Ok(TreeReply::Opened(OpenNode { direct, buffered, watch, attributes: found.attributes(), bytes_max }))
    }

    /// The size of the largest file of this kind: most files of a tree have the same.
    pub(super) fn end_max(&self, file: BorrowedFd) -> u64 {
        let likely = self.last_end_max.load(Ordering::Relaxed);
        let found = call::end_max(file, likely);
        if found != likely {
            self.last_end_max.store(found, Ordering::Relaxed);
        }
        found
    }

    pub(super) fn sync(&self, nodes: &[Node]) -> Result<TreeReply, Errno> {
        if self.commits_as_a_whole {
            call::sync(self.root.as_fd())?;
            return Ok(TreeReply::Done);
        }
        let mut everything = false;
        for node in nodes {
            everything |= !self.sync_node(node)?;
        }
        if everything {
            call::sync_file_system(self.root.as_fd())?;
        }
        Ok(TreeReply::Done)
    }

    /// Makes a node durable. False if this one alone cannot be.
    fn sync_node(&self, node: &Node) -> Result<bool, Errno> {
        if let Some(file) = self.unsynced.take(node) {
            return call::sync(file.as_fd()).map(|()| true);
        }
        // A removed node has nothing to lose; the removal of its name belongs to its directory. But one that is not at
        // its recorded place may be elsewhere.
        let is_gone = || self.search.as_ref().is_none_or(|search| search.is_gone(node));
        let found = match self.find(node) {
            Err(Errno(libc::ESTALE)) if is_gone() => return Ok(true),
            Err(Errno(libc::ESTALE | libc::EBUSY)) => return Ok(false),
            found => found?,
        };
        // Opening others has side effects, so there is no descriptor to sync.
        if !matches!(found.kind(), libc::S_IFREG | libc::S_IFDIR) {
            return Ok(false);
        }
        match self.reopen(&found, libc::O_RDONLY).and_then(|fd| call::sync(fd.as_fd())) {
            Ok(()) => Ok(true),
            Err(Errno(libc::ESTALE)) => Ok(true),
            // The file system cannot sync single directories, or the server's user may not read it.
            Err(Errno::INVALID | Errno(libc::EACCES | libc::EPERM)) => Ok(false),
            Err(errno) => Err(errno),
        }
    }
}
