//! The buffers themselves: the block of each, its user, its dirtiness. Nothing here takes time.

use std::collections::{BTreeSet, HashMap};

use policy::cache::{Algorithm, Replacement, Slot};

use super::{Content, DiskBlock};

/// Slots that one call of the policy examines in vain, at most: [`policy::cache`]'s bound, for each of its queues.
const LOOKS: usize = 32;

#[derive(Clone, Copy, Default)]
struct Buffer {
    block: DiskBlock,
    content: Content,
    /// Holds what the disk holds, or newer content.
    valid: bool,
    /// In use; other users wait (`B_BUSY`).
    busy: bool,
    /// Not used since it was fetched: its first use is no reuse.
    fresh: bool,
}

/// Buffers with memory, and which block each holds.
pub(super) struct Pool {
    buffers: Vec<Buffer>,
    /// For lookups only, never iterated: the order of a hash table is not the same in every run.
    index: HashMap<DiskBlock, Slot>,
    /// With memory, without a block.
    unused: Vec<Slot>,
    /// Without memory.
    vacant: Vec<Slot>,
    replacement: Replacement,
    /// Dirty blocks that are not being written (`B_DELWRI`).
    dirty: BTreeSet<DiskBlock>,
    under_way: u64,
    busy: usize,
    held: usize,
}

impl Pool {
    pub(super) fn new(kind: Algorithm) -> Self {
        Pool {
            buffers: Vec::new(),
            index: HashMap::new(),
            unused: Vec::new(),
            vacant: Vec::new(),
            replacement: Replacement::new(kind),
            dirty: BTreeSet::new(),
            under_way: 0,
            busy: 0,
            held: 0,
        }
    }

    pub(super) fn held(&self) -> u64 {
        self.held as u64
    }

    /// Dirty blocks, with those being written.
    pub(super) fn dirty(&self) -> u64 {
        self.dirty.len() as u64 + self.under_way
    }

    pub(super) fn under_way(&self) -> u64 {
        self.under_way
    }

    /// Dirty blocks whose write has not started.
    pub(super) fn to_write(&self) -> u64 {
        self.dirty.len() as u64
    }

    pub(super) fn find(&self, block: DiskBlock) -> Option<Slot> {
        self.index.get(&block).copied()
    }

    pub(super) fn is_busy(&self, slot: Slot) -> bool {
        self.buffer(slot).busy
    }

    /// The buffer's content, unless it has still to be read.
    pub(super) fn content(&self, slot: Slot) -> Option<Content> {
        let buffer = self.buffer(slot);
        buffer.valid.then_some(buffer.content)
    }

    /// Adds a buffer with memory and without a block.
    pub(super) fn add(&mut self) {
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.buffers.push(Buffer::default());
            // As many buffers as memory holds, so the number fits.
            Slot(self.buffers.len() as u32 - 1)
        });
        self.held += 1;
        self.unused.push(slot);
    }

    /// Removes a buffer without a block. False when there is none.
    pub(super) fn give_up(&mut self) -> bool {
        let Some(slot) = self.unused.pop() else { return false };
        self.held -= 1;
        self.vacant.push(slot);
        true
    }

    pub(super) fn has_unused(&self) -> bool {
        !self.unused.is_empty()
    }

    /// Evicts a block, chosen by the policy. `met` collects the dirty ones that it would have chosen before. False when
    /// none can be evicted.
    pub(super) fn evict(&mut self, met: &mut Vec<Slot>) -> bool {
        let Pool { buffers, replacement, dirty, .. } = self;
        let idle = self.index.len() - self.busy.min(self.index.len()) > dirty.len();
        // If no buffer is clean and idle, one call is enough to meet dirty ones.
        let calls = if idle { replacement.len() / LOOKS + 1 } else { 1 };
        let victim = (0..calls).find_map(|_| {
            replacement.evict(|slot| {
                let buffer = &buffers[slot.0 as usize];
                let is_dirty = dirty.contains(&buffer.block);
                if is_dirty && !buffer.busy {
                    met.push(slot);
                }
                !buffer.busy && !is_dirty
            })
        });
        let Some(slot) = victim else { return false };
        let block = self.buffer(slot).block;
        self.index.remove(&block);
        self.unused.push(slot);
        true
    }

    /// Gives an unused buffer to a block; busy.
    pub(super) fn assign(&mut self, block: DiskBlock, capacity: usize) -> Option<Slot> {
        let slot = self.unused.pop()?;
        self.buffers[slot.0 as usize] = Buffer { block, busy: true, fresh: true, ..Buffer::default() };
        self.busy += 1;
        self.index.insert(block, slot);
        self.replacement.on_insert(slot, hash(block), capacity);
        Some(slot)
    }

    /// Makes the buffer busy, until [`Pool::release`].
    pub(super) fn hold(&mut self, slot: Slot) {
        let buffer = &mut self.buffers[slot.0 as usize];
        assert!(!buffer.busy, "two users of one buffer");
        buffer.busy = true;
        self.busy += 1;
    }

    pub(super) fn release(&mut self, slot: Slot) {
        let buffer = &mut self.buffers[slot.0 as usize];
        assert!(buffer.busy, "released by nobody");
        buffer.busy = false;
        self.busy -= 1;
    }

    /// Reports a use to the policy, unless it is the one that the buffer was fetched for.
    pub(super) fn on_used(&mut self, slot: Slot) {
        if !std::mem::take(&mut self.buffers[slot.0 as usize].fresh) {
            self.replacement.on_hit(slot);
        }
    }

    /// Content read from the disk.
    pub(super) fn fill(&mut self, slot: Slot, content: Content) {
        let buffer = &mut self.buffers[slot.0 as usize];
        (buffer.content, buffer.valid) = (content, true);
    }

    /// New content, to be written.
    pub(super) fn change(&mut self, slot: Slot, content: Content) {
        self.fill(slot, content);
        self.dirty.insert(self.buffer(slot).block);
    }

    /// Starts the write of a busy buffer; returns its block and content.
    pub(super) fn begin_write(&mut self, slot: Slot) -> (DiskBlock, Content) {
        let Buffer { block, content, .. } = *self.buffer(slot);
        self.dirty.remove(&block);
        self.under_way += 1;
        (block, content)
    }

    pub(super) fn end_write(&mut self, slot: Slot) {
        self.under_way -= 1;
        self.release(slot);
    }

    /// The first idle dirty block from `from` on, cyclically.
    pub(super) fn next_dirty(&self, from: DiskBlock) -> Option<(DiskBlock, Slot)> {
        let round = self.dirty.range(from..).chain(self.dirty.range(..from));
        let mut idle = round.filter_map(|block| Some((*block, self.find(*block)?)));
        idle.find(|(_, slot)| !self.is_busy(*slot))
    }

    fn buffer(&self, slot: Slot) -> &Buffer {
        &self.buffers[slot.0 as usize]
    }
}

/// Spreads neighbours (the policy retains only a part of it).
fn hash(block: DiskBlock) -> u64 {
    (block.0 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}
