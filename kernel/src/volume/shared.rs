//! Volumes whose blocks other nodes cache, too: which of them this node may write, and what it gives up.
//!
//! A block is in the cache only while this node holds it, so a hit asks nobody, and volumes of one node pay one test of
//! a pointer on a miss and on a write. Who holds what is decided by the volume's [`Coherence`]: it changes blocks with
//! [`Volume::change`] and takes them out with [`Volume::give_up`], neither of which waits. So a write is installed in
//! the moment in which its block is granted, and a recall never waits for a reader or writer of this node. Rejected: a
//! guard that a writer holds while it installs. A write of two blocks then holds one while it waits for the other, which
//! another node may hold in the same way.
//!
//! Lock order: what a `Coherence` locks comes before a shard.

use std::ops::Range;
use std::sync::Arc;

use machine::Errno;
use policy::cache::Slot;
use policy::unit::{BlockNo, BlockRange, ByteRange, JobId, ProcessorId, Stability};

use super::write::Patched;
use super::{State, Volume, VolumeConfig};
use crate::Kernel;
use crate::cache::{Cache, Shard, State as BufferState};
use crate::device::{DeviceRef, TooManyDevices, Work};
use crate::frame::{FrameRef, Frames};
use crate::processor::Processor;
use crate::request::Context;

/// Zeroes written in one pass. Blocks.
const ZEROES_AT_ONCE: u64 = 64;

/// What a write does to one block.
pub enum Change {
    /// Its new content.
    Whole(FrameRef),
    /// The bytes in `part` of `from`. `spare` becomes the block's frame if others have a share in the present one.
    Part { part: Range<usize>, from: FrameRef, spare: Option<FrameRef> },
}

/// Who has written what may not be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrittenBy {
    /// One of this node.
    Program,
    /// Other nodes.
    Others,
}

/// Decides which blocks of a volume this node may have.
pub trait Coherence: Send + Sync {
    /// Whether this node may answer now: it is no more a node of the volume otherwise. To be asked when an answer is ready,
    /// before it leaves: what it says was true then.
    fn answers(&self) -> bool;

    /// The content of blocks, each as it is when this node is granted it, which puts it into the cache. All blocks are
    /// asked for at once. `spare`: a frame for each block, which is filled if its content does not come in one, else freed; a device may
    /// read into it also after this has failed.
    fn read<'a>(&'a self, cpu: &'a Processor, blocks: BlockRange, spare: Frames) -> Work<'a, Frames>;

    /// Makes the changes, each when no other node has its block; completes when all are made. All blocks are asked for
    /// at once.
    fn write<'a>(&'a self, cpu: &'a Processor, changes: Vec<(BlockNo, Change)>, job: JobId) -> Work<'a, ()>;

    /// What is known when a flush is asked for, before anything is done for it.
    fn known(&self) -> Known;

    /// Makes durable what was acknowledged before at any node, once this node has stored what it had written.
    fn flush<'a>(&'a self, cpu: &'a Processor) -> Work<'a, ()>;

    /// A flush ends, which was asked for when this was `known`.
    ///
    /// # Errors
    /// Something may be lost with a death or a failed flush elsewhere that was not known: a failed flush fails each that was
    /// asked for before one has returned it, a death each that was asked for before it was known, and no later one.
    fn end_flush(&self, known: Known) -> Result<(), Errno>;
}

/// What a flush need not return. Counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known {
    /// Other nodes that have ended, and may have lost what they had acknowledged and not made durable.
    pub deaths: u64,
    /// Failed flushes of other nodes that flushes of this one have returned.
    pub failures: u64,
}

impl Volume {
    /// Opens a volume whose blocks other nodes cache, too. `device` asks the other nodes: a write completes when the
    /// block's home has it. All requests are whole blocks.
    ///
    /// # Errors
    /// As [`Volume::open`].
    pub fn open_shared(
        kernel: &Arc<Kernel>,
        device: DeviceRef,
        coherence: Arc<dyn Coherence>,
        config: VolumeConfig,
        home: ProcessorId,
    ) -> Result<Arc<Self>, TooManyDevices> {
        Volume::open_as(kernel, device, Some(coherence), config, home)
    }

