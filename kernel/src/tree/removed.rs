//! Files that processes of the host remove or replace while they are open here. The host frees the space of a file when
//! nobody has it open, and reports only to who asks that it has no name any more. So a file that clients do not use is
//! asked for now and then, and closed when the host does not know it.
//!
//! Rejected: to forget what was not written to such a file. Where files are found by their places, one that is being moved may
//! be unknown for a moment.

use std::sync::Arc;
use std::time::Duration;

use machine::Errno;
use parking_lot::Mutex;

use super::FileTree;
use super::files::Files;
use super::open_files::OpenFiles;
use super::vnode::Vnode;
use crate::processor::Processor;

/// A file is asked for when that was not done for this long.
const UNASKED: Duration = Duration::from_secs(60);

/// Interval of looks, while any files are open.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// Files in one look, at most: a few milliseconds of a thread. All of the most that may be open have their turn within 40
/// minutes, 1,500 within one.
const LOOKS_MAX: usize = 256;

impl FileTree {
    /// The host does not know the file any more: closes it, if nobody but the caller uses it and all is written. Else that is left
    /// to a later look.
    pub(super) fn close_unknown(&self, cpu: &Processor, file: &Vnode) {
        close(cpu, &self.files, &self.config.open_files, file);
    }

    /// A file was opened: begins to look at all, unless that is done already.
    pub(super) fn look_at_unused(&self, cpu: &Processor) {
        if std::mem::replace(&mut self.files().are_looked_at, true) {
            return;
        }
        let (here, files, budget) = (cpu.clone(), Arc::downgrade(&self.files), Arc::clone(&self.config.open_files));
        cpu.spawn(async move {
            loop {
                here.sleep(LOOK_INTERVAL).await;
                let Some(files) = files.upgrade() else { return };
                if !look(&here, &files, &budget).await {
                    return;
                }
            }
        });
    }
}

/// Returns false if no file is open any more.
async fn look(cpu: &Processor, files: &Mutex<Files>, budget: &OpenFiles) -> bool {
    let looks = files.lock().len().min(LOOKS_MAX);
    for _ in 0..looks {
        let Some(file) = files.lock().look_at_next() else { break };
        let answered = file.known().answered;
        let is_due = answered.is_none_or(|answered| cpu.now().since(answered) >= UNASKED);
        if is_due && file.device.ask_host(cpu).await == Err(Errno::STALE) {
            close(cpu, files, budget, &file);
        }
    }
    let mut files = files.lock();
    files.are_looked_at = files.len() > 0;
    files.are_looked_at
}

fn close(cpu: &Processor, files: &Mutex<Files>, budget: &OpenFiles, file: &Vnode) {
    if files.lock().take_idle(file) {
        file.abandon(cpu);
        budget.end(1);
    }
}
