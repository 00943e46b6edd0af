//! What a home has flushed before it gives up a shard need not be given to the next one.
//!
//! It says so ([`Word::Durable`]) before any other node can become the home. Whoever does not hear that in time, or has heard that
//! a flush of this home has failed, so that the device may have dropped something, gives to the next home what it has, as
//! when a home has died ([`uncertain`](crate::uncertain)): with a large cache that may be gigabytes.

use policy::coherence::{Address, Home, Incarnation, PageNo, ShardNo};

use crate::Shared;
use crate::core::{Core, block};
use crate::wire::Word;

impl Shared {
    /// Tells all nodes, this one included, of which of these shards all is durable that this home has stored. It has released
    /// them, and flushed; it may have taken them back meanwhile.
    pub(crate) fn tell_durable(&self, shards: impl Iterator<Item = ShardNo>) {
        let core = &mut *self.core.lock();
        for shard in shards.filter(|_| !self.has_ended()) {
            let is_of_it = |page| self.config.policy().shard_of(page) == shard;
            let is_idle = core.pages.iter().all(|(page, entry)| !is_of_it(*page) || entry.has_no_steps());
            let is_flushed =
                |core: &Core| !core.flushes.home.unflushed.both().iter().any(|all| all.iter().any(is_of_it));
            if let Some(since) = core.node.released(shard)
                && is_idle
                && is_flushed(core)
            {
                self.tell_all(core, Word::Durable { shard, since });
                self.note_durable(core, self.me, (shard, since));
            }
        }
    }

    /// What this node has of a shard is durable, if its home has it.
    pub(crate) fn note_durable(&self, core: &mut Core, from: Address, (shard, since): (ShardNo, Incarnation)) {
        let is_home = core.node.shard_home(shard) == Some(Home { at: from, since });
        let Some(volume) = self.volume().filter(|_| is_home && !core.flushes.failures.has_failed(from)) else { return };
        let pages = volume.unflushed_blocks().map(|block| PageNo(block.0));
        for page in pages.filter(|page| self.config.policy().shard_of(*page) == shard) {
            if core.is_stored(page) && !core.node.is_dirty(page) {
                core.flushes.unmark(page);
                volume.on_durable(block(page));
            }
        }
    }
}
