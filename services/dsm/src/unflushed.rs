//! What is to be flushed where, and which flushes are under way.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Range, RangeInclusive};

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
    /// The incarnations of the home at which the first that is not lost, and the last of it was stored. If that is an earlier one,
    /// all is lost.
    pub(crate) first: Incarnation,
    pub(crate) last: Incarnation,
    /// The number of the last loss of some of it, or of what was given up to the home, that no flush has returned.
    pub(crate) lost: Option<u64>,
    /// The number of the last of it.
    pub(crate) number: u64,
    /// Where homes move: the failures that this node had heard of before, or its own flushes have returned.
    pub(crate) known: u64,
}

#[derive(Default)]
pub(crate) struct Flushes {
    pub(crate) touched: BTreeMap<NodeId, Touched>,
    /// Where homes stay: the incarnations of the process of each that was connected last, up to that. It has what was stored since
    /// the first.
    processes: BTreeMap<NodeId, RangeInclusive<Incarnation>>,
    /// Where homes stay: those of each that have ended with all durable that was stored there.
    durable: BTreeMap<NodeId, RangeInclusive<Incarnation>>,
    /// Where homes move, by home: pages that it had not flushed when it granted them, and that others had written.
    pub(crate) marked: BTreeMap<Address, Unflushed<PageSet>>,
    /// The last incarnation of each home that may have lost what this node had stored there and not flushed; what was given up
    /// for a home and is lost counts as that of the incarnation before.
    unflushed: BTreeMap<NodeId, Incarnation>,
    /// Numbers losses.
    losses: u64,
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
    /// Where homes stay: the last earlier incarnation of this process in which some have, if any.
    pub(crate) failed_before: Option<Mark>,
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
        let (running, failures, failed_before, lost_at) = Default::default();
        let (requests, losses, lost_for) = Default::default();
        HomeFlushes {
            stored,
            durable,
            unflushed,
            running,
            failures,
            failed_before,
            lost_at,
            requests,
            losses,
            lost_for,
        }
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
        self.failures == 0 && self.failed_before.is_none() && self.durable >= self.stored
    }

    /// Has something been lost since? `process`: its first incarnation, and this one.
    pub(crate) fn has_failed(&self, process: RangeInclusive<Incarnation>, scope: Scope, since: Mark) -> bool {
        let has_lost = match scope {
            Scope::Own => since.incarnation < *process.start(),
            Scope::All => self.lost_at.is_some_and(|lost| lost >= since.incarnation),
        };
        has_lost || self.failed(*process.end()).is_some_and(|failed| failed > since)
    }

    /// The last incarnation of this process, of which `me` is the present one, in which flushes have failed, with how often.
    fn failed(&self, me: Incarnation) -> Option<Mark> {
        let own = Mark { incarnation: me, failures: self.failures };
        Some(own).filter(|own| own.failures > 0).or(self.failed_before)
    }

    /// Takes over what `before`, of the same process, would have returned.
    pub(crate) fn inherit(&mut self, before: &HomeFlushes, incarnation: Incarnation) {
        self.failed_before = before.failed(incarnation);
        self.lost_at = self.lost_at.max(before.lost_at);
    }
}

impl Flushes {
    /// Something leaves to be stored at `home`, of this number among all that is given up.
    pub(crate) fn touch(&mut self, home: Address, number: u64) {
        let (first, last, lost) = (home.incarnation, home.incarnation, None);
        let known = self.failures.count;
        let touched = self.touched.entry(home.node).or_insert(Touched { first, last, lost, number, known });
        (touched.last, touched.number) = (last.max(touched.last), number.max(touched.number));
    }

    /// Where something was stored, to be flushed, of which only what was given up to this number is certainly stored.
    pub(crate) fn touched_by(&self, saved: u64) -> BTreeMap<NodeId, Touched> {
        let stored = |at: &Touched| Touched { number: at.number.min(saved), ..*at };
        self.touched.iter().map(|(home, at)| (*home, stored(at))).collect()
    }

