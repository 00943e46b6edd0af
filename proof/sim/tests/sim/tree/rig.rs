//! One host, one processor, one tree.

use std::sync::Arc;

use machine::tree::{
    Attributes, Caller, Creation, Entry, Node, OpenNode, OpenTree, SetAttributes, TreeCall, TreeOp, TreeReply,
};
use machine::{Errno, File};
use parking_lot::Mutex;
use policy::unit::{ByteOffset, Stability};
use sim::{HostId, TreeConfig, TreeId, World};
pub use testkit::contract::mode;
use testkit::contract::{self, Tree, access, attributes_in, node_in};

use crate::rig::{Outcome, Side, run};

pub type Reply = Arc<Mutex<Option<TreeReply>>>;

pub struct TreeRig {
    pub world: World,
    pub host: HostId,
    pub tree: TreeId,
    pub open: OpenTree,
    pub side: Side,
    pub caller: Option<Caller>,
}

pub fn user(uid: u32, gid: u32, groups: &[u32]) -> Option<Caller> {
    Some(Caller { uid, gid, groups: groups.into() })
}

fn node_alone(reply: Result<TreeReply, Errno>) -> Result<Node, Errno> {
    node_in(reply).map(|(node, _)| node)
}

pub fn size(size: u64) -> SetAttributes {
    SetAttributes { size: Some(size), ..SetAttributes::default() }
}

impl TreeRig {
    pub fn new(seed: u64, config: TreeConfig) -> Self {
        let world = World::new(seed);
        let host = world.add_host("server");
        let tree = world.add_tree(host, config);
        let open = world.open_tree(tree);
        let side = Side::new(&world, host, 0);
        TreeRig { world, host, tree, open, side, caller: None }
    }

    /// A new tree, which the suite of all trees tests.
    pub fn of_all_trees() -> Self {
        let mut rig = TreeRig::new(1, TreeConfig::new());
        let root = rig.root();
        rig.set(root, mode(0o777)).unwrap();
        rig
    }

    pub fn run(&mut self) {
        run(&self.world, &mut [&mut self.side]);
    }

    /// Starts a call of the present caller.
    pub fn start(&mut self, call: TreeCall) -> (u64, Reply) {
        let reply = Reply::default();
        let op =
            TreeOp { tree: self.open.tree, caller: self.caller.clone(), call, reply: Arc::clone(&reply), around: None };
        (self.side.ask(op), reply)
    }

    pub fn call(&mut self, call: TreeCall) -> Result<TreeReply, Errno> {
        let (token, reply) = self.start(call);
        self.run();
        self.side.take(token).0?;
        let reply = reply.lock().take();
        Ok(reply.expect("an answer"))
    }

    pub fn root(&mut self) -> Node {
        node_alone(self.call(TreeCall::Root)).unwrap()
    }

    pub fn lookup(&mut self, dir: Node, name: &str) -> Result<Node, Errno> {
        node_alone(self.call(TreeCall::Lookup { dir, name: name.into() }))
    }

    pub fn create_as(
        &mut self,
        dir: Node,
        name: &str,
        how: Creation,
        attributes: SetAttributes,
    ) -> Result<Node, Errno> {
        node_alone(self.call(TreeCall::Create { dir, name: name.into(), how, attributes }))
    }

    pub fn create(&mut self, dir: Node, name: &str) -> Result<Node, Errno> {
        self.create_as(dir, name, Creation::Guarded, mode(0o644))
    }

    pub fn make_directory(&mut self, dir: Node, name: &str) -> Result<Node, Errno> {
        node_alone(self.call(TreeCall::MakeDirectory { dir, name: name.into(), attributes: mode(0o755) }))
    }

    pub fn remove(&mut self, dir: Node, name: &str) -> Result<Node, Errno> {
        node_alone(self.call(TreeCall::Remove { dir, name: name.into() }))
    }

    pub fn remove_directory(&mut self, dir: Node, name: &str) -> Result<(), Errno> {
        self.call(TreeCall::RemoveDirectory { dir, name: name.into() }).map(drop)
    }

    pub fn rename(&mut self, from: (Node, &str), to: (Node, &str)) -> Result<(Node, Option<Node>), Errno> {
        let (from_name, to_name) = (from.1.into(), to.1.into());
        match self.call(TreeCall::Rename { from_dir: from.0, from_name, to_dir: to.0, to_name })? {
            TreeReply::Renamed(moved, replaced) => Ok((moved, replaced)),
            _ => panic!("not a rename"),
        }
    }

