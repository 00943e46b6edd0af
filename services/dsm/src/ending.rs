//! Nodes that end in order, one by one or all at about the same time.
//!
//! A node that ends stores first what it has written, for which it needs the homes. Where homes stay with their nodes, a home
//! that ends has returned to it, too, what others may have written of its pages: who ends later could not store that any more.
//! Those that end together are homes for each other. Each goes on as one until the others have stored what they wrote
//! ([`Word::Ending`]), so none waits for another that waits for it. All waits are bounded by a timeout without progress.
//!
//! What a home in memory has ends with it: nothing is returned to it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow::{Break, Continue};

use kernel::{FRAME_BYTES, Processor};
use machine::Errno;
use policy::coherence::{Envelope, Message, Mode, NodeId, PageNo, ShardNo};

use crate::Shared;
use crate::core::{Core, block};
use crate::ends::Phase;
use crate::member::LAPSED;
use crate::wire::Word;

impl Shared {
    pub(crate) fn begin_to_leave(&self) {
        let core = &mut *self.core.lock();
        core.ends.own = Phase::Storing;
        self.tell_all(core, Word::Ending { has_stored: false });
    }

    /// This node, which has stored what it could, ends as a home.
    ///
    /// # Errors
    /// When its storage does not have all that others have given up, or not for good.
    pub async fn retire(&self, cpu: &Processor) -> Result<(), Errno> {
        {
            let core = &mut *self.core.lock();
            core.ends.own = Phase::Stored;
            self.tell_all(core, Word::Ending { has_stored: true });
        }
        if let Some(shards) = self.config.shards {
            self.retire_moving(cpu, shards).await;
            return Ok(());
        }
        if self.config.homes & 1 << self.me.node.0 == 0 {
            return Ok(());
        }
        if !self.until_leased(cpu).await {
            return self.retire_without_lease();
        }
        let are_in_time = self.until_others_have_stored(cpu).await.is_ok();
        if self.config.is_volatile {
            return Ok(());
        }
        let is_returned = self.have_returned(cpu, are_in_time).await;
        let durable = self.make_durable(cpu).await;
        let core = &mut *self.core.lock();
        self.tell_unreturned(core);
        let is_stored = core.home.storing.is_empty();
        let is_durable = is_stored && durable.is_ok() && core.flushes.home.is_durable();
        if is_durable && is_returned.is_ok() && !self.may_be_given_more(core) {
            self.tell_all(core, Word::Durable { shard: ShardNo(0), since: self.me.incarnation });
        }
        durable.and(if is_stored { Ok(()) } else { Err(Errno::IO) })
    }

    /// Without a lease this home stores and flushes nothing. If it has something to store, it waits: the lease may be renewed.
    async fn until_leased(&self, cpu: &Processor) -> bool {
        let is_owed = |core: &Core| {
            let owes = |node: &NodeId| self.links[usize::from(node.0)].is_up() && core.node.written_by(*node) > 0;
            !self.config.is_volatile && self.others().any(|node| owes(&node))
        };
        let is_over = |core: &Core| self.answers() || !(self.is_unflushed(core) || is_owed(core));
        let _ = self.until(cpu, cpu.now() + self.config.timeout, |core| is_over(core).then_some(())).await;
        self.answers()
    }

    fn is_unflushed(&self, core: &Core) -> bool {
        !self.config.is_volatile && (core.flushes.home.has_unflushed() || !core.home.storing.is_empty())
    }

    fn retire_without_lease(&self) -> Result<(), Errno> {
        let core = &*self.core.lock();
        if self.has_ended() || self.config.is_volatile {
            return Ok(());
        }
        self.tell_unreturned(core);
        if !self.is_unflushed(core) {
            return Ok(());
        }
        self.report(None, LAPSED.into());
        Err(Errno::IO)
    }

    /// The homes, a bit for each, that have ended, while this node ends: what it loads or changes there waits in vain. What it
    /// is to store or flush there waits for a timeout all the same.
    pub(crate) fn homes_in_vain(&self, core: &Core) -> u64 {
        if core.ends.own == Phase::Serving || self.config.shards.is_some() {
            return 0;
        }
        let is_dead = |node: NodeId| self.is_managed() && core.met[usize::from(node.0)].is_none();
        let gone = self.others().filter(|node| core.ends.left.contains_key(node) || is_dead(*node));
        gone.fold(0, |all, node| all | 1 << node.0)
    }

