//! Which writes go to the disk at once, though they may stay in the cache.
//!
//! Writers that flush after every few writes (databases, mail, virtual machines) will flush again: written early, most
//! is on the disk when the flush arrives, and its caller does not wait twice (WS-5). Large writes to blocks that are
//! not cached are a copy or a log: unlikely to be overwritten soon, and the disk can work while the next ones arrive.
//! All other writes stay in the cache: they may be overwritten before they must leave it.
//!
//! Small files are written once and closed, for which their clients ask for a flush (NFS: COMMIT): there the host's call for
//! the write and the client's way to the flush take their time side by side.
//!
//! Writes go out early where flushes follow few writes. In the order write, flush, write, flush the flush finds most of
//! its work done (14,000 to 22,000 synchronous 8 KiB writes a second with 16 in flight, on a noisy machine). With 64 in
//! flight these were 28,000 while the first 32 were written early, and are 36,000 (31,000 and 34,000 in another hour, when the
//! processors were slower). Everywhere else they wait for write-back; and where a flush finds one run of blocks only, which
//! it can write by force (`Volume::flush`).

use crate::unit::Class;

/// A flush is expected after at most this number of writes for each client that flushes.
const WRITES_A_FLUSH: u32 = 32;

/// A write of this number of blocks, or more, is part of a stream.
const STREAM_BLOCKS: u64 = 16;

/// Writes and flushes of one file or device.
#[derive(Clone, Copy, Debug)]
pub struct EarlyWrite {
    /// Between the last two runs of flushes, or since the last.
    writes: u32,
    /// Since the last write.
    flushes: u32,
    /// Writes after which no flush is expected.
    writes_max: u32,
    expected: bool,
    /// Flushes were seen.
    is_known: bool,
}

impl EarlyWrite {
    pub const fn new() -> Self {
        EarlyWrite { writes: 0, flushes: 0, writes_max: WRITES_A_FLUSH, expected: false, is_known: false }
    }

    /// Of a file, that is closed with a flush soon after the first small writes, mostly.
    pub const fn of_file() -> Self {
        EarlyWrite { expected: true, ..EarlyWrite::new() }
    }

    /// `blocks` blocks were written; `were_cached`: some of them were cached before. Returns the class in which to
    /// write them at once, if so: synchronous when a flush that will wait for them is expected.
    pub fn on_write(&mut self, blocks: u64, were_cached: bool) -> Option<Class> {
        if self.flushes > 0 {
            self.begin_writes();
        }
        self.writes = self.writes.saturating_add(1);
        self.expected &= self.writes <= self.writes_max;
        if self.expected && (self.is_known || blocks < STREAM_BLOCKS) {
            return Some(Class::Synchronous);
        }
        (blocks >= STREAM_BLOCKS && !were_cached).then_some(Class::Asynchronous)
    }

    /// So many clients asked for a flush.
    pub fn on_flushes(&mut self, callers: u32) {
        self.flushes = self.flushes.saturating_add(callers);
    }

    /// The first write after flushes. Clients whose flushes ended together write at about the same time, and then flush: one
    /// flush for each that has written.
    fn begin_writes(&mut self) {
        let clients = std::mem::take(&mut self.flushes).min(self.writes).max(1);
        self.writes_max = WRITES_A_FLUSH.saturating_mul(clients).max(self.writes_max / 2);
        if self.writes > 0 {
            self.is_known = true;
            self.expected = self.writes <= self.writes_max;
        }
        self.writes = 0;
    }
}

impl Default for EarlyWrite {
    fn default() -> Self {
        EarlyWrite::new()
    }
}
