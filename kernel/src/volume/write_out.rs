//! Write-out: the only place where dirty blocks are written to the device.

use std::time::Duration;

use futures_util::future::join_all;
use machine::Errno;
use policy::pace::Written;
use policy::unit::{BlockNo, BlockRange, ByteRange, Instant, Stability};
use smallvec::SmallVec;

use super::parts::Part;
use super::{State, Volume};
use crate::cache::{Cache, State as BufferState};
use crate::counters::Count;
use crate::frame::{FrameRef, Frames};
use crate::processor::{LocalFuture, Processor};
use crate::request::{Action, Context, Outcome, Request};
use crate::trace::Event;

/// Dirty blocks that the claimant must write: a run, or all in clusters that were holes.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) blocks: BlockRange,
    dirty: Runs,
    sequence: u64,
}

impl Claim {
    pub(super) fn dirty_within(&self, within: BlockRange) -> u64 {
        self.dirty.iter().map(|run| run.intersection(within).len()).sum()
    }

    pub(super) fn dirty_blocks(&self) -> u64 {
        self.dirty.iter().map(|run| run.len()).sum()
    }

    fn has_dirty(&self, block: BlockNo) -> bool {
        self.dirty.iter().any(|run| run.contains(block))
    }

    fn fills_hole(&self) -> bool {
        self.dirty.as_slice() != [self.blocks]
    }
}

pub(super) type Claims = SmallVec<[Claim; 1]>;
type Runs = SmallVec<[BlockRange; 1]>;
type Ranges = SmallVec<[ByteRange; 1]>;
type Pieces = SmallVec<[Piece; 1]>;

/// What is issued as one request: adjacent blocks, or some bytes of one block.
struct Piece {
    blocks: BlockRange,
    /// Those of them that are not only written to fill a hole.
    dirty: Runs,
    ranges: Ranges,
    frames: Frames,
}

impl Piece {
    /// The dirty blocks alone.
    fn without_filling(&self) -> impl Iterator<Item = (BlockRange, Frames)> {
        self.dirty.iter().map(|&run| {
            let skipped = (run.start - self.blocks.start) as usize;
            (run, self.frames.iter().skip(skipped).take(run.len() as usize).cloned().collect())
        })
    }

    /// The blocks around them.
    fn filling(&self) -> impl Iterator<Item = BlockRange> {
        let starts = [self.blocks.start].into_iter().chain(self.dirty.iter().map(|run| run.end));
        let ends = self.dirty.iter().map(|run| run.start).chain([self.blocks.end]);
        starts.zip(ends).map(|(start, end)| start.to(end)).filter(|run| !run.is_empty())
    }

    fn push(&mut self, block: BlockNo, frame: FrameRef, is_dirty: bool) {
        self.blocks.end = block + 1;
        self.frames.push(frame);
        match self.dirty.last_mut() {
            Some(last) if is_dirty && last.end == block => last.end = block + 1,
            _ if is_dirty => self.dirty.push(block.run(1)),
            _ => {}
        }
    }

    /// Are the bytes of the next block contiguous with this piece?
    fn goes_on_with(&self, next: &[ByteRange]) -> bool {
        let end = self.blocks.end.start();
        matches!((self.ranges.as_slice(), next), ([own], [next]) if own.end() == end && next.at == end)
    }
}

pub(super) enum Claimed {
    Run(Claim),
    /// The first dirty block is still being written, or barred.
    Busy(BlockNo),
    Nothing,
}

impl Volume {
    /// Claims the first dirty run within `within`, at most one transfer long.
    pub(super) fn claim(&self, now: Instant, within: BlockRange) -> Claimed {
        let mut state = self.state.lock();
        let run = state.dirty.first_run(within, self.transfer_blocks_max());
        self.claim_run(&mut state, now, run)
    }

    /// All of `blocks`, if they can be written as one run.
    pub(super) fn claim_all(&self, now: Instant, blocks: BlockRange) -> Option<Claim> {
        self.claim_all_in(&mut self.state.lock(), now, blocks)
    }

