//! Nodes, a network that may do anything to a message but change it, deaths; and the invariants.

use std::rc::Rc;
use std::time::Duration;

use smallvec::{SmallVec, smallvec};

use super::super::directory::Directory;
use super::super::{
    Action, Actions, Address, Config, Envelope, Forward, Homes, Incarnation, Local, Message, Mode, Node, NodeId,
    PageNo, Serial, Storage, Version,
};
use crate::unit::Instant;

/// Nothing depends on time: every tick retransmits everything.
pub const NOW: Instant = Instant::ZERO;

/// Deliberate defects, to test that they are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// A page is granted to a writer while readers still hold it.
    InvalidationNotAwaited,
    /// A reader that is recalled confirms and reads on.
    CopyRetained,
    /// Data given up are dropped before the home has them.
    DataNotRetained,
    NeverRetransmitted,
    /// An answer counts for the present grant, whichever serial it has.
    SerialsIgnored,
    /// Messages of dead incarnations count.
    IncarnationsIgnored,
    /// A home that returns grants at once.
    NoSurvey,
    /// A recall that has overtaken its grant is answered, and the grant accepted.
    RecallAnsweredEarly,
    /// A flush asks nobody for what it wrote.
    NothingStored,
    /// What was forwarded is taken for stored.
    ForwardedNotRetained,
    /// When a node dies that was to forward a page, its home takes what is stored for the last.
    OrphansIgnored,
    /// What was forwarded for an earlier incarnation of a home counts.
    TermsIgnored,
    /// A page is forwarded to whichever incarnation of a node lives.
    ForwardedToSuccessor,
    /// A flush does not wait for whom a page was promised.
    PromisesNotFlushed,
}

/// The state of all nodes and the network.
#[derive(Clone)]
pub struct World {
    pub config: Config,
    /// Maximum of messages in flight; further ones are lost.
    pub in_flight_max: usize,
    pub flaw: Option<Flaw>,
    pub forwards: bool,
    /// `None` while it is dead.
    pub nodes: SmallVec<[Option<Rc<Node>>; 3]>,
    /// A set, in order: the network may deliver any of them, any number of times.
    pub network: SmallVec<[Envelope; 3]>,
    /// For each page: the version of the last valid write.
    pub latest: SmallVec<[Version; 2]>,
    /// For each page: what a node has forwarded that died before its home had it. Valid if whom it was meant for gets it.
    pub orphans: SmallVec<[Option<Version>; 2]>,
    /// For each page: what a flush at its home waits for, and the version that must be stored then.
    pub flushing: SmallVec<[Option<(Serial, Version)>; 2]>,
    /// For each node: 0 is alive, 1 dead, 2 alive again, and so on.
    pub truth: SmallVec<[u8; 16]>,
    /// For each pair: the latest stage of one node that the other was notified of.
    known_stage: SmallVec<[u8; 16]>,
    /// For each pair: whether one node has returned and not heard of the other since.
    unmet: SmallVec<[bool; 16]>,
    pub stored: SmallVec<[Vec<(PageNo, Version)>; 3]>,
    pub accesses: u64,
}

/// The invariant that does not hold.
pub type Broken = String;

fn address(node: usize, stage: u8) -> Address {
    Address { node: NodeId(node as u16), incarnation: Incarnation(u32::from(stage / 2) + 1) }
}

/// Does this home wait for the node's answer to its survey?
pub fn surveys(directory: &Directory, node: NodeId) -> bool {
    directory.surveys.iter().any(|survey| survey.nodes.contains(&node))
}

pub(super) fn home_of(config: &Config, page: PageNo) -> usize {
    usize::from(config.home(page).expect("homes do not move here").0)
}