    /// Waits for the nodes that need this home to end, or to return what an earlier incarnation of it had granted.
    async fn until_others_have_stored(&self, cpu: &Processor) -> Result<(), Errno> {
        let needs = |core: &Core, node: NodeId| {
            let link = &self.links[usize::from(node.0)];
            link.is_ending() || (link.is_up() && core.node.is_surveying_node(node))
        };
        let left = |core: &Core| {
            let needing: Vec<NodeId> = self.others().filter(|node| needs(core, *node)).collect();
            if needing.is_empty() {
                return Break(());
            }
            // What others store, too, is no progress of these, but while nothing is granted before they have answered.
            let stores = if core.node.is_surveying() { core.home.stores } else { 0 };
            let written: usize = needing.iter().map(|node| core.node.written_by(*node)).sum();
            Continue((needing.len(), stores, written))
        };
        self.while_it_goes_on(cpu, left).await
    }

    /// Has all returned and stored that others may have written. `again`: those that begin to end meanwhile are waited for, too.
    async fn have_returned(&self, cpu: &Processor, again: bool) -> Result<(), Errno> {
        self.recall_for_good(cpu, Phase::Returning).await?;
        if again {
            let _ = self.until_others_have_stored(cpu).await;
        }
        // Who had asked before may be granted a page when another one returns it.
        while self.recall_for_good(cpu, Phase::Closed).await? {}
        Ok(())
    }

    /// Was there anything? Who is not connected is not waited for: it retains what it has, for when this home is back.
    async fn recall_for_good(&self, cpu: &Processor, phase: Phase) -> Result<bool, Errno> {
        {
            let core = &mut *self.core.lock();
            core.ends.own = phase;
            if phase == Phase::Closed {
                core.node.close();
            }
        }
        let mut awaited = self.recall_all(cpu, |node| node != self.me.node && self.links[usize::from(node.0)].is_up());
        awaited.of_connected = true;
        let is_any = !awaited.is_empty();
        self.until_all_stored(cpu, awaited, |_| false).await?;
        Ok(is_any)
    }

    /// May a node that is connected, perhaps only since all was returned, have written what this home does not have?
    fn may_be_given_more(&self, core: &Core) -> bool {
        let may_give = |node| core.node.written_by(node) > 0 || core.node.is_surveying_node(node);
        self.others().any(|node| self.links[usize::from(node.0)].is_up() && may_give(node))
    }

    /// Is it a request to write that this home, which ends, does not grant any more?
    pub(crate) fn has_no_grant_for(&self, core: &Core, envelope: &Envelope) -> bool {
        let is_over = match core.ends.own {
            Phase::Serving | Phase::Storing | Phase::Stored => false,
            Phase::Returning => !self.links[usize::from(envelope.from.node.0)].is_ending(),
            Phase::Closed => true,
        };
        is_over && matches!(envelope.message, Message::Ask { mode: Mode::Write, .. })
    }

    /// Tells people what this home has not got back.
    fn tell_unreturned(&self, core: &Core) {
        for node in self.others() {
            let pages = core.node.written_by(node);
            if pages > 0 {
                let why = if self.links[usize::from(node.0)].is_up() {
                    "has not stored"
                } else {
                    "is not connected to store"
                };
                let what = format!(
                    "{why} {} KiB that it may have written and whose home this node is: lost if it ends before this node is back",
                    kib(pages)
                );
                self.report(Some(node), what);
            }
        }
    }

    /// Tells people what this node could not store at the homes, which is lost with it.
    pub(crate) fn tell_unstored(&self) {
        let (Some(volume), false) = (self.volume(), self.has_ended() || self.has_stored_all()) else { return };
        let core = &*self.core.lock();
        let is_unstored = |page: &PageNo| core.node.is_dirty(*page) || volume.is_unwritten(block(*page));
        let held = core.node.held_from(PageNo(0)).map(|(page, _)| page).filter(is_unstored);
        let unstored: BTreeSet<PageNo> = held.chain(core.saving.keys().copied()).collect();
        let mut homes: BTreeMap<NodeId, usize> = core.flushes.touched.keys().map(|home| (*home, 0)).collect();
        let home = |page| self.config.policy().home(page).or_else(|| Some(core.node.home(page)?.at.node));
        unstored.into_iter().filter_map(home).for_each(|home| *homes.entry(home).or_default() += 1);
        for (home, pages) in homes {
            let why = match &self.links[usize::from(home.0)] {
                _ if home == self.me.node => "storage fails",
                _ if core.ends.left.contains_key(&home) => "has ended",
                link if link.is_up() => "does not store it",
                _ => "is not connected",
            };
            let what = match pages {
                0 => format!("{why}: what it has stored of this node was not flushed"),
                _ => format!("{why}: {} KiB written here whose home it is are lost", kib(pages)),
            };
            self.report(Some(home), what);
        }
    }

    fn others(&self) -> impl Iterator<Item = NodeId> {
        (0..self.links.len() as u16).map(NodeId).filter(|node| *node != self.me.node)
    }
}

fn kib(pages: usize) -> usize {
    pages * FRAME_BYTES / 1024
}