    pub(super) fn claim_all_in(&self, state: &mut State, now: Instant, blocks: BlockRange) -> Option<Claim> {
        let run = state.dirty.first_run(blocks, self.transfer_blocks_max());
        if run != Some(blocks) || blocks.iter().any(|block| state.is_busy(block)) {
            return None;
        }
        match self.claim_run(state, now, run) {
            Claimed::Run(claim) => Some(claim),
            Claimed::Busy(_) | Claimed::Nothing => None,
        }
    }

    /// As `claim`, limited to what this pass of write-back covers.
    pub(super) fn claim_old(&self, now: Instant, within: BlockRange) -> Claimed {
        let mut state = self.state.lock();
        let run = state.dirty.first_old_run(within, self.transfer_blocks_max());
        self.claim_run(&mut state, now, run)
    }

    fn claim_run(&self, state: &mut State, now: Instant, run: Option<BlockRange>) -> Claimed {
        let Some(run) = run else { return Claimed::Nothing };
        if state.is_busy(run.start) {
            return Claimed::Busy(run.start);
        }
        let end = run.iter().find(|&block| state.is_busy(block)).unwrap_or(run.end);
        let run = run.start.to(end);
        let blocks = state.fill_hole(run, self.transfer_blocks_max());
        let mut dirty = Runs::new();
        let mut rest = blocks;
        while let Some(run) = state.dirty.first_run(rest, u64::MAX) {
            state.dirty.remove(run);
            state.holes.on_written(run);
            state.writing.insert(run);
            dirty.push(run);
            rest.start = run.end;
        }
        if blocks != run {
            state.filling.insert(blocks);
        }
        state.sequence += 1;
        let sequence = state.sequence;
        state.under_way.insert(sequence);
        state.busy.since.get_or_insert(now);
        Claimed::Run(Claim { blocks, dirty, sequence })
    }

    /// Writes the claimed blocks in a task of its own.
    pub(super) fn start_write_out(&self, cpu: &Processor, claim: Claim, context: Context) {
        cpu.spawn_path_boxed(context.job, self.begin_write_out(cpu, claim, context));
    }

    /// As `start_write_out`, of several in one task: one for each would cost two dispatches more for each.
    pub(super) fn start_write_outs(&self, cpu: &Processor, mut claims: Claims, context: Context) {
        debug_assert_eq!(context.stability, Stability::Unstable, "a flush waits for forced writes");
        if claims.len() < 2 {
            return claims.drain(..).for_each(|claim| self.start_write_out(cpu, claim, context));
        }
        let (volume, here) = (self.this.upgrade(), cpu.clone());
        cpu.spawn_path_of_many(context.job, async move {
            if let Some(volume) = volume {
                volume.write_out_each(&here, claims, context).await;
            }
        });
    }

    /// Writes what was claimed, all at the same time.
    pub(super) async fn write_out_each(&self, cpu: &Processor, mut claims: Claims, context: Context) {
        cpu.count(Count::WriteOuts, claims.len() as u64);
        cpu.count(Count::WriteOutBlocks, claims.iter().map(Claim::dirty_blocks).sum());
        match claims.pop() {
            Some(only) if claims.is_empty() => self.write_out(cpu, only, context).await,
            last => {
                join_all(claims.into_iter().chain(last).map(|claim| self.write_out(cpu, claim, context))).await;
            }
        }
    }

    /// Writes the claimed blocks in the caller's task: waiting for one of its own would cost a dispatch more.
    pub(super) async fn finish_write_out(&self, cpu: &Processor, claim: Claim, context: Context) {
        cpu.run_to_end(context.job, self.begin_write_out(cpu, claim, context)).await;
    }

    /// The write of the claimed blocks, which must run to its end.
    fn begin_write_out(&self, cpu: &Processor, claim: Claim, context: Context) -> LocalFuture {
        let (volume, cpu) = (self.this.upgrade(), cpu.clone());
        if context.stability == Stability::Stable {
            self.state.lock().forced.insert(claim.sequence);
        }
        cpu.count(Count::WriteOuts, 1);
        cpu.count(Count::WriteOutBlocks, claim.dirty_blocks());
        Box::pin(async move {
            if let Some(volume) = volume {
                volume.write_out(&cpu, claim, context).await;
            }
        })
    }

