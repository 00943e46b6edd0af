//! The state of a shared volume at this node, under one lock, and the steps in which it changes.
//!
//! The policy decides ([`coherence::Node`]); what it asks for is done here in its order, page by page. A step that must
//! wait for the home's own storage holds up its page, and those that are read or stored with it, not others: the policy
//! hears of further messages about the page only when it is done. Nothing else waits, so the lock is never held across a
//! wait, and no step waits for the network.
//! Lock order: this lock, then the volume's (a shard, …) and a link's queue.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use kernel::trace::Event;
use kernel::volume::Change;
use kernel::{FrameRef, Processor, Volume};
use machine::Errno;
use policy::coherence::{
    self, Action, Actions, Address, Copied, Envelope, Incarnation, Local, Message, Mode, NodeId, PageNo, PageSet,
    Version,
};
use policy::unit::{BlockNo, Instant};

use crate::Shared;
use crate::deaths::Deaths;
use crate::ends::Ends;
use crate::mapping::{Fault, Place, Table};
use crate::pages::Pages;
use crate::unflushed::Flushes;
use crate::waiting::{Answer, Content, Filling, Loaded, Page, Pending, Reader, Step, Wanted, Wish};
use crate::watch::{Part, Watch};
use crate::wire::Word;

pub(crate) struct Core {
    pub(crate) node: coherence::Node,
    pub(crate) pages: Pages,
    /// Bytes given up, until their home has them.
    pub(crate) saving: BTreeMap<PageNo, Saving>,
    /// Numbers them.
    pub(crate) saves: u64,
    /// Who waits for something to be stored is to look again, once what is done at a time is done.
    pub(crate) has_changed: bool,
    /// Pages that other nodes have sent, until their homes have them: the cache may evict them meanwhile.
    pub(crate) forwarded: BTreeMap<PageNo, (Instant, FrameRef)>,
    /// Pages that may have steps to do.
    pub(crate) due: VecDeque<PageNo>,
    /// The incarnation of each node that was met last.
    pub(crate) met: Vec<Option<Incarnation>>,
    /// Where homes stay: the incarnation of each other one that was met first, by this process or by those whom it has met.
    pub(crate) first_met: BTreeMap<NodeId, Incarnation>,
    /// The process of each that was connected last.
    pub(crate) processes: BTreeMap<NodeId, u64>,
    pub(crate) deaths: Deaths,
    /// Nodes that end in order, this one among them.
    pub(crate) ends: Ends,
    pub(crate) answers: Vec<Answer>,
    pub(crate) home: HomeState,
    pub(crate) flushes: Flushes,
    pub(crate) watch: Watch,
    /// Programs that have mapped the volume.
    pub(crate) mapped: Table,
    /// What threads of mappings that were stopped waited for, until it is recorded.
    pub(crate) stopped: Vec<(PageNo, Fault)>,
    /// Pages on their way into mappings; none while the state is not locked.
    pub(crate) filling: Vec<Filling>,
}

pub(crate) struct Saving {
    pub(crate) number: u64,
    /// `None`: the page was not cached. Then it is not dirty, unless it was abandoned.
    pub(crate) frame: Option<FrameRef>,
}

/// Of the pages whose home this node is.
#[derive(Default)]
pub(crate) struct HomeState {
    /// An earlier incarnation was met by others, and its storage ended with it: pages not stored since are lost.
    pub(crate) has_lost: bool,
    /// In storage that ends with the process: pages stored in this incarnation.
    pub(crate) stored: PageSet,
    /// A holder had abandoned what it wrote.
    pub(crate) lost: PageSet,
    /// Numbers stores.
    pub(crate) stores: u64,
    /// Those that are not done.
    pub(crate) storing: BTreeSet<u64>,
    pub(crate) wanted: Wanted,
}

