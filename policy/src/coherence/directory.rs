//! The directory of a home: the holders of its pages, and the queued requests.

use std::time::Duration;

use smallvec::SmallVec;

use super::pages::Exclusive;
use super::table::{Record, Table};
use super::{Action, Incarnation, Message, Mode, NodeId, Outbox, PageNo, Places, Request, Serial, Storage, Version};
use crate::unit::Instant;

/// Where homes move, surveys are sent again so many times in the time after which other messages are: nothing is granted
/// meanwhile, and who has not seen the map yet ignores them.
const SURVEYS: u32 = 8;

#[derive(Clone, Debug)]
pub(super) struct Directory {
    pub(super) entries: Table<Entry>,
    /// Pages that one node may write, by node.
    exclusive: Exclusive,
    pub(super) serials: u64,
    /// Pages that nodes might write when they died.
    pub(super) dead_writers: u64,
    /// Nothing is granted in these terms.
    pub(super) surveys: Vec<Survey>,
    surveyed: Instant,
}

/// Nodes that may still hold grants from before a term.
#[derive(Clone, Debug)]
pub(super) struct Survey {
    pub(super) since: Incarnation,
    pub(super) nodes: Vec<NodeId>,
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) page: PageNo,
    pub(super) stored: Version,
    /// The only holder may write.
    pub(super) is_exclusive: bool,
    /// What that holder writes under this grant is to be stored, though no other node wants the page.
    pub(super) is_to_store: bool,
    /// In order of node.
    pub(super) holders: SmallVec<[Holder; 1]>,
    /// Most pages are wanted by nobody most of the time.
    busy: Option<Box<Busy>>,
}

