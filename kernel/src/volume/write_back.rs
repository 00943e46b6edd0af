//! Write-back: dirty blocks are written asynchronously, at the policies' rate.

use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use policy::early::EarlyWrite;
use policy::pace::{self, Pace};
use policy::unit::{BLOCK_BYTES, BlockNo, BlockRange, Class, Instant};
use policy::writeback::{self, Admission, WriteBack};

use super::Volume;
use super::flush::FLUSH_WRITES_MAX;
use super::write_out::{Claimed, Claims};
use crate::processor::Processor;
use crate::request::{Context, JobId};
use crate::trace::Event;

/// Period of the policy.
const TICK: Duration = Duration::from_millis(100);

/// Period while it hurries: keeps the disk busy and leaves gaps for other requests.
const TICK_HURRIED: Duration = Duration::from_millis(10);

/// Period while writers wait.
const TICK_AWAITED: Duration = Duration::from_millis(1);

/// Delay after a failed write.
const RETRY: Duration = Duration::from_secs(1);

/// A pause that ends so late: the process was stopped (SIGSTOP, a frozen container).
const STOPPED_AFTER: Duration = Duration::from_secs(5);

/// Unflushed blocks beyond this fraction of the cache's present size are flushed even if there is more to write.
const UNFLUSHED_SHARE: u64 = 8;

/// Writes in flight for write-back of one volume, at most. The disk queue decides which of them are issued.
const WRITE_BACK_WRITES_MAX: usize = 64;

/// Early writes of one task, at most: other tasks need the processor.
const WRITES_A_TASK: usize = 32;

/// The write-back of a volume: a task that runs while there is anything to write or flush.
#[derive(Default)]
pub(super) struct Task {
    is_running: AtomicBool,
    /// Woken when the volume is closed. Not by the list of all that wait for memory: of many volumes, one is closed.
    waker: AtomicWaker,
    /// Left by the last run.
    policies: Mutex<Option<Box<Policies>>>,
}

struct Policies {
    write_back: WriteBack,
    pace: Pace,
    /// Something was seen then that is written and not flushed.
    unflushed_since: Option<Instant>,
}

impl Policies {
    fn new(config: writeback::Config) -> Self {
        let pace = Pace::new(pace::Config { age: config.age, ..pace::Config::default() });
        Policies { write_back: WriteBack::new(config), pace, unflushed_since: None }
    }
}

async fn run(cpu: Processor, volume: Weak<Volume>) {
    let Some(volume) = volume.upgrade() else { return };
    volume.find_holes(&cpu).await;
    let left = volume.write_back.policies.lock().take();
    let mut policies = left.unwrap_or_else(|| Box::new(Policies::new(volume.memory.write_back().clone())));
    while !volume.is_closing() && volume.has_work() {
        let Policies { write_back, pace, unflushed_since } = &mut *policies;
        follow_switches(&cpu, write_back);
        let failures = volume.state.lock().failures;
        volume.follow_disk(&cpu, pace, write_back.config().smooth);
        // Before anything is tried again: what is in flight cannot be abandoned.
        volume.look_for_trouble(&cpu).await;
        volume.write_some(&cpu, write_back, pace).await;
        volume.flush_some(&cpu, unflushed_since);
        let failed = {
            let state = volume.state.lock();
            state.failures > failures || state.is_flush_in_doubt()
        };
        volume.pause(&cpu, write_back, pace, failed).await;
    }
    policies.unflushed_since = None;
    *volume.write_back.policies.lock() = Some(policies);
    volume.write_back.is_running.store(false, Ordering::SeqCst);
    // For what became dirty before the task was seen to have ended.
    if volume.has_work() {
        volume.start_write_back();
    }
}

/// The dirty limit before the disk's rate is known.
pub(super) fn dirty_limit_at_first(smooth: bool) -> u64 {
    dirty_limit(&Pace::new(pace::Config::default()), smooth)
}

/// The classic update process has only the limit of the whole cache.
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

/// Early writes: issued at once because a flush is expected soon.
#[derive(Default)]
pub(super) struct Early {
    policy: EarlyWrite,
    /// Written by clients, not yet issued. A task is scheduled whenever this is not empty.
    blocks: Vec<BlockRange>,
}

impl Early {
    pub(super) fn of_file() -> Self {
        Early { policy: EarlyWrite::of_file(), blocks: Vec::new() }
    }
}

impl Volume {
    /// Ends the task. Dirty blocks are abandoned.
    pub fn stop(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.write_back.waker.wake();
    }

    /// Starts the task, unless it runs.
    pub(super) fn start_write_back(&self) {
        let is_running = &self.write_back.is_running;
        if is_running.load(Ordering::SeqCst) || self.is_closing() || is_running.swap(true, Ordering::SeqCst) {
            return;
        }
        let this = Weak::clone(&self.this);
        self.home.start(move |cpu| cpu.clone().spawn_path(run(cpu, this)));
    }

    /// Small writes wait for the first flush, which carries them (as one call of NFS does).
    pub fn await_first_flush(&self) {
        self.early.lock().policy = EarlyWrite::new();
    }

