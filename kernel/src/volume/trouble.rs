//! Degraded and failed volumes: the disk refuses writes or flushes.
//!
//! A degraded volume retains what it could not write and retries every second, since most failures pass (a path fails
//! over, a full pool is extended). To bound the memory, such blocks do not count as the dirty blocks of other volumes;
//! all degraded volumes together may hold a twentieth of the cache, and writes beyond that get the disk's error; a
//! volume that holds more for half a minute without progress abandons the excess. It has then failed: every flush,
//! every change and every read of abandoned blocks gives an error until the volume is opened anew.
//!
//! What others do: Linux marks pages clean whose write-back failed and reports it once to each open file (`errseq_t`);
//! the second `fsync` succeeds over lost data, as PostgreSQL found in 2018. ZFS suspends the pool until an operator
//! acts (`failmode=wait`): nothing is lost, and everybody waits, also for disks that work. QEMU stops the guest or
//! passes the error on (`werror`). Awase passes the error on at once, and reports a loss for ever, not once: it has no
//! open files for which a reported error could be counted, and a client that reconnects must not find a volume that
//! seems healthy.

use std::sync::atomic::Ordering;
use std::time::Duration;

use machine::Errno;
use policy::unit::{BlockNo, BlockRange, ByteOffset, Instant};

use super::{State, Volume};
use crate::block_set::BlockSet;
use crate::cache::{Cache, State as BufferState};
use crate::processor::Processor;
use crate::request::JobId;
use crate::trace::Event;

/// The fraction of the cache that all degraded volumes together may hold.
const HELD_SHARE: u64 = 20;

/// A volume without progress for this long abandons what it holds beyond that.
const GIVE_UP_AFTER: Duration = Duration::from_secs(30);

/// While a disk refuses writes, this fraction of the dirty blocks is tried at a time, and this many blocks at least.
const PARTS_TRIED: u64 = 16;
const BLOCKS_TRIED: u64 = 1024;

/// Blocks abandoned between two yields.
const BLOCKS_AT_ONCE: u64 = 1024;

/// The abandoned data of a failed volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Returned by every flush and change.
    pub errno: Errno,
    /// The volume's size. Bytes.
    pub size: u64,
    /// The abandoned blocks; `None`: possibly all.
    pub forgotten: Option<Vec<BlockRange>>,
}

impl Loss {
    /// Runs needed to record it.
    pub fn runs(&self) -> usize {
        self.forgotten.as_ref().map_or(0, Vec::len)
    }
}

#[derive(Default)]
pub(super) struct Trouble {
    /// Blocks whose last write failed. They are dirty, or in flight again.
    refused: BlockSet,
    /// The last write's error.
    writes: Option<Errno>,
    /// The last flush's error.
    flushes: Option<Errno>,
    /// No progress since.
    since: Option<Instant>,
    /// Blocks abandoned before the disk had them.
    abandoned: BlockSet,
    /// Unknown which: treat all as abandoned.
    all_abandoned: bool,
    /// Blocks last reported to the kernel as held.
    reported: u64,
}

impl Trouble {
    pub(super) fn on_write_failed(&mut self, blocks: BlockRange, errno: Errno) {
        self.refused.insert(blocks);
        self.writes = Some(errno);
    }

    pub(super) fn on_written(&mut self, blocks: BlockRange) {
        self.writes = None;
        self.on_gone(blocks);
    }

    /// Blocks need not be written any more.
    pub(super) fn on_gone(&mut self, blocks: BlockRange) {
        if !self.refused.is_empty() && self.refused.remove(blocks) > 0 {
            self.since = None;
        }
    }

    /// Nothing could be tried for a while.
    pub(super) fn on_stopped(&mut self) {
        self.since = None;
    }

    pub(super) fn on_flush(&mut self, result: Result<(), Errno>) {
        let before = std::mem::replace(&mut self.flushes, result.err());
        if before.is_some() && result.is_ok() {
            self.since = None;
        }
    }

    /// The disk's error, if the volume is degraded.
    fn errno(&self, state: &State) -> Option<Errno> {
        let refused = || state.last_failure.filter(|_| !self.refused.is_empty());
        // What a failed flush covered may have become durable without another one, by forced writes.
        let flushes = self.flushes.filter(|_| state.is_flush_in_doubt() && !state.is_clean());
        self.writes.or(flushes).or_else(refused)
    }

    /// Blocks last reported to the kernel as held.
    pub(super) fn reported(&self) -> u64 {
        self.reported
    }

    pub(super) fn has_abandoned(&self) -> bool {
        self.all_abandoned || !self.abandoned.is_empty()
    }
}

impl State {
    /// Is the volume degraded?
    pub(super) fn is_in_trouble(&self) -> bool {
        self.trouble.errno(self).is_some()
    }

    /// Did the last flush fail, and may another one succeed?
    pub(super) fn is_flush_in_doubt(&self) -> bool {
        self.trouble.flushes.is_some() && self.lost.is_none()
    }

    /// Dirty blocks that may be tried now.
    pub(super) fn worth_trying(&self) -> u64 {
        let dirty = self.dirty.len();
        if self.trouble.writes.is_some() { dirty.min((dirty / PARTS_TRIED).max(BLOCKS_TRIED)) } else { dirty }
    }

