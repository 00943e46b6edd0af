//! Dirty, held and marked blocks of all volumes, and the writers that wait for write-back.

use std::sync::atomic::{AtomicU32, Ordering};

use policy::writeback::DirtyFacts;

use super::Memory;

impl Memory {
    /// Blocks newer than on their devices.
    pub fn dirty_blocks(&self) -> u64 {
        self.dirty_blocks.load(Ordering::Relaxed)
    }

    /// Without the blocks that degraded volumes hold.
    pub(crate) fn dirty_facts(&self) -> DirtyFacts {
        let stuck = self.stuck_blocks();
        DirtyFacts {
            dirty_blocks: self.dirty_blocks().saturating_sub(stuck),
            cache_blocks: self.cache_blocks().saturating_sub(stuck),
        }
    }

    /// Blocks held by degraded volumes.
    pub(crate) fn stuck_blocks(&self) -> u64 {
        self.stuck_blocks.load(Ordering::Relaxed)
    }

    /// A degraded volume now holds `now` blocks instead of `before`.
    pub(crate) fn change_stuck(&self, before: u64, now: u64) {
        self.stuck_blocks.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
        if now != before {
            self.memory_wait.wake_all();
        }
    }

    /// Blocks that shared volumes retain for other nodes.
    pub(crate) fn marked_blocks(&self) -> u64 {
        self.marked_blocks.load(Ordering::Relaxed)
    }

    pub(crate) fn add_marked(&self, blocks: u64) {
        self.marked_blocks.fetch_add(blocks, Ordering::Relaxed);
    }

    pub(crate) fn subtract_marked(&self, blocks: u64) {
        self.marked_blocks.fetch_sub(blocks, Ordering::Relaxed);
    }

    pub(crate) fn add_dirty(&self, blocks: u64) {
        self.dirty_blocks.fetch_add(blocks, Ordering::Relaxed);
    }

    pub(crate) fn subtract_dirty(&self, blocks: u64) {
        self.dirty_blocks.fetch_sub(blocks, Ordering::Relaxed);
        self.memory_wait.wake_all();
    }

    /// Registers a throttled writer until the result is dropped.
    pub(crate) fn await_write_back(&self) -> impl Drop + '_ {
        self.waits(&self.writers_waiting)
    }

    /// Registers an allocation that waits, until the result is dropped.
    pub(super) fn await_memory(&self) -> impl Drop + '_ {
        self.waits(&self.memory_short)
    }

    fn waits<'a>(&self, count: &'a AtomicU32) -> impl Drop + use<'a> {
        struct Waits<'a>(&'a AtomicU32);
        impl Drop for Waits<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::SeqCst);
            }
        }
        count.fetch_add(1, Ordering::SeqCst);
        self.write_back_wait.wake_all();
        Waits(count)
    }

    /// Does a writer or an allocation wait for write-back?
    pub(crate) fn is_write_back_awaited(&self) -> bool {
        self.is_memory_short() || self.writers_waiting.load(Ordering::SeqCst) > 0
    }
}
