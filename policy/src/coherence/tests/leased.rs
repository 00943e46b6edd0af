//! Nodes whose leases end, and homes that move, at an arbiter whose changes each node sees in order, but late.

use std::collections::{BTreeMap, BTreeSet};

use super::super::{
    Action, Actions, Address, Config, Envelope, Home, Homes, Incarnation, Local, Message, Mode, Node, NodeId, PageNo,
    ShardNo, Storage, Version,
};
use super::world::{Broken, NOW};

/// Deliberate defects, to test that they are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// A node whose lease is over goes on answering its clients.
    FenceIgnored,
    /// A new home grants at once.
    SurveySkipped,
    /// A node answers the survey of a home before it has seen the map that made it one.
    SurveyAnsweredEarly,
    /// Grants and recalls of a home that is none any more count.
    TermsIgnored,
    /// Messages of epochs that are over count.
    EpochsIgnored,
    /// A home that has released a shard goes on with it.
    ReleaseIgnored,
    /// A page is granted to the next before the one that wrote it knows that it is stored.
    StoredNotAwaited,
}

/// A change at the arbiter.
#[derive(Clone, Debug)]
enum Change {
    Joined(Address),
    Left(Address),
    Map(Vec<Home>),
}

pub struct Member {
    /// `None`: its process does not run.
    pub node: Option<Node>,
    pub address: Address,
    /// It answers clients and stores pages: its lease lasts.
    pub is_leased: bool,
    /// Changes that it has seen.
    seen: usize,
    /// Shards that it has given up, and whose map has not changed since.
    pub released: Vec<ShardNo>,
}

pub struct Leased {
    pub config: Config,
    pub flaw: Option<Flaw>,
    pub members: Vec<Member>,
    pub network: Vec<Envelope>,
    pub in_flight_max: usize,
    /// Whatever a node holds may have been lost by the home that stored it, as far as it knows.
    pub is_uncertain: bool,
    changes: Vec<Change>,
    /// As the arbiter has them now.
    pub registered: BTreeMap<NodeId, Address>,
    pub homes: Vec<Home>,
    version: u32,
    revision: u32,
    device: Vec<Version>,
    /// The last valid write of each page.
    latest: Vec<Version>,
    /// Later ones, of nodes whose leases are over: valid if a home that does not know that stores one before anybody reads.
    doubtful: Vec<BTreeSet<Version>>,
    pub accesses: u64,
    pub moves: u64,
}

impl Leased {
    pub fn new(nodes: usize, pages: usize, shards: u16, in_flight_max: usize) -> Leased {
        let config = Config {
            nodes: nodes as u16,
            pages: pages as u64,
            homes: Homes::Mapped { shards },
            shard: 1,
            storage: Storage::Shared,
            pages_max: pages,
            timeout: std::time::Duration::ZERO,
        };
        let member = |index| Member {
            node: None,
            address: Address { node: NodeId(index as u16), incarnation: Incarnation(0) },
            is_leased: false,
            seen: 0,
            released: Vec::new(),
        };
        let mut leased = Leased {
            config,
            flaw: None,
            members: (0..nodes).map(member).collect(),
            network: Vec::new(),
            in_flight_max,
            is_uncertain: false,
            changes: Vec::new(),
            registered: BTreeMap::new(),
            homes: Vec::new(),
            version: 0,
            revision: 0,
            device: vec![Version::default(); pages],
            latest: vec![Version::default(); pages],
            doubtful: vec![BTreeSet::new(); pages],
            accesses: 0,
            moves: 0,
        };
        for index in 0..nodes {
            // Nobody has seen anything yet: nothing can be wrong.
            let _ = leased.join(index);
        }
        leased
    }

    fn change(&mut self, change: Change) -> u32 {
        self.revision += 1;
        self.changes.push(change);
        self.revision
    }

    /// A node registers, and begins with what it sees then.
    pub fn join(&mut self, index: usize) -> Result<(), Broken> {
        self.expire(index)?;
        self.leave(index);
        let incarnation = Incarnation(self.revision + 1);
        let address = Address { incarnation, ..self.members[index].address };
        self.change(Change::Joined(address));
        self.registered.insert(address.node, address);
        let others = (0..self.config.nodes).map(NodeId).filter(|node| *node != address.node);
        let others = others.map(|node| (node, self.registered.get(&node).map(|address| address.incarnation)));
        let node = Node::new(self.config, address, [], others);
        let (seen, released) = (self.changes.len(), Vec::new());
        self.members[index] = Member { node: Some(node), address, is_leased: true, seen, released };
        let homes = self.homes.clone();
        self.see_map(index, homes)
    }

    /// A lease ends by the node's own clock: it answers nobody any more. What it had written and no home has is void,
    /// unless it is on its way.
    pub fn expire(&mut self, index: usize) -> Result<(), Broken> {
        self.members[index].is_leased = false;
        for page in 0..self.latest.len() {
            if !self.is_kept(PageNo(page as u64), self.latest[page]) {
                self.doubtful[page].insert(self.latest[page]);
                self.latest[page] = self.device[page];
            }
        }
        self.check()
    }

