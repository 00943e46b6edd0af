//! The slices of a checkpoint's work, and its rests between them (`policy/checkpoint`).

use std::sync::Arc;

use kernel::Processor;
use policy::checkpoint::{Next, REST, next};

use super::layout::LogPlace;
use super::pages::RUN_PAGES_MAX;
use super::{DELTA_BYTES_MAX, Database, Delta, Sequence};

/// Of one slice, which takes some 100 µs.
const PAGES_A_SLICE: usize = 8;
pub(super) const ENTRIES_A_SLICE: usize = 512;

/// What a checkpoint is about to put into the tree.
#[derive(Clone, Debug)]
pub(super) struct Frozen {
    pub delta: Arc<Delta>,
    /// All commits up to this one.
    pub commits: Sequence,
    /// Where the log begins that is not in it.
    pub log: LogPlace,
    /// [`Circle::used`](super::log::Circle::used) at that place.
    pub used: u64,
}

/// A checkpoint under way.
pub(super) struct Spread<'a> {
    cpu: &'a Processor,
    database: &'a Database,
    frozen: &'a Frozen,
    /// Entries that the tree has, and pages since the last slice and since they were last written out.
    merged: usize,
    pages: usize,
    dirty: usize,
}

impl<'a> Spread<'a> {
    pub fn new(cpu: &'a Processor, database: &'a Database, frozen: &'a Frozen) -> Self {
        Spread { cpu, database, frozen, merged: 0, pages: 0, dirty: 0 }
    }

    pub fn on_merged(&mut self, entries: usize) {
        self.merged += entries;
    }

    /// A page was written into the cache. What is there goes to the disk now and then: all of it at once, at the end, would
    /// keep the log's groups waiting.
    pub async fn on_written(&mut self) {
        self.dirty += 1;
        if self.dirty >= RUN_PAGES_MAX {
            self.dirty = 0;
            self.database.pages.write_out(self.cpu, self.next() == Next::Yield).await;
        }
        self.on_page().await;
    }

    /// A page was read or written.
    pub async fn on_page(&mut self) {
        self.pages += 1;
        if self.pages >= PAGES_A_SLICE {
            self.pages = 0;
            match self.next() {
                Next::Yield => self.cpu.yield_now().await,
                Next::Rest => self.cpu.sleep(REST).await,
            }
        }
    }

    fn next(&self) -> Next {
        let done = self.merged as f64 / self.frozen.delta.len().max(1) as f64;
        let (used, is_awaited) = self.database.used_since(self.frozen);
        next(done, used, is_awaited)
    }
}

impl Database {
    /// The part of the room for transactions that is used since a checkpoint began: of memory, or of the log; and whether
    /// somebody waits for its end.
    fn used_since(&self, frozen: &Frozen) -> (f64, bool) {
        let state = self.state.read();
        let part = |of: u64, whole: u64| of as f64 / whole.max(1) as f64;
        let (before, since) = (frozen.used - state.circle.freed, state.circle.used - frozen.used);
        let log = part(since, self.layout.log_pages.saturating_sub(before));
        let memory = part(state.recent.bytes() as u64, DELTA_BYTES_MAX as u64);
        (log.max(memory), state.is_awaited || state.is_closing)
    }
}