impl HomeState {
    /// `content` goes with the action that takes it; stores are numbered.
    fn step(&mut self, action: Action, content: &mut Content) -> Step {
        let takes = matches!(action, Action::Access { .. } | Action::Store { .. });
        let content = if takes { std::mem::take(content) } else { Content::None };
        let mut store = None;
        if matches!(action, Action::Store { .. }) {
            self.stores += 1;
            self.storing.insert(self.stores);
            store = Some(self.stores);
        }
        Step { action, content, store }
    }
}

/// What the policy wants done about a page, and what came with the message that it answers.
pub(crate) struct Decided {
    pub(crate) actions: Actions,
    pub(crate) content: Content,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Done,
    /// A task goes on with it.
    Running,
}

pub(crate) fn block(page: PageNo) -> BlockNo {
    BlockNo(page.0)
}

impl Core {
    pub(crate) fn page(&mut self, page: PageNo) -> &mut Page {
        self.pages.entry(page)
    }

    /// Does a mapping wait for the page that can have it only with its content?
    fn lacks_content(&self, page: PageNo) -> bool {
        let first = self.pages.get(page).and_then(|entry| entry.faults.first());
        first.is_some_and(|fault| !fault.is_write || self.mapped.place(fault.no, page) != Some(Place::Read))
    }

    /// Does a mapping wait to write the page, before others wait to read it?
    fn wants_write(&self, page: PageNo) -> bool {
        self.pages.get(page).and_then(|entry| entry.faults.first()).is_some_and(|fault| fault.is_write)
    }

    /// This node writes a page that it may write.
    pub(crate) fn written(&mut self, page: PageNo, now: Instant) {
        // That it may is known: nothing is asked.
        let _ = self.node.on_local(now, Local::Write, page);
        self.page(page).unwritten = None;
    }

    /// Is it being given up?
    pub(crate) fn is_leaving(&self, page: PageNo) -> bool {
        self.pages.get(page).is_some_and(|entry| !entry.has_no_steps())
    }

    /// Has this node given up of the page what its home does not have yet?
    pub(crate) fn is_saving(&self, page: PageNo) -> bool {
        self.node.is_saving(page) || self.saving.contains_key(&page)
    }

    /// Does the home have all that this node gave up of the page?
    pub(crate) fn is_stored(&self, page: PageNo) -> bool {
        !self.is_leaving(page) && !self.is_saving(page)
    }

    /// How often something that was given up was stored.
    pub(crate) fn saved(&self) -> u64 {
        self.saves - self.saving.len() as u64
    }
}

impl Shared {
    /// Notes what the policy wants done. `content`: what came with the message that it answers.
    pub(crate) fn note(&self, core: &mut Core, actions: Actions, mut content: Content) {
        let mut surveyed = Vec::new();
        for action in actions {
            let page = match action {
                Action::Send(Envelope { message, to, .. }) => match message.page() {
                    Some(page) => page,
                    None if matches!(message, Message::Surveyed { .. }) => {
                        // Last: it is about all of them.
                        surveyed.push((to, message));
                        continue;
                    }
                    None => {
                        self.send_word(to, Word::page(message, false), None);
                        continue;
                    }
                },
                Action::Access { page, .. } | Action::Store { page, .. } => page,
                Action::Protect(page)
                | Action::Revoke(page)
                | Action::Discard(page)
                | Action::Saved(page)
                | Action::Lost(page) => page,
            };
            let step = core.home.step(action, &mut content);
            core.page(page).queued().steps.push_back(step);
            core.due.push_back(page);
        }
        surveyed.into_iter().for_each(|(to, message)| self.answer_survey(core, to, message));
    }

