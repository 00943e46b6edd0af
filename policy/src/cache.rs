//! Which block stays in the cache and which frame is evicted (WS-2).
//!
//! With as many buffers as memory holds, no step may depend on their number, and one long scan must not throw out what
//! is used all the time. S3-FIFO (Yang, Zhang, Qiu, Yue, Rashmi: *FIFO queues are all you need for cache eviction*,
//! SOSP '23, algorithm 1) does both: a new block enters a small queue (a tenth of the cache); only if it was hit there
//! more than once it moves on to the main queue, else it is evicted, and its fingerprint is remembered for a while. A
//! block that is inserted again while its fingerprint is remembered enters the main queue. A hit only raises a counter.
//!
//! Two things differ from the paper. A dirty block or one with I/O in flight may not be evicted, and a frame may be
//! pinned. A block that may not be evicted is held: it is in no queue until it is released, and then enters its own at
//! the new end. So a search for a victim never passes dirty blocks, however many there are. (Leaving them in the queues
//! and refusing them was tried: 32 of them at the old ends hid all clean ones.) Unpinning is not reported, so a victim
//! may still be refused; at most one for each transfer in flight. And one call gives a bounded number of second
//! chances: the paper's cost is O(1) only on average, and its worst case, with a lock held, is three passes through the
//! main queue.
//!
//! Hits are counted by call. Reads smaller than a block should count once for each pass over the block, or a scan in
//! small reads looks like reuse.
//!
//! S3-FIFO rather than LRU or ARC: a hit is one store, not a list move under a lock, and a scan leaves through the
//! small queue.
//!
//! Dirty blocks are in no eviction queue. They were, and were refused: enough of them at the old end hid all clean
//! ones.

mod ghost;
mod lists;
mod slots;

use ghost::Ghost;
use lists::{HASH_BITS, Lists, Place};
pub use slots::Slots;

/// A place for a block in one shard of the cache. Dense: memory is used up to the highest slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u32);

/// How a victim is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// S3-FIFO: scans do not throw out what is used often.
    #[default]
    S3Fifo,
    /// Least recently used, for comparison (`scan_resistant = off`).
    Lru,
}

/// The counter saturates here (2 bits).
const COUNTER_MAX: u8 = 3;
/// Hits in the small queue that let a block into the main queue: "accessed more than once".
const HITS_TO_PROMOTE: u8 = 2;
/// The small queue's share of the cache: one part in ten.
const SMALL_SHARE: usize = 10;
/// After this number of refusals a queue is not searched further in the same call.
const REFUSALS_MAX: usize = 32;
/// Second chances in one call; beyond it even a block that was hit is evicted.
const CHANCES_MAX: u32 = 128;

/// The replacement policy of one cache shard. The caller holds the shard's lock.
pub struct Replacement {
    algorithm: Algorithm,
    lists: Lists,
    ghost: Ghost,
    capacity: usize,
    steps: u64,
}

impl Replacement {
    pub const fn new(algorithm: Algorithm) -> Self {
        Replacement { algorithm, lists: Lists::new(), ghost: Ghost::new(), capacity: 0, steps: 0 }
    }

    /// Changes the algorithm. O(1); cached blocks keep their order.
    pub fn set_algorithm(&mut self, algorithm: Algorithm) {
        self.algorithm = algorithm;
    }

    /// A block whose key has this hash was put into `slot`. `capacity`: slots that the shard may hold at present.
    pub fn on_insert(&mut self, slot: Slot, key_hash: u64, capacity: usize) {
        debug_assert_eq!(self.lists.place(slot), Place::None, "slot inserted twice");
        self.lists.unlink(slot);
        self.capacity = capacity;
        self.steps += 1;
        let hash = fingerprint(key_hash);
        let place = match self.algorithm {
            Algorithm::Lru => Place::Main,
            Algorithm::S3Fifo if self.ghost.recall(hash) => Place::Main,
            Algorithm::S3Fifo => Place::Small,
        };
        self.lists.insert(slot, place, hash);
    }

    /// The block in `slot` may not be evicted until [`Replacement::on_release`]: it is dirty or has I/O in flight.
    pub fn on_hold(&mut self, slot: Slot) {
        self.steps += 1;
        self.lists.hold(slot);
    }

    /// The block in `slot` may be evicted again.
    pub fn on_release(&mut self, slot: Slot) {
        self.steps += 1;
        self.lists.release(slot);
    }

