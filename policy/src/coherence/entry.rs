//! What a home records of a page: who holds it, who wants it.

use smallvec::SmallVec;

use super::pages::Exclusive;
use super::table::Record;
use super::{
    Action, Address, Forward, Incarnation, Message, Mode, NodeId, Outbox, PageNo, Places, Request, Serial, Storage,
    Version,
};
use crate::unit::Instant;

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) page: PageNo,
    pub(super) stored: Version,
    /// The only holder may write, or may have the last write.
    pub(super) is_exclusive: bool,
    /// What that holder writes under this grant is to be stored, though no other node wants the page.
    pub(super) is_to_store: bool,
    /// In order of node.
    pub(super) holders: SmallVec<[Holder; 1]>,
    /// Most pages are wanted by nobody most of the time.
    busy: Option<Box<Busy>>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Busy {
    /// In order of arrival; each node once.
    queue: Vec<Asker>,
    /// The grant that the only holder makes when it gives up the page.
    pub(super) promise: Option<Promise>,
    /// When the last unanswered message was sent.
    pub(super) sent: Instant,
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
    /// Granted to read by a node that has died since, so it may be the only one that has the last write; recalled.
    Orphaned,
}

/// A grant that the node makes which has the page. It counts from the moment when that gives up the page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Promise {
    pub(super) node: NodeId,
    pub(super) mode: Mode,
    pub(super) request: Request,
    pub(super) serial: Serial,
    /// It was asked for again: the home makes it, too.
    pub(super) is_lost: bool,
}

impl Promise {
    fn holder(self, step: Holding) -> Holder {
        let Promise { node, serial, request, .. } = self;
        Holder { node, serial, request, step, with_data: true }
    }
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
        self.is_at_rest()
    }
}

impl Entry {
    pub(super) fn new(page: PageNo, stored: Version) -> Self {
        Entry { page, stored, is_exclusive: false, is_to_store: false, holders: SmallVec::new(), busy: None }
    }

    /// Nothing is unanswered.
    pub(super) fn is_at_rest(&self) -> bool {
        let are_held = self.holders.iter().all(|holder| holder.step == Holding::Held);
        are_held && self.queue().is_empty() && self.promise().is_none()
    }

    pub(super) fn queue(&self) -> &[Asker] {
        self.busy.as_ref().map_or(&[], |busy| &busy.queue)
    }

    pub(super) fn busy(&mut self) -> &mut Busy {
        self.busy.get_or_insert_default()
    }

    /// Gives back what it needs only while something is unanswered.
    pub(super) fn rest(&mut self) {
        if self.is_quiet() {
            self.busy = None;
        }
    }

    pub(super) fn holder(&self, node: NodeId) -> Result<usize, usize> {
        self.holders.binary_search_by_key(&node, |holder| holder.node)
    }

    /// The only holder, which may write, and its grant.
    pub(super) fn writer(&self) -> Option<(NodeId, Serial)> {
        self.holders.first().filter(|_| self.is_exclusive).map(|holder| (holder.node, holder.serial))
    }

    pub(super) fn list_writer(&self, before: Option<(NodeId, Serial)>, exclusive: &mut Exclusive) {
        exclusive.change(self.page, before.map(|(node, _)| node), self.writer().map(|(node, _)| node));
    }

    pub(super) fn is_idle(&self) -> bool {
        self.holders.is_empty() && self.queue().is_empty() && self.stored == Version::default()
    }

    pub(super) fn promise(&self) -> Option<Promise> {
        self.busy.as_ref().and_then(|busy| busy.promise)
    }

    fn is_write_promised(&self) -> bool {
        self.promise().is_some_and(|promise| promise.mode == Mode::Write)
    }

    /// The grants to write that nodes have, or may have.
    pub(super) fn writers(&self) -> impl Iterator<Item = (NodeId, Serial)> {
        let promised = self.promise().filter(|promise| promise.mode == Mode::Write);
        self.writer().into_iter().chain(promised.map(|promise| (promise.node, promise.serial)))
    }

    fn send_grant(&self, index: usize, out: &mut Outbox) {
        let Holder { node, serial, request, with_data, step } = self.holders[index];
        let may_write = self.is_exclusive && step != Holding::Orphaned;
        let mode = if may_write { Mode::Write } else { Mode::Read };
        let data = with_data.then_some(self.stored);
        out.send(node, Message::Grant { page: self.page, mode, request, serial, data });
    }

