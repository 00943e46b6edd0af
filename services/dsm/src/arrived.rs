//! What a peer has sent.

#[cfg(test)]
pub(crate) mod tests;

use kernel::trace::Event;
use kernel::{Frames, Processor};
use policy::coherence::{Address, Asks, Envelope, Incarnation, Message};

use crate::Shared;
use crate::core::{Core, Decided};
use crate::run::{MESSAGES_MAX, Run};
use crate::unflushed::Scope;
use crate::waiting::{Content, Durability, Loaded};
use crate::watch::Part;
use crate::wire::{PAGE_BYTES, Word};

/// Messages about adjacent pages, or one message, and what came with them.
pub(crate) struct Arrived {
    pub(crate) from: Address,
    pub(crate) to: Address,
    pub(crate) run: Run,
    pub(crate) pages: Payload,
}

/// The pages that came with messages, in order.
pub(crate) enum Payload {
    None,
    Frames(Frames),
    /// No frames were free.
    Bytes(Vec<u8>),
}

impl Payload {
    fn page(&self, number: usize) -> Option<Loaded> {
        match self {
            Payload::None => None,
            Payload::Frames(frames) => frames.get(number).cloned().map(Loaded::Frame),
            Payload::Bytes(bytes) => bytes.chunks(PAGE_BYTES).nth(number).map(|page| Loaded::Bytes(page.into())),
        }
    }
}

impl Shared {
    /// Messages that have arrived together, in their order. What they bring for programs goes into their memory together.
    pub(crate) fn on_messages(&self, cpu: &Processor, messages: impl Iterator<Item = Arrived>) {
        let mut core = self.core.lock();
        let core = &mut *core;
        core.node.set_forwarding(cpu.switches().forwarding);
        let most = self.request_pages_max(cpu) as u64;
        let mut asks: Option<Asks> = None;
        for arrived in messages {
            let Arrived { from, to, run, .. } = arrived;
            match run.asks(from, to) {
                Some(next) if asks.as_mut().is_some_and(|asks| join(asks, &next, most)) => {}
                next => {
                    asks.take().into_iter().for_each(|asks| self.on_asks(cpu, core, &asks));
                    asks = next;
                    if asks.is_none() {
                        self.on_run(cpu, core, arrived);
                    }
                }
            }
        }
        asks.into_iter().for_each(|asks| self.on_asks(cpu, core, &asks));
        self.drive(cpu, core);
    }

    /// Another node wants to read adjacent pages. What cannot be granted in one step may be in smaller ones.
    fn on_asks(&self, cpu: &Processor, core: &mut Core, asks: &Asks) {
        if self.grant_run(cpu, core, asks) {
            return;
        }
        for some in asks.pieces(self.request_pages_max(cpu).min(MESSAGES_MAX) as u64) {
            if some == *asks || !self.grant_run(cpu, core, &some) {
                some.envelopes().for_each(|envelope| self.on_message(cpu, core, envelope, Content::None));
            }
        }
    }

    fn on_run(&self, cpu: &Processor, core: &mut Core, Arrived { from, to, run, pages }: Arrived) {
        if let (Some(grants), Payload::Frames(frames)) = (run.grants(from, to), &pages)
            && self.take_run(cpu, core, &grants, frames)
        {
            return;
        }
        for (number, header) in run.headers().enumerate() {
            let Word::Page { message, lost, unflushed } = header.word else { continue };
            let is_uncertain = unflushed && self.config.shards.is_some();
            let durability = if is_uncertain { Durability::Uncertain } else { Durability::Known };
            let content = match pages.page(number) {
                _ if lost => Content::Lost,
                Some(page) => Content::Page(page, durability),
                None => Content::None,
            };
            self.on_message(cpu, core, Envelope { from, to, message }, content);
        }
    }

