//! What a home has flushed before it gives up a shard need not be given to the next one.
//!
//! It says so ([`Word::Durable`]) before any other node can become the home. Whoever does not hear that in time, or has heard that
//! a flush of this home has failed, so that the device may have dropped something, gives to the next home what it has, as
//! when a home has died ([`uncertain`](crate::uncertain)): with a large cache that may be gigabytes.

use std::collections::BTreeSet;
use std::ops::Range;

use policy::coherence::{Address, Home, Incarnation, PageNo, PageSet, ShardNo};

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
