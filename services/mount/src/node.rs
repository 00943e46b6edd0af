//! The files, directories and other objects that the host knows, under the numbers by which it knows them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use kernel::wait::TaskMutex;
use parking_lot::Mutex;
use policy::unit::Instant;
use smallvec::SmallVec;

use crate::ahead::Ahead;
use crate::attributes::{Attributes, Kind};
use crate::client::{Access, Object};
use crate::content::Content;
use crate::errors::Errors;
use crate::handle::Handle;
use crate::known::Known;
use crate::notice::Notices;

/// What the host calls an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u64);

impl NodeId {
    pub const ROOT: NodeId = NodeId(1);
}

/// Objects other than directories that are known at a time, unless they are in use. Of more, the host is asked to forget the
/// oldest names: it would refer to all that it ever listed, for as long as it has memory. Not those of directories:
/// with its name, what is mounted below a directory would go.
const KNOWN_MAX: usize = 1 << 17;

/// Objects that are looked at for one that comes to be known.
const DISMISSED_AT_ONCE_MAX: usize = 16;

/// First number of objects whose own number on the server another one has here.
const ALIASES: u64 = 1 << 63;

/// A name in a directory.
pub(crate) type Name = (NodeId, Arc<[u8]>);

pub(crate) struct Node {
    pub id: NodeId,
    /// What programs are told (`st_ino`).
    pub number: u64,
    /// No other object ever has it: numbers come again.
    serial: u64,
    pub handle: Handle,
    pub kind: Kind,
    pub known: Arc<Known>,
    pub errors: Arc<Errors>,
    pub ahead: Ahead,
    pub notices: Arc<Notices>,
    /// Held while what is cached of the content is renewed.
    pub following: TaskMutex,
    /// Held while one of its names is taken away: meanwhile nobody opens it, who could find it gone then.
    pub losing_name: TaskMutex,
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
    /// When others were seen to have changed the content, until the host has asked for the size since.
    pub end_changed: Option<Instant>,
    /// Threads that were to open it and were refused for that, so that the host asks for the size.
    pub refused: Vec<u32>,
    names: SmallVec<[Name; 1]>,
    /// Its names since it was removed while it was open: one for each that it had.
    pub hidden: Vec<(Arc<Node>, Vec<u8>)>,
    /// Rights that the user has, and until when that holds.
    pub granted: Option<(Access, Instant)>,
    /// The host was asked to forget its names.
    pub is_dismissed: bool,
    /// What was written is made durable in a while.
    pub commits_later: bool,
    /// A task makes what was written durable, after which the node may be forgotten.
    pub is_settling: bool,
    /// What was written is lost: the node stays until somebody was told.
    pub is_lost: bool,
}

impl Node {
    pub fn object(&self) -> Object<'_> {
        Object { handle: &self.handle, file_id: self.known.attributes().file_id }
    }

    pub fn content(&self) -> Option<Arc<Content>> {
        self.state.lock().content.clone()
    }

    /// Between our own writes others may have made it longer: what they wrote lies beyond the end that readers see.
    pub fn find_longer(&self) {
        if self.content().is_some_and(|content| content.volume.size() < self.known.attributes().size) {
            self.known.begin_stale();
        }
    }

    /// Has it nothing that is not durable?
    pub fn is_clean(&self) -> bool {
        self.ahead.left().0 == 0 && self.content().is_none_or(|content| content.volume.is_clean())
    }

    /// The host gets the attributes, which it asked for then.
    pub fn note_told(&self, asked: Instant) {
        // Of what it had asked for when it was told of the change, it ignores the size.
        self.state.lock().end_changed.take_if(|changed| *changed < asked);
    }

    pub fn is_open(&self) -> bool {
        self.state.lock().opens > 0
    }

    /// For people.
    pub fn description(&self) -> String {
        let NodeId(id) = self.id;
        match self.state.lock().names.first() {
            Some((_, name)) => format!("{:?} (file {id})", String::from_utf8_lossy(name)),
            None => format!("file {id}"),
        }
    }
}

