//! A disk that does not take what it is given.
//!
//! Its volume keeps what it could not write and tries again every second: most trouble passes (a path that is switched
//! over, a full pool that is made larger). But a disk that stays broken must not keep memory from the volumes of others.
//! So what such volumes hold counts among nobody else's dirty blocks; together they may hold a twentieth of the cache, and
//! new writes beyond that are refused with the disk's error; and who has held more for half a minute, in which nothing got
//! better, gives up. Then the volume is lost: every flush fails from then on, and so does every change and every read of
//! what was forgotten, until the volume is opened anew. So whoever asks whether a write is durable is told.
//!
//! What others do: Linux marks pages clean when their write-back failed and tells each open file once (`errseq_t`), so the
//! second `fsync` succeeds over lost data, as PostgreSQL found out in 2018. ZFS suspends the whole pool and waits for an
//! operator (`failmode=wait`): nothing is lost, and everybody waits. QEMU stops the guest or hands it the error (`werror`).

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

use machine::Errno;
use policy::unit::Instant;

use super::block_set::BlockSet;
use super::{State, Volume};
use crate::cache::{Cache, State as BufferState, key};
use crate::processor::Processor;
use crate::request::JobId;
use crate::trace::Event;

/// The part of the cache that volumes on failing disks may hold together.
const HELD_SHARE: u64 = 20;

/// A volume whose trouble has not become less for so long gives up what it holds beyond that.
const GIVE_UP_AFTER: Duration = Duration::from_secs(30);

/// While a disk refuses writes, so many parts of what is dirty are tried at a time, and so many blocks at least.
const PARTS_TRIED: u64 = 16;
const BLOCKS_TRIED: u64 = 1024;

/// Blocks forgotten between two chances for other tasks.
const BLOCKS_AT_ONCE: u64 = 1024;

/// What became of a volume of which something was forgotten before the disk had it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// What every flush and change is told.
    pub errno: Errno,
    /// The volume's size. Bytes.
    pub size: u64,
    /// The blocks that were forgotten; nothing: perhaps all.
    pub forgotten: Option<Vec<Range<u64>>>,
}

impl Loss {
    /// Runs that it takes to remember it.
    pub fn runs(&self) -> usize {
        self.forgotten.as_ref().map_or(0, Vec::len)
    }
}

/// What a volume's disk does not take.
#[derive(Default)]
pub(super) struct Trouble {
    /// Blocks whose last write failed. They are dirty, or on their way again.
    refused: BlockSet,
    /// The last write failed with this.
    writes: Option<Errno>,
    /// The last flush failed with this.
    flushes: Option<Errno>,
    /// Nothing has got better since.
    since: Option<Instant>,
    /// Blocks that were forgotten before the disk had them.
    given_up: BlockSet,
    /// All of them, as far as is known.
    all_given_up: bool,
    /// What the kernel was told that the volume holds.
    told: u64,
}

impl Trouble {
    pub(super) fn on_write_failed(&mut self, blocks: Range<u64>, errno: Errno) {
        self.refused.insert(blocks);
        self.writes = Some(errno);
    }

    pub(super) fn on_written(&mut self, blocks: Range<u64>) {
        self.writes = None;
        self.on_gone(blocks);
    }

    /// Blocks are not to be written any more.
    pub(super) fn on_gone(&mut self, blocks: Range<u64>) {
        if !self.refused.is_empty() && self.refused.remove(blocks) > 0 {
            self.since = None;
        }
    }

    pub(super) fn on_flush(&mut self, result: Result<(), Errno>) {
        let before = std::mem::replace(&mut self.flushes, result.err());
        if before.is_some() && result.is_ok() {
            self.since = None;
        }
    }

    /// What the disk says, if it is in trouble.
    fn errno(&self, state: &State) -> Option<Errno> {
        let refused = || state.last_failure.filter(|_| !self.refused.is_empty());
        self.writes.or(self.flushes.filter(|_| state.is_flush_in_doubt())).or_else(refused)
    }

    /// What the kernel was told that the volume holds. Blocks.
    pub(super) fn told(&self) -> u64 {
        self.told
    }

    pub(super) fn has_given_up(&self) -> bool {
        self.all_given_up || !self.given_up.is_empty()
    }
}

impl State {
    /// Does the disk not take what it is given?
    pub(super) fn is_in_trouble(&self) -> bool {
        self.trouble.errno(self).is_some()
    }

    /// Did the last flush fail, and may another one succeed?
    pub(super) fn is_flush_in_doubt(&self) -> bool {
        self.trouble.flushes.is_some() && self.lost.is_none()
    }

    /// How many dirty blocks are worth a try now.
    pub(super) fn worth_trying(&self) -> u64 {
        let dirty = self.dirty.len();
        if self.trouble.writes.is_some() { dirty.min((dirty / PARTS_TRIED).max(BLOCKS_TRIED)) } else { dirty }
    }

    /// Blocks that stay in the cache because the disk is in trouble.
    fn stuck(&self) -> u64 {
        let trouble = &self.trouble;
        let on_their_way = self.dirty.len() + self.writing.len();
        if self.is_flush_in_doubt() {
            on_their_way + self.unflushed.len() + self.flushing.len()
        } else if trouble.writes.is_some() {
            on_their_way
        } else {
            trouble.refused.len()
        }
    }
}

