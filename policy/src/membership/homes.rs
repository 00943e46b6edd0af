//! Which node is the home of which shard.
//!
//! Wanted is a map in which no member has more than one shard more than another. It follows from the current map and the
//! members alone, so that all nodes want the same: shards without a living home go to those who have fewest; then, while
//! the difference is more than one, a shard moves from who has most to who has fewest. So as few shards move as can.
//!
//! Rejected: rendezvous hashing of shards and nodes, which needs no map: of 64 shards three nodes get 14 to 29, and
//! a shard would move back to a node that returns.

use std::collections::BTreeMap;

use super::{Action, Actions, Address, Ask, Revision, StaleView};
pub use crate::coherence::{Home, ShardNo};

/// The wish that this node gives up a shard. Its number tells it from an earlier one, of an epoch that is over, which
/// may be done late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Release {
    pub shard: ShardNo,
    pub number: u64,
}

/// The home of each shard, by number, and since when: the term of a new home is one more than the version that its map
/// replaces. So it is higher than all terms before, and at most the new version, which the proposer cannot know yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Map(pub Vec<Home>);

impl Map {
    /// Who should be home: from the current map, of which only homes among `members` count. `members` are sorted and at
    /// least one.
    pub fn wanted(current: &Map, shards: u16, members: &[Address]) -> Vec<Address> {
        let of = |shard: usize| members.binary_search(&current.0.get(shard)?.at).ok();
        let mut homes: Vec<Option<usize>> = (0..usize::from(shards)).map(of).collect();
        let mut counts = vec![0; members.len()];
        homes.iter().flatten().for_each(|&home| counts[home] += 1);
        for home in homes.iter_mut().filter(|home| home.is_none()) {
            let to = fewest(&counts);
            *home = Some(to);
            counts[to] += 1;
        }
        loop {
            let (from, to) = (most(&counts), fewest(&counts));
            if counts[from] <= counts[to] + 1 {
                break;
            }
            let moved = homes.iter_mut().rev().find(|home| **home == Some(from));
            moved.into_iter().for_each(|home| *home = Some(to));
            counts[from] -= 1;
            counts[to] += 1;
        }
        homes.into_iter().flatten().map(|home| members[home]).collect()
    }
}

/// The first of those who have most.
fn most(counts: &[usize]) -> usize {
    (0..counts.len()).rev().max_by_key(|&index| counts[index]).unwrap_or(0)
}

/// The first of those who have fewest.
fn fewest(counts: &[usize]) -> usize {
    (0..counts.len()).min_by_key(|&index| counts[index]).unwrap_or(0)
}

/// The map as this node has seen it, and what it does about it.
#[derive(Clone, Debug)]
pub(super) struct Homes {
    shards: u16,
    /// 0: there is none.
    version: Revision,
    map: Map,
    /// Shards of this node that it was asked to give up.
    releasing: BTreeMap<ShardNo, Releasing>,
    /// Releases so far.
    releases: u64,
    /// What it would propose now.
    proposal: Option<Map>,
    /// What it proposed for this version and was not seen to fail.
    proposed: Option<(Revision, Map)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Releasing {
    /// The service has not finished the release of this number.
    Asked(u64),
    /// Given up. `offered`: the last version for which this node proposed another home.
    Done { offered: Option<Revision> },
}

impl Homes {
    pub fn new(shards: u16) -> Self {
        let (releasing, version) = (BTreeMap::new(), Revision(0));
        Homes { shards, version, map: Map::default(), releasing, releases: 0, proposal: None, proposed: None }
    }

    pub fn of(&self, shard: ShardNo) -> Option<Address> {
        self.named(shard).map(|home| home.at)
    }

    pub fn named(&self, shard: ShardNo) -> Option<Home> {
        self.map.0.get(usize::from(shard.0)).copied()
    }

    /// Whether this node is the home of the shard and has not begun to give it up.
    pub fn holds(&self, shard: ShardNo, me: Option<Address>) -> bool {
        self.of(shard).is_some_and(|home| Some(home) == me) && !self.releasing.contains_key(&shard)
    }

