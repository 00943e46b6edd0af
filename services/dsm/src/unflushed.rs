//! What is to be flushed where, and which flushes are under way.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use policy::coherence::{Address, Incarnation, NodeId, PageNo, PageSet};
use policy::unflushed::Unflushed;
use policy::unit::Instant;

use crate::failed::Failures;
use crate::wire::Mark;

/// Whose writes a flush covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// What this node has stored.
    Own,
    /// What was acknowledged at any node.
    All,
}

/// Of the number of marked pages that is many, a home with one part of so many is worth a flush by itself; with less where more homes have
/// marked pages. Several volumes share that number: with many evenly loaded ones a flush may come only after a second. Judged.
const SHARES: u64 = 4;

/// A home at which something of this node was stored and not flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Touched {
    /// The incarnations of the home at which the first and the last of it was stored.
    pub(crate) first: Incarnation,
    pub(crate) last: Incarnation,
    /// When, counted in stores.
    pub(crate) number: u64,
    /// Where homes move: the failures that this node had heard of before, or its own flushes have returned.
    pub(crate) known: u64,
}

#[derive(Default)]
pub(crate) struct Flushes {
    pub(crate) touched: BTreeMap<NodeId, Touched>,
    /// Numbers what was stored.
    touches: u64,
    /// Where homes stay: the last incarnation of each that has ended with all durable that was stored there.
    durable: BTreeMap<NodeId, Incarnation>,
    /// Where homes move, by home: pages that it had not flushed when it granted them, and that others had written.
    pub(crate) marked: BTreeMap<Address, Unflushed<PageSet>>,
    /// The last incarnation of each home that may have lost what this node had stored there and not flushed; what was given up
    /// for a home and is lost counts as that of the incarnation before.
    unflushed: BTreeMap<NodeId, Incarnation>,
    /// Numbers requests.
    asked: u64,
    pub(crate) answers: BTreeMap<u64, Asked>,
    /// The failures of each home that this node's flushes have returned, by scope.
    marks: [BTreeMap<NodeId, Mark>; 2],
    /// Where homes move.
    pub(crate) failures: Failures,
    pub(crate) home: HomeFlushes,
}

/// A flush that a home was asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    pub(crate) answer: Option<(bool, Mark)>,
    /// How often the home has said that it is at work.
    pub(crate) heard: u64,
}

/// Of this home's storage.
pub(crate) struct HomeFlushes {
    /// Pages stored in all, and those of them that are durable.
    pub(crate) stored: u64,
    pub(crate) durable: u64,
    /// Where homes move: those that are not.
    pub(crate) unflushed: Unflushed<PageSet>,
    /// Since when the storage has been flushing.
    pub(crate) running: Option<Instant>,
    /// Flushes that failed.
    pub(crate) failures: u64,
    /// The last incarnation of this home that may have lost what a node had stored and not flushed.
    pub(crate) lost_at: Option<Incarnation>,
    /// Requests that are not answered yet.
    pub(crate) requests: BTreeSet<(Address, u64)>,
    /// How often something was lost that may have been acknowledged at any node.
    pub(crate) losses: u64,
    /// Of each node, the last request that was under way then: it fails also when it is asked for again.
    pub(crate) lost_for: BTreeMap<NodeId, (Incarnation, u64)>,
}

impl Default for HomeFlushes {
    fn default() -> Self {
        // What an earlier process stored may not be durable, either.
        let (stored, durable) = (1, 0);
        let unflushed = Unflushed::default();
        let (running, failures, lost_at, requests, losses, lost_for) = Default::default();
        HomeFlushes { stored, durable, unflushed, running, failures, lost_at, requests, losses, lost_for }
    }
}

impl HomeFlushes {
    /// May a page that it has stored not be durable?
    pub(crate) fn is_unflushed(&self, page: PageNo) -> bool {
        self.unflushed.both().iter().any(|pages| pages.contains(page))
    }

    /// Has this incarnation stored anything that is not durable?
    pub(crate) fn has_unflushed(&self) -> bool {
        self.stored > self.durable.max(1)
    }

    /// Has nothing failed, and nothing been stored since the last flush began?
    pub(crate) fn is_durable(&self) -> bool {
        self.failures == 0 && self.durable >= self.stored
    }

