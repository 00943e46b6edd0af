//! A directory of the host as a tree under test.

use std::cell::Cell;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use machine::linux::Engine;
use machine::linux::tree::{self, OpenTreeError};
use machine::tree::{Attributes, Caller, Creation, Entry, Node, OpenTree, SetAttributes, TreeCall, TreeOp, TreeReply};
use machine::{Errno, Op, Token};
use parking_lot::Mutex;
use tempfile::TempDir;

use crate::rig::Rig;
use testkit::skip::note;

pub const ESTALE: Errno = Errno(libc::ESTALE);
pub const ENOENT: Errno = Errno(libc::ENOENT);
pub const EACCES: Errno = Errno(libc::EACCES);
pub const EPERM: Errno = Errno(libc::EPERM);
pub const EEXIST: Errno = Errno(libc::EEXIST);
pub const EISDIR: Errno = Errno(libc::EISDIR);
pub const ENOTDIR: Errno = Errno(libc::ENOTDIR);

pub struct ServedTree {
    pub rig: Rig,
    pub open: OpenTree,
    pub root: Node,
    pub directory: PathBuf,
    pub state: Rc<TempDir>,
    pub temporary: Option<TempDir>,
}

thread_local! {
    /// Open trees so that nodes are searched for instead of found by handle.
    static SEARCHED: Cell<bool> = const { Cell::new(false) };
}

/// Runs each test on both engines, and once more with nodes found by place.
macro_rules! on_all_trees {
    ($($name:ident),+ $(,)?) => {
        crate::rig::on_both_engines!($($name),+);
        mod searched {
            $(#[test] fn $name() { crate::tree_rig::searched(super::$name); })+
        }
    };
}
pub(crate) use on_all_trees;

/// Runs the test with nodes found by place, as if the server could not open handles.
pub fn searched(test: fn(Rig)) {
    SEARCHED.set(true);
    crate::rig::with(Engine::Threads, test);
    SEARCHED.set(false);
}

/// Whether nodes are found by place. Always so without root.
pub fn is_searched() -> bool {
    SEARCHED.get() || !is_root()
}

pub fn is_root() -> bool {
    // SAFETY: no pointer is passed.
    unsafe { libc::geteuid() == 0 }
}

pub fn open_tree(path: &Path, read_only: bool, state_dir: Option<&Path>) -> Result<OpenTree, OpenTreeError> {
    if !SEARCHED.get() {
        return tree::open(path, read_only, state_dir);
    }
    let open = || {
        const DAC_READ_SEARCH: u32 = 2;
        drop_capability(DAC_READ_SEARCH);
        tree::open(path, read_only, state_dir)
    };
    std::thread::scope(|scope| scope.spawn(open).join().expect("no panic"))
}

/// Drops a capability of the calling thread. False when it has none.
pub fn drop_capability(capability: u32) -> bool {
    // The header and data of capset(2), version 3: effective, permitted and inheritable, the low 32 of each first.
    let mut header = [0x2008_0522u32, 0];
    let mut sets = [0u32; 6];
    // SAFETY: the calls read the header, and read or fill two sets of three words.
    unsafe {
        if libc::syscall(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr()) != 0 {
            return false;
        }
        let had = sets[0] & 1 << capability != 0;
        sets[..3].iter_mut().for_each(|set| *set &= !(1 << capability));
        had && libc::syscall(libc::SYS_capset, header.as_mut_ptr(), sets.as_ptr()) == 0
    }
}

/// The place for the reply of a call.
pub type Reply = Arc<Mutex<Option<TreeReply>>>;

pub type NodeResult = Result<(Node, Attributes), Errno>;

impl ServedTree {
    /// A new directory, accessible to all. `None`, noted as a skip, where trees cannot be opened.
    pub fn new(rig: Rig) -> Option<Self> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o777)).expect("allowed");
        let mut served = ServedTree::at(rig, directory.path())?;
        served.temporary = Some(directory);
        Some(served)
    }

    /// An existing directory. `None` where it cannot be opened.
    pub fn at(rig: Rig, directory: &Path) -> Option<Self> {
        let state = tempfile::tempdir().expect("a temporary directory");
        match open_tree(directory, false, Some(state.path())) {
            Ok(open) => Some(ServedTree::of(rig, open, directory.to_owned(), Rc::new(state))),
            Err(error @ OpenTreeError::NoHandles(_)) => {
                note(&error.to_string());
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// The same where callers can differ from the server: only root can act for them.
    pub fn as_root(rig: Rig) -> Option<Self> {
        if !is_root() {
            note("takes root");
            return None;
        }
        ServedTree::new(rig)
    }

    fn of(mut rig: Rig, open: OpenTree, directory: PathBuf, state: Rc<TempDir>) -> Self {
        let (root, _) = node_in(ask(&mut rig, &open, None, TreeCall::Root)).expect("a root");
        ServedTree { rig, open, root, directory, state, temporary: None }
    }

    /// The path of a name in the root directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Reopens the tree, as after a restart of the server.
    pub fn reopen(self) -> Self {
        self.reopen_after(|_| {})
    }

    /// The same, after a change of the directory or of the state.
    pub fn reopen_after(self, what: impl FnOnce(&Path)) -> Self {
        let ServedTree { rig, open, directory, state, temporary, .. } = self;
        drop(open);
        what(state.path());
        let open = open_tree(&directory, false, Some(state.path())).expect("opened");
        ServedTree { temporary, ..ServedTree::of(rig, open, directory, state) }
    }

    pub fn reopen_read_only(self) -> Self {
        let open = open_tree(&self.directory, true, Some(self.state.path())).expect("opened");
        ServedTree { temporary: self.temporary, ..ServedTree::of(self.rig, open, self.directory, self.state) }
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

    /// Part of a directory, and whether it is the last one.
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
    let op = TreeOp { tree: open.tree, caller: caller.cloned(), call, reply: Arc::clone(&reply), around: None };
    (rig.start(Op::Tree(Box::new(op))), reply)
}

fn ask(rig: &mut Rig, open: &OpenTree, caller: Option<&Caller>, call: TreeCall) -> Result<TreeReply, Errno> {
    let (token, reply) = start(rig, open, caller, call);
    let result = rig.wait(token);
    let reply = reply.lock().take();
    assert_eq!(reply.is_some(), result.is_ok(), "there is a reply exactly on success");
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
        TreeReply::Access(granted) => Ok(granted),
        _ => panic!("no access"),
    }
}
