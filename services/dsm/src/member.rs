//! A shared volume at a node that is a member of its cluster for as long as its lease lasts, while others decide who the
//! members are and, on storage that all nodes reach, which of them is the home of a shard (`policy::membership`).
//!
//! One [`Shared`] lives for one incarnation. While the lease does not last, nothing is answered ([`Lease`] is looked at
//! after the work, just before the answer: then what is answered was right while the node was still a member), no
//! message is acted upon, and nothing more is stored. If it is renewed in time, all goes on. A node that gets a new
//! incarnation [ends](Shared::end) what it has, with all its clients, and begins anew with another volume. Programs that have
//! mapped the volume are stopped as soon as the lease is over ([`Shared::on_lease_over`]): they ask nobody.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kernel::Processor;
use kernel::trace::Event;
use kernel::volume::Loss;
use machine::Errno;
use policy::coherence::{self, Address, Home, Incarnation, Node, NodeId, PageNo, ShardNo};
use policy::unit::BlockNo;

use crate::Shared;
use crate::core::{Core, HomeState};
use crate::waiting::{Content, Wanted};

/// After storage that all nodes reach could not be flushed by a home that gives up shards.
const RETRY: Duration = Duration::from_secs(1);

/// What people are told when a home ends so.
pub(crate) const LAPSED: &str = "the lease is over: what was stored here for other nodes was not flushed";

/// Requests to a volume that has ended.
pub(crate) const ENDED: Errno = Errno::SHUT_DOWN;

/// For how long this node is a member.
pub trait Lease: Send + Sync {
    /// Does it last now, in this incarnation? Called before every answer.
    fn lasts(&self) -> bool;
}

/// What a node begins an incarnation with.
pub struct Joined {
    pub lease: Box<dyn Lease>,
    /// The other members, with their names.
    pub members: Vec<(Address, String)>,
    /// Where homes move: all of the map.
    pub homes: Vec<(ShardNo, Home)>,
    /// The earlier incarnation of this process, which has ended: it has the same storage.
    pub before: Option<Arc<Shared>>,
}

impl Joined {
    /// All other nodes that there may be, with those that are members.
    pub(crate) fn others(&self, config: &coherence::Config, me: Address) -> Vec<(NodeId, Option<Incarnation>)> {
        let of = |node| self.members.iter().find(|(address, _)| address.node == node);
        let others = (0..config.nodes).map(NodeId).filter(|node| *node != me.node);
        others.map(|node| (node, of(node).map(|(address, _)| address.incarnation))).collect()
    }

    /// Of storage that is in this process's memory, what it has is known. Where homes move, this node is the home of nothing
    /// from before: what was lost here may have been written elsewhere since.
    pub(crate) fn home(&self) -> HomeState {
        let Some(before) = self.before.as_ref().filter(|before| before.config.shards.is_none()) else {
            return HomeState::default();
        };
        let core = before.core.lock();
        let (has_lost, stored, lost) = (core.home.has_lost, core.home.stored.clone(), core.home.lost.clone());
        HomeState { has_lost, stored, lost, ..HomeState::default() }
    }
}

impl Shared {
    /// Are members and their deaths reported from outside, and not found by connections?
    pub(crate) fn is_managed(&self) -> bool {
        self.lease.is_some()
    }

