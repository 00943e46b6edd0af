//! A directory of the host to ask as a tree.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use machine::linux::tree::{self, OpenTreeError};
use machine::tree::{Attributes, Caller, Creation, Entry, Node, OpenTree, SetAttributes, TreeCall, TreeOp, TreeReply};
use machine::{Errno, Op, Token};
use tempfile::TempDir;

use crate::rig::Rig;

pub const ESTALE: Errno = Errno(libc::ESTALE);
pub const ENOENT: Errno = Errno(libc::ENOENT);
pub const EACCES: Errno = Errno(libc::EACCES);
pub const EPERM: Errno = Errno(libc::EPERM);
pub const EEXIST: Errno = Errno(libc::EEXIST);
pub const EISDIR: Errno = Errno(libc::EISDIR);
pub const ENOTDIR: Errno = Errno(libc::ENOTDIR);

pub struct Served {
    pub rig: Rig,
    pub open: OpenTree,
    pub root: Node,
    pub directory: TempDir,
}

/// Where the answer to something asked will be.
pub type Reply = Arc<Mutex<Option<TreeReply>>>;

pub type NodeResult = Result<(Node, Attributes), Errno>;

impl Served {
    /// A new directory in which everybody may do everything. Nothing where trees can't be opened; then it is said so.
    pub fn new(rig: Rig) -> Option<Self> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o777)).expect("allowed");
        match tree::open(directory.path(), false) {
            Ok(open) => Some(Served::of(rig, open, directory)),
            Err(error @ (OpenTreeError::HandlesForbidden(_) | OpenTreeError::NoHandles(_))) => {
                eprintln!("not tested: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// The same where callers can be others than the server: only root can act for them.
    pub fn as_root(rig: Rig) -> Option<Self> {
        // SAFETY: no pointer is passed.
        if unsafe { libc::geteuid() } != 0 {
            eprintln!("not tested: takes root");
            return None;
        }
        Served::new(rig)
    }

    fn of(mut rig: Rig, open: OpenTree, directory: TempDir) -> Self {
        let (root, _) = node_in(ask(&mut rig, &open, None, TreeCall::Root)).expect("a root");
        Served { rig, open, root, directory }
    }

    /// The path of a name in the root directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Opens the tree anew, as a server that starts again.
    pub fn again(self) -> Self {
        let Served { rig, open, directory, .. } = self;
        drop(open);
        let open = tree::open(directory.path(), false).expect("opened");
        Served::of(rig, open, directory)
    }

    /// Opens the tree anew, so that nothing in it can be changed.
    pub fn again_read_only(self) -> Self {
        let open = tree::open(self.directory.path(), true).expect("opened");
        Served::of(self.rig, open, self.directory)
    }

    pub fn ask(&mut self, caller: Option<&Caller>, call: TreeCall) -> Result<TreeReply, Errno> {
        ask(&mut self.rig, &self.open, caller, call)
    }

    pub fn start(&mut self, caller: Option<&Caller>, call: TreeCall) -> (Token, Reply) {
        start(&mut self.rig, &self.open, caller, call)
    }

    pub fn node(&mut self, caller: Option<&Caller>, call: TreeCall) -> NodeResult {
        node_in(self.ask(caller, call))
    }

    pub fn lookup(&mut self, dir: Node, name: &str) -> NodeResult {
        self.node(None, lookup(dir, name))
    }

    pub fn attributes(&mut self, node: Node) -> Result<Attributes, Errno> {
        attributes_in(self.ask(None, TreeCall::Attributes { node }))
    }

    /// Makes a file with mode 0644 in the root directory.
    pub fn file(&mut self, name: &str) -> Node {
        let call = create(self.root, name, Creation::Guarded, mode(0o644));
        self.node(None, call).expect("created").0
    }

    /// Makes a directory with this mode in the root directory.
    pub fn make_directory(&mut self, name: &str, permissions: u32) -> Node {
        let call = make_directory(self.root, name, permissions);
        self.node(None, call).expect("made").0
    }

    pub fn remove(&mut self, dir: Node, name: &str) -> NodeResult {
        self.node(None, remove(dir, name))
    }

    /// A piece of a directory, and whether it is the last.
    pub fn list(
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

fn start(rig: &mut Rig, open: &OpenTree, caller: Option<&Caller>, call: TreeCall) -> (Token, Reply) {
    let reply = Reply::default();
    let op = TreeOp { tree: open.tree, caller: caller.cloned(), call, reply: Arc::clone(&reply) };
    (rig.start(Op::Tree(Box::new(op))), reply)
}

fn ask(rig: &mut Rig, open: &OpenTree, caller: Option<&Caller>, call: TreeCall) -> Result<TreeReply, Errno> {
    let (token, reply) = start(rig, open, caller, call);
    let result = rig.wait(token);
    let reply = reply.lock().expect("not poisoned").take();
    assert_eq!(reply.is_some(), result.is_ok(), "an answer comes exactly with success");
    result.map(|value| {
        assert_eq!(value, 0);
        reply.expect("just seen")
    })
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
        _ => panic!("more than done"),
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
        TreeReply::Access(granted) => Ok(granted),
        _ => panic!("no access"),
    }
}
