//! Flushes that have failed at homes which move: who is told, and when its next flush fails for that.
//!
//! When a flush has failed, the device may have dropped whatever the home had stored since the last that succeeded, and says
//! so only once: the next flush may succeed. So a home counts its failures, and tells all nodes of each
//! ([`Word::Failed`](crate::wire::Word::Failed)) before it answers anything more about its storage. They pass that on: what
//! one of them has heard, the next home has before that one answers its survey, and all others before it answers a flush.
//! Whoever connects is told as well, and passes it on: another may know less. What a node has heard fails its next flush, once
//! ([`flush`](kernel::volume::Coherence::flush)), but the first that it hears of a home only those that were asked for before:
//! nothing that it gives up can be stored there earlier. It counts also when the home gives up its shards, or dies.
//!
//! A home that is one no more may have failed without that this node has heard of it. So whoever had something stored asks
//! the same node until a flush has covered that, or that node is dead.
//!
//! Not known is the failure of a home that dies before anybody has heard of it. For this whoever has what it had stored gives
//! that to the next home ([`uncertain`](crate::uncertain)). Rejected: whenever a home dies that has stored something since its
//! last flush, that counts as a failure. The next FLUSH, and each FUA under way, of all nodes would fail, at which file
//! systems give up: for a device that fails in the very moment in which a node dies.
//!
//! Counts of incarnations that have ended are retained: somebody may yet pass on a failure of theirs, and whether this node had
//! known them before makes a difference.
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
    /// How often something was lost here.
    pub(crate) losses: u64,
}

impl Failures {
    /// What this process knows of homes in a new incarnation, in which nothing is to be returned to anybody yet.
    pub(crate) fn inherit(before: &Failures) -> Failures {
        Failures { count: before.count, homes: before.homes.clone(), returned: before.count, losses: 0 }
    }

    /// So many flushes of a home have failed. Is that news?
    pub(crate) fn on_told(&mut self, home: Address, failures: u64) -> bool {
        let known = self.homes.get(&home).map(|(known, _)| *known);
        let is_news = known.unwrap_or(0) < failures;
        if is_news {
            self.count += 1;
            if known.is_none() && self.returned == self.count - 1 {
                self.returned = self.count;
            }
        }
        if is_news || known.is_none() {
            self.homes.insert(home, (failures, if is_news { self.count } else { 0 }));
        }
        is_news
    }

    /// What was written at this node is lost here: that is returned as the failures of others are.
    pub(crate) fn on_lost(&mut self) {
        self.count += 1;
        self.losses += 1;
    }

    /// Has this node heard since then that flushes of the home have failed?
    pub(crate) fn are_since(&self, home: NodeId, count: u64) -> bool {
        self.homes.iter().any(|(at, (_, number))| at.node == home && *number > count)
    }

    /// Has this node heard of a failure of the home in this incarnation?
    pub(crate) fn has_failed(&self, home: Address) -> bool {
        self.homes.get(&home).is_some_and(|(failures, _)| *failures > 0)
    }

    /// What is to be told by this node: how often it has failed itself, even if never, and others that have.
    pub(crate) fn all(&self, me: Address) -> impl Iterator<Item = (Address, u64)> {
        let all = self.homes.iter().map(|(home, (failures, _))| (*home, *failures));
        all.filter(move |(home, failures)| *home == me || *failures > 0)
    }

    /// Are there any that no flush of all had returned when this one was asked for? It returns them now.
    pub(crate) fn take_new(&mut self, returned: u64) -> bool {
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
    fn each_failure_of_each_incarnation_is_news_once() {
        let mut failures = Failures::default();
        assert!(!failures.on_told(at(2), 0) && !failures.are_since(HOME, 0));
        assert!(failures.on_told(at(2), 1));
        let told = failures.count;
        assert!(failures.are_since(HOME, 0) && !failures.are_since(HOME, told));
        assert!(!failures.on_told(at(2), 1) && !failures.are_since(HOME, told), "told twice");
        assert!(failures.on_told(at(2), 3) && failures.are_since(HOME, told));
        let told = failures.count;
        assert!(!failures.on_told(at(3), 0) && !failures.are_since(HOME, told), "another incarnation begins anew");
        assert!(failures.on_told(at(2), 4) && failures.are_since(HOME, told), "of an earlier one, passed on late");
    }

    #[test]
    fn each_flush_that_was_asked_for_before_a_failure_was_returned_returns_it() {
        let mut failures = Failures::default();
        failures.on_told(at(2), 0);
        let (one, other) = (failures.returned, failures.returned);
        failures.on_told(at(2), 1);
        assert!(failures.take_new(one) && failures.take_new(other));
        assert!(!failures.take_new(failures.returned), "the next one");
    }

    #[test]
    fn what_is_heard_first_of_a_home_fails_only_what_was_asked_for_before() {
        let mut failures = Failures::default();
        let before = failures.returned;
        assert!(failures.on_told(at(2), 7));
        assert!(!failures.take_new(failures.returned) && failures.take_new(before));
        failures.on_told(at(2), 8);
        failures.on_told(at(3), 1);
        assert!(failures.take_new(failures.returned), "not returned yet");
    }

    #[test]
    fn what_is_lost_here_is_returned_once() {
        let mut failures = Failures::default();
        failures.on_told(at(2), 0);
        failures.on_lost();
        assert!(failures.take_new(failures.returned) && !failures.take_new(failures.returned));
        assert!(!failures.are_since(HOME, 0), "no home has failed");
    }
}
