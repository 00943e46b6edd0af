//! Calls on a directory tree of the host: names and attributes. The content of files is read and written with the
//! operations on an open [`File`](crate::File).
//!
//! Nodes are identified by the host's file handles: they stay the same across renames of the node and restarts of the
//! host, and are never reused.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use policy::unit::DiskNo;

mod watch;

use crate::OpenFile;
pub use watch::Watch;

/// An exported directory tree. Shared by all processors of one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tree(pub u32);

/// An open directory tree, closed when the last clone is dropped.
#[derive(Clone)]
pub struct OpenTree {
    pub tree: Tree,
    pub disk: DiskNo,
    /// That disk has moving parts, or says so.
    pub rotational: bool,
    /// Largest transfer that the disk takes in one request, in bytes.
    pub transfer_bytes_max: u32,
    /// A sync of any nodes, or of none, covers all changes of names and attributes, and a crash leaves a prefix of them. If
    /// not, better sync a few nodes in each of several calls.
    pub syncs_as_a_whole: bool,
    pub owner: Arc<dyn Any + Send + Sync>,
}

/// Longest identifier of a node, in bytes; the file systems in use need 8 (ext4) to 40 (btrfs).
pub const NODE_BYTES_MAX: usize = 40;

/// Longest name of a directory entry, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// Longest target of a symbolic link, in bytes.
pub const LINK_BYTES_MAX: usize = 4095;

/// Identifies a file, directory or other node of a tree.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node {
    len: u8,
    bytes: [u8; NODE_BYTES_MAX],
}

impl Node {
    /// `None` if `name` is too long.
    pub fn new(name: &[u8]) -> Option<Self> {
        let mut bytes = [0; NODE_BYTES_MAX];
        bytes.get_mut(..name.len())?.copy_from_slice(name);
        Some(Node { len: name.len() as u8, bytes })
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node(")?;
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, ")")
    }
}

/// The user for whom a call is made: the host decides by it what is allowed, and who owns new nodes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
    pub groups: Arc<[u32]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    File,
    Directory,
    SymbolicLink,
    BlockDevice(DeviceNumber),
    CharacterDevice(DeviceNumber),
    Socket,
    Fifo,
}

/// The number of a block or character device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DeviceNumber {
    pub major: u32,
    pub minor: u32,
}

/// A time since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    pub seconds: i64,
    /// Below 10^9.
    pub nanoseconds: u32,
}

/// An inode number. Unique on one file system only, and reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeNo(pub u64);

/// Attributes of a node. Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    pub kind: Kind,
    /// Permissions: the low 12 bits of `st_mode`.
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub used: u64,
    pub file_system: u64,
    pub number: InodeNo,
    pub accessed: Time,
    /// Last change of its content.
    pub modified: Time,
    /// Last change of its content or attributes.
    pub changed: Time,
}

/// The value to set a time to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    Now,
    To(Time),
}

/// Attributes to set; `None` leaves one unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Permissions, the low 12 bits of `st_mode`. A new node without it has none.
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    /// Size in bytes; of regular files only.
    pub size: Option<u64>,
    pub accessed: Option<SetTime>,
    /// Last change of the content.
    pub modified: Option<SetTime>,
    /// Take from a file what its mode gives to those who run it (set-user-id, and set-group-id unless it means mandatory locks), as
    /// a write by another user does. The rest of the mode stays what it is at that time.
    pub drops_set_id: bool,
}

/// How to make a regular file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Creation {
    /// An existing file is taken, and only its size is set if requested. `EISDIR` when a directory has the name,
    /// `EEXIST` when another node that is not a regular file has it.
    Unchecked,
    /// `EEXIST` when the name exists.
    Guarded,
    /// As `Guarded`, except that a file made with the same verifier is taken: a retransmitted request succeeds. The
    /// verifier is stored in the times of the file; no attributes are set. RFC 1813, 3.3.8.
    Exclusive {
        /// Chosen by the caller, unique.
        verifier: [u8; 8],
    },
}

