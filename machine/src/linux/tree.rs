//! Directory trees of the host, as [`crate::tree`] describes them.
//!
//! A tree lies on one mounted file system. Its nodes have the file system's own names for them (file handles), which takes
//! the capability `CAP_DAC_READ_SEARCH`, and Linux 5.8. What callers may do is decided by the host: the thread that makes
//! a call acts as the caller. A server that is not root acts as its own user for everybody.

mod attributes;
mod call;
mod content;
mod creation;
mod identity;
mod journal;
mod listing;
mod names;
mod node;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use super::file::TreeDisk;
use super::syscall;
use crate::Errno;
use crate::tree::{Caller, Node, OpenTree, Tree, TreeCall, TreeOp, TreeReply};
use call::MountId;
use identity::Identity;
use listing::Listings;
use names::NameLocks;
use node::Verified;

/// Why a tree can't be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenTreeError {
    /// There is none.
    #[error("{0} does not exist")]
    Missing(PathBuf),
    /// It is something else.
    #[error("{0} is not a directory")]
    NotDirectory(PathBuf),
    /// We may not.
    #[error("no permission to open {0}")]
    Permission(PathBuf),
    /// Its file system has no names for nodes that last.
    #[error("{0} can't be exported: its file system has no file handles (or too long ones)")]
    NoHandles(PathBuf),
    /// We may not find nodes by such names.
    #[error(
        "{0} can't be exported without the capability CAP_DAC_READ_SEARCH: run the server as root, or give it that capability"
    )]
    HandlesForbidden(PathBuf),
    /// We are root, but may not act as anybody else, so all would be done as root.
    #[error(
        "{0} can't be exported: the server is root, but may not act for its clients' users; give it the capabilities CAP_SETUID and CAP_SETGID"
    )]
    NoOtherUsers(PathBuf),
    /// Anything else.
    #[error("can't {what} {path}: {errno}", path = path.display())]
    Host {
        /// What was tried.
        what: &'static str,
        /// On which directory.
        path: PathBuf,
        /// The host's answer.
        errno: Errno,
    },
}

/// One tree.
struct HostTree {
    number: u32,
    root: OwnedFd,
    root_node: Node,
    root_number: u64,
    mount_id: MountId,
    read_only: bool,
    identity: Identity,
    disk: TreeDisk,
    /// As [`journal::is_committed_as_a_whole`].
    commits_as_a_whole: bool,
    verified: Verified,
    listings: Listings,
    name_locks: NameLocks,
    /// Held while attributes are compared and set.
    guarded: Mutex<()>,
}

/// The trees that are open, by number. A process has few.
static TREES: RwLock<BTreeMap<u32, Weak<HostTree>>> = RwLock::new(BTreeMap::new());
/// The number of the next; none is used twice.
static NEXT: AtomicU32 = AtomicU32::new(0);

impl Drop for HostTree {
    fn drop(&mut self) {
        TREES.write().unwrap_or_else(PoisonError::into_inner).remove(&self.number);
    }
}

/// Opens the tree whose root is the directory `path`. With `read_only` nothing in it can be changed.
pub fn open(path: &Path, read_only: bool) -> Result<OpenTree, OpenTreeError> {
    let host = |what, errno| OpenTreeError::Host { what, path: path.to_owned(), errno };
    let flags = libc::O_DIRECTORY | libc::O_NONBLOCK;
    let root = fs::OpenOptions::new().read(true).custom_flags(flags).open(path);
    let root = root.map_err(|error| not_opened(path, &error))?;
    let examined = |error: io::Error| host("examine", syscall::errno(&error));
    let root_number = root.metadata().map_err(examined)?.ino();
    let disk = TreeDisk::under(&root).map_err(examined)?;
    let (root_node, mount_id) = call::node_of(root.as_fd()).map_err(|errno| match errno.0 {
        libc::EOPNOTSUPP | libc::EOVERFLOW => OpenTreeError::NoHandles(path.to_owned()),
        _ => host("name the nodes of", errno),
    })?;
    let by_node = call::open_node(root.as_fd(), &root_node, libc::O_PATH).map_err(|errno| match errno.0 {
        libc::EPERM => OpenTreeError::HandlesForbidden(path.to_owned()),
        libc::EOPNOTSUPP | libc::ESTALE => OpenTreeError::NoHandles(path.to_owned()),
        _ => host("find the nodes of", errno),
    })?;
    // Both are not there on an old kernel or without `/proc`; better to hear that now.
    call::may(by_node.as_fd(), libc::R_OK as u32).map_err(|errno| host("ask for permissions in", errno))?;
    call::reach_by_descriptor(by_node.as_fd()).map_err(|errno| host("use /proc to reach", errno))?;
    let identity = Identity::of_process().map_err(|errno| match errno.0 {
        libc::EPERM => OpenTreeError::NoOtherUsers(path.to_owned()),
        _ => host("act for other users in", errno),
    })?;
    let commits_as_a_whole = journal::is_committed_as_a_whole(&root);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let tree = Arc::new(HostTree {
        number,
        root: OwnedFd::from(root),
        root_node,
        root_number,
        mount_id,
        read_only,
        identity,
        disk,
        commits_as_a_whole,
        verified: Verified::default(),
        listings: Listings::default(),
        name_locks: NameLocks::new(),
        guarded: Mutex::default(),
    });
    TREES.write().unwrap_or_else(PoisonError::into_inner).insert(number, Arc::downgrade(&tree));
    Ok(OpenTree {
        tree: Tree(number),
        disk: tree.disk.number(),
        rotational: tree.disk.rotational(),
        transfer_bytes_max: tree.disk.transfer_bytes_max(),
        owner: tree,
    })
}

