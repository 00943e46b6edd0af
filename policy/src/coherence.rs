//! Who holds a shared page, who must give it up (DSM): a directory protocol for pages that several nodes share over a
//! network that loses, duplicates and reorders messages, among nodes that die and return.
//!
//! Each page has a *home*, the node that keeps its last copy in storage and knows who else holds it (the directory of
//! Censier and Feautrier, *A New Solution to Coherence Problems in Multicache Systems*, IEEE Trans. Computers C-27, 1978:
//! a bit for each holder and one that says "modified"; pages in place of lines, homes spread by page number and one
//! writer or many readers as in Li and Hudak, *Memory Coherence in Shared Virtual Memory Systems*, ACM TOCS 7, 1989,
//! fixed distributed manager; home, write-back and acknowledged invalidation as in Lenoski, Laudon, Gharachorloo, Gupta,
//! Hennessy, *The Directory-Based Cache Coherence Protocol for the DASH Multiprocessor*, ISCA 1990). What they had not to
//! think of is a network that loses messages and a node that dies: serials, resending and the survey are this file's own.
//!
//! Rejected: the owner hands the page straight to the asker (DASH's forwarding: one message less). Then a page
//! is nowhere but on the wire when a node dies; here what was given up is at the home before anybody else sees it.
//!
//! # States
//! A page at a node: *none*, *read* (one of many), *write* (the only one; clean or dirty); beside it *waiting* (the
//! local request that was asked for) and *saving* (dirty data given up, kept until the home has them).
//! A page at its home: holders, each *granted* (until it says that it got it), *held* or *recalled*; whether the one
//! holder may write; and a queue of those who wait, first come, first served. So nobody waits for more than all others.
//!
//! # Messages
//! | message | to | says | answer | sent again until |
//! |---|---|---|---|---|
//! | `Ask` | home | I want to read or write | `Grant` | granted |
//! | `Grant` | node | you may; the data, unless you have them | `Got` or `GaveUp` | answered |
//! | `Got` | home | now I can be recalled | none | no need |
//! | `Recall` | node | others want it: keep a copy to read, or none | `GaveUp` | answered |
//! | `GaveUp` | home | I keep a copy to read, or none; the data, if I wrote | `Taken` if with data | data are taken |
//! | `Taken` | node | your data are stored | none | no need |
//! | `Survey` | node | I am back and know nothing: give up what you have of mine | `GaveUp`s, then `Surveyed` | answered |
//! | `Surveyed` | home | I have nothing left of before | none | no need |
//!
//! Every grant has a new serial of its home; whoever answers a grant or recall names its serial, and what has another
//! serial than the directory's is from the past. Every request has a new number of its node; a grant for another than
//! the present request is declined. So no message does harm when it comes late or twice. A recall is sent only
//! after `Got`: it never overtakes its grant, and every grant that is not declined serves an access, which rules out
//! livelock.
//! A copy to read may be dropped without a word: a recall for it is then answered as if it had just been given up.
//!
//! # Death
//! Whether a node is alive is told by somebody else, to each node in its own time ([`Node::on_dead`], [`Node::on_alive`]);
//! who is declared dead must not run any more (fencing is the teller's task), and who returns has a new
//! [`Incarnation`]. Messages of or to another incarnation are ignored. When a holder dies, its copies are gone: the
//! page falls back to the home's last copy. When a home dies, holders go on; when it returns, with its copies from storage,
//! it knows no holder, so it grants nothing until all others have given up what they had (`Survey`). Lost are only
//! writes that their node had not given up nor written back ([`Local::WriteBack`]) when it died.
//!
//! # Bounds
//! One entry for each page of the home that is held, waited for or was ever written (at most the pages of the space); one
//! holder and one place in the queue for each node; at a node [`Config::pages_max`] pages.

mod copies;
mod directory;
mod message;
#[cfg(test)]
mod tests;

use std::time::Duration;

use smallvec::SmallVec;
use thiserror::Error;

pub use crate::color::PageNo;
use crate::unit::Instant;
use copies::Copies;
use directory::Directory;
pub use message::{Address, Envelope, Incarnation, Message, Mode, NodeId, Request, Serial, Version};

/// The shared space and its nodes; the same at all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Nodes, numbered from 0.
    pub nodes: u16,
    /// Pages of the space. The home of a page is its number modulo the nodes.
    pub pages: u64,
    /// Pages that one node may hold or wait for at a time.
    pub pages_max: usize,
    /// What is not answered for so long is sent again: a few round trips.
    pub patience: Duration,
}

impl Config {
    /// The home of a page.
    pub fn home(&self, page: PageNo) -> NodeId {
        NodeId((page.0 % u64::from(self.nodes.max(1))) as u16)
    }
}

