//! What is watched of pages on their way: those that bounce between two nodes, and where the time of a miss goes.
//!
//! A page bounces when a node is granted it that had it before the last one, and one of the two writes: typically two
//! nodes use different parts of it (false sharing). Only the last moves are known, by a table of fixed size; what it has
//! forgotten is not counted.

use std::collections::BTreeMap;
use std::time::Duration;

use policy::coherence::{Mode, NodeId, PageNo};
use policy::unit::Instant;

/// Pages whose last moves are known, at most.
const MOVES: usize = 4096;

/// Requests whose time is taken, at most.
const TIMED_MAX: usize = 4096;

/// What takes longer is not timed any more: most likely it will not end.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(10);

/// Between searches for those, when there is no room for others.
const SEARCH_EACH: Duration = Duration::from_secs(1);

/// Pairs of nodes that are counted, at most.
const PAIRS_MAX: usize = 1024;

/// A part of the time of a miss, at a home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    /// From the request's arrival to the grant.
    Home,
    /// From a recall to the holder's answer.
    Holder,
}

#[derive(Clone, Copy)]
struct Moves {
    page: PageNo,
    last: (NodeId, Mode),
    before: Option<NodeId>,
}

#[derive(Default)]
pub(crate) struct Watch {
    moves: Vec<Option<Moves>>,
    bounces: BTreeMap<(NodeId, NodeId), u64>,
    since: BTreeMap<(Part, PageNo, NodeId), Instant>,
    searched: Option<Instant>,
}

impl Watch {
    /// A home grants a page.
    pub(crate) fn on_grant(&mut self, page: PageNo, to: NodeId, mode: Mode) {
        self.moves.resize(MOVES, None);
        let place = &mut self.moves[(page.0 % MOVES as u64) as usize];
        let Some(moves) = place.as_mut().filter(|moves| moves.page == page) else {
            *place = Some(Moves { page, last: (to, mode), before: None });
            return;
        };
        let (last, last_mode) = std::mem::replace(&mut moves.last, (to, mode));
        if last == to {
            return;
        }
        let was_here = moves.before.replace(last) == Some(to);
        let pair = (last.min(to), last.max(to));
        if !was_here || last_mode.max(mode) != Mode::Write {
            return;
        }
        if let Some(count) = self.bounces.get_mut(&pair) {
            *count += 1;
        } else if self.bounces.len() < PAIRS_MAX {
            self.bounces.insert(pair, 1);
        }
    }

