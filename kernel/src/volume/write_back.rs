//! Write-back: dirty blocks trickle out, as the policy says.

use std::ops::Range;
use std::sync::{MutexGuard, PoisonError, Weak};
use std::time::Duration;

use policy::early::EarlyWrite;
use policy::unit::BLOCK_BYTES;
use policy::writeback::WriteBack;

use super::Volume;
use super::write_out::Claimed;
use crate::processor::Processor;
use crate::request::{Context, JobId};

/// How often the policy is asked.
const TICK: Duration = Duration::from_millis(100);

/// After a write failed, write-back waits so long before it tries again.
const RETRY: Duration = Duration::from_secs(1);

/// Beyond this part of the cache as it is, what is unflushed is flushed though more is to be written.
const UNFLUSHED_SHARE: u64 = 8;

/// Writes of one volume under way for write-back, at most. The queue decides which of them the disk gets.
const UNDER_WAY_MAX: usize = 64;

/// Writes back what is dirty, until the volume is closed.
pub(super) async fn run(cpu: Processor, volume: Weak<Volume>) {
    let Some(volume) = volume.upgrade() else { return };
    let mut policy = WriteBack::new(volume.kernel.config().write_back.clone());
    loop {
        volume.dirtied.until(|| (volume.is_closing() || volume.has_work()).then_some(())).await;
        if volume.is_closing() {
            return;
        }
        let failures = volume.state().failures;
        volume.write_some(&cpu, &mut policy).await;
        volume.flush_some(&cpu).await;
        let failed = volume.state().failures > failures;
        volume.pause(&cpu, if failed { RETRY } else { TICK }).await;
    }
}

/// What goes to the device at once because a flush will follow soon.
#[derive(Default)]
pub(super) struct Early {
    policy: EarlyWrite,
    /// Written, and not on its way yet. A task takes it when it is not empty.
    blocks: Vec<Range<u64>>,
}

impl Volume {
    /// Blocks have become dirty: has them written at once if a flush will follow soon, together with what else is
    /// written before this processor turns to its other tasks.
    pub(super) fn write_early(&self, cpu: &Processor, blocks: Range<u64>, context: Context) {
        if !self.kernel.config().write_back.smooth {
            return;
        }
        let is_first = {
            let mut early = self.early();
            if !early.policy.on_write() {
                return;
            }
            early.blocks.push(blocks);
            early.blocks.len() == 1
        };
        if is_first && let Some(volume) = self.this.upgrade() {
            let here = cpu.clone();
            cpu.spawn(async move { volume.start_early_writes(&here, context) });
        }
    }

    fn start_early_writes(&self, cpu: &Processor, context: Context) {
        let mut written = std::mem::take(&mut self.early().blocks);
        written.sort_unstable_by_key(|blocks| blocks.start);
        let neighbours = written.chunk_by(|before, after| before.end >= after.start);
        for run in neighbours.filter_map(|run| Some(run.first()?.start..run.iter().map(|blocks| blocks.end).max()?)) {
            let mut at = run.start;
            // What is being written at present, or is no longer dirty, is left to the flush.
            while let Claimed::Run(claim) = self.claim(at..run.end) {
                at = claim.blocks.end;
                self.start_write_out(cpu, claim, context);
            }
        }
    }

    pub(super) fn on_flush_asked(&self) {
        self.early().policy.on_flush();
    }

    fn early(&self) -> MutexGuard<'_, Early> {
        self.early.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes as many blocks as the policy asks for now, in the order of the disk, going round.
    async fn write_some(&self, cpu: &Processor, policy: &mut WriteBack) {
        let facts = self.kernel.dirty_facts();
        let all = policy.on_tick(cpu.now(), facts);
        let own = self.state().dirty.len();
        // The policy looks at the whole cache; each volume writes its share.
        let share = (u128::from(all) * u128::from(own)).div_ceil(u128::from(facts.dirty_blocks.max(1))) as u64;
        let mut left = if self.kernel.is_memory_short() { own } else { share.min(own) };
        let context = Context::asynchronous(JobId::default());
        let mut wrapped = false;
        while left > 0 && !self.is_closing() {
            let cursor = self.state().cursor;
            match self.claim(cursor..u64::MAX) {
                Claimed::Run(claim) => {
                    self.state().cursor = claim.blocks.end;
                    left = left.saturating_sub(claim.blocks.end - claim.blocks.start);
                    self.start_write_out(cpu, claim, context);
                    self.until_under_way(UNDER_WAY_MAX).await;
                }
                Claimed::Busy(block) => self.state().cursor = block + 1,
                Claimed::Nothing if wrapped => return,
                Claimed::Nothing => {
                    wrapped = true;
                    self.state().cursor = 0;
                }
            }
        }
    }

    /// Is there anything dirty, on its way, or unflushed?
    fn has_work(&self) -> bool {
        let state = self.state();
        !state.dirty.is_empty() || !state.unflushed.is_empty()
    }

    /// Flushes the device when nothing more is to be written, when what is unflushed takes too much of the cache, or when
    /// memory is short: what is unflushed cannot leave the cache.
    async fn flush_some(&self, cpu: &Processor) {
        let (unflushed, idle) = {
            let state = self.state();
            (state.unflushed.len(), state.dirty.is_empty() && state.under_way.is_empty())
        };
        let much = unflushed > self.kernel.frames().bytes_held() / BLOCK_BYTES / UNFLUSHED_SHARE;
        if unflushed == 0 || !(idle || much || self.kernel.is_memory_short()) {
            return;
        }
        self.until_settled().await;
        // An error is counted, and told to the next who asks for a flush.
        let _ = self.flush_device(cpu, Context::asynchronous(JobId::default()), self.failures()).await;
    }

    /// Waits for `duration`, or until memory is short.
    async fn pause(&self, cpu: &Processor, duration: Duration) {
        let end = cpu.now() + duration;
        let mut set = false;
        let wait = self.kernel.write_back_wait();
        std::future::poll_fn(|cx| {
            if !std::mem::replace(&mut set, true) {
                cpu.wake_at(end, cx.waker().clone());
            }
            std::task::Poll::Ready(())
        })
        .await;
        let began = cpu.now();
        let is_short = || self.kernel.is_memory_short() && cpu.now() > began;
        wait.until(|| (cpu.now() >= end || is_short() || self.is_closing()).then_some(())).await;
    }
}
