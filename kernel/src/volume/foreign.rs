//! Flushes of the device that the volume did not issue: a change of a file's attributes syncs the file by its name,
//! too.
//!
//! When such a flush fails, the host may drop what it covered and report that to its caller only, so it counts as the
//! volume's own. Of two concurrent flushes one may fail, and then the other's success proves nothing: the volume's own
//! flush completes only after the foreign ones that began before its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use machine::Errno;

use super::Volume;
use crate::wait::WaitList;

/// Numbers of flushes begun and ended; one is in flight at a time.
#[derive(Default)]
pub(super) struct ForeignFlushes {
    begun: AtomicU64,
    ended: AtomicU64,
    changed: WaitList,
}

impl ForeignFlushes {
    /// Waits for the end of the flushes that have begun.
    pub(super) async fn until_ended(&self) {
        let begun = self.begun.load(Ordering::SeqCst);
        self.changed.until(|| (self.ended.load(Ordering::SeqCst) >= begun).then_some(())).await;
    }
}

/// A foreign flush in flight, until dropped.
pub struct ForeignFlush(Arc<Volume>);

impl Volume {
    /// To be called before the device is flushed. One at a time.
    pub fn begin_foreign_flush(self: &Arc<Self>) -> ForeignFlush {
        self.foreign.begun.fetch_add(1, Ordering::SeqCst);
        ForeignFlush(Arc::clone(self))
    }
}

impl ForeignFlush {
    /// The flush failed: the device may have lost what was written before, even what the volume considers flushed.
    pub fn failed(self, errno: Errno) {
        let volume = &self.0;
        volume.on_failed_flush(errno);
    }
}

impl Drop for ForeignFlush {
    fn drop(&mut self) {
        self.0.foreign.ended.fetch_add(1, Ordering::SeqCst);
        self.0.foreign.changed.wake_all();
    }
}
