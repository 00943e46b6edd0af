//! Directory trees of the host, as [`crate::tree`] describes them.
//!
//! A tree lies on one mounted file system. Its nodes are identified by the file system's file handles. Opening by
//! handle takes the capability `CAP_DAC_READ_SEARCH`; without it, and on file systems without persistent handles, nodes
//! are found at the places where they were seen, and by searching. Linux 5.8 is needed. The host decides what callers may
//! do: the thread that makes a call acts as the caller. A server that is not root acts as its own user for all callers,
//! and checks itself what callers may do, as far as modes tell.
//!
//! A server that changes the way it finds nodes identifies them differently: its clients must mount again.

mod at_once;
mod attributes;
mod call;
mod changes;
mod content;
mod creation;
mod identity;
mod journal;
mod listing;
pub(super) mod lock;
mod names;
mod node;
mod permission;
mod places;
mod recent;
mod search;
mod status;
mod watch;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::{Mutex, RwLock};

use super::file::TreeDisk;
use super::file_system::FileSystem;
use super::syscall;
use crate::tree::{Around, Caller, InodeNo, Node, OpenTree, Tree, TreeCall, TreeOp, TreeReply};
use crate::{Errno, Op};
use at_once::{DIRECTORIES_MAX, SlowOpens};
use call::MountId;
use content::{MADE_MAX, Readers};
use identity::Identity;
pub use journal::is_committed_as_a_whole;
use listing::Listings;
use lock::Locked;
use names::NameLocks;
pub(super) use node::hold_directory;
use node::{Verified, was_only_change};
use recent::Recent;
use search::{Distinction, Search};

/// Why a tree can't be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenTreeError {
    #[error("{0} does not exist")]
    Missing(PathBuf),
    #[error("{0} is not a directory")]
    NotDirectory(PathBuf),
    #[error("no permission to open {0}")]
    Permission(PathBuf),
    /// Its file system has nothing that distinguishes a node from a later one with the same number.
    #[error(
        "{0} can't be exported: its file system has neither file handles that are known to be persistent nor times of birth"
    )]
    NoHandles(PathBuf),
    /// The server is root, but may not act for others, so everything would be done as root.
    #[error(
        "{0} can't be exported: the server is root, but the host does not let it act for its clients' users; that takes the capabilities CAP_SETUID and CAP_SETGID, and a user namespace that has those users"
    )]
    NoOtherUsers(PathBuf),
    /// Another server uses it, or a directory above or in it.
    #[error("{0} is locked: another server exports it, or a directory in it, or above it")]
    Locked(PathBuf),
    #[error("can't {what} {path}: {errno}", path = path.display())]
    Host { what: &'static str, path: PathBuf, errno: Errno },
}

/// Which file handles nodes are found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handles {
    /// Those of file systems that are known to have persistent ones.
    Known,
    /// Those of any file system: somebody knows that they are persistent.
    Trusted,
}

struct HostTree {
    number: u32,
    root: OwnedFd,
    root_node: Node,
    root_number: InodeNo,
    mount_id: MountId,
    /// Finds nodes by place; `None` when they are found by handle.
    search: Option<Search>,
    read_only: bool,
    identity: Identity,
    disk: TreeDisk,
    file_system: FileSystem,
    commits_as_a_whole: bool,
    verified: Verified,
    /// New files are likely to be synced and written soon, and finding and opening one anew takes longer than creating it: so
    /// they stay open for reading, until they lose a name or are in use.
    made: Recent<fs::File>,
    readers: Readers,
    /// Directories that were used lately, opened with `O_PATH`: not even their file system is held by them longer than by
    /// the tree itself.
    directories: Recent<OwnedFd>,
    /// Some calls wait for nothing.
    answers_at_once: bool,
    slow_opens: SlowOpens,
    listings: Listings,
    name_locks: NameLocks,
    /// Held while attributes are compared and set.
    guarded: Mutex<()>,
    /// Size of the largest file; `None` when it cannot be determined.
    file_bytes_max: OnceLock<Option<u64>>,
    /// Size of the largest file, of the file that was opened last.
    last_end_max: AtomicU64,
    /// Held while permissions are set.
    modes: Mutex<()>,
    /// Excludes other servers.
    _locked: Option<Locked>,
}