    /// Whether this node may answer now.
    pub fn answers(&self) -> bool {
        !self.has_ended() && self.lease.as_ref().is_none_or(|lease| lease.lasts())
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    pub fn address(&self) -> Address {
        self.me
    }

    /// A node is a member by this name from now on.
    pub fn on_joined(&self, cpu: &Processor, address: Address, name: &str) {
        self.names.lock().insert(address.node, name.to_owned());
        self.on_alive(cpu, address);
    }

    /// The map names these homes. It is none of a volume whose homes do not move.
    pub fn on_homes(&self, cpu: &Processor, homes: &[(ShardNo, Home)]) {
        if self.config.shards.is_none() {
            return;
        }
        let mut core = self.core.lock();
        let core = &mut *core;
        let is_moved = |(shard, home): &&(ShardNo, Home)| core.node.shard_home(*shard) != Some(*home);
        let (moved, same): (Vec<_>, Vec<_>) = homes.iter().partition(|named| is_moved(named));
        if !moved.is_empty() {
            // Another home has them, or had meanwhile: what was lost here may have been written there since.
            let has_moved = |page| moved.iter().any(|(shard, _)| *shard == self.config.policy().shard_of(page));
            core.home.lost.retain(|page| !has_moved(page));
            self.drop_uncached(cpu, core, PageNo(0), usize::MAX, true);
            for (shard, home) in &moved {
                cpu.trace(Event::SharedMoved, self.whose(), shard.0.into(), home.at.node.0.into());
            }
            let actions = self.give_again(cpu, core, moved);
            self.note(core, actions, Content::None);
        }
        for (shard, _) in same {
            let actions = core.node.take_back(cpu.now(), shard);
            self.note(core, actions, Content::None);
        }
        self.drive(cpu, core);
        self.changed.wake_all();
    }

    /// For tests. The home of a shard that the map has named last.
    pub fn home_of(&self, shard: ShardNo) -> Option<Home> {
        self.core.lock().node.shard_home(shard)
    }

    /// Does nothing more as the home of a shard, and returns when all that it stored is durable. Until then, however long
    /// the storage refuses that, no other node may become the home.
    pub async fn release(&self, cpu: &Processor, shard: ShardNo) {
        if self.config.shards.is_none() {
            return;
        }
        self.core.lock().node.release(shard);
        let is_of_it = |page| self.config.policy().shard_of(page) == shard;
        if self.until_durable(cpu, is_of_it, || self.has_ended()).await {
            self.tell_durable(std::iter::once(shard));
        }
    }

    /// As [`release`](Self::release), of all shards: this node is about to leave. Without a lease it may store nothing. That may be
    /// renewed; after a timeout it leaves, and others take over as when it has died.
    pub(crate) async fn retire_moving(&self, cpu: &Processor, shards: u16) {
        {
            let mut core = self.core.lock();
            (0..shards).for_each(|shard| core.node.release(ShardNo(shard)));
        }
        let lapsed = Cell::new(None);
        let is_over = || {
            let now = cpu.now();
            let since = if self.answers() { None } else { Some(lapsed.get().unwrap_or(now)) };
            lapsed.set(since);
            self.has_ended() || since.is_some_and(|since| now.since(since) >= self.config.timeout)
        };
        if self.until_durable(cpu, |_| true, is_over).await {
            self.tell_durable((0..shards).map(ShardNo));
        } else if !self.has_ended() && self.has_unflushed() {
            self.report(None, LAPSED.into());
        }
    }

    /// As the home of any page, also of what is about to be stored.
    fn has_unflushed(&self) -> bool {
        let core = self.core.lock();
        let unflushed = core.flushes.home.unflushed.both();
        unflushed.into_iter().any(|pages| !pages.is_empty())
            || core.pages.iter().any(|(_, entry)| !entry.has_no_steps())
    }

    /// False: it is over before.
    async fn until_durable(
        &self,
        cpu: &Processor,
        concerns: impl Fn(PageNo) -> bool,
        is_over: impl Fn() -> bool,
    ) -> bool {
        let is_idle =
            |core: &Core| core.pages.iter().filter(|(page, _)| concerns(*page)).all(|(_, entry)| entry.has_no_steps());
        self.changed.until(|| (is_over() || is_idle(&self.core.lock())).then_some(())).await;
        while !is_over() {
            let Err(errno) = self.flush_anew(cpu).await else { return true };
            if !is_over() {
                if self.answers() {
                    self.report(
                        None,
                        format!("shards cannot move: storage cannot be flushed: {errno}; it is tried again"),
                    );
                }
                cpu.sleep(RETRY).await;
            }
        }
        false
    }

    /// This incarnation is over: it answers nothing and holds nothing any more, and whoever waits gets an error. Returns
    /// when this is so; what the storage had begun to write may still be under way ([`take_over`](Self::take_over)).
    pub fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        let volume = self.volume();
        let mut core = self.core.lock();
        let core = &mut *core;
        for (page, entry) in core.pages.iter_mut() {
            entry.finish_loads(page, &Err(ENDED));
            entry.changes.drain(..).for_each(|pending| pending.group.done(page, Err(ENDED)));
            entry.queued = None;
        }
        self.stop_mappings(core);
        core.saving.clear();
        core.forwarded.clear();
        core.due.clear();
        core.home.wanted = Wanted::default();
        if let Some(volume) = volume {
            volume.restore_loss(&Loss { errno: ENDED, size: self.config.size, forgotten: None });
            for (page, _) in core.node.held_from(PageNo(0)) {
                drop(volume.give_up(BlockNo(page.0), false));
            }
            volume.stop();
        }
        self.links.iter().for_each(crate::link::Link::end_any);
        self.changed.wake_all();
    }

    /// Waits until nothing is under way in the storage that earlier incarnations of this process have begun, which have
    /// ended: it could be stored over what this one stores. Whatever flushes of theirs have failed, this one returns. To be
    /// called before it is served.
    pub async fn take_over(&self) {
        let Some(before) = self.before.lock().clone() else { return };
        before.until_quiet().await;
        if self.config.shards.is_none() {
            let core = before.core.lock();
            self.core.lock().flushes.home.inherit(&core.flushes.home, before.me.incarnation);
        }
        *self.before.lock() = None;
        self.changed.wake_all();
    }

    /// After the end: waits until nothing is under way in the storage, also of earlier incarnations.
    async fn until_quiet(&self) {
        let is_quiet = || self.performing.load(Ordering::SeqCst) == 0 && self.before.lock().is_none();
        self.changed.until(|| is_quiet().then_some(())).await;
    }
}

/// A node of the policy that begins as a member.
pub(crate) fn joined_node(config: coherence::Config, me: Address, joined: &Joined) -> Node {
    let others = joined.others(&config, me);
    Node::new(config, me, [], others)
}