    /// As [`Volume::write`], after the range was checked and the writer admitted.
    pub(super) async fn write_shared(
        &self,
        cpu: &Processor,
        coherence: &Arc<dyn Coherence>,
        range: ByteRange,
        frames: Frames,
        context: Context,
    ) -> Result<(), Errno> {
        let blocks = range.blocks();
        let was_cached = self.has(blocks.start);
        let mut changes = Vec::with_capacity(frames.len());
        for (block, frame) in blocks.iter().zip(frames) {
            let change = if range.whole_blocks().contains(block) {
                Change::Whole(frame)
            } else {
                let spare = self.memory.allocate(cpu, 1).await.pop();
                Change::Part { part: self.part_of(block, range), from: frame, spare }
            };
            changes.push((block, change));
        }
        coherence.write(cpu, changes, context.job).await?;
        match context.stability {
            Stability::Unstable => self.write_early(cpu, blocks, was_cached, context),
            Stability::Stable => self.write_through(cpu, blocks, context).await?,
        }
        Ok(())
    }

    /// Zeroes by writing: other nodes must give up the blocks anyway.
    pub(super) async fn zero_shared(
        &self,
        cpu: &Processor,
        coherence: &Arc<dyn Coherence>,
        range: ByteRange,
        context: Context,
    ) -> Result<(), Errno> {
        for piece in range.blocks().pieces(ZEROES_AT_ONCE) {
            self.admit(cpu, context).await?;
            let mut frames = self.memory.allocate(cpu, piece.len() as usize).await;
            frames.iter_mut().filter_map(FrameRef::bytes_mut).for_each(|bytes| bytes.fill(0));
            let bytes = piece.bytes();
            let bytes = bytes.at.max(range.at).to(bytes.end().min(range.end()));
            self.write_shared(cpu, coherence, bytes, frames, context).await?;
        }
        Ok(())
    }

    /// Changes a block that no other node has. Gives the change back if the block's content is needed for it, and not
    /// cached.
    pub fn change(&self, block: BlockNo, change: Change, job: JobId) -> Result<(), Change> {
        let changed = self.make(block, change, job);
        if changed.is_ok() {
            // What is dirty stays in any case.
            self.unmark(block);
        }
        changed
    }

    fn make(&self, block: BlockNo, change: Change, job: JobId) -> Result<(), Change> {
        match change {
            Change::Whole(frame) => {
                self.install(block.run(1), &mut std::iter::once(frame));
                self.mark_dirty(block.run(1), job);
                Ok(())
            }
            Change::Part { part, from, mut spare } => {
                match self.try_patch(block, part.clone(), &from.bytes()[part.clone()], &mut spare, job) {
                    Patched::Done => Ok(()),
                    Patched::Absent | Patched::Shared => Err(Change::Part { part, from, spare }),
                }
            }
        }
    }

    /// This node now holds the block, with this content: whoever waits for it to be loaded goes on. `by`: who has written it, if
    /// it may not be durable. What a program of this node has written counts as written by this volume, and stays cached until
    /// a flush has covered it. What others have is marked, up to a limit, unless it stays in any case. True: it is.
    pub fn put(&self, block: BlockNo, frame: FrameRef, by: Option<WrittenBy>) -> bool {
        let mut shard = self.lock_shard(block);
        let slot = self.put_in(&mut shard, block, frame);
        let (before, mut is_written, mut is_marked) = (shard.state(slot), false, false);
        if let Some(by) = by.filter(|_| !self.config.read_only) {
            let mut state = self.state.lock();
            let stays = before.any(BufferState::DIRTY.with(BufferState::WRITING).with(BufferState::UNFLUSHED));
            is_written = by == WrittenBy::Program && self.note_unflushed(&mut state, block);
            state.changes += u64::from(is_written);
            is_marked = by == WrittenBy::Others && !stays && self.note_marked(&mut state, block);
        }
        if is_written || is_marked {
            shard.set_state(slot, before.with(BufferState::UNFLUSHED));
        }
        drop(shard);
        if is_written {
            self.start_write_back();
        }
        is_marked
    }

    /// As [`Volume::put`] of adjacent blocks, which are durable.
    pub fn put_run(&self, blocks: BlockRange, mut frames: impl Iterator<Item = FrameRef>) {
        for run in Cache::runs(blocks) {
            let mut shard = self.lock_shard(run.start);
            for (block, frame) in run.iter().zip(&mut frames) {
                self.put_in(&mut shard, block, frame);
            }
        }
    }

    fn put_in(&self, shard: &mut Shard, block: BlockNo, frame: FrameRef) -> Slot {
        let (cache, pool) = (self.memory.cache(), self.memory.frames());
        match shard.find(self.key(block)) {
            Some(slot) => {
                if shard.may_go(slot) || shard.state(slot).any(BufferState::LOADING) {
                    let state = shard.state(slot).without(BufferState::LOADING);
                    drop(shard.replace(slot, frame, pool));
                    shard.set_state(slot, state);
                }
                slot
            }
            None => {
                self.note_block(block);
                shard.insert(self.key(block), frame, BufferState::CLEAN, cache.shard_capacity(), pool)
            }
        }
    }

