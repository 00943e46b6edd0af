//! What the host is being told of a change of a file's content.
//!
//! It drops what it has cached of it when all pages are unlocked, so who answers for one of them must not wait for that. But a
//! question about attributes must: of those that were asked before the host is told, it ignores the size. Who then reads
//! what the answer has shown would see the end of the file.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kernel::wait::WaitList;

/// The notices of one file.
#[derive(Default)]
pub(crate) struct Notices {
    under_way: AtomicUsize,
    taken: WaitList,
}

/// The host has taken note when this is dropped, on any thread.
pub struct Notice(Arc<Notices>);

impl Notices {
    pub fn begin(self: &Arc<Self>) -> Notice {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        Notice(Arc::clone(self))
    }

    /// Waits until the host has taken note of all.
    pub async fn until_taken(&self) {
        self.taken.until(|| (self.under_way.load(Ordering::SeqCst) == 0).then_some(())).await;
    }
}

impl Drop for Notice {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::SeqCst);
        self.0.taken.wake_all();
    }
}
