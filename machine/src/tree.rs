//! What may be asked of a directory tree of the host: names and attributes. The content of files is read and written
//! with the operations on an open [`File`](crate::File).
//!
//! Nodes are named by what the host calls a file handle: the name stays the same when the node is renamed and when the
//! host restarts, and is never used again for another one.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex};

mod watch;

use crate::OpenFile;
pub use watch::Watch;

/// A directory tree that is given out. Shared by all processors of one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tree(pub u32);

/// An open directory tree, closed when the last clone is dropped.
#[derive(Clone)]
pub struct OpenTree {
    pub tree: Tree,
    /// Which physical disk it lies on: as [`FileFacts::disk`](crate::FileFacts::disk).
    pub disk: u64,
    /// Does that disk have moving parts (or say so)?
    pub rotational: bool,
    /// Largest transfer that the disk takes in one piece, in bytes.
    pub transfer_bytes_max: u32,
    /// Does making many nodes durable cost no more than one? If not, better ask for a few in each of several calls.
    pub syncs_as_a_whole: bool,
    pub owner: Arc<dyn Any + Send + Sync>,
}

/// Longest name of a node. Bytes; the file systems in use need 8 (ext4) to 40 (btrfs).
pub const NODE_BYTES_MAX: usize = 40;

/// Longest name of an entry of a directory, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// Longest target of a symbolic link, in bytes.
pub const LINK_BYTES_MAX: usize = 4095;

/// Names a file, directory or other node of a tree.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node {
    len: u8,
    bytes: [u8; NODE_BYTES_MAX],
}

impl Node {
    /// The node with this name; `None` when no node has a name so long.
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

/// For whom something is done: the host decides by this what is allowed, and who owns what is made.
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

/// A moment, counted from 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Seconds.
    pub seconds: i64,
    /// Nanoseconds beyond them, below 10^9.
    pub nanoseconds: u32,
}

/// What is known of a node. Sizes in bytes.
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
    /// The file system that it lies on.
    pub file_system: u64,
    pub number: u64,
    pub accessed: Time,
    /// Last change of its content.
    pub modified: Time,
    /// Last change of its content or attributes.
    pub changed: Time,
}

/// What to set a time to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    Now,
    To(Time),
}

/// Attributes to set; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Permissions, the low 12 bits of `st_mode`. What is made without it gets none.
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    /// Size in bytes; of regular files only.
    pub size: Option<u64>,
    pub accessed: Option<SetTime>,
    /// Last change of the content.
    pub modified: Option<SetTime>,
}

/// How to make a regular file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Creation {
    /// One that is there already is taken, and only its size is set if that was asked for. `EISDIR` when a directory has
    /// the name, `EEXIST` when anything else that is no regular file has it.
    Unchecked,
    /// `EEXIST` when the name is there already.
    Guarded,
    /// As `Guarded`, except that a file is taken that was made with the same verifier: a request that was repeated
    /// succeeds. The verifier is kept on the medium, in the times of the file; no attributes are set. RFC 1813, 3.3.8.
    Exclusive {
        /// Chosen by the caller, unique.
        verifier: [u8; 8],
    },
}

