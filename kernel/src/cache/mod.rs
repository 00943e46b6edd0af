//! The buffer cache (WS-2), shared by all processors: blocks of all devices, in shards with a lock each.
//!
//! Neighbouring blocks share a shard, so that a request of ordinary length takes one lock. A shard's lock is never
//! held across a wait, and no other lock but a free list of the frame pool is taken under it.

mod index;
mod shard;

use std::future::poll_fn;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use policy::cache::Kind;
use policy::unit::DeviceId;

use crate::counters::{CountedGuard, CountedMutex, Counter, LockReading};
use crate::frame::{FrameNo, FramePool, FrameRef, Frames};
pub(crate) use shard::{Shard, State};

/// Blocks that share a shard: 128 KiB.
const NEIGHBOURS: u64 = 32;

/// Evictions tried in one shard before the next has its turn.
const EVICTIONS_A_SHARD: usize = 16;

pub struct Cache {
    shards: Box<[Padded]>,
    turn: AtomicUsize,
    /// Buffers that a shard should hold.
    shard_capacity: AtomicUsize,
}

#[repr(align(128))]
struct Padded {
    shard: CountedMutex<Shard>,
    evicted: Counter,
}

impl Padded {
    fn new(kind: Kind) -> Self {
        Padded { shard: CountedMutex::new(Shard::new(kind)), evicted: Counter::default() }
    }
}

/// Packs a block's name. Panics when the device is larger than 2^60 bytes, which no open device is.
pub(crate) fn key(device: DeviceId, block: u64) -> u64 {
    assert!(block < 1 << 48, "block {block} beyond 2^48");
    u64::from(device.0) << 48 | block
}

/// The block that a packed name stands for.
pub(crate) fn unpack(key: u64) -> (DeviceId, u64) {
    (DeviceId((key >> 48) as u16), key & ((1 << 48) - 1))
}

impl Cache {
    /// An empty cache of `shards` parts.
    pub(crate) fn new(shards: usize, kind: Kind) -> Self {
        Cache {
            shards: (0..shards.max(1)).map(|_| Padded::new(kind)).collect(),
            turn: AtomicUsize::new(0),
            shard_capacity: AtomicUsize::new(1),
        }
    }

    /// Chooses what goes in another way from now on. What is here stays, in its order.
    pub(crate) fn set_kind(&self, kind: Kind) {
        for shard in &self.shards {
            shard.shard.lock().set_kind(kind);
        }
    }

    /// Tells how many blocks the cache may hold now.
    pub(crate) fn set_capacity(&self, blocks: u64) {
        let each = (blocks as usize / self.shards.len()).max(1);
        self.shard_capacity.store(each, Ordering::Relaxed);
    }

    /// Buffers that a shard should hold now.
    pub(crate) fn shard_capacity(&self) -> usize {
        self.shard_capacity.load(Ordering::Relaxed)
    }

