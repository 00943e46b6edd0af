//! The directory of the pages that a node is home of: who holds them, who waits.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Action, Address, Message, Mode, NodeId, PageNo, Request, Serial, Turn, Version};
use crate::unit::Instant;

/// The directory of one home, in order of page.
#[derive(Clone, Debug)]
pub(super) struct Directory {
    pub(super) me: Address,
    pub(super) entries: Vec<Entry>,
    pub(super) serials: u64,
    /// Who has not said yet that it holds nothing of before.
    pub(super) surveying: Vec<NodeId>,
    surveyed: Instant,
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) page: PageNo,
    pub(super) stored: Version,
    /// The one holder may write.
    pub(super) is_exclusive: bool,
    /// In order of node.
    pub(super) holders: Vec<Holder>,
    /// In order of asking; each node once.
    pub(super) queue: VecDeque<Asker>,
    /// When what is unanswered was sent.
    sent: Instant,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Holder {
    pub(super) node: NodeId,
    pub(super) serial: Serial,
    pub(super) request: Request,
    pub(super) step: Holding,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Holding {
    /// Not known to have got it. With data?
    Granted {
        with_data: bool,
    },
    Held,
    /// Is to give it up.
    Recalled,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Asker {
    pub(super) node: NodeId,
    pub(super) mode: Mode,
    pub(super) request: Request,
    pub(super) have: Option<Serial>,
}

impl Entry {
    fn new(page: PageNo, stored: Version) -> Self {
        Entry { page, stored, is_exclusive: false, holders: Vec::new(), queue: VecDeque::new(), sent: Instant::ZERO }
    }

    fn holder(&self, node: NodeId) -> Result<usize, usize> {
        self.holders.binary_search_by_key(&node, |holder| holder.node)
    }

    fn is_idle(&self) -> bool {
        self.holders.is_empty() && self.queue.is_empty() && self.stored == Version::default()
    }

    fn is_quiet(&self) -> bool {
        self.queue.is_empty() && self.holders.iter().all(|holder| holder.step == Holding::Held)
    }

    fn tell_granted(&self, index: usize, turn: &mut Turn) {
        let Holder { node, serial, request, step } = self.holders[index];
        let mode = if self.is_exclusive { Mode::Write } else { Mode::Read };
        let with_data = step != Holding::Granted { with_data: false };
        let data = with_data.then_some(self.stored);
        turn.send(node, Message::Grant { page: self.page, mode, request, serial, data });
    }

    fn tell_recalled(&self, index: usize, turn: &mut Turn) {
        let Holder { node, serial, .. } = self.holders[index];
        let keep = self.queue.front().is_some_and(|first| first.mode == Mode::Read);
        turn.send(node, Message::Recall { page: self.page, serial, keep });
    }

    fn on_ask(&mut self, asker: Asker, turn: &mut Turn) {
        if let Some(queued) = self.queue.iter_mut().find(|queued| queued.node == asker.node) {
            // It keeps its turn.
            if asker.request > queued.request {
                *queued = asker;
            }
            return;
        }
        if let Ok(index) = self.holder(asker.node) {
            let holder = self.holders[index];
            if asker.request == holder.request && matches!(holder.step, Holding::Granted { .. }) {
                self.tell_granted(index, turn);
            }
            if asker.request <= holder.request {
                return;
            }
        }
        self.queue.push_back(asker);
    }

    /// Serves those who wait, as far as it can be done now.
    fn advance(&mut self, home: Address, serials: &mut u64, turn: &mut Turn) {
        while let Some(first) = self.queue.front().copied() {
            if !self.make_way(first, turn) {
                return;
            }
            self.queue.pop_front();
            *serials += 1;
            let serial = Serial { incarnation: home.incarnation, count: *serials };
            let found = self.holder(first.node);
            let has_data = found.is_ok_and(|index| Some(self.holders[index].serial) == first.have);
            // One that could write asks anew only after it dropped the page, clean.
            let with_data = !has_data || self.is_exclusive;
            self.is_exclusive = first.mode == Mode::Write;
            let step = Holding::Granted { with_data };
            let holder = Holder { node: first.node, serial, request: first.request, step };
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
            self.sent = turn.now;
            self.tell_granted(index, turn);
        }
    }

    /// Recalls what stands in the way of the first who waits; false if there is anything. Who has not got its grant
    /// yet is let alone: the recall must not overtake it.
    fn make_way(&mut self, first: Asker, turn: &mut Turn) -> bool {
        if first.mode == Mode::Read && !self.is_exclusive {
            return true;
        }
        let mut is_free = true;
        for index in 0..self.holders.len() {
            if self.holders[index].node == first.node {
                continue;
            }
            is_free = false;
            if self.holders[index].step == Holding::Held {
                self.holders[index].step = Holding::Recalled;
                self.sent = turn.now;
                self.tell_recalled(index, turn);
            }
        }
        is_free
    }

    fn on_got(&mut self, node: NodeId, serial: Serial) {
        if let Ok(index) = self.holder(node)
            && self.holders[index].serial == serial
            && matches!(self.holders[index].step, Holding::Granted { .. })
        {
            self.holders[index].step = Holding::Held;
        }
    }

    fn on_gave_up(&mut self, node: NodeId, serial: Serial, kept: bool, data: Option<Version>, turn: &mut Turn) {
        let found = self.holder(node).ok().filter(|index| self.holders[*index].serial == serial);
        if let Some(index) = found {
            if let Some(version) = data.filter(|_| self.is_exclusive) {
                self.stored = version;
                turn.act(Action::Store { page: self.page, version });
            }
            let was_exclusive = std::mem::replace(&mut self.is_exclusive, false);
            if !kept {
                self.holders.remove(index);
            } else if was_exclusive {
                self.holders[index].step = Holding::Held;
            }
        }
    }

    /// Its copies are gone, and it waits no more. Who was recalled for it is recalled anew for the next.
    fn on_dead(&mut self, node: NodeId) {
        self.queue.retain(|queued| queued.node != node);
        if let Ok(index) = self.holder(node) {
            self.holders.remove(index);
            self.is_exclusive = false;
        }
        for holder in self.holders.iter_mut().filter(|holder| holder.step == Holding::Recalled) {
            holder.step = Holding::Held;
        }
    }
}

impl Directory {
    pub(super) fn new(me: Address, stored: impl IntoIterator<Item = (PageNo, Version)>) -> Self {
        let mut entries: Vec<Entry> = stored.into_iter().map(|(page, version)| Entry::new(page, version)).collect();
        entries.sort_by_key(|entry| entry.page);
        Directory { me, entries, serials: 0, surveying: Vec::new(), surveyed: Instant::ZERO }
    }

    /// Nothing is granted before all of these have given up what they hold.
    pub(super) fn survey(&mut self, living: impl Iterator<Item = NodeId>) {
        self.surveying = living.collect();
    }

    pub(super) fn stored(&self, page: PageNo) -> Version {
        self.index(page).map_or(Version::default(), |index| self.entries[index].stored)
    }

    pub(super) fn all_stored(&self) -> impl Iterator<Item = (PageNo, Version)> + '_ {
        let written = self.entries.iter().filter(|entry| entry.stored != Version::default());
        written.map(|entry| (entry.page, entry.stored))
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.surveying.is_empty() && self.entries.iter().all(Entry::is_quiet)
    }

    pub(super) fn on_message(&mut self, from: NodeId, message: Message, turn: &mut Turn) {
        match message {
            Message::Ask { page, mode, request, have } => {
                self.change(page, turn, |entry, turn| entry.on_ask(Asker { node: from, mode, request, have }, turn));
            }
            Message::Got { page, serial } => self.change(page, turn, |entry, _| entry.on_got(from, serial)),
            Message::GaveUp { page, serial, kept, data } => {
                let is_survey = self.surveying.contains(&from) && serial.incarnation < self.me.incarnation;
                self.change(page, turn, |entry, turn| match data.filter(|_| is_survey) {
                    Some(version) if version > entry.stored => {
                        entry.stored = version;
                        turn.act(Action::Store { page, version });
                    }
                    Some(_) => {}
                    None => entry.on_gave_up(from, serial, kept, data, turn),
                });
                if data.is_some() {
                    turn.send(from, Message::Taken { page, serial });
                }
            }
            Message::Surveyed => self.end_survey_of(from, turn),
            _ => {}
        }
    }

    pub(super) fn on_tick(&mut self, patience: Duration, turn: &mut Turn) {
        if turn.now.since(self.surveyed) >= patience && !self.surveying.is_empty() {
            self.surveyed = turn.now;
            self.surveying.iter().for_each(|node| turn.send(*node, Message::Survey));
        }
        for entry in self.entries.iter_mut().filter(|entry| !entry.is_quiet()) {
            if turn.now.since(entry.sent) < patience {
                continue;
            }
            entry.sent = turn.now;
            for index in 0..entry.holders.len() {
                match entry.holders[index].step {
                    Holding::Granted { .. } => entry.tell_granted(index, turn),
                    Holding::Held => {}
                    Holding::Recalled => entry.tell_recalled(index, turn),
                }
            }
        }
    }

    pub(super) fn on_dead(&mut self, node: NodeId, turn: &mut Turn) {
        self.entries.iter_mut().for_each(|entry| entry.on_dead(node));
        self.end_survey_of(node, turn);
        self.entries.retain(|entry| !entry.is_idle());
    }

    fn end_survey_of(&mut self, node: NodeId, turn: &mut Turn) {
        self.surveying.retain(|other| *other != node);
        if self.surveying.is_empty() {
            for entry in &mut self.entries {
                entry.advance(self.me, &mut self.serials, turn);
            }
        }
    }

    fn index(&self, page: PageNo) -> Result<usize, usize> {
        self.entries.binary_search_by_key(&page, |entry| entry.page)
    }

    fn change(&mut self, page: PageNo, turn: &mut Turn, change: impl FnOnce(&mut Entry, &mut Turn)) {
        let index = self.index(page).unwrap_or_else(|index| {
            self.entries.insert(index, Entry::new(page, Version::default()));
            index
        });
        let entry = &mut self.entries[index];
        change(entry, turn);
        if self.surveying.is_empty() {
            entry.advance(self.me, &mut self.serials, turn);
        }
        if entry.is_idle() {
            self.entries.remove(index);
        }
    }
}
