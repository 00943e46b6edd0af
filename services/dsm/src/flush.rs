//! Flushing: what this node wrote, or what was acknowledged at any node, becomes durable at the homes.
//!
//! A home knows who may write its pages. So a flush of all nodes asks the homes only, all at once; each of them recalls
//! what other nodes may have written, for reading they retain it, stores it, and flushes its storage once for all that
//! ask at the time. If no other node may write anything, this costs one message to each home.
//!
//! A home whose process has died may have lost what it had stored and not flushed. Then whoever had stored something there
//! tells it so when it is back, before it answers a flush ([`Word::Unflushed`], before the survey ends), and the next flush of
//! each node fails, once: like a disk whose power failed, it has lost what was in its volatile cache. The same holds after a
//! flush of a home's storage has failed. What a node has been told of is a [`Mark`] of the home.
//!
//! A home says in its hello which incarnation was the first of its process. Whatever it stored since then it has, if its lease
//! was over meanwhile, too. But what was on its way to it then, whose sender has no copy any more, nobody can find: that counts
//! as lost.

use std::collections::VecDeque;
use std::ops::ControlFlow::{self, Break, Continue};
use std::time::Duration;

use kernel::Processor;
use kernel::volume::Known;
use machine::Errno;
use policy::coherence::{Address, NodeId, PageNo, Serial};
use policy::unit::Instant;

use crate::Shared;
use crate::core::Core;
use crate::flush_moving::MOVED;
use crate::link::Link;
use crate::mapping::Written;
use crate::member::ENDED;
use crate::unflushed::{Asked, Scope};
use crate::waiting::Content;
use crate::wire::{Mark, Word};

/// An unanswered flush is asked for again: the home may have ignored it. On a new connection it is asked for at once.
const AGAIN: Duration = Duration::from_secs(1);

impl Shared {
    /// Makes all that was stored for this node before durable. A client's write may be in a page that a mapping has taken over;
    /// what else programs have written is left to them: write-back flushes in the same way.
    pub(crate) async fn flush_own(&self, cpu: &Processor) -> Result<(), Errno> {
        self.store_mapped(cpu, Written::TakenOver).await?;
        let saved = self.until_saved(cpu).await?;
        if let Some(shards) = self.config.shards {
            return self.flush_own_moving(cpu, shards, saved).await;
        }
        let touched = self.core.lock().flushes.touched_by(saved);
        let flushes = touched.iter().map(|(home, at)| {
            let since = self.core.lock().flushes.own_mark(*home, at);
            self.flush_at(cpu, (*home, Scope::Own), since)
        });
        let mut result = Ok(());
        for ((home, at), flushed) in touched.iter().zip(futures_util::future::join_all(flushes).await) {
            match flushed {
                Ok(ok) => {
                    self.core.lock().flushes.end(*home, *at);
                    result = if ok { result } else { Err(Errno::IO) };
                }
                Err(errno) => result = Err(errno),
            }
        }
        result
    }

    /// Makes all that was acknowledged at any node before durable, except what this node has written and not given up.
    /// What its programs have written it gives up now.
    pub(crate) async fn flush_all(&self, cpu: &Processor) -> Result<(), Errno> {
        self.store_mapped(cpu, Written::All).await?;
        let saved = self.until_saved(cpu).await?;
        if let Some(shards) = self.config.shards {
            return self.flush_moving(cpu, shards, saved).await;
        }
        let touched = self.core.lock().flushes.touched_by(saved);
        let flushes = self.fixed_homes().map(|home| {
            let since = self.core.lock().flushes.mark(Scope::All, home);
            self.flush_at(cpu, (home, Scope::All), since)
        });
        let mut result = Ok(());
        for (home, flushed) in self.fixed_homes().zip(futures_util::future::join_all(flushes).await) {
            match flushed {
                Ok(true) => {
                    // What of this node's own is lost its next own flush returns.
                    let covered = touched.get(&home).filter(|at| at.lost.is_none());
                    covered.into_iter().for_each(|at| self.core.lock().flushes.end(home, *at));
                }
                Ok(false) => result = Err(Errno::IO),
                Err(errno) => result = Err(errno),
            }
        }
        result
    }

    pub(crate) fn fixed_homes(&self) -> impl Iterator<Item = NodeId> + Clone {
        let homes = self.config.homes;
        (0..self.config.nodes.len() as u16).map(NodeId).filter(move |home| homes & 1 << home.0 != 0)
    }