    /// What is not about a page.
    pub(crate) fn on_word(&self, cpu: &Processor, (from, to): (Address, Incarnation), word: Word) {
        match word {
            // Of a flush that an earlier incarnation asked for: this one's have the same numbers.
            Word::Flushed { .. } | Word::Flushing(_) if to != self.me.incarnation => {}
            Word::Flush { number, all, since } => {
                let scope = if all { Scope::All } else { Scope::Own };
                self.on_flush(cpu, from, number, (scope, since));
            }
            Word::Unflushed(lost) => {
                let home = &mut self.core.lock().flushes.home;
                home.lost_at = home.lost_at.max(Some(lost));
            }
            Word::Flushed { number, ok, mark } => {
                self.core.lock().flushes.on_answer(number, ok, mark);
                self.changed.wake_all();
            }
            Word::Failed { home, failures } => {
                let may_fail = home.node != self.me.node && usize::from(home.node.0) < self.config.nodes.len();
                if may_fail && self.config.shards.is_some() {
                    self.note_failures(&mut self.core.lock(), home, failures);
                }
            }
            Word::Durable { shard, since } if self.config.shards.is_some() => {
                self.note_durable(&mut self.core.lock(), from, (shard, since));
            }
            Word::Durable { since, .. } => {
                self.core.lock().flushes.on_durable(Address { incarnation: since, ..from });
                self.changed.wake_all();
            }
            Word::Ending { has_stored } => {
                self.links[usize::from(from.node.0)].set_ending(!has_stored);
                self.changed.wake_all();
            }
            Word::Flushing(number) => {
                self.core.lock().flushes.on_work(number);
                self.changed.wake_all();
            }
            Word::Died(of) => {
                let mut core = self.core.lock();
                self.note_loss(&mut core, of);
            }
            Word::Met(of) => self.on_met(&mut self.core.lock(), of),
            Word::Bye => {
                self.core.lock().ends.left.insert(from.node, from.incarnation);
                self.on_end(cpu, from, true);
            }
            Word::Beat | Word::Page { .. } => {}
        }
    }

    fn on_message(&self, cpu: &Processor, core: &mut Core, envelope: Envelope, content: Content) {
        // What is not answered is repeated by its sender.
        if !self.answers() || self.has_no_grant_for(core, &envelope) {
            return;
        }
        let Some(page) = envelope.message.page() else {
            let actions = core.node.on_message(cpu.now(), envelope);
            return self.note(core, actions, content);
        };
        if page.0 >= self.config.policy().pages {
            return;
        }
        let Some(envelope) = self.possible(core, envelope, &content) else {
            let actions = core.node.ask_again(cpu.now(), page);
            return self.note(core, actions, Content::None);
        };
        let (node, now) = (envelope.from.node, cpu.now());
        match envelope.message {
            Message::Recall { .. } => {
                self.counters.invalidations.add(1);
                cpu.trace(Event::SharedInvalidated, self.whose(), page.0, node.0.into());
            }
            Message::Ask { .. } => core.watch.begin(Part::Home, page, node, now),
            Message::GaveUp { .. } => {
                self.counters.holder.add(core.watch.end(Part::Holder, page, node, now));
            }
            _ => {}
        }
        let waits = core.pages.get(page).is_some_and(|entry| !entry.has_no_steps() || entry.has_messages());
        match self.volume() {
            Some(volume) if !waits => {
                let actions = core.node.on_message(now, envelope);
                self.act(cpu, core, &volume, page, Decided { actions, content });
            }
            _ => core.page(page).take_in(envelope, content),
        }
        core.due.push_back(page);
    }
}

/// Joins what follows to requests of the same node, up to so many pages.
fn join(asks: &mut Asks, next: &Asks, most: u64) -> bool {
    let count = |asks: &Asks| asks.pages.end.0 - asks.pages.start.0;
    let is_next = next.pages.start == asks.pages.end && Some(next.first.0) == asks.first.0.checked_add(count(asks));
    let is_its = (asks.from, asks.to) == (next.from, next.to) && count(asks) + count(next) <= most;
    if is_next && is_its {
        asks.pages.end = next.pages.end;
    }
    is_next && is_its
}