#[derive(Default)]
pub(crate) struct Nodes {
    by_id: HashMap<NodeId, Arc<Node>>,
    by_handle: HashMap<Handle, NodeId>,
    names: HashMap<Name, NodeId>,
    /// Directories all of whose names are in `names`, until then.
    whole: HashMap<NodeId, Instant>,
    aliases: u64,
    serials: u64,
    /// No directories, in the order in which they came to be known, with their serials; some of them are not known any more.
    order: VecDeque<(NodeId, u64)>,
    /// Objects in `order` that are known and not dismissed.
    dismissible: usize,
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
        self.names.get(&(directory, name.into())).and_then(|id| self.get(*id))
    }

    /// The directory has no names, and of others' is not heard until then.
    pub fn begin_whole(&mut self, directory: NodeId, until: Instant) {
        if self.by_id.contains_key(&directory) {
            self.whole.insert(directory, until);
        }
    }

    /// The directory may have names that are not known.
    pub fn end_whole(&mut self, directory: NodeId) {
        self.whole.remove(&directory);
    }

    /// Is it known that nothing has this name?
    pub fn is_absent(&mut self, now: Instant, directory: NodeId, name: &[u8]) -> bool {
        let is_whole = self.whole.get(&directory).is_some_and(|until| now < *until);
        if !is_whole {
            self.end_whole(directory);
        }
        is_whole && !self.names.contains_key(&(directory, name.into()))
    }

    pub fn all(&self) -> Vec<Arc<Node>> {
        self.by_id.values().cloned().collect()
    }

    /// Adds an object, by the server's number if that is free.
    pub fn insert(&mut self, handle: &Handle, known: Arc<Known>) -> Arc<Node> {
        let Attributes { fs_id, file_id, kind, .. } = known.attributes();
        let mut id = if self.by_id.is_empty() { NodeId::ROOT } else { NodeId(file_id) };
        let mut number = id.0;
        if id.0 == 0
            || id.0 >= ALIASES
            || (id == NodeId::ROOT && !self.by_id.is_empty())
            || self.by_id.contains_key(&id)
        {
            let other = self.by_id.get(&id).filter(|other| other.number == file_id);
            let other = other.map(|other| other.known.attributes());
            id = NodeId(ALIASES + self.aliases);
            self.aliases += 1;
            // In one file system, the other one is removed, and not forgotten yet. Of another one, both may be there, and
            // programs take what has one number for one file.
            if other.is_none_or(|other| (other.fs_id, other.file_id) != (fs_id, file_id)) {
                number = id.0;
            }
        }
        let (errors, ahead, notices) = (Arc::default(), Ahead::default(), Arc::default());
        let (following, losing_name, state) = (TaskMutex::default(), TaskMutex::default(), Mutex::default());
        self.serials += 1;
        let serial = self.serials;
        let node = Arc::new(Node {
            id,
            number,
            serial,
            handle: handle.clone(),
            kind,
            known,
            errors,
            ahead,
            notices,
            following,
            losing_name,
            state,
        });
        self.by_id.insert(id, Arc::clone(&node));
        self.by_handle.insert(handle.clone(), id);
        if kind != Kind::Directory {
            self.dismissible += 1;
            self.order.push_back((id, serial));
        }
        node
    }

    /// Names that the host is to forget now.
    pub fn dismiss(&mut self) -> Vec<Name> {
        let mut names = Vec::new();
        for _ in 0..DISMISSED_AT_ONCE_MAX {
            if self.dismissible <= KNOWN_MAX {
                break;
            }
            let Some((id, serial)) = self.order.pop_front() else { break };
            let Some(node) = self.by_id.get(&id).filter(|node| node.serial == serial) else { continue };
            let mut state = node.state.lock();
            if state.opens > 0 {
                self.order.push_back((id, serial));
            } else if !state.is_dismissed {
                state.is_dismissed = true;
                self.dismissible -= 1;
                names.extend(state.names.iter().cloned());
            }
        }
        // Not all the time if more are in use.
        if self.order.len() > 4 * KNOWN_MAX.max(self.dismissible) {
            let by_id = &self.by_id;
            self.order.retain(|(id, serial)| by_id.get(id).is_some_and(|node| node.serial == *serial));
        }
        names
    }

    fn is_known(&self, node: &Node) -> bool {
        self.by_id.get(&node.id).is_some_and(|known| known.serial == node.serial)
    }

    /// The object has this name.
    pub fn set_name(&mut self, node: &Node, directory: NodeId, name: &[u8]) {
        if !self.is_known(node) {
            self.end_whole(directory);
            return self.remove_name(directory, name);
        }
        if std::mem::take(&mut node.state.lock().is_dismissed) {
            self.dismissible += 1;
            self.order.push_back((node.id, node.serial));
        }
        let name = (directory, Arc::from(name));
        match self.names.insert(name.clone(), node.id) {
            Some(before) if before == node.id => return,
            Some(before) => self.forget_name_of(before, &name),
            None => {}
        }
        node.state.lock().names.push(name);
    }

    /// Nothing has this name.
    pub fn remove_name(&mut self, directory: NodeId, name: &[u8]) {
        let name = (directory, Arc::from(name));
        if let Some(before) = self.names.remove(&name) {
            self.forget_name_of(before, &name);
        }
    }

    fn forget_name_of(&self, id: NodeId, name: &Name) {
        if let Some(node) = self.by_id.get(&id) {
            node.state.lock().names.retain(|other| other != name);
        }
    }

    /// Forgets an object that nobody refers to. False: somebody does, somebody must be told what is lost, or it was forgotten
    /// before, and another one may have its number now.
    pub fn remove(&mut self, node: &Node) -> bool {
        if !self.is_known(node) {
            return false;
        }
        let mut state = node.state.lock();
        let is_used = state.lookups > 0 || state.opens > 0 || node.id == NodeId::ROOT;
        if is_used || (state.is_lost && node.errors.untold().is_some()) {
            return false;
        }
        let names = std::mem::take(&mut state.names);
        if node.kind != Kind::Directory && !state.is_dismissed {
            self.dismissible -= 1;
        }
        drop(state);
        for name in names {
            if self.names.get(&name) == Some(&node.id) {
                self.names.remove(&name);
                self.end_whole(name.0);
            }
        }
        self.end_whole(node.id);
        self.by_id.remove(&node.id);
        if self.by_handle.get(&node.handle) == Some(&node.id) {
            self.by_handle.remove(&node.handle);
        }
        true
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::known::Bounds;

    pub(crate) fn insert(nodes: &mut Nodes, number: u64, kind: Kind) -> Arc<Node> {
        let bounds = Bounds { min: Duration::ZERO, max: Duration::ZERO };
        let known = Known::new(Instant::ZERO, Attributes::bare(number, kind), bounds);
        let node = nodes.insert(&Handle::new(&number.to_be_bytes()), known);
        node.state.lock().lookups = 1;
        nodes.set_name(&node, NodeId::ROOT, &number.to_be_bytes());
        node
    }

    #[test]
    fn of_many_objects_the_oldest_are_dismissed_that_are_not_in_use() {
        let mut nodes = Nodes::default();
        insert(&mut nodes, 1, Kind::Directory);
        let open = insert(&mut nodes, 2, Kind::File);
        open.state.lock().opens = 1;
        let last = 2 * KNOWN_MAX as u64;
        for number in 3..=last {
            insert(&mut nodes, number, Kind::File);
            for (directory, name) in nodes.dismiss() {
                // As the host does it.
                let node = nodes.named(directory, &name).expect("it is known");
                node.state.lock().lookups = 0;
                assert!(nodes.remove(&node));
            }
        }
        assert_eq!((nodes.by_id.len(), nodes.dismissible), (KNOWN_MAX + 1, KNOWN_MAX));
        assert!(nodes.get(open.id).is_some() && nodes.get(NodeId(last)).is_some());
        assert!(nodes.get(NodeId(3)).is_none());
        assert!(nodes.order.len() <= 4 * KNOWN_MAX);
    }

    #[test]
    fn an_object_is_forgotten_once_also_if_its_number_comes_again() {
        let mut nodes = Nodes::default();
        insert(&mut nodes, 1, Kind::Directory);
        let first = insert(&mut nodes, 2, Kind::File);
        first.state.lock().lookups = 0;
        assert!(nodes.remove(&first) && !nodes.remove(&first));
        let second = insert(&mut nodes, 2, Kind::File);
        assert!(!nodes.remove(&first), "another one has its number");
        assert!(Arc::ptr_eq(&second, &nodes.get(second.id).expect("it is known")));
        assert_eq!(nodes.dismissible, 1);
    }

    #[test]
    fn an_object_has_the_number_of_a_removed_one_that_is_still_known_and_not_that_of_another_file_systems() {
        let mut nodes = Nodes::default();
        insert(&mut nodes, 1, Kind::Directory);
        let mut of = |fs_id: u64, file_id: u64, handle: &[u8]| {
            let bounds = Bounds { min: Duration::ZERO, max: Duration::ZERO };
            let attributes = Attributes { fs_id, ..Attributes::bare(file_id, Kind::File) };
            let node = nodes.insert(&Handle::new(handle), Known::new(Instant::ZERO, attributes, bounds));
            (node.id.0, node.number)
        };
        assert_eq!(of(0, 5, b"removed"), (5, 5));
        assert_eq!(of(0, 5, b"new"), (ALIASES, 5));
        assert_eq!(of(7, 5, b"of another file system"), (ALIASES + 1, ALIASES + 1));
        assert_eq!(of(0, ALIASES + 1, b"high"), (ALIASES + 2, ALIASES + 2));
    }

    #[test]
    fn objects_that_come_and_go_with_one_number_take_no_room() {
        let mut nodes = Nodes::default();
        insert(&mut nodes, 1, Kind::Directory);
        for _ in 0..4 * KNOWN_MAX + 16 {
            let node = insert(&mut nodes, 2, Kind::File);
            assert!(nodes.dismiss().is_empty());
            node.state.lock().lookups = 0;
            assert!(nodes.remove(&node));
        }
        insert(&mut nodes, 2, Kind::File);
        assert!(nodes.order.len() <= 4 * KNOWN_MAX);
    }

    #[test]
    fn what_a_whole_directory_does_not_have_is_known_until_something_in_it_is_forgotten() {
        let mut nodes = Nodes::default();
        let directory = insert(&mut nodes, 1, Kind::Directory).id;
        let (now, end) = (Instant::ZERO, Instant::ZERO + Duration::from_secs(60));
        assert!(!nodes.is_absent(now, directory, b"a"));
        nodes.begin_whole(directory, end);
        let node = insert(&mut nodes, 2, Kind::File);
        nodes.set_name(&node, directory, b"a");
        assert!(!nodes.is_absent(now, directory, b"a") && nodes.is_absent(now, directory, b"b"));
        nodes.remove_name(directory, b"a");
        assert!(nodes.is_absent(now, directory, b"a"));
        nodes.set_name(&node, directory, b"c");
        node.state.lock().lookups = 0;
        assert!(nodes.remove(&node));
        assert!(!nodes.is_absent(now, directory, b"a"), "it may have others");
        nodes.begin_whole(directory, end);
        assert!(!nodes.is_absent(end, directory, b"a"));
    }

    #[test]
    fn an_object_whose_data_is_lost_stays_until_somebody_was_told() {
        let mut nodes = Nodes::default();
        insert(&mut nodes, 1, Kind::Directory);
        let node = insert(&mut nodes, 2, Kind::File);
        node.errors.note(machine::Errno::IO);
        (node.state.lock().lookups, node.state.lock().is_lost) = (0, true);
        assert!(!nodes.remove(&node));
        let found = nodes.of_handle(&node.handle).expect("it is known");
        assert_eq!(found.errors.take(&mut found.errors.begin()), Some(machine::Errno::IO));
        assert!(nodes.remove(&node));
    }

    #[test]
    fn an_object_that_is_found_again_is_dismissed_again() {
        let mut nodes = Nodes::default();
        let first = insert(&mut nodes, 2, Kind::File);
        let mut dismissed = Vec::new();
        for number in 3..=KNOWN_MAX as u64 + 2 {
            insert(&mut nodes, number, Kind::File);
            dismissed.extend(nodes.dismiss());
        }
        assert_eq!(dismissed.len(), 1);
        nodes.set_name(&first, NodeId::ROOT, b"again");
        assert_eq!(nodes.dismiss().len(), 1, "the next oldest");
        assert!(!first.state.lock().is_dismissed);
    }
}
