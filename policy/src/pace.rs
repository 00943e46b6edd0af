//! How much one volume may have dirty, and how fast it must write for the sake of its own blocks (WS-2).
//!
//! `writeback` looks at the whole cache. That is not enough: a slow disk would take minutes for its part of a large one,
//! during which others could not have that memory and whoever flushes would wait. So each volume learns what its disk
//! takes, and may have dirty what that disk writes within a few seconds (as Linux bounds what each `backing_dev_info` may
//! have dirty by the bandwidth that it measured, `mm/page-writeback.c`).
//!
//! And blocks go out in the disk's order, not in that of their age: whoever runs ahead of the cursor keeps it from those
//! behind. So blocks are written in laps. A lap covers what was dirty when it began, what is younger waits for the next,
//! and the rate is such that each lap is over before its oldest block is too old, with time left for the next one.

use std::time::Duration;

use crate::unit::{BLOCK_BYTES, Instant};

/// By which rules a volume is paced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// No block waits longer than about so long, if the disk can write so fast.
    pub age: Duration,
    /// A volume may have dirty what its disk writes in so long. A guest's block layer gives up on a flush after 30 s at
    /// the earliest (Linux: `SD_TIMEOUT`).
    pub span: Duration,
    /// It may always have so many blocks dirty: fewer make no good writes.
    pub blocks_min: u64,
    /// ...and so many before anything was measured, which takes a fraction of a second.
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

/// What a volume has dirty and not yet on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeFacts {
    /// Blocks of the lap.
    pub old_blocks: u64,
    /// The oldest of them became dirty at this time or later.
    pub old_since: Instant,
    /// Blocks that became dirty during the lap.
    pub young_blocks: u64,
    /// The oldest of them became dirty at this time or later.
    pub young_since: Instant,
}

/// What was written to a volume's disk since it was told before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Blocks.
    pub blocks: u64,
    /// So long something was under way.
    pub busy: Duration,
    /// Was there more to be written all the time? Only then it tells what the disk cannot do.
    pub is_all: bool,
}

/// The disk must have been busy for so long, or have taken so many blocks, before anything is concluded.
const SAMPLE_BUSY: Duration = Duration::from_millis(50);
const SAMPLE_BLOCKS: u64 = (32 << 20) / BLOCK_BYTES;
/// Fewer blocks than this are not worth a write of their own as long as they are young.
const BATCH_BLOCKS: u64 = 64;
/// What is above half the limit is written within about so long.
const CATCH_UP: Duration = Duration::from_secs(1);

pub struct Pace {
    config: Config,
    /// Blocks a second that the disk takes.
    rate: Option<f64>,
    sample: Written,
    ticked: Option<Instant>,
    /// Blocks that the age demands and that were not yet asked for.
    owed: f64,
}

impl Pace {
    /// Nothing is known of the disk yet.
    pub const fn new(config: Config) -> Self {
        let sample = Written { blocks: 0, busy: Duration::ZERO, is_all: true };
        Pace { config, rate: None, sample, ticked: None, owed: 0.0 }
    }

    /// Something was written. A faster disk is believed at once by half, a slower one step by step: it may have been
    /// busy with others.
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

    /// So many blocks the volume may have dirty, those under way included; writers wait beyond it.
    pub fn limit(&self) -> u64 {
        match self.rate {
            None => self.config.blocks_at_first,
            Some(rate) => ((rate * self.config.span.as_secs_f64()) as u64).max(self.config.blocks_min),
        }
    }

    /// Is more dirty than should be? Ticks may come more often then.
    pub fn is_behind(&self, dirty_blocks: u64) -> bool {
        dirty_blocks > self.limit() / 2
    }

    /// How many blocks to write before the next tick, those of the lap first.
    pub fn on_tick(&mut self, now: Instant, facts: VolumeFacts) -> u64 {
        let elapsed_s = self.ticked.map_or(0.0, |then| now.since(then).as_secs_f64());
        self.ticked = Some(now);
        let dirty = facts.old_blocks + facts.young_blocks;
        if dirty == 0 {
            self.owed = 0.0;
            return 0;
        }
        // The lap by the age of its oldest, and all by that of the oldest that is not in it: so the next one has time, too.
        let due = |blocks: u64, since| self.due(now, elapsed_s, (blocks as f64 - self.owed).max(0.0), since);
        let of_lap = due(facts.old_blocks, facts.old_since);
        let of_next = if facts.young_blocks > 0 { due(dirty, facts.young_since) } else { 0.0 };
        let is_late = facts.old_blocks > 0 && now.since(facts.old_since) >= self.config.age;
        self.owed += of_lap.max(of_next);
        let due = self.owed as u64;
        let steady = if is_late || due >= dirty.min(BATCH_BLOCKS) { due } else { 0 };
        let blocks = steady.max(self.pressed(elapsed_s, dirty)).min(dirty);
        self.owed = if blocks == dirty { 0.0 } else { (self.owed - blocks as f64).max(0.0) };
        blocks
    }

    /// What of `blocks`, which are not owed yet, must be written in `elapsed_s`, if all of them are to be before those that
    /// became dirty at `since` are too old.
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
