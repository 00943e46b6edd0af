//! What is newer in the cache than on the disks, over all volumes, and who waits for it to be written.

use std::sync::atomic::Ordering;

use policy::writeback::DirtyFacts;

use super::Kernel;

impl Kernel {
    /// Blocks newer than on their devices.
    pub fn dirty_blocks(&self) -> u64 {
        self.dirty_blocks.load(Ordering::Relaxed)
    }

    /// What can be written, and the cache without what cannot.
    pub(crate) fn dirty_facts(&self) -> DirtyFacts {
        let stuck = self.stuck_blocks();
        DirtyFacts {
            dirty_blocks: self.dirty_blocks().saturating_sub(stuck),
            cache_blocks: self.cache_blocks().saturating_sub(stuck),
        }
    }

    /// Blocks that volumes on failing disks hold.
    pub(crate) fn stuck_blocks(&self) -> u64 {
        self.stuck_blocks.load(Ordering::Relaxed)
    }

    /// A volume on a failing disk holds so many blocks now, and not as many as before.
    pub(crate) fn change_stuck(&self, before: u64, now: u64) {
        self.stuck_blocks.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
        if now != before {
            self.memory_wait.wake_all();
        }
    }

    pub(crate) fn add_dirty(&self, blocks: u64) {
        self.dirty_blocks.fetch_add(blocks, Ordering::Relaxed);
    }

    pub(crate) fn subtract_dirty(&self, blocks: u64) {
        self.dirty_blocks.fetch_sub(blocks, Ordering::Relaxed);
        self.memory_wait.wake_all();
    }

    /// Somebody waits for dirty blocks to be written, as long as what is given exists.
    pub(crate) fn await_write_back(&self) -> impl Drop + '_ {
        struct Waits<'a>(&'a Kernel);
        impl Drop for Waits<'_> {
            fn drop(&mut self) {
                self.0.writers_waiting.fetch_sub(1, Ordering::SeqCst);
            }
        }
        self.writers_waiting.fetch_add(1, Ordering::SeqCst);
        self.write_back_wait.wake_all();
        Waits(self)
    }

    /// Does somebody wait for dirty blocks to be written?
    pub(crate) fn is_write_back_awaited(&self) -> bool {
        self.is_memory_short() || self.writers_waiting.load(Ordering::SeqCst) > 0
    }
}
