//! A directory of the host as a tree under test.

use std::cell::Cell;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use machine::linux::Engine;
use machine::linux::tree::{self, Handles, OpenTreeError};
use machine::tree::{Caller, Limits, Node, OpenNode, OpenTree, Space, TreeCall, TreeOp, TreeReply};
use machine::{Errno, Op, Token};
use parking_lot::Mutex;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use tempfile::TempDir;

use crate::rig::Rig;
pub use testkit::contract::*;
pub use testkit::server::is_root;
use testkit::skip::note;

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

/// Runs each test with a new tree on both engines, and once more with nodes found by place.
macro_rules! on_all_trees {
    ($($name:ident),+ $(,)?) => {
        mod io_uring {
            $(#[test] fn $name() { crate::rig::with(machine::linux::Engine::IoUring, crate::tree_rig::on_new(super::$name)); })+
        }
        mod threads {
            $(#[test] fn $name() { crate::rig::with(machine::linux::Engine::Threads, crate::tree_rig::on_new(super::$name)); })+
        }
        mod searched {
            $(#[test] fn $name() { crate::tree_rig::searched(crate::tree_rig::on_new(super::$name)); })+
        }
    };
}
pub(crate) use on_all_trees;

/// The test with a new tree; a skip is noted where none can be opened.
pub fn on_new(test: fn(ServedTree)) -> impl FnOnce(Rig) {
    move |rig| ServedTree::new(rig).into_iter().for_each(test)
}

/// Runs the test with nodes found by place, as if the server could not open handles.
pub fn searched(test: impl FnOnce(Rig)) {
    SEARCHED.set(true);
    crate::rig::with(Engine::Threads, test);
    SEARCHED.set(false);
}

/// Whether nodes are found by place. Always so without root.
pub fn is_searched() -> bool {
    SEARCHED.get() || !is_root()
}

pub fn open_tree(path: &Path, read_only: bool, state_dir: Option<&Path>) -> Result<OpenTree, OpenTreeError> {
    if !SEARCHED.get() {
        return tree::open(path, read_only, state_dir, Handles::Known);
    }
    let open = || {
        drop_capability(CapabilitySet::DAC_READ_SEARCH);
        tree::open(path, read_only, state_dir, Handles::Known)
    };
    std::thread::scope(|scope| scope.spawn(open).join().expect("no panic"))
}

/// Drops a capability of the calling thread. False when it has none.
pub fn drop_capability(capability: CapabilitySet) -> bool {
    let Ok(sets) = capabilities(None) else { return false };
    let less = CapabilitySets {
        effective: sets.effective - capability,
        permitted: sets.permitted - capability,
        inheritable: sets.inheritable - capability,
    };
    sets.effective.contains(capability) && set_capabilities(None, less).is_ok()
}

/// The place for the reply of a call.
pub type Reply = Arc<Mutex<Option<TreeReply>>>;

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

    pub fn of(mut rig: Rig, open: OpenTree, directory: PathBuf, state: Rc<TempDir>) -> Self {
        let (root, _) = node_in(ask(&mut rig, &open, None, TreeCall::Root)).expect("a root");
        ServedTree { rig, open, root, directory, state, temporary: None }
    }

    /// The path of a name in the root directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Reopens the tree, after a change of the directory or of the state.
    pub fn reopen_after(self, what: impl FnOnce(&Path)) -> Self {
        let ServedTree { rig, open, directory, state, temporary, .. } = self;
        drop(open);
        what(state.path());
        let open = open_tree(&directory, false, Some(state.path())).expect("opened");
        ServedTree { temporary, ..ServedTree::of(rig, open, directory, state) }
    }

    /// Reopens the tree with its state in another directory.
    pub fn reopen_with(self, state: TempDir) -> Self {
        ServedTree { state: Rc::new(state), ..self }.reopen_after(|_| {})
    }

    pub fn reopen_read_only(self) -> Self {
        let open = open_tree(&self.directory, true, Some(self.state.path())).expect("opened");
        ServedTree { temporary: self.temporary, ..ServedTree::of(self.rig, open, self.directory, self.state) }
    }

    pub fn start(&mut self, caller: Option<&Caller>, call: TreeCall) -> (Token, Reply) {
        start(&mut self.rig, &self.open, caller, call)
    }

    /// Opens a file for a caller.
    pub fn opened_by(&mut self, caller: Option<&Caller>, node: Node, writable: bool) -> OpenNode {
        match self.ask(caller, TreeCall::Open { node, writable }) {
            Ok(TreeReply::Opened(open)) => open,
            other => panic!("not opened: {:?}", other.err()),
        }
    }

    pub fn opened(&mut self, node: Node, writable: bool) -> OpenNode {
        self.opened_by(None, node, writable)
    }

    pub fn space(&mut self) -> Space {
        match self.ask(None, TreeCall::Space) {
            Ok(TreeReply::Space(space)) => space,
            other => panic!("no space: {:?}", other.err()),
        }
    }

    pub fn limits(&mut self, node: Node) -> Limits {
        match self.ask(None, TreeCall::Limits { node }) {
            Ok(TreeReply::Limits(limits)) => limits,
            other => panic!("no limits: {:?}", other.err()),
        }
    }
}

impl Tree for ServedTree {
    fn root(&self) -> Node {
        self.root
    }

    fn ask(&mut self, caller: Option<&Caller>, call: TreeCall) -> Result<TreeReply, Errno> {
        ask(&mut self.rig, &self.open, caller, call)
    }

    fn reopen(self) -> Self {
        self.reopen_after(|_| {})
    }

    fn put(&mut self, path: &str, bytes: &[u8]) {
        std::fs::write(self.path(path), bytes).expect("written");
    }

    fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    fn acts_for_others(&self) -> bool {
        if !is_root() {
            note("takes root");
        }
        is_root()
    }
}

pub fn start(rig: &mut Rig, open: &OpenTree, caller: Option<&Caller>, call: TreeCall) -> (Token, Reply) {
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
