//! The buffer cache (WS-2), shared by all processors: blocks of all devices, in shards with a lock each.
//!
//! Adjacent blocks share a shard, so that a request of ordinary length takes one lock. A shard's lock is never held
//! across a wait; only locks of a volume, of the frame pool and of mailboxes (for wake-ups) are taken under it.

mod index;
mod shard;

use std::cmp::Reverse;
use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use policy::cache::Algorithm;
use policy::unit::{BlockNo, BlockRange, DeviceId};
use smallvec::SmallVec;

use crate::block_key::BlockKey;
use crate::counters::{CountedGuard, CountedMutex, Counter, LockReading};
use crate::frame::{FrameNo, FramePool, FrameRef, Frames};
pub(crate) use shard::{Shard, State};

/// Adjacent blocks that share a shard: 128 KiB.
const NEIGHBOURS: u64 = 32;

/// Evictions tried in one shard before the next.
const EVICTIONS_A_SHARD: usize = 16;

pub struct Cache {
    shards: Box<[Padded]>,
    turn: AtomicUsize,
    /// Buffers that each shard should hold.
    shard_capacity: AtomicUsize,
}

#[repr(align(128))]
struct Padded {
    shard: CountedMutex<Shard>,
    evicted: Counter,
}

impl Padded {
    fn new(kind: Algorithm) -> Self {
        Padded { shard: CountedMutex::new(Shard::new(kind)), evicted: Counter::default() }
    }
}

impl Cache {
    /// An empty cache of `shards` shards.
    pub(crate) fn new(shards: usize, kind: Algorithm) -> Self {
        Cache {
            shards: (0..shards.max(1)).map(|_| Padded::new(kind)).collect(),
            turn: AtomicUsize::new(0),
            shard_capacity: AtomicUsize::new(1),
        }
    }

    /// Changes the replacement algorithm. Cached blocks stay, in their order.
    pub(crate) fn set_kind(&self, kind: Algorithm) {
        for shard in &self.shards {
            shard.shard.lock().set_kind(kind);
        }
    }

    /// Sets the number of blocks that the cache may hold.
    pub(crate) fn set_capacity(&self, blocks: u64) {
        let each = (blocks as usize / self.shards.len()).max(1);
        self.shard_capacity.store(each, Ordering::Relaxed);
    }

    /// Buffers that each shard should hold.
    pub(crate) fn shard_capacity(&self) -> usize {
        self.shard_capacity.load(Ordering::Relaxed)
    }