    pub fn link(&mut self, node: Node, dir: Node, name: &str) -> Result<Attributes, Errno> {
        attributes_in(self.call(TreeCall::Link { node, dir, name: name.into() }))
    }

    pub fn attributes(&mut self, node: Node) -> Result<Attributes, Errno> {
        attributes_in(self.call(TreeCall::Attributes { node }))
    }

    pub fn set(&mut self, node: Node, attributes: SetAttributes) -> Result<Attributes, Errno> {
        attributes_in(self.call(TreeCall::SetAttributes { node, attributes, guard: None }))
    }

    pub fn access(&mut self, node: Node, wanted: u32) -> u32 {
        access(self.call(TreeCall::Access { node, wanted })).unwrap()
    }

    pub fn list(&mut self, dir: Node, cookie: u64, entries_max: usize) -> Result<(Vec<Entry>, bool), Errno> {
        match self.call(TreeCall::ReadDirectory { dir, cookie, entries_max, with_nodes: true })? {
            TreeReply::Entries(entries, last) => Ok((entries, last)),
            _ => panic!("not entries"),
        }
    }

    pub fn sync(&mut self, nodes: &[Node]) -> Result<(), Errno> {
        self.call(TreeCall::Sync { nodes: nodes.into() }).map(drop)
    }

    pub fn open(&mut self, node: Node) -> Result<OpenNode, Errno> {
        match self.call(TreeCall::Open { node, writable: true })? {
            TreeReply::Opened(open) => Ok(open),
            _ => panic!("not opened"),
        }
    }

    pub fn perform(&mut self, start: impl FnOnce(&mut Side) -> u64) -> (Outcome, Vec<u8>) {
        let token = start(&mut self.side);
        self.run();
        self.side.take(token)
    }

    pub fn write(&mut self, file: File, at: u64, bytes: Vec<u8>) -> Outcome {
        self.perform(|side| side.write(file, at, bytes, Stability::Unstable)).0
    }

    pub fn write_stable(&mut self, file: File, at: u64, bytes: Vec<u8>) -> Outcome {
        self.perform(|side| side.write(file, at, bytes, Stability::Stable)).0
    }

    pub fn read(&mut self, file: File, at: u64, len: usize) -> (Outcome, Vec<u8>) {
        self.perform(|side| side.read(file, at, len))
    }

    pub fn flush(&mut self, file: File) -> Outcome {
        self.perform(|side| side.flush(file)).0
    }

    /// Cuts the power and restarts the processor.
    pub fn power_cut(&mut self) {
        self.world.power_cut(self.host);
        self.side = Side::new(&self.world, self.host, 0);
    }

    pub fn kill(&mut self) {
        self.world.kill(self.host);
        self.side = Side::new(&self.world, self.host, 0);
    }

    pub fn names(&self, path: &str) -> Vec<String> {
        self.world.tree_names(self.tree, path).unwrap_or_default()
    }

    pub fn content(&self, path: &str) -> Option<Vec<u8>> {
        self.world.tree_content(self.tree, path)
    }
}

impl Tree for TreeRig {
    fn root(&self) -> Node {
        self.world.tree_node(self.tree, "/").expect("a root")
    }

    fn ask(&mut self, caller: Option<&Caller>, call: TreeCall) -> Result<TreeReply, Errno> {
        self.caller = caller.cloned();
        let reply = self.call(call);
        self.caller = None;
        reply
    }

    fn reopen(mut self) -> Self {
        self.open = self.world.open_tree(self.tree);
        self
    }

    fn put(&mut self, path: &str, bytes: &[u8]) {
        if !self.exists(path) {
            let (above, name) = path.rsplit_once('/').unwrap_or(("/", path));
            let dir = self.world.tree_node(self.tree, above).expect("a directory");
            let call = contract::create(dir, name, Creation::Guarded, mode(0o644));
            self.world.call_tree(self.tree, None, &call).expect("created");
        }
        self.world.write_tree(self.tree, path, ByteOffset(0), bytes);
    }

    fn exists(&self, path: &str) -> bool {
        self.world.tree_node(self.tree, path).is_some()
    }

    fn acts_for_others(&self) -> bool {
        true
    }
}
