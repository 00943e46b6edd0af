//! Is what is being written flushed soon? Then it goes to the disk at once: when the flush comes, most of it is there
//! (WS-5: who writes for the sake of a flush should not wait twice).
//!
//! Writers that flush after every few writes (databases, mail, virtual machines) flush again. What is written by those
//! who seldom flush stays in the cache: it may be written anew before it has to leave.

/// So many writes to a flush, or fewer, are few.
const WRITES_A_FLUSH: u32 = 32;

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

    /// Something was written. Should it go to the disk at once?
    pub fn on_write(&mut self) -> bool {
        self.writes = self.writes.saturating_add(1);
        self.expected &= self.writes <= WRITES_A_FLUSH;
        self.expected
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