    /// The block in `slot` was used. Does not move it (S3-FIFO).
    pub fn on_hit(&mut self, slot: Slot) {
        let place = self.lists.place(slot);
        if place == Place::None {
            return;
        }
        self.steps += 1;
        let counter = self.lists.counter(slot);
        if counter < COUNTER_MAX {
            self.lists.set_counter(slot, counter + 1);
        }
        if self.algorithm == Algorithm::Lru && place != Place::Held {
            self.lists.requeue(slot, Place::Main);
        }
    }

    /// The caller took the block in `slot` out of the cache (discard, for example).
    pub fn on_remove(&mut self, slot: Slot) {
        self.steps += 1;
        self.lists.unlink(slot);
    }

    /// Removes and returns a slot that is not held. `may_evict` refuses slots that are pinned; they are queued again.
    /// `None` when all are held or too many were refused: the next call continues from there. Bounded work per call.
    pub fn evict(&mut self, mut may_evict: impl FnMut(Slot) -> bool) -> Option<Slot> {
        let mut refused = Refused::default();
        let mut chances = 0;
        loop {
            let place = self.next_place(refused)?;
            let slot = self.lists.oldest(place)?;
            self.steps += 1;
            if chances < CHANCES_MAX && self.give_chance(slot, place) {
                chances += 1;
                continue;
            }
            if !may_evict(slot) {
                self.lists.requeue(slot, place);
                refused.count(place);
                continue;
            }
            if place == Place::Small && self.algorithm == Algorithm::S3Fifo {
                self.ghost.fit(self.capacity);
                self.ghost.remember(self.lists.hash(slot));
            }
            self.lists.unlink(slot);
            return Some(slot);
        }
    }

    /// Whether the block in `slot` would survive a scan.
    pub fn is_hot(&self, slot: Slot) -> bool {
        match self.lists.home(slot) {
            Place::None | Place::Held => false,
            Place::Small => self.lists.counter(slot) >= HITS_TO_PROMOTE,
            Place::Main => self.algorithm == Algorithm::S3Fifo,
        }
    }

    /// Slots that hold a block.
    pub fn len(&self) -> usize {
        self.queued() + self.lists.len(Place::Held)
    }

    fn queued(&self) -> usize {
        self.lists.len(Place::Small) + self.lists.len(Place::Main)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Memory used for bookkeeping, in bytes: at most 20 a slot, plus one segment of slots in reserve.
    pub fn bookkeeping_bytes(&self) -> usize {
        size_of::<Self>() + self.lists.bytes() + self.ghost.bytes()
    }

    /// Slots examined by all operations so far: the cost of deciding.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The queue of the next victim: the small one while it exceeds its share; the other one when too many were
    /// refused, or a small queue full of pinned blocks would hide all others.
    fn next_place(&self, refused: Refused) -> Option<Place> {
        let small = self.lists.len(Place::Small);
        let small_first = match self.algorithm {
            Algorithm::S3Fifo => small > self.small_target(),
            Algorithm::Lru => true,
        };
        let order = if small_first { [Place::Small, Place::Main] } else { [Place::Main, Place::Small] };
        order.into_iter().find(|place| self.lists.len(*place) > 0 && refused.of(*place) < REFUSALS_MAX)
    }

    /// Target length of the small queue, relative to the evictable blocks when they are fewer than the capacity: a
    /// cache that shrinks, is not yet full or is half dirty keeps the same proportions.
    fn small_target(&self) -> usize {
        self.capacity.min(self.queued()) / SMALL_SHARE
    }

    /// Requeues a block that was hit instead of evicting it. Each chance is paid for by a hit.
    fn give_chance(&mut self, slot: Slot, place: Place) -> bool {
        let counter = self.lists.counter(slot);
        let counter_left = match (self.algorithm, place) {
            (Algorithm::S3Fifo, Place::Small) if counter >= HITS_TO_PROMOTE => 0,
            (Algorithm::S3Fifo, Place::Main) if counter > 0 => counter - 1,
            _ => return false,
        };
        self.lists.requeue(slot, Place::Main);
        self.lists.set_counter(slot, counter_left);
        true
    }
}

#[derive(Clone, Copy, Default)]
struct Refused {
    small: usize,
    main: usize,
}

impl Refused {
    fn of(self, place: Place) -> usize {
        if place == Place::Small { self.small } else { self.main }
    }

    fn count(&mut self, place: Place) {
        if place == Place::Small {
            self.small += 1;
        } else {
            self.main += 1;
        }
    }
}

/// Fibonacci hashing, so that a weak hash from the caller does no harm; truncated to the bits that a slot stores.
fn fingerprint(key_hash: u64) -> u32 {
    ((key_hash ^ key_hash >> 32).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - HASH_BITS)) as u32
}
