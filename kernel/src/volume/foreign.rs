//! Flushes of the device that the volume did not ask for: a file is synced by its name, too, when its attributes change.
//!
//! A host may forget what such a flush covered when it fails, and says so only to whoever asked. So it counts as one of
//! the volume's own. Of two flushes side by side one may fail, and nobody would know what the other one was worth: the
//! volume's own counts when those that had begun before its end have ended, too.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use machine::Errno;

use super::Volume;
use crate::wait::WaitList;

/// Those that have begun and ended so far, in their order: one is under way at a time.
#[derive(Default)]
pub(super) struct ForeignFlushes {
    begun: AtomicU64,
    ended: AtomicU64,
    changed: WaitList,
}

impl ForeignFlushes {
    /// Waits for the end of those that have begun.
    pub(super) async fn until_ended(&self) {
        let begun = self.begun.load(Ordering::SeqCst);
        self.changed.until(|| (self.ended.load(Ordering::SeqCst) >= begun).then_some(())).await;
    }
}

/// A flush that the volume did not ask for, while it lasts.
pub struct ForeignFlush(Arc<Volume>);

impl Volume {
    /// Somebody else flushes the device from now on. One at a time.
    pub fn begin_foreign_flush(self: &Arc<Self>) -> ForeignFlush {
        self.foreign.begun.fetch_add(1, Ordering::SeqCst);
        ForeignFlush(Arc::clone(self))
    }
}

impl ForeignFlush {
    /// It failed: what was written before, flushed or not as far as the volume knows, may be lost.
    pub fn failed(self, errno: Errno) {
        let volume = &self.0;
        let covered = volume.state().flushing.clone();
        volume.on_failed_flush(&covered, errno);
    }
}

impl Drop for ForeignFlush {
    fn drop(&mut self) {
        self.0.foreign.ended.fetch_add(1, Ordering::SeqCst);
        self.0.foreign.changed.wake_all();
    }
}
