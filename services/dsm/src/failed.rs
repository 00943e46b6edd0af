//! Flushes that have failed at homes which move: who is told, and when its next flush fails for that.
//!
//! When a flush has failed, the device may have dropped whatever the home had stored since the last that succeeded, and says
//! so only once: the next flush may succeed. So a home counts its failures, and tells all nodes of each
//! ([`Word::Failed`](crate::wire::Word::Failed)) before it answers anything more about its storage. It tells whoever connects
//! as well: the first that a node hears of a home counts for nothing, since nothing that it gives up can be stored there
//! before. What a node has heard fails its next flush, once ([`flush`](kernel::volume::Coherence::flush)). It counts also when
//! the home gives up its shards, or dies.
//!
//! A home that is one no more may have failed without that this node has heard of it. So whoever had something stored asks
//! the same node until a flush has covered that, or that node is dead.
//!
//! Not known is the failure of a home that dies before anybody has heard of it.
//!
//! Rejected: a home gives up no shard before all nodes have confirmed that they have heard. Nodes that cannot reach each
//! other, but etcd, would hold up every move.

use std::collections::BTreeMap;

use policy::coherence::NodeId;

use crate::wire::Mark;

#[derive(Default)]
pub(crate) struct Failures {
    /// What this node has heard of homes, itself included: its time, in which the numbers are.
    pub(crate) count: u64,
    /// What each has said last, and when its last failure was heard.
    homes: BTreeMap<NodeId, (Mark, u64)>,
    /// Those up to this one a flush of all nodes has returned.
    pub(crate) returned: u64,
}

impl Failures {
    /// How often flushes of a home have failed in its present incarnation.
    pub(crate) fn on_told(&mut self, home: NodeId, mark: Mark) {
        let known = self.homes.get(&home).copied();
        let number = match known {
            Some((known, _)) if known >= mark => return,
            Some((known, _)) if known.incarnation == mark.incarnation => {
                self.count += 1;
                self.count
            }
            Some((_, number)) => number,
            None => 0,
        };
        self.homes.insert(home, (mark, number));
    }

    /// Has this node heard since then that flushes of the home have failed?
    pub(crate) fn are_since(&self, home: NodeId, count: u64) -> bool {
        self.homes.get(&home).is_some_and(|(_, number)| *number > count)
    }

    /// Are there any that no flush of all had returned when this one was asked for? It returns them now.
    pub(crate) fn are_new(&mut self, returned: u64) -> bool {
        self.returned = self.returned.max(self.count);
        self.count > returned
    }
}

#[cfg(test)]
mod tests {
    use policy::coherence::Incarnation;

    use super::*;

    const HOME: NodeId = NodeId(1);

    fn mark(incarnation: u32, failures: u64) -> Mark {
        Mark { incarnation: Incarnation(incarnation), failures }
    }

    #[test]
    fn what_a_home_says_first_is_no_news_and_each_failure_after_that_is_one() {
        let mut failures = Failures::default();
        failures.on_told(HOME, mark(2, 7));
        assert!(!failures.are_since(HOME, 0) && !failures.are_new(0));
        failures.on_told(HOME, mark(2, 7));
        assert!(!failures.are_new(0), "told twice");
        failures.on_told(HOME, mark(2, 8));
        assert!(failures.are_since(HOME, 0) && !failures.are_since(HOME, failures.count));
        failures.on_told(HOME, mark(3, 1));
        assert!(!failures.are_since(HOME, 1) && failures.are_since(HOME, 0), "another incarnation begins anew");
        failures.on_told(HOME, mark(2, 9));
        assert!(!failures.are_since(HOME, 1), "of an earlier one, late");
    }

    #[test]
    fn each_flush_that_was_asked_for_before_a_failure_was_returned_returns_it() {
        let mut failures = Failures::default();
        failures.on_told(HOME, mark(2, 0));
        let (one, other) = (failures.returned, failures.returned);
        failures.on_told(HOME, mark(2, 1));
        assert!(failures.are_new(one) && failures.are_new(other));
        assert!(!failures.are_new(failures.returned), "the next one");
    }
}
