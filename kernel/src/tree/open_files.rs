//! One budget of open files for all trees: each costs descriptors, which connections need too.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::FileTree;
use super::files::Victim;
use crate::processor::Processor;
use crate::request::Context;

/// Files that may be open, at most: each is a device of the buffer cache, of which there are 65,536, and disks and files
/// that are just being closed are others.
pub const OPEN_FILES_MAX: usize = 60_000;

/// Files that are written, at most, to close one: those that the disk does not take are passed over.
const WRITTEN_MAX: usize = 8;

/// How many files all trees together may have open. Beyond it the ones least used are closed, those that nobody uses; when
/// all are in use, more are open for so long.
pub struct OpenFiles {
    files_max: AtomicUsize,
    open: AtomicUsize,
    trees: Mutex<Vec<Weak<FileTree>>>,
}

impl Default for OpenFiles {
    fn default() -> Self {
        let files_max = AtomicUsize::new(OPEN_FILES_MAX);
        OpenFiles { files_max, open: AtomicUsize::new(0), trees: Mutex::default() }
    }
}

impl OpenFiles {
    /// A budget that nothing is charged to.
    pub fn new(files_max: usize) -> Arc<Self> {
        let budget = OpenFiles::default();
        budget.set_max(files_max);
        Arc::new(budget)
    }

    /// Changes the budget. Files beyond it are closed when others are opened.
    pub fn set_max(&self, files_max: usize) {
        self.files_max.store(files_max.min(OPEN_FILES_MAX), Ordering::Relaxed);
    }

    /// Files that are open or being opened.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    pub(super) fn join(&self, tree: Weak<FileTree>) {
        let mut trees = self.trees();
        trees.retain(|tree| tree.strong_count() > 0);
        trees.push(tree);
    }

    /// A file is going to be opened.
    pub(super) fn begin(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    /// So many are not open any more.
    pub(super) fn end(&self, files: usize) {
        self.open.fetch_sub(files, Ordering::Relaxed);
    }

    /// Closes files until the budget is kept, or all of them are in use.
    pub(super) async fn make_room(&self, cpu: &Processor) {
        while self.open() > self.files_max.load(Ordering::Relaxed) && self.evict(cpu).await {}
    }

    /// Closes a file that nobody uses, of the tree that has most of them if it has one. False: there is none, or the disk
    /// does not take what must be written before.
    pub(super) async fn evict(&self, cpu: &Processor) -> bool {
        let mut trees: Vec<_> = self.trees().iter().filter_map(Weak::upgrade).collect();
        trees.sort_by_cached_key(|tree| Reverse(tree.files().len()));
        let mut written = 0;
        for tree in trees {
            loop {
                let victim = tree.files().pick();
                match victim {
                    None => break,
                    Some(Victim::Clean(file)) => {
                        file.abandon(cpu);
                        self.end(1);
                        return true;
                    }
                    Some(Victim::Dirty(_, _)) if written == WRITTEN_MAX => return false,
                    Some(Victim::Dirty(node, file)) => {
                        written += 1;
                        // Closed unless somebody has begun to use it meanwhile.
                        let is_written = file.commit(cpu, Context::synchronous(cpu.job())).await.is_ok();
                        if is_written && tree.files().take_idle(node, &file) {
                            file.abandon(cpu);
                            self.end(1);
                            return true;
                        }
                    }
                }
            }
        }
        false
    }

    fn trees(&self) -> MutexGuard<'_, Vec<Weak<FileTree>>> {
        self.trees.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
