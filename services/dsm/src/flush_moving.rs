//! Flushing where homes move, on a device that all nodes reach.
//!
//! What was stored survives its home, and any node can make it durable. But while the home lives, only a flush of its own
//! certainly covers what it has stored, and only the home knows whether one has failed since ([`failed`](crate::failed)). So a
//! flush of what this node has stored asks those that have stored it, whether or not they are still homes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::{join, join_all};
use kernel::Processor;
use machine::Errno;
use policy::coherence::{Address, Incarnation, NodeId, ShardNo};

use crate::Shared;
use crate::core::Core;
use crate::unflushed::{Scope, Touched};
use crate::wire::Mark;

/// In a mark: some homes have moved.
pub(crate) const MOVED: u64 = 1;

/// Until a flush is tried again that met shards which moved.
const MOVING: Duration = Duration::from_millis(20);

/// What a flush has made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Covered {
    All,
    /// Of what those had stored that have died, perhaps not all.
    OfTheLiving,
}

impl Shared {
    /// Makes all that was stored for this node before, up to what was `saved`, durable. Who has died that had stored something may
    /// have failed to flush it, and the next home gets what nodes still have of that, this one or who has taken it from this one
    /// since: it is durable when all is that was acknowledged before at any node. That fails also for what others had written and
    /// lost.
    pub(crate) async fn flush_own_moving(&self, cpu: &Processor, shards: u16, saved: u64) -> Result<(), Errno> {
        loop {
            let touched = self.core.lock().flushes.touched_by(saved);
            let flushed = self.flush_touched(cpu, Scope::Own, touched, &BTreeSet::new()).await?;
            if flushed == Covered::All {
                return Ok(());
            }
            self.until_given_again(cpu, shards).await?;
            self.flush_moving(cpu, shards, saved).await?;
        }
    }

    /// Makes durable what this node had stored at nodes that it has `touched`. `asked`: those that have flushed since. Failures
    /// of which this node has heard are returned if it is for this node's own; otherwise that is left to the caller.
    async fn flush_touched(
        &self,
        cpu: &Processor,
        scope: Scope,
        touched: BTreeMap<NodeId, Touched>,
        asked: &BTreeSet<Address>,
    ) -> Result<Covered, Errno> {
        let is_asked = |node, incarnation| node == self.me.node || asked.contains(&Address { node, incarnation });
        let others = touched.iter().filter(|(node, at)| !is_asked(**node, at.last));
        let asks = others.map(async |(node, at)| {
            let stored = Mark { incarnation: at.last, failures: 0 };
            (*node, self.ask_flush(cpu, (*node, Scope::Own), stored).await)
        });
        let (mut own, answers) = join(self.flush_anew(cpu), join_all(asks)).await;
        let answers: BTreeMap<_, _> = answers.into_iter().collect();
        // Who has died meanwhile has perhaps not flushed; a flush that begins now covers what it had stored.
        let have_died = answers.values().any(|answer| matches!(answer, Ok((true, mark)) if mark.failures == MOVED));
        if have_died {
            own = own.and(self.flush_anew(cpu).await);
        }
        let mut result = own;
        let flushes = &mut self.core.lock().flushes;
        for (node, at) in touched {
            let flushed = match answers.get(&node) {
                Some(Ok((true, _))) => own,
                Some(Ok((false, _))) => Err(Errno::IO),
                Some(Err(errno)) => Err(*errno),
                None => own,
            };
            let has_failed = flushes.failures.are_since(node, at.known);
            let is_returned = has_failed && scope == Scope::Own;
            if is_returned || (!has_failed && flushed.is_ok()) {
                flushes.end(node, at);
            }
            result = result.and(if is_returned { Err(Errno::IO) } else { flushed });
        }
        result.map(|()| if have_died { Covered::OfTheLiving } else { Covered::All })
    }

    /// Need a flush not be answered? The map by which a home was asked is another one by now, or who had stored something has
    /// died: any node's flush covers that, but for what it had failed to flush before, which the next home gets.
    pub(crate) fn is_needless(&self, core: &Core, (home, scope): (NodeId, Scope), since: Mark) -> bool {
        match scope {
            Scope::All => core.node.seen() != since.incarnation,
            Scope::Own => self.incarnation_of(core, home) != since.incarnation,
        }
    }

