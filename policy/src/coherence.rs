//! Which nodes hold a shared page, and which must give it up (DSM): a directory protocol for pages that several nodes
//! share over a network that loses, duplicates and reorders messages, among nodes that crash and return.
//!
//! Each page has a *home*, the node that stores its last copy and records its holders (the directory of Censier and
//! Feautrier, *A New Solution to Coherence Problems in Multicache Systems*, IEEE Trans. Computers C-27, 1978: a bit for
//! each holder and one that says "modified"; pages in place of lines, homes spread by page number and one writer or
//! many readers as in Li and Hudak, *Memory Coherence in Shared Virtual Memory Systems*, ACM TOCS 7, 1989, fixed
//! distributed manager; home, write-back and acknowledged invalidation as in Lenoski, Laudon, Gharachorloo, Gupta,
//! Hennessy, *The Directory-Based Cache Coherence Protocol for the DASH Multiprocessor*, ISCA 1990). They did not have
//! to handle lost messages and crashed nodes: serials, retransmission and the survey are this file's own.
//!
//! # States
//! A page at a node: *none*, *read* (one of many), *write* (the only one; clean or dirty); in addition *waiting* (a
//! local request is unanswered) and *saving* (data given up that the home may not have, retained until it has them). A
//! page at its home: holders, each *held*, *recalled*, *stored* (may not know that its data are) or *orphaned* (may alone
//! have the last write); whether the one holder may write; a promised grant; and a queue of requests, first come, first
//! served. So the wait is bounded by all other nodes.
//!
//! # Messages
//! | message | to | meaning | answer | retransmitted until |
//! |---|---|---|---|---|
//! | `Ask` | home | I want to read or write | `Grant` | granted |
//! | `Grant` | node | you may; the data, unless you have them | none | asked again |
//! | `Recall` | node | others want it: retain a copy to read, or none | `GaveUp` | answered |
//! | `GaveUp` | home | I retain a copy to read, or none; the data, if I wrote | `Taken` if with data | data are taken |
//! | `Taken` | node | your data are stored | none | never |
//! | `Recorded` | node | what was forwarded to you is stored | none | never |
//! | `Noted` | home | I know that they are ([`Storage::Shared`]) | none | never |
//! | `Survey` | node | I am a home since then, without a directory: give up what is mine | `GaveUp`s, `Surveyed` | answered |
//! | `Surveyed` | home | I have nothing granted before | none | never |
//!
//! Every grant has a new serial of its home; the answer to a grant or recall carries that serial, and one with another
//! serial than the directory's is stale. Every request has a new number of its node; a grant for another than the
//! current request is declined. So late and duplicate messages do no harm. A recall names the request that was granted,
//! and is answered when its grant has arrived; every grant that is not declined serves an access. That rules out livelock.
//! Rejected: a confirmation of each grant (`Got`), before which there is no recall. It was a third of all messages of
//! reads, and a sixth of the time of one page, as it is sent before the thread that waits for the page can run. Rejected,
//! too: a recall that overtakes its grant ends the request, and the grant is declined when it comes. On a network that
//! never keeps the order, two nodes then take a page from each other for ever without an access.
//! A copy to read may be dropped without a message, unless it was forwarded and is not recorded. A recall is then answered
//! as if it had just been given up.
//!
//! Runs of adjacent pages to read are asked for, granted and taken in one step each where nothing else concerns any of their
//! pages (`runs.rs`). They become what their messages one by one would have made of them.
//!
//! # Forwarding
//! With [`Node::set_forwarding`], the one that may write sends the page straight to the node that wants it, and to the home
//! as well (DASH's forwarding: one message less on the way; here the home stores it all the same). The home *promises* the
//! grant: its recall names the requester, its request and the new serial, and the holder makes that very grant, once, in the
//! step in which its right to write ends. The grant counts at the home when the holder's answer has arrived, or what the new
//! holder returned under it. If the grant is lost, it is asked for again and the home sends the same. Who has it retains
//! the data until the home has them (`Recorded`). If the holder dies, the home does not know whether the grant was made: it
//! adopts it, sends it with what is stored, and recalls it if it was to read (`Orphaned`), since a reader may then be
//! the only one that has the last write. Whichever of the two grants comes first counts.
//!
//! Not with [`Storage::Shared`], whose pages are granted only after the one that wrote them knows that they are stored.
//! Rejected: a requester that waits for the home's word and for the page. It would save only a page's time on the wire.
//!
//! # Crashes
//! Liveness is decided outside, and reported to each node at its own time ([`Node::on_dead`], [`Node::on_alive`]); a
//! node declared dead must not run any more (fencing is outside, too), and one that returns has a new [`Incarnation`].
//! Messages from or to another incarnation are ignored. When a holder dies, its copies are gone: the page falls back to
//! the home's last copy. When a home dies, holders continue; when it returns, with its copies from storage, it knows no
//! holder, so it grants nothing until all others have given up what they had (`Survey`). Only writes that a node had
//! neither given up nor written back ([`Local::WriteBack`]) when it died are lost.
//!
//! # Bounds
//! One entry for each page of the home that is held, requested or was ever written (at most the pages of the space);
//! one holder and one queued request for each node; at a node [`Config::pages_max`] pages.

