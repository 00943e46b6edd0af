//! Which share of the dirty blocks to write now, so that there is never a sync storm (WS-2).
//!
//! A kernel that writes everything every 30 s stalls the disk for others when many buffers are dirty. Here blocks
//! trickle out, oldest first, just fast enough that each is written by its age limit. Dirty blocks beyond a share of
//! the cache, or beyond what a disk writes in about a second, are written faster; the rate rises smoothly with them,
//! without bound towards the limit at which writers wait.
//!
//! Write-back goes in passes in the disk's order, each over what was dirty when it began and in time for its oldest
//! block. Without passes, a writer ahead of the cursor starved the blocks behind it; strictly by age, neighbours would
//! not be merged.
//!
//! Write-back hurries from 1 GiB dirty, or a tenth of the cache if that is less, and catches up within a second: the
//! queue puts it behind synchronous requests, and a flush after many gigabytes waits for no more than that.
//!
//! Write-back ticks ten times as often when it has fallen behind, and at once when writers wait: with ticks of 100 ms
//! alone the disk stood still for most of each (345 MiB/s instead of 1,300 through a cache of 64 MiB).

use std::time::Duration;

use crate::unit::{BLOCK_BYTES, Instant};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Write steadily; off: everything at once every `interval`, as the classic update process did.
    pub smooth: bool,
    /// Time between two full writes when not smooth.
    pub interval: Duration,
    /// Every block is written within about this time after it became dirty.
    pub age: Duration,
    /// Above this share of the cache, blocks are written faster than their age demands.
    pub background_permille: u32,
    /// ...or above this number of blocks, if that is less: a flush then does not wait for all that a large cache holds.
    pub background_blocks_max: u64,
    /// What exceeds the background is written within about this time.
    pub catch_up: Duration,
    /// Above this share of the cache, writers wait.
    pub limit_permille: u32,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            smooth: true,
            interval: Duration::from_secs(30),
            age: Duration::from_secs(30),
            background_permille: 100,
            background_blocks_max: (1 << 30) / BLOCK_BYTES,
            catch_up: Duration::from_secs(1),
            limit_permille: 400,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirtyFacts {
    /// Blocks not yet written, those in flight included.
    pub dirty_blocks: u64,
    /// Blocks that the cache may hold.
    pub cache_blocks: u64,
}

/// Whether a writer may proceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    Go,
    /// Until blocks were written.
    Wait,
}

/// A job's limit of dirty blocks as a multiple of what is free for all: a job alone gets eight ninths of the limit.
const SHARE: u64 = 8;

/// Fewer blocks than this are not worth a write of their own as long as they are young.
const BATCH_BLOCKS: u64 = 64;
/// Intervals of the age for which the most dirty blocks are recorded.
const PARTS: usize = 16;

pub struct WriteBack {
    config: Config,
    ticked: Option<Instant>,
    /// Blocks that the age demands and that were not yet requested.
    owed: f64,
    peaks: Peaks,
    storm: Storm,
}

impl WriteBack {
    pub const fn new(config: Config) -> Self {
        WriteBack { config, ticked: None, owed: 0.0, peaks: Peaks::new(), storm: Storm::Over(None) }
    }

    pub const fn config(&self) -> &Config {
        &self.config
    }

    pub fn set_config(&mut self, config: Config) {
        self.config = config;
        // Recorded in intervals of the old age.
        self.peaks = Peaks::new();
    }

    /// Number of blocks to write before the next tick, oldest first. It replaces the previous result: what of that
    /// could not be issued is forgotten. There is a tick every 100 ms or so, more often when behind; any spacing works.
    pub fn on_tick(&mut self, now: Instant, facts: DirtyFacts) -> u64 {
        let elapsed_s = self.ticked.map_or(0.0, |then| now.since(then).as_secs_f64());
        self.ticked = Some(now);
        if self.config.smooth { self.trickle(now, elapsed_s, facts) } else { self.storm(now, facts) }
    }

    /// Whether a writer may make another block dirty.
    pub fn admit(&self, facts: DirtyFacts) -> Admission {
        if facts.dirty_blocks > self.limit(facts) { Admission::Wait } else { Admission::Go }
    }

    /// Whether a job that has made `own` of the dirty blocks may make another one dirty: not above the limit, and not
    /// when it has more than [`SHARE`] times what is left below the limit. So one job alone leaves a part of the limit
    /// free, two that write constantly get equal shares, and a job with few dirty blocks proceeds however many others
    /// wait for a slow disk (Choudhury, Hahne: *Dynamic Queue Length Thresholds for Shared-Memory Packet Switches*,
    /// IEEE/ACM Transactions on Networking 6(2), 1998: the number of jobs need not be known).
    pub fn admit_job(&self, facts: DirtyFacts, own: u64) -> Admission {
        let left = self.limit(facts).saturating_sub(facts.dirty_blocks);
        if own > SHARE * left { Admission::Wait } else { self.admit(facts) }
    }

