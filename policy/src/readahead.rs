//! How many blocks to fetch ahead of a reader (WS-3, WS-5), for each stream of one file or device.
//!
//! Nothing is fetched at the first access, not even at block 0: every probe of a disk reads that. Adjacent reads make a
//! stream; several streams may interleave. The window doubles as the reader reaches what was fetched, and the next
//! fetch starts when half of the last one is consumed, so that a steady reader never waits.
//!
//! Read-ahead stops where readers themselves have 2 MiB under way.
//!
//! Rejected: smaller windows after blocks were evicted unread. Eviction would have to tell which blocks were fetched in
//! advance; a window is at most `blocks_max` anyway.

pub mod faults;

use crate::unit::{BlockNo, BlockRange};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Off,
    /// Always this far ahead of the reader (WS-5, Table 5: 1 and 4 blocks).
    Fixed {
        blocks: u64,
    },
    /// Further the longer a stream lasts; at most `blocks_max` in one fetch.
    Adaptive {
        blocks_max: u64,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub mode: Mode,
    /// Streams tracked at a time.
    pub streams_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config { mode: Mode::Adaptive { blocks_max: 512 }, streams_max: 16 }
    }
}

/// The smallest window, in blocks.
const WINDOW_MIN: u64 = 4;
/// Number of concurrent reads that may arrive in any order.
const READS_SWAPPED: u64 = 32;
/// Reads further apart than this, in blocks, never belong to one stream.
const REACH_MAX: u64 = 1024;
/// From this number of reads on, a run may have holes.
const READS_TO_TRUST: u64 = 4;
/// A stream's density is computed over about this number of blocks, or four times the reach of a read.
const SPAN: u64 = 256;

/// Finds the sequential readers of one file or device.
pub struct ReadAhead {
    config: Config,
    streams: Vec<Stream>,
    candidates: Vec<Run>,
    reads: u64,
}

/// Reads close to each other.
#[derive(Clone, Debug)]
struct Run {
    span: BlockRange,
    /// Blocks read in the span.
    seen: u64,
    reads: u64,
    /// Reads that extended the span forward.
    forward: u64,
    used: u64,
}

/// A run found to be sequential.
#[derive(Clone, Debug)]
struct Stream {
    run: Run,
    /// Fetched up to this block.
    fetched: BlockNo,
    window: u64,
    /// The next fetch starts when the reader arrives at this block.
    marker: BlockNo,
}

impl ReadAhead {
    pub fn new(config: Config) -> Self {
        ReadAhead { config, streams: Vec::new(), candidates: Vec::new(), reads: 0 }
    }

    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Changes the parameters, and forgets all streams.
    pub fn set_config(&mut self, config: Config) {
        *self = ReadAhead::new(config);
    }

    /// These blocks are read, cached or not. Returns what to fetch in advance; the caller clips it to the device and to
    /// what is not cached.
    pub fn on_read(&mut self, blocks: BlockRange) -> Option<BlockRange> {
        if self.blocks_max() == 0 || self.config.streams_max == 0 || blocks.is_empty() {
            return None;
        }
        self.reads += 1;
        let len = blocks.len();
        if let Some(index) = self.stream_near(blocks) {
            let used = self.reads;
            let stream = &mut self.streams[index];
            stream.run.extend(blocks, used);
            stream.run.forget_old(SPAN.max(4 * reach(len)));
            if stream.run.is_sparse(len) {
                self.streams.swap_remove(index);
                return None;
            }
            return self.fetch(index, len);
        }
        let index = self.candidate_near(blocks);
        let run = &mut self.candidates[index];
        run.extend(blocks, self.reads);
        if !run.is_sequential() {
            return None;
        }
        let run = self.candidates.swap_remove(index);
        let index = self.add_stream(run);
        self.fetch(index, len)
    }