    /// Blocks that stay in the cache because the volume is degraded.
    fn stuck(&self) -> u64 {
        let trouble = &self.trouble;
        let on_their_way = self.dirty.len() + self.writing.len();
        if self.is_flush_in_doubt() {
            on_their_way + self.unflushed_len()
        } else if trouble.writes.is_some() {
            on_their_way
        } else {
            trouble.refused.len()
        }
    }
}

impl Volume {
    /// The error with which to refuse writes, if any.
    pub(super) fn refusal(&self) -> Option<Errno> {
        let mut state = self.state.lock();
        if state.trouble.has_abandoned() {
            return state.lost;
        }
        let errno = state.trouble.errno(&state)?;
        self.report_stuck(&mut state);
        (self.memory.stuck_blocks() > self.held_max()).then_some(errno)
    }

    /// Was any of `blocks` abandoned?
    pub(super) fn is_abandoned(&self, blocks: BlockRange) -> bool {
        self.has_abandoned.load(Ordering::SeqCst) && {
            let state = self.state.lock();
            state.trouble.all_abandoned || state.trouble.abandoned.first_run(blocks, 1).is_some()
        }
    }

    pub fn loss(&self) -> Option<Loss> {
        let state = self.state.lock();
        let errno = state.lost?;
        let forgotten = (!state.trouble.all_abandoned).then(|| state.trouble.abandoned.runs().collect());
        Some(Loss { errno, size: self.size(), forgotten })
    }

    /// Restores the loss of an earlier opening. To be called before the first use.
    pub fn restore_loss(&self, loss: &Loss) {
        let mut state = self.state.lock();
        state.lost = Some(loss.errno);
        match &loss.forgotten {
            Some(runs) => {
                for &run in runs {
                    state.trouble.abandoned.insert(run);
                }
            }
            None => state.trouble.all_abandoned = true,
        }
        let has_abandoned = state.trouble.has_abandoned();
        drop(state);
        self.has_abandoned.store(has_abandoned, Ordering::SeqCst);
        self.grow(ByteOffset(loss.size));
    }

    /// Reports to the kernel what a degraded volume holds.
    pub(super) fn report_stuck(&self, state: &mut State) {
        let stuck = state.stuck();
        if stuck != state.trouble.reported {
            self.memory.change_stuck(state.trouble.reported, stuck);
            state.trouble.reported = stuck;
        }
    }

    /// A tick of write-back: abandons blocks if there is no progress and others need the memory.
    pub(super) async fn look_for_trouble(&self, cpu: &Processor) {
        let left = {
            let mut state = self.state.lock();
            self.report_stuck(&mut state);
            let Some(errno) = state.trouble.errno(&state) else {
                state.trouble.since = None;
                return;
            };
            let since = *state.trouble.since.get_or_insert(cpu.now());
            let left = self.memory.stuck_blocks().saturating_sub(self.held_max()).min(state.stuck());
            if left == 0 || cpu.now().since(since) < GIVE_UP_AFTER {
                return;
            }
            if state.lost.is_none() {
                cpu.trace(Event::FlushFailed, JobId::default(), errno.0 as u64, 0);
                state.lost = Some(errno);
                // Reported to past and future flushes, and to NFS clients by the write verifier.
                state.flush_failures += 1;
                state.last_failure = Some(errno);
            }
            left
        };
        self.abandon(cpu, left).await;
    }

    /// Nothing of the volume will be durable from now on. Unflushed blocks become clean; of the refused blocks, up to
    /// `left` are abandoned. Blocks that the disk still takes, or that were not tried yet, are still written.
    async fn abandon(&self, cpu: &Processor, left: u64) {
        let (unflushed, marked) = {
            let mut state = self.state.lock();
            (std::mem::take(state.unflushed.since_mut()), self.take_marked(&mut state))
        };
        for piece in unflushed.runs().chain(marked.runs()).flat_map(Cache::runs) {
            self.change_states(piece, |state| state.without(BufferState::UNFLUSHED));
        }
        let (mut at, mut left) = (BlockNo(0), left);
        while left > 0 {
            let run = {
                let mut state = self.state.lock();
                let Some(run) = state.trouble.refused.first_run(at.to(BlockNo::MAX), left.min(BLOCKS_AT_ONCE)) else {
                    break;
                };
                at = run.end;
                if run.iter().any(|block| state.is_busy(block)) {
                    continue;
                }
                state.trouble.abandoned.insert(run);
                self.has_abandoned.store(true, Ordering::SeqCst);
                state.trouble.refused.remove(run);
                // No write of it may start now.
                let removed = state.dirty.remove(run);
                self.note_clean(&mut state, removed);
                drop(state);
                self.memory.subtract_dirty(removed);
                run
            };
            left -= run.len();
            self.forget(cpu, run).await;
        }
        self.report_stuck(&mut self.state.lock());
        self.memory.memory_wait().wake_all();
    }

    /// Changes the state of the cached blocks of `piece`, which share a shard.
    pub(super) fn change_states(&self, piece: BlockRange, change: impl Fn(BufferState) -> BufferState) {
        let mut shard = self.lock_shard(piece.start);
        for block in piece.iter() {
            if let Some(slot) = shard.find(self.key(block)) {
                let state = change(shard.state(slot));
                shard.set_state(slot, state);
                if !state.any(BufferState::UNFLUSHED) {
                    self.parts.on_flushed(block);
                }
            }
        }
    }

    /// Blocks that all degraded volumes together may hold.
    pub(super) fn held_max(&self) -> u64 {
        self.memory.cache_blocks() / HELD_SHARE
    }
}
