//! Which block stays in the cache and which frame goes (WS-2).
//!
//! With as many buffers as memory holds, no step may depend on their number, and one long scan must not throw out what
//! is used all the time. S3-FIFO (Yang, Zhang, Qiu, Yue, Rashmi: *FIFO queues are all you need for cache eviction*,
//! SOSP '23, algorithm 1) does both: a new block enters a small queue (a tenth of the cache); only if it was hit there
//! more than once it goes on to the main queue, else it leaves, and its fingerprint is kept for a while. A block that
//! comes back while its fingerprint is known enters the main queue at once. A hit only raises a counter.
//!
//! Two things differ from the paper. A block may not go while it is dirty or on its way, and a frame may be pinned. A
//! block that may not go is held: it is in no queue until it may, and then enters its own at the new end. So however many
//! are dirty, they are not looked at to find one that is not. (They were left in the queues and refused: 32 of them at the
//! old ends hid all the clean ones behind them.) Who pins a frame says nothing when it is done, so a victim may still be
//! refused; of these there are as many as there are transfers under way. And one call gives a bounded number of second
//! chances, so that even the worst eviction is short: the paper's cost is O(1) only on average, and its worst case, with a
//! lock held, is three turns through the whole main queue.
//!
//! Hits are counted by call. Reads of less than a block should count once for each pass over the block, or a scan in
//! small pieces looks like reuse.

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
pub enum Kind {
    /// S3-FIFO: scans do not throw out what is used often.
    #[default]
    S3Fifo,
    /// Least recently used, to compare (`scan_resistant = off`).
    Lru,
}

/// The counter saturates here (2 bits).
const COUNTER_MAX: u8 = 3;
/// Hits in the small queue that let a block into the main queue: "accessed more than once".
const HITS_TO_PROMOTE: u8 = 2;
/// The small queue's share of the cache: one in so many.
const SMALL_SHARE: usize = 10;
/// After so many refusals a queue is left alone for the rest of the call.
const REFUSALS_MAX: usize = 32;
/// Second chances that one call gives; after that even a block that was hit goes.
const CHANCES_MAX: u32 = 128;

/// The replacement policy of one cache shard. The caller locks.
pub struct Replacement {
    kind: Kind,
    lists: Lists,
    ghost: Ghost,
    capacity: usize,
    steps: u64,
}

impl Replacement {
    /// A policy that knows of no slot.
    pub const fn new(kind: Kind) -> Self {
        Replacement { kind, lists: Lists::new(), ghost: Ghost::new(), capacity: 0, steps: 0 }
    }

    /// Chooses in another way from now on. O(1); what is in the cache keeps its order.
    pub fn set_kind(&mut self, kind: Kind) {
        self.kind = kind;
    }

    /// A block with this hash of its key now lies in `slot`, in a shard that may hold `capacity` slots at present.
    pub fn on_insert(&mut self, slot: Slot, key_hash: u64, capacity: usize) {
        debug_assert_eq!(self.lists.place(slot.0), Place::None, "slot inserted twice");
        self.lists.unlink(slot.0);
        self.capacity = capacity;
        self.steps += 1;
        let hash = fingerprint(key_hash);
        let place = match self.kind {
            Kind::Lru => Place::Main,
            Kind::S3Fifo if self.ghost.recall(hash) => Place::Main,
            Kind::S3Fifo => Place::Small,
        };
        self.lists.insert(slot.0, place, hash);
    }

    /// The block in `slot` may not go until [`Replacement::on_release`]: it is dirty, or on its way.
    pub fn on_hold(&mut self, slot: Slot) {
        self.steps += 1;
        self.lists.hold(slot.0);
    }

    /// The block in `slot` may go again.
    pub fn on_release(&mut self, slot: Slot) {
        self.steps += 1;
        self.lists.release(slot.0);
    }

