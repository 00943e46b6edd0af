//! Nodes that have died, and may have lost what they had acknowledged: a flush that was under way then must not succeed.
//!
//! Only the home of a page knows who may write it, so it tells all nodes of each death that matters (`Word::Died`), before it
//! answers a flush that lacks what the dead node had written. A home that has died had let others write, and forgot whom, so
//! it matters itself to the flushes that were under way. One that has ended in order forgot it, too, and its nodes may live:
//! it matters if one of them has died meanwhile, or may have, since the flushing node had not met it before. So does any home
//! that returns where ends are reported from outside: it does not hear of who died before it. Where homes move
//! a flush fails with any death, also one that its node sees only after a home that saw it has answered.
//!
//! A death before a flush is asked for does not matter to it: whoever was a client of the dead node has seen it. Nor does that
//! of a node which the flushing one had never met.
//!
//! A flush that a node is asked for before it has met a home may miss a death from between: with each home it hears of all that
//! died before, and to fail for those would fail the first flush after many an ordinary start.
//!
//! Rejected: a home that fails the next flush of every node after a writer has died, as when it has lost what it stored.
//! Disks of nodes that have nothing to do with each other may share a volume, and file systems give up at an error of a
//! flush.

use std::collections::BTreeMap;

use policy::coherence::{Address, Incarnation, NodeId};

/// A death: the last incarnation of the node that has ended, and when this node could know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Death {
    incarnation: Incarnation,
    number: u64,
}

#[derive(Default)]
pub(crate) struct Deaths {
    /// What this node has heard of others: its time, in which the numbers are.
    pub(crate) count: u64,
    /// When each was met first.
    met: BTreeMap<NodeId, u64>,
    /// When each returned last that had ended in order, or whose end was reported before.
    returned: BTreeMap<NodeId, u64>,
    /// By this node's own knowledge.
    ended: BTreeMap<NodeId, Death>,
    /// Those in which something may be lost that was acknowledged, by this home's knowledge or another's.
    lossy: BTreeMap<NodeId, Death>,
}

impl Deaths {
    /// This node meets another one for the first time.
    pub(crate) fn on_met(&mut self, node: NodeId) {
        let number = self.tick();
        self.met.entry(node).or_insert(number);
    }

    /// A node has returned that had ended in order, or whose end was reported before.
    pub(crate) fn on_return(&mut self, node: NodeId) {
        let number = self.tick();
        self.returned.insert(node, number);
    }

    /// This node sees that another one has ended, and not in order.
    pub(crate) fn on_end(&mut self, Address { node, incarnation }: Address) {
        let number = self.tick();
        self.ended.insert(node, Death { incarnation, number });
    }

