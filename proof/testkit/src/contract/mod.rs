//! What every tree behind the seam promises: one suite, run on trees of the host and on simulated ones.

pub mod handles;
pub mod listing;
pub mod names;
pub mod permissions;

use machine::Errno;
use machine::tree::{Attributes, Caller, Creation, Entry, Node, SetAttributes, TreeCall, TreeReply};

pub const ESTALE: Errno = Errno(libc::ESTALE);
pub const ENOENT: Errno = Errno(libc::ENOENT);
pub const EACCES: Errno = Errno(libc::EACCES);
pub const EPERM: Errno = Errno(libc::EPERM);
pub const EEXIST: Errno = Errno(libc::EEXIST);
pub const EISDIR: Errno = Errno(libc::EISDIR);
pub const ENOTDIR: Errno = Errno(libc::ENOTDIR);

pub type NodeResult = Result<(Node, Attributes), Errno>;

/// A tree under test, new and accessible to all.
pub trait Tree: Sized {
    fn root(&self) -> Node;

    fn ask(&mut self, caller: Option<&Caller>, call: TreeCall) -> Result<TreeReply, Errno>;

    /// Reopens the tree, as after a restart of the server.
    #[must_use]
    fn reopen(self) -> Self;

    /// A process of the host writes a file.
    fn put(&mut self, path: &str, bytes: &[u8]);

    /// Is there a name for processes of the host?
    fn exists(&self, path: &str) -> bool;

    /// Can callers differ from the server? If not, it notes that the test is skipped.
    fn acts_for_others(&self) -> bool;

    fn node(&mut self, caller: Option<&Caller>, call: TreeCall) -> NodeResult {
        node_in(self.ask(caller, call))
    }

    fn lookup(&mut self, dir: Node, name: &str) -> NodeResult {
        self.node(None, lookup(dir, name))
    }

    fn attributes(&mut self, node: Node) -> Result<Attributes, Errno> {
        attributes_in(self.ask(None, TreeCall::Attributes { node }))
    }

    /// Makes a file with mode 0644 in the root directory.
    fn file(&mut self, name: &str) -> Node {
        let call = create(self.root(), name, Creation::Guarded, mode(0o644));
        self.node(None, call).expect("created").0
    }

    /// Makes a directory with this mode in the root directory.
    fn make_directory(&mut self, name: &str, permissions: u32) -> Node {
        let call = make_directory(self.root(), name, permissions);
        self.node(None, call).expect("made").0
    }

    fn remove(&mut self, dir: Node, name: &str) -> NodeResult {
        self.node(None, remove(dir, name))
    }

    /// Part of a directory, and whether it is the last one.
    fn list(
        &mut self,
        caller: Option<&Caller>,
        dir: Node,
        cookie: u64,
        entries_max: usize,
        with_nodes: bool,
    ) -> Result<(Vec<Entry>, bool), Errno> {
        match self.ask(caller, TreeCall::ReadDirectory { dir, cookie, entries_max, with_nodes })? {
            TreeReply::Entries(entries, last) => Ok((entries, last)),
            _ => panic!("no entries"),
        }
    }
}

pub fn node_in(reply: Result<TreeReply, Errno>) -> NodeResult {
    match reply? {
        TreeReply::Node(node, attributes) => Ok((node, attributes)),
        _ => panic!("no node"),
    }
}

pub fn attributes_in(reply: Result<TreeReply, Errno>) -> Result<Attributes, Errno> {
    match reply? {
        TreeReply::Attributes(attributes) => Ok(attributes),
        _ => panic!("no attributes"),
    }
}

pub fn done_in(reply: Result<TreeReply, Errno>) -> Result<(), Errno> {
    match reply? {
        TreeReply::Done => Ok(()),
        _ => panic!("unexpected reply"),
    }
}

pub fn caller(uid: u32, gid: u32, groups: &[u32]) -> Caller {
    Caller { uid, gid, groups: groups.into() }
}

pub fn mode(permissions: u32) -> SetAttributes {
    SetAttributes { mode: Some(permissions), ..SetAttributes::default() }
}

pub fn lookup(dir: Node, name: &str) -> TreeCall {
    TreeCall::Lookup { dir, name: name.into() }
}

pub fn create(dir: Node, name: &str, how: Creation, attributes: SetAttributes) -> TreeCall {
    TreeCall::Create { dir, name: name.into(), how, attributes }
}

pub fn make_directory(dir: Node, name: &str, permissions: u32) -> TreeCall {
    TreeCall::MakeDirectory { dir, name: name.into(), attributes: mode(permissions) }
}

pub fn make_symbolic_link(dir: Node, name: &str, target: &str) -> TreeCall {
    let attributes = SetAttributes::default();
    TreeCall::MakeSymbolicLink { dir, name: name.into(), target: target.into(), attributes }
}

pub fn remove(dir: Node, name: &str) -> TreeCall {
    TreeCall::Remove { dir, name: name.into() }
}

pub fn remove_directory(dir: Node, name: &str) -> TreeCall {
    TreeCall::RemoveDirectory { dir, name: name.into() }
}

pub fn rename(from_dir: Node, from: &str, to_dir: Node, to: &str) -> TreeCall {
    TreeCall::Rename { from_dir, from_name: from.into(), to_dir, to_name: to.into() }
}

pub fn link(node: Node, dir: Node, name: &str) -> TreeCall {
    TreeCall::Link { node, dir, name: name.into() }
}

pub fn set(node: Node, attributes: SetAttributes) -> TreeCall {
    TreeCall::SetAttributes { node, attributes, guard: None }
}

pub fn access(reply: Result<TreeReply, Errno>) -> Result<u32, Errno> {
    match reply? {
        TreeReply::Access(granted, _) => Ok(granted),
        _ => panic!("no access"),
    }
}
