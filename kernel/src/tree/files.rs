//! The table of a tree's open files: each is open at most once.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use machine::Errno;
use machine::tree::Node;
use parking_lot::MutexGuard;
use policy::unit::Instant;

use super::FileTree;
use super::lost::LostFiles;
use super::vnode::Vnode;
use crate::volume::ForeignFlush;
use crate::wait::WaitList;

/// Files examined, at most, before a dirty one is accepted.
const LOOKS_MAX: usize = 64;

#[derive(Default)]
pub(super) struct Files {
    slots: HashMap<Node, Slot>,
    /// All open files, unordered.
    open: Vec<(Node, Arc<Vnode>)>,
    /// Position of the clock algorithm that finds a file to close.
    hand: usize,
    /// Position of the last look at files that clients do not use.
    looked_at: usize,
    /// Is there a task that looks at them?
    pub(super) are_looked_at: bool,
    pub(super) syncs: SyncsUnderWay,
    pub(super) lost: LostFiles,
}

enum Slot {
    Opening(Arc<Attempt>),
    /// Index in `Files::open`.
    Open(usize),
}

/// An attempt to open a file. Waiters take the outcome from here, not from the table: by the time they run, the table
/// may have the next attempt, which wakes only its own waiters.
#[derive(Default)]
pub(super) struct Attempt {
    /// `None`: the attempt was abandoned.
    outcome: OnceLock<Option<Result<Arc<Vnode>, Errno>>>,
    ended: WaitList,
    /// When clients were told of a change of its attributes meanwhile, in nanoseconds; zero if they were not.
    told: AtomicU64,
}

impl Attempt {
    pub(super) fn end(&self, outcome: Option<Result<Arc<Vnode>, Errno>>) {
        let _ = self.outcome.set(outcome);
        self.ended.wake_all();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.outcome.get().is_some()
    }

    pub(super) async fn outcome(&self) -> Option<Result<Arc<Vnode>, Errno>> {
        self.ended.until(|| self.outcome.get().cloned()).await
    }
}

/// The result of a lookup.
pub(super) enum Found {
    Open(Arc<Vnode>),
    Opening(Arc<Attempt>),
    /// The caller must open it; others wait for the attempt.
    Absent(Arc<Attempt>),
}

/// A file that can be closed.
pub(super) enum Victim {
    /// Already removed from the table.
    Clean(Arc<Vnode>),
    /// Must be written first.
    Dirty(Arc<Vnode>),
}

impl Files {
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn get(&self, node: Node) -> Option<Arc<Vnode>> {
        match self.slots.get(&node) {
            Some(&Slot::Open(at)) => {
                let (_, file) = &self.open[at];
                file.note_use();
                Some(Arc::clone(file))
            }
            _ => None,
        }
    }

    pub(super) fn look(&mut self, node: Node) -> Found {
        if let Some(file) = self.get(node) {
            return Found::Open(file);
        }
        match self.slots.get(&node) {
            Some(Slot::Opening(attempt)) => Found::Opening(Arc::clone(attempt)),
            _ => {
                let attempt = Arc::new(Attempt::default());
                self.slots.insert(node, Slot::Opening(Arc::clone(&attempt)));
                Found::Absent(attempt)
            }
        }
    }

    /// A file, if it is open. If it is being opened, clients are told `now` of a change of its attributes.
    pub(super) fn get_changed(&mut self, node: Node, now: Instant) -> Option<Arc<Vnode>> {
        if let Some(Slot::Opening(attempt)) = self.slots.get(&node) {
            attempt.told.store(now.ns(), Ordering::Relaxed);
        }
        self.get(node)
    }

    /// An attempt to open a file ended, with `file` if it succeeded.
    pub(super) fn end_opening(&mut self, node: Node, attempt: &Attempt, file: Option<&Arc<Vnode>>) {
        match file {
            Some(file) => {
                let told = attempt.told.load(Ordering::Relaxed);
                if told > 0 {
                    file.known().outdate(Instant::from_ns(told));
                }
                self.syncs.join(node, file);
                if let Some(loss) = self.lost.of(&node) {
                    file.restore_loss(&loss);
                }
                self.slots.insert(node, Slot::Open(self.open.len()));
                self.open.push((node, Arc::clone(file)));
            }
            None => drop(self.slots.remove(&node)),
        }
    }