    /// May something be lost that was not `known` when a flush was asked for? It returns that now.
    pub(crate) fn take_lost(&self, known: Known) -> bool {
        let core = &mut *self.core.lock();
        if self.config.shards.is_some() {
            // Homes that are new, or had heard of a death before they were asked, say nothing of what was lost with it.
            return core.flushes.failures.take_new(known.failures) | core.deaths.are_since(known.deaths);
        }
        // What a node had written when it died is lost. Of members all ends are reported, whether or not they were met.
        let others = (0..self.config.nodes.len() as u16).map(NodeId);
        let others = others.filter(|node| !self.is_managed() && *node != self.me.node);
        let have_lost = core.deaths.have_lost_since(known.deaths, self.fixed_homes(), others);
        core.flushes.failures.take_new(known.failures) | have_lost
    }

    /// Have the homes all that was written here?
    pub(crate) fn has_stored_all(&self) -> bool {
        let is_clean = self.volume().is_none_or(|volume| volume.is_clean());
        let core = self.core.lock();
        is_clean && core.saving.is_empty() && core.forwarded.is_empty() && core.mapped.len() == 0
    }

    /// Waits until the homes have all that this node had given up before. Returns the number of the last of that.
    pub(crate) async fn until_saved(&self, cpu: &Processor) -> Result<u64, Errno> {
        let newest = self.core.lock().saves;
        let is_stored = |core: &Core| core.saving.values().all(|saving| saving.number > newest);
        self.until_none_left(cpu, |core| if is_stored(core) { 0 } else { core.saving.len() }).await?;
        Ok(newest)
    }

    /// Waits until each of these pages has been stored once: others may want them again and again. The timeout begins anew
    /// whenever something is that was given up before.
    pub(crate) async fn until_stored(
        &self,
        cpu: &Processor,
        pages: &[PageNo],
        is_stored: impl Fn(&Core, PageNo) -> bool,
    ) -> Result<(), Errno> {
        let mut left: VecDeque<PageNo> = pages.iter().copied().collect();
        let newest = self.core.lock().saves;
        let next = |core: &Core| {
            while left.pop_front_if(|page| is_stored(core, *page)).is_some() {}
            if left.is_empty() {
                return 0;
            }
            // One that is always busy when it is looked at does not hide the others.
            left.rotate_left(1);
            left.len() + newest.saturating_sub(core.saved()) as usize
        };
        self.until_none_left(cpu, next).await
    }

    /// Something is sent to a home to be stored, if it is connected: with the state locked, no connection begins.
    pub(crate) fn touch(&self, core: &mut Core, home: Address, page: PageNo) {
        if home == self.me || self.links.get(usize::from(home.node.0)).is_some_and(Link::is_up) {
            let number = core.saving.get(&page).map_or(core.saves, |saving| saving.number);
            core.flushes.touch(home, number);
        }
    }

    /// What this node had given up is lost, since its home has a new incarnation. That may have ended, too: then the next is told.
    pub(crate) fn on_lost(&self, core: &mut Core, page: PageNo) {
        core.saving.remove(&page);
        let Some(home) = self.config.policy().home(page) else { return };
        let now = core.node.home(page).map(|home| home.at);
        let lost = core.flushes.on_lost(home, now.map(|now| now.incarnation));
        now.into_iter().for_each(|now| self.send_word(now, Word::Unflushed(lost), None));
    }

    /// False: the home has lost something that was not flushed.
    async fn flush_at(&self, cpu: &Processor, (home, scope): (NodeId, Scope), since: Mark) -> Result<bool, Errno> {
        let answer = if home == self.me.node {
            Ok(self.flush_home(cpu, self.me, (scope, since)).await)
        } else {
            self.ask_flush(cpu, (home, scope), since).await
        };
        let (ok, mark) = answer?;
        self.core.lock().flushes.note_mark(scope, home, mark);
        Ok(ok)
    }

