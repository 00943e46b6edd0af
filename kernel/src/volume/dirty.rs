//! The dirty blocks of a volume for which no write has been issued, in passes of write-back (`policy/pace`).

use policy::pace::VolumeFacts;
use policy::unit::{BlockNo, BlockRange, Instant};

use crate::block_set::BlockSet;

#[derive(Default)]
pub(super) struct Dirty {
    all: BlockSet,
    /// Became dirty during this pass; the others, the old ones, are to be written in it.
    young: BlockSet,
    /// A lower bound of the time when the oldest of either became dirty.
    old_since: Instant,
    young_since: Option<Instant>,
    /// The time of the last tick, if anything was dirty then.
    ticked: Option<Instant>,
    pub(super) cursor: BlockNo,
}

impl Dirty {
    pub(super) fn len(&self) -> u64 {
        self.all.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The blocks of any pass.
    pub(super) fn all(&self) -> &BlockSet {
        &self.all
    }

    /// Blocks became dirty; returns how many were clean before.
    pub(super) fn insert(&mut self, blocks: BlockRange) -> u64 {
        let added = self.all.len();
        let mut at = blocks.start;
        while at < blocks.end {
            // An old block that is written anew stays old.
            let next = self.all.first_run(at.to(blocks.end), u64::MAX).unwrap_or(blocks.end.run(0));
            if at < next.start {
                self.young.insert(at.to(next.start));
            }
            at = next.end;
        }
        self.all.insert(blocks);
        self.all.len() - added
    }

    /// Blocks are dirty again that were to be written before: they are old.
    pub(super) fn insert_again(&mut self, blocks: BlockRange) -> u64 {
        self.young.remove(blocks);
        self.all.insert(blocks)
    }

    /// Blocks are no longer dirty; returns how many were.
    pub(super) fn remove(&mut self, blocks: BlockRange) -> u64 {
        self.young.remove(blocks);
        self.all.remove(blocks)
    }

    /// The first dirty run within `within`, at most `len_max` blocks of it.
    pub(super) fn first_run(&self, within: BlockRange, len_max: u64) -> Option<BlockRange> {
        self.all.first_run(within, len_max)
    }

    /// The first dirty run that starts with an old block; young ones that follow are included.
    pub(super) fn first_old_run(&self, within: BlockRange, len_max: u64) -> Option<BlockRange> {
        let start = self.all.first_not_in(&self.young, within)?;
        self.all.first_run(start.to(within.end), len_max)
    }

    /// A tick of write-back: returns what the pace needs. Starts the next pass if this one is over.
    pub(super) fn on_tick(&mut self, now: Instant) -> VolumeFacts {
        let before = self.ticked.unwrap_or(now);
        self.ticked = (!self.is_empty()).then_some(now);
        if self.young_since.is_none() && !self.young.is_empty() {
            self.young_since = Some(before);
        }
        if self.old() == 0 {
            self.turn();
        }
        VolumeFacts {
            old_blocks: self.old(),
            old_since: self.old_since,
            young_blocks: self.young.len(),
            young_since: self.young_since.unwrap_or(now),
        }
    }

    pub(super) fn turn(&mut self) {
        self.young = BlockSet::default();
        // What became dirty after the last tick is not noted yet, and is no older than that tick.
        self.old_since = self.young_since.take().or(self.ticked).unwrap_or(self.old_since);
    }

    fn old(&self) -> u64 {
        self.all.len() - self.young.len()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn write(dirty: &mut Dirty) -> Option<BlockRange> {
        let run = dirty.first_old_run(dirty.cursor.to(BlockNo::MAX), 64)?;
        dirty.remove(run);
        dirty.cursor = run.end;
        Some(run)
    }

    #[test]
    fn who_writes_ahead_of_the_cursor_does_not_keep_it_from_what_is_behind() {
        let mut dirty = Dirty { cursor: BlockNo(100), ..Dirty::default() };
        dirty.insert((5..6).into());
        dirty.insert((200..210).into());
        assert_eq!(dirty.on_tick(at(1)).old_blocks, 11);
        for ahead in (1000..10_000).step_by(100) {
            dirty.insert(BlockNo(ahead).run(100));
            if let Some(run) = write(&mut dirty) {
                assert!(run.end <= BlockNo(210), "{run:?}");
                continue;
            }
            dirty.cursor = BlockNo(0);
        }
        assert!(!dirty.all().contains(BlockNo(5)), "the block behind the cursor waited for ever");
    }

    #[test]
    fn a_lap_s_time_begins_with_its_oldest_block_and_old_ones_stay_old_when_written_anew() {
        let mut dirty = Dirty::default();
        dirty.insert((0..10).into());
        let facts = dirty.on_tick(at(1));
        assert_eq!((facts.old_blocks, facts.old_since), (10, at(1)));
        dirty.insert((5..20).into());
        let facts = dirty.on_tick(at(2));
        assert_eq!((facts.old_blocks, facts.young_blocks, facts.young_since), (10, 10, at(1)));
        dirty.remove((0..10).into());
        let facts = dirty.on_tick(at(9));
        assert_eq!((facts.old_blocks, facts.old_since, facts.young_blocks), (10, at(1), 0));
    }
}