    /// Whether more is dirty than should be: ticks may be more frequent then.
    pub fn is_behind(&self, facts: DirtyFacts) -> bool {
        facts.dirty_blocks > self.background(facts)
    }

    /// A block that becomes dirty when `d` are is behind those `d`, if the oldest go first. So at a rate of the peak
    /// within the age, divided by the age, each is written in time, and the rate is as even as it can be. (The present
    /// number divided by the age was tried: after a burst the rate decays and the last blocks are never written.)
    fn trickle(&mut self, now: Instant, elapsed_s: f64, facts: DirtyFacts) -> u64 {
        let dirty = facts.dirty_blocks;
        if dirty == 0 {
            self.peaks = Peaks::new();
            self.owed = 0.0;
            return 0;
        }
        let peak = self.peaks.note(now, self.config.age, dirty);
        self.owed += elapsed_s * peak as f64 / self.age_s();
        let due = self.owed as u64;
        let steady = if due >= dirty.min(BATCH_BLOCKS) { due } else { 0 };
        let blocks = steady.max(self.pressed(elapsed_s, facts)).min(dirty);
        self.owed = if blocks == dirty { 0.0 } else { (self.owed - blocks as f64).max(0.0) };
        blocks
    }

    /// What the excess over the background demands: the smallest `w` that equals the rate *after* writing `w`. The rate
    /// before it would oscillate near the limit, where it is steep: everything in one tick, nothing in the next.
    fn pressed(&self, elapsed_s: f64, facts: DirtyFacts) -> u64 {
        let dirty = facts.dirty_blocks;
        if dirty <= self.background(facts) {
            return 0;
        }
        let (mut low, mut high) = (0, dirty);
        while low < high {
            let middle = low + (high - low) / 2;
            if middle as f64 >= elapsed_s * self.rate(facts, dirty - middle) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low
    }

    /// Blocks a second when `dirty` are dirty: what the age demands, plus the excess over the background, growing
    /// without bound towards the limit.
    fn rate(&self, facts: DirtyFacts, dirty: u64) -> f64 {
        let background = self.background(facts);
        let limit = self.limit(facts).max(background + 1);
        if dirty >= limit {
            return f64::INFINITY;
        }
        let left = (limit - dirty) as f64 / (limit - background) as f64;
        let part = left.min(1.0);
        let excess = dirty.saturating_sub(background) as f64;
        (dirty as f64 / self.age_s() + excess / self.config.catch_up.as_secs_f64().max(1e-3)) / (part * part)
    }

    fn storm(&mut self, now: Instant, facts: DirtyFacts) -> u64 {
        let dirty = facts.dirty_blocks;
        match self.storm {
            Storm::Over(None) => self.storm = Storm::Over(Some(now)),
            Storm::Over(Some(then)) => {
                if now.since(then) >= self.config.interval || self.admit(facts) == Admission::Wait {
                    self.storm = Storm::Raging { since: now, blocks: dirty };
                    return dirty;
                }
            }
            // Until nearly all is written: one tick may be too short.
            Storm::Raging { since, blocks } => {
                if dirty > blocks / 16 {
                    return dirty;
                }
                self.storm = Storm::Over(Some(since));
            }
        }
        0
    }

    fn background(&self, facts: DirtyFacts) -> u64 {
        share(facts.cache_blocks, self.config.background_permille).min(self.config.background_blocks_max)
    }

    fn limit(&self, facts: DirtyFacts) -> u64 {
        share(facts.cache_blocks, self.config.limit_permille)
    }

    fn age_s(&self) -> f64 {
        self.config.age.as_secs_f64().max(1e-3)
    }
}

#[derive(Clone, Copy)]
enum Storm {
    Over(Option<Instant>),
    Raging { since: Instant, blocks: u64 },
}

/// The most dirty blocks at any tick within the age.
struct Peaks {
    part: u64,
    blocks: [u64; PARTS + 1],
}

impl Peaks {
    const fn new() -> Self {
        Peaks { part: 0, blocks: [0; PARTS + 1] }
    }

    fn note(&mut self, now: Instant, age: Duration, dirty: u64) -> u64 {
        let part_ns = (age.as_nanos() / PARTS as u128).clamp(1, u128::from(u64::MAX)) as u64;
        let part = now.ns() / part_ns;
        let ring = self.blocks.len() as u64;
        for passed in 1..=part.saturating_sub(self.part).min(ring) {
            self.blocks[((self.part + passed) % ring) as usize] = 0;
        }
        self.part = self.part.max(part);
        let current = &mut self.blocks[(self.part % ring) as usize];
        *current = dirty.max(*current);
        self.blocks.iter().copied().max().unwrap_or(dirty)
    }
}

fn share(of: u64, permille: u32) -> u64 {
    u64::try_from(u128::from(of) * u128::from(permille) / 1000).unwrap_or(u64::MAX)
}
