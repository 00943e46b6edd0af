//! The open files of a tree: each at most once, the ones least used closed when there are too many.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, MutexGuard, OnceLock, PoisonError};

use machine::Errno;
use machine::tree::{Node, TreeCall, TreeReply};

use super::FileTree;
use super::lost::LostFiles;
use super::sync::SyncsUnderWay;
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
    pub(super) syncs: SyncsUnderWay,
    pub(super) lost: LostFiles,
    files_max: usize,
}

enum Slot {
    Opening(Arc<Attempt>),
    Open(Arc<Vnode>),
}

/// An attempt to open a file. Its outcome is kept with it and not looked for in the table: when a waiter gets to look,
/// the next attempt may be there, which wakes only those who wait for it.
#[derive(Default)]
struct Attempt {
    /// `None`: it was abandoned.
    outcome: OnceLock<Option<Result<Arc<Vnode>, Errno>>>,
    ended: WaitList,
}

impl Attempt {
    fn end(&self, outcome: Option<Result<Arc<Vnode>, Errno>>) {
        let _ = self.outcome.set(outcome);
        self.ended.wake_all();
    }

    async fn outcome(&self) -> Option<Result<Arc<Vnode>, Errno>> {
        self.ended.until(|| self.outcome.get().cloned()).await
    }
}

/// What a look into the table found.
enum Found {
    Open(Arc<Vnode>),
    Opening(Arc<Attempt>),
    /// The caller opens it; the others wait.
    Absent(Arc<Attempt>),
}

impl Files {
    pub(super) fn new(files_max: usize) -> Self {
        Files {
            slots: HashMap::new(),
            clock: VecDeque::new(),
            syncs: SyncsUnderWay::default(),
            lost: LostFiles::default(),
            files_max,
        }
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

    /// Open files with something that is not durable yet.
    pub(super) fn unclean(&self) -> impl Iterator<Item = &Arc<Vnode>> {
        let open = self.slots.values().filter_map(|slot| if let Slot::Open(file) = slot { Some(file) } else { None });
        open.filter(|file| !file.is_clean())
    }

    fn look(&mut self, node: Node) -> Found {
        match self.slots.get(&node) {
            Some(Slot::Open(file)) => {
                file.note_use();
                Found::Open(Arc::clone(file))
            }
            Some(Slot::Opening(attempt)) => Found::Opening(Arc::clone(attempt)),
            None => {
                let attempt = Arc::new(Attempt::default());
                self.slots.insert(node, Slot::Opening(Arc::clone(&attempt)));
                Found::Absent(attempt)
            }
        }
    }

    /// Puts an opened file in; names one to close when there are too many.
    fn put(&mut self, node: Node, file: &Arc<Vnode>) -> Option<Arc<Vnode>> {
        self.syncs.join(node, file);
        if let Some(loss) = self.lost.of(&node) {
            file.restore_loss(&loss);
        }
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
                if let Some(loss) = file.loss() {
                    self.lost.insert(node, loss);
                }
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
                Found::Opening(attempt) => {
                    if let Some(outcome) = attempt.outcome().await {
                        return outcome;
                    }
                }
                Found::Absent(attempt) => return Opening { tree: self, node, attempt }.open(cpu).await,
            }
        }
    }
}

/// A file that is being opened. Dropped before the end, it is not.
struct Opening<'a> {
    tree: &'a FileTree,
    node: Node,
    attempt: Arc<Attempt>,
}

impl Opening<'_> {
    async fn open(self, cpu: &Processor) -> Result<Arc<Vnode>, Errno> {
        let opened = self.ask(cpu).await;
        let surplus = match &opened {
            Ok(file) => self.tree.files().put(self.node, file),
            Err(_) => {
                self.tree.files().slots.remove(&self.node);
                None
            }
        };
        self.attempt.end(Some(opened.clone()));
        if let Some(surplus) = surplus {
            surplus.abandon(cpu);
        }
        opened
    }

    async fn ask(&self, cpu: &Processor) -> Result<Arc<Vnode>, Errno> {
        let attributes = match self.tree.ask(cpu, None, TreeCall::Attributes { node: self.node }).await? {
            TreeReply::Attributes(attributes) => attributes,
            _ => return Err(Errno::IO),
        };
        let open = match self.tree.ask(cpu, None, TreeCall::Open { node: self.node }).await? {
            TreeReply::Opened(open) => open,
            _ => return Err(Errno::IO),
        };
        Vnode::new(cpu, self.tree, self.node, open, attributes)
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        if self.attempt.outcome.get().is_none() {
            self.tree.files().slots.remove(&self.node);
            self.attempt.end(None);
        }
    }
}