/// What a node's own processes want.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Local {
    Read,
    /// To write it. What is written is safe from this node's death once it is written back.
    Write,
    /// That what was written be stored at the home; a copy to read stays.
    WriteBack,
    /// To hold it no more; what was written is stored at the home first.
    Drop,
}

/// What the node is to do, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send it, with the page's bytes if [`Message::data`] says so. A network may lose it.
    Send(Envelope),
    /// The local request for this page is granted: do the access now. `version` is what is read, or what is now written.
    Access {
        page: PageNo,
        /// Read or write.
        mode: Mode,
        version: Version,
    },
    /// Nobody here may write the page any more (mappings lose the right).
    Protect(PageNo),
    /// Nobody here may use the page any more: mappings and the buffer cache's copy go. The bytes stay until `Discard`.
    Revoke(PageNo),
    /// The bytes are not needed any more.
    Discard(PageNo),
    /// [`Local::WriteBack`] or [`Local::Drop`] is done: what was written is stored at the home.
    Saved(PageNo),
    /// The home's part: the bytes that came with this message are now the page's last copy. They are in storage before
    /// the next action is done.
    Store {
        page: PageNo,
        /// Of the bytes.
        version: Version,
    },
}

/// What a node is to do.
pub type Actions = SmallVec<[Action; 4]>;

/// Why a local request was not taken.
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

/// One node: its copies of pages, and the directory of those that it is home of.
#[derive(Clone, Debug)]
pub struct Node {
    config: Config,
    me: Address,
    members: Members,
    copies: Copies,
    directory: Directory,
}

impl Node {
    /// The node at `me`, holding nothing. As a home it has `stored`: versions other than the first of its pages, from
    /// its storage. A node of the first incarnation begins with all others; a later one knows from `dead` and
    /// `returned` how the others are, and asks all who live what they still hold of its pages.
    pub fn new(
        config: Config,
        me: Address,
        stored: impl IntoIterator<Item = (PageNo, Version)>,
        others: impl IntoIterator<Item = (NodeId, Option<Incarnation>)>,
    ) -> Self {
        let mut members = Members::default();
        others.into_iter().for_each(|(node, incarnation)| members.set(node, incarnation));
        let mut directory = Directory::new(me, stored);
        if me.incarnation > Incarnation::FIRST {
            let living = (0..config.nodes).map(NodeId);
            directory.survey(living.filter(|node| *node != me.node && members.of(*node).is_some()));
        }
        Node { config, me, members, copies: Copies::new(me, config.pages_max), directory }
    }

    pub fn address(&self) -> Address {
        self.me
    }

    /// A process of this node wants something. Done at once if the actions say so; else later.
    ///
    /// # Errors
    /// When the page is not of the space, another request waits for it, or the node's table is full.
    pub fn on_local(&mut self, now: Instant, want: Local, page: PageNo) -> Result<Actions, LocalError> {
        if page.0 >= self.config.pages {
            return Err(LocalError::NoSuchPage(page.0));
        }
        let mut turn = Turn::new(now);
        self.copies.on_local(want, page, &mut turn)?;
        Ok(self.end(turn))
    }

    /// A message came. One of or to another incarnation is ignored, as is one that makes no sense.
    pub fn on_message(&mut self, now: Instant, envelope: Envelope) -> Actions {
        let from = envelope.from;
        let is_known = from.node.0 < self.config.nodes && self.members.of(from.node) == Some(from.incarnation);
        if envelope.to != self.me || !is_known {
            return Actions::new();
        }
        let mut turn = Turn::new(now);
        self.take(from, envelope.message, &mut turn);
        self.end(turn)
    }

    /// Sends again what waits for an answer for [`Config::patience`]. To be called about that often.
    pub fn on_tick(&mut self, now: Instant) -> Actions {
        let mut turn = Turn::new(now);
        let patience = self.config.patience;
        self.copies.on_tick(&self.config, patience, &mut turn);
        self.directory.on_tick(patience, &mut turn);
        self.end(turn)
    }

    /// A node is declared dead. It must not run any more. Of no effect when it has returned since.
    pub fn on_dead(&mut self, now: Instant, address: Address) -> Actions {
        let mut turn = Turn::new(now);
        if self.members.of(address.node) == Some(address.incarnation) {
            self.members.set(address.node, None);
            self.directory.on_dead(address.node, &mut turn);
        }
        self.end(turn)
    }

    pub fn on_alive(&mut self, now: Instant, address: Address) -> Actions {
        let mut turn = Turn::new(now);
        if self.members.of(address.node).is_none_or(|known| known < address.incarnation) {
            self.members.set(address.node, Some(address.incarnation));
            self.directory.on_dead(address.node, &mut turn);
            self.copies.on_new_home(&self.config, address, &mut turn);
        }
        self.end(turn)
    }

