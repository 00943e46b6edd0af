//! Which other nodes live: what is done when one is met, is connected, or has ended.

use kernel::Processor;
use policy::coherence::{Address, Incarnation, NodeId, PageNo};

use crate::Shared;
use crate::core::Core;
use crate::hello::Hello;
use crate::waiting::Content;
use crate::wire::{Header, Word};

impl Shared {
    /// A node lives, in this incarnation; from now on messages of it count.
    pub fn on_alive(&self, cpu: &Processor, address: Address) {
        let mut core = self.core.lock();
        let core = &mut *core;
        let known = core.met[usize::from(address.node.0)];
        if known.is_none_or(|known| known < address.incarnation) {
            // Without news of it until now, the one before is as good as any.
            let before = known.unwrap_or(Incarnation(address.incarnation.0.saturating_sub(1)));
            let before = Address { incarnation: before, ..address };
            let has_left = core.ends.left.remove(&address.node) == Some(before.incarnation);
            match known {
                // Its end was reported before, if it has had any.
                None if self.is_managed() => core.deaths.on_return(address.node),
                None => core.deaths.on_met(address.node),
                Some(_) if has_left => core.deaths.on_return(address.node),
                Some(_) => core.deaths.on_end(before),
            }
            core.met[usize::from(address.node.0)] = Some(address.incarnation);
            self.drop_uncached(cpu, core, PageNo(0), usize::MAX, true);
            let writers = core.node.dead_writers();
            let actions = core.node.on_alive(cpu.now(), address);
            let is_unmet = known.is_none() && !self.is_managed();
            if !has_left && (is_unmet || core.node.dead_writers() > writers) {
                self.tell_loss(core, before);
            }
            self.note(core, actions, Content::None);
        }
        self.drive(cpu, core);
        self.changed.wake_all();
    }

    /// A node was declared dead, and must not run any more.
    pub fn on_dead(&self, cpu: &Processor, address: Address) {
        let has_left = {
            let mut core = self.core.lock();
            let has_left = core.ends.left.remove(&address.node) == Some(address.incarnation);
            if !has_left {
                core.deaths.on_end(address);
            }
            has_left
        };
        self.on_end(cpu, address, has_left);
        if self.is_managed() {
            let met = &mut self.core.lock().met[usize::from(address.node.0)];
            if *met == Some(address.incarnation) {
                *met = None;
                self.links[usize::from(address.node.0)].end_any();
            }
        }
    }

    /// A node has ended: what it held and did not store is gone. In order, it has stored all.
    pub(crate) fn on_end(&self, cpu: &Processor, address: Address, in_order: bool) {
        let mut core = self.core.lock();
        let core = &mut *core;
        core.watch.forget(address.node);
        let writers = core.node.dead_writers();
        let actions = core.node.on_dead(cpu.now(), address);
        if !in_order && core.node.dead_writers() > writers {
            self.tell_loss(core, address);
        }
        self.note(core, actions, Content::None);
        self.drive(cpu, core);
        self.changed.wake_all();
    }

    /// A connection to a node was made. Returns its number.
    pub(crate) fn on_connected(&self, cpu: &Processor, address: Address, theirs: &Hello) -> u64 {
        let generation = {
            let core = &mut *self.core.lock();
            core.processes.insert(address.node, theirs.process.id);
            self.on_met(core, address);
            let mut first = self.news(core);
            // Before the survey is answered, and with it any flush. On storage that all reach, nothing is lost with a home.
            if self.config.shards.is_none() {
                first.extend(core.flushes.meet(address, theirs.first).map(Word::Unflushed));
            }
            first.extend(core.ends.word());
            self.counters.messages.add(first.len() as u64);
            // With the core's lock: a loss that is noted on another processor is among these, or is told after them.
            let header = |word| Header { from: self.me.incarnation, to: address.incarnation, word };
            self.links[usize::from(address.node.0)].begin(cpu, first.into_iter().map(header))
        };
        let since = cpu.now();
        self.report(Some(address.node), "is connected".into());
        if !self.is_managed() {
            self.on_alive(cpu, address);
        }
        let mut core = self.core.lock();
        let core = &mut *core;
        let actions = core.node.on_reconnected(cpu.now(), since);
        self.note(core, actions, Content::None);
        self.drive(cpu, core);
        // Flushes are asked for on this connection.
        self.changed.wake_all();
        generation
    }

    /// This node has met another one, or is told that somebody has, perhaps this one: then an earlier process of it had what it
    /// lost with its memory, and it hears of that before any survey is answered. Of homes what is news is passed on, since those
    /// who know may die before the other one is back. If nobody is left who knows, a disk in memory begins anew.
    pub(crate) fn on_met(&self, core: &mut Core, of: Address) {
        core.home.has_lost |= of.node == self.me.node && of.incarnation < self.first;
        let is_other = of.node != self.me.node && self.fixed_homes().any(|home| home == of.node);
        let known = core.first_met.get(&of.node);
        if self.config.shards.is_none() && is_other && known.is_none_or(|known| *known > of.incarnation) {
            core.first_met.insert(of.node, of.incarnation);
            self.tell_all(core, Word::Met(of));
        }
    }

    /// The number of peers that are connected.
    pub fn connected(&self) -> usize {
        self.links.iter().filter(|link| link.is_up()).count()
    }

    /// The incarnation of a node that was met last.
    pub(crate) fn met(&self, node: NodeId) -> Option<Incarnation> {
        self.core.lock().met.get(usize::from(node.0)).copied().flatten()
    }

    /// This home sees, or is told, that something may be lost with an end of another node.
    pub(crate) fn note_loss(&self, core: &mut Core, of: Address) {
        if let Some(met) = core.met.get(usize::from(of.node.0)) {
            core.deaths.on_loss(of, *met);
        }
    }

    /// As [`note_loss`](Self::note_loss), and all nodes are told.
    pub(crate) fn tell_loss(&self, core: &mut Core, of: Address) {
        self.note_loss(core, of);
        self.tell_all(core, Word::Died(of));
    }

    /// So many flushes of a home have failed. What is news is passed on: the home may die before it has told all.
    pub(crate) fn note_failures(&self, core: &mut Core, home: Address, failures: u64) {
        if core.flushes.failures.on_told(home, failures) {
            self.tell_all(core, Word::Failed { home, failures });
        }
    }

    /// Tells all nodes that are connected; the others hear of it when they are.
    pub(crate) fn tell_all(&self, core: &Core, word: Word) {
        let others = (0..core.met.len() as u16).map(NodeId).filter(|node| *node != self.me.node);
        others.for_each(|node| self.send_word(self.address_of(core, node), word, None));
    }

    /// A node that was not connected hears of all, before anything else.
    fn news(&self, core: &Core) -> Vec<Word> {
        let mut news: Vec<Word> = core.deaths.all_lossy().map(Word::Died).collect();
        if self.config.shards.is_some() {
            let failed = core.flushes.failures.all(self.me);
            news.extend(failed.map(|(home, failures)| Word::Failed { home, failures }));
        } else {
            let met =
                core.first_met.iter().map(|(node, incarnation)| Address { node: *node, incarnation: *incarnation });
            news.extend(met.map(Word::Met));
        }
        news
    }
}
