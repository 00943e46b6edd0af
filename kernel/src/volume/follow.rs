//! Follows changes of a file by processes of the host: drops what is cached, except what clients wrote and the host
//! does not have.

use std::sync::atomic::Ordering;

use machine::Errno;
use policy::unit::{BlockNo, ByteOffset};

use super::Volume;
use crate::processor::Processor;
use crate::request::Context;

impl Volume {
    /// Drops the cached content of the file, except what clients wrote and the host may not have. `ask` returns the
    /// length of the host's file, and runs while nothing of ours is in flight. Returns whether everything that stays
    /// cached is dirty, in whole blocks: otherwise some of it may be stale, and this must be repeated.
    ///
    /// # Errors
    /// Those of `ask`: then the cache is unchanged.
    pub async fn follow_host(
        &self,
        cpu: &Processor,
        ask: impl Future<Output = Result<u64, Errno>>,
    ) -> Result<bool, Errno> {
        let _closed = self.gate.close().await;
        self.hand_over(cpu).await;
        let barrier = self.raise_barrier(BlockNo(0).to(BlockNo::MAX)).await;
        let all = BlockNo(0).to(self.blocks_end());
        self.until_quiet(cpu, all).await;
        let asked = ask.await;
        if let Ok(size) = asked {
            self.forget_clean(cpu, all).await;
            self.size.store(size.max(self.dirty_end().0), Ordering::Release);
        }
        let is_all_ours = self.parts.is_empty() && !self.state.lock().has_unflushed();
        drop(barrier);
        asked.map(|_| is_all_ours)
    }

    /// Writes the partly written blocks to the host and flushes them, so that they can be dropped, too. What fails
    /// stays dirty, and readers see the cached block until a write of it succeeds.
    async fn hand_over(&self, cpu: &Processor) {
        let context = self.with_export(Context::synchronous(cpu.job()));
        let failures = self.failures();
        for block in self.parts.dirty_blocks() {
            self.write_out_within(cpu, block.run(1), context).await;
        }
        self.until_settled().await;
        // Also if a flush of others has just taken them: until it ends they stay.
        if self.state.lock().has_unflushed() {
            // The error is counted, and the next flush returns it.
            let _ = self.flush_device(cpu, context, failures).await;
        }
    }

    /// The end of what clients wrote and the host does not have yet.
    fn dirty_end(&self) -> ByteOffset {
        let state = self.state.lock();
        let last = [state.dirty.all(), &state.writing].into_iter().filter_map(|set| set.last()).max();
        last.map_or(ByteOffset(0), |last| (last + 1).start().min(self.volume_end()))
    }
}