    /// From now on, write-back that has nothing more to write flushes what has waited for `delay`: somebody else will have
    /// done so before, together with other volumes.
    pub fn delay_flushes(&self, delay: Duration) {
        self.flush_delay.store(u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// From now on the owner flushes, together with other volumes, what write-back has written; write-back does only after
    /// a failed flush, or while it has more to write than the cache bears.
    pub(crate) fn leave_flushes(&self) {
        self.delay_flushes(Duration::MAX);
    }

    fn leaves_flushes(&self) -> bool {
        self.flush_delay.load(Ordering::Relaxed) == u64::MAX
    }

    /// Is all of it on the device, and some not flushed?
    pub(crate) fn awaits_flush_only(&self) -> bool {
        let state = self.state.lock();
        state.dirty.is_empty() && state.under_way.is_empty() && state.awaits_flush()
    }

    /// Blocks have become dirty. Issues them at once if the policy prefers that. `were_cached`: were any of them?
    pub(super) fn write_early(&self, cpu: &Processor, blocks: BlockRange, were_cached: bool, context: Context) {
        if !cpu.switches().smooth_write_back {
            return;
        }
        let is_first = {
            let mut early = self.early.lock();
            match early.policy.on_write(blocks.len(), were_cached) {
                None => return,
                Some(Class::Asynchronous) => {
                    drop(early);
                    return self.start_streaming(cpu, blocks, Context { class: Class::Asynchronous, ..context });
                }
                Some(Class::Synchronous) => early.blocks.push(blocks),
            }
            early.blocks.len() == 1
        };
        // A flush is expected: batch what else is written before this processor runs its other tasks.
        if is_first && let Some(volume) = self.this.upgrade() {
            let here = cpu.clone();
            cpu.spawn_path(async move { volume.start_early_writes(&here, context) });
        }
    }

    /// Starts writing a part of a stream, unless enough is in flight: the rest is left to write-back.
    fn start_streaming(&self, cpu: &Processor, blocks: BlockRange, context: Context) {
        let mut at = blocks.start;
        while self.state.lock().under_way.len() < WRITE_BACK_WRITES_MAX
            && let Claimed::Run(claim) = self.claim(cpu.now(), at.to(blocks.end))
        {
            at = claim.blocks.end;
            self.start_write_out(cpu, claim, context);
        }
    }

    fn start_early_writes(&self, cpu: &Processor, context: Context) {
        let mut written = std::mem::take(&mut self.early.lock().blocks);
        if self.only_change().is_some() {
            // The flush that is expected writes it by force.
            return;
        }
        written.sort_unstable_by_key(|blocks| blocks.start);
        let neighbours = written.chunk_by(|before, after| before.end >= after.start);
        let mut claims = Claims::new();
        for run in neighbours.filter_map(|run| Some(run.first()?.start.to(run.iter().map(|blocks| blocks.end).max()?)))
        {
            let mut at = run.start;
            // Blocks being written, or no longer dirty, are left to the flush, as are more than it has in flight at a time.
            while self.state.lock().under_way.len() < FLUSH_WRITES_MAX
                && let Claimed::Run(claim) = self.claim(cpu.now(), at.to(run.end))
            {
                at = claim.blocks.end;
                claims.push(claim);
            }
        }
        while !claims.is_empty() {
            let rest = claims.drain(claims.len().min(WRITES_A_TASK)..).collect();
            self.start_write_outs(cpu, std::mem::replace(&mut claims, rest), context);
        }
    }

    pub(super) fn on_flush_asked(&self, callers: u32) {
        self.early.lock().policy.on_flushes(callers);
    }

    /// Adjusts the dirty limit to the rate of the disk.
    fn follow_disk(&self, cpu: &Processor, pace: &mut Pace, smooth: bool) {
        {
            let mut state = self.state.lock();
            let is_behind = pace.is_behind(state.dirty.len());
            let written = state.busy.take(cpu.now(), is_behind);
            // Refused writes are no measure of the disk's speed.
            if !state.is_in_trouble() {
                pace.on_written(written);
            }
        }
        let limit = dirty_limit(pace, smooth);
        if self.dirty_limit.swap(limit, Ordering::Relaxed) < limit {
            self.memory.memory_wait().wake_all();
        }
    }

    /// Writes as many blocks as the policies ask for now, in the disk's order, in passes.
    async fn write_some(&self, cpu: &Processor, policy: &mut WriteBack, pace: &mut Pace) {
        let facts = self.memory.dirty_facts();
        let all = policy.on_tick(cpu.now(), facts);
        cpu.trace(Event::WriteBackTick, (JobId::default(), self.export()), facts.dirty_blocks, all);
        let (own, most, volume) = {
            let mut state = self.state.lock();
            (state.dirty.len(), state.worth_trying(), state.dirty.on_tick(cpu.now()))
        };
        // One policy looks at the whole cache, of which each volume writes its share; the other at the volume.
        let share = (u128::from(all) * u128::from(own)).div_ceil(u128::from(facts.dirty_blocks.max(1))) as u64;
        let due = if policy.config().smooth { pace.on_tick(cpu.now(), volume) } else { 0 };
        let mut left = if self.memory.is_memory_short() { own } else { share.max(due) }.min(most);
        // One job is charged for all: the writer of each single block is not recorded.
        let context = Context::asynchronous(self.payer());
        let mut wrapped = 0;
        while left > 0 && !self.is_closing() {
            let cursor = self.state.lock().dirty.cursor;
            match self.claim_old(cpu.now(), cursor.to(BlockNo::MAX)) {
                Claimed::Run(claim) => {
                    self.state.lock().dirty.cursor = claim.blocks.end;
                    left = left.saturating_sub(claim.dirty_blocks());
                    self.start_write_out(cpu, claim, context);
                    self.until_under_way(WRITE_BACK_WRITES_MAX).await;
                }
                Claimed::Busy(block) => self.state.lock().dirty.cursor = block + 1,
                Claimed::Nothing => {
                    let mut state = self.state.lock();
                    state.dirty.cursor = BlockNo(0);
                    match wrapped {
                        0 => {}
                        // Only busy blocks of this pass are left.
                        1 => state.dirty.turn(),
                        _ => return,
                    }
                    wrapped += 1;
                }
            }
        }
    }

    /// Is anything dirty, in flight, or to be flushed by write-back?
    fn has_work(&self) -> bool {
        let state = self.state.lock();
        let flushes = || !self.leaves_flushes() || state.is_flush_in_doubt();
        !state.dirty.is_empty() || !state.under_way.is_empty() || state.awaits_flush() && flushes()
    }

    /// Starts a flush of the device if the last one failed, if there is nothing more to write and the delay is over, if
    /// unflushed blocks take too much of the cache, or if memory is short: unflushed blocks cannot be evicted. Writing
    /// continues meanwhile.
    fn flush_some(&self, cpu: &Processor, unflushed_since: &mut Option<Instant>) {
        let (is_flushed, is_written, is_full, is_in_doubt) = {
            let state = self.state.lock();
            let is_written = state.dirty.is_empty() && state.under_way.is_empty();
            (!state.awaits_flush(), is_written, state.cleared.is_full(), state.is_flush_in_doubt())
        };
        if is_flushed {
            *unflushed_since = None;
            return;
        }
        let delay = Duration::from_nanos(self.flush_delay.load(Ordering::Relaxed));
        let is_old = cpu.now().since(*unflushed_since.get_or_insert(cpu.now())) >= delay;
        let is_idle = is_written && is_old;
        let is_time = is_idle || is_full || is_in_doubt || self.is_much_unflushed() || self.memory.is_memory_short();
        if self.flushes.is_running() || !is_time {
            return;
        }
        // What is written from now on waits anew.
        *unflushed_since = None;
        let Some(volume) = self.this.upgrade() else { return };
        let here = cpu.clone();
        cpu.spawn_path_for(self.payer(), async move {
            // The error is counted, and the next flush returns it.
            let context = Context::asynchronous(here.job());
            let _ = volume.flush_device(&here, context, volume.failures()).await;
        });
    }

    fn is_much_unflushed(&self) -> bool {
        let state = self.state.lock();
        let share = self.memory.frames().bytes_held() / BLOCK_BYTES / UNFLUSHED_SHARE;
        state.unflushed.since().len() > share
    }

    /// Waits for the next tick, which is early if a writer waits for it, unless the device just `failed`.
    async fn pause(&self, cpu: &Processor, policy: &WriteBack, pace: &Pace, failed: bool) {
        let facts = self.memory.dirty_facts();
        let tick = match failed {
            true => RETRY,
            false if policy.is_behind(facts) || self.is_much_unflushed() => TICK_HURRIED,
            false if policy.config().smooth && pace.is_behind(self.dirty_blocks()) => TICK_HURRIED,
            false => TICK,
        };
        let (end, early) = (cpu.now() + tick, cpu.now() + if failed { RETRY } else { TICK_AWAITED });
        let is_short = || policy.admit(self.memory.dirty_facts()) == Admission::Wait || self.is_at_limit();
        // A volume that only waits to be flushed has nothing that a writer waits for, unless memory is short.
        let waits_only = {
            let state = self.state.lock();
            state.dirty.is_empty() && state.under_way.is_empty() && self.flush_delay.load(Ordering::Relaxed) > 0
        };
        let is_awaited = || match waits_only {
            true => self.memory.is_memory_short(),
            false => self.memory.is_write_back_awaited() || is_short(),
        };
        let mut timers = Some([early, end]);
        let set_wakers = std::future::poll_fn(|cx| {
            self.write_back.waker.register(cx.waker());
            timers.take().into_iter().flatten().for_each(|at| cpu.wake_at(at, cx.waker().clone()));
            std::task::Poll::Ready(())
        });
        set_wakers.await;
        let is_over = || cpu.now() >= end || cpu.now() >= early && is_awaited();
        self.memory.write_back_wait().until(|| (is_over() || self.is_closing()).then_some(())).await;
        if cpu.now().since(end) > STOPPED_AFTER {
            self.state.lock().trouble.on_stopped();
        }
    }
}