    /// How it holds a page, and which version.
    pub fn holds(&self, page: PageNo) -> Option<(Mode, Version)> {
        self.copies.holds(page)
    }

    /// Does a local request for the page wait?
    pub fn is_waiting(&self, page: PageNo) -> bool {
        self.copies.is_waiting(page)
    }

    /// Does it keep data of the page until the home has them?
    pub fn is_saving(&self, page: PageNo) -> bool {
        self.copies.is_saving(page)
    }

    /// The last copy that it has stored of a page that it is home of.
    pub fn stored(&self, page: PageNo) -> Version {
        self.directory.stored(page)
    }

    /// All stored copies of pages that it is home of, but those that were never written.
    pub fn all_stored(&self) -> impl Iterator<Item = (PageNo, Version)> + '_ {
        self.directory.all_stored()
    }

    /// Nothing waits for an answer here: neither a copy nor the directory.
    pub fn is_quiet(&self) -> bool {
        self.copies.is_quiet() && self.directory.is_quiet()
    }

    fn take(&mut self, from: Address, message: Message, turn: &mut Turn) {
        let is_home = |page| self.config.home(page) == self.me.node && page.0 < self.config.pages;
        let is_from_home = |page| self.config.home(page) == from.node;
        match message {
            Message::Ask { page, .. } | Message::Got { page, .. } | Message::GaveUp { page, .. } if !is_home(page) => {}
            Message::Grant { page, .. } | Message::Recall { page, .. } | Message::Taken { page, .. }
                if !is_from_home(page) => {}
            Message::Ask { .. } | Message::Got { .. } | Message::GaveUp { .. } | Message::Surveyed => {
                self.directory.on_message(from.node, message, turn);
            }
            Message::Grant { .. } | Message::Recall { .. } | Message::Taken { .. } => {
                self.copies.on_message(message, turn);
            }
            Message::Survey => self.copies.on_survey(&self.config, from, turn),
        }
    }

    /// Delivers what the node says to itself, and addresses the rest.
    fn end(&mut self, mut turn: Turn) -> Actions {
        let mut actions = Actions::new();
        // By index: what it says to itself may say more.
        let mut done = 0;
        while done < turn.steps.len() {
            match turn.steps[done] {
                Step::Do(action) => actions.push(action),
                Step::ToHome(page, message) => self.post(self.config.home(page), message, &mut turn, &mut actions),
                Step::To(node, message) => self.post(node, message, &mut turn, &mut actions),
            }
            done += 1;
        }
        actions
    }

    fn post(&mut self, to: NodeId, message: Message, turn: &mut Turn, actions: &mut Actions) {
        if to == self.me.node {
            return self.take(self.me, message, turn);
        }
        // To the dead there is nothing to say: what waits is sent again when they are back.
        if let Some(incarnation) = self.members.of(to) {
            let to = Address { node: to, incarnation };
            actions.push(Action::Send(Envelope { from: self.me, to, message }));
        }
    }
}

/// What comes of one call: in order.
#[derive(Debug)]
struct Turn {
    now: Instant,
    steps: SmallVec<[Step; 4]>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Do(Action),
    ToHome(PageNo, Message),
    To(NodeId, Message),
}

impl Turn {
    fn new(now: Instant) -> Self {
        Turn { now, steps: SmallVec::new() }
    }

    fn act(&mut self, action: Action) {
        self.steps.push(Step::Do(action));
    }

    fn send_home(&mut self, page: PageNo, message: Message) {
        self.steps.push(Step::ToHome(page, message));
    }

    fn send(&mut self, to: NodeId, message: Message) {
        self.steps.push(Step::To(to, message));
    }
}

/// How the others are. Only those are listed that ever died: of 4,096 nodes each knows all.
#[derive(Clone, Debug, Default)]
struct Members {
    changed: Vec<(NodeId, Option<Incarnation>)>,
}

impl Members {
    /// `None` of the dead.
    fn of(&self, node: NodeId) -> Option<Incarnation> {
        match self.changed.binary_search_by_key(&node, |(node, _)| *node) {
            Ok(index) => self.changed[index].1,
            Err(_) => Some(Incarnation::FIRST),
        }
    }

    fn set(&mut self, node: NodeId, incarnation: Option<Incarnation>) {
        match self.changed.binary_search_by_key(&node, |(node, _)| *node) {
            Ok(index) => self.changed[index].1 = incarnation,
            Err(index) => self.changed.insert(index, (node, incarnation)),
        }
    }
}