fn not_opened(path: &Path, error: &io::Error) -> OpenTreeError {
    let errno = syscall::errno(error);
    let path = path.to_owned();
    match errno.0 {
        libc::ENOENT => OpenTreeError::Missing(path),
        libc::ENOTDIR => OpenTreeError::NotDirectory(path),
        libc::EACCES | libc::EPERM => OpenTreeError::Permission(path),
        _ => OpenTreeError::Host { what: "open", path, errno },
    }
}

/// Does what is asked, and waits for it.
pub(super) fn perform(op: &TreeOp) -> Result<u64, Errno> {
    let tree = TREES.read().unwrap_or_else(PoisonError::into_inner).get(&op.tree.0).and_then(Weak::upgrade);
    let reply = tree.ok_or(Errno(libc::EBADF))?.answer(op.caller.as_ref(), &op.call)?;
    *op.reply.lock().unwrap_or_else(PoisonError::into_inner) = Some(reply);
    Ok(0)
}

impl HostTree {
    fn answer(&self, caller: Option<&Caller>, call: &TreeCall) -> Result<TreeReply, Errno> {
        if self.read_only && changes(call) {
            return Err(Errno::READ_ONLY);
        }
        match call {
            TreeCall::Root => {
                let root = self.find(&self.root_node)?;
                Ok(TreeReply::Node(root.node, root.attributes()))
            }
            TreeCall::Attributes { node } => self.attributes(node),
            TreeCall::Lookup { dir, name } => self.lookup(caller, dir, name),
            TreeCall::Access { node, wanted } => self.access(caller, node, *wanted),
            TreeCall::ReadLink { node } => self.read_link(node),
            TreeCall::Create { dir, name, how, attributes } => self.create(caller, dir, name, *how, attributes),
            TreeCall::MakeDirectory { dir, name, attributes } => self.make_directory(caller, dir, name, attributes),
            TreeCall::MakeSymbolicLink { dir, name, target, attributes } => {
                self.make_symbolic_link(caller, dir, name, target, attributes)
            }
            TreeCall::MakeSpecial { dir, name, kind, attributes } => {
                self.make_special(caller, dir, name, *kind, attributes)
            }
            TreeCall::Remove { dir, name } => self.remove(caller, dir, name),
            TreeCall::RemoveDirectory { dir, name } => self.remove_directory(caller, dir, name),
            TreeCall::Rename { from_dir, from_name, to_dir, to_name } => {
                self.rename(caller, (from_dir, from_name), (to_dir, to_name))
            }
            TreeCall::Link { node, dir, name } => self.link(caller, node, dir, name),
            TreeCall::SetAttributes { node, attributes, guard } => {
                self.set_attributes(caller, node, attributes, *guard)
            }
            TreeCall::ReadDirectory { dir, cookie, entries_max, with_nodes } => {
                self.read_directory(caller, dir, *cookie, *entries_max, *with_nodes)
            }
            TreeCall::Space => self.space(),
            TreeCall::Limits { node } => self.limits(node),
            TreeCall::Sync { nodes } => self.sync(nodes),
            TreeCall::Open { node } => self.open_file(node),
        }
    }
}

fn changes(call: &TreeCall) -> bool {
    match call {
        TreeCall::Create { .. }
        | TreeCall::MakeDirectory { .. }
        | TreeCall::MakeSymbolicLink { .. }
        | TreeCall::MakeSpecial { .. }
        | TreeCall::Remove { .. }
        | TreeCall::RemoveDirectory { .. }
        | TreeCall::Rename { .. }
        | TreeCall::Link { .. }
        | TreeCall::SetAttributes { .. } => true,
        TreeCall::Root
        | TreeCall::Attributes { .. }
        | TreeCall::Lookup { .. }
        | TreeCall::Access { .. }
        | TreeCall::ReadLink { .. }
        | TreeCall::ReadDirectory { .. }
        | TreeCall::Space
        | TreeCall::Limits { .. }
        | TreeCall::Sync { .. }
        | TreeCall::Open { .. } => false,
    }
}
