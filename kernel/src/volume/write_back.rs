//! Write-back: dirty blocks trickle out, as the policy says.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError, Weak};
use std::time::Duration;

use policy::early::EarlyWrite;
use policy::pace::{self, Pace};
use policy::unit::{BLOCK_BYTES, Class};
use policy::writeback::{self, Admission, WriteBack};

use super::Volume;
use super::write_out::Claimed;
use crate::processor::Processor;
use crate::request::{Context, JobId};
use crate::trace::Event;

/// How often the policy is asked.
const TICK: Duration = Duration::from_millis(100);

/// How often while it hurries: the disk has something to do all the time, and others find a place in between.
const TICK_HURRIED: Duration = Duration::from_millis(10);

/// How often while writers wait for it.
const TICK_AWAITED: Duration = Duration::from_millis(1);

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
    let mut pace = Pace::new(pace::Config { age: policy.config().age, ..pace::Config::default() });
    loop {
        volume.dirtied.until(|| (volume.is_closing() || volume.has_work()).then_some(())).await;
        if volume.is_closing() {
            return;
        }
        follow_switches(&cpu, &mut policy);
        let failures = volume.state().failures;
        volume.follow_disk(&cpu, &mut pace, policy.config().smooth);
        // Before anything is tried again: what is on its way cannot be given up.
        volume.look_for_trouble(&cpu).await;
        volume.write_some(&cpu, &mut policy, &mut pace).await;
        volume.flush_some(&cpu);
        let failed = {
            let state = volume.state();
            state.failures > failures || state.is_flush_in_doubt()
        };
        volume.pause(&cpu, &policy, &pace, failed).await;
    }
}

/// What a volume may have dirty before anything is known of its disk.
pub(super) fn dirty_limit_at_first(smooth: bool) -> u64 {
    dirty_limit(&Pace::new(pace::Config::default()), smooth)
}

/// The classic update process knows no limit but that of the whole cache.
fn dirty_limit(pace: &Pace, smooth: bool) -> u64 {
    if smooth { pace.limit() } else { u64::MAX }
}

