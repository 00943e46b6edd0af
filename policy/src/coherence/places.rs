//! Who is the home of a page, and since when.

use super::{Address, Config, Homes, Incarnation, NodeId, PageNo, Serial, ShardNo, Storage};

/// The home of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Home {
    pub at: Address,
    /// Its *term*: grants of it have this in their serials. Higher than that of any home the shard had before.
    pub since: Incarnation,
}

#[derive(Clone, Debug)]
pub(super) struct Places {
    pub config: Config,
    pub me: Address,
    pub members: Members,
    /// Where homes move: by shard of the map.
    shards: Vec<Shard>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Shard {
    home: Option<Home>,
    /// This node is its home, and has given it up: it does nothing more as such.
    is_released: bool,
}

impl Places {
    pub fn new(config: Config, me: Address, members: Members) -> Self {
        let shards = if let Homes::Mapped { shards } = config.homes { shards } else { 0 };
        Places { config, me, members, shards: vec![Shard::default(); usize::from(shards)] }
    }

    /// The part of the map in which a page is.
    pub fn shard(&self, page: PageNo) -> ShardNo {
        self.config.shard_of(page)
    }

    fn mapped(&self, page: PageNo) -> Shard {
        self.shards.get(usize::from(self.shard(page).0)).copied().unwrap_or_default()
    }

    /// The home that this node knows last, dead or alive.
    pub fn named(&self, page: PageNo) -> Option<Home> {
        let Some(node) = self.config.home(page) else { return self.mapped(page).home };
        let incarnation = if node == self.me.node { Some(self.me.incarnation) } else { self.members.of(node) };
        incarnation.map(|incarnation| Home { at: Address { node, incarnation }, since: incarnation })
    }

    /// The home, if it lives as far as this node knows.
    pub fn home(&self, page: PageNo) -> Option<Home> {
        let lives = |home: &Home| home.at == self.me || self.members.of(home.at.node) == Some(home.at.incarnation);
        self.named(page).filter(lives)
    }

    /// The term in which this node answers as the page's home, if it does.
    pub fn own(&self, page: PageNo) -> Option<Incarnation> {
        let home = self.named(page).filter(|home| home.at == self.me)?;
        (!self.mapped(page).is_released).then_some(home.since)
    }

    /// The last term that this node has seen of any home, by the map; without one that of this home.
    pub fn seen(&self, of: Address) -> Incarnation {
        let homes = self.shards.iter().filter_map(|shard| shard.home);
        if self.is_mapped() { homes.map(|home| home.since).max().unwrap_or_default() } else { of.incarnation }
    }

    /// Whether a node is a home in this term.
    pub fn is_home_since(&self, home: Address, since: Incarnation) -> bool {
        let is_it = |shard: &Shard| shard.home.is_some_and(|known| (known.at, known.since) == (home, since));
        if self.is_mapped() { self.shards.iter().any(is_it) } else { self.members.of(home.node) == Some(since) }
    }

    /// Whether a grant with this serial is one of the page's present home, which is `from`.
    pub fn is_of_home(&self, page: PageNo, from: Address, serial: Serial) -> bool {
        let is_present = |home: Home| !self.is_mapped() || serial.incarnation == home.since;
        self.named(page).is_some_and(|home| home.at == from && is_present(home))
    }

    /// Whether a grant with this serial is one that the page's present home has another node make.
    pub fn is_forwarded(&self, page: PageNo, from: Address, serial: Serial) -> bool {
        let is_present = |home: Home| home.at != from && serial.incarnation == home.since;
        self.config.storage != Storage::Shared && self.named(page).is_some_and(is_present)
    }

    /// Whether homes move, by a map.
    pub fn is_mapped(&self) -> bool {
        matches!(self.config.homes, Homes::Mapped { .. })
    }

    /// The other nodes that live as far as this one knows.
    pub fn living(&self) -> impl Iterator<Item = NodeId> + '_ {
        let others = (0..self.config.nodes).map(NodeId).filter(|node| *node != self.me.node);
        others.filter(|node| self.members.of(*node).is_some())
    }

    /// Notes the home of a shard; false if nothing is new.
    pub fn set(&mut self, shard: ShardNo, home: Home) -> bool {
        let Some(known) = self.shards.get_mut(usize::from(shard.0)) else { return false };
        let is_later = known.home.is_none_or(|before| before.since < home.since);
        if is_later {
            *known = Shard { home: Some(home), is_released: false };
        }
        is_later
    }

    /// Has this node given up a shard that no other node has got yet?
    pub fn has_released(&self) -> bool {
        self.shards.iter().any(|shard| shard.is_released)
    }

    /// The term of this node, if it is the home that has released the shard.
    pub fn released(&self, shard: ShardNo) -> Option<Incarnation> {
        let known = self.shards.get(usize::from(shard.0)).filter(|shard| shard.is_released)?;
        known.home.filter(|home| home.at == self.me).map(|home| home.since)
    }

    pub fn shard_home(&self, shard: ShardNo) -> Option<Home> {
        self.shards.get(usize::from(shard.0)).and_then(|shard| shard.home)
    }

    pub fn set_released(&mut self, shard: ShardNo, is_released: bool) {
        self.shards.get_mut(usize::from(shard.0)).into_iter().for_each(|known| known.is_released = is_released);
    }
}

/// Only nodes that ever died are listed: with 4,096 nodes each one tracks all others.
#[derive(Clone, Debug, Default)]
pub(super) struct Members {
    changed: Vec<(NodeId, Option<Incarnation>)>,
}

impl Members {
    pub fn of(&self, node: NodeId) -> Option<Incarnation> {
        match self.changed.binary_search_by_key(&node, |(node, _)| *node) {
            Ok(index) => self.changed[index].1,
            Err(_) => Some(Incarnation::FIRST),
        }
    }

    pub fn set(&mut self, node: NodeId, incarnation: Option<Incarnation>) {
        match self.changed.binary_search_by_key(&node, |(node, _)| *node) {
            Ok(index) => self.changed[index].1 = incarnation,
            Err(index) => self.changed.insert(index, (node, incarnation)),
        }
    }
}