    fn fetch(&mut self, index: usize, len: u64) -> Option<BlockRange> {
        let fixed = matches!(self.config.mode, Mode::Fixed { .. });
        let blocks_max = self.blocks_max();
        let stream = &mut self.streams[index];
        let reader = stream.run.span.end;
        let start = stream.fetched.max(reader);
        if fixed {
            stream.fetched = start.max(BlockNo(reader.0.saturating_add(blocks_max)));
            return (start < stream.fetched).then_some(start.to(stream.fetched));
        }
        if reader < stream.marker {
            return None;
        }
        let wanted = (2 * stream.window).max(len.saturating_mul(2)).max(WINDOW_MIN);
        stream.window = wanted.min(blocks_max);
        stream.fetched = BlockNo(start.0.saturating_add(stream.window));
        stream.marker = stream.fetched - stream.window / 2;
        (start < stream.fetched).then_some(start.to(stream.fetched))
    }

    fn blocks_max(&self) -> u64 {
        match self.config.mode {
            Mode::Off => 0,
            Mode::Fixed { blocks } => blocks,
            Mode::Adaptive { blocks_max } => blocks_max,
        }
    }

    fn stream_near(&self, blocks: BlockRange) -> Option<usize> {
        let reach = reach(blocks.len());
        let near = self.streams.iter().enumerate().map(|(index, s)| (s.run.span.end.0.abs_diff(blocks.start.0), index));
        near.filter(|(distance, _)| *distance <= reach).min().map(|(_, index)| index)
    }

    /// The candidate that the read belongs to, or a new one. In their own table, so random reads displace no streams.
    fn candidate_near(&mut self, blocks: BlockRange) -> usize {
        let reach = reach(blocks.len());
        let near = self.candidates.iter().position(|c| c.span.end == blocks.start);
        let near = near.or_else(|| self.candidates.iter().position(|c| c.reaches(blocks, reach)));
        if let Some(index) = near {
            return index;
        }
        let run = Run { span: blocks, seen: 0, reads: 0, forward: 1, used: self.reads };
        if self.candidates.len() < self.config.streams_max {
            self.candidates.push(run);
            return self.candidates.len() - 1;
        }
        let oldest = (0..self.candidates.len()).min_by_key(|i| self.candidates[*i].used).unwrap_or(0);
        self.candidates[oldest] = run;
        oldest
    }

    fn add_stream(&mut self, run: Run) -> usize {
        let stream = Stream { run, fetched: BlockNo(0), window: 0, marker: BlockNo(0) };
        if self.streams.len() < self.config.streams_max {
            self.streams.push(stream);
            return self.streams.len() - 1;
        }
        let oldest = (0..self.streams.len()).min_by_key(|i| self.streams[*i].run.used).unwrap_or(0);
        self.streams[oldest] = stream;
        oldest
    }
}

impl Run {
    fn extend(&mut self, blocks: BlockRange, used: u64) {
        if blocks.end > self.span.end {
            self.forward += 1;
        }
        self.span = self.span.start.min(blocks.start).to(self.span.end.max(blocks.end));
        self.seen = (self.seen + blocks.len()).min(self.span.len());
        self.reads += 1;
        self.used = used;
    }

    /// Whether the run, extended by this read, is no longer than reordered reads can make it.
    fn reaches(&self, blocks: BlockRange, reach: u64) -> bool {
        self.span.end.max(blocks.end) - self.span.start.min(blocks.start) <= reach
    }

    /// The second read right behind the first is enough; with more reads, half of the blocks are. A run that only
    /// goes backwards is not sequential.
    fn is_sequential(&self) -> bool {
        let len = self.span.len();
        let dense = if self.reads < READS_TO_TRUST { self.seen == len } else { 2 * self.seen >= len };
        dense && self.forward >= 2
    }

    /// Less than a quarter was read, over more than reordered reads can leave open for a while.
    fn is_sparse(&self, len: u64) -> bool {
        let span = self.span.len();
        span > 2 * reach(len) && 4 * self.seen < span
    }

    fn forget_old(&mut self, span: u64) {
        if self.span.len() > span {
            let half = self.span.len() / 2;
            self.span.start = self.span.end - half;
            self.seen = (self.seen / 2).min(half);
        }
    }
}

/// How far apart, in blocks, two reads of one stream may lie when reads of `len` blocks are reordered.
fn reach(len: u64) -> u64 {
    len.saturating_mul(READS_SWAPPED).min(REACH_MAX.max(len))
}