impl World {
    pub fn new(nodes: usize, pages: usize, in_flight_max: usize, storage: Storage) -> Self {
        let config = Config {
            nodes: nodes as u16,
            pages: pages as u64,
            homes: Homes::All,
            shard: 1,
            storage,
            pages_max: pages,
            timeout: Duration::ZERO,
        };
        let node = |index| Some(Rc::new(Node::new(config, address(index, 0), [], [])));
        World {
            config,
            in_flight_max,
            flaw: None,
            forwards: false,
            nodes: (0..nodes).map(node).collect(),
            network: SmallVec::new(),
            latest: smallvec![Version::default(); pages],
            orphans: smallvec![None; pages],
            flushing: smallvec![None; pages],
            truth: smallvec![0; nodes],
            known_stage: smallvec![0; nodes * nodes],
            unmet: smallvec![false; nodes * nodes],
            stored: smallvec![Vec::new(); nodes],
            accesses: 0,
        }
    }

    /// The same where pages are forwarded.
    pub fn forwarding(mut self) -> Self {
        self.nodes.iter_mut().flatten().for_each(|node| Rc::make_mut(node).set_forwarding(true));
        self.forwards = true;
        self
    }

    /// A request of a process; ignored while another one waits.
    pub fn local(&mut self, node: usize, want: Local, page: PageNo) -> Result<(), Broken> {
        let Some(running) = self.nodes[node].as_mut() else { return Ok(()) };
        match Rc::make_mut(running).on_local(NOW, want, page) {
            Ok(actions) => self.act(node, actions),
            Err(_) => Ok(()),
        }
    }

    /// A home is asked to have all stored that was written.
    pub fn flush(&mut self, home: usize) -> Result<(), Broken> {
        let Some(running) = self.nodes[home].as_mut() else { return Ok(()) };
        let node = Rc::make_mut(running);
        let (awaited, actions) = match self.flaw {
            Some(Flaw::NothingStored) => (Node::clone(node).store_all(NOW, |_| true).0, Actions::new()),
            _ => node.store_all(NOW, |_| true),
        };
        for (page, serial) in awaited {
            let index = page.0 as usize;
            let is_ignored = self.flaw == Some(Flaw::NothingStored);
            let serial = if is_ignored { Serial::default() } else { serial };
            // The last of them has what is written before.
            if self.flushing[index].is_none() || self.flaw != Some(Flaw::PromisesNotFlushed) {
                self.flushing[index] = Some((serial, self.latest[index]));
            }
        }
        self.act(home, actions)
    }

    /// Is no flush of a page of this home under way?
    pub fn may_flush(&self, home: usize) -> bool {
        let mut pages = (0..self.config.pages).map(PageNo);
        let is_own = |page| home_of(&self.config, page) == home;
        self.nodes[home].is_some() && pages.all(|page| !is_own(page) || self.flushing[page.0 as usize].is_none())
    }

    /// Delivers a message. If it `stays`, it will be delivered again.
    pub fn deliver(&mut self, index: usize, stays: bool) -> Result<(), Broken> {
        let mut envelope = if stays { self.network[index] } else { self.network.remove(index) };
        let (from, to) = (usize::from(envelope.from.node.0), usize::from(envelope.to.node.0));
        let known = address(from, self.known_stage(to, from));
        let Some(running) = self.nodes[to].as_mut() else { return Ok(()) };
        let before = Rc::clone(running);
        match self.flaw {
            Some(Flaw::IncarnationsIgnored) => envelope.from = known,
            Some(Flaw::SerialsIgnored) => name_present_grant(running, &mut envelope),
            Some(Flaw::TermsIgnored) => {
                if let Message::Grant { page, serial, .. } = &mut envelope.message {
                    let home = running.places.named(*page).filter(|home| home.at.node != envelope.from.node);
                    home.into_iter().for_each(|home| serial.incarnation = home.since);
                }
            }
            Some(Flaw::ForwardedToSuccessor) => {
                if let Message::Recall { forward: Some(Forward { to, .. }), .. } = &mut envelope.message {
                    to.incarnation = running.places.members.of(to.node).unwrap_or(to.incarnation);
                }
            }
            _ => {}
        }
        let mut actions = Rc::make_mut(running).on_message(NOW, envelope);
        if let (Some(Flaw::ForwardedNotRetained), Message::Grant { page, serial, .. }) = (self.flaw, envelope.message) {
            let home = running.places.home(page).map_or(envelope.to, |home| home.at);
            let recorded = Envelope { from: home, to: envelope.to, message: Message::Recorded { page, serial } };
            actions.extend(Rc::make_mut(running).on_message(NOW, recorded));
        }
        check_base(&before, running, &envelope.message, (&self.latest, &self.orphans))?;
        let is_reader = |page| matches!(before.holds(page), Some((Mode::Read, _)));
        match envelope.message {
            Message::Recall { page, .. } if self.flaw == Some(Flaw::CopyRetained) && is_reader(page) => {
                self.nodes[to] = Some(before);
            }
            Message::Recall { page, serial, .. } if self.flaw == Some(Flaw::RecallAnsweredEarly) => {
                let to = envelope.from.incarnation;
                let message = Message::GaveUp { page, serial, retained: false, data: None, to, forwarded: None };
                if before.is_waiting(page) {
                    self.put(Envelope { from: envelope.to, to: envelope.from, message });
                }
            }
            _ => {}
        }
        self.act(to, actions)
    }