    pub(super) fn send_recall(&self, index: usize, places: &Places, out: &mut Outbox) {
        let Holder { node, serial, request, step, .. } = self.holders[index];
        let next = self.queue().first().map(|first| first.mode);
        let next = self.promise().map(|promise| promise.mode).or(next);
        let is_to_stay = self.is_to_store || step == Holding::Orphaned;
        let retain = next.map_or(is_to_stay, |mode| mode == Mode::Read);
        let forward = self.promise().and_then(|Promise { node, request, serial, .. }| {
            let incarnation = places.members.of(node)?;
            Some(Forward { to: Address { node, incarnation }, request, serial })
        });
        out.send(node, Message::Recall { page: self.page, serial, request, retain, forward });
    }

    pub(super) fn on_ask(&mut self, asker: Asker, places: &Places, out: &mut Outbox) {
        let mut promise = self.busy.iter_mut().filter_map(|busy| busy.promise.as_mut());
        if let Some(promise) = promise.find(|own| own.node == asker.node && own.request >= asker.request) {
            promise.is_lost |= promise.request == asker.request;
            return;
        }
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
                // The grant was lost, and its recall may have been, too.
                self.send_grant(index, out);
                if matches!(holder.step, Holding::Recalled | Holding::Orphaned) {
                    self.send_recall(index, places, out);
                }
            }
            if asker.request <= holder.request {
                return;
            }
        }
        self.busy().queue.push(asker);
    }

    /// Serves queued requests as far as possible now.
    pub(super) fn advance(&mut self, term: Incarnation, places: &Places, numbers: &mut Numbers, out: &mut Outbox) {
        while let Some(first) = self.queue().first().copied().filter(|_| self.promise().is_none()) {
            if numbers.is_closed && first.mode == Mode::Write {
                self.busy().queue.remove(0);
                continue;
            }
            if numbers.forwarding && self.may_forward(first, places) {
                self.busy().queue.remove(0);
                let (Asker { node, mode, request, .. }, serial) = (first, numbers.next(term));
                self.busy().promise = Some(Promise { node, mode, request, serial, is_lost: false });
                return self.recall(0, places, out);
            }
            if !self.make_way(first, places, out) {
                return;
            }
            self.busy().queue.remove(0);
            let serial = numbers.next(term);
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
            self.recall(0, places, out);
        }
    }

    /// Whether the one that may write can send the page to who wants it: both are other nodes than this home.
    fn may_forward(&self, first: Asker, places: &Places) -> bool {
        let me = places.me.node;
        let [Holder { node, step: Holding::Held, .. }] = self.holders[..] else { return false };
        self.is_exclusive && !first.blank && ![me, first.node].contains(&node) && first.node != me
    }

    /// Recalls a holder, whether or not its grant has arrived.
    fn recall(&mut self, index: usize, places: &Places, out: &mut Outbox) {
        if self.holders.get(index).is_some_and(|holder| holder.step == Holding::Held) {
            self.holders[index].step = Holding::Recalled;
            self.busy().sent = out.now;
            self.send_recall(index, places, out);
        }
    }

    /// Recalls the holders that conflict with the first request; false if there are any.
    fn make_way(&mut self, first: Asker, places: &Places, out: &mut Outbox) -> bool {
        if first.mode == Mode::Read && !self.is_exclusive {
            return true;
        }
        let mut is_free = true;
        for index in 0..self.holders.len() {
            let Holder { node, step, .. } = self.holders[index];
            if node == first.node && step != Holding::Orphaned {
                continue;
            }
            is_free = false;
            self.recall(index, places, out);
        }
        is_free
    }

    /// The promised grant is made: the page was given up. `is_sent`: by the node that did, with the page.
    fn keep_promise(&mut self, is_sent: bool, out: &mut Outbox) {
        let Some(promise) = self.busy.as_mut().and_then(|busy| busy.promise.take()) else { return };
        let Err(index) = self.holder(promise.node) else { return };
        self.holders.insert(index, promise.holder(Holding::Held));
        self.is_exclusive = promise.mode == Mode::Write;
        if !is_sent || promise.is_lost {
            self.send_grant(index, out);
        }
        // Who may write returns the page anyhow.
        if is_sent && promise.mode == Mode::Read {
            out.send(promise.node, Message::Recorded { page: self.page, serial: promise.serial });
        }
    }

    pub(super) fn on_noted(&mut self, node: NodeId, serial: Serial) {
        self.holders.retain(|holder| (holder.node, holder.serial, holder.step) != (node, serial, Holding::Stored));
    }

    pub(super) fn on_gave_up(
        &mut self,
        (node, storage): (NodeId, Storage),
        serial: Serial,
        retained: bool,
        data: Option<Version>,
        forwarded: Option<NodeId>,
        out: &mut Outbox,
    ) {
        let found = self.holder(node).ok().filter(|index| self.holders[*index].serial == serial);
        if let Some(index) = found {
            let is_promised = self.promise().map(|promise| (promise.mode, forwarded == Some(promise.node)));
            if let Some(version) = data.filter(|_| self.is_exclusive) {
                self.stored = version;
                out.act(Action::Store { page: self.page, version });
            }
            let was_exclusive = std::mem::replace(&mut self.is_exclusive, false);
            self.is_to_store &= self.is_write_promised();
            if !retained && data.is_some() && storage == Storage::Shared {
                self.holders[index].step = Holding::Stored;
            } else if !retained {
                self.holders.remove(index);
            } else if was_exclusive && is_promised.is_none_or(|(mode, _)| mode == Mode::Read) {
                self.holders[index].step = Holding::Held;
            }
            match is_promised {
                // It stored of its own accord, and is still to give up its copy.
                Some((Mode::Write, _)) if retained => {}
                Some((_, is_sent)) => self.keep_promise(is_sent, out),
                None => {}
            }
        }
    }

    /// Whoever returns what was forwarded to it has it from the node that had the page before, whose answer is still to come.
    pub(super) fn on_early(&mut self, node: NodeId, serial: Serial, data: Option<Version>, out: &mut Outbox) {
        let is_its = |promise: &Promise| (promise.node, promise.serial) == (node, serial);
        let Some(promise) = self.promise().filter(|promise| is_its(promise) && data.is_some()) else { return };
        match promise.mode {
            Mode::Write => self.holders.clear(),
            Mode::Read => self.holders.iter_mut().for_each(|holder| holder.step = Holding::Held),
        }
        self.keep_promise(true, out);
        // Also of a reader, whose answer would otherwise bring nothing new.
        self.is_exclusive = true;
    }

    /// The node that was to make the promised grant has died, and may have made it. Then the one that has it may be the only
    /// one that has the last write; if not, it is granted what is stored.
    fn adopt(&mut self, promise: Promise, places: &Places, out: &mut Outbox) {
        let step = if promise.mode == Mode::Read { Holding::Orphaned } else { Holding::Held };
        self.holders.push(promise.holder(step));
        self.is_exclusive = true;
        self.busy().sent = out.now;
        self.send_grant(0, out);
        if step == Holding::Orphaned {
            self.send_recall(0, places, out);
        }
    }

    /// Its copies and its request are gone. Holders recalled for it are recalled anew for the next request.
    pub(super) fn on_dead(&mut self, node: NodeId, places: &Places, out: &mut Outbox) {
        self.busy.iter_mut().for_each(|busy| busy.queue.retain(|queued| queued.node != node));
        if self.promise().is_some_and(|promise| promise.node == node) {
            self.busy().promise = None;
        }
        if let Ok(index) = self.holder(node) {
            self.holders.remove(index);
            (self.is_exclusive, self.is_to_store) = (false, self.is_to_store && self.is_write_promised());
            if let Some(promise) = self.busy.as_mut().and_then(|busy| busy.promise.take()) {
                self.adopt(promise, places, out);
            }
        }
        if self.promise().is_none() {
            let recalled = self.holders.iter_mut().filter(|holder| holder.step == Holding::Recalled);
            recalled.for_each(|holder| holder.step = Holding::Held);
        }
    }
}

/// Numbers of grants.
pub(super) struct Numbers {
    pub(super) serials: u64,
    pub(super) forwarding: bool,
    pub(super) is_closed: bool,
}

impl Numbers {
    pub(super) fn next(&mut self, term: Incarnation) -> Serial {
        self.serials += 1;
        Serial { incarnation: term, count: self.serials }
    }
}