    /// Has something been lost since?
    pub(crate) fn has_failed(&self, me: Incarnation, scope: Scope, since: Mark) -> bool {
        let (is_earlier, known) = (since.incarnation < me, if since.incarnation == me { since.failures } else { 0 });
        let has_lost = match scope {
            Scope::Own => is_earlier,
            Scope::All => self.lost_at.is_some_and(|lost| lost >= since.incarnation),
        };
        has_lost || self.failures > known
    }
}

impl Flushes {
    /// Something is stored at `home`.
    pub(crate) fn touch(&mut self, home: NodeId, incarnation: Incarnation) {
        self.touches += 1;
        let (first, last, number) = (incarnation, incarnation, self.touches);
        let known = self.failures.count;
        let touched = self.touched.entry(home).or_insert(Touched { first, last, number, known });
        (touched.last, touched.number) = (last.max(touched.last), number);
    }

    /// A flush has covered what was `touched` then, or has returned that this failed.
    pub(crate) fn end(&mut self, home: NodeId, touched: Touched) {
        let known = self.failures.count;
        match self.touched.get_mut(&home) {
            Some(now) if now.number == touched.number => drop(self.touched.remove(&home)),
            Some(now) => now.known = known,
            None => {}
        }
    }

    /// A home stores nothing more, and all that it has stored in this incarnation is durable.
    pub(crate) fn on_durable(&mut self, home: Address) {
        self.durable.insert(home.node, home.incarnation);
        self.touched.retain(|node, touched| *node != home.node || touched.first != home.incarnation);
    }

    pub(crate) fn is_durable(&self, home: NodeId, incarnation: Incarnation) -> bool {
        self.durable.get(&home) == Some(&incarnation)
    }

    /// This node does not have the page any more.
    pub(crate) fn unmark(&mut self, page: PageNo) {
        self.marked.values_mut().for_each(|marked| marked.remove(page));
    }

    /// Pages are durable.
    pub(crate) fn unmark_all(&mut self, pages: Range<PageNo>) {
        for marked in self.marked.values_mut() {
            let durable: Vec<PageNo> = marked.both().iter().flat_map(|all| all.within(pages.clone())).collect();
            durable.into_iter().for_each(|page| marked.remove(page));
        }
    }

    /// The home that has not flushed the page, where it is marked or was before this node wrote it.
    pub(crate) fn marked_at(&self, page: PageNo) -> Option<Address> {
        let is_of_it = |marked: &Unflushed<PageSet>| marked.both().iter().any(|pages| pages.contains(page));
        self.marked.iter().find(|(_, marked)| is_of_it(marked)).map(|(home, _)| *home)
    }

    /// Does a home have its share of so many marked pages, which are many? Others may have most of them that cannot be reached, and
    /// to flush this one again and again makes no room then.
    pub(crate) fn has_share_of_marked(&self, home: Address, many: u64) -> bool {
        let share = many / SHARES.max(self.marked.len() as u64);
        self.marked.get(&home).is_some_and(|marked| marked.since().has_at_least(share.max(1)))
    }

    /// A home is met. Returns the last incarnation of it that may have lost what this node had stored.
    pub(crate) fn meet(&mut self, home: Address) -> Option<Incarnation> {
        for marks in &mut self.marks {
            marks.entry(home.node).or_insert(Mark { incarnation: home.incarnation, failures: 0 });
        }
        self.on_return(home);
        self.unflushed.get(&home.node).copied()
    }

    /// A home has another incarnation than the one at which something was stored: that may be lost.
    pub(crate) fn on_return(&mut self, home: Address) {
        let last = self.touched.get(&home.node).map(|touched| touched.last);
        // Without a home nothing was stored.
        let is_earlier = |last: &Incarnation| (Incarnation(1)..home.incarnation).contains(last);
        if let Some(lost) = last.filter(is_earlier) {
            self.unflushed.insert(home.node, lost);
        }
    }

    /// What was given up before a home had this incarnation is lost.
    pub(crate) fn on_lost(&mut self, home: Address) {
        let before = Incarnation(home.incarnation.0.saturating_sub(1));
        let lost = self.unflushed.entry(home.node).or_default();
        *lost = before.max(*lost);
    }

    /// The failures of a home that a flush has returned, or that were before this node met it.
    pub(crate) fn mark(&self, scope: Scope, home: NodeId) -> Mark {
        self.marks[scope as usize].get(&home).copied().unwrap_or_default()
    }

