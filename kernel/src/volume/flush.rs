//! Flushing: everything acknowledged before becomes durable. Concurrent callers share one flush of the device.
//!
//! A flush writes out its own volume only, never another export's blocks.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::join;
use machine::Errno;
use policy::unit::{BlockNo, BlockRange, ByteRange, Class, Stability};

use super::write_out::Claimed;
use super::{ForcedUnitAccess, State, Volume};
use crate::block_set::BlockSet;
use crate::cache::{Cache, State as BufferState};
use crate::counters::Count;
use crate::processor::Processor;
use crate::rendezvous::Announced;
use crate::request::{Action, Context, Outcome, Request};
use crate::trace::Event;

/// Writes in flight for one flush, at most.
pub(super) const FLUSH_WRITES_MAX: usize = 512;

/// A flush is a forced write of what is dirty if that is one run of at most so many blocks. Judged; what forced writes cost is
/// measured at start, with one block.
const FORCED_BLOCKS_MAX: u64 = 16;

impl Volume {
    /// Makes everything that was acknowledged before durable; at any node, if other nodes have the volume, too.
    ///
    /// # Errors
    /// The device's error. Nothing is dropped: what the failed flush covered stays cached, is dirty again and will be
    /// written by the next flush; zeroing and discarding are repeated.
    pub async fn flush(&self, cpu: &Processor, context: Context) -> Result<(), Errno> {
        self.flush_for(cpu, context, 1).await
    }

    /// As [`Volume::flush`], once for so many callers, who asked together.
    ///
    /// # Errors
    /// As [`Volume::flush`], of all of them.
    pub async fn flush_for(&self, cpu: &Processor, context: Context, callers: u32) -> Result<(), Errno> {
        if self.config.read_only {
            return Ok(());
        }
        self.on_flush_asked(callers);
        if let Some(blocks) = self.only_change() {
            // One writer, however many ask. Boxed: of many flushes at a time few are that.
            return Box::pin(self.write_through(cpu, blocks, context)).await;
        }
        let shared = self.coherence.as_ref().map(|coherence| (coherence, coherence.known()));
        let failures = self.write_out_again(cpu, context, callers).await;
        let own = self.flush_device_for(cpu, context, failures, callers);
        let Some((coherence, known)) = shared else { return own.await };
        let (own, all) = join(own, coherence.flush(cpu)).await;
        let elsewhere = coherence.end_flush(known);
        own.and(all).and(elsewhere)
    }

    /// The dirty blocks of a disk, if they are all that a flush has to make durable, no other flush is expected, and the volume may
    /// force writes: that is one request instead of two, and a client that flushes each of its writes waits for each.
    pub(super) fn only_change(&self) -> Option<BlockRange> {
        let may_force = self.config.forced_unit_access != ForcedUnitAccess::Never && !self.flushes.expects_others();
        if !may_force || self.config.grows || self.coherence.is_some() {
            return None;
        }
        let state = self.state.lock();
        if !state.is_flushed() || !state.under_way.is_empty() {
            return None;
        }
        let run = state.dirty.first_run(ByteRange::new(0, self.size()).blocks(), FORCED_BLOCKS_MAX)?;
        (run.len() == state.dirty.len()).then_some(run)
    }

    /// Writes all that is dirty, and what must be repeated. Returns the failures before.
    async fn write_out_again(&self, cpu: &Processor, context: Context, callers: u32) -> Failures {
        let failures = self.failures();
        loop {
            let rewrites = self.rewrites();
            self.issue_all(cpu, context).await;
            // The flush that others wait for waits for this one, too. Not before: to issue all may take long.
            let announced = self.flushes.announce_as(cpu, callers);
            self.until_settled().await;
            drop(announced);
            if self.rewrites() == rewrites || self.failures() != failures {
                return failures;
            }
        }
    }

    /// Writes all that is dirty, without making it durable. What fails stays dirty.
    pub async fn write_out_unflushed(&self, cpu: &Processor, context: Context) {
        if !self.config.read_only {
            self.issue_all(cpu, context).await;
            self.until_settled().await;
        }
    }

    /// Makes `blocks`, which the caller has just marked dirty, durable.
    pub(super) async fn write_through(
        &self,
        cpu: &Processor,
        blocks: BlockRange,
        context: Context,
    ) -> Result<(), Errno> {
        let failures = self.failures();
        let announced = self.flushes.announce(cpu);
        let gathers = cpu.switches().flush_gathering;
        // Boxed, as the next: what many wait for at a time has little memory.
        if gathers && self.lies_beyond_device(blocks) {
            return Box::pin(self.grow_durably(cpu, blocks, context, (announced, failures))).await;
        }
        let forced = match self.config.forced_unit_access {
            ForcedUnitAccess::Never => false,
            ForcedUnitAccess::Alone => self.flushes.is_alone(),
            ForcedUnitAccess::Always => true,
        };
        if forced || !gathers {
            return Box::pin(self.write_by_itself(cpu, blocks, context, forced, (announced, failures))).await;
        }
        announced.hand_over();
        self.write_in_batch(cpu, blocks, context, failures).await
    }

