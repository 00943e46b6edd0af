//! A shard of the buffer cache, under one lock: the frame and the state of each of its blocks.

use std::collections::HashSet;
use std::task::Waker;

use policy::cache::{Algorithm, Replacement, Slot, Slots};
use policy::unit::{BlockNo, DeviceId};

use super::index::{END, Index, Links, mix};
use crate::block_key::BlockKey;
use crate::frame::{FrameNo, FramePool, FrameRef};

/// The state of a buffer: a set of flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct State(u8);

impl State {
    /// Content is valid and durable on the device.
    pub(crate) const CLEAN: State = State(0);
    /// Content is being read from the device.
    pub(crate) const LOADING: State = State(1);
    /// Content is newer than the device's.
    pub(crate) const DIRTY: State = State(2);
    /// Content, or an earlier version of it, is being written.
    pub(crate) const WRITING: State = State(4);
    /// Written since the device's last successful flush. Must not be evicted: if the flush fails, it must be written
    /// again.
    pub(crate) const UNFLUSHED: State = State(8);
    /// There are waiters for a change of state.
    const AWAITED: State = State(16);

    /// May the buffer be evicted in this state?
    fn may_go(self) -> bool {
        self.without(State::AWAITED) == State::CLEAN
    }

    pub(crate) fn any(self, flags: State) -> bool {
        self.0 & flags.0 != 0
    }

    pub(crate) fn with(self, flags: State) -> State {
        State(self.0 | flags.0)
    }

    pub(crate) fn without(self, flags: State) -> State {
        State(self.0 & !flags.0)
    }
}

/// A block and the frame that holds it. 16 bytes.
#[derive(Clone, Copy)]
struct Buffer {
    key: BlockKey,
    frame: FrameNo,
    /// Upper 27 bits: the next slot in the index's chain. Lower 5 bits: the state.
    word: u32,
}

const STATE_BITS: u32 = 5;

impl Buffer {
    fn state(&self) -> State {
        State((self.word & ((1 << STATE_BITS) - 1)) as u8)
    }

    fn set_state(&mut self, state: State) {
        self.word = self.word >> STATE_BITS << STATE_BITS | u32::from(state.0);
    }
}

impl Links for Slots<Buffer> {
    fn key(&self, slot: Slot) -> BlockKey {
        self[slot.0].key
    }

    fn next(&self, slot: Slot) -> Slot {
        Slot(self[slot.0].word >> STATE_BITS)
    }

    fn set_next(&mut self, slot: Slot, next: Slot) {
        let buffer = &mut self[slot.0];
        buffer.word = next.0 << STATE_BITS | u32::from(buffer.state().0);
    }
}

pub(crate) struct Shard {
    index: Index,
    buffers: Slots<Buffer>,
    spare: Vec<Slot>,
    replacement: Replacement,
    waiting: Vec<(Slot, Waker)>,
}

impl Shard {
    pub(super) fn new(kind: Algorithm) -> Self {
        Shard {
            index: Index::default(),
            buffers: Slots::new(),
            spare: Vec::new(),
            replacement: Replacement::new(kind),
            waiting: Vec::new(),
        }
    }

    /// Changes the replacement algorithm.
    pub(super) fn set_kind(&mut self, kind: Algorithm) {
        self.replacement.set_algorithm(kind);
    }

    pub(crate) fn find(&self, key: BlockKey) -> Option<Slot> {
        self.index.find(key, &self.buffers)
    }

    pub(crate) fn state(&self, slot: Slot) -> State {
        self.buffers[slot.0].state()
    }

    /// Changes the state and wakes its waiters.
    pub(crate) fn set_state(&mut self, slot: Slot, state: State) {
        let state = state.without(State::AWAITED);
        let buffer = &mut self.buffers[slot.0];
        let before = buffer.state();
        buffer.set_state(state);
        match (before.may_go(), state.may_go()) {
            (true, false) => self.replacement.on_hold(slot),
            (false, true) => self.replacement.on_release(slot),
            _ => {}
        }
        self.wake(slot);
    }

    /// Records a use of the block.
    pub(crate) fn touch(&mut self, slot: Slot) {
        self.replacement.on_hit(slot);
    }

    /// A reference to the block's frame.
    pub(crate) fn share(&self, slot: Slot, pool: &FramePool) -> FrameRef {
        // SAFETY: the buffer holds a reference while it exists, and the shard is locked.
        unsafe { pool.share(self.buffers[slot.0].frame) }
    }

    /// Does only the cache hold the frame? Then no other reference can be made while the shard is locked.
    pub(crate) fn is_sole_owner(&self, slot: Slot, pool: &FramePool) -> bool {
        pool.references(self.buffers[slot.0].frame) == 1
    }