    pub(crate) fn ask(&mut self) -> u64 {
        self.asked += 1;
        self.answers.insert(self.asked, Asked::default());
        self.asked
    }

    pub(crate) fn on_answer(&mut self, number: u64, ok: bool, mark: Mark) {
        self.answers.entry(number).and_modify(|asked| asked.answer = Some((ok, mark)));
    }

    pub(crate) fn on_work(&mut self, number: u64) {
        self.answers.entry(number).and_modify(|asked| asked.heard += 1);
    }

    pub(crate) fn note_mark(&mut self, scope: Scope, home: NodeId, mark: Mark) {
        let known = self.marks[scope as usize].entry(home).or_default();
        *known = mark.max(*known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOME: NodeId = NodeId(1);

    fn mark(incarnation: u32, failures: u64) -> Mark {
        Mark { incarnation: Incarnation(incarnation), failures }
    }

    #[test]
    fn each_node_is_told_once_of_a_failure() {
        let me = Incarnation(4);
        let mut home = HomeFlushes::default();
        for scope in [Scope::Own, Scope::All] {
            assert!(!home.has_failed(me, scope, mark(4, 0)));
        }
        home.failures = 2;
        for scope in [Scope::Own, Scope::All] {
            assert!(home.has_failed(me, scope, mark(4, 1)) && home.has_failed(me, scope, mark(3, 9)));
            assert!(!home.has_failed(me, scope, mark(4, 2)));
        }
    }

    #[test]
    fn what_an_earlier_incarnation_lost_fails_flushes_of_all_that_have_not_heard_of_it() {
        let me = Incarnation(5);
        let home = HomeFlushes { lost_at: Some(Incarnation(3)), ..HomeFlushes::default() };
        assert!(home.has_failed(me, Scope::All, mark(3, 0)), "it flushed at that incarnation last");
        assert!(!home.has_failed(me, Scope::All, mark(4, 0)), "it was told by the one after it");
        assert!(home.has_failed(me, Scope::Own, mark(4, 0)), "what it had stored itself there");
        assert!(!HomeFlushes::default().has_failed(me, Scope::All, mark(3, 0)), "nothing was lost");
    }

    #[test]
    fn what_was_stored_last_at_an_earlier_incarnation_counts_as_lost() {
        let mut flushes = Flushes::default();
        let address = |incarnation| Address { node: HOME, incarnation: Incarnation(incarnation) };
        assert_eq!(flushes.meet(address(2)), None);
        flushes.touch(HOME, Incarnation(2));
        assert_eq!(flushes.meet(address(2)), None, "the same process");
        assert_eq!(flushes.meet(address(3)), Some(Incarnation(2)));
        flushes.touch(HOME, Incarnation(3));
        assert_eq!(flushes.touched[&HOME].first, Incarnation(2), "not flushed since");
        assert_eq!(flushes.meet(address(4)), Some(Incarnation(3)));
        assert_eq!(flushes.mark(Scope::All, HOME), mark(2, 0), "where it was met first");
    }

    #[test]
    fn what_is_stored_during_a_flush_is_left_to_the_next_one() {
        let mut flushes = Flushes::default();
        flushes.touch(HOME, Incarnation(2));
        let before = flushes.touched[&HOME];
        flushes.touch(HOME, Incarnation(2));
        flushes.end(HOME, before);
        assert!(flushes.touched.contains_key(&HOME));
        flushes.end(HOME, flushes.touched[&HOME]);
        assert!(flushes.touched.is_empty());
    }

    #[test]
    fn a_page_is_unflushed_from_its_store_until_a_flush_that_began_later_has_succeeded() {
        let (one, other) = (PageNo(1), PageNo(2));
        let mut home = HomeFlushes::default();
        home.unflushed.since_mut().insert(one);
        home.unflushed.begin();
        home.unflushed.since_mut().insert(other);
        assert!(home.is_unflushed(one) && home.is_unflushed(other));
        home.unflushed.failed();
        assert!(home.is_unflushed(one) && home.is_unflushed(other));
        home.unflushed.begin();
        home.unflushed.since_mut().insert(other);
        home.unflushed.succeeded();
        assert!(!home.is_unflushed(one) && home.is_unflushed(other));
    }
}