#[derive(Clone, Debug, Default)]
struct Busy {
    /// In order of arrival; each node once.
    queue: Vec<Asker>,
    /// When the last unanswered message was sent.
    sent: Instant,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Holder {
    pub(super) node: NodeId,
    pub(super) serial: Serial,
    pub(super) request: Request,
    pub(super) step: Holding,
    /// The grant has the data. Also when it is sent again: what was declined without them must not be accepted later.
    pub(super) with_data: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Holding {
    Held,
    /// Asked to give it up.
    Recalled,
    /// It gave up what it wrote, which is stored, and may not know that yet ([`Storage::Shared`]).
    Stored,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Asker {
    pub(super) node: NodeId,
    pub(super) mode: Mode,
    pub(super) request: Request,
    pub(super) have: Option<Serial>,
    pub(super) blank: bool,
}

impl Record for Entry {
    fn page(&self) -> PageNo {
        self.page
    }

    fn is_quiet(&self) -> bool {
        self.queue().is_empty() && self.holders.iter().all(|holder| holder.step == Holding::Held)
    }
}

impl Entry {
    fn new(page: PageNo, stored: Version) -> Self {
        Entry { page, stored, is_exclusive: false, is_to_store: false, holders: SmallVec::new(), busy: None }
    }

    pub(super) fn queue(&self) -> &[Asker] {
        self.busy.as_ref().map_or(&[], |busy| &busy.queue)
    }

    fn busy(&mut self) -> &mut Busy {
        self.busy.get_or_insert_default()
    }

    /// Gives back what it needs only while something is unanswered.
    fn rest(&mut self) {
        if self.is_quiet() {
            self.busy = None;
        }
    }

    fn holder(&self, node: NodeId) -> Result<usize, usize> {
        self.holders.binary_search_by_key(&node, |holder| holder.node)
    }

    /// The only holder, which may write, and its grant.
    fn writer(&self) -> Option<(NodeId, Serial)> {
        self.holders.first().filter(|_| self.is_exclusive).map(|holder| (holder.node, holder.serial))
    }

    fn list_writer(&self, before: Option<(NodeId, Serial)>, exclusive: &mut Exclusive) {
        exclusive.change(self.page, before.map(|(node, _)| node), self.writer().map(|(node, _)| node));
    }

    fn is_idle(&self) -> bool {
        self.holders.is_empty() && self.queue().is_empty() && self.stored == Version::default()
    }

    fn send_grant(&self, index: usize, out: &mut Outbox) {
        let Holder { node, serial, request, with_data, .. } = self.holders[index];
        let mode = if self.is_exclusive { Mode::Write } else { Mode::Read };
        let data = with_data.then_some(self.stored);
        out.send(node, Message::Grant { page: self.page, mode, request, serial, data });
    }

    fn send_recall(&self, index: usize, out: &mut Outbox) {
        let Holder { node, serial, request, .. } = self.holders[index];
        let retain = self.queue().first().map_or(self.is_to_store, |first| first.mode == Mode::Read);
        out.send(node, Message::Recall { page: self.page, serial, request, retain });
    }

    fn on_ask(&mut self, asker: Asker, out: &mut Outbox) {
        let mut queue = self.busy.iter_mut().flat_map(|busy| &mut busy.queue);
        if let Some(queued) = queue.find(|queued| queued.node == asker.node) {
            // It keeps its place in the queue.
            if asker.request > queued.request {
                *queued = asker;
            }
            return;
        }
        if let Ok(index) = self.holder(asker.node) {
            let holder = self.holders[index];
            if asker.request == holder.request && holder.step != Holding::Stored {
                // The grant was lost, or a recall would have come first and was ignored.
                self.send_grant(index, out);
                if holder.step == Holding::Recalled {
                    self.send_recall(index, out);
                }
            }
            if asker.request <= holder.request {
                return;
            }
        }
        self.busy().queue.push(asker);
    }

    /// Serves queued requests as far as possible now.
    fn advance(&mut self, term: Incarnation, serials: &mut u64, out: &mut Outbox) {
        while let Some(first) = self.queue().first().copied() {
            if !self.make_way(first, out) {
                return;
            }
            self.busy().queue.remove(0);
            *serials += 1;
            let serial = Serial { incarnation: term, count: *serials };
            let found = self.holder(first.node);
            let has_data = found.is_ok_and(|index| Some(self.holders[index].serial) == first.have);
            // A former writer asks again only after it dropped the page, clean.
            let with_data = !first.blank && (!has_data || self.is_exclusive);
            self.is_exclusive = first.mode == Mode::Write;
            self.is_to_store = false;
            let holder = Holder { node: first.node, serial, request: first.request, step: Holding::Held, with_data };
            let index = match found {
                Ok(index) => {
                    self.holders[index] = holder;
                    index
                }
                Err(index) => {
                    self.holders.insert(index, holder);
                    index
                }
            };
            self.send_grant(index, out);
        }
        if self.is_to_store && self.is_exclusive {
            self.recall(0, out);
        }
    }

    /// Recalls a holder, whether or not its grant has arrived.
    fn recall(&mut self, index: usize, out: &mut Outbox) {
        if self.holders.get(index).is_some_and(|holder| holder.step == Holding::Held) {
            self.holders[index].step = Holding::Recalled;
            self.busy().sent = out.now;
            self.send_recall(index, out);
        }
    }

    /// Recalls the holders that conflict with the first request; false if there are any.
    fn make_way(&mut self, first: Asker, out: &mut Outbox) -> bool {
        if first.mode == Mode::Read && !self.is_exclusive {
            return true;
        }
        let mut is_free = true;
        for index in 0..self.holders.len() {
            if self.holders[index].node == first.node {
                continue;
            }
            is_free = false;
            self.recall(index, out);
        }
        is_free
    }

    fn on_noted(&mut self, node: NodeId, serial: Serial) {
        self.holders.retain(|holder| (holder.node, holder.serial, holder.step) != (node, serial, Holding::Stored));
    }

    fn on_gave_up(
        &mut self,
        (node, storage): (NodeId, Storage),
        serial: Serial,
        retained: bool,
        data: Option<Version>,
        out: &mut Outbox,
    ) {
        let found = self.holder(node).ok().filter(|index| self.holders[*index].serial == serial);
        if let Some(index) = found {
            if let Some(version) = data.filter(|_| self.is_exclusive) {
                self.stored = version;
                out.act(Action::Store { page: self.page, version });
            }
            let was_exclusive = std::mem::replace(&mut self.is_exclusive, false);
            self.is_to_store = false;
            if !retained && data.is_some() && storage == Storage::Shared {
                self.holders[index].step = Holding::Stored;
            } else if !retained {
                self.holders.remove(index);
            } else if was_exclusive {
                self.holders[index].step = Holding::Held;
            }
        }
    }

    /// Its copies and its request are gone. Holders recalled for it are recalled anew for the next request.
    fn on_dead(&mut self, node: NodeId) {
        self.busy.iter_mut().for_each(|busy| busy.queue.retain(|queued| queued.node != node));
        if let Ok(index) = self.holder(node) {
            self.holders.remove(index);
            (self.is_exclusive, self.is_to_store) = (false, false);
        }
        for holder in self.holders.iter_mut().filter(|holder| holder.step == Holding::Recalled) {
            holder.step = Holding::Held;
        }
    }
}

impl Directory {
    pub(super) fn new(stored: impl IntoIterator<Item = (PageNo, Version)>) -> Self {
        let entries = Table::new(stored.into_iter().map(|(page, version)| Entry::new(page, version)));
        Directory {
            entries,
            exclusive: Exclusive::default(),
            serials: 0,
            dead_writers: 0,
            surveys: Vec::new(),
            surveyed: Instant::ZERO,
        }
    }

    /// Nothing is granted in this term before all of these nodes have given up what they hold.
    pub(super) fn survey(&mut self, since: Incarnation, living: impl Iterator<Item = NodeId>) {
        let nodes: Vec<NodeId> = living.collect();
        if !nodes.is_empty() {
            self.surveys.push(Survey { since, nodes });
        }
    }

    #[cfg(test)]
    pub(super) fn exclusive_bytes(&self) -> usize {
        self.exclusive.bytes()
    }

    pub(super) fn is_surveying(&self) -> bool {
        !self.surveys.is_empty()
    }

    fn surveyed_in(&self, term: Incarnation) -> Option<&Survey> {
        self.surveys.iter().find(|survey| survey.since == term)
    }

    pub(super) fn send_surveys(&mut self, out: &mut Outbox) {
        self.surveyed = out.now;
        for Survey { since, nodes } in &self.surveys {
            nodes.iter().for_each(|node| out.send(*node, Message::Survey { since: *since }));
        }
    }

    pub(super) fn stored(&self, page: PageNo) -> Version {
        self.entries.get(page).map_or(Version::default(), |entry| entry.stored)
    }

    pub(super) fn all_stored(&self) -> impl Iterator<Item = (PageNo, Version)> + '_ {
        let written = self.entries.iter().filter(|entry| entry.stored != Version::default());
        written.map(|entry| (entry.page, entry.stored))
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.surveys.is_empty() && self.entries.is_quiet()
    }

    /// `term`: that in which this node is the page's home.
    pub(super) fn on_message(
        &mut self,
        places: &Places,
        term: Incarnation,
        (from, message): (NodeId, Message),
        out: &mut Outbox,
    ) {
        match message {
            Message::Ask { page, mode, request, have, blank } => {
                let asker = Asker { node: from, mode, request, have, blank };
                self.change(page, term, out, |entry, out| entry.on_ask(asker, out));
            }
            Message::Noted { page, serial } => self.change(page, term, out, |entry, _| entry.on_noted(from, serial)),
            Message::GaveUp { page, serial, retained, data, to } => {
                let is_survey = serial.incarnation < term
                    && to == term
                    && self.surveyed_in(term).is_some_and(|survey| survey.nodes.contains(&from));
                // Without versions it cannot be told which is later, and what still counts is.
                let storage = places.config.storage;
                let is_later = storage != Storage::Versioned;
                self.change(page, term, out, |entry, out| match data.filter(|_| is_survey) {
                    Some(version) if is_later || version > entry.stored => {
                        entry.stored = version;
                        out.act(Action::Store { page, version });
                    }
                    Some(_) => {}
                    None => entry.on_gave_up((from, storage), serial, retained, data, out),
                });
                if data.is_some() && to == term {
                    out.send(from, Message::Taken { page, serial });
                }
            }
            _ => {}
        }
    }

    pub(super) fn on_tick(&mut self, places: &Places, timeout: Duration, out: &mut Outbox) {
        let survey_after = if places.is_mapped() { timeout / SURVEYS } else { timeout };
        if out.now.since(self.surveyed) >= survey_after && !self.surveys.is_empty() {
            self.send_surveys(out);
        }
        self.entries.for_waiting(|entry| {
            if out.now.since(entry.busy().sent) < timeout || places.own(entry.page).is_none() {
                return;
            }
            entry.busy().sent = out.now;
            for index in 0..entry.holders.len() {
                let Holder { node, serial, step, .. } = entry.holders[index];
                match step {
                    Holding::Held => {}
                    Holding::Recalled => entry.send_recall(index, out),
                    Holding::Stored => out.send(node, Message::Taken { page: entry.page, serial }),
                }
            }
        });
    }

    pub(super) fn on_dead(&mut self, places: &Places, node: NodeId, out: &mut Outbox) {
        let mut died = 0;
        self.change_all(|_, entry| {
            died += u64::from(entry.writer().is_some_and(|(writer, _)| writer == node));
            entry.on_dead(node);
        });
        self.dead_writers += died;
        self.end_survey_of(places, node, None, out);
    }

    /// Has all stored that other nodes than `asker` may have written. Returns what is waited for.
    pub(super) fn store_all(&mut self, places: &Places, asker: NodeId, out: &mut Outbox) -> Vec<(PageNo, Serial)> {
        let pages = self.exclusive.of_others(asker);
        let mut awaited = Vec::with_capacity(pages.len());
        for page in pages {
            awaited.extend(self.entries.get(page).and_then(Entry::writer).map(|(_, serial)| (page, serial)));
            if let Some(term) = places.own(page) {
                self.change(page, term, out, |entry, _| entry.is_to_store = true);
            }
        }
        awaited
    }

    /// Is there a node that may write under this grant?
    pub(super) fn is_exclusive(&self, page: PageNo, serial: Serial) -> bool {
        self.entries.get(page).and_then(Entry::writer).is_some_and(|(_, present)| present == serial)
    }

    /// A node has nothing from before this term any more; without one, from before any.
    pub(super) fn end_survey_of(
        &mut self,
        places: &Places,
        node: NodeId,
        since: Option<Incarnation>,
        out: &mut Outbox,
    ) {
        for survey in self.surveys.iter_mut().filter(|survey| since.is_none_or(|since| survey.since == since)) {
            survey.nodes.retain(|other| *other != node);
        }
        self.surveys.retain(|survey| !survey.nodes.is_empty());
        self.advance_all(places, out);
    }

    /// Grants what may be granted now.
    pub(super) fn advance_all(&mut self, places: &Places, out: &mut Outbox) {
        let (mut serials, surveys) = (self.serials, std::mem::take(&mut self.surveys));
        let may_grant = |term: &Incarnation| surveys.iter().all(|survey| survey.since != *term);
        self.change_all(|page, entry| {
            if let Some(term) = places.own(page).filter(may_grant) {
                entry.advance(term, &mut serials, out);
            }
        });
        (self.serials, self.surveys) = (serials, surveys);
    }

    /// Forgets pages: their home is another one, or the same in another term.
    pub(super) fn forget(&mut self, has_moved: impl Fn(PageNo) -> bool) {
        self.entries.for_all(|_, _| {}, |entry| has_moved(entry.page));
        self.exclusive.retain(|page| !has_moved(page));
    }

    pub(super) fn note_stored(&mut self, stored: impl Iterator<Item = (PageNo, Version)>) {
        for (page, version) in stored {
            let set = |entry: &mut Entry| entry.stored = version;
            self.entries.change(page, || Entry::new(page, version), set, Entry::is_idle);
        }
    }

    fn change(
        &mut self,
        page: PageNo,
        term: Incarnation,
        out: &mut Outbox,
        change: impl FnOnce(&mut Entry, &mut Outbox),
    ) {
        let surveys = self.surveyed_in(term).is_some();
        let (serials, exclusive) = (&mut self.serials, &mut self.exclusive);
        let change = |entry: &mut Entry| {
            let before = entry.writer();
            change(entry, out);
            if !surveys {
                entry.advance(term, serials, out);
            }
            entry.list_writer(before, exclusive);
            entry.rest();
        };
        self.entries.change(page, || Entry::new(page, Version::default()), change, Entry::is_idle);
    }

    fn change_all(&mut self, mut change: impl FnMut(PageNo, &mut Entry)) {
        let exclusive = &mut self.exclusive;
        let change = |page, entry: &mut Entry| {
            let before = entry.writer();
            change(page, entry);
            entry.list_writer(before, exclusive);
            entry.rest();
        };
        self.entries.for_all(change, Entry::is_idle);
    }
}