impl Volume {
    /// Why nothing more may be written, if so.
    pub(super) fn refusal(&self) -> Option<Errno> {
        let mut state = self.state();
        if state.trouble.has_given_up() {
            return state.lost;
        }
        let errno = state.trouble.errno(&state)?;
        self.tell_stuck(&mut state);
        (self.kernel.stuck_blocks() > self.held_max()).then_some(errno)
    }

    /// Is any of `blocks` one that was forgotten before the disk had it?
    pub(super) fn is_given_up(&self, blocks: &Range<u64>) -> bool {
        self.has_given_up.load(Ordering::SeqCst) && {
            let state = self.state();
            state.trouble.all_given_up || state.trouble.given_up.first_run(blocks.clone(), 1).is_some()
        }
    }

    /// What was lost, if anything was.
    pub fn loss(&self) -> Option<Loss> {
        let state = self.state();
        let errno = state.lost?;
        let forgotten = (!state.trouble.all_given_up).then(|| state.trouble.given_up.runs().collect());
        Some(Loss { errno, size: self.size(), forgotten })
    }

    /// The volume was open before, and this was lost then. To be said before anybody uses it.
    pub fn restore_loss(&self, loss: &Loss) {
        let mut state = self.state();
        state.lost = Some(loss.errno);
        match &loss.forgotten {
            Some(runs) => {
                for run in runs {
                    state.trouble.given_up.insert(run.clone());
                }
            }
            None => state.trouble.all_given_up = true,
        }
        let has_given_up = state.trouble.has_given_up();
        drop(state);
        self.has_given_up.store(has_given_up, Ordering::SeqCst);
        self.grow(loss.size);
    }

    /// Tells the kernel what the volume holds because its disk is in trouble.
    pub(super) fn tell_stuck(&self, state: &mut State) {
        let stuck = state.stuck();
        if stuck != state.trouble.told {
            self.kernel.change_stuck(state.trouble.told, stuck);
            state.trouble.told = stuck;
        }
    }

    /// A tick of write-back: gives up when nothing gets better and others need the memory.
    pub(super) async fn look_for_trouble(&self, cpu: &Processor) {
        let left = {
            let mut state = self.state();
            self.tell_stuck(&mut state);
            let Some(errno) = state.trouble.errno(&state) else {
                state.trouble.since = None;
                return;
            };
            let since = *state.trouble.since.get_or_insert(cpu.now());
            let left = self.kernel.stuck_blocks().saturating_sub(self.held_max()).min(state.stuck());
            if left == 0 || cpu.now().since(since) < GIVE_UP_AFTER {
                return;
            }
            if state.lost.is_none() {
                cpu.trace(Event::FlushFailed, JobId::default(), errno.0 as u64, 0);
                state.lost = Some(errno);
                // Who asked for a flush, or will, is told; so are clients of NFS, by the verifier.
                state.flush_failures += 1;
                state.last_failure = Some(errno);
            }
            left
        };
        self.give_up(cpu, left).await;
    }

    /// Nothing of the volume will ever be durable again. What the disk has taken may leave the cache; of what it has
    /// refused, up to `left` blocks are forgotten. What it takes still, or has not been given yet, has its turn.
    async fn give_up(&self, cpu: &Processor, left: u64) {
        let unflushed = std::mem::take(&mut self.state().unflushed);
        for piece in unflushed.runs().flat_map(Cache::runs) {
            self.change_states(piece, |state| state.without(BufferState::UNFLUSHED));
        }
        let (mut at, mut left) = (0, left);
        while left > 0 {
            let run = {
                let mut state = self.state();
                let Some(run) = state.trouble.refused.first_run(at..u64::MAX, left.min(BLOCKS_AT_ONCE)) else { break };
                at = run.end;
                if run.clone().any(|block| state.is_busy(block)) {
                    continue;
                }
                state.trouble.given_up.insert(run.clone());
                self.has_given_up.store(true, Ordering::SeqCst);
                state.trouble.refused.remove(run.clone());
                // Nobody may begin to write it now.
                let removed = state.dirty.remove(run.clone());
                self.note_clean(&mut state, removed);
                drop(state);
                self.kernel.subtract_dirty(removed);
                run
            };
            left -= run.end - run.start;
            self.forget(cpu, run).await;
        }
        self.tell_stuck(&mut self.state());
        self.kernel.memory_wait().wake_all();
    }

    /// Changes what is going on with the blocks of `piece` that are in the cache; they share a shard.
    pub(super) fn change_states(&self, piece: Range<u64>, change: impl Fn(BufferState) -> BufferState) {
        let mut shard = self.kernel.cache().lock(self.id, piece.start);
        for block in piece {
            if let Some(slot) = shard.find(key(self.id, block)) {
                let state = change(shard.state(slot));
                shard.set_state(slot, state);
                if !state.any(BufferState::UNFLUSHED) {
                    self.parts.on_flushed(block);
                }
            }
        }
    }

    fn held_max(&self) -> u64 {
        self.kernel.cache_blocks() / HELD_SHARE
    }
}
