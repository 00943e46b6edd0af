//! What is written to the disk at once, though it may wait in the cache.
//!
//! Writers that flush after every few writes (databases, mail, virtual machines) flush again: when the flush comes, most
//! is on the disk (WS-5: who writes for the sake of a flush should not wait twice). And large writes to where nothing is
//! cached are a copy or a log: they are not written anew soon, and the disk can work while the next ones arrive. All
//! else stays in the cache: it may be written anew before it has to leave.

use crate::unit::Class;

/// So many writes to a flush, or fewer, are few.
const WRITES_A_FLUSH: u32 = 32;

/// So many blocks at a time, or more, are a stream.
const STREAM_BLOCKS: u64 = 16;

/// Writes and flushes of one file or device.
#[derive(Clone, Copy, Debug, Default)]
pub struct EarlyWrite {
    /// Since the last flush.
    writes: u32,
    expected: bool,
}

impl EarlyWrite {
    /// A policy that has seen nothing yet.
    pub const fn new() -> Self {
        EarlyWrite { writes: 0, expected: false }
    }

    /// So many blocks were written; were some of them in the cache before? Should they go to the disk at once, and
    /// will somebody wait for that?
    pub fn on_write(&mut self, blocks: u64, were_cached: bool) -> Option<Class> {
        self.writes = self.writes.saturating_add(1);
        self.expected &= self.writes <= WRITES_A_FLUSH;
        if self.expected {
            return Some(Class::Synchronous);
        }
        (blocks >= STREAM_BLOCKS && !were_cached).then_some(Class::Asynchronous)
    }

    /// A flush is asked for.
    pub fn on_flush(&mut self) {
        // Of several flushes that come together, the first says how many writes there were.
        if self.writes > 0 {
            self.expected = self.writes <= WRITES_A_FLUSH;
            self.writes = 0;
        }
    }
}