mod answer;
mod copies;
mod directory;
mod entry;
mod message;
mod moving;
mod outbox;
mod pages;
mod places;
mod runs;
mod shards;
mod storing;
mod surveyed;
mod table;
#[cfg(test)]
mod tests;

use std::time::Duration;

use smallvec::SmallVec;
use thiserror::Error;

pub use crate::color::PageNo;
use crate::unit::Instant;
use copies::Copies;
use directory::Directory;
pub use message::{Address, Envelope, Forward, Incarnation, Message, Mode, NodeId, Request, Serial, ShardNo, Version};
use outbox::{Outbox, Step};
pub use pages::PageSet;
pub use places::Home;
use places::{Members, Places};
pub use runs::{Asks, Grants};

/// The shared space and its nodes; identical on all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Nodes, numbered from 0.
    pub nodes: u16,
    pub pages: u64,
    pub homes: Homes,
    /// Adjacent pages that share a home.
    pub shard: u64,
    pub storage: Storage,
    /// Pages that a node may hold or wait for at a time.
    pub pages_max: usize,
    /// Unanswered messages are retransmitted after this time: a few round trips.
    pub timeout: Duration,
}

/// Which nodes are homes; shards go to them in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Homes {
    All,
    /// A bit for each node, at least one; only of nodes below 64.
    Of(u64),
    /// Parts of the pages, so many in all, move among all nodes: [`Node::on_homes`].
    Mapped {
        shards: u16,
    },
}

/// What is left of a home's storage when it returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Storage {
    /// The pages with their versions.
    #[default]
    Versioned,
    /// The pages. Without versions, data that a node has given up may be older than what the home stores: they are
    /// lost unless the node retained a copy, which no later write can have replaced.
    Plain,
    /// Nothing: copies of the others count, written or not. As to data given up, see `Plain`.
    Volatile,
    /// The pages, on a device that all nodes reach. A page is granted to another node only after the one that gave it
    /// up knows that its data are stored. So data that a node still retains are the latest, whichever home dies, and
    /// nothing is lost with one; it costs a round trip for each page that was written. What the device may have lost all
    /// the same is stored again by the next home, if somebody holds it ([`Node::on_homes`]).
    Shared,
}

impl Config {
    /// The home of a page; `None` where homes move.
    pub fn home(&self, page: PageNo) -> Option<NodeId> {
        let shard = page.0 / self.shard.max(1);
        match self.homes {
            Homes::All => Some(NodeId((shard % u64::from(self.nodes.max(1))) as u16)),
            Homes::Of(nodes) => {
                let turn = shard % u64::from(nodes.count_ones().max(1));
                let others = (0..turn).fold(nodes, |left, _| left & left.wrapping_sub(1));
                Some(NodeId(others.trailing_zeros() as u16))
            }
            Homes::Mapped { .. } => None,
        }
    }
}