    /// A flush of all nodes: asks the homes of one version of the map, which must be all nodes' until the end, or what
    /// moved meanwhile could be missed. What homes had stored that are none any more this node's own flush covers.
    pub(crate) async fn flush_moving(&self, cpu: &Processor, shards: u16, saved: u64) -> Result<(), Errno> {
        let mut deadline = cpu.now() + self.config.timeout;
        loop {
            let homes = |core: &Core| {
                let homes = (0..shards).map(|shard| core.node.shard_home(ShardNo(shard)).map(|home| home.at));
                let homes: BTreeSet<Address> = homes.collect::<Option<_>>()?;
                let lives = |home: &Address| self.address_of(core, home.node) == *home;
                homes.iter().all(lives).then(|| (core.node.seen(), homes))
            };
            let (seen, homes) = self.until(cpu, deadline, homes).await?;
            let since = Mark { incarnation: seen, failures: 0 };
            let touched = self.core.lock().flushes.touched_by(saved);
            let begin = cpu.now();
            let flushes = homes.iter().map(async |home| {
                if *home == self.me {
                    Ok(self.flush_moving_home(cpu, self.me, seen).await)
                } else {
                    self.ask_flush(cpu, (home.node, Scope::All), since).await
                }
            });
            let mut is_over = true;
            for answer in futures_util::future::join_all(flushes).await {
                let (ok, mark) = answer?;
                is_over &= mark == since;
                if !ok {
                    return Err(Errno::IO);
                }
            }
            if is_over && self.core.lock().node.seen() == seen {
                // What those had stored that have died the homes were given before they answered.
                return self.flush_touched(cpu, Scope::All, touched, &homes).await.map(drop);
            }
            // The time in which homes worked does not count.
            deadline += cpu.now().since(begin);
            if cpu.now() >= deadline {
                return Err(Errno::IO);
            }
            cpu.sleep(MOVING).await;
        }
    }

    /// Has all stored, as the home of what the map of this term says, that others may have written. The mark is another
    /// one if the map has changed meanwhile, or is about to.
    pub(crate) async fn flush_moving_home(&self, cpu: &Processor, from: Address, seen: Incarnation) -> (bool, Mark) {
        let losses = self.core.lock().flushes.home.losses;
        let deadline = cpu.now() + self.config.timeout;
        let settled = |core: &Core| core.node.is_settled().then(|| core.node.seen());
        let settled_then = |core: &Core| settled(core).filter(|now| *now >= seen);
        let Ok(begun) = self.until(cpu, deadline, settled_then).await else { return (false, Mark::default()) };
        let has_moved = |core: &Core| settled(core) != Some(begun);
        let moved = || {
            let core = &mut *self.core.lock();
            // The flush goes on at other homes, which do not know that something was lost.
            if core.flushes.home.losses != losses {
                self.note_failure(core);
            }
            (true, Mark { incarnation: begun, failures: MOVED })
        };
        if begun != seen {
            return moved();
        }
        let (died, failures) = {
            let core = self.core.lock();
            (core.node.dead_writers(), core.flushes.home.failures)
        };
        let awaited = self.recall_all(cpu, |node| node != from.node);
        match self.until_all_stored(cpu, awaited, has_moved).await {
            Ok(true) => {}
            // Even if all is settled again: not all is stored.
            Ok(false) => return moved(),
            Err(_) => return (false, Mark::default()),
        }
        // A flush of a device may cover only what came from the same host.
        if self.make_durable(cpu).await.is_err() {
            return (false, Mark::default());
        }
        let core = self.core.lock();
        if has_moved(&core) {
            drop(core);
            return moved();
        }
        // What a node had written when it died is lost.
        let ok = core.node.dead_writers() == died && core.flushes.home.failures == failures;
        let ok = ok && core.flushes.home.losses == losses;
        (ok, Mark { incarnation: begun, failures: 0 })
    }
}