    /// The timeout begins anew whenever the home says that it is at work.
    pub(crate) async fn ask_flush(
        &self,
        cpu: &Processor,
        (home, scope): (NodeId, Scope),
        since: Mark,
    ) -> Result<(bool, Mark), Errno> {
        let number = self.core.lock().flushes.ask();
        let mut asked = None;
        let answer = self.while_it_goes_on(cpu, |core| {
            if self.config.shards.is_some() && self.is_needless(core, (home, scope), since) {
                return Break((true, Mark { failures: MOVED, ..since }));
            }
            if scope == Scope::Own && core.flushes.is_durable(home, since.incarnation) {
                return Break((true, since));
            }
            let Asked { answer, heard } = core.flushes.answers.get(&number).copied().unwrap_or_default();
            let to = (self.address_of(core, home), self.links[usize::from(home.0)].generation());
            let is_asked = asked.is_some_and(|(of, at)| of == to && cpu.now().since(at) < AGAIN);
            if answer.is_none() && !is_asked {
                asked = Some((to, cpu.now()));
                let (to, _) = to;
                self.send_word(to, Word::Flush { number, all: scope == Scope::All, since }, None);
            }
            answer.map_or(Continue(heard), Break)
        });
        let answer = answer.await;
        self.core.lock().flushes.answers.remove(&number);
        answer
    }

    /// Flushes this home's storage for `from`. False if something was lost since that node heard of it last, or if others
    /// did not store in time what they wrote.
    async fn flush_home(&self, cpu: &Processor, from: Address, (scope, since): (Scope, Mark)) -> (bool, Mark) {
        let (losses, failures) = {
            let home = &self.core.lock().flushes.home;
            (home.losses, home.failures)
        };
        let deadline = cpu.now() + self.config.timeout;
        let is_ready = self.until(cpu, deadline, |core| (!core.node.is_surveying()).then_some(())).await;
        let mut is_stored = is_ready.is_ok();
        if is_stored {
            let died = self.core.lock().node.dead_writers();
            let awaited = match scope {
                Scope::Own => Awaited { grants: Vec::new(), changed: cpu.now(), of_connected: false },
                Scope::All => self.recall_all(cpu, |node| node != from.node),
            };
            is_stored = self.until_all_stored(cpu, awaited, |_| false).await.is_ok();
            // The node that asks may never have met one that died.
            is_stored &= scope == Scope::Own || self.core.lock().node.dead_writers() == died;
        }
        is_stored = is_stored && self.make_durable(cpu).await.is_ok();
        let home = &self.core.lock().flushes.home;
        if !is_stored && home.failures == failures {
            // Storage was not flushed: what is lost later is to be returned, too, that was stored by now.
            return (false, since);
        }
        let mark = Mark { incarnation: self.me.incarnation, failures: home.failures };
        is_stored &= scope == Scope::Own || home.losses == losses;
        (is_stored && !home.has_failed(self.first..=self.me.incarnation, scope, since), mark)
    }

    /// Recalls what these nodes may write, and returns that.
    pub(crate) fn recall_all(&self, cpu: &Processor, is_meant: impl Fn(NodeId) -> bool) -> Awaited {
        let mut core = self.core.lock();
        let core = &mut *core;
        let (mut grants, actions) = core.node.store_all(cpu.now(), is_meant);
        grants.reverse();
        self.note(core, actions, Content::None);
        self.drive(cpu, core);
        Awaited { grants, changed: cpu.now(), of_connected: false }
    }

    /// Waits until these grants are given up, and all is stored that was given up before. False: it ended because of
    /// `has_moved`.
    ///
    /// # Errors
    /// After a timeout in which none of it was.
    pub(crate) async fn until_all_stored(
        &self,
        cpu: &Processor,
        mut awaited: Awaited,
        has_moved: impl Fn(&Core) -> bool,
    ) -> Result<bool, Errno> {
        let are_given_up =
            |core: &Core| match awaited.left(core, cpu.now(), |node| self.links[usize::from(node.0)].is_up()) {
                _ if has_moved(core) => Break(None),
                0 => Break(Some(core.home.stores)),
                left => Continue(left),
            };
        let Some(newest) = self.while_it_goes_on(cpu, are_given_up).await? else { return Ok(false) };
        let are_stored = |core: &Core| match core.home.storing.first().copied() {
            _ if has_moved(core) => Break(false),
            Some(oldest) if oldest <= newest => Continue(oldest),
            _ => Break(true),
        };
        self.while_it_goes_on(cpu, are_stored).await
    }