    /// The lease ends at the arbiter, too.
    pub fn leave(&mut self, index: usize) {
        let address = self.members[index].address;
        if self.registered.get(&address.node) == Some(&address) {
            self.registered.remove(&address.node);
            self.change(Change::Left(address));
        }
    }

    pub fn kill(&mut self, index: usize) -> Result<(), Broken> {
        self.members[index].node = None;
        self.expire(index)
    }

    /// A home gives up a shard; what it stored is durable when this returns.
    pub fn release(&mut self, index: usize, shard: ShardNo) {
        // Otherwise it may release what it is about to get.
        if self.has_news(index) {
            return;
        }
        let Member { node: Some(node), address, released, is_leased: true, .. } = &mut self.members[index] else {
            return;
        };
        let is_own = node.shard_home(shard).is_some_and(|home| home.at == *address);
        if is_own && !released.contains(&shard) {
            released.push(shard);
            if self.flaw != Some(Flaw::ReleaseIgnored) {
                node.release(shard);
            }
        }
    }

    /// It takes back what it has released and nobody else got.
    pub fn take_back(&mut self, index: usize) -> Result<(), Broken> {
        let Member { node: Some(node), address, released, .. } = &mut self.members[index] else { return Ok(()) };
        let Some(shard) = released.pop() else { return Ok(()) };
        if node.shard_home(shard).is_none_or(|home| home.at != *address) {
            return Ok(());
        }
        let actions = node.take_back(NOW, shard);
        self.act(index, actions)
    }

    /// The map changes: shards without a living home get one, and those that were released, or some of them, move.
    pub fn change_map(&mut self, mut pick: impl FnMut(usize) -> usize) {
        let members: Vec<Address> = self.registered.values().copied().collect();
        let Homes::Mapped { shards } = self.config.homes else { return };
        if members.is_empty() {
            return;
        }
        let since = Incarnation(self.version + 1);
        let mut homes = self.homes.clone();
        homes.resize(usize::from(shards), Home { at: Address::default(), since: Incarnation(0) });
        for (shard, home) in (0..shards).map(ShardNo).zip(&mut homes) {
            let owner = self.members.get_mut(usize::from(home.at.node.0)).filter(|owner| owner.address == home.at);
            let is_member = self.registered.get(&home.at.node) == Some(&home.at);
            let is_released = owner.is_some_and(|owner| {
                let is_released = owner.released.contains(&shard) && pick(2) == 0;
                owner.released.retain(|released| *released != shard || !is_released);
                is_released
            });
            if !is_member || is_released {
                *home = Home { at: members[pick(members.len())], since };
                self.moves += 1;
            }
        }
        if homes != self.homes {
            self.homes.clone_from(&homes);
            self.version = self.change(Change::Map(homes));
        }
    }

    pub fn has_news(&self, index: usize) -> bool {
        self.members[index].node.is_some() && self.members[index].seen < self.changes.len()
    }

    /// A node sees the next change.
    pub fn see(&mut self, index: usize) -> Result<(), Broken> {
        let Member { node: Some(node), address, seen, .. } = &mut self.members[index] else { return Ok(()) };
        let change = self.changes[*seen].clone();
        *seen += 1;
        let actions = match change {
            Change::Joined(other) if other.node != address.node => node.on_alive(NOW, other),
            Change::Left(other) if other.node != address.node => node.on_dead(NOW, other),
            Change::Map(homes) => return self.see_map(index, homes),
            Change::Joined(_) | Change::Left(_) => return Ok(()),
        };
        self.act(index, actions)
    }

    fn see_map(&mut self, index: usize, homes: Vec<Home>) -> Result<(), Broken> {
        let Member { node: Some(node), .. } = &mut self.members[index] else { return Ok(()) };
        let stored = self.device.iter().enumerate().map(|(page, version)| (PageNo(page as u64), *version));
        let is_uncertain = self.is_uncertain;
        let homes = (0..).map(ShardNo).zip(homes);
        let actions = node.on_homes(NOW, homes, stored.collect::<Vec<_>>(), |_| is_uncertain);
        if self.flaw == Some(Flaw::SurveySkipped) {
            node.directory.surveys.clear();
        }
        self.act(index, actions)
    }

    pub fn local(&mut self, index: usize, want: Local, page: PageNo) -> Result<(), Broken> {
        let Some(node) = &mut self.members[index].node else { return Ok(()) };
        match node.on_local(NOW, want, page) {
            Ok(actions) => self.act(index, actions),
            Err(_) => Ok(()),
        }
    }

