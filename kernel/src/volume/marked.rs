//! Blocks that other nodes have written and that may not be durable: they stay cached until a flush has covered them, so that
//! this node can give them to another home.
//!
//! That is a service to others, so it must not harm this volume: they are few, do not count as what a degraded volume
//! holds, and are not written again by it if a flush fails. They stay marked then.

use policy::unit::{BlockNo, BlockRange};

use crate::block_set::BlockSet;

#[derive(Default)]
pub(super) struct Marked {
    /// Since the last flush began.
    since: BlockSet,
    /// Covered by the flush in flight; otherwise empty.
    flushing: BlockSet,
}

impl Marked {
    pub(super) fn is_empty(&self) -> bool {
        self.since.is_empty()
    }

    /// Those that are in both sets count twice.
    pub(super) fn len(&self) -> u64 {
        self.since.len() + self.flushing.len()
    }

    /// Must no flush that has begun make it clean?
    pub(super) fn is_new(&self, block: BlockNo) -> bool {
        self.since.contains(block)
    }

    pub(super) fn insert(&mut self, block: BlockNo) {
        self.since.insert(block.run(1));
    }

    pub(super) fn remove(&mut self, blocks: BlockRange) {
        [&mut self.since, &mut self.flushing].into_iter().for_each(|set| {
            set.remove(blocks);
        });
    }

    pub(super) fn begin_flush(&mut self) {
        self.flushing = std::mem::take(&mut self.since);
    }

    /// Returns what is durable.
    pub(super) fn on_flushed(&mut self) -> BlockSet {
        std::mem::take(&mut self.flushing)
    }

    pub(super) fn on_failed_flush(&mut self) {
        for run in std::mem::take(&mut self.flushing).runs() {
            self.since.insert(run);
        }
    }

    /// No flush will ever succeed again. Returns those that there were.
    pub(super) fn abandon(&mut self) -> BlockSet {
        std::mem::take(&mut self.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_marked_during_a_flush_or_before_one_that_fails_stays() {
        let (one, other) = (BlockNo(1), BlockNo(2));
        let mut marked = Marked::default();
        marked.insert(one);
        marked.begin_flush();
        marked.insert(other);
        marked.on_failed_flush();
        assert!(marked.is_new(one) && marked.is_new(other) && marked.len() == 2);
        marked.begin_flush();
        marked.insert(other);
        let durable = marked.on_flushed();
        assert!(durable.contains(one) && !marked.is_new(one) && marked.is_new(other));
        marked.remove(other.run(1));
        assert!(marked.is_empty());
        assert_eq!(marked.len(), 0);
    }
}