    /// Can this be the map of now, after the one that was seen?
    pub fn check(&self, map: Option<&(Revision, Map)>) -> Result<(), StaleView> {
        let is_later = match map {
            Some((version, map)) => *version > self.version || (*version == self.version && *map == self.map),
            None => self.version == Revision(0),
        };
        is_later.then_some(()).ok_or(StaleView::Map(self.version))
    }

    pub fn on_map(&mut self, version: Revision, map: Map, actions: &mut Actions) {
        if version <= self.version || map.0.len() != usize::from(self.shards) {
            return;
        }
        for (shard, home) in (0..self.shards).map(ShardNo).zip(&map.0) {
            if self.named(shard) != Some(*home) {
                self.releasing.remove(&shard);
                actions.push(Action::Home { shard, home: *home });
            }
        }
        (self.version, self.map) = (version, map);
    }

    pub fn on_released(&mut self, Release { shard, number }: Release) {
        if let Some(releasing) = self.releasing.get_mut(&shard)
            && *releasing == Releasing::Asked(number)
        {
            *releasing = Releasing::Done { offered: None };
        }
    }

    /// This node's epoch is over, and so are its shards.
    pub fn on_lost(&mut self) {
        self.releasing.clear();
        self.proposal = None;
    }

    /// A question failed: if it was a proposal, it may be made again.
    pub fn on_failed(&mut self) {
        self.proposed = None;
    }

    /// What follows from the map and the members.
    pub fn plan(&mut self, me: Address, members: &[Address], actions: &mut Actions) {
        let mut proposal = Map::wanted(&self.map, self.shards, members);
        let mut is_needed = self.map.0.is_empty();
        for (shard, home) in (0..self.shards).map(ShardNo).zip(&mut proposal) {
            let Some(current) = self.of(shard) else { continue };
            let to = *home;
            if members.binary_search(&current).is_err() {
                is_needed = true;
                continue;
            }
            *home = current;
            if current != me {
                continue;
            }
            match self.releasing.get(&shard) {
                None if to != me => {
                    self.releases += 1;
                    self.releasing.insert(shard, Releasing::Asked(self.releases));
                    actions.push(Action::Release(Release { shard, number: self.releases }));
                }
                Some(Releasing::Done { offered })
                    if to == me && offered.is_none_or(|version| version < self.version) =>
                {
                    // No proposal that gives it away can succeed any more.
                    self.releasing.remove(&shard);
                    actions.extend(self.named(shard).map(|home| Action::Home { shard, home }));
                }
                Some(Releasing::Done { .. }) => {
                    // To itself, too: the new version puts an end to the earlier offer.
                    *home = to;
                    is_needed = true;
                }
                _ => {}
            }
        }
        // Beyond the epochs that messages can carry nothing moves any more; registration says so.
        self.proposal = self.version.next_term().ok().filter(|_| is_needed).map(|since| {
            let home =
                |(shard, at)| self.named(ShardNo(shard)).filter(|home| home.at == at).unwrap_or(Home { at, since });
            Map((0..self.shards).zip(proposal).map(home).collect())
        });
    }

    /// Whether there is something to propose that was not proposed already.
    pub fn has_proposal(&self) -> bool {
        self.proposal.as_ref().is_some_and(|map| {
            self.proposed.as_ref().is_none_or(|(version, proposed)| *version != self.version || proposed != map)
        })
    }

    pub fn propose(&mut self, me: Address) -> Option<Ask> {
        let (map, version) = (self.proposal.clone().filter(|_| self.has_proposal())?, self.version);
        for (shard, releasing) in &mut self.releasing {
            if let Releasing::Done { offered } = releasing
                && map.0.get(usize::from(shard.0)).is_some_and(|home| home.at != me)
            {
                *offered = Some(version);
            }
        }
        self.proposed = Some((version, map.clone()));
        Some(Ask::Propose { version, map })
    }
}