    pub fn deliver(&mut self, index: usize, stays: bool) -> Result<(), Broken> {
        let mut envelope = if stays { self.network[index] } else { self.network.swap_remove(index) };
        let to = usize::from(envelope.to.node.0);
        let Some(node) = &mut self.members[to].node else { return Ok(()) };
        match (self.flaw, &mut envelope.message) {
            (Some(Flaw::EpochsIgnored), _) => {
                let known = node.places.members.of(envelope.from.node);
                envelope.from.incarnation = known.unwrap_or(envelope.from.incarnation);
                node.places.members.set(envelope.from.node, Some(envelope.from.incarnation));
            }
            (Some(Flaw::TermsIgnored), Message::Grant { page, serial, .. } | Message::Recall { page, serial, .. }) => {
                if let Some(home) = node.places.named(*page) {
                    (envelope.from, serial.incarnation) = (home.at, home.since);
                }
            }
            (Some(Flaw::SurveyAnsweredEarly), Message::Survey { since })
                if node.places.seen(envelope.from) < *since =>
            {
                let message = Message::Surveyed { since: *since, seen: *since };
                self.put(Envelope { from: envelope.to, to: envelope.from, message });
                return Ok(());
            }
            _ => {}
        }
        let Some(node) = &mut self.members[to].node else { return Ok(()) };
        let mut actions = node.on_message(NOW, envelope);
        if let (Some(Flaw::StoredNotAwaited), Message::GaveUp { page, serial, data: Some(_), .. }) =
            (self.flaw, envelope.message)
        {
            actions.extend(node.on_message(NOW, Envelope { message: Message::Noted { page, serial }, ..envelope }));
        }
        self.act(to, actions)
    }

    /// What a node sends again.
    pub fn tick(&mut self, index: usize) -> Result<(), Broken> {
        let Some(node) = &mut self.members[index].node else { return Ok(()) };
        let actions = node.on_tick(NOW);
        self.act(index, actions)
    }

    fn put(&mut self, envelope: Envelope) {
        if self.network.len() < self.in_flight_max && !self.network.contains(&envelope) {
            self.network.push(envelope);
        }
    }

    fn act(&mut self, index: usize, actions: Actions) -> Result<(), Broken> {
        let is_heard = self.members[index].is_leased || self.flaw == Some(Flaw::FenceIgnored);
        for action in actions {
            match action {
                Action::Send(envelope) => self.put(envelope),
                Action::Access { page, mode, version } if is_heard => self.access(page, mode, version)?,
                // Not acknowledged; done all the same if a home that does not know better stores it.
                Action::Access { page, mode: Mode::Write, version } => {
                    self.doubtful[page.0 as usize].insert(version);
                }
                Action::Store { page, version } if self.members[index].is_leased => self.store(page, version)?,
                Action::Store { .. } => {
                    // Refused, so nothing that follows is done, ever.
                    self.members[index].node = None;
                    break;
                }
                Action::Lost(page) => return Err(format!("{page:?} is given up as lost")),
                _ => {}
            }
        }
        self.check()
    }

    fn store(&mut self, page: PageNo, version: Version) -> Result<(), Broken> {
        let at = page.0 as usize;
        if version < self.device[at] {
            return Err(format!("{version:?} of {page:?} is stored over {:?}", self.device[at]));
        }
        self.device[at] = version;
        if self.doubtful[at].remove(&version) {
            self.latest[at] = version;
        }
        Ok(())
    }

    fn access(&mut self, page: PageNo, mode: Mode, version: Version) -> Result<(), Broken> {
        let at = page.0 as usize;
        let latest = &mut self.latest[at];
        self.accesses += 1;
        match mode {
            Mode::Read if version != *latest => Err(format!("stale read of {page:?}: {version:?}, not {latest:?}")),
            Mode::Write if version <= *latest => Err(format!("a write of {page:?} is no later than the last")),
            _ => {
                *latest = version;
                self.doubtful[at].clear();
                Ok(())
            }
        }
    }

    /// Is this version stored, or at a node that will store it?
    fn is_kept(&self, page: PageNo, version: Version) -> bool {
        let has = |node: &Node| {
            let copy = node.copies.pages.get(page);
            let held = copy.and_then(|copy| copy.held).is_some_and(|held| held.is_dirty && held.version == version);
            held || copy.and_then(|copy| copy.saving()).is_some_and(|saving| saving.version == version)
        };
        self.device[page.0 as usize] == version || self.leased().any(has)
    }

    fn leased(&self) -> impl Iterator<Item = &Node> {
        self.members.iter().filter(|member| member.is_leased).filter_map(|member| member.node.as_ref())
    }

    /// One writer or many readers among those who answer, all with the last write; and no page is lost.
    fn check(&self) -> Result<(), Broken> {
        for (page, latest) in self.latest.iter().enumerate() {
            let page = PageNo(page as u64);
            let (mut holders, mut writers) = (0, 0);
            for (mode, version) in self.leased().filter_map(|node| node.holds(page)) {
                holders += 1;
                writers += u32::from(mode == Mode::Write);
                if version != *latest {
                    return Err(format!("a copy of {page:?} is stale: {version:?}, not {latest:?}"));
                }
            }
            if writers > 1 || (writers == 1 && holders > 1) {
                return Err(format!("{page:?} has {writers} writers of {holders} holders"));
            }
            if !self.is_kept(page, *latest) {
                return Err(format!("{page:?} is lost: nobody has {latest:?}"));
            }
        }
        Ok(())
    }

    pub fn is_at_rest(&self) -> bool {
        self.leased().all(|node| node.is_quiet()) && (0..self.members.len()).all(|index| !self.has_news(index))
    }
}