    /// Locks the shard of a block, which also has the other blocks of its piece of [`Cache::runs`].
    pub(crate) fn lock(&self, key: BlockKey) -> CountedGuard<'_, Shard> {
        let hash = index::mix(key.0 / NEIGHBOURS);
        let shard = (hash as u32 as u64 * self.shards.len() as u64) >> 32;
        self.shards[shard as usize].shard.lock()
    }

    pub(crate) fn shards(&self) -> usize {
        self.shards.len()
    }

    pub(crate) fn lock_number(&self, shard: usize) -> CountedGuard<'_, Shard> {
        self.shards[shard].shard.lock()
    }

    /// Splits a run of blocks into pieces that share a shard.
    pub(crate) fn runs(blocks: BlockRange) -> impl Iterator<Item = BlockRange> {
        blocks.cut_at_multiples(NEIGHBOURS)
    }

    /// Appends references to the frames of `blocks` up to the first block that is not cached: returns its locked shard,
    /// and the remaining blocks in that shard.
    pub(crate) fn share(
        &self,
        device: DeviceId,
        blocks: BlockRange,
        pool: &FramePool,
        into: &mut Frames,
    ) -> Option<(CountedGuard<'_, Shard>, BlockRange)> {
        into.reserve(blocks.len().min(NEIGHBOURS * 8) as usize);
        for run in Cache::runs(blocks) {
            let mut shard = self.lock(BlockKey::new(device, run.start));
            for block in run.iter() {
                match shard.find(BlockKey::new(device, block)) {
                    Some(slot) if !shard.state(slot).any(State::LOADING) => {
                        shard.touch(slot);
                        into.push(shard.share(slot, pool));
                    }
                    _ => return Some((shard, block.to(run.end))),
                }
            }
        }
        None
    }

    /// Is the block cached or loading?
    pub(crate) fn has(&self, key: BlockKey) -> bool {
        self.lock(key).find(key).is_some()
    }

    /// Waits until a block is not being loaded.
    pub(crate) async fn until_loaded(&self, key: BlockKey) {
        poll_fn(|cx| {
            let mut shard = self.lock(key);
            match shard.find(key) {
                Some(slot) if shard.state(slot).any(State::LOADING) => {
                    shard.wait(slot, cx.waker());
                    Poll::Pending
                }
                _ => Poll::Ready(()),
            }
        })
        .await;
    }

    /// Evicts up to `count` blocks; returns the number evicted. Their frames are freed in the order of their addresses, from
    /// the last, so that adjacent ones are used together again.
    pub(crate) fn evict(&self, count: usize, pool: &FramePool) -> usize {
        let mut evicted: SmallVec<[FrameRef; 2 * EVICTIONS_A_SHARD]> = SmallVec::new();
        for _ in 0..self.shards.len() {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed);
            let part = &self.shards[turn % self.shards.len()];
            let mut shard = part.shard.lock();
            let before = evicted.len();
            let most = EVICTIONS_A_SHARD.min(count - before);
            evicted.extend((0..most).map_while(|_| shard.evict(pool)));
            part.evicted.add((evicted.len() - before) as u64);
            drop(shard);
            if evicted.len() == count {
                break;
            }
        }
        evicted.sort_unstable_by_key(|frame| Reverse(frame.no()));
        evicted.len()
    }

    /// Frees the frame `no` of the block `owner`, whose chunk is retiring: a cold clean block is evicted, others move
    /// to the frame `spare`. Returns false if the block must stay for now.
    pub(crate) fn vacate(&self, owner: BlockKey, no: FrameNo, pool: &FramePool, spare: &mut Option<FrameRef>) -> bool {
        let mut shard = self.lock(owner);
        let Some(slot) = shard.find(owner).filter(|&slot| shard.frame_no(slot) == no) else { return false };
        // A frame in a transfer stays until that has ended.
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

    /// Drops every block of a device that is being closed; all are below `end`. Nothing of it may be in flight.
    pub(crate) fn forget_device(&self, device: DeviceId, end: BlockNo, pool: &FramePool) {
        // Small files are opened and closed often: a scan of the whole cache for their few blocks would cost too much.
        if end < BlockNo(self.len() as u64) {
            for run in Cache::runs(BlockNo(0).to(end)) {
                let mut shard = self.lock(BlockKey::new(device, run.start));
                for block in run.iter() {
                    if let Some(slot) = shard.find(BlockKey::new(device, block)) {
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

    pub fn len(&self) -> usize {
        self.shards.iter().map(|s| s.shard.lock().len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Without the frame pool's.
    pub fn bookkeeping_bytes(&self) -> usize {
        self.shards.iter().map(|s| s.shard.lock().bookkeeping_bytes()).sum()
    }

    /// Use of the shards' locks. Takes none of them.
    pub fn lock_use(&self) -> LockReading {
        self.shards.iter().map(|part| part.shard.read()).sum()
    }

    /// Takes no lock.
    pub fn evictions(&self) -> u64 {
        self.shards.iter().map(|part| part.evicted.get()).sum()
    }

    pub(crate) fn clear(&self, pool: &FramePool) {
        for shard in &self.shards {
            shard.shard.lock().clear(pool);
        }
    }
}

#[cfg(test)]
mod tests {
    use policy::pages::PageSize;

    use super::*;
    use crate::frame::PoolConfig;

    #[test]
    fn frames_that_are_evicted_together_are_taken_as_neighbours_again() {
        let pool = PoolConfig { bytes_max: 4 << 20, chunk_bytes: 4 << 20, register: false, processors: 1 };
        let pool = FramePool::new(pool).expect("address space");
        assert!(pool.grow(1, PageSize::Small));
        let cache = Cache::new(1, Algorithm::default());
        let mut frames = Frames::new();
        pool.take(pool.frames_free() as usize, &mut frames);
        let _others: Frames = frames.drain(8..).collect();
        // The frames of each two blocks that follow each other are apart.
        for (block, at) in [0, 4, 1, 5, 2, 6, 3, 7].into_iter().enumerate() {
            let key = BlockKey::new(DeviceId(0), BlockNo(block as u64));
            cache.lock(key).insert(key, frames[at].clone(), State::CLEAN, 1024, &pool);
        }
        drop(frames);
        assert_eq!((cache.evict(0, &pool), cache.evict(100, &pool), cache.evictions()), (0, 8, 8));
        let twos: [Frames; 4] = std::array::from_fn(|_| {
            let mut two = Frames::new();
            pool.take(2, &mut two);
            two
        });
        assert!(twos.iter().all(|two| two[0].no().0 + 1 == two[1].no().0), "{twos:?}");
    }
}