    /// Locks the shard of `block`. It also has the other blocks of [`Cache::runs`]' piece.
    pub(crate) fn lock(&self, device: DeviceId, block: u64) -> CountedGuard<'_, Shard> {
        let hash = index::mix(key(device, block) / NEIGHBOURS);
        let shard = (hash as u32 as u64 * self.shards.len() as u64) >> 32;
        self.shards[shard as usize].shard.lock()
    }

    /// How many shards there are.
    pub(crate) fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Locks a shard by its number.
    pub(crate) fn lock_number(&self, shard: usize) -> CountedGuard<'_, Shard> {
        self.shards[shard].shard.lock()
    }

    /// Cuts a run of blocks into pieces that share a shard.
    pub(crate) fn runs(blocks: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let mut at = blocks.start;
        std::iter::from_fn(move || {
            let start = at;
            at = blocks.end.min((start / NEIGHBOURS + 1) * NEIGHBOURS);
            (start < blocks.end).then_some(start..at)
        })
    }

    /// Appends shares in the frames of all `blocks`, if all are here; otherwise leaves `into` as it was.
    pub(crate) fn try_share(&self, device: DeviceId, blocks: Range<u64>, pool: &FramePool, into: &mut Frames) -> bool {
        let before = into.len();
        into.reserve((blocks.end - blocks.start).min(NEIGHBOURS * 8) as usize);
        for run in Cache::runs(blocks) {
            let mut shard = self.lock(device, run.start);
            for block in run {
                match shard.find(key(device, block)) {
                    Some(slot) if !shard.state(slot).any(State::LOADING) => {
                        shard.touch(slot);
                        into.push(shard.share(slot, pool));
                    }
                    _ => {
                        drop(shard);
                        into.truncate(before);
                        return false;
                    }
                }
            }
        }
        true
    }

    /// Is the block here, or on its way?
    pub(crate) fn has(&self, device: DeviceId, block: u64) -> bool {
        self.lock(device, block).find(key(device, block)).is_some()
    }

    /// Waits until a block is not in any of `states` (or not here at all).
    pub(crate) async fn until_not(&self, device: DeviceId, block: u64, states: State) {
        poll_fn(|cx| {
            let mut shard = self.lock(device, block);
            match shard.find(key(device, block)) {
                Some(slot) if shard.state(slot).any(states) => {
                    shard.wait(slot, cx.waker());
                    Poll::Pending
                }
                _ => Poll::Ready(()),
            }
        })
        .await;
    }

    /// Evicts up to `count` blocks and returns how many.
    pub(crate) fn evict(&self, count: usize, pool: &FramePool) -> usize {
        let mut evicted = 0;
        for _ in 0..self.shards.len() {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed);
            let part = &self.shards[turn % self.shards.len()];
            let mut shard = part.shard.lock();
            for _ in 0..EVICTIONS_A_SHARD {
                if evicted >= count {
                    return evicted;
                }
                let Some(frame) = shard.evict(pool) else { break };
                part.evicted.add(1);
                drop(frame);
                evicted += 1;
            }
        }
        evicted
    }

    /// Frees the frame `no` of the block `owner`, whose chunk is to be given back: a cold clean block is forgotten,
    /// another one moves to the frame `spare`. Returns false when the block must stay for now.
    pub(crate) fn vacate(&self, owner: u64, no: FrameNo, pool: &FramePool, spare: &mut Option<FrameRef>) -> bool {
        let (device, block) = unpack(owner);
        let mut shard = self.lock(device, block);
        let Some(slot) = shard.find(owner).filter(|&slot| shard.frame_no(slot) == no) else { return false };
        // A frame that somebody transfers from or into stays where it is until they are done.
        if !shard.is_sole_owner(slot, pool) || shard.state(slot).any(State::LOADING) {
            return false;
        }
        if shard.state(slot) == State::CLEAN && !shard.is_hot(slot) {
            drop(shard.remove(slot, pool));
            return true;
        }
        let Some(mut frame) = spare.take() else { return false };
        if let Some(bytes) = frame.bytes_mut() {
            bytes.copy_from_slice(shard.share(slot, pool).bytes());
        }
        drop(shard.replace(slot, frame, pool));
        true
    }

    /// Forgets every block of a device that is being closed, all of which are below `end`. Nothing of it may be under way.
    pub(crate) fn forget_device(&self, device: DeviceId, end: u64, pool: &FramePool) {
        // Small files come and go: to look through the whole cache for their few blocks would cost too much.
        if end < self.len() as u64 {
            for run in Cache::runs(0..end) {
                let mut shard = self.lock(device, run.start);
                for block in run {
                    if let Some(slot) = shard.find(key(device, block)) {
                        drop(shard.remove(slot, pool));
                    }
                }
            }
            return;
        }
        for shard in &self.shards {
            let mut shard = shard.shard.lock();
            for slot in shard.slots_of(device) {
                drop(shard.remove(slot, pool));
            }
        }
    }

    /// Blocks in the cache.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|s| s.shard.lock().len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of book-keeping, without that of the frame pool.
    pub fn bookkeeping_bytes(&self) -> usize {
        self.shards.iter().map(|s| s.shard.lock().bookkeeping_bytes()).sum()
    }

    /// How the locks of its parts were used. Takes none of them.
    pub fn lock_use(&self) -> LockReading {
        self.shards.iter().map(|part| part.shard.read()).sum()
    }

    /// Blocks that had to leave for others. Takes no lock.
    pub fn evictions(&self) -> u64 {
        self.shards.iter().map(|part| part.evicted.get()).sum()
    }

    pub(crate) fn clear(&self, pool: &FramePool) {
        for shard in &self.shards {
            shard.shard.lock().clear(pool);
        }
    }
}