fn follow_switches(cpu: &Processor, policy: &mut WriteBack) {
    let smooth = cpu.switches().smooth_write_back;
    if policy.config().smooth != smooth {
        let config = writeback::Config { smooth, ..policy.config().clone() };
        policy.set_config(config);
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
    /// Blocks have become dirty, of which some were cached before or none: has them written at once if that is
    /// better than later.
    pub(super) fn write_early(&self, cpu: &Processor, blocks: Range<u64>, were_cached: bool, context: Context) {
        if !cpu.switches().smooth_write_back {
            return;
        }
        let is_first = {
            let mut early = self.early();
            match early.policy.on_write(blocks.end - blocks.start, were_cached) {
                None => return,
                Some(Class::Asynchronous) => {
                    drop(early);
                    return self.start_streaming(cpu, blocks, Context { class: Class::Asynchronous, ..context });
                }
                Some(Class::Synchronous) => early.blocks.push(blocks),
            }
            early.blocks.len() == 1
        };
        // A flush will follow: with what else is written before this processor turns to its other tasks.
        if is_first && let Some(volume) = self.this.upgrade() {
            let here = cpu.clone();
            cpu.spawn_path(async move { volume.start_early_writes(&here, context) });
        }
    }

    /// Starts writing a part of a stream, unless the disk has enough to do: then it is left to write-back.
    fn start_streaming(&self, cpu: &Processor, blocks: Range<u64>, context: Context) {
        let mut at = blocks.start;
        while self.state().under_way.len() < UNDER_WAY_MAX
            && let Claimed::Run(claim) = self.claim(cpu.now(), at..blocks.end)
        {
            at = claim.blocks.end;
            self.start_write_out(cpu, claim, context);
        }
    }

    fn start_early_writes(&self, cpu: &Processor, context: Context) {
        let mut written = std::mem::take(&mut self.early().blocks);
        written.sort_unstable_by_key(|blocks| blocks.start);
        let neighbours = written.chunk_by(|before, after| before.end >= after.start);
        for run in neighbours.filter_map(|run| Some(run.first()?.start..run.iter().map(|blocks| blocks.end).max()?)) {
            let mut at = run.start;
            // What is being written at present, or is no longer dirty, is left to the flush.
            while let Claimed::Run(claim) = self.claim(cpu.now(), at..run.end) {
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

    /// What the disk has taken tells what the volume may have dirty.
    fn follow_disk(&self, cpu: &Processor, pace: &mut Pace, smooth: bool) {
        {
            let mut state = self.state();
            let is_behind = pace.is_behind(state.dirty.len());
            let written = state.busy.take(cpu.now(), is_behind);
            // What it refuses says nothing of how fast it is.
            if !state.is_in_trouble() {
                pace.on_written(written);
            }
        }
        let limit = dirty_limit(pace, smooth);
        if self.dirty_limit.swap(limit, Ordering::Relaxed) < limit {
            self.kernel.memory_wait().wake_all();
        }
    }

    /// Writes as many blocks as the policies ask for now, in the order of the disk, going round in laps.
    async fn write_some(&self, cpu: &Processor, policy: &mut WriteBack, pace: &mut Pace) {
        let facts = self.kernel.dirty_facts();
        let all = policy.on_tick(cpu.now(), facts);
        cpu.trace(Event::WriteBackTick, (JobId::default(), self.export()), facts.dirty_blocks, all);
        let (own, most, lap) = {
            let mut state = self.state();
            (state.dirty.len(), state.worth_trying(), state.dirty.on_tick(cpu.now()))
        };
        // One policy looks at the whole cache, of which each volume writes its share, the other at the volume.
        let share = (u128::from(all) * u128::from(own)).div_ceil(u128::from(facts.dirty_blocks.max(1))) as u64;
        let due = if policy.config().smooth { pace.on_tick(cpu.now(), lap) } else { 0 };
        let mut left = if self.kernel.is_memory_short() { own } else { share.max(due) }.min(most);
        // Of several who write to one volume, one is charged for all: whose a block is, nobody remembers.
        let context = Context::asynchronous(self.payer());
        let mut wrapped = 0;
        while left > 0 && !self.is_closing() {
            let cursor = self.state().dirty.cursor;
            match self.claim_old(cpu.now(), cursor..u64::MAX) {
                Claimed::Run(claim) => {
                    self.state().dirty.cursor = claim.blocks.end;
                    left = left.saturating_sub(claim.blocks.end - claim.blocks.start);
                    self.start_write_out(cpu, claim, context);
                    self.until_under_way(UNDER_WAY_MAX).await;
                }
                Claimed::Busy(block) => self.state().dirty.cursor = block + 1,
                Claimed::Nothing => {
                    let mut state = self.state();
                    state.dirty.cursor = 0;
                    match wrapped {
                        0 => {}
                        // Nothing of this lap is left but what is busy.
                        1 => state.dirty.turn(),
                        _ => return,
                    }
                    wrapped += 1;
                }
            }
        }
    }

    /// Is there anything dirty, on its way, or unflushed?
    fn has_work(&self) -> bool {
        let state = self.state();
        !state.dirty.is_empty() || !state.under_way.is_empty() || state.awaits_flush()
    }

    /// Has the device flushed when the last flush failed, and may not the next time, when nothing more is to be written, when what is unflushed takes too much of the cache, or
    /// when memory is short: what is unflushed cannot leave the cache. Writing goes on meanwhile.
    fn flush_some(&self, cpu: &Processor) {
        let (is_flushed, is_idle, is_in_doubt) = {
            let state = self.state();
            let is_idle = state.dirty.is_empty() && state.under_way.is_empty();
            (!state.awaits_flush(), is_idle || state.cleared.is_full(), state.is_flush_in_doubt())
        };
        let is_time = is_idle || is_in_doubt || self.is_much_unflushed() || self.kernel.is_memory_short();
        if is_flushed || self.flushes.is_running() || !is_time {
            return;
        }
        let Some(volume) = self.this.upgrade() else { return };
        let here = cpu.clone();
        cpu.spawn_path_for(self.payer(), async move {
            // An error is counted, and told to the next who asks for a flush.
            let context = Context::asynchronous(here.job());
            let _ = volume.flush_device(&here, context, volume.failures()).await;
        });
    }

    fn is_much_unflushed(&self) -> bool {
        self.state().unflushed.len() > self.kernel.frames().bytes_held() / BLOCK_BYTES / UNFLUSHED_SHARE
    }

    /// Waits for the next tick. It comes early when somebody waits for it, unless the device just `failed`.
    async fn pause(&self, cpu: &Processor, policy: &WriteBack, pace: &Pace, failed: bool) {
        let facts = self.kernel.dirty_facts();
        let tick = match failed {
            true => RETRY,
            false if policy.is_behind(facts) || self.is_much_unflushed() => TICK_HURRIED,
            false if policy.config().smooth && pace.is_behind(self.dirty_blocks()) => TICK_HURRIED,
            false => TICK,
        };
        let (end, early) = (cpu.now() + tick, cpu.now() + if failed { RETRY } else { TICK_AWAITED });
        let is_short = || policy.admit(self.kernel.dirty_facts()) == Admission::Wait || self.is_at_limit();
        let is_awaited = || self.kernel.is_write_back_awaited() || is_short();
        let mut timers = Some([early, end]);
        let set_timers = std::future::poll_fn(|cx| {
            timers.take().into_iter().flatten().for_each(|at| cpu.wake_at(at, cx.waker().clone()));
            std::task::Poll::Ready(())
        });
        set_timers.await;
        let is_over = || cpu.now() >= end || cpu.now() >= early && is_awaited();
        self.kernel.write_back_wait().until(|| (is_over() || self.is_closing()).then_some(())).await;
    }
}