    /// The block in `slot` was used. Moves nothing (S3-FIFO).
    pub fn on_hit(&mut self, slot: Slot) {
        let place = self.lists.place(slot.0);
        if place == Place::None {
            return;
        }
        self.steps += 1;
        let counter = self.lists.counter(slot.0);
        if counter < COUNTER_MAX {
            self.lists.set_counter(slot.0, counter + 1);
        }
        if self.kind == Kind::Lru && place != Place::Held {
            self.lists.requeue(slot.0, Place::Main);
        }
    }

    /// The block in `slot` was taken out of the cache by the caller (discarded, for example).
    pub fn on_remove(&mut self, slot: Slot) {
        self.steps += 1;
        self.lists.unlink(slot.0);
    }

    /// Chooses a slot that is not held, removes it and returns it. `may_evict` refuses slots that can't go now (pinned);
    /// they are queued again. `None` when all are held, or when too many were refused: the next call goes on from there.
    ///
    /// One call looks at a bounded number of slots, however many there are.
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
            if !may_evict(Slot(slot)) {
                self.lists.requeue(slot, place);
                refused.count(place);
                continue;
            }
            if place == Place::Small && self.kind == Kind::S3Fifo {
                self.ghost.fit(self.capacity);
                self.ghost.remember(self.lists.hash(slot));
            }
            self.lists.unlink(slot);
            return Some(Slot(slot));
        }
    }

    /// Would the block in `slot` outlive a scan?
    pub fn is_hot(&self, slot: Slot) -> bool {
        match self.lists.home(slot.0) {
            Place::None | Place::Held => false,
            Place::Small => self.lists.counter(slot.0) >= HITS_TO_PROMOTE,
            Place::Main => self.kind == Kind::S3Fifo,
        }
    }

    /// Slots that hold a block.
    pub fn len(&self) -> usize {
        self.queued() + self.lists.len(Place::Held)
    }

    fn queued(&self) -> usize {
        self.lists.len(Place::Small) + self.lists.len(Place::Main)
    }

    /// Does no slot hold a block?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Memory used to decide, in bytes: at most 20 a slot, and a piece of slots in reserve.
    pub fn bookkeeping_bytes(&self) -> usize {
        size_of::<Self>() + self.lists.bytes() + self.ghost.bytes()
    }

    /// Slots that all operations so far have looked at: the cost of deciding.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// From which queue the next victim comes: the small one while it is over its share, and the other one when too
    /// many were refused. Without that, a small queue full of pinned blocks would hide all the others.
    fn next_place(&self, refused: Refused) -> Option<Place> {
        let small = self.lists.len(Place::Small);
        let small_first = match self.kind {
            Kind::S3Fifo => small > self.small_target(),
            Kind::Lru => true,
        };
        let order = if small_first { [Place::Small, Place::Main] } else { [Place::Main, Place::Small] };
        order.into_iter().find(|place| self.lists.len(*place) > 0 && refused.of(*place) < REFUSALS_MAX)
    }

    /// What the small queue may hold. Of what may go, when that is less than the capacity: a cache that shrinks, is not
    /// yet full, or is half dirty, keeps the same shares.
    fn small_target(&self) -> usize {
        self.capacity.min(self.queued()) / SMALL_SHARE
    }

    /// Moves a block that was hit on, instead of evicting it. Every chance is paid for by a hit.
    fn give_chance(&mut self, slot: u32, place: Place) -> bool {
        let counter = self.lists.counter(slot);
        let counter_left = match (self.kind, place) {
            (Kind::S3Fifo, Place::Small) if counter >= HITS_TO_PROMOTE => 0,
            (Kind::S3Fifo, Place::Main) if counter > 0 => counter - 1,
            _ => return false,
        };
        self.lists.requeue(slot, Place::Main);
        self.lists.set_counter(slot, counter_left);
        true
    }
}

/// How often each queue's slots were refused in one call.
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

/// Mixes (Fibonacci hashing), so that a caller's weak hash does no harm, and keeps what a slot has room for.
fn fingerprint(key_hash: u64) -> u32 {
    ((key_hash ^ key_hash >> 32).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - HASH_BITS)) as u32
}