    /// A flush has covered what was `touched` then, or has returned that this failed.
    pub(crate) fn end(&mut self, home: NodeId, touched: Touched) {
        let known = self.failures.count;
        match self.touched.get_mut(&home) {
            Some(now) if (now.number, now.lost) == (touched.number, touched.lost) => {
                self.touched.remove(&home);
            }
            // What was lost meanwhile the next one returns.
            Some(now) => (now.lost, now.known) = (now.lost.filter(|lost| Some(*lost) != touched.lost), known),
            None => {}
        }
    }

    /// A home, which is connected, stores nothing more, and all is durable that its process has stored.
    pub(crate) fn on_durable(&mut self, home: Address) {
        let first = self.processes.get(&home.node).map_or(home.incarnation, |process| *process.start());
        self.touched.retain(|node, touched| *node != home.node || touched.lost.is_some() || touched.first < first);
        self.durable.insert(home.node, first..=home.incarnation);
    }

    pub(crate) fn is_durable(&self, home: NodeId, incarnation: Incarnation) -> bool {
        self.durable.get(&home).is_some_and(|durable| durable.contains(&incarnation))
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

    /// Where homes stay: what this process had stored in an incarnation `before`, and what others are to be told that it lost. The
    /// numbers of what was given up then are none of this one's.
    pub(crate) fn inherit(&mut self, before: &Flushes) {
        self.touched = before.touched.iter().map(|(home, at)| (*home, Touched { number: 0, ..*at })).collect();
        self.unflushed.clone_from(&before.unflushed);
        self.losses = before.losses;
    }

    /// Where homes stay: one is met, whose process had this first incarnation. What an earlier process had stored may be lost;
    /// what this one has stored since its first incarnation may yet be, and this node may read it from now on.
    /// Returns the last incarnation of it that may have lost what this node had stored.
    pub(crate) fn meet(&mut self, home: Address, first: Incarnation) -> Option<Incarnation> {
        for marks in &mut self.marks {
            marks.entry(home.node).or_insert(Mark { incarnation: first, failures: 0 });
        }
        self.processes.insert(home.node, first..=home.incarnation);
        if let Some(touched) = self.touched.get_mut(&home.node).filter(|touched| touched.first < first) {
            let (stored, lost) = (touched.first..=touched.last, touched.last.min(before(first)));
            touched.first = first;
            if !stored.is_empty() {
                self.losses += 1;
                touched.lost = Some(self.losses);
                self.note_unflushed(home.node, lost);
            }
        }
        self.unflushed.get(&home.node).copied()
    }

    /// What was given up before a home had its present incarnation, `now` unless that has ended, is lost, whatever its process.
    /// Returns the last incarnation that may have lost something.
    pub(crate) fn on_lost(&mut self, home: NodeId, now: Option<Incarnation>) -> Incarnation {
        let connected = || self.processes.get(&home).map(|process| *process.end());
        let last = now.map(before).or_else(connected).unwrap_or_default();
        let first = Incarnation(last.0.saturating_add(1));
        self.losses += 1;
        let nothing = Touched { first, last, lost: None, number: 0, known: self.failures.count };
        self.touched.entry(home).or_insert(nothing).lost = Some(self.losses);
        self.note_unflushed(home, last)
    }

    fn note_unflushed(&mut self, home: NodeId, incarnation: Incarnation) -> Incarnation {
        let lost = self.unflushed.entry(home).or_default();
        *lost = incarnation.max(*lost);
        *lost
    }

    /// What a flush of what was `touched` at a home need not return.
    pub(crate) fn own_mark(&self, home: NodeId, touched: &Touched) -> Mark {
        match touched.lost {
            // Older than any process: whichever the home has says that something is lost.
            Some(_) => Mark::default(),
            None => self.mark(Scope::Own, home).max(Mark { incarnation: touched.first, failures: 0 }),
        }
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

fn before(incarnation: Incarnation) -> Incarnation {
    Incarnation(incarnation.0.saturating_sub(1))
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
        let process = || Incarnation(4)..=Incarnation(4);
        let mut home = HomeFlushes::default();
        for scope in [Scope::Own, Scope::All] {
            assert!(!home.has_failed(process(), scope, mark(4, 0)));
        }
        home.failures = 2;
        for scope in [Scope::Own, Scope::All] {
            assert!(home.has_failed(process(), scope, mark(4, 1)) && home.has_failed(process(), scope, mark(3, 9)));
            assert!(!home.has_failed(process(), scope, mark(4, 2)));
        }
    }

    #[test]
    fn a_later_incarnation_of_a_process_returns_the_failures_of_the_earlier_ones() {
        let process = || Incarnation(4)..=Incarnation(8);
        let mut before = HomeFlushes { failures: 2, ..HomeFlushes::default() };
        for incarnation in [4, 6] {
            let mut home = HomeFlushes::default();
            home.inherit(&before, Incarnation(incarnation));
            before = home;
        }
        for scope in [Scope::Own, Scope::All] {
            assert!(before.has_failed(process(), scope, mark(4, 1)), "not heard of the second one");
            assert!([mark(4, 2), mark(5, 0), mark(8, 0)].iter().all(|known| !before.has_failed(
                process(),
                scope,
                *known
            )));
        }
        assert!(!before.is_durable());
    }

    #[test]
    fn what_an_earlier_incarnation_lost_fails_flushes_of_all_that_have_not_heard_of_it() {
        let me = || Incarnation(5)..=Incarnation(5);
        let home = HomeFlushes { lost_at: Some(Incarnation(3)), ..HomeFlushes::default() };
        assert!(home.has_failed(me(), Scope::All, mark(3, 0)), "it flushed at that incarnation last");
        assert!(!home.has_failed(me(), Scope::All, mark(4, 0)), "it was told by the one after it");
        assert!(home.has_failed(me(), Scope::Own, mark(4, 0)), "what it had stored itself there");
        assert!(!HomeFlushes::default().has_failed(me(), Scope::All, mark(3, 0)), "nothing was lost");
    }

    fn address(incarnation: u32) -> Address {
        Address { node: HOME, incarnation: Incarnation(incarnation) }
    }

    /// Told when it is met in this incarnation, whose process had that first one.
    fn meet(flushes: &mut Flushes, incarnation: u32, first: u32) -> Option<u32> {
        flushes.meet(address(incarnation), Incarnation(first)).map(|lost| lost.0)
    }

    #[test]
    fn what_was_stored_at_an_earlier_process_counts_as_lost() {
        let mut flushes = Flushes::default();
        assert_eq!(meet(&mut flushes, 2, 2), None);
        flushes.touch(address(2), 1);
        assert_eq!(meet(&mut flushes, 2, 2), None, "the same incarnation");
        assert_eq!(meet(&mut flushes, 5, 2), None, "the same process");
        flushes.touch(address(5), 2);
        let touched = flushes.touched[&HOME];
        assert_eq!((touched.first, touched.lost), (Incarnation(2), None), "not flushed since");
        assert_eq!(meet(&mut flushes, 7, 6), Some(5));
        assert!(flushes.touched[&HOME].lost.is_some());
        flushes.touch(address(7), 3);
        assert_eq!(meet(&mut flushes, 9, 6), Some(5), "nothing more");
        assert_eq!(meet(&mut flushes, 10, 10), Some(7));
        assert_eq!(meet(&mut flushes, 11, 11), Some(7), "nothing was stored since");
        assert_eq!(flushes.mark(Scope::All, HOME), mark(2, 0), "where it was met first");
    }

    #[test]
    fn what_was_given_up_to_a_home_and_is_lost_counts_although_its_process_goes_on() {
        let mut flushes = Flushes::default();
        meet(&mut flushes, 2, 2);
        assert_eq!(flushes.on_lost(HOME, Some(Incarnation(5))), Incarnation(4));
        assert_eq!(meet(&mut flushes, 5, 2), Some(4));
        let lost = flushes.touched[&HOME];
        assert!(lost.lost.is_some());
        flushes.touch(address(5), 4);
        flushes.end(HOME, lost);
        assert_eq!(flushes.touched[&HOME].lost, None, "it was returned");
    }

    #[test]
    fn what_was_given_up_to_a_home_and_is_lost_is_told_to_the_next_one_if_that_has_ended_again() {
        let mut flushes = Flushes::default();
        meet(&mut flushes, 2, 2);
        meet(&mut flushes, 4, 2);
        assert_eq!(flushes.on_lost(HOME, None), Incarnation(4));
        assert!(flushes.touched[&HOME].lost.is_some());
        assert_eq!(meet(&mut flushes, 7, 7), Some(4));
    }

    #[test]
    fn a_later_incarnation_of_a_process_has_touched_what_the_earlier_ones_had() {
        let mut before = Flushes::default();
        meet(&mut before, 2, 2);
        before.touch(address(2), 7);
        let mut flushes = Flushes::default();
        flushes.inherit(&before);
        assert_eq!(meet(&mut flushes, 4, 4), Some(2));
        flushes.end(HOME, flushes.touched_by(0)[&HOME]);
        assert!(flushes.touched.is_empty());
        before = flushes;
        flushes = Flushes::default();
        flushes.inherit(&before);
        assert_eq!(meet(&mut flushes, 4, 4), Some(2), "told by the earlier one");
    }

    #[test]
    fn a_failure_at_a_later_incarnation_is_returned_once_although_some_was_stored_at_an_earlier_one() {
        let mut flushes = Flushes::default();
        meet(&mut flushes, 2, 2);
        flushes.touch(address(2), 1);
        assert_eq!(flushes.own_mark(HOME, &flushes.touched[&HOME]), mark(2, 0));
        flushes.note_mark(Scope::Own, HOME, mark(5, 1));
        assert_eq!(flushes.own_mark(HOME, &flushes.touched[&HOME]), mark(5, 1));
        meet(&mut flushes, 8, 8);
        assert_eq!(flushes.own_mark(HOME, &flushes.touched[&HOME]), Mark::default(), "it is lost");
    }

    #[test]
    fn what_is_lost_during_a_flush_that_returns_an_earlier_loss_is_left_to_the_next_one() {
        let mut flushes = Flushes::default();
        meet(&mut flushes, 2, 2);
        flushes.touch(address(2), 1);
        meet(&mut flushes, 4, 4);
        let [one, other] = [flushes.touched[&HOME]; 2];
        flushes.touch(address(4), 2);
        flushes.end(HOME, one);
        meet(&mut flushes, 6, 6);
        flushes.end(HOME, other);
        assert!(flushes.touched[&HOME].lost.is_some());
        flushes.end(HOME, flushes.touched[&HOME]);
        assert!(flushes.touched.is_empty());
    }

    #[test]
    fn a_home_that_has_ended_has_made_durable_what_its_process_had_stored() {
        let mut flushes = Flushes::default();
        meet(&mut flushes, 7, 4);
        flushes.touch(address(5), 5);
        flushes.on_durable(address(7));
        assert!(flushes.touched.is_empty());
        let durable = |incarnation| flushes.is_durable(HOME, Incarnation(incarnation));
        assert_eq!([0, 3, 4, 5, 7, 8].map(durable), [false, false, true, true, true, false]);
        meet(&mut flushes, 9, 9);
        flushes.touch(address(8), 6);
        flushes.on_durable(address(9));
        assert!(!flushes.touched.is_empty(), "an earlier process");
    }

    #[test]
    fn what_is_stored_during_a_flush_is_left_to_the_next_one() {
        let mut flushes = Flushes::default();
        flushes.touch(address(2), 1);
        let before = flushes.touched_by(1)[&HOME];
        flushes.touch(address(2), 2);
        let under_way = flushes.touched_by(1)[&HOME];
        for not_all in [before, under_way] {
            flushes.end(HOME, not_all);
            assert!(flushes.touched.contains_key(&HOME));
        }
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
