//! What the host is being told of a change of a file's content.
//!
//! It drops what it has cached of it when all pages are unlocked, so who answers for one of them must not wait for that. But a
//! question about attributes must: of those that were asked before the host is told, it ignores the size. Who then reads
//! what the answer has shown would see the end of the file.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kernel::wait::WaitList;

/// The notices of one file.
#[derive(Default)]
pub(crate) struct Notices {
    begun: AtomicU64,
    taken: AtomicU64,
    changed: WaitList,
}

/// The host has taken note when this is dropped, on any thread.
pub struct Notice(Arc<Notices>);

impl Notices {
    pub fn begin(self: &Arc<Self>) -> Notice {
        self.begun.fetch_add(1, Ordering::SeqCst);
        Notice(Arc::clone(self))
    }

    /// Waits until the host has taken note of all that were begun before: of one after the other.
    pub async fn until_taken(&self) {
        let begun = self.begun.load(Ordering::SeqCst);
        self.changed.until(|| (self.taken.load(Ordering::SeqCst) >= begun).then_some(())).await;
    }
}

impl Drop for Notice {
    fn drop(&mut self) {
        self.0.taken.fetch_add(1, Ordering::SeqCst);
        self.0.changed.wake_all();
    }
}