    /// A flush is asked for, perhaps again.
    pub(crate) fn on_flush(&self, cpu: &Processor, from: Address, number: u64, (scope, since): (Scope, Mark)) {
        let (is_new, is_stuck) = {
            let home = &mut self.core.lock().flushes.home;
            // The other waits end by themselves.
            let is_stuck = home.running.is_some_and(|since| cpu.now().since(since) >= self.config.timeout);
            let is_lost = home.lost_for.get(&from.node).is_some_and(|last| (from.incarnation, number) <= *last);
            if scope == Scope::All && is_lost {
                return self.send_word(from, Word::Flushed { number, ok: false, mark: since }, None);
            }
            (home.requests.insert((from, number)), is_stuck)
        };
        if !is_new {
            if !is_stuck {
                self.send_word(from, Word::Flushing(number), None);
            }
            return;
        }
        let (Some(shared), here) = (self.this.upgrade(), cpu.clone()) else { return };
        cpu.spawn(async move {
            let losses = shared.core.lock().flushes.home.losses;
            let (ok, mark) = match shared.config.shards {
                Some(_) if scope == Scope::Own => (shared.make_durable(&here).await.is_ok(), since),
                Some(_) => shared.flush_moving_home(&here, from, since.incarnation).await,
                None => shared.flush_home(&here, from, (scope, since)).await,
            };
            {
                let home = &mut shared.core.lock().flushes.home;
                home.requests.remove(&(from, number));
                if scope == Scope::All && home.losses != losses {
                    let last = home.lost_for.entry(from.node).or_default();
                    *last = (from.incarnation, number).max(*last);
                }
            }
            shared.send_word(from, Word::Flushed { number, ok, mark }, None);
        });
    }

    /// Waits until `ready`, looked at whenever something was stored or answered, and with each tick.
    ///
    /// # Errors
    /// After the deadline.
    pub(crate) async fn until<T>(
        &self,
        cpu: &Processor,
        deadline: Instant,
        mut ready: impl FnMut(&Core) -> Option<T>,
    ) -> Result<T, Errno> {
        let look = || match ready(&self.core.lock()) {
            _ if self.has_ended() => Some(Err(ENDED)),
            Some(value) => Some(Ok(value)),
            None => (cpu.now() >= deadline).then_some(Err(Errno::IO)),
        };
        self.changed.until(look).await
    }

    /// Waits until nothing is left, looked at as by [`until`](Self::until). The timeout begins anew whenever less is left
    /// than ever before: much work may take long.
    ///
    /// # Errors
    /// After a timeout in which nothing was done.
    pub(crate) async fn until_none_left(
        &self,
        cpu: &Processor,
        mut left: impl FnMut(&Core) -> usize,
    ) -> Result<(), Errno> {
        let mut least = usize::MAX;
        let look = |core: &Core| {
            least = least.min(left(core));
            if least == 0 { Break(()) } else { Continue(least) }
        };
        self.while_it_goes_on(cpu, look).await
    }

    /// Waits until `look` breaks, called as by [`until`](Self::until). The timeout begins anew whenever it continues with
    /// another value.
    ///
    /// # Errors
    /// After a timeout with the same value.
    pub(crate) async fn while_it_goes_on<T, V: PartialEq>(
        &self,
        cpu: &Processor,
        mut look: impl FnMut(&Core) -> ControlFlow<T, V>,
    ) -> Result<T, Errno> {
        let (mut last, mut deadline) = (None, cpu.now());
        let look = || match look(&self.core.lock()) {
            _ if self.has_ended() => Some(Err(ENDED)),
            Break(value) => Some(Ok(value)),
            Continue(now) => {
                if last.as_ref() != Some(&now) {
                    (last, deadline) = (Some(now), cpu.now() + self.config.timeout);
                }
                (cpu.now() >= deadline).then_some(Err(Errno::IO))
            }
        };
        self.changed.until(look).await
    }
}

/// Grants that others are to give up, the first one last.
pub(crate) struct Awaited {
    grants: Vec<(PageNo, Serial)>,
    /// When fewer were left than before.
    changed: Instant,
    /// Who is not connected any more is not waited for.
    pub(crate) of_connected: bool,
}

impl Awaited {
    pub(crate) fn is_empty(&self) -> bool {
        self.grants.is_empty()
    }

    /// How many are there still. They go in their order, more or less: all are looked at only if the first stays long.
    fn left(&mut self, core: &Core, now: Instant, is_connected: impl Fn(NodeId) -> bool) -> usize {
        let before = self.grants.len();
        let counts = |node| !self.of_connected || is_connected(node);
        let is_there = |(page, serial): &(PageNo, Serial)| core.node.awaited(*page, *serial).is_some_and(&counts);
        while self.grants.pop_if(|last| !is_there(last)).is_some() {}
        if self.grants.len() == before && now.since(self.changed) >= AGAIN {
            self.grants.retain(is_there);
            self.changed = now;
        }
        if self.grants.len() < before {
            self.changed = now;
        }
        self.grants.len()
    }
}