    /// What a node would retransmit.
    pub fn retransmissions(&self, node: usize) -> Vec<Envelope> {
        if self.flaw == Some(Flaw::NeverRetransmitted) {
            return Vec::new();
        }
        let Some(running) = &self.nodes[node] else { return Vec::new() };
        let actions = Node::clone(running).on_tick(NOW);
        let sent = actions.iter().map(|action| match action {
            Action::Send(envelope) => *envelope,
            other => panic!("a tick only sends, not {other:?}"),
        });
        sent.collect()
    }

    /// Puts a message in flight. False if it is lost because there are too many, or is a duplicate.
    pub fn put(&mut self, envelope: Envelope) -> bool {
        match self.network.binary_search(&envelope) {
            Err(index) if self.network.len() < self.in_flight_max => {
                self.network.insert(index, envelope);
                true
            }
            _ => false,
        }
    }

    pub fn crash(&mut self, node: usize) {
        let Some(running) = self.nodes[node].take() else { return };
        self.stored[node] = running.all_stored().collect();
        for page in (0..self.config.pages).map(PageNo).filter(|page| home_of(&self.config, *page) == node) {
            self.flushing[page.0 as usize] = None;
        }
        self.truth[node] += 1;
        let count = self.truth.len();
        self.unmet[node * count..][..count].fill(false);
        if self.config.storage == Storage::Volatile {
            // What it stores is lost. A grant on its way may still bring some of it to another node: that this page is
            // then not lost is harmless, and not modelled.
            self.stored[node].clear();
            self.network.retain(|envelope| envelope.from.node != NodeId(node as u16));
        }
    }

    /// It returns, with the present state of all others.
    pub fn reboot(&mut self, node: usize) -> Result<(), Broken> {
        self.truth[node] += 1;
        let stored = std::mem::take(&mut self.stored[node]);
        let others = self.truth.iter().enumerate().filter(|(other, stage)| *other != node && **stage > 0);
        let others = others
            .map(|(other, stage)| (NodeId(other as u16), (stage % 2 == 0).then(|| address(other, *stage).incarnation)));
        let me = address(node, self.truth[node]);
        let is_informed = self.config.storage == Storage::Versioned;
        let mut back = if is_informed {
            Node::new(self.config, me, stored.iter().copied(), others)
        } else {
            Node::returning(self.config, me, stored.iter().copied())
        };
        if self.flaw == Some(Flaw::NoSurvey) {
            back.directory.surveys.clear();
        }
        let count = self.truth.len();
        for other in (0..count).filter(|other| !is_informed && *other != node) {
            self.unmet[node * count + other] = true;
        }
        self.known_stage[node * count..][..count].copy_from_slice(&self.truth);
        back.set_forwarding(self.forwards);
        self.void_lost_writes(&back);
        self.nodes[node] = Some(Rc::new(back));
        self.check()
    }

