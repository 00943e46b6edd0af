//! A budget of open files for all trees: each file costs descriptors, which connections need, too.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::files::{Files, Victim};
use crate::processor::Processor;
use crate::request::Context;

/// Open files at most: each is a device of the buffer cache, of which there are 65,536, including disks and files that
/// are being closed.
pub const OPEN_FILES_MAX: usize = 60_000;

/// Files written, at most, in order to close one: those that the disk does not take are skipped.
const WRITTEN_MAX: usize = 8;

/// The number of files that all trees together may have open. Beyond it, unused files are closed, least recently used
/// first; while all are in use, the limit is exceeded.
pub struct OpenFiles {
    files_max: AtomicUsize,
    open: AtomicUsize,
    /// The open files of each tree.
    trees: Mutex<Vec<Weak<Mutex<Files>>>>,
}

impl Default for OpenFiles {
    fn default() -> Self {
        let files_max = AtomicUsize::new(OPEN_FILES_MAX);
        OpenFiles { files_max, open: AtomicUsize::new(0), trees: Mutex::default() }
    }
}

impl OpenFiles {
    /// An unused budget.
    pub fn new(files_max: usize) -> Arc<Self> {
        let budget = OpenFiles::default();
        budget.set_max(files_max);
        Arc::new(budget)
    }

    /// Files in excess are closed when others are opened.
    pub fn set_max(&self, files_max: usize) {
        self.files_max.store(files_max.min(OPEN_FILES_MAX), Ordering::Relaxed);
    }

    /// Files that are open or being opened.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    pub(super) fn join(&self, files: Weak<Mutex<Files>>) {
        let mut trees = self.trees.lock();
        trees.retain(|files| files.strong_count() > 0);
        trees.push(files);
    }

    /// To be called before a file is opened.
    pub(super) fn begin(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    /// `files` were closed.
    pub(super) fn end(&self, files: usize) {
        self.open.fetch_sub(files, Ordering::Relaxed);
    }

    /// Closes files until the budget is met, or all are in use.
    pub(super) async fn make_room(&self, cpu: &Processor) {
        while self.open() > self.files_max.load(Ordering::Relaxed) && self.evict(cpu).await {}
    }

    /// Closes an unused file, preferably of the tree with most files. False: there is none, or the disk does not take
    /// what must be written first.
    pub(super) async fn evict(&self, cpu: &Processor) -> bool {
        let mut trees: Vec<_> = self.trees.lock().iter().filter_map(Weak::upgrade).collect();
        trees.sort_by_cached_key(|files| Reverse(files.lock().len()));
        let mut written = 0;
        for files in trees {
            loop {
                let victim = files.lock().pick();
                match victim {
                    None => break,
                    Some(Victim::Clean(file)) => {
                        file.abandon(cpu);
                        self.end(1);
                        return true;
                    }
                    Some(Victim::Dirty(_)) if written == WRITTEN_MAX => return false,
                    Some(Victim::Dirty(file)) => {
                        written += 1;
                        // Unless it came into use meanwhile.
                        let is_written = file.flush(cpu, Context::synchronous(cpu.job())).await.is_ok();
                        if is_written && files.lock().take_idle(&file) {
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
}