/// What a node's own processes request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Local {
    Read,
    /// What is written survives this node's crash once it is written back.
    Write,
    /// As `Write`, of the whole page: its content before is not needed.
    Overwrite,
    /// Store at the home what was written; a copy to read stays.
    WriteBack,
    /// Give up the page; what was written is stored at the home first.
    Drop,
}

/// What the node has to do, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send it, with the page's bytes if [`Message::data`] is some. The network may lose it.
    Send(Envelope),
    /// The local request for this page is granted: access it now. `version` is what is read, or what is now written.
    Access { page: PageNo, mode: Mode, version: Version },
    /// Processes of this node may not write the page any more: mappings become read-only.
    Protect(PageNo),
    /// Processes of this node may not use the page any more: mappings and cached copy go, the bytes at `Discard`.
    Revoke(PageNo),
    /// The bytes are no longer needed.
    Discard(PageNo),
    /// [`Local::WriteBack`] or [`Local::Drop`] is done: what was written is stored at the home.
    Saved(PageNo),
    /// What this node wrote may be lost: its home returned before it confirmed that it had stored it. The bytes are no
    /// longer needed.
    Lost(PageNo),
    /// At the home: the bytes of this message are now the page's last copy. They must be stored before the next action.
    Store { page: PageNo, version: Version },
}

pub type Actions = SmallVec<[Action; 4]>;

/// The state of a node's copy of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    pub held: Option<Mode>,
    /// It has writes of this node that the home does not have.
    pub is_dirty: bool,
    /// It was forwarded by another node, and the home may not have it.
    pub is_forwarded: bool,
    /// A local request is unanswered.
    pub is_waiting: bool,
}

/// Why a local request was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LocalError {
    /// The space has no such page.
    #[error("page {0} is beyond the shared space")]
    NoSuchPage(u64),
    /// A request for this page waits already: one at a time, as a buffer has one that is busy with it.
    #[error("a request for page {0} is waiting")]
    Busy(u64),
    /// As many pages as this node may hold: drop some first.
    #[error("this node holds as many pages as it may; drop some first")]
    Full,
}

/// One node: its copies of pages, and the directory of the pages whose home it is.
#[derive(Clone, Debug)]
pub struct Node {
    me: Address,
    places: Places,
    copies: Copies,
    directory: Directory,
    /// Nodes of which a returning node has not heard yet, dead or alive.
    unmet: Vec<NodeId>,
}

impl Node {
    /// A node that returns, or starts, without news of the others: it surveys each of them once it is reported alive
    /// ([`Node::on_alive`]), and grants nothing before all have answered or are reported dead.
    pub fn returning(config: Config, me: Address, stored: impl IntoIterator<Item = (PageNo, Version)>) -> Self {
        let others: Vec<NodeId> = (0..config.nodes).map(NodeId).filter(|node| *node != me.node).collect();
        let mut node = Node::new(config, me, stored, others.iter().map(|node| (*node, None)));
        node.directory.survey(me.incarnation, others.iter().copied());
        node.unmet = others;
        node
    }

    /// A node that holds nothing. `stored`: the versions of its own pages in its storage, if not initial. A node of the
    /// first incarnation starts with all others; a later one gets the state of `others` and surveys those that live.
    pub fn new(
        config: Config,
        me: Address,
        stored: impl IntoIterator<Item = (PageNo, Version)>,
        others: impl IntoIterator<Item = (NodeId, Option<Incarnation>)>,
    ) -> Self {
        let mut members = Members::default();
        others.into_iter().for_each(|(node, incarnation)| members.set(node, incarnation));
        let places = Places::new(config, me, members);
        let mut directory = Directory::new(stored);
        if me.incarnation > Incarnation::FIRST && !places.is_mapped() {
            directory.survey(me.incarnation, places.living());
        }
        Node { me, places, copies: Copies::new(me, config.pages_max), directory, unmet: Vec::new() }
    }

    /// Whether pages of this home go straight from the node that has them to the one that wants them.
    pub fn set_forwarding(&mut self, is_on: bool) {
        self.directory.forwarding = is_on && self.places.config.storage != Storage::Shared;
    }