    /// Does what the policy wants done about a page that has no other steps to do.
    pub(crate) fn act(
        &self,
        cpu: &Processor,
        core: &mut Core,
        volume: &Arc<Volume>,
        page: PageNo,
        mut decided: Decided,
    ) {
        let mut actions = decided.actions.into_iter();
        while let Some(action) = actions.next() {
            let step = core.home.step(action, &mut decided.content);
            let store = step.store;
            if self.step(cpu, core, volume, page, step) == Progress::Running {
                let rest: Vec<Step> = actions.map(|action| core.home.step(action, &mut decided.content)).collect();
                let entry = core.page(page);
                (entry.is_running, entry.store) = (true, store);
                // Before those that were noted meanwhile.
                rest.into_iter().rev().for_each(|step| entry.queued().steps.push_front(step));
                return;
            }
            self.end_store(core, store);
        }
    }

    /// Does what can be done now.
    pub(crate) fn drive(&self, cpu: &Processor, core: &mut Core) {
        let Some(volume) = self.volume().filter(|_| !self.has_ended()) else { return };
        loop {
            while let Some(page) = core.due.pop_front() {
                self.pump(cpu, core, &volume, page);
            }
            if !self.ask_storage(cpu, core) {
                break;
            }
        }
        self.fill_last(cpu, core);
        self.send_answers(core);
        if std::mem::take(&mut core.has_changed) {
            self.changed.wake_all();
        }
    }

    pub(crate) fn pump(&self, cpu: &Processor, core: &mut Core, volume: &Arc<Volume>, page: PageNo) {
        loop {
            let Some(entry) = core.pages.get_mut(page) else { return self.settle(core, page) };
            if entry.is_running {
                return;
            }
            if let Some(step) = entry.queued.as_mut().and_then(|queued| queued.steps.pop_front()) {
                let store = step.store;
                if self.step(cpu, core, volume, page, step) == Progress::Running {
                    let entry = core.page(page);
                    (entry.is_running, entry.store) = (true, store);
                    return;
                }
                self.end_store(core, store);
                continue;
            }
            self.settle(core, page);
            let entry = core.pages.get_mut(page);
            let next = entry.and_then(|entry| entry.queued.as_mut()?.inbox.pop_front());
            if let Some((envelope, content)) = next {
                let actions = core.node.on_message(cpu.now(), envelope);
                self.act(cpu, core, volume, page, Decided { actions, content });
            } else if !self.want(cpu, core, volume, page) {
                core.pages.remove(page);
                return;
            }
        }
    }

    /// A step is done; whether it was a store is looked at.
    pub(crate) fn end_store(&self, core: &mut Core, store: Option<u64>) {
        core.has_changed |= store.is_some_and(|number| core.home.storing.remove(&number));
    }

    fn step(&self, cpu: &Processor, core: &mut Core, volume: &Arc<Volume>, page: PageNo, step: Step) -> Progress {
        match step.action {
            Action::Send(envelope) => self.send(cpu, core, page, envelope),
            Action::Access { mode, version, .. } => self.access(cpu, core, volume, page, (mode, version, step.content)),
            Action::Store { version, .. } => self.store(cpu, core, page, (version, step.content)),
            Action::Protect(_) => self.withdraw(cpu, core, volume, page, true),
            Action::Revoke(_) => self.withdraw(cpu, core, volume, page, false),
            Action::Lost(_) => {
                self.on_lost(core, page);
                Progress::Done
            }
            // What is retained is looked at when the steps are done.
            Action::Discard(_) | Action::Saved(_) => Progress::Done,
        }
    }

