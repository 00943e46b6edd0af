//! Blocks that other nodes have written and that may not be durable: they stay cached until a flush has covered them, so that
//! this node can give them to another home.
//!
//! That is a service to others, so it must not harm this volume: they are few, do not count as what a degraded volume
//! holds, and are not written again by it if a flush fails. They stay marked then.

use policy::unit::BlockNo;

use super::{State, Volume};

impl Volume {
    /// Blocks that others have written and this volume retains until they are flushed, at most: not more than a degraded one
    /// may hold.
    pub(super) fn marked_max(&self) -> u64 {
        self.held_max()
    }
}

impl State {
    pub(super) fn is_marked(&self, block: BlockNo) -> bool {
        self.marked.both().iter().any(|set| set.contains(block))
    }

    /// Blocks that are marked; those that are again since the flush in flight began count twice.
    pub(super) fn marked_len(&self) -> u64 {
        self.marked.both().iter().map(|set| set.len()).sum()
    }
}