    pub fn address(&self) -> Address {
        self.me
    }

    /// A request of a local process. Complete if the actions contain it; else later.
    ///
    /// # Errors
    /// When the page does not exist, another request waits for it, or the node's table is full.
    pub fn on_local(&mut self, now: Instant, want: Local, page: PageNo) -> Result<Actions, LocalError> {
        if page.0 >= self.places.config.pages {
            return Err(LocalError::NoSuchPage(page.0));
        }
        let mut out = Outbox::new(now);
        self.copies.on_local(want, page, &mut out)?;
        Ok(self.end(out))
    }

    /// Asks the home for what another node has sent and cannot be taken in.
    pub fn ask_again(&mut self, now: Instant, page: PageNo) -> Actions {
        let mut out = Outbox::new(now);
        self.copies.ask_again(page, &mut out);
        self.end(out)
    }

    /// A message arrived. Ignored if it is from or to another incarnation, or makes no sense.
    pub fn on_message(&mut self, now: Instant, envelope: Envelope) -> Actions {
        let from = envelope.from;
        let Places { config, members, .. } = &self.places;
        let is_known = from.node.0 < config.nodes && members.of(from.node) == Some(from.incarnation);
        if envelope.to != self.me || !is_known {
            return Actions::new();
        }
        let mut out = Outbox::new(now);
        self.take(from, envelope.message, &mut out);
        self.end(out)
    }

    /// Retransmits what is unanswered for [`Config::timeout`]. To be called about that often.
    pub fn on_tick(&mut self, now: Instant) -> Actions {
        self.retransmit(now, self.places.config.timeout)
    }

    /// A connection was made again: whatever was under way on the old one may be lost. What was sent from `since` on is
    /// under way on the new one.
    pub fn on_reconnected(&mut self, now: Instant, since: Instant) -> Actions {
        self.retransmit(now, now.since(since) + Duration::from_nanos(1))
    }

    fn retransmit(&mut self, now: Instant, timeout: Duration) -> Actions {
        let mut out = Outbox::new(now);
        self.copies.on_tick(&self.places, timeout, &mut out);
        self.directory.on_tick(&self.places, timeout, &mut out);
        self.end(out)
    }

    /// A node was declared dead, and must not run any more. Without effect if it has returned since.
    pub fn on_dead(&mut self, now: Instant, address: Address) -> Actions {
        let mut out = Outbox::new(now);
        let is_met = self.meet(address.node);
        if is_met || self.places.members.of(address.node) == Some(address.incarnation) {
            self.places.members.set(address.node, None);
            self.directory.on_dead(&self.places, address.node, &mut out);
        }
        self.end(out)
    }

    pub fn on_alive(&mut self, now: Instant, address: Address) -> Actions {
        let mut out = Outbox::new(now);
        if self.meet(address.node) {
            // It may hold what an earlier incarnation of this node granted.
            self.places.members.set(address.node, Some(address.incarnation));
            out.send(address.node, Message::Survey { since: self.me.incarnation });
        } else if self.places.members.of(address.node).is_none_or(|known| known < address.incarnation) {
            self.places.members.set(address.node, Some(address.incarnation));
            self.directory.on_dead(&self.places, address.node, &mut out);
            let places = &self.places;
            let is_its = |page| places.config.home(page) == Some(address.node);
            self.copies.on_new_home(places, (is_its, |_| false), &mut out);
        }
        self.end(out)
    }

    /// Whether this is the first that is heard of a node.
    fn meet(&mut self, node: NodeId) -> bool {
        let found = self.unmet.iter().position(|unmet| *unmet == node);
        found.map(|index| self.unmet.swap_remove(index)).is_some()
    }

    /// The access that was just granted, with this version, did not change the page, after all. What was given up with it, as
    /// the recall had come before, is not to be sent, unless another node had sent it: [`retains`](Self::retains).
    pub fn unwritten(&mut self, page: PageNo, version: Version) {
        self.copies.unwritten(page, version);
    }

    pub fn holds(&self, page: PageNo) -> Option<(Mode, Version)> {
        self.copies.holds(page)
    }