    fn send(&self, cpu: &Processor, core: &mut Core, page: PageNo, envelope: Envelope) -> Progress {
        let Envelope { to, message, .. } = envelope;
        let trace = |event| cpu.trace(event, self.whose(), page.0, to.node.0.into());
        let send = |frame: Option<FrameRef>, lost| self.send_word(to, Word::page(message, lost), frame);
        // Where homes move nothing is forwarded: the grant is this home's, also after it has released the shard.
        let is_own = self.config.shards.is_some() || core.node.is_home(page);
        if let Message::Grant { page, mode, .. } = message
            && is_own
        {
            core.watch.on_grant(page, to.node, mode);
        }
        match message {
            Message::Grant { data: Some(_), .. } if is_own => {
                if self.is_lost(core, page) {
                    self.note_granted(cpu, core, page, to);
                    send(None, true);
                    return Progress::Done;
                }
                self.read_home(core, page, Reader::Node(to, message))
            }
            // What was granted was recalled before it came, and nobody has written it: there is nothing to be had here.
            Message::Grant { data: Some(version), .. } if !core.node.retains(page, version) => Progress::Done,
            Message::GaveUp { serial, retained, data: Some(version), to: term, .. }
                if !core.node.retains(page, version) =>
            {
                let message = Message::GaveUp { page, serial, retained, data: None, to: term, forwarded: None };
                self.send_word(to, Word::page(message, false), None);
                Progress::Done
            }
            Message::GaveUp { data: Some(_), .. } | Message::Grant { data: Some(_), .. } => {
                let is_forwarded = matches!(message, Message::Grant { .. });
                if !is_forwarded {
                    self.touch(core, to, page);
                }
                let frame = core.saving.get(&page).and_then(|saving| saving.frame.clone());
                let lost = frame.is_none();
                if is_forwarded && !lost {
                    self.counters.forwards.add(1);
                    trace(Event::SharedForwarded);
                }
                send(frame, lost);
                Progress::Done
            }
            _ => {
                match message {
                    Message::Recall { forward, retain, .. } => {
                        forward.iter().for_each(|forward| self.note_forwarded(cpu, core, page, forward, retain));
                        core.watch.begin(Part::Holder, page, to.node, cpu.now());
                        self.counters.recalls.add(1);
                        trace(Event::SharedRecalled);
                    }
                    Message::Grant { .. } => {
                        self.note_granted(cpu, core, page, to);
                        trace(Event::SharedGranted);
                    }
                    Message::Ask { .. } => trace(Event::SharedAsked),
                    _ => {}
                }
                send(None, false);
                Progress::Done
            }
        }
    }

    /// A request of this node is granted.
    fn access(
        &self,
        cpu: &Processor,
        core: &mut Core,
        volume: &Arc<Volume>,
        page: PageNo,
        (mode, version, content): (Mode, Version, Content),
    ) -> Progress {
        if core.node.is_home(page) {
            core.watch.on_grant(page, self.me.node, mode);
        }
        self.expect_alone(core, page);
        let entry = core.page(page);
        let first = entry.waits_since().filter(|_| matches!(content, Content::Page(..)));
        self.counters.fetch.add(first.map(|since| cpu.now().since(since)));
        let needs_part = |pending: &Pending| matches!(pending.wish, Wish::Change(Change::Part { .. }));
        let needs_content = !entry.loads.is_empty() || entry.changes.iter().any(needs_part) || core.lacks_content(page);
        self.retain_forwarded(cpu, core, page, &content);
        let is_here = !matches!(content, Content::None) || volume.cached(block(page)).is_some();
        if !needs_content || is_here || !core.node.is_home(page) {
            self.granted(cpu, core, volume, page, (mode, version, content));
            return Progress::Done;
        }
        if self.is_lost(core, page) {
            self.granted(cpu, core, volume, page, (mode, version, Content::Lost));
            return Progress::Done;
        }
        self.read_home(core, page, Reader::Own(mode, version))
    }