    fn tick(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    /// With an end of a node something may be lost. `met`: the incarnation of it that lives, as far as this node knows. False
    /// if that is no news.
    pub(crate) fn on_loss(&mut self, Address { node, incarnation }: Address, met: Option<Incarnation>) -> bool {
        if self.lossy.get(&node).is_some_and(|known| known.incarnation >= incarnation) {
            return false;
        }
        let seen = self.ended.get(&node).filter(|ended| ended.incarnation >= incarnation);
        let number = match seen {
            Some(ended) => ended.number,
            None if met.is_some_and(|met| met <= incarnation) => self.tick(),
            // It had died before this node heard of it first.
            None => 0,
        };
        self.lossy.insert(node, Death { incarnation, number });
        true
    }

    /// Has another node ended since, and not in order? An end that this node was told of before it saw it counts once.
    pub(crate) fn are_since(&self, count: u64) -> bool {
        let was_told = |node, seen: &Death| {
            let told = self.lossy.get(node).filter(|told| told.incarnation == seen.incarnation && told.number > 0);
            told.is_some_and(|told| told.number <= count)
        };
        self.lossy.values().any(|death| death.number > count)
            || self.ended.iter().any(|(node, death)| death.number > count && !was_told(node, death))
    }

    /// May something be lost since then that one of these homes was asked to make durable? `others`: all that may write.
    pub(crate) fn have_lost_since(
        &self,
        count: u64,
        mut homes: impl Iterator<Item = NodeId> + Clone,
        mut others: impl Iterator<Item = NodeId>,
    ) -> bool {
        let is_since = |death: &Death| death.number > count;
        let has_returned = homes.clone().any(|home| self.returned.get(&home).is_some_and(|number| *number > count));
        let was_met = |node| self.met.get(&node).is_some_and(|number| *number <= count);
        self.lossy.values().any(is_since)
            || homes.any(|home| self.ended.get(&home).is_some_and(is_since))
            || (has_returned && (self.are_since(count) || !others.all(was_met)))
    }

    pub(crate) fn all_lossy(&self) -> impl Iterator<Item = Address> {
        self.lossy.iter().map(|(node, death)| Address { node: *node, incarnation: death.incarnation })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(incarnation: u32) -> Address {
        Address { node: NodeId(1), incarnation: Incarnation(incarnation) }
    }

    fn lost(deaths: &Deaths, since: u64) -> bool {
        deaths.have_lost_since(since, std::iter::empty(), std::iter::empty())
    }

    #[test]
    fn what_is_lost_with_a_node_counts_from_when_its_end_was_known() {
        let mut deaths = Deaths::default();
        deaths.on_end(address(2));
        let before = deaths.count;
        assert!(!lost(&deaths, 0), "nothing is known to be lost");
        assert!(deaths.on_loss(address(2), Some(Incarnation(3))));
        assert!(lost(&deaths, before - 1) && !lost(&deaths, before), "it had ended before");
        assert!(!deaths.on_loss(address(2), Some(Incarnation(3))), "told twice");
    }

    #[test]
    fn a_node_that_is_told_first_learns_of_the_death_then() {
        let mut deaths = Deaths::default();
        assert!(deaths.on_loss(address(2), Some(Incarnation(2))));
        assert!(lost(&deaths, 0) && !lost(&deaths, deaths.count));
        let told = deaths.count;
        deaths.on_end(address(2));
        assert!(
            deaths.are_since(0) && !deaths.are_since(told),
            "it sees the same death, and fails no other flush for it"
        );
        deaths.on_end(address(3));
        assert!(deaths.are_since(told), "another one");
    }

    #[test]
    fn what_ended_before_this_node_met_it_does_not_count() {
        for met in [None, Some(Incarnation(3))] {
            let mut deaths = Deaths::default();
            assert!(deaths.on_loss(address(2), met));
            assert!(!lost(&deaths, 0), "{met:?}");
        }
    }

    #[test]
    fn a_home_that_ended_has_lost_whom_it_had_let_write() {
        let mut deaths = Deaths::default();
        deaths.on_end(address(2));
        assert!(deaths.have_lost_since(0, std::iter::once(NodeId(1)), std::iter::empty()));
        assert!(!deaths.have_lost_since(0, std::iter::once(NodeId(2)), std::iter::empty()));
    }

    #[test]
    fn that_a_home_has_ended_counts_from_when_this_node_sees_it_although_it_was_told_before_that_a_writer_has() {
        let mut deaths = Deaths::default();
        assert!(deaths.on_loss(address(2), Some(Incarnation(2))));
        let told = deaths.count;
        deaths.on_end(address(2));
        assert!(deaths.have_lost_since(told, std::iter::once(NodeId(1)), std::iter::empty()));
    }

    #[test]
    fn a_home_that_ended_in_order_has_lost_nothing_while_all_others_are_known_to_live() {
        let (home, writer) = (NodeId(1), NodeId(2));
        let mut deaths = Deaths::default();
        deaths.on_met(home);
        let unmet = deaths.count;
        deaths.on_met(writer);
        let before = deaths.count;
        deaths.on_return(home);
        let lost =
            |deaths: &Deaths, since| deaths.have_lost_since(since, [home].into_iter(), [home, writer].into_iter());
        assert!(!lost(&deaths, before) && lost(&deaths, unmet));
        deaths.on_end(Address { node: writer, incarnation: Incarnation(2) });
        assert!(lost(&deaths, before) && !lost(&deaths, deaths.count));
    }
}
