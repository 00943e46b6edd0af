//! Reports of what others change in open files. As from fanotify(7), which is read every few milliseconds, they come late,
//! several of a file are one, and when too many are queued all that is known is that something has changed.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{ROOT, SimTree};

/// Longest time from a change to its report.
const LATE_NS_MAX: u64 = 3_000_000;

/// Changes, in a thousand, with which the queue overflows.
const OVERFLOW_PERMILLE: u32 = 20;

thread_local! {
    /// Reports to come. Of the thread: who takes them has no world at hand ([`machine::tree::Watch::take`]).
    static QUEUE: RefCell<Vec<Arc<AtomicU64>>> = const { RefCell::new(Vec::new()) };
}

/// All that have happened come now.
pub(crate) fn take() {
    for file in QUEUE.take() {
        file.fetch_add(1, Ordering::Release);
    }
}

impl SimTree {
    /// Another process has changed the content of a file. Returns in how many nanoseconds that is reported.
    pub(super) fn queue_report(&mut self, number: u64) -> u64 {
        let overflows = self.disk.random.permille(OVERFLOW_PERMILLE);
        let changed = if overflows { ROOT..=u64::MAX } else { number..=number };
        let files = self.inodes.range(changed).map(|(_, inode)| Arc::clone(&inode.others));
        let watched = files.filter(|file| Arc::strong_count(file) > 2);
        QUEUE.with_borrow_mut(|queue| {
            for file in watched {
                if !queue.iter().any(|queued| Arc::ptr_eq(queued, &file)) {
                    queue.push(file);
                }
            }
        });
        self.disk.random.below(LATE_NS_MAX)
    }
}