    /// The state of this node's copy.
    pub fn copied(&self, page: PageNo) -> Copied {
        self.copies.copied(page)
    }

    /// Whether the page has writes of this node that its home does not have.
    pub fn is_dirty(&self, page: PageNo) -> bool {
        self.copies.is_dirty(page)
    }

    /// The pages held from `from` on.
    pub fn held_from(&self, from: PageNo) -> impl Iterator<Item = (PageNo, Mode)> + '_ {
        self.copies.held_from(from)
    }

    /// Pages held to read, and to write.
    pub fn held(&self) -> [usize; 2] {
        self.copies.held()
    }

    /// Pages held or waited for.
    pub fn pages(&self) -> usize {
        self.copies.pages.len()
    }

    pub fn is_waiting(&self, page: PageNo) -> bool {
        self.copies.is_waiting(page)
    }

    /// Whether it retains data of the page until the home has them.
    pub fn is_saving(&self, page: PageNo) -> bool {
        self.copies.is_saving(page)
    }

    /// The stored version of a page whose home it is.
    pub fn stored(&self, page: PageNo) -> Version {
        self.directory.stored(page)
    }

    /// Stored versions of the pages whose home it is, except initial ones.
    pub fn all_stored(&self) -> impl Iterator<Item = (PageNo, Version)> + '_ {
        self.directory.all_stored()
    }

    /// Whether nothing is unanswered, neither at a copy nor in the directory.
    pub fn is_quiet(&self) -> bool {
        self.copies.is_quiet() && self.directory.is_quiet()
    }

    fn take(&mut self, from: Address, message: Message, out: &mut Outbox) {
        let (places, pages) = (&self.places, self.places.config.pages);
        match message {
            Message::Ask { page, .. } | Message::GaveUp { page, .. } | Message::Noted { page, .. } => {
                if let Some(term) = places.own(page).filter(|_| page.0 < pages) {
                    self.directory.on_message(places, term, (from.node, message), out);
                }
            }
            Message::Surveyed { since, seen } if places.seen(self.me) >= seen => {
                self.directory.end_survey_of(places, from.node, Some(since), out);
            }
            Message::Grant { page, serial, .. } if places.is_forwarded(page, from, serial) => {
                self.copies.on_message(places, (from, message), out);
            }
            Message::Grant { page, serial, .. } | Message::Recall { page, serial, .. } => {
                if places.is_of_home(page, from, serial) {
                    self.copies.on_message(places, (from, message), out);
                }
            }
            Message::Taken { page, .. } | Message::Recorded { page, .. } => {
                if places.named(page).is_some_and(|home| home.at == from) {
                    self.copies.on_message(places, (from, message), out);
                }
            }
            Message::Survey { since } => self.copies.on_survey(places, (from, since), out),
            // Before the map was seen that says the same. It is sent again.
            Message::Surveyed { .. } => {}
        }
    }

    /// Delivers messages to this node itself, and addresses the others.
    fn end(&mut self, mut out: Outbox) -> Actions {
        let mut actions = Actions::new();
        // By index, since a local delivery may append.
        let mut done = 0;
        while done < out.steps.len() {
            match out.steps[done] {
                Step::Do(action) => actions.push(action),
                Step::ToHome(page, message) => {
                    let home = self.places.home(page);
                    home.into_iter().for_each(|home| {
                        self.post(home.at.node, message.in_term(home.since), &mut out, &mut actions);
                    });
                }
                Step::To(node, message) => self.post(node, message, &mut out, &mut actions),
                Step::Forward(to, message) => actions.push(Action::Send(Envelope { from: self.me, to, message })),
            }
            done += 1;
        }
        actions
    }

    fn post(&mut self, to: NodeId, message: Message, out: &mut Outbox, actions: &mut Actions) {
        if to == self.me.node {
            return self.take(self.me, message, out);
        }
        // Nothing is sent to dead nodes: it is retransmitted when they return.
        if let Some(incarnation) = self.places.members.of(to) {
            let to = Address { node: to, incarnation };
            actions.push(Action::Send(Envelope { from: self.me, to, message }));
        }
    }
}
