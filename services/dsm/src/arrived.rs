//! What a peer has sent.

#[cfg(test)]
pub(crate) mod tests;

use kernel::Processor;
use kernel::trace::Event;
use policy::coherence::{Address, Envelope, Incarnation, Message};

use crate::Shared;
use crate::core::{Core, Decided};
use crate::unflushed::Scope;
use crate::waiting::Content;
use crate::watch::Part;
use crate::wire::Word;

/// A message about a page, or about many.
pub(crate) struct Arrived {
    pub(crate) envelope: Envelope,
    pub(crate) content: Content,
}

impl Shared {
    /// Messages that have arrived together, in their order. What they bring for programs goes into their memory together.
    pub(crate) fn on_messages(&self, cpu: &Processor, messages: impl Iterator<Item = Arrived>) {
        let mut core = self.core.lock();
        let core = &mut *core;
        core.node.set_forwarding(cpu.switches().forwarding);
        messages.for_each(|arrived| self.on_message(cpu, core, arrived));
        self.drive(cpu, core);
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
            Word::Bye => {
                self.core.lock().ends.left.insert(from.node, from.incarnation);
                self.on_end(cpu, from, true);
            }
            Word::Beat | Word::Page { .. } => {}
        }
    }

    fn on_message(&self, cpu: &Processor, core: &mut Core, Arrived { envelope, content }: Arrived) {
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
