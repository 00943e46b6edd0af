//! A node whose pages' homes move by a map ([`Homes::Mapped`](super::Homes::Mapped)): what it does when the map names others.
//!
//! The map is agreed upon outside ([`membership`](crate::membership)): a shard leaves a node only when that is no member any
//! more, or has released it. Each node acts by the map that it has seen. A home has a *term*, which is in the serials of its
//! grants, so grants and recalls of an earlier home are told from those of the present one. A new home surveys all members,
//! itself included. It is answered only by who has seen its term, and counts only answers of those who know no later one
//! than it does: otherwise it may be the home no more, while a node that has not seen that either believes its grants.
//!
//! Rejected: a home that is to give up a shard recalls all of its pages first. That waits for every holder, and the next
//! home has to survey all the same, since nodes die.

use std::collections::BTreeSet;
use std::ops::Range;

use super::copies::Copy;
use super::{Actions, Address, Home, Incarnation, Node, NodeId, Outbox, PageNo, ShardNo, Version};
use crate::unit::Instant;

impl Node {
    /// The map names these homes. What this node holds of shards that have moved it gives up, and of those that are its
    /// own now it grants nothing before all members have done so: each of them when it has seen the same map. `stored`: the
    /// versions of its new pages, if storage has any. `is_uncertain`: what this node holds of a page may not be durable, as far
    /// as it knows: an earlier home may have lost it. Nobody has anything later than what is held, so the next home gets it.
    ///
    /// Members are those that this node was notified of before: all that had joined when the map was made.
    pub fn on_homes(
        &mut self,
        now: Instant,
        homes: impl IntoIterator<Item = (ShardNo, Home)>,
        stored: impl IntoIterator<Item = (PageNo, Version)>,
        is_uncertain: impl Fn(PageNo) -> bool,
    ) -> Actions {
        let mut out = Outbox::new(now);
        let mut terms: Vec<Incarnation> = Vec::new();
        let (mut named, mut moved) = (Vec::new(), Vec::new());
        for (shard, home) in homes {
            named.push(shard);
            if self.places.set(shard, home) {
                moved.push(shard);
                if home.at == self.me && !terms.contains(&home.since) {
                    terms.push(home.since);
                }
            }
        }
        let places = &self.places;
        self.directory.forget(|page| moved.contains(&places.shard(page)));
        self.directory.note_stored(stored.into_iter().filter(|(page, _)| places.own(*page).is_some()));
        let others: Vec<NodeId> = places.living().chain([self.me.node]).collect();
        terms.iter().for_each(|since| self.directory.survey(*since, others.iter().copied()));
        named.sort_unstable();
        let is_named = |page| named.binary_search(&places.shard(page)).is_ok();
        self.copies.on_new_home(places, (is_named, is_uncertain), &mut out);
        // Those who have seen the map as well need not ask for it.
        let homes: BTreeSet<(Address, Incarnation)> =
            moved.iter().filter_map(|shard| places.shard_home(*shard)).map(|home| (home.at, home.since)).collect();
        homes.into_iter().for_each(|home| self.copies.answer_survey(places, home, PageNo(0), &mut out));
        self.directory.advance_all(places, &mut out);
        let mut actions = self.end(out);
        // After what this node itself gave up, of which it asks itself, too.
        let mut out = Outbox::new(now);
        self.directory.send_surveys(&mut out);
        actions.extend(self.end(out));
        actions
    }

    /// Does nothing more as the home of this shard, until it is taken back or named in a new term.
    pub fn release(&mut self, shard: ShardNo) {
        self.places.set_released(shard, true);
    }

    /// The term in which this node has been the home of a shard, if it has released it.
    pub fn released(&self, shard: ShardNo) -> Option<Incarnation> {
        self.places.released(shard)
    }

    /// Goes on as the home of a shard that it had released and that no other node has got.
    pub fn take_back(&mut self, now: Instant, shard: ShardNo) -> Actions {
        let mut out = Outbox::new(now);
        self.places.set_released(shard, false);
        let places = &self.places;
        // What this node asked itself for meanwhile it has ignored.
        self.copies.on_new_home(places, (|page| places.shard(page) == shard, |_| false), &mut out);
        self.directory.advance_all(places, &mut out);
        self.end(out)
    }

    /// Whether it retains data from before the present terms of their homes, which are to store them.
    pub fn retains_earlier(&self) -> bool {
        let since = |page| self.places.named(page).map_or(Incarnation::default(), |home| home.since);
        let is_earlier = |copy: &Copy| copy.saving().is_some_and(|saving| saving.serial.incarnation < since(copy.page));
        self.copies.pages.waiting_from(PageNo(0)).any(is_earlier)
    }

    /// Whether it retains these data, which it has given up, until the home has them.
    pub fn retains(&self, page: PageNo, version: Version) -> bool {
        let saving = self.copies.pages.get(page).and_then(Copy::saving);
        saving.is_some_and(|saving| saving.version == version)
    }

    /// Those of some pages whose homes may not have what this node has written or given up, in order. Not what others have forwarded:
    /// where homes move nothing is.
    pub fn unstored(&self, pages: Range<PageNo>) -> impl Iterator<Item = PageNo> + '_ {
        let copies = self.copies.pages.from(pages.start).take_while(move |(page, _)| *page < pages.end);
        let is_unstored = |copy: &Copy| copy.saving().is_some() || copy.held.is_some_and(|held| held.is_dirty);
        copies.filter(move |(_, copy)| is_unstored(copy)).map(|(page, _)| page)
    }

    /// The last term that this node has seen of any home, where homes move.
    pub fn seen(&self) -> Incarnation {
        self.places.seen(self.me)
    }

    /// How many pages of this home nodes might write when they died: what they had not given up is lost.
    pub fn dead_writers(&self) -> u64 {
        self.directory.dead_writers
    }

    /// Does it answer as the home of all shards that the map gives it, having surveyed the others?
    pub fn is_settled(&self) -> bool {
        !self.is_surveying() && !self.places.has_released()
    }

    /// The home of a shard that the map has named last.
    pub fn shard_home(&self, shard: ShardNo) -> Option<Home> {
        self.places.shard_home(shard)
    }

    /// The home of a page, if it lives as far as this node knows.
    pub fn home(&self, page: PageNo) -> Option<Home> {
        self.places.home(page)
    }

    /// Whether this node answers as the home of a page.
    pub fn is_home(&self, page: PageNo) -> bool {
        self.places.own(page).is_some()
    }
}
