//! Blocks that other nodes have written and that may not be durable: they stay cached until they are, so that this node can give
//! them to another home.
//!
//! That is a service to others, so it must not harm this volume: they are few, no flush of it covers them or waits for who has
//! stored them, they do not count as what a degraded volume holds, and this volume never writes them. When they are
//! durable is said by who has them marked ([`Volume::unmark`]).

use policy::unit::{BlockNo, BlockRange};

use super::{State, Volume};
use crate::block_set::BlockSet;
use crate::cache::State as BufferState;

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

    /// Those that may not be durable, though this volume has nothing of them left to write, or others have written them.
    pub fn unflushed_blocks(&self) -> impl Iterator<Item = BlockNo> + use<> {
        let state = self.state.lock();
        let [since, covered] = state.unflushed.both();
        let runs: Vec<_> = [since, covered, &state.marked].into_iter().flat_map(BlockSet::runs).collect();
        runs.into_iter().flat_map(BlockRange::iter)
    }

    /// The block is durable as it is cached, if it was written.
    pub fn on_durable(&self, block: BlockNo) {
        let mut shard = self.lock_shard(block);
        let is_written = |slot: &_| !shard.state(*slot).any(BufferState::DIRTY.with(BufferState::WRITING));
        let Some(slot) = shard.find(self.key(block)).filter(is_written) else { return };
        {
            let mut state = self.state.lock();
            state.unflushed.remove(block.run(1));
            self.forget_marked(&mut state, block.run(1));
        }
        let state = shard.state(slot).without(BufferState::UNFLUSHED);
        shard.set_state(slot, state);
    }

    /// Should those that are marked be made durable soon?
    pub fn has_many_marked(&self) -> bool {
        self.memory.marked_blocks() > self.many_marked() || self.memory.is_memory_short()
    }

    /// More of all volumes are many.
    pub fn many_marked(&self) -> u64 {
        self.marked_max() / 2
    }

    /// Of all volumes, not more than the degraded ones may hold.
    fn marked_max(&self) -> u64 {
        self.held_max()
    }
}
