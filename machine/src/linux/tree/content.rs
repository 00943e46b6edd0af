//! Opening files for their content, and making nodes durable.

use std::fs::File as StdFile;
use std::os::fd::{AsFd, OwnedFd};

use super::HostTree;
use super::call;
use crate::Errno;
use crate::tree::{Node, OpenNode, TreeReply};

impl HostTree {
    /// Opens a node itself whose kind is known: a pipe or device does things when it is opened.
    pub(super) fn reopen(&self, node: &Node, flags: libc::c_int) -> Result<OwnedFd, Errno> {
        call::open_node(self.root.as_fd(), node, flags)
    }

    pub(super) fn open_file(&self, node: &Node) -> Result<TreeReply, Errno> {
        match self.find(node)?.kind() {
            libc::S_IFREG => {}
            libc::S_IFDIR => return Err(Errno(libc::EISDIR)),
            _ => return Err(Errno::INVALID),
        }
        let (file, writable) = self.open_to_write(node)?;
        let direct = self.disk.open_direct(StdFile::from(file), writable)?;
        let mut buffered = None;
        if direct.facts.direct {
            let flags = if writable { libc::O_RDWR } else { libc::O_RDONLY };
            buffered = Some(self.disk.open_buffered(StdFile::from(self.reopen(node, flags)?), writable)?);
        }
        Ok(TreeReply::Opened(OpenNode { direct, buffered }))
    }

    fn open_to_write(&self, node: &Node) -> Result<(OwnedFd, bool), Errno> {
        if !self.read_only {
            match self.reopen(node, libc::O_RDWR) {
                Ok(file) => return Ok((file, true)),
                // Its medium, its attributes (immutable), or whoever executes it lets nobody write; to read it may be fine.
                Err(Errno(libc::EROFS | libc::EPERM | libc::EACCES | libc::ETXTBSY)) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok((self.reopen(node, libc::O_RDONLY)?, false))
    }

    pub(super) fn sync(&self, nodes: &[Node]) -> Result<TreeReply, Errno> {
        if self.commits_as_a_whole {
            call::sync(self.root.as_fd())?;
            return Ok(TreeReply::Done);
        }
        let mut everything = false;
        for node in nodes {
            match self.find(node).map(|found| found.kind()) {
                Ok(libc::S_IFREG | libc::S_IFDIR) => match self.sync_node(node) {
                    // Nothing of it is left that could be lost. That its name is gone is in its directory.
                    Ok(()) | Err(Errno(libc::ESTALE)) => {}
                    // A file system that can't for single directories.
                    Err(Errno::INVALID) => everything = true,
                    Err(errno) => return Err(errno),
                },
                // What can't be opened without consequences has no descriptor to say it on.
                Ok(_) => everything = true,
                Err(Errno(libc::ESTALE)) => {}
                Err(errno) => return Err(errno),
            }
        }
        if everything {
            call::sync_file_system(self.root.as_fd())?;
        }
        Ok(TreeReply::Done)
    }

    fn sync_node(&self, node: &Node) -> Result<(), Errno> {
        call::sync(self.reopen(node, libc::O_RDONLY)?.as_fd())
    }
}
