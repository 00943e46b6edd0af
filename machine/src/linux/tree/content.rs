//! Opening files for their content, and making nodes durable.

use std::collections::HashMap;
use std::fs::File as StdFile;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::HostTree;
use super::call;
use super::node::Found;
use super::{status, watch};
use crate::linux::file::{set_status, settle_opening};
use crate::tree::{Node, OpenNode, TreeReply, Watch};
use crate::{Errno, FileFacts, OpenFile};

/// Maximum of new files held open.
pub(super) const MADE_MAX: usize = 128;

/// Files that are in use for reading: they are at hand, and what is known of them holds for writing, too.
#[derive(Default)]
pub(super) struct Readers(Mutex<InUse>);

#[derive(Default)]
struct InUse {
    files: HashMap<Node, Reader>,
    /// At so many those that are closed are removed.
    sweep_at: usize,
}

#[derive(Clone)]
struct Reader {
    file: Weak<StdFile>,
    facts: FileFacts,
    bytes_max: u64,
}

impl Readers {
    fn insert(&self, node: Node, reader: Reader) {
        let mut in_use = self.0.lock();
        if in_use.files.len() >= in_use.sweep_at {
            in_use.files.retain(|_, reader| reader.file.strong_count() > 0);
            in_use.sweep_at = (2 * in_use.files.len()).max(MADE_MAX);
        }
        in_use.files.insert(node, reader);
    }

    fn get(&self, node: &Node) -> Option<(Arc<StdFile>, FileFacts, u64)> {
        let in_use = self.0.lock();
        let reader = in_use.files.get(node)?;
        Some((reader.file.upgrade()?, reader.facts, reader.bytes_max))
    }
}

/// What to do about another's lease on a file that is opened.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lease {
    Await,
    Refuse,
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
        if writable && let Some(opened) = self.open_again_for_writing(node, Lease::Await)? {
            return Ok(TreeReply::Opened(opened));
        }
        let found = self.find(node)?;
        match found.kind() {
            libc::S_IFREG => {}
            libc::S_IFDIR => return Err(Errno(libc::EISDIR)),
            _ => return Err(Errno::INVALID),
        }
        let open = || {
            let flags = if writable { libc::O_RDWR } else { libc::O_RDONLY };
            self.reopen(&found, flags).map(|fd| Arc::new(StdFile::from(fd)))
        };
        let file = open()?;
        if writable {
            settle_opening(&file, self.file_system)?;
        }
        let bytes_max = self.end_max(file.as_fd()).min(call::file_size_limit());
        let direct = self.disk.open_direct(Arc::clone(&file), writable)?;
        if !writable && self.search.is_none() {
            self.readers.insert(*node, Reader { file: Arc::downgrade(&file), facts: direct.facts, bytes_max });
        }
        let mut buffered = None;
        if writable && direct.facts.direct {
            buffered = Some(self.disk.open_buffered(open()?, writable)?);
        }
        // Opened for writing, it is open for reading as well, and watched there.
        let watch = if writable { None } else { self.watch(&direct) };
        Ok(TreeReply::Opened(OpenNode { direct, buffered, watch, attributes: found.attributes(), bytes_max }))
    }

    /// `None` where the host may not report all changes by others.
    fn watch(&self, file: &OpenFile) -> Option<Watch> {
        if self.file_system.reports_all_changes() { watch::watch(file) } else { None }
    }

    /// A file that was made just now, open for reading. It waits for nothing. `None`: it is not open any more, or the host
    /// has changed it.
    pub(super) fn open_made(&self, node: &Node) -> Option<OpenNode> {
        let file = self.made.get(node)?;
        let found = call::status(file.as_fd()).ok().filter(|found| found.stx_nlink > 0 && found.stx_size == 0)?;
        let bytes_max = self.end_max(file.as_fd()).min(call::file_size_limit());
        let direct = self.disk.open_direct(Arc::clone(&file), false).ok()?;
        self.readers.insert(*node, Reader { file: Arc::downgrade(&file), facts: direct.facts, bytes_max });
        self.made.forget(node);
        let watch = self.watch(&direct);
        Some(OpenNode { direct, buffered: None, watch, attributes: status::attributes(&found), bytes_max })
    }

    /// A regular file that is in use or was made just now.
    pub(super) fn at_hand(&self, node: &Node) -> Option<Arc<StdFile>> {
        self.readers.get(node).map(|(file, ..)| file).or_else(|| self.made.get(node))
    }

    /// A file that is in use for reading, now for writing. `None`: it is not.
    ///
    /// # Errors
    /// `EWOULDBLOCK`: another has a lease, which is not to be waited for.
    pub(super) fn open_again_for_writing(&self, node: &Node, lease: Lease) -> Result<Option<OpenNode>, Errno> {
        let Some((file, facts, bytes_max)) = self.readers.get(node) else { return Ok(None) };
        let found = call::status(file.as_fd())?;
        if found.stx_nlink == 0 {
            return Err(Errno::STALE);
        }
        let open = |flags| {
            let waits = if lease == Lease::Await { 0 } else { libc::O_NONBLOCK };
            let file = call::open_node(self.root.as_fd(), node, libc::O_RDWR | flags | waits).map(StdFile::from)?;
            if waits != 0 {
                // Else its writes would not wait, either.
                set_status(&file, flags)?;
            }
            Ok(file)
        };
        let opened = |file, direct| {
            let facts = FileFacts {
                size: found.stx_size,
                writable: true,
                direct,
                align: if direct { facts.align } else { 1 },
                ..facts
            };
            self.disk.opened(Arc::new(file), facts)
        };
        let buffered = open(0)?;
        settle_opening(&buffered, self.file_system)?;
        let buffered = opened(buffered, false);
        let (direct, buffered) = match facts.direct {
            true => match open(libc::O_DIRECT) {
                // It has lost direct I/O since: it is opened anew.
                Err(Errno::INVALID) => return Ok(None),
                file => (opened(file?, true), Some(buffered)),
            },
            false => (buffered, None),
        };
        let attributes = status::attributes(&found);
        Ok(Some(OpenNode { direct, buffered, watch: None, attributes, bytes_max }))
    }

    /// The size that a file of this kind may have: most files of a tree have the same limit.
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
        // Not through a descriptor in use: the host tells each of them of an error once.
        if let Some(file) = self.made.get(node) {
            if !self.answers_at_once {
                self.made.forget(node);
            }
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
