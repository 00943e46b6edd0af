//! One host, one processor, one tree.

use std::sync::Arc;

use machine::tree::{
    Attributes, Caller, Creation, Entry, Node, OpenNode, OpenTree, SetAttributes, TreeCall, TreeOp, TreeReply,
};
use machine::{Errno, File};
use parking_lot::Mutex;
use policy::unit::Stability;
use sim::{HostId, TreeConfig, TreeId, World};

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

pub fn mode(mode: u32) -> SetAttributes {
    SetAttributes { mode: Some(mode), ..SetAttributes::default() }
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

    fn node_of(reply: TreeReply) -> Node {
        match reply {
            TreeReply::Node(node, _) => node,
            _ => panic!("not a node"),
        }
    }

    pub fn root(&mut self) -> Node {
        Self::node_of(self.call(TreeCall::Root).unwrap())
    }

    pub fn lookup(&mut self, dir: Node, name: &str) -> Result<Node, Errno> {
        self.call(TreeCall::Lookup { dir, name: name.into() }).map(Self::node_of)
    }

    pub fn create_as(
        &mut self,
        dir: Node,
        name: &str,
        how: Creation,
        attributes: SetAttributes,
    ) -> Result<Node, Errno> {
        self.call(TreeCall::Create { dir, name: name.into(), how, attributes }).map(Self::node_of)
    }

    pub fn create(&mut self, dir: Node, name: &str) -> Result<Node, Errno> {
        self.create_as(dir, name, Creation::Guarded, mode(0o644))
    }

    pub fn make_directory(&mut self, dir: Node, name: &str) -> Result<Node, Errno> {
        self.call(TreeCall::MakeDirectory { dir, name: name.into(), attributes: mode(0o755) }).map(Self::node_of)
    }

    pub fn remove(&mut self, dir: Node, name: &str) -> Result<Node, Errno> {
        self.call(TreeCall::Remove { dir, name: name.into() }).map(Self::node_of)
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
        self.call(TreeCall::Link { node, dir, name: name.into() }).map(Self::attributes_of)
    }

    fn attributes_of(reply: TreeReply) -> Attributes {
        match reply {
            TreeReply::Attributes(attributes) => attributes,
            _ => panic!("not attributes"),
        }
    }

    pub fn attributes(&mut self, node: Node) -> Result<Attributes, Errno> {
        self.call(TreeCall::Attributes { node }).map(Self::attributes_of)
    }

    pub fn set(&mut self, node: Node, attributes: SetAttributes) -> Result<Attributes, Errno> {
        self.call(TreeCall::SetAttributes { node, attributes, guard: None }).map(Self::attributes_of)
    }

    pub fn access(&mut self, node: Node, wanted: u32) -> u32 {
        match self.call(TreeCall::Access { node, wanted }).unwrap() {
            TreeReply::Access(allowed) => allowed,
            _ => panic!("not access"),
        }
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
