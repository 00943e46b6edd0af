//! The open files of a tree: each at most once, the ones least used closed when there are too many.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, MutexGuard, PoisonError};

use machine::Errno;
use machine::tree::{Node, TreeCall, TreeReply};

use super::FileTree;
use super::vnode::Vnode;
use crate::processor::Processor;
use crate::wait::WaitList;

/// Files looked at, at most, to find one to close.
const LOOKS_MAX: usize = 64;

/// The table of open files.
pub(super) struct Files {
    slots: HashMap<Node, Slot>,
    /// All open ones; who is at the front is looked at first. May name some that are closed already.
    clock: VecDeque<Node>,
    files_max: usize,
}

enum Slot {
    Opening(Arc<WaitList>),
    Open(Arc<Vnode>),
}

/// What a look into the table found.
enum Found {
    Open(Arc<Vnode>),
    Opening(Arc<WaitList>),
    /// The caller opens it; the others wait.
    Absent(Arc<WaitList>),
}

impl Files {
    pub(super) fn new(files_max: usize) -> Self {
        Files { slots: HashMap::new(), clock: VecDeque::new(), files_max }
    }

    /// A file, if it is open.
    pub(super) fn get(&self, node: Node) -> Option<Arc<Vnode>> {
        match self.slots.get(&node) {
            Some(Slot::Open(file)) => {
                file.note_use();
                Some(Arc::clone(file))
            }
            _ => None,
        }
    }

    pub(super) fn remove(&mut self, node: Node) -> Option<Arc<Vnode>> {
        match self.slots.remove(&node) {
            Some(Slot::Open(file)) => Some(file),
            // Who opens it puts it in all the same.
            Some(opening) => {
                self.slots.insert(node, opening);
                None
            }
            None => None,
        }
    }

    pub(super) fn take_all(&mut self) -> Vec<Arc<Vnode>> {
        self.clock.clear();
        let open = self.slots.drain().filter_map(|(_, slot)| match slot {
            Slot::Open(file) => Some(file),
            Slot::Opening(_) => None,
        });
        open.collect()
    }

    fn look(&mut self, node: Node) -> Found {
        match self.slots.get(&node) {
            Some(Slot::Open(file)) => {
                file.note_use();
                Found::Open(Arc::clone(file))
            }
            Some(Slot::Opening(wait)) => Found::Opening(Arc::clone(wait)),
            None => {
                let wait = Arc::new(WaitList::default());
                self.slots.insert(node, Slot::Opening(Arc::clone(&wait)));
                Found::Absent(wait)
            }
        }
    }

    /// Puts an opened file in; names one to close when there are too many.
    fn put(&mut self, node: Node, file: &Arc<Vnode>) -> Option<Arc<Vnode>> {
        self.slots.insert(node, Slot::Open(Arc::clone(file)));
        self.clock.push_back(node);
        if self.slots.len() > self.files_max { self.pick() } else { None }
    }

    /// Takes out a file that nobody uses and that holds nothing newer than the host.
    fn pick(&mut self) -> Option<Arc<Vnode>> {
        for _ in 0..LOOKS_MAX.min(self.clock.len()) {
            let node = self.clock.pop_front()?;
            let Some(Slot::Open(file)) = self.slots.get(&node) else { continue };
            if Arc::strong_count(file) == 1 && !file.take_use() && file.is_clean() {
                return self.remove(node);
            }
            self.clock.push_back(node);
        }
        None
    }
}

impl FileTree {
    pub(super) fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A regular file, if it is open.
    pub fn open_file(&self, node: Node) -> Option<Arc<Vnode>> {
        self.files().get(node)
    }

    /// A regular file, opened if it is not.
    ///
    /// # Errors
    /// The host's; what is no regular file is [`Errno::INVALID`].
    pub async fn file(&self, cpu: &Processor, node: Node) -> Result<Arc<Vnode>, Errno> {
        loop {
            let found = self.files().look(node);
            match found {
                Found::Open(file) => return Ok(file),
                Found::Opening(wait) => {
                    let is_opening = || matches!(self.files().slots.get(&node), Some(Slot::Opening(_)));
                    wait.until(|| (!is_opening()).then_some(())).await;
                }
                Found::Absent(wait) => {
                    let opening = Opening { tree: self, node, wait };
                    return opening.open(cpu).await;
                }
            }
        }
    }
}

/// A file that is being opened. Dropped before the end, it is not.
struct Opening<'a> {
    tree: &'a FileTree,
    node: Node,
    wait: Arc<WaitList>,
}

impl Opening<'_> {
    async fn open(self, cpu: &Processor) -> Result<Arc<Vnode>, Errno> {
        let attributes = match self.tree.ask(cpu, None, TreeCall::Attributes { node: self.node }).await? {
            TreeReply::Attributes(attributes) => attributes,
            _ => return Err(Errno::IO),
        };
        let open = match self.tree.ask(cpu, None, TreeCall::Open { node: self.node }).await? {
            TreeReply::Opened(open) => open,
            _ => return Err(Errno::IO),
        };
        let file = Vnode::new(cpu, self.tree, self.node, open, attributes)?;
        let surplus = self.tree.files().put(self.node, &file);
        if let Some(surplus) = surplus {
            surplus.abandon(cpu);
        }
        Ok(file)
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        let mut files = self.tree.files();
        if matches!(files.slots.get(&self.node), Some(Slot::Opening(_))) {
            files.slots.remove(&self.node);
        }
        drop(files);
        self.wait.wake_all();
    }
}