    /// How often pages bounced, by pair of nodes.
    pub(crate) fn bounces(&self) -> impl Iterator<Item = ((NodeId, NodeId), u64)> + '_ {
        self.bounces.iter().map(|(pair, count)| (*pair, *count))
    }

    /// A part begins, unless it is under way: what is sent again is still the same. Not all parts end: a home may move, and
    /// a request may be ignored as an old one.
    pub(crate) fn begin(&mut self, part: Part, page: PageNo, node: NodeId, now: Instant) {
        let is_under_way = |since: &Instant| now.since(*since) < GIVEN_UP_AFTER;
        let is_due = self.searched.is_none_or(|searched| now.since(searched) >= SEARCH_EACH);
        if self.since.len() >= TIMED_MAX && is_due {
            self.since.retain(|_, since| is_under_way(since));
            self.searched = Some(now);
        }
        let key = (part, page, node);
        if let Some(since) = self.since.get_mut(&key) {
            *since = if is_under_way(since) { *since } else { now };
        } else if self.since.len() < TIMED_MAX {
            self.since.insert(key, now);
        }
    }

    pub(crate) fn end(&mut self, part: Part, page: PageNo, node: NodeId, now: Instant) -> Option<Duration> {
        self.since.remove(&(part, page, node)).map(|since| now.since(since))
    }

    /// A node has ended: it is not answered, and answers nothing.
    pub(crate) fn forget(&mut self, node: NodeId) {
        self.since.retain(|(_, _, of), _| *of != node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: PageNo = PageNo(7);
    const A: NodeId = NodeId(0);
    const B: NodeId = NodeId(1);
    const C: NodeId = NodeId(2);

    fn bounces(grants: &[(NodeId, Mode)]) -> Vec<((NodeId, NodeId), u64)> {
        let mut watch = Watch::default();
        grants.iter().for_each(|(node, mode)| watch.on_grant(PAGE, *node, *mode));
        watch.bounces().collect()
    }

    #[test]
    fn a_page_that_two_nodes_take_from_each_other_bounces() {
        use Mode::{Read, Write};
        assert_eq!(bounces(&[(A, Write), (B, Write), (A, Write), (B, Write)]), [((A, B), 2)]);
        assert_eq!(bounces(&[(A, Write), (B, Read), (A, Write), (B, Read)]), [((A, B), 2)], "reader and writer");
        assert_eq!(bounces(&[(A, Write), (B, Write), (C, Write)]), [], "it moves on");
        assert_eq!(bounces(&[(A, Write), (A, Write), (B, Write)]), [], "it is written again");
        assert_eq!(bounces(&[(A, Read), (B, Read), (A, Read)]), [], "a cache had dropped it");
    }

    #[test]
    fn pairs_that_are_counted_go_on_when_there_is_no_room_for_more() {
        let mut watch = Watch::default();
        watch.bounces.extend((0..PAIRS_MAX as u16).map(|node| ((NodeId(node + 10), NodeId(node + 11)), 1)));
        watch.bounces.pop_last();
        watch.bounces.insert((A, B), 5);
        for (one, other) in [(A, B), (A, C)] {
            [one, other, one].into_iter().for_each(|node| watch.on_grant(PAGE, node, Mode::Write));
        }
        assert_eq!((watch.bounces.get(&(A, B)), watch.bounces.get(&(A, C))), (Some(&6), None));
    }

    #[test]
    fn a_page_that_takes_another_s_place_in_the_table_begins_anew() {
        let mut watch = Watch::default();
        for page in [7, 7 + MOVES as u64, 7] {
            watch.on_grant(PageNo(page), A, Mode::Write);
            watch.on_grant(PageNo(page), B, Mode::Write);
        }
        assert_eq!(watch.bounces().count(), 0);
    }

    #[test]
    fn what_never_ended_is_searched_for_once_a_second() {
        let mut watch = Watch::default();
        let begin = |watch: &mut Watch, page: u64, ms: u64| {
            watch.begin(Part::Home, PageNo(page), A, Instant::ZERO + Duration::from_millis(ms));
            watch.since.len()
        };
        let (full, one) = (TIMED_MAX, 1);
        assert_eq!((0..full as u64).map(|page| begin(&mut watch, page, 0)).last(), Some(full));
        let counts = [9500, 10_100, 10_500].map(|ms| begin(&mut watch, TIMED_MAX as u64 + ms, ms));
        assert_eq!(counts, [full, full, one]);
    }

    #[test]
    fn a_part_is_timed_from_its_first_beginning_and_forgotten_with_its_node() {
        let mut watch = Watch::default();
        let at = |us| Instant::ZERO + Duration::from_micros(us);
        watch.begin(Part::Home, PAGE, A, at(1));
        watch.begin(Part::Home, PAGE, A, at(5));
        watch.begin(Part::Holder, PAGE, B, at(2));
        assert_eq!(watch.end(Part::Home, PAGE, A, at(9)), Some(Duration::from_micros(8)));
        watch.forget(B);
        assert_eq!(watch.end(Part::Holder, PAGE, B, at(9)), None);
        for page in 0..2 * TIMED_MAX as u64 {
            watch.begin(Part::Home, PageNo(page), A, at(1));
        }
        assert_eq!(watch.since.len(), TIMED_MAX);
        let later = at(1) + GIVEN_UP_AFTER;
        watch.begin(Part::Home, PageNo(3 * TIMED_MAX as u64), B, later);
        assert_eq!(watch.since.len(), 1, "what did not end is given up");
        watch.begin(Part::Home, PageNo(3 * TIMED_MAX as u64), B, later + GIVEN_UP_AFTER);
        assert_eq!(
            watch.end(Part::Home, PageNo(3 * TIMED_MAX as u64), B, later + GIVEN_UP_AFTER),
            Some(Duration::ZERO)
        );
    }
}
