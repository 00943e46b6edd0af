//! A process of the host changed the file beside us: what the cache has of it goes, but for what clients wrote and the host
//! does not have.

use std::sync::atomic::Ordering;

use machine::Errno;
use policy::unit::BLOCK_BYTES;

use super::Volume;
use crate::processor::Processor;
use crate::request::Context;

impl Volume {
    /// Forgets what the cache has of the file, unless clients wrote it and the host does not have it for sure. `ask` tells
    /// how long the host's file is while nothing of ours is under way. Returns whether what is left is all our clients', and
    /// not yet the host's: otherwise some of it may be old, and this is to be done again.
    ///
    /// # Errors
    /// What `ask` says: then the cache is as it was.
    pub async fn follow_host(
        &self,
        cpu: &Processor,
        ask: impl Future<Output = Result<u64, Errno>>,
    ) -> Result<bool, Errno> {
        let _closed = self.gate.close().await;
        self.hand_over(cpu).await;
        let end = self.blocks_end.load(Ordering::Relaxed);
        let barrier = self.raise_barrier(0..end).await;
        self.until_quiet(cpu, 0..end).await;
        let asked = ask.await;
        if let Ok(size) = asked {
            self.forget_clean(cpu, 0..end).await;
            self.size.store(size.max(self.dirty_end()), Ordering::Release);
        }
        let is_all_ours = self.parts.is_empty() && self.state().unflushed.is_empty();
        drop(barrier);
        asked.map(|_| is_all_ours)
    }

    /// Gives the host the parts of blocks that clients wrote, and has it make durable what it was given: so that these blocks
    /// can be forgotten, too. What fails stays dirty, and is seen as it is here until it does not.
    async fn hand_over(&self, cpu: &Processor) {
        let context = self.with_export(Context::synchronous(cpu.job()));
        let failures = self.failures();
        for block in self.parts.dirty_blocks() {
            self.write_out_within(cpu, block..block + 1, context).await;
        }
        self.until_settled().await;
        if !self.state().unflushed.is_empty() {
            // Who asks for a flush is told of a failure.
            let _ = self.flush_device(cpu, context, failures).await;
        }
    }

    /// Where what clients wrote and the host does not have yet ends. Bytes.
    fn dirty_end(&self) -> u64 {
        let state = self.state();
        let last = [state.dirty.all(), &state.writing].into_iter().filter_map(|set| set.last()).max();
        last.map_or(0, |last| ((last + 1) * BLOCK_BYTES).min(self.size()))
    }
}