    /// The content of a granted page is there, if it is needed: readers and writers have it at once, before a recall.
    pub(crate) fn granted(
        &self,
        cpu: &Processor,
        core: &mut Core,
        volume: &Arc<Volume>,
        page: PageNo,
        (mode, version, content): (Mode, Version, Content),
    ) {
        let is_lost = matches!(content, Content::Lost);
        let mut loaded = None;
        match content {
            Content::Page(content, durability) => {
                self.counters.fetches.add(1);
                match &content {
                    Loaded::Frame(frame) => self.cache(cpu, core, volume, page, (frame.clone(), durability)),
                    Loaded::Bytes(_) => volume.unload(block(page)),
                }
                core.page(page).finish_loads(page, &Ok(content.clone()));
                loaded = Some(content);
            }
            Content::Lost => {
                core.page(page).finish_loads(page, &Err(Errno::IO));
                self.fail_faults(cpu, core, page, |_| true);
            }
            Content::None => {}
        }
        let changed = if mode == Mode::Write { self.apply(core, volume, page, (loaded.clone(), is_lost)) } else { 0 };
        // What was changed is cached, and not what came.
        let loaded = loaded.as_ref().filter(|_| changed == 0);
        if mode == Mode::Write && changed == 0 {
            // Before a mapping may get it to write, which says so itself.
            core.node.unwritten(page, version);
            core.page(page).unwritten = Some(version);
        }
        self.serve_faults(cpu, core, volume, page, Some(loaded));
        if is_lost && changed == 0 && core.node.holds(page).is_some() && !core.node.is_waiting(page) {
            // What nobody has is not to be read.
            if let Ok(actions) = core.node.on_local(Instant::ZERO, Local::Drop, page) {
                self.note(core, actions, Content::None);
            }
        }
    }

    /// Asks for what the page's readers and writers wait for, or gives it to them; true if there is something to do.
    fn want(&self, cpu: &Processor, core: &mut Core, volume: &Arc<Volume>, page: PageNo) -> bool {
        let Some(entry) = core.pages.get(page) else { return false };
        let (writes, reads) = (!entry.changes.is_empty(), !entry.loads.is_empty());
        if !writes && !reads && entry.faults.is_empty() {
            return false;
        }
        let Copied { held, is_dirty, is_waiting, .. } = core.node.copied(page);
        if is_waiting {
            return false;
        }
        if let Some(is_more) = self.want_mapped(cpu, core, volume, page) {
            return is_more;
        }
        if writes && held == Some(Mode::Write) && self.write_held(cpu, core, volume, page) {
            return true;
        }
        if !writes
            && held.is_some()
            && reads
            && let Some(frame) = volume.cached(block(page))
        {
            core.page(page).finish_loads(page, &Ok(Loaded::Frame(frame)));
            return true;
        }
        if held.is_some() && is_dirty {
            // Written, and not cached any more: the volume has abandoned it.
            let entry = core.page(page);
            entry.finish_loads(page, &Err(Errno::IO));
            entry.changes.drain(..).for_each(|pending| pending.group.done(page, Err(Errno::IO)));
            self.fail_faults(cpu, core, page, |_| true);
            return true;
        }
        let needs_content = writes || reads || core.lacks_content(page);
        let is_cached = held.is_some() && (!needs_content || volume.cached(block(page)).is_some());
        let is_whole = |pending: &Pending| matches!(pending.wish, Wish::Change(Change::Whole(_)));
        let first = core.pages.get(page).and_then(|entry| entry.changes.front());
        let access = match first {
            None if core.wants_write(page) => Local::Write,
            None => Local::Read,
            Some(first) if is_whole(first) => Local::Overwrite,
            Some(_) => Local::Write,
        };
        let wants = [Some(Local::Drop).filter(|_| held.is_some() && !is_cached), Some(access)];
        let mut asked = false;
        for want in wants.into_iter().flatten() {
            if let Ok(actions) = core.node.on_local(cpu.now(), want, page) {
                asked |= !actions.is_empty();
                // Taking it from a mapping may take a while, and what follows comes after that.
                if core.is_leaving(page) {
                    self.note(core, actions, Content::None);
                } else {
                    self.act(cpu, core, volume, page, Decided { actions, content: Content::None });
                }
            }
        }
        asked
    }

    /// A grant leaves this home.
    pub(crate) fn note_granted(&self, cpu: &Processor, core: &mut Core, page: PageNo, to: Address) {
        self.counters.home.add(core.watch.end(Part::Home, page, to.node, cpu.now()));
    }
}
