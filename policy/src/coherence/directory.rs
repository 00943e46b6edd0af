//! The directory of a home: the holders of its pages, and the queued requests.

use std::time::Duration;

use super::entry::{Asker, Entry, Holder, Holding, Numbers};
use super::pages::Exclusive;
use super::table::Table;
use super::{Action, Incarnation, Message, NodeId, Outbox, PageNo, Places, Serial, Storage, Version};
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
    /// Pages that nodes might write when they died, and nodes that died before they had answered a survey.
    pub(super) dead_writers: u64,
    /// Nothing is granted in these terms.
    pub(super) surveys: Vec<Survey>,
    surveyed: Instant,
    /// Pages go straight from the node that has them to the one that wants them.
    pub(super) forwarding: bool,
    /// Nobody is granted anything to write any more.
    pub(super) is_closed: bool,
}

/// Nodes that may still hold grants from before a term.
#[derive(Clone, Debug)]
pub(super) struct Survey {
    pub(super) since: Incarnation,
    pub(super) nodes: Vec<NodeId>,
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
            forwarding: false,
            is_closed: false,
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
    pub(super) fn forget_promises(&mut self) {
        self.entries.for_waiting(|entry| entry.busy().promise = None);
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

    pub(super) fn is_surveying_in(&self, term: Incarnation) -> bool {
        self.surveyed_in(term).is_some()
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
                self.change(page, (term, places), out, |entry, out| entry.on_ask(asker, places, out));
            }
            Message::Noted { page, serial } => {
                self.change(page, (term, places), out, |entry, _| entry.on_noted(from, serial));
            }
            Message::GaveUp { page, serial, retained, data, to, forwarded } => {
                let is_survey = serial.incarnation < term
                    && to == term
                    && self.surveyed_in(term).is_some_and(|survey| survey.nodes.contains(&from));
                // Without versions it cannot be told which is later, and what still counts is.
                let storage = places.config.storage;
                let is_later = storage != Storage::Versioned;
                self.change(page, (term, places), out, |entry, out| match data.filter(|_| is_survey) {
                    Some(version) if is_later || version > entry.stored => {
                        entry.stored = version;
                        out.act(Action::Store { page, version });
                    }
                    Some(_) => {}
                    None => {
                        entry.on_early(from, serial, data, out);
                        entry.on_gave_up((from, storage), serial, retained, data, forwarded, out);
                    }
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
                    Holding::Recalled | Holding::Orphaned => entry.send_recall(index, places, out),
                    Holding::Stored => out.send(node, Message::Taken { page: entry.page, serial }),
                }
            }
        });
    }

    pub(super) fn on_dead(&mut self, places: &Places, node: NodeId, out: &mut Outbox) {
        let mut died = 0;
        self.change_all(|_, entry| {
            died += u64::from(entry.writers().any(|(writer, _)| writer == node));
            entry.on_dead(node, places, out);
        });
        self.dead_writers += died + u64::from(self.surveys.iter().any(|survey| survey.nodes.contains(&node)));
        self.end_survey_of(places, node, None, out);
    }

    /// Has all stored that these nodes may have written. Returns what is waited for.
    pub(super) fn store_all(
        &mut self,
        places: &Places,
        is_meant: impl Fn(NodeId) -> bool,
        out: &mut Outbox,
    ) -> Vec<(PageNo, Serial)> {
        let pages = self.exclusive.of(&is_meant);
        let mut awaited = Vec::with_capacity(pages.len());
        for page in pages {
            let writers = self.entries.get(page).into_iter().flat_map(Entry::writers);
            awaited.extend(writers.filter(|(node, _)| is_meant(*node)).map(|(_, serial)| (page, serial)));
            if let Some(term) = places.own(page) {
                self.change(page, (term, places), out, |entry, _| entry.is_to_store = true);
            }
        }
        awaited
    }

    /// How many pages a node may write.
    pub(super) fn written_by(&self, node: NodeId) -> usize {
        self.exclusive.count_of(node)
    }

    pub(super) fn is_surveying_node(&self, node: NodeId) -> bool {
        self.surveys.iter().any(|survey| survey.nodes.contains(&node))
    }

    /// The node that has the page, if one may write it under this grant: that one, or one to which it sends the page.
    pub(super) fn holder_for(&self, page: PageNo, serial: Serial) -> Option<NodeId> {
        let entry = self.entries.get(page)?;
        let (writer, _) = entry.writers().find(|(_, present)| *present == serial)?;
        Some(entry.holders.first().map_or(writer, |holder| holder.node))
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
        let (mut numbers, surveys) = (self.numbers(), std::mem::take(&mut self.surveys));
        let may_grant = |term: &Incarnation| surveys.iter().all(|survey| survey.since != *term);
        self.change_all(|page, entry| {
            if let Some(term) = places.own(page).filter(may_grant) {
                entry.advance(term, places, &mut numbers, out);
            }
        });
        (self.serials, self.surveys) = (numbers.serials, surveys);
    }

    pub(super) fn numbers(&self) -> Numbers {
        Numbers { serials: self.serials, forwarding: self.forwarding, is_closed: self.is_closed }
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
        (term, places): (Incarnation, &Places),
        out: &mut Outbox,
        change: impl FnOnce(&mut Entry, &mut Outbox),
    ) {
        let surveys = self.surveyed_in(term).is_some();
        let mut numbers = self.numbers();
        let exclusive = &mut self.exclusive;
        let change = |entry: &mut Entry| {
            let before = entry.writer();
            change(entry, out);
            if !surveys {
                entry.advance(term, places, &mut numbers, out);
            }
            entry.list_writer(before, exclusive);
            entry.rest();
        };
        self.entries.change(page, || Entry::new(page, Version::default()), change, Entry::is_idle);
        self.serials = numbers.serials;
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