/// A call. A name is one entry of a directory: not empty, without `/` and zero bytes, and `.` and `..` may only be
/// looked up (otherwise `EINVAL`); at most [`NAME_BYTES_MAX`] long (otherwise `ENAMETOOLONG`). A node without a name,
/// or outside the tree, is `ESTALE`.
#[derive(Clone, Debug)]
pub enum TreeCall {
    Root,
    Attributes {
        node: Node,
    },
    /// The node of a name: [`TreeReply::Node`]. `..` of the root is the root. Nodes of other file systems mounted in
    /// the tree are refused (`EXDEV`).
    Lookup {
        dir: Node,
        name: Vec<u8>,
    },
    /// The caller's permissions: [`TreeReply::Access`], a subset of `wanted`.
    Access {
        node: Node,
        /// Bits of `R_OK`, `W_OK`, `X_OK`.
        wanted: u32,
    },
    /// The target of a symbolic link: [`TreeReply::Bytes`].
    ReadLink {
        node: Node,
    },
    /// Makes a regular file, or takes an existing one: [`TreeReply::Node`].
    Create {
        dir: Node,
        name: Vec<u8>,
        /// For a name that exists.
        how: Creation,
        /// Of a new file.
        attributes: SetAttributes,
    },
    MakeDirectory {
        dir: Node,
        name: Vec<u8>,
        attributes: SetAttributes,
    },
    /// Makes a symbolic link: [`TreeReply::Node`].
    MakeSymbolicLink {
        dir: Node,
        name: Vec<u8>,
        target: Vec<u8>,
        /// Hosts without permissions of links ignore the mode.
        attributes: SetAttributes,
    },
    /// Makes a device, socket or pipe: [`TreeReply::Node`].
    MakeSpecial {
        dir: Node,
        name: Vec<u8>,
        kind: Kind,
        attributes: SetAttributes,
    },
    /// Removes a name of a node that is not a directory: [`TreeReply::Node`], the node that had the name (`links` is
    /// the number of names left).
    Remove {
        dir: Node,
        name: Vec<u8>,
    },
    /// Removes an empty directory: [`TreeReply::Done`].
    RemoveDirectory {
        dir: Node,
        name: Vec<u8>,
    },
    /// Changes a node's name, replacing the node that had the new name: [`TreeReply::Renamed`].
    Rename {
        from_dir: Node,
        from_name: Vec<u8>,
        to_dir: Node,
        to_name: Vec<u8>,
    },
    /// Gives a node one more name: [`TreeReply::Attributes`], those of the node.
    Link {
        node: Node,
        dir: Node,
        name: Vec<u8>,
    },
    /// Sets attributes: [`TreeReply::Attributes`], those after, or [`TreeReply::GuardFailed`]. Who may write to a node may
    /// set its times to the present. What the caller may not do changes no size.
    SetAttributes {
        node: Node,
        attributes: SetAttributes,
        /// Only if its `changed` time is this one.
        guard: Option<Time>,
    },
    ReadDirectory {
        dir: Node,
        /// Begin after the entry with this cookie; 0 is the beginning. Cookies stay valid when other entries change.
        cookie: u64,
        /// At least 1. The reply may have fewer; none only at the end.
        entries_max: usize,
        /// With node and attributes of each entry.
        with_nodes: bool,
    },
    Space,
    Limits {
        node: Node,
    },
    /// Makes names and attributes of these nodes durable (`fsync` of each): [`TreeReply::Done`]. Removed nodes are
    /// skipped: they have nothing to lose.
    Sync {
        /// Directories whose entries changed, and nodes whose attributes did.
        nodes: Vec<Node>,
    },
    /// Opens a regular file for reading or, if `writable`, for both, with the server's permissions:
    /// [`TreeReply::Opened`]. As long as a file is open for writing, the host cannot execute it; as long as the host
    /// executes it, it cannot be opened for writing (`ETXTBSY`).
    Open {
        node: Node,
        writable: bool,
    },
}

impl TreeCall {
    /// The directory in which it changes names, if it is a single one.
    pub fn directory_changed(&self) -> Option<Node> {
        match self {
            TreeCall::Create { dir, .. }
            | TreeCall::MakeDirectory { dir, .. }
            | TreeCall::MakeSymbolicLink { dir, .. }
            | TreeCall::MakeSpecial { dir, .. }
            | TreeCall::Remove { dir, .. }
            | TreeCall::RemoveDirectory { dir, .. }
            | TreeCall::Link { dir, .. } => Some(*dir),
            TreeCall::Rename { from_dir, to_dir, .. } if from_dir == to_dir => Some(*from_dir),
            _ => None,
        }
    }

