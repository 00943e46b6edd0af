//! Blocks that other nodes have written and that may not be durable: they stay cached until they are, so that this node can give
//! them to another home.
//!
//! That is a service to others, so it must not harm this volume: they are few, no flush of it covers them or waits for who has
//! stored them, they do not count as what a degraded volume holds, and this volume never writes them. When they are
//! durable is said by who has them marked ([`Volume::unmark`]).

use policy::unit::{BlockNo, BlockRange};

use super::{State, Volume};
use crate::block_set::BlockSet;
use crate::cache::{Cache, State as BufferState};

impl Volume {
    /// False: too many are marked, or none are any more since the volume has failed.
    pub(super) fn note_marked(&self, state: &mut State, block: BlockNo) -> bool {
        let may_be_marked = state.lost.is_none() && self.memory.marked_blocks() < self.marked_max();
        if may_be_marked {
            self.memory.add_marked(state.marked.insert(block.run(1)));
        }
        may_be_marked
    }

    /// Returns how many were.
    pub(super) fn forget_marked(&self, state: &mut State, blocks: BlockRange) -> u64 {
        let removed = state.marked.remove(blocks);
        self.memory.subtract_marked(removed);
        removed
    }

    pub(super) fn take_marked(&self, state: &mut State) -> BlockSet {
        self.memory.subtract_marked(state.marked.len());
        std::mem::take(&mut state.marked)
    }

    pub fn is_marked(&self, block: BlockNo) -> bool {
        self.state.lock().marked.contains(block)
    }

    /// The block is durable, if it is still what was marked, or this volume will make it so.
    pub fn unmark(&self, block: BlockNo) {
        let mut shard = self.lock_shard(block);
        let was_marked = self.forget_marked(&mut self.state.lock(), block.run(1)) > 0;
        if let Some(slot) = shard.find(self.key(block)).filter(|_| was_marked) {
            let state = shard.state(slot).without(BufferState::UNFLUSHED);
            shard.set_state(slot, state);
        }
    }

    /// The first one from there on that may not be durable, though this volume has nothing of it left to write, or others have
    /// written it.
    pub fn first_unflushed(&self, from: BlockNo) -> Option<BlockNo> {
        let state = self.state.lock();
        let first = |set: &BlockSet| set.first_run(from.to(BlockNo::MAX), 1).map(|run| run.start);
        state.may_be_lost().into_iter().filter_map(first).min()
    }

    /// All of those among these blocks; some twice.
    pub fn unflushed_runs(&self, within: BlockRange) -> Vec<BlockRange> {
        let state = self.state.lock();
        state.may_be_lost().into_iter().flat_map(|set| set.runs_within(within)).collect()
    }

    /// Blocks are durable as they are cached; those that are dirty, being written or not cached are left as they are.
    pub fn on_durable(&self, blocks: BlockRange) {
        for piece in Cache::runs(blocks) {
            let mut shard = self.lock_shard(piece.start);
            let forget = |blocks| {
                let mut state = self.state.lock();
                state.unflushed.remove(blocks);
                self.forget_marked(&mut state, blocks);
            };
            let mut from = piece.start;
            for block in piece.iter() {
                let is_written = |slot: &_| !shard.state(*slot).any(BufferState::DIRTY.with(BufferState::WRITING));
                if let Some(slot) = shard.find(self.key(block)).filter(is_written) {
                    let cached = shard.state(slot).without(BufferState::UNFLUSHED);
                    shard.set_state(slot, cached);
                } else {
                    forget(from.to(block));
                    from = block + 1;
                }
            }
            forget(from.to(piece.end));
        }
    }

    /// Should those that are marked be made durable soon?
    pub fn has_many_marked(&self) -> bool {
        self.memory.marked_blocks() > self.many_marked() || self.memory.is_memory_short()
    }

    /// More than this, of all volumes together, are many.
    pub fn many_marked(&self) -> u64 {
        self.marked_max() / 2
    }

    /// Of all volumes, not more than the degraded ones may hold.
    fn marked_max(&self) -> u64 {
        self.held_max()
    }
}

impl State {
    /// What was written or others have written, and no flush has covered.
    fn may_be_lost(&self) -> [&BlockSet; 3] {
        let [since, covered] = self.unflushed.both();
        [since, covered, &self.marked]
    }
}
