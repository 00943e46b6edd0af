//! The files, directories and other objects that the host knows, under the numbers by which it knows them.

use std::collections::HashMap;
use std::sync::Arc;

use kernel::wait::TaskMutex;
use parking_lot::Mutex;
use policy::unit::Instant;

use crate::attributes::Kind;
use crate::client::Access;
use crate::content::Content;
use crate::handle::Handle;
use crate::known::Known;

/// What the host calls an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u64);

impl NodeId {
    pub const ROOT: NodeId = NodeId(1);
}

/// First number of objects whose own number on the server another one has here.
const ALIASES: u64 = 1 << 63;

/// A name in a directory.
pub(crate) type Name = (NodeId, Vec<u8>);

pub(crate) struct Node {
    pub id: NodeId,
    pub handle: Handle,
    pub kind: Kind,
    pub known: Arc<Known>,
    /// Held while what is cached of the content is renewed.
    pub following: TaskMutex,
    pub state: Mutex<State>,
}

#[derive(Default)]
pub(crate) struct State {
    /// The host's references.
    pub lookups: u64,
    /// Open files.
    pub opens: u64,
    pub content: Option<Arc<Content>>,
    /// What the host has cached of the content is stale. It may not have taken note of that yet.
    pub host_is_stale: bool,
    names: Vec<Name>,
    /// Its names since it was removed while it was open: one for each that it had.
    pub hidden: Vec<(Arc<Node>, Vec<u8>)>,
    /// Rights that the user has, and until when that holds.
    pub granted: Option<(Access, Instant)>,
    /// A task makes what was written durable, after which the node may be forgotten.
    pub is_settling: bool,
}

impl Node {
    pub fn content(&self) -> Option<Arc<Content>> {
        self.state.lock().content.clone()
    }

    pub fn is_open(&self) -> bool {
        self.state.lock().opens > 0
    }
}

#[derive(Default)]
pub(crate) struct Nodes {
    by_id: HashMap<NodeId, Arc<Node>>,
    by_handle: HashMap<Handle, NodeId>,
    names: HashMap<Name, NodeId>,
    aliases: u64,
}

impl Nodes {
    pub fn get(&self, id: NodeId) -> Option<Arc<Node>> {
        self.by_id.get(&id).cloned()
    }

    pub fn of_handle(&self, handle: &Handle) -> Option<Arc<Node>> {
        self.by_handle.get(handle).and_then(|id| self.get(*id))
    }

    pub fn named(&self, directory: NodeId, name: &[u8]) -> Option<Arc<Node>> {
        // Names are short, and this is for changes of names only.
        self.names.get(&(directory, name.to_vec())).and_then(|id| self.get(*id))
    }

    pub fn all(&self) -> Vec<Arc<Node>> {
        self.by_id.values().cloned().collect()
    }

    /// Adds an object, by the server's number if that is free.
    pub fn insert(&mut self, handle: &Handle, file_id: u64, kind: Kind, known: Arc<Known>) -> Arc<Node> {
        let mut id = if self.by_id.is_empty() { NodeId::ROOT } else { NodeId(file_id) };
        if id.0 == 0
            || id.0 >= ALIASES
            || (id == NodeId::ROOT && !self.by_id.is_empty())
            || self.by_id.contains_key(&id)
        {
            id = NodeId(ALIASES + self.aliases);
            self.aliases += 1;
        }
        let (following, state) = (TaskMutex::default(), Mutex::default());
        let node = Arc::new(Node { id, handle: handle.clone(), kind, known, following, state });
        self.by_id.insert(id, Arc::clone(&node));
        self.by_handle.insert(handle.clone(), id);
        node
    }

    /// The object has this name.
    pub fn set_name(&mut self, node: &Node, directory: NodeId, name: &[u8]) {
        let name = (directory, name.to_vec());
        match self.names.insert(name.clone(), node.id) {
            Some(before) if before == node.id => return,
            Some(before) => self.forget_name_of(before, &name),
            None => {}
        }
        node.state.lock().names.push(name);
    }

    /// Nothing has this name.
    pub fn remove_name(&mut self, directory: NodeId, name: &[u8]) {
        let name = (directory, name.to_vec());
        if let Some(before) = self.names.remove(&name) {
            self.forget_name_of(before, &name);
        }
    }

    fn forget_name_of(&self, id: NodeId, name: &Name) {
        if let Some(node) = self.by_id.get(&id) {
            node.state.lock().names.retain(|other| other != name);
        }
    }

    /// Forgets an object that nobody refers to. False: somebody does.
    pub fn remove(&mut self, node: &Node) -> bool {
        let mut state = node.state.lock();
        if state.lookups > 0 || state.opens > 0 || node.id == NodeId::ROOT {
            return false;
        }
        let names = std::mem::take(&mut state.names);
        drop(state);
        for name in names {
            if self.names.get(&name) == Some(&node.id) {
                self.names.remove(&name);
            }
        }
        self.by_id.remove(&node.id);
        if self.by_handle.get(&node.handle) == Some(&node.id) {
            self.by_handle.remove(&node.handle);
        }
        true
    }
}