    /// Notifies a node of another one's next stage.
    pub fn notify(&mut self, observer: usize, of: usize) -> Result<(), Broken> {
        let pair = observer * self.truth.len() + of;
        let is_first = std::mem::take(&mut self.unmet[pair]);
        let stage = self.known_stage[pair] + u8::from(!is_first);
        self.known_stage[pair] = stage;
        let Some(running) = self.nodes[observer].as_mut() else { return Ok(()) };
        let node = Rc::make_mut(running);
        if stage % 2 == 1 {
            let observer = Node::clone(node);
            if self.flaw == Some(Flaw::OrphansIgnored) {
                node.directory.forget_promises();
            }
            self.void_writes_of(&observer, NodeId(of as u16));
        }
        let Some(running) = self.nodes[observer].as_mut() else { return Ok(()) };
        let node = Rc::make_mut(running);
        let actions = if stage % 2 == 1 {
            node.on_dead(NOW, address(of, stage - 1))
        } else {
            node.on_alive(NOW, address(of, stage))
        };
        self.act(observer, actions)
    }

    /// The stage of a node as the observer knows it.
    pub fn known_stage(&self, observer: usize, of: usize) -> u8 {
        self.known_stage[observer * self.truth.len() + of]
    }

    /// The same, with whether the observer has not heard of the node yet.
    pub fn known_stage_and_whether_met(&self, observer: usize, of: usize) -> u8 {
        let pair = observer * self.truth.len() + of;
        self.known_stage[pair] * 2 + u8::from(self.unmet[pair])
    }

    pub fn waiting(&self) -> usize {
        let copies = self.nodes.iter().flatten().flat_map(|node| &node.copies.pages);
        copies.filter(|copy| copy.waiting().is_some()).count()
    }

    /// Whether the observer does not yet know the node's present stage.
    pub fn has_news(&self, observer: usize, of: usize) -> bool {
        let is_unmet = self.unmet[observer * self.truth.len() + of];
        self.nodes[observer].is_some() && (is_unmet || self.known_stage(observer, of) < self.truth[of])
    }

    fn act(&mut self, node: usize, actions: Actions) -> Result<(), Broken> {
        let mut forged = Vec::new();
        for action in actions {
            match action {
                Action::Send(envelope) => {
                    self.put(envelope);
                    forged.extend(self.flaw.and_then(|flaw| forge(flaw, envelope, self.nodes[node].as_deref())));
                }
                Action::Access { page, mode, version } => self.access(page, mode, version)?,
                Action::Lost(page) => {
                    let home = self.nodes[home_of(&self.config, page)].clone();
                    home.into_iter().for_each(|home| self.void_lost_writes_of(&home, page));
                }
                _ => {}
            }
        }
        for envelope in forged {
            let Some(running) = self.nodes[node].as_mut() else { break };
            let actions = Rc::make_mut(running).on_message(NOW, envelope);
            self.act(node, actions)?;
        }
        self.check()
    }

    fn access(&mut self, page: PageNo, mode: Mode, version: Version) -> Result<(), Broken> {
        let latest = &mut self.latest[page.0 as usize];
        let orphan = self.orphans[page.0 as usize].take();
        if mode == Mode::Read && orphan == Some(version) {
            *latest = version;
        }
        self.accesses += 1;
        match mode {
            Mode::Read if version != *latest => Err(format!("stale read of {page:?}: {version:?}, not {latest:?}")),
            Mode::Write if version <= *latest => Err(format!("a write of {page:?} is no later than the last")),
            Mode::Read => Ok(()),
            Mode::Write => {
                *latest = version;
                Ok(())
            }
        }
    }

    /// A flush that waits no more has stored what it covers.
    fn end_flushes(&mut self) -> Result<(), Broken> {
        for page in (0..self.config.pages).map(PageNo) {
            let flushing = &mut self.flushing[page.0 as usize];
            let home = &self.nodes[home_of(&self.config, page)];
            let (Some((serial, version)), Some(home)) = (*flushing, home) else { continue };
            if home.awaited(page, serial).is_some() {
                continue;
            }
            if home.stored(page) < version {
                return Err(format!("{version:?} of {page:?} was flushed, and is not stored"));
            }
            *flushing = None;
        }
        Ok(())
    }