    /// Waits until at most `count` writes to the device are in flight.
    pub(super) async fn until_under_way(&self, count: usize) {
        self.settled.until(|| (self.state.lock().under_way.len() <= count).then_some(())).await;
    }

    /// Waits until every write that is in flight now has ended.
    pub(super) async fn until_settled(&self) {
        let newest = self.state.lock().sequence;
        self.settled_up_to.until(newest, || self.state.lock().oldest_under_way() > newest).await;
    }

    /// As `until_settled`, for forced writes only.
    pub(super) async fn until_forced_settled(&self) {
        let newest = self.state.lock().sequence;
        self.forced_up_to.until(newest, || self.state.lock().oldest_forced() > newest).await;
    }

    /// Waits until a block is neither being written nor barred.
    pub(super) async fn until_free(&self, block: BlockNo) {
        self.settled.until(|| (!self.state.lock().is_busy(block)).then_some(())).await;
    }

    pub(super) async fn write_out(&self, cpu: &Processor, claim: Claim, context: Context) {
        let context = self.with_export(context);
        let began = cpu.begin(Event::WriteOut, context);
        let mut result = Ok(context.stability);
        // A forced write that fails must be reported, and a failure to fill need not be.
        let fills_hole = claim.fills_hole() && context.stability == Stability::Unstable;
        let zero = if fills_hole { self.memory.zero_frame_at_hand() } else { None };
        for piece in self.begin(&claim, zero.as_ref()) {
            let writes = piece.ranges.iter().map(|range| (*range, piece.frames.clone()));
            let mut written = self.write_ranges(cpu, writes, context).await;
            if let Err(errno) = written
                && zero.is_some()
            {
                // Boxed: rare.
                written = Box::pin(self.write_without_filling(cpu, &piece, errno, context)).await;
            }
            for &blocks in &piece.dirty {
                self.end(blocks, written, context, claim.sequence);
            }
            result = weaker(result, written);
        }
        if result.is_err() && context.stability == Stability::Stable {
            self.on_failed_forced_write();
        }
        cpu.end(began, Event::WriteOut, context, claim.blocks.start.0, claim.blocks.len());
        self.settle(cpu.now(), &claim, result);
    }

    /// The write of a piece that fills a hole has failed: writes what is dirty alone.
    async fn write_without_filling(
        &self,
        cpu: &Processor,
        piece: &Piece,
        errno: Errno,
        context: Context,
    ) -> Result<Stability, Errno> {
        if [Errno::NO_SPACE, Errno::QUOTA_EXCEEDED].contains(&errno) {
            self.state.lock().holes.forget();
            // What the host has allocated before it failed stays allocated, and may be the last space there is.
            for run in piece.filling() {
                let action = Action::Discard(self.bytes_of(run));
                // Where that fails, there may be space nevertheless.
                let _ = self.device.perform(cpu, Request { action, context }).await;
            }
        }
        let writes = piece.without_filling().map(|(run, frames)| (self.bytes_of(run), frames));
        self.write_ranges(cpu, writes, context).await
    }

    /// Returns what the writes have come to: forced ones may await a flush nevertheless.
    async fn write_ranges(
        &self,
        cpu: &Processor,
        writes: impl Iterator<Item = (ByteRange, Frames)>,
        context: Context,
    ) -> Result<Stability, Errno> {
        let mut result = Ok(context.stability);
        for (range, frames) in writes {
            let action = Action::Write(range, frames);
            let outcome = self.device.perform(cpu, Request { action, context }).await;
            let written = match outcome {
                Ok(Outcome::Unforced) => Ok(Stability::Unstable),
                outcome => outcome.and_then(Outcome::required).map(|()| context.stability),
            };
            result = weaker(result, written);
        }
        result
    }

