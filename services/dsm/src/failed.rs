//! Flushes that have failed at homes which move: who is told, and when its next flush fails for that.
//!
//! When a flush has failed, the device may have dropped whatever the home had stored since the last that succeeded, and says
//! so only once: the next flush may succeed. So a home counts its failures, and tells all nodes of each
//! ([`Word::Failed`](crate::wire::Word::Failed)) before it answers anything more about its storage. They pass that on: what
//! one of them has heard, the next home has before that one answers its survey, and all others before it answers a flush.
//! Whoever connects is told as well: the first that a node hears of a home counts for nothing, since nothing that it gives up
//! can be stored there before. What a node has heard fails its next flush, once
//! ([`flush`](kernel::volume::Coherence::flush)). It counts also when the home gives up its shards, or dies.
//!
//! A home that is one no more may have failed without that this node has heard of it. So whoever had something stored asks
//! the same node until a flush has covered that, or that node is dead.
//!
//! Not known is the failure of a home that dies before anybody has heard of it. Rejected: whenever a home dies that has stored
//! something since its last flush, that counts as a failure. The next FLUSH, and each FUA under way, of all nodes would fail, at
//! which file systems give up: for a device that fails in the very moment in which a node dies.
//!
//! Rejected: a home gives up no shard before all nodes have confirmed that they have heard. Nodes that cannot reach each
//! other, but etcd, would hold up every move.

use std::collections::BTreeMap;

use policy::coherence::{Address, NodeId};

#[derive(Default)]
pub(crate) struct Failures {
    /// What this node has heard of homes, itself included: its time, in which the numbers are.
    pub(crate) count: u64,
    /// How often each has failed, and when the last time was heard.
    homes: BTreeMap<Address, (u64, u64)>,
    /// Those up to this one a flush of all nodes has returned.
    pub(crate) returned: u64,
}

impl Failures {
    /// So many flushes of a home have failed. Does that count, and is news?
    pub(crate) fn on_told(&mut self, home: Address, failures: u64) -> bool {
        let number = match self.homes.get(&home) {
            Some((known, _)) if *known >= failures => return false,
            Some(_) => self.count + 1,
            None => 0,
        };
        self.count = self.count.max(number);
        self.homes.insert(home, (failures, number));
        number > 0
    }

    /// Has this node heard since then that flushes of the home have failed?
    pub(crate) fn are_since(&self, home: NodeId, count: u64) -> bool {
        self.homes.iter().any(|(at, (_, number))| at.node == home && *number > count)
    }

    /// What is to be told by this node: how often it has failed itself, even if never, and others that have.
    pub(crate) fn all(&self, me: Address) -> impl Iterator<Item = (Address, u64)> {
        let all = self.homes.iter().map(|(home, (failures, _))| (*home, *failures));
        all.filter(move |(home, failures)| *home == me || *failures > 0)
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

    fn at(incarnation: u32) -> Address {
        Address { node: HOME, incarnation: Incarnation(incarnation) }
    }

    #[test]
    fn what_a_home_says_first_is_no_news_and_each_failure_after_that_is_one() {
        let mut failures = Failures::default();
        failures.on_told(at(2), 7);
        assert!(!failures.are_since(HOME, 0) && !failures.are_new(0));
        failures.on_told(at(2), 7);
        assert!(!failures.are_new(0), "told twice");
        failures.on_told(at(2), 8);
        assert!(failures.are_since(HOME, 0) && !failures.are_since(HOME, failures.count));
        failures.on_told(at(3), 1);
        assert!(!failures.are_since(HOME, 1) && failures.are_since(HOME, 0), "another incarnation begins anew");
        failures.on_told(at(2), 9);
        assert!(failures.are_since(HOME, 1), "of an earlier one, passed on late by another node");
    }

    #[test]
    fn each_flush_that_was_asked_for_before_a_failure_was_returned_returns_it() {
        let mut failures = Failures::default();
        failures.on_told(at(2), 0);
        let (one, other) = (failures.returned, failures.returned);
        failures.on_told(at(2), 1);
        assert!(failures.are_new(one) && failures.are_new(other));
        assert!(!failures.are_new(failures.returned), "the next one");
    }
}