/// The open trees, by number. A process has few.
static TREES: RwLock<BTreeMap<u32, Weak<HostTree>>> = RwLock::new(BTreeMap::new());
/// The next tree's number; none is reused.
static NEXT: AtomicU32 = AtomicU32::new(0);

impl Drop for HostTree {
    fn drop(&mut self) {
        TREES.write().remove(&self.number);
    }
}

/// Opens the tree whose root is the directory `path`. With `read_only` nothing in it can be changed.
///
/// Where nodes cannot be found by handle, their places are recorded in a file in the directory `state_dir`; without it,
/// or when the file cannot be used, the tree is searched again after each restart. It must lie outside the tree.
///
/// # Errors
/// When it cannot be exported.
pub fn open(
    path: &Path,
    read_only: bool,
    state_dir: Option<&Path>,
    handles: Handles,
) -> Result<OpenTree, OpenTreeError> {
    open_as(path, read_only, state_dir, handles, None)
}

/// The same, and excludes other processes until the last clone of the result is dropped; `read_only`: only writers.
///
/// # Errors
/// [`OpenTreeError::Locked`], and those of [`open`].
pub fn open_locked(
    path: &Path,
    read_only: bool,
    state_dir: Option<&Path>,
    handles: Handles,
) -> Result<OpenTree, OpenTreeError> {
    open_as(path, read_only, state_dir, handles, Some(Locked::new(path, read_only)?))
}

fn open_as(
    path: &Path,
    read_only: bool,
    state_dir: Option<&Path>,
    handles: Handles,
    locked: Option<Locked>,
) -> Result<OpenTree, OpenTreeError> {
    let host = |what, errno| OpenTreeError::Host { what, path: path.to_owned(), errno };
    let flags = libc::O_DIRECTORY | libc::O_NONBLOCK;
    let root = fs::OpenOptions::new().read(true).custom_flags(flags).open(path);
    let root = root.map_err(|error| not_opened(path, &error))?;
    let examined = |error: io::Error| host("examine", syscall::errno(&error));
    let root_number = InodeNo(root.metadata().map_err(examined)?.ino());
    let disk = TreeDisk::under(&root).map_err(examined)?;
    let file_system = FileSystem::of(&root);
    let status = call::status(root.as_fd()).map_err(|errno| host("examine", errno))?;
    let are_persistent = handles == Handles::Trusted || file_system.has_persistent_handles();
    let search = match by_handle(root.as_fd(), are_persistent) {
        Ok(()) => None,
        Err(Errno(libc::EPERM | libc::EOPNOTSUPP | libc::EOVERFLOW | libc::ENOSYS | libc::ESTALE)) => {
            let distinction = Distinction::on(root.as_fd(), file_system, are_persistent);
            let search = distinction.and_then(|how| Search::new(root.as_fd(), path, state_dir, how));
            let search = search.map_err(|errno| match errno.0 {
                libc::EOPNOTSUPP => OpenTreeError::NoHandles(path.to_owned()),
                _ => host("name the nodes of", errno),
            })?;
            Some(search)
        }
        Err(errno) => return Err(host("find the nodes of", errno)),
    };
    let root_node = match &search {
        Some(search) => search.root_node(),
        None => call::node_of(root.as_fd()),
    };
    let root_node = root_node.map_err(|errno| host("name the nodes of", errno))?;
    // An old kernel, or one without `/proc`, has neither: fail now.
    call::may(root.as_fd(), libc::R_OK as u32).map_err(|errno| host("ask for permissions in", errno))?;
    call::reach_by_descriptor(root.as_fd()).map_err(|errno| host("use /proc to reach", errno))?;
    let identity = Identity::of_process().map_err(|errno| match errno.0 {
        libc::EPERM => OpenTreeError::NoOtherUsers(path.to_owned()),
        _ => host("act for other users in", errno),
    })?;
    let commits_as_a_whole = journal::is_committed_as_a_whole(&root);
    let answers_at_once = search.is_none() && file_system.has_attributes_at_hand();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let tree = Arc::new(HostTree {
        number,
        root: OwnedFd::from(root),
        root_node,
        root_number,
        mount_id: call::mount_of(&status),
        search,
        read_only,
        identity,
        disk,
        file_system,
        commits_as_a_whole,
        verified: Verified::default(),
        made: Recent::new(MADE_MAX),
        readers: Readers::default(),
        directories: Recent::new(DIRECTORIES_MAX),
        answers_at_once,
        slow_opens: SlowOpens::default(),
        listings: Listings::default(),
        name_locks: NameLocks::new(),
        guarded: Mutex::default(),
        file_bytes_max: OnceLock::new(),
        last_end_max: AtomicU64::new(0),
        modes: Mutex::default(),
        _locked: locked,
    });
    TREES.write().insert(number, Arc::downgrade(&tree));
    Ok(OpenTree {
        tree: Tree(number),
        disk: tree.disk.number(),
        rotational: tree.disk.rotational(),
        transfer_bytes_max: tree.disk.transfer_bytes_max(),
        syncs_as_a_whole: tree.commits_as_a_whole,
        owner: tree,
    })
}