    /// Removes an open file. A file that is being opened is not removed, and will be added when opened.
    pub(super) fn remove(&mut self, node: Node) -> Option<Arc<Vnode>> {
        let Some(&Slot::Open(at)) = self.slots.get(&node) else { return None };
        self.slots.remove(&node);
        let (_, file) = self.open.swap_remove(at);
        if let Some((moved, _)) = self.open.get(at) {
            self.slots.insert(*moved, Slot::Open(at));
        }
        Some(file)
    }

    pub(super) fn take_all(&mut self) -> Vec<Arc<Vnode>> {
        self.slots.retain(|_, slot| matches!(slot, Slot::Opening(_)));
        std::mem::take(&mut self.open).into_iter().map(|(_, file)| file).collect()
    }

    /// An unused file that was not used lately; preferably a clean one, if one is found soon.
    pub(super) fn pick(&mut self) -> Option<Victim> {
        let mut dirty = None;
        // The first pass clears the marks of recent use.
        for look in 0..2 * self.open.len() {
            if look >= LOOKS_MAX && dirty.is_some() {
                break;
            }
            self.hand = if self.hand + 1 < self.open.len() { self.hand + 1 } else { 0 };
            let (node, file) = &self.open[self.hand];
            if Arc::strong_count(file) > 1 || file.take_use() {
                continue;
            }
            if file.is_clean() {
                let node = *node;
                return self.retire(node).map(Victim::Clean);
            }
            dirty.get_or_insert(Arc::clone(file));
        }
        dirty.map(Victim::Dirty)
    }

    /// Removes the caller's file if it has no other user and is clean.
    pub(super) fn take_idle(&mut self, file: &Vnode) -> bool {
        let Some(&Slot::Open(at)) = self.slots.get(&file.node) else { return false };
        let open = &self.open[at].1;
        // The table's reference, and the caller's.
        let is_idle = std::ptr::eq(&raw const **open, file) && Arc::strong_count(open) == 2 && file.is_clean();
        is_idle && self.retire(file.node).is_some()
    }

    /// The next file in a round through all.
    pub(super) fn look_at_next(&mut self) -> Option<Arc<Vnode>> {
        self.looked_at = if self.looked_at + 1 < self.open.len() { self.looked_at + 1 } else { 0 };
        self.open.get(self.looked_at).map(|(_, file)| Arc::clone(file))
    }

    /// Removes a file that may be opened again: its loss is remembered.
    fn retire(&mut self, node: Node) -> Option<Arc<Vnode>> {
        let file = self.remove(node)?;
        if let Some(loss) = file.loss() {
            self.lost.insert(node, loss);
        }
        Some(file)
    }

    /// Open files with content that is not durable yet.
    pub(super) fn unclean(&self) -> impl Iterator<Item = &Arc<Vnode>> {
        self.open.iter().map(|(_, file)| file).filter(|file| !file.is_clean())
    }

    /// One sync per node at a time.
    pub(super) fn begin_syncs(&mut self, nodes: &[Node]) {
        for node in nodes {
            let open = self.get(*node);
            let files = self.syncs.0.entry(*node).or_default();
            if let Some(file) = open.filter(|_| files.is_empty()) {
                let sync = file.begin_sync();
                files.push((file, sync));
            }
        }
    }
}

/// The nodes being synced, with their files that are open or were opened meanwhile: what is written to these meanwhile
/// may be lost, too, if the sync fails.
#[derive(Default)]
pub(super) struct SyncsUnderWay(HashMap<Node, Vec<(Arc<Vnode>, ForeignFlush)>>);

impl SyncsUnderWay {
    fn join(&mut self, node: Node, file: &Arc<Vnode>) {
        if let Some(files) = self.0.get_mut(&node) {
            files.push((Arc::clone(file), file.begin_sync()));
        }
    }

    pub(super) fn end(&mut self, nodes: &[Node]) -> Vec<(Arc<Vnode>, ForeignFlush)> {
        nodes.iter().filter_map(|node| self.0.remove(node)).flatten().collect()
    }
}

impl FileTree {
    pub(super) fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock()
    }

    pub fn open_file(&self, node: Node) -> Option<Arc<Vnode>> {
        self.files().get(node)
    }
}
