//! How much one volume may have dirty, and how fast it must write its own blocks (WS-2).
//!
//! `writeback` looks at the whole cache. That is not enough: a slow disk would take minutes to write its part of a
//! large one, during which others cannot get that memory and each flush waits. So each volume measures its disk's write
//! rate, and may have dirty what that disk writes within a few seconds (as Linux bounds the dirty pages of each
//! `backing_dev_info` by its measured bandwidth, `mm/page-writeback.c`).
//!
//! Blocks are written in the disk's order, not by age: a writer that stays ahead of the cursor would starve the blocks
//! behind it. So blocks are written in passes. A pass covers the blocks that were dirty when it began, younger ones
//! wait for the next, and the rate is such that each pass ends before its oldest block is too old, with time to spare.
//!
//! A volume may have dirty what its disk writes in ten seconds (16 MiB at least), by the rate that it was seen to write
//! at: with the share of the cache alone, a burst to a slow disk held the memory, and every flush, for minutes.

use std::time::Duration;

use crate::unit::{BLOCK_BYTES, Instant};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Blocks are written within about this age, if the disk is fast enough.
    pub age: Duration,
    /// A volume may have dirty what its disk writes in this time. A guest's block layer aborts a flush after 30 s at
    /// the earliest (Linux: `SD_TIMEOUT`).
    pub span: Duration,
    /// It may always have this number of blocks dirty: fewer do not merge into good writes.
    pub blocks_min: u64,
    /// The limit before anything was measured, which takes a fraction of a second.
    pub blocks_at_first: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            age: Duration::from_secs(30),
            span: Duration::from_secs(10),
            blocks_min: (16 << 20) / BLOCK_BYTES,
            blocks_at_first: (16 << 20) / BLOCK_BYTES,
        }
    }
}

/// The dirty blocks of a volume that are not in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeFacts {
    /// Blocks of the current pass.
    pub old_blocks: u64,
    /// The oldest of them became dirty at this time or later.
    pub old_since: Instant,
    /// Blocks that became dirty during the pass.
    pub young_blocks: u64,
    /// The oldest of them became dirty at this time or later.
    pub young_since: Instant,
}

/// What was written to a volume's disk since the last report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    pub blocks: u64,
    /// Time during which writes were in flight.
    pub busy: Duration,
    /// Whether more was waiting to be written all the time; otherwise it is no upper bound of what the disk can do.
    pub is_all: bool,
}

/// A sample is complete after this busy time or this number of blocks.
const SAMPLE_BUSY: Duration = Duration::from_millis(50);
const SAMPLE_BLOCKS: u64 = (32 << 20) / BLOCK_BYTES;
/// Fewer blocks than this are not worth a write of their own as long as they are young.
const BATCH_BLOCKS: u64 = 64;
/// What exceeds half the limit is written within about this time.
const CATCH_UP: Duration = Duration::from_secs(1);

pub struct Pace {
    config: Config,
    /// Blocks a second that the disk writes.
    rate: Option<f64>,
    sample: Written,
    ticked: Option<Instant>,
    /// Blocks that the age demands and that were not yet requested.
    owed: f64,
}

impl Pace {
    pub const fn new(config: Config) -> Self {
        let sample = Written { blocks: 0, busy: Duration::ZERO, is_all: true };
        Pace { config, rate: None, sample, ticked: None, owed: 0.0 }
    }

    /// Adds a measurement. The rate follows a faster sample by half, a slower one by a quarter: the disk may have been
    /// busy with other volumes.
    pub fn on_written(&mut self, written: Written) {
        self.sample.blocks += written.blocks;
        self.sample.busy += written.busy;
        self.sample.is_all &= written.is_all;
        if self.sample.busy < SAMPLE_BUSY && self.sample.blocks < SAMPLE_BLOCKS {
            return;
        }
        let Written { blocks, busy, is_all } =
            std::mem::replace(&mut self.sample, Written { is_all: true, ..Written::default() });
        let found = blocks as f64 / busy.as_secs_f64().max(1e-6);
        self.rate = Some(match self.rate {
            None => found,
            Some(rate) if found > rate => rate + (found - rate) / 2.0,
            Some(rate) if is_all => rate - (rate - found) / 4.0,
            Some(rate) => rate,
        });
    }

    /// Blocks that the volume may have dirty, those in flight included; beyond it writers wait.
    pub fn limit(&self) -> u64 {
        match self.rate {
            None => self.config.blocks_at_first,
            Some(rate) => ((rate * self.config.span.as_secs_f64()) as u64).max(self.config.blocks_min),
        }
    }

    /// Whether more is dirty than should be: ticks may be more frequent then.
    pub fn is_behind(&self, dirty_blocks: u64) -> bool {
        dirty_blocks > self.limit() / 2
    }

    /// Number of blocks to write before the next tick, those of the pass first.
    pub fn on_tick(&mut self, now: Instant, facts: VolumeFacts) -> u64 {
        let elapsed_s = self.ticked.map_or(0.0, |then| now.since(then).as_secs_f64());
        self.ticked = Some(now);
        let dirty = facts.old_blocks + facts.young_blocks;
        if dirty == 0 {
            self.owed = 0.0;
            return 0;
        }
        // The pass by the age of its oldest block, and all by that of the oldest younger one: the next needs time, too.
        let due = |blocks: u64, since| self.due(now, elapsed_s, (blocks as f64 - self.owed).max(0.0), since);
        let of_pass = due(facts.old_blocks, facts.old_since);
        let of_next = if facts.young_blocks > 0 { due(dirty, facts.young_since) } else { 0.0 };
        let is_late = facts.old_blocks > 0 && now.since(facts.old_since) >= self.config.age;
        self.owed += of_pass.max(of_next);
        let due = self.owed as u64;
        let steady = if is_late || due >= dirty.min(BATCH_BLOCKS) { due } else { 0 };
        let blocks = steady.max(self.pressed(elapsed_s, dirty)).min(dirty);
        self.owed = if blocks == dirty { 0.0 } else { (self.owed - blocks as f64).max(0.0) };
        blocks
    }

    /// What of `blocks`, which are not owed yet, must be written in `elapsed_s` so that all are written before those
    /// that became dirty at `since` are too old.
    fn due(&self, now: Instant, elapsed_s: f64, blocks: f64, since: Instant) -> f64 {
        let left_s = self.config.age.as_secs_f64() - now.since(since).as_secs_f64();
        if left_s <= 0.0 { blocks } else { blocks * elapsed_s / (left_s + elapsed_s) }
    }

    fn pressed(&self, elapsed_s: f64, dirty: u64) -> u64 {
        let (limit, half) = (self.limit(), self.limit() / 2);
        match dirty {
            dirty if dirty >= limit => dirty - half,
            dirty => (dirty.saturating_sub(half) as f64 * elapsed_s / CATCH_UP.as_secs_f64()) as u64,
        }
    }
}