    /// Marks the buffers as writing and shares their frames. Skips a block that another claim wrote between its change
    /// and its insertion into the dirty set. With `zero`, the other blocks of the claim are filled with it.
    fn begin(&self, claim: &Claim, zero: Option<&FrameRef>) -> Pieces {
        let mut pieces = Pieces::new();
        for run in Cache::runs(claim.blocks) {
            let mut shard = self.lock_shard(run.start);
            for block in run.iter() {
                let slot = shard.find(self.key(block)).filter(|slot| shard.state(*slot).any(BufferState::DIRTY));
                let (frame, part) = match (slot, zero) {
                    (Some(slot), _) => {
                        let state = shard.state(slot).without(BufferState::DIRTY).with(BufferState::WRITING);
                        shard.set_state(slot, state);
                        (shard.share(slot, self.memory.frames()), self.parts.on_write_out(block))
                    }
                    (None, Some(zero)) if !claim.has_dirty(block) => (zero.clone(), Part::Whole),
                    (None, _) => continue,
                };
                let ranges = self.ranges_of(block, &part);
                match pieces.last_mut().filter(|last| last.goes_on_with(&ranges)) {
                    Some(last) => {
                        last.ranges[0].len += ranges[0].len;
                        last.push(block, frame, slot.is_some());
                    }
                    None => {
                        let mut piece =
                            Piece { blocks: block.run(0), dirty: Runs::new(), ranges, frames: Frames::new() };
                        piece.push(block, frame, slot.is_some());
                        pieces.push(piece);
                    }
                }
            }
        }
        pieces.retain(|piece| !piece.dirty.is_empty());
        pieces
    }

    /// The bytes of a part of a block before the volume's end.
    fn ranges_of(&self, block: BlockNo, part: &Part) -> Ranges {
        let whole = self.bytes_of(block.run(1));
        match part {
            Part::Whole => Ranges::from_slice(&[whole]),
            part => {
                part.ranges(whole.at).into_iter().map(|range| self.clip(range)).filter(|range| range.len > 0).collect()
            }
        }
    }

    fn end(&self, blocks: BlockRange, written: Result<Stability, Errno>, context: Context, sequence: u64) {
        for piece in Cache::runs(blocks) {
            let mut shard = self.lock_shard(piece.start);
            // With the shard locked: a flush that fails concurrently finds the blocks both in the set and marked, or
            // neither, and then reports them by `suspect`.
            let next = match written {
                Ok(stability) => self.note_written(piece, context.with_stability(stability), sequence),
                Err(_) => BufferState::DIRTY,
            };
            for block in piece.iter() {
                let found = shard.find(self.key(block));
                let Some(slot) = found.filter(|slot| shard.state(*slot).any(BufferState::WRITING)) else {
                    // Given up meanwhile. What is cached, if anything, others may have written since; or this volume has, and
                    // given it up again.
                    let is_unflushed = found.is_some_and(|slot| shard.state(slot).any(BufferState::UNFLUSHED));
                    let mut state = self.state.lock();
                    if !is_unflushed || state.marked.contains(block) {
                        state.unflushed.remove(block.run(1));
                    }
                    continue;
                };
                let state = shard.state(slot).without(BufferState::WRITING).with(next);
                shard.set_state(slot, state);
                self.parts.on_written(block, next);
            }
        }
    }

    /// Blocks were written; returns their new state.
    fn note_written(&self, blocks: BlockRange, context: Context, sequence: u64) -> BufferState {
        let mut state = self.state.lock();
        // The write replaces what was zeroed before, and zeroes around what others write: blocks of a client that are not in
        // the dirty set yet are written with a claim of others.
        state.cleared.remove(blocks);
        state.holes.on_written(blocks);
        if sequence <= state.suspect {
            // A flush failed while they were in flight. Even a forced write may be lost: where the host implements it
            // as a write and a flush, the disk may have dropped the write before that flush.
            let again = state.dirty.insert_again(blocks);
            self.note_dirty(&mut state, context.job, again);
            state.rewrites += 1;
            BufferState::DIRTY
        } else if context.stability == Stability::Stable {
            BufferState::CLEAN
        } else if state.lost.is_some() {
            // No flush will ever succeed again: unflushed blocks would stay in the cache for ever.
            BufferState::CLEAN
        } else {
            state.unflushed.since_mut().insert(blocks);
            BufferState::UNFLUSHED
        }
    }