    /// One writer or many readers, all with the last write; no page is lost; what was flushed is stored.
    fn check(&mut self) -> Result<(), Broken> {
        self.end_flushes()?;
        for (page, latest) in self.latest.iter().enumerate() {
            let page = PageNo(page as u64);
            let (mut holders, mut writers) = (0, 0);
            for (mode, version) in self.nodes.iter().flatten().filter_map(|node| node.holds(page)) {
                holders += 1;
                writers += u32::from(mode == Mode::Write);
                if version != *latest {
                    return Err(format!("a copy of {page:?} is stale: {version:?}, not {latest:?}"));
                }
            }
            if writers > 1 || (writers == 1 && holders > 1) {
                return Err(format!("{page:?} has {writers} writers of {holders} holders"));
            }
            let Some(home) = &self.nodes[home_of(&self.config, page)] else { continue };
            let entry = home.directory.entries.iter().find(|entry| entry.page == page);
            let is_home = !home.directory.is_surveying() && !entry.is_some_and(|entry| entry.is_exclusive);
            if is_home && home.stored(page) != *latest {
                return Err(format!("{page:?} is lost: it has no writer, and {latest:?} is not at its home"));
            }
        }
        Ok(())
    }

    /// Every request for a page whose home lives is answered, and all nodes know which live.
    pub fn is_at_rest(&self) -> bool {
        let lives = |page| self.nodes[home_of(&self.config, page)].is_some();
        let count = self.nodes.len();
        let is_informed = (0..count).all(|observer| (0..count).all(|of| !self.has_news(observer, of)));
        is_informed
            && self.flushing.iter().all(Option::is_none)
            && self.nodes.iter().flatten().all(|node| {
                node.directory.is_quiet()
                    && node
                        .copies
                        .pages
                        .iter()
                        .all(|copy| !lives(copy.page) || (copy.waiting().is_none() && copy.saving().is_none()))
            })
    }
}

/// Who may write now begins with the last write, unless it overwrites all of the page.
fn check_base(
    before: &Node,
    after: &Node,
    message: &Message,
    (latest, orphans): (&[Version], &[Option<Version>]),
) -> Result<(), Broken> {
    let Message::Grant { page, mode: Mode::Write, request, data, .. } = *message else { return Ok(()) };
    let waiting = |node: &Node| node.copies.pages.get(page).and_then(|copy| copy.waiting());
    let is_meant = waiting(before).is_some_and(|waiting| waiting.request == request && !waiting.blank);
    if !is_meant || waiting(after).is_some() {
        return Ok(());
    }
    let base = data.or(before.holds(page).map(|(_, version)| version));
    let index = page.0 as usize;
    if base == Some(latest[index]) || (base.is_some() && base == orphans[index]) {
        return Ok(());
    }
    Err(format!("stale base of a write of {page:?}: {base:?}, not {:?}", latest[index]))
}

/// The answer that a broken node assumes without waiting for it.
fn forge(flaw: Flaw, sent: Envelope, sender: Option<&Node>) -> Option<Envelope> {
    let answer = |message| Some(Envelope { from: sent.to, to: sent.from, message });
    match (flaw, sent.message) {
        (Flaw::InvalidationNotAwaited, Message::Recall { page, serial, retain: false, .. }) => {
            let entry = sender?.directory.entries.iter().find(|entry| entry.page == page)?;
            let to = sent.from.incarnation;
            let gave_up = Message::GaveUp { page, serial, retained: false, data: None, to, forwarded: None };
            if entry.is_exclusive { None } else { answer(gave_up) }
        }
        (Flaw::DataNotRetained, Message::GaveUp { page, serial, data: Some(_), .. }) => {
            answer(Message::Taken { page, serial })
        }
        _ => None,
    }
}

fn name_present_grant(home: &Node, envelope: &mut Envelope) {
    let from = envelope.from.node;
    let present = |page: PageNo| -> Option<Serial> {
        let entry = home.directory.entries.iter().find(|entry| entry.page == page)?;
        entry.holders.iter().find(|holder| holder.node == from).map(|holder| holder.serial)
    };
    if let Message::GaveUp { page, serial, .. } = &mut envelope.message {
        *serial = present(*page).unwrap_or(*serial);
    }
}
