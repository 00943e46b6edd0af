//! What a home has flushed before it gives up a shard need not be given to the next one.
//!
//! It says so ([`Word::Durable`]) before any other node can become the home. Whoever does not hear that in time, or has heard that
//! a flush of this home has failed, so that the device may have dropped something, gives to the next home what it has, as
//! when a home has died ([`uncertain`](crate::uncertain)): with a large cache that may be gigabytes.
//!
//! Likewise, what a home that stays has flushed before it ends in order is not lost when it returns.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use kernel::Processor;
use policy::coherence::{Address, Home, Incarnation, PageNo, PageSet, ShardNo};
use policy::unit::Instant;

use crate::Shared;
use crate::core::{Core, block};
use crate::wire::Word;

impl Core {
    /// Those of some pages of which the home may not have what this node has.
    fn unstored(&self, pages: Range<PageNo>) -> BTreeSet<PageNo> {
        let leaving = self.pages.within(pages.clone()).filter(|(_, entry)| !entry.has_no_steps()).map(|(page, _)| page);
        let saving = self.saving.range(pages.clone()).map(|(page, _)| *page);
        self.node.unstored(pages).chain(leaving).chain(saving).collect()
    }
}

impl Shared {
    /// Tells the peers that this node ends, when all that it has stored for them as a home that stays is durable, unless that fails
    /// or lasts. While it flushes for the first time they get pages, and then only store what they have: otherwise that might never be.
    pub(crate) async fn say_bye(&self, cpu: &Processor) {
        let deadline = cpu.now() + self.config.timeout;
        let mut is_flushed = self.config.shards.is_none() && !self.config.is_volatile;
        loop {
            if is_flushed {
                is_flushed = self.flush_until(cpu, deadline).await;
            }
            // With the lock: nothing is stored and confirmed between. What is confirmed later they do not hear.
            let mut core = self.core.lock();
            core.home.is_leaving = true;
            let durable = is_flushed && core.flushes.home.durable == core.flushes.home.stored;
            if durable || !is_flushed {
                for link in self.links.iter().filter(|link| link.is_up()) {
                    link.push(self.me.incarnation, Incarnation::default(), Word::Bye { durable }, None);
                }
                return;
            }
        }
    }

    /// Flushes this home's storage. False: that fails, or does not end in time.
    async fn flush_until(&self, cpu: &Processor, deadline: Instant) -> bool {
        let Some(shared) = self.this.upgrade() else { return false };
        let (flushed, here) = (Arc::new(OnceLock::new()), cpu.clone());
        let result = Arc::clone(&flushed);
        cpu.spawn(async move {
            let is_durable = shared.make_durable(&here).await.is_ok();
            result.get_or_init(|| is_durable);
            shared.changed.wake_all();
        });
        self.until(cpu, deadline, |_| flushed.get().copied()).await.unwrap_or(false)
    }

    /// Tells all nodes, this one included, of which of these shards all is durable that this home has stored. It has released
    /// them, and flushed; it may have taken them back meanwhile.
    pub(crate) fn tell_durable(&self, shards: impl Iterator<Item = ShardNo>) {
        let core = &mut *self.core.lock();
        for shard in shards.filter(|_| !self.has_ended()) {
            let is_of_it = |page| self.config.policy().shard_of(page) == shard;
            let is_idle = core.pages.iter().all(|(page, entry)| !is_of_it(page) || entry.has_no_steps());
            let has_any = |all: &PageSet| {
                let next = |from| all.within(from..PageNo(u64::MAX)).next();
                self.config.policy().runs_with(shard, next).next().is_some()
            };
            let is_flushed = |core: &Core| !core.flushes.home.unflushed.both().into_iter().any(has_any);
            if let Some(since) = core.node.released(shard)
                && is_idle
                && is_flushed(core)
            {
                self.tell_all(core, Word::Durable { shard, since });
                self.note_durable(core, self.me, (shard, since));
            }
        }
    }

    /// What this node has of a shard is durable, if its home has it. With the state locked: what it has of other shards, perhaps
    /// millions of pages, is not looked at.
    pub(crate) fn note_durable(&self, core: &mut Core, from: Address, (shard, since): (ShardNo, Incarnation)) {
        let is_home = core.node.shard_home(shard) == Some(Home { at: from, since });
        let Some(volume) = self.volume().filter(|_| is_home && !core.flushes.failures.has_failed(from)) else { return };
        let next = |from| volume.first_unflushed(block(from)).map(|first| PageNo(first.0));
        for run in self.config.policy().runs_with(shard, next) {
            let unstored = core.unstored(run.clone());
            for unflushed in volume.unflushed_runs(block(run.start).to(block(run.end))) {
                let (mut from, end) = (PageNo(unflushed.start.0), PageNo(unflushed.end.0));
                for page in unstored.range(from..end).copied().chain([end]) {
                    core.flushes.unmark_all(from..page);
                    volume.on_durable(block(from).to(block(page)));
                    from = PageNo(page.0 + 1);
                }
            }
        }
    }
}