/// What is asked. A name is one entry of a directory: not empty, without `/` and zero bytes, and `.` and `..` may only be
/// looked up (otherwise `EINVAL`); at most [`NAME_BYTES_MAX`] long (otherwise `ENAMETOOLONG`). A node that has no name any
/// more, or that lies outside the tree, is `ESTALE`.
#[derive(Clone, Debug)]
pub enum TreeCall {
    Root,
    Attributes {
        node: Node,
    },
    /// The node of a name: [`TreeReply::Node`]. `..` of the root is the root. Nodes of other file systems mounted in the
    /// tree are refused (`EXDEV`).
    Lookup {
        dir: Node,
        name: Vec<u8>,
    },
    /// What the caller may do: [`TreeReply::Access`], at most `wanted`.
    Access {
        /// With what.
        node: Node,
        /// Bits of `R_OK`, `W_OK`, `X_OK`.
        wanted: u32,
    },
    /// The target of a symbolic link: [`TreeReply::Bytes`].
    ReadLink {
        node: Node,
    },
    /// Makes a regular file, or takes one: [`TreeReply::Node`].
    Create {
        dir: Node,
        name: Vec<u8>,
        /// What if the name is there.
        how: Creation,
        /// Attributes of a new one.
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
        /// Its attributes; hosts without permissions of links ignore the mode.
        attributes: SetAttributes,
    },
    /// Makes a device, socket or pipe: [`TreeReply::Node`].
    MakeSpecial {
        dir: Node,
        name: Vec<u8>,
        kind: Kind,
        attributes: SetAttributes,
    },
    /// Removes a name of anything but a directory: [`TreeReply::Node`], the node that had the name (its `links` tell
    /// whether it has others).
    Remove {
        dir: Node,
        name: Vec<u8>,
    },
    /// Removes an empty directory: [`TreeReply::Done`].
    RemoveDirectory {
        dir: Node,
        name: Vec<u8>,
    },
    /// Gives a node another name; what had that name loses it: [`TreeReply::Renamed`].
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
    /// Sets attributes: [`TreeReply::Attributes`], those after.
    SetAttributes {
        node: Node,
        attributes: SetAttributes,
        /// Only if its `changed` time is this one; otherwise `EAGAIN`.
        guard: Option<Time>,
    },
    ReadDirectory {
        dir: Node,
        /// Behind which entry to begin: the cookie that came with it, 0 at the beginning. Cookies outlive changes of
        /// other entries.
        cookie: u64,
        /// Entries at most, at least 1. Fewer may come; none only when those were all.
        entries_max: usize,
        /// With node and attributes of each?
        with_nodes: bool,
    },
    /// How full the file system is: [`TreeReply::Space`].
    Space,
    /// What the file system can: [`TreeReply::Limits`].
    Limits {
        node: Node,
    },
    /// Makes names and attributes of these nodes durable (`fsync` of each): [`TreeReply::Done`]. Nodes that are gone are
    /// passed over: nothing of them can be lost.
    Sync {
        /// Directories whose entries changed, and nodes whose attributes did.
        nodes: Vec<Node>,
    },
    /// Opens a regular file for reading or, if it is to be writable, for both, whoever asks: [`TreeReply::Opened`]. As long
    /// as a file is open for writing, the host cannot execute it; as long as the host executes it, it cannot be opened for
    /// writing (`ETXTBSY`).
    Open {
        node: Node,
        writable: bool,
    },
}

impl TreeCall {
    /// The directory in which it changes names, if that is one.
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

    /// Does it change the tree?
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
    /// A node and its attributes.
    Node(Node, Attributes),
    Attributes(Attributes),
    /// Bits of `R_OK`, `W_OK`, `X_OK`.
    Access(u32),
    /// Bytes.
    Bytes(Vec<u8>),
    /// Entries of a directory, and whether these are the last.
    Entries(Vec<Entry>, bool),
    /// The node that moved, and the one that lost its name to it.
    Renamed(Node, Option<Node>),
    /// How full the file system is.
    Space(Space),
    /// What the file system can.
    Limits(Limits),
    Opened(OpenNode),
}

/// An entry of a directory. `.` and `..` are among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: Vec<u8>,
    /// The number of its node on the file system.
    pub number: u64,
    /// To go on behind it.
    pub cookie: u64,
    /// The node and its attributes, when asked for and it is still there.
    pub node: Option<(Node, Attributes)>,
}

/// How full a file system is. Bytes and nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes in all.
    pub bytes: u64,
    pub bytes_free: u64,
    /// Free ones for users who are not root.
    pub bytes_available: u64,
    pub nodes: u64,
    pub nodes_free: u64,
}

/// What a file system can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Names that a node may have.
    pub links_max: u32,
    /// Bytes in a name.
    pub name_bytes_max: u32,
    /// Largest file, in bytes.
    pub file_bytes_max: u64,
    /// The unit of its times.
    pub time_granularity_ns: u32,
    /// Is a name found in another case, too?
    pub case_insensitive: bool,
}

/// A regular file of a tree that is open.
#[derive(Clone)]
pub struct OpenNode {
    /// For whole blocks, past the host's page cache where its file system can. Its facts hold the size at this moment.
    pub direct: OpenFile,
    /// The same file through the host's page cache, for a last block that is not whole; where `direct` is direct and writable.
    pub buffered: Option<OpenFile>,
    /// Reports what others do to its content. Not there where the host can't.
    pub watch: Option<Watch>,
    /// The largest size that its file system lets it have. Bytes.
    pub bytes_max: u64,
}

/// A question to a tree, and the place for its answer.
#[derive(Clone)]
pub struct TreeOp {
    pub tree: Tree,
    /// For whom; `None`: for the server itself, who may do everything.
    pub caller: Option<Caller>,
    pub call: TreeCall,
    /// Filled before the operation completes well.
    pub reply: Arc<Mutex<Option<TreeReply>>>,
    /// What else is asked for.
    pub after: Option<After>,
}

/// Attributes after a call that went well, asked for together with it: as of the directory in which a name was changed.
#[derive(Clone)]
pub struct After {
    pub nodes: Vec<Node>,
    /// As many, in the same order; `None` for a node that has none any more. Filled before the reply.
    pub attributes: Arc<Mutex<Vec<Option<Attributes>>>>,
}

impl fmt::Debug for TreeOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TreeOp").field("tree", &self.tree).field("call", &self.call).finish_non_exhaustive()
    }
}