    /// Changes a part of the content in place, if only the cache holds the frame. Returns whether it did.
    pub(crate) fn patch_if_sole(&mut self, slot: Slot, offset: usize, bytes: &[u8], pool: &FramePool) -> bool {
        assert!(offset + bytes.len() <= crate::frame::FRAME_BYTES, "a patch outside its frame");
        if !self.is_sole_owner(slot, pool) {
            return false;
        }
        let frame = self.share(slot, pool);
        // SAFETY: inside the frame; there is no other reference, and none can be made while the shard is borrowed.
        unsafe { frame.as_ptr().add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        frame.clear_verified();
        true
    }

    pub(crate) fn frame_no(&self, slot: Slot) -> FrameNo {
        self.buffers[slot.0].frame
    }

    /// The block must not be cached. `capacity`: buffers that the shard should hold.
    pub(crate) fn insert(
        &mut self,
        key: BlockKey,
        frame: FrameRef,
        state: State,
        capacity: usize,
        pool: &FramePool,
    ) -> Slot {
        pool.set_owner(frame.no(), key);
        let buffer = Buffer { key, frame: frame.into_no(), word: END.0 << STATE_BITS | u32::from(state.0) };
        let slot = match self.spare.pop() {
            Some(slot) => {
                self.buffers[slot.0] = buffer;
                slot
            }
            None => {
                self.buffers.push(buffer);
                Slot(self.buffers.len() as u32 - 1)
            }
        };
        self.index.insert(slot, &mut self.buffers);
        self.replacement.on_insert(slot, mix(key.0), capacity);
        if !state.may_go() {
            self.replacement.on_hold(slot);
        }
        slot
    }

    /// Replaces a block's frame; returns the old one.
    pub(crate) fn replace(&mut self, slot: Slot, frame: FrameRef, pool: &FramePool) -> FrameRef {
        let buffer = &mut self.buffers[slot.0];
        pool.set_owner(frame.no(), buffer.key);
        let old = std::mem::replace(&mut buffer.frame, frame.into_no());
        // SAFETY: the number came from `into_no` when the buffer was filled, and is taken back here once.
        unsafe { pool.adopt(old) }
    }

    /// Drops a block and wakes its waiters.
    pub(crate) fn remove(&mut self, slot: Slot, pool: &FramePool) -> FrameRef {
        self.replacement.on_remove(slot);
        self.unlink(slot, pool)
    }

    /// Evicts the least needed block, of those that are clean and not in use.
    pub(super) fn evict(&mut self, pool: &FramePool) -> Option<FrameRef> {
        let buffers = &self.buffers;
        let slot = self.replacement.evict(|slot| {
            // The policy does not ask for dirty buffers or those in flight: they are on hold.
            pool.references(buffers[slot.0].frame) == 1
        })?;
        Some(self.unlink(slot, pool))
    }

    /// Is the block used often?
    pub(super) fn is_hot(&self, slot: Slot) -> bool {
        self.replacement.is_hot(slot)
    }

    /// The buffers of one device.
    pub(crate) fn slots_of(&self, device: DeviceId) -> Vec<Slot> {
        let spare: HashSet<Slot> = self.spare.iter().copied().collect();
        (0..self.buffers.len() as u32)
            .map(Slot)
            .filter(|slot| !spare.contains(slot) && self.buffers[slot.0].key.device() == device)
            .collect()
    }

    /// The block number of a buffer.
    pub(crate) fn block(&self, slot: Slot) -> BlockNo {
        self.buffers[slot.0].key.block()
    }

    pub(crate) fn may_go(&self, slot: Slot) -> bool {
        self.state(slot).may_go()
    }

    /// Registers a waiter for a change of the block's state.
    pub(super) fn wait(&mut self, slot: Slot, waker: &Waker) {
        let buffer = &mut self.buffers[slot.0];
        buffer.set_state(buffer.state().with(State::AWAITED));
        self.waiting.push((slot, waker.clone()));
    }

    pub(super) fn len(&self) -> usize {
        self.buffers.len() - self.spare.len()
    }

    pub(super) fn bookkeeping_bytes(&self) -> usize {
        self.buffers.bytes()
            + self.spare.capacity() * size_of::<Slot>()
            + self.index.bookkeeping_bytes()
            + self.replacement.bookkeeping_bytes()
    }

    /// Returns all frames to the pool, at the end of the kernel.
    pub(super) fn clear(&mut self, pool: &FramePool) {
        self.spare.sort_unstable();
        for (slot, buffer) in (0..).zip(self.buffers.iter()) {
            if self.spare.binary_search(&Slot(slot)).is_err() {
                // SAFETY: as in `replace`.
                drop(unsafe { pool.adopt(buffer.frame) });
            }
        }
        self.buffers.truncate(0);
        self.spare.clear();
    }

    fn unlink(&mut self, slot: Slot, pool: &FramePool) -> FrameRef {
        self.wake(slot);
        self.index.remove(slot, &mut self.buffers);
        self.spare.push(slot);
        // SAFETY: as in `replace`; the slot is spare now.
        unsafe { pool.adopt(self.buffers[slot.0].frame) }
    }

    fn wake(&mut self, slot: Slot) {
        if self.waiting.is_empty() {
            return;
        }
        self.waiting.retain(|(of, waker)| {
            if *of == slot {
                waker.wake_by_ref();
            }
            *of != slot
        });
    }
}