    /// This node holds the block, but has no frame to cache it in: who waits for it to be loaded looks again.
    pub fn unload(&self, block: BlockNo) {
        let mut shard = self.lock_shard(block);
        let slot = shard.find(self.key(block)).filter(|slot| shard.state(*slot).any(BufferState::LOADING));
        slot.into_iter().for_each(|slot| drop(shard.remove(slot, self.memory.frames())));
    }

    /// The content of a block, if it is cached.
    pub fn cached(&self, block: BlockNo) -> Option<FrameRef> {
        let shard = self.lock_shard(block);
        let slot = shard.find(self.key(block)).filter(|slot| !shard.state(*slot).any(BufferState::LOADING))?;
        Some(shard.share(slot, self.memory.frames()))
    }

    /// Is the content of a block cached?
    pub fn is_cached(&self, block: BlockNo) -> bool {
        let shard = self.lock_shard(block);
        shard.find(self.key(block)).is_some_and(|slot| !shard.state(slot).any(BufferState::LOADING))
    }

    /// Whether clients may be answered now. A shared volume's node may have to stop at any time.
    pub fn may_answer(&self) -> bool {
        self.coherence.as_ref().is_none_or(|coherence| coherence.answers())
    }

    fn has(&self, block: BlockNo) -> bool {
        self.memory.cache().has(self.key(block))
    }

    /// False: no flush will ever succeed again.
    fn note_unflushed(&self, state: &mut State, block: BlockNo) -> bool {
        let may_be_flushed = state.lost.is_none();
        if may_be_flushed {
            state.unflushed.since_mut().insert(block.run(1));
        }
        may_be_flushed
    }

    /// The content of the block, if it is cached and may not be durable.
    pub fn uncertain(&self, block: BlockNo) -> Option<FrameRef> {
        let states = BufferState::DIRTY.with(BufferState::WRITING).with(BufferState::UNFLUSHED);
        let shard = self.lock_shard(block);
        let slot = shard.find(self.key(block)).filter(|slot| shard.state(*slot).any(states))?;
        Some(shard.share(slot, self.memory.frames()))
    }

    /// Is the block cached, and newer than what the device has?
    pub fn is_unwritten(&self, block: BlockNo) -> bool {
        let shard = self.lock_shard(block);
        let states = BufferState::DIRTY.with(BufferState::WRITING);
        shard.find(self.key(block)).is_some_and(|slot| shard.state(slot).any(states))
    }

    /// This node may not write the block any more, nor, unless `retain`, read it. Returns its content, if it is cached:
    /// what was dirty is the caller's to store, and counts as written to the device: what is retained of that stays cached until
    /// a flush has covered it.
    pub fn give_up(&self, block: BlockNo, retain: bool) -> Option<FrameRef> {
        let pool = self.memory.frames();
        let mut shard = self.lock_shard(block);
        let slot = shard.find(self.key(block)).filter(|slot| !shard.state(*slot).any(BufferState::LOADING))?;
        let content = shard.share(slot, pool);
        let before = shard.state(slot).without(BufferState::DIRTY);
        let was_dirty = shard.state(slot).any(BufferState::DIRTY);
        // With the shard locked: a later write of the block must not be counted as this one.
        let (removed, is_unflushed) = {
            let mut state = self.state.lock();
            if was_dirty {
                // Otherwise the next flush would find nothing to do.
                state.changes += 1;
            }
            let removed = self.forget_dirty(&mut state, block.run(1), retain);
            (removed, retain && was_dirty && self.note_unflushed(&mut state, block))
        };
        match retain {
            true if is_unflushed => shard.set_state(slot, before.with(BufferState::UNFLUSHED)),
            true => shard.set_state(slot, before),
            false => drop(shard.remove(slot, pool)),
        }
        drop(shard);
        self.memory.subtract_dirty(removed);
        Some(content)
    }

    fn forget_dirty(&self, state: &mut State, blocks: BlockRange, retain: bool) -> u64 {
        if !retain {
            state.unflushed.remove(blocks);
            self.forget_marked(state, blocks);
        }
        state.trouble.on_gone(blocks);
        let removed = state.dirty.remove(blocks);
        self.note_clean(state, removed);
        removed
    }
}