    /// The names that it changes.
    pub fn names_changed(&self) -> Vec<&[u8]> {
        match self {
            TreeCall::Create { name, .. }
            | TreeCall::MakeDirectory { name, .. }
            | TreeCall::MakeSymbolicLink { name, .. }
            | TreeCall::MakeSpecial { name, .. }
            | TreeCall::Remove { name, .. }
            | TreeCall::RemoveDirectory { name, .. }
            | TreeCall::Link { name, .. } => vec![name],
            TreeCall::Rename { from_name, to_name, .. } => vec![from_name, to_name],
            _ => Vec::new(),
        }
    }

    /// Whether it changes the tree.
    pub fn changes(&self) -> bool {
        match self {
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
}

#[derive(Clone)]
pub enum TreeReply {
    Done,
    Node(Node, Attributes),
    Attributes(Attributes),
    /// The `changed` time is another one than the caller expected: nothing was set.
    GuardFailed,
    /// Bits of `R_OK`, `W_OK`, `X_OK`, and the node's attributes.
    Access(u32, Attributes),
    Bytes(Vec<u8>),
    /// Entries of a directory, and whether they are the last.
    Entries(Vec<Entry>, bool),
    /// The node that moved, and the one that it replaced.
    Renamed(Node, Option<Node>),
    Space(Space),
    Limits(Limits),
    Opened(OpenNode),
}

/// An entry of a directory, including `.` and `..`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: Vec<u8>,
    pub number: InodeNo,
    /// To continue after it.
    pub cookie: u64,
    /// The node and its attributes, if requested and it still exists.
    pub node: Option<(Node, Attributes)>,
}

/// Capacity of a file system, in bytes and nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    pub bytes: u64,
    pub bytes_free: u64,
    /// Free for users other than root.
    pub bytes_available: u64,
    pub nodes: u64,
    pub nodes_free: u64,
}

/// Limits of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Names that a node may have.
    pub links_max: u32,
    pub name_bytes_max: u32,
    pub file_bytes_max: u64,
    /// Resolution of its times.
    pub time_granularity_ns: u32,
    /// Names are case-insensitive.
    pub case_insensitive: bool,
}

/// An open regular file of a tree.
#[derive(Clone)]
pub struct OpenNode {
    /// For whole blocks, with direct I/O where its file system supports it. Its facts hold the size at this time.
    pub direct: OpenFile,
    /// The same file through the host's page cache, for an incomplete last block; if `direct` is direct and writable.
    pub buffered: Option<OpenFile>,
    /// Reports changes of its content by others. `None` where the host cannot.
    pub watch: Option<Watch>,
    /// Read before it was opened.
    pub attributes: Attributes,
    /// The maximum size on its file system, in bytes.
    pub bytes_max: u64,
}

/// A call on a tree, and the place for its reply.
#[derive(Clone)]
pub struct TreeOp {
    pub tree: Tree,
    /// `None`: the server itself, which may do everything.
    pub caller: Option<Caller>,
    pub call: TreeCall,
    /// Set before the operation succeeds.
    pub reply: Arc<Mutex<Option<TreeReply>>>,
    /// Attributes requested in addition.
    pub around: Option<Around>,
}

/// Attributes before and after a successful call, requested with it: of the directory in which a name was changed.
#[derive(Clone)]
pub struct Around {
    pub nodes: Vec<Node>,
    /// In the order of `nodes`. Set before the reply.
    pub attributes: Arc<Mutex<Vec<BeforeAndAfter>>>,
}

/// Before: where nobody else changed names in it in between, as far as the host can tell. After: `None` for a node that
/// is gone.
pub type BeforeAndAfter = (Option<Attributes>, Option<Attributes>);

impl fmt::Debug for TreeOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TreeOp").field("tree", &self.tree).field("call", &self.call).finish_non_exhaustive()
    }
}