/// Whether the mount of this path is read-only. The same directory may be mounted writable elsewhere.
pub fn is_mounted_read_only(path: &Path) -> bool {
    let Ok(place) = fs::OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path) else { return false };
    call::is_mounted_read_only(place.as_fd()).unwrap_or(false)
}

/// Whether the tree finds nodes by handle. Otherwise by place, which takes longer for deeper nodes, and a search of the
/// whole tree when one was moved on the host.
pub fn finds_by_handle(open: &OpenTree) -> bool {
    open.owner.downcast_ref::<HostTree>().is_some_and(|tree| tree.search.is_none())
}

fn by_handle(root: BorrowedFd, are_persistent: bool) -> Result<(), Errno> {
    if !are_persistent {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    call::open_node(root, &call::node_of(root)?, libc::O_PATH).map(drop)
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

/// Whether nodes of the tree are found by searching it, which may take long.
pub(super) fn is_searched(tree: Tree) -> bool {
    TREES.read().get(&tree.0).and_then(Weak::upgrade).is_none_or(|tree| tree.search.is_some())
}

/// The result of a call that blocks for nothing; `None`: it was not made, and [`perform`] must make it.
pub(super) fn at_once(op: &Op) -> Option<Result<u64, Errno>> {
    let Op::Tree(op) = op else { return None };
    let tree = TREES.read().get(&op.tree.0).and_then(Weak::upgrade)?;
    tree.perform_at_once(op)
}

/// Performs a call, and blocks until it is done.
pub(super) fn perform(op: &TreeOp) -> Result<u64, Errno> {
    let tree = TREES.read().get(&op.tree.0).and_then(Weak::upgrade);
    let tree = tree.ok_or(Errno(libc::EBADF))?;
    let _held = op.around.is_some().then(hold_directory);
    let changed = op.call.directory_changed().filter(|_| op.around.is_some());
    let before = changed.and_then(|dir| tree.attributes_before(&dir));
    let reply = tree.answer(op.caller.as_ref(), &op.call);
    if let Some(search) = &tree.search {
        search.tidy();
    }
    let reply = reply?;
    if let Some(Around { nodes, attributes }) = &op.around {
        let after: Vec<_> = nodes.iter().map(|node| tree.attributes_after(node)).collect();
        // Asked last: others' changes until then may be in the attributes.
        let before = before.filter(|_| was_only_change(&op.call.names_changed()));
        let before_of = |node: &Node| before.filter(|_| changed == Some(*node));
        *attributes.lock() = nodes.iter().map(before_of).zip(after).collect();
    }
    *op.reply.lock() = Some(reply);
    Ok(0)
}

impl HostTree {
    fn answer(&self, caller: Option<&Caller>, call: &TreeCall) -> Result<TreeReply, Errno> {
        if self.read_only && call.changes() {
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
            TreeCall::Open { node, writable } => self.open_file(node, *writable),
        }
    }
}