    fn settle(&self, now: Instant, claim: &Claim, result: Result<Stability, Errno>) {
        let mut state = self.state.lock();
        let written = state.writing.remove(claim.blocks);
        state.filling.remove(claim.blocks);
        state.under_way.remove(&claim.sequence);
        state.forced.remove(&claim.sequence);
        if state.under_way.is_empty() {
            state.busy.pause(now);
        }
        let mut dirty_again = 0;
        match result {
            Ok(stability) => {
                let was_flushed = state.changes_flushed == Some(state.changes);
                state.changes += 1;
                if stability == Stability::Stable && was_flushed {
                    state.changes_flushed = Some(state.changes);
                }
                state.busy.blocks += written;
                state.trouble.on_written(claim.blocks);
            }
            Err(errno) => {
                dirty_again = claim.dirty.iter().map(|run| state.dirty.insert_again(*run)).sum();
                state.failures += 1;
                state.last_failure = Some(errno);
                claim.dirty.iter().for_each(|run| state.trouble.on_write_failed(*run, errno));
            }
        }
        self.report_stuck(&mut state);
        self.note_clean(&mut state, written - dirty_again);
        let (oldest, oldest_forced) = (state.oldest_under_way(), state.oldest_forced());
        drop(state);
        self.memory.subtract_dirty(written - dirty_again);
        self.settled.wake_all();
        self.settled_up_to.wake(oldest);
        self.forced_up_to.wake(oldest_forced);
        self.settled_within.wake(claim.blocks);
    }
}

/// What two writes have come to together.
fn weaker(one: Result<Stability, Errno>, other: Result<Stability, Errno>) -> Result<Stability, Errno> {
    one.and_then(|one| other.map(|other| one.min(other)))
}

/// Blocks that the device has taken, and the time it was busy with them.
#[derive(Default)]
pub(super) struct Busy {
    blocks: u64,
    spent: Duration,
    since: Option<Instant>,
}

impl Busy {
    fn pause(&mut self, now: Instant) {
        self.spent += self.since.take().map_or(Duration::ZERO, |since| now.since(since));
    }

    /// Returns the counts since the last call. `is_all`: was there more to write all the time?
    pub(super) fn take(&mut self, now: Instant, is_all: bool) -> Written {
        let is_under_way = self.since.is_some();
        self.pause(now);
        self.since = is_under_way.then_some(now);
        let Busy { blocks, spent, .. } = std::mem::replace(self, Busy { since: self.since, ..Busy::default() });
        Written { blocks, busy: spent, is_all }
    }
}

impl State {
    /// Sequence number of the oldest write in flight; the largest number if there is none.
    fn oldest_under_way(&self) -> u64 {
        self.under_way.first().copied().unwrap_or(u64::MAX)
    }

    /// As `oldest_under_way`, of forced writes only.
    fn oldest_forced(&self) -> u64 {
        self.forced.first().copied().unwrap_or(u64::MAX)
    }

    pub(super) fn is_busy(&self, block: BlockNo) -> bool {
        [&self.writing, &self.filling].iter().any(|set| set.contains(block)) || self.is_barred(block.run(1))
    }

    pub(super) fn is_writing(&self, blocks: BlockRange) -> bool {
        [&self.writing, &self.filling].iter().any(|set| set.first_run(blocks, 1).is_some())
    }

    /// The blocks to write with `run`: all of the clusters that were holes, if they fit into a transfer.
    fn fill_hole(&mut self, run: BlockRange, transfer_blocks_max: u64) -> BlockRange {
        let filled = self.holes.fill(run);
        if filled.len() > transfer_blocks_max || self.is_barred(filled) { run } else { filled }
    }
}