    async fn grow_durably(
        &self,
        cpu: &Processor,
        blocks: BlockRange,
        context: Context,
        (announced, failures): (Announced<'_, ()>, Failures),
    ) -> Result<(), Errno> {
        self.write_growth(cpu, blocks, context).await?;
        if !self.awaits_flush(blocks) && self.failures() == failures {
            announced.end_forced();
            return self.lost();
        }
        drop(announced);
        self.flush_device(cpu, context, failures).await
    }

    async fn write_by_itself(
        &self,
        cpu: &Processor,
        blocks: BlockRange,
        context: Context,
        forced: bool,
        (announced, failures): (Announced<'_, ()>, Failures),
    ) -> Result<(), Errno> {
        let stability = if forced { Stability::Stable } else { Stability::Unstable };
        let written = self.write_and_settle(cpu, blocks, context.with_stability(stability)).await;
        // A concurrent write may have claimed the new content and written it unforced.
        let all_forced = forced && written == blocks.len() && !self.awaits_flush(blocks);
        if all_forced && self.failures() == failures {
            announced.end_forced();
            return self.lost();
        }
        drop(announced);
        self.flush_device(cpu, context, failures).await
    }

    /// Flushes what this node wrote, and ends the volume's write-back. No writes may follow.
    ///
    /// # Errors
    /// As [`Volume::flush`].
    pub async fn close(&self, cpu: &Processor) -> Result<(), Errno> {
        let context = Context::synchronous(crate::request::JobId::default());
        let mut result = Ok(());
        if !self.config.read_only {
            let failures = self.write_out_again(cpu, context, 1).await;
            result = self.flush_device(cpu, context, failures).await;
        }
        self.stop();
        result
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    /// Starts writing all that is dirty.
    async fn issue_all(&self, cpu: &Processor, context: Context) {
        let all = ByteRange::new(0, self.size()).blocks();
        self.write_out_within(cpu, all, context.with_stability(Stability::Unstable)).await;
        // Writes that write-back issued may be queued behind others; now a client waits for them.
        if context.class == Class::Synchronous {
            self.device.expedite(cpu, self.bytes_of(all));
        }
    }

    /// Starts writing every dirty block in `within`, in one pass; returns the number of blocks. A block that is being
    /// written already is written again after that.
    pub(super) async fn write_out_within(&self, cpu: &Processor, within: BlockRange, context: Context) -> u64 {
        let mut later = Vec::new();
        let mut at = within.start;
        let mut count = 0;
        loop {
            match self.claim(cpu.now(), at.to(within.end)) {
                Claimed::Run(claim) => {
                    at = claim.blocks.end;
                    count += claim.dirty_within(within);
                    self.start_write_out(cpu, claim, context);
                    self.until_under_way(FLUSH_WRITES_MAX).await;
                }
                Claimed::Busy(block) => {
                    later.push(block);
                    at = block + 1;
                }
                Claimed::Nothing => break,
            }
        }
        for block in later {
            loop {
                self.until_free(block).await;
                match self.claim(cpu.now(), block.run(1)) {
                    Claimed::Run(claim) => {
                        count += 1;
                        self.start_write_out(cpu, claim, context);
                        break;
                    }
                    // Another processor has written it or put a barrier on it meanwhile.
                    Claimed::Busy(_) => {}
                    Claimed::Nothing => break,
                }
            }
        }
        count
    }

    /// Writes the dirty blocks among `blocks` until no write of them is in flight and none must be repeated; returns
    /// the number of blocks written by the last pass.
    pub(super) async fn write_and_settle(&self, cpu: &Processor, blocks: BlockRange, context: Context) -> u64 {
        let failures = self.failures();
        loop {
            let rewrites = self.rewrites();
            let written = match self.claim_all(cpu.now(), blocks) {
                Some(claim) => {
                    self.finish_write_out(cpu, claim, context).await;
                    blocks.len()
                }
                // Boxed: large and rare.
                None => Box::pin(self.write_out_within(cpu, blocks, context)).await,
            };
            // An asynchronous pass may have claimed some of them; now somebody waits for them.
            if context.class == Class::Synchronous && self.state.lock().is_writing(blocks) {
                self.device.expedite(cpu, self.bytes_of(blocks));
            }
            self.until_settled_within(blocks).await;
            // After a further failure the caller gets an error anyway.
            if self.rewrites() == rewrites || self.failures() != failures {
                return written;
            }
        }
    }

    /// Waits until no write of `blocks` is in flight.
    pub(super) async fn until_settled_within(&self, blocks: BlockRange) {
        let is_over = || !self.state.lock().is_writing(blocks);
        self.settled_within.until(blocks, is_over).await;
    }

    /// Flushes the device, shared with concurrent callers. `failures` was counted before the caller's data was issued:
    /// if it has changed since, that data may be among what failed.
    pub(super) async fn flush_device(
        &self,
        cpu: &Processor,
        context: Context,
        failures: Failures,
    ) -> Result<(), Errno> {
        self.flush_device_for(cpu, context, failures, 1).await
    }

    /// As `flush_device`, for so many callers.
    pub(super) async fn flush_device_for(
        &self,
        cpu: &Processor,
        context: Context,
        failures: Failures,
        callers: u32,
    ) -> Result<(), Errno> {
        self.check_failures(failures)?;
        if self.state.lock().is_flushed() {
            return Ok(());
        }
        if cpu.switches().flush_gathering {
            let context = self.with_export(context);
            let began = cpu.begin(Event::FlushGathered, context);
            let result = self.join_flush(cpu, context, callers).await;
            // A span for each: a breakdown shares a request's time among its spans.
            (0..callers).for_each(|_| cpu.end(began, Event::FlushGathered, context, 0, 0));
            result?;
        } else {
            // Boxed: large and rare.
            Box::pin(self.flush_alone(cpu, context)).await?;
        }
        self.check_failures(failures)
    }

    async fn join_flush(&self, cpu: &Processor, context: Context, callers: u32) -> Result<(), Errno> {
        cpu.count(Count::Gathers, callers.into());
        let lead = || {
            let Some(volume) = self.this.upgrade() else { return };
            let here = cpu.clone();
            // The task runs after those that are ready now, so that their flushes join the first group.
            cpu.spawn_path(async move {
                volume.flushes.lead(&here, async |()| volume.flush_once(&here, context).await).await
            });
        };
        self.flushes.share_as(cpu, callers, |()| (), lead).await
    }

    /// Flushes without sharing, after the flushes before it: of two concurrent flushes one may fail, and then the
    /// other's success proves nothing.
    async fn flush_alone(&self, cpu: &Processor, context: Context) -> Result<(), Errno> {
        let _exclusive = self.flushes.exclusive().await;
        self.flush_once(cpu, context).await
    }

    async fn flush_once(&self, cpu: &Processor, context: Context) -> Result<(), Errno> {
        self.lost()?;
        // Write-back may lead the group, but synchronous callers join it.
        let context = Context { class: Class::Synchronous, ..self.with_export(context) };
        if let Err(errno) = self.clear_again(cpu, context).await {
            self.note_failed_flush(&mut self.state.lock(), errno);
            return Err(errno);
        }
        let (covered, changes) = {
            let mut state = self.state.lock();
            state.unflushed.begin();
            state.cleared.begin_flush();
            (state.unflushed.covered().len(), state.changes)
        };
        let failures = self.failures().flushes;
        let began = cpu.begin(Event::Flush, context);
        cpu.count(Count::Flushes, 1);
        let outcome = self.device.perform(cpu, Request { action: Action::Flush, context }).await;
        let mut result = outcome.and_then(Outcome::required);
        // A concurrent flush or forced write that failed makes this one's success meaningless.
        self.foreign.until_ended().await;
        self.until_forced_settled().await;
        if self.failures().flushes != failures {
            result = Err(self.state.lock().last_failure.unwrap_or(Errno::IO));
        }
        cpu.end(began, Event::Flush, context, covered, 0);
        if let Err(error) = result {
            cpu.trace(Event::FlushFailed, context, error.0 as u64, 0);
        }
        match result {
            Ok(()) => {
                self.on_flushed();
                let mut state = self.state.lock();
                state.unflushed.succeeded();
                state.cleared.on_flushed();
                state.changes_flushed = state.changes_flushed.max(Some(changes));
                state.trouble.on_flush(Ok(()));
            }
            Err(errno) => self.on_failed_flush(errno),
        }
        result
    }

    /// Blocks that a flush covered become clean, unless they were written again meanwhile.
    fn on_flushed(&self) {
        let covered = self.state.lock().unflushed.covered().clone();
        for piece in covered.runs().flat_map(Cache::runs) {
            let mut shard = self.lock_shard(piece.start);
            for block in piece.iter() {
                let Some(slot) = shard.find(self.key(block)) else { continue };
                if !self.state.lock().is_new_unflushed(block) {
                    let state = shard.state(slot).without(BufferState::UNFLUSHED);
                    shard.set_state(slot, state);
                    self.parts.on_flushed(block);
                }
            }
        }
    }

    /// What a failed flush covered may or may not be durable: it is dirty again, or will be zeroed or discarded again.
    /// So is what completed during the flush: the device may have lost that too. Writes still in flight are checked
    /// when they end (`State::suspect`), since their completion may be seen long after the fact.
    pub(super) fn on_failed_flush(&self, errno: Errno) {
        self.repeat_unflushed(|state| self.note_failed_flush(state, errno));
    }

    /// A forced write failed. The host may implement it as a write and a flush and reports lost data only once: the
    /// next flush would succeed.
    pub(super) fn on_failed_forced_write(&self) {
        self.repeat_unflushed(|state| state.flush_failures += 1);
    }

    fn note_failed_flush(&self, state: &mut State, errno: Errno) {
        state.flush_failures += 1;
        state.last_failure = Some(errno);
        state.trouble.on_flush(Err(errno));
        self.report_stuck(state);
    }

    /// `count` counts the failure, after the blocks are dirty: who flushes and finds nothing dirty sees it at its end.
    fn repeat_unflushed(&self, count: impl FnOnce(&mut State)) {
        let unflushed = {
            let mut state = self.state.lock();
            state.suspect = state.sequence;
            state.cleared.on_failed_flush();
            let unflushed = Arc::new(state.unflushed.take());
            state.repeating.push(Arc::clone(&unflushed));
            unflushed
        };
        for piece in unflushed.runs().flat_map(Cache::runs) {
            let mut again = BlockSet::default();
            let mut shard = self.lock_shard(piece.start);
            for block in piece.iter() {
                let Some(slot) = shard.find(self.key(block)) else { continue };
                let state = shard.state(slot);
                // One that was given up meanwhile may be marked by now.
                if state.any(BufferState::UNFLUSHED) && !self.state.lock().marked.contains(block) {
                    shard.set_state(slot, state.without(BufferState::UNFLUSHED).with(BufferState::DIRTY));
                    self.parts.on_failed_flush(block);
                    again.insert(block.run(1));
                }
            }
            drop(shard);
            again.runs().for_each(|run| self.mark_dirty(run, self.payer()));
        }
        let mut state = self.state.lock();
        state.repeating.retain(|blocks| !Arc::ptr_eq(blocks, &unflushed));
        count(&mut state);
    }

    pub(super) fn rewrites(&self) -> u64 {
        self.state.lock().rewrites
    }

    pub(super) fn failures(&self) -> Failures {
        let state = self.state.lock();
        Failures { writes: state.failures, flushes: state.flush_failures }
    }

    fn check_failures(&self, before: Failures) -> Result<(), Errno> {
        self.lost()?;
        if self.failures() == before {
            return Ok(());
        }
        Err(self.state.lock().last_failure.unwrap_or(Errno::IO))
    }

    fn lost(&self) -> Result<(), Errno> {
        self.state.lock().lost.map_or(Ok(()), Err)
    }

    /// Was any of `blocks` written unforced and not flushed since?
    pub(super) fn awaits_flush(&self, blocks: BlockRange) -> bool {
        self.state.lock().not_durable().any(|set| set.first_run(blocks, 1).is_some())
    }

    /// Flushes the device, although the volume may not know of what has changed there.
    ///
    /// # Errors
    /// As [`Volume::flush`].
    pub async fn flush_changed(&self, cpu: &Processor) -> Result<(), Errno> {
        self.state.lock().changes += 1;
        self.flush_device(cpu, Context::asynchronous(cpu.job()), self.failures()).await
    }
}

impl State {
    /// Is the device unchanged since its last flush, which has succeeded, but for forced writes?
    fn is_flushed(&self) -> bool {
        self.changes_flushed == Some(self.changes) && !self.awaits_flush() && !self.is_flush_in_doubt()
    }

    /// Is there a change of the device that a flush can still make durable?
    pub(super) fn awaits_flush(&self) -> bool {
        self.lost.is_none() && !(self.unflushed.since().is_empty() && self.cleared.is_empty())
    }

    /// Was the block written since the last flush began, or given up and marked?
    fn is_new_unflushed(&self, block: BlockNo) -> bool {
        self.unflushed.since().contains(block) || self.marked.contains(block)
    }
}

/// Counts failed writes and flushes of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failures {
    writes: u64,
    flushes: u64,
}
