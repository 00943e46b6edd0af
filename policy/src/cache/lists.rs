//! Two queues of slots, linked through one table: 12 bytes a slot.

use super::Slot;
use super::slots::Slots;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    None = 0,
    /// The small queue: blocks on probation.
    Small = 1,
    Main = 2,
    /// In no queue: may not be evicted.
    Held = 3,
}

/// Bits of a key's hash that a slot stores.
pub(super) const HASH_BITS: u32 = 28;

const NIL: u32 = u32::MAX;
const COUNTER_SHIFT: u32 = 2;
const HASH_SHIFT: u32 = 4;

/// `word` holds the hash (28 bits), the counter (2 bits) and the place (2 bits). A held slot is linked to no other: its
/// `older` holds the queue to which it belongs.
#[derive(Clone, Copy)]
struct Node {
    newer: u32,
    older: u32,
    word: u32,
}

const UNLINKED: Node = Node { newer: NIL, older: NIL, word: 0 };

#[derive(Clone, Copy)]
struct Queue {
    newest: u32,
    oldest: u32,
    len: u32,
}

const EMPTY: Queue = Queue { newest: NIL, oldest: NIL, len: 0 };

/// The queues of one cache shard. Every operation is O(1).
pub(super) struct Lists {
    nodes: Slots<Node>,
    small: Queue,
    main: Queue,
    held: u32,
}

impl Lists {
    pub(super) const fn new() -> Self {
        Lists { nodes: Slots::new(), small: EMPTY, main: EMPTY, held: 0 }
    }

    pub(super) fn len(&self, place: Place) -> usize {
        match place {
            Place::None => 0,
            Place::Small => self.small.len as usize,
            Place::Main => self.main.len as usize,
            Place::Held => self.held as usize,
        }
    }

    pub(super) fn oldest(&self, place: Place) -> Option<Slot> {
        let slot = match place {
            Place::None | Place::Held => NIL,
            Place::Small => self.small.oldest,
            Place::Main => self.main.oldest,
        };
        (slot != NIL).then_some(Slot(slot))
    }

    pub(super) fn place(&self, slot: Slot) -> Place {
        match self.nodes.get(slot.0).map_or(0, |n| n.word & 3) {
            1 => Place::Small,
            2 => Place::Main,
            3 => Place::Held,
            _ => Place::None,
        }
    }

    /// The queue of a slot; of a held one, the queue to which it will return.
    pub(super) fn home(&self, slot: Slot) -> Place {
        match self.place(slot) {
            Place::Held if self.nodes[slot.0].older == Place::Small as u32 => Place::Small,
            Place::Held => Place::Main,
            place => place,
        }
    }

    /// Takes a slot out of its queue until [`Lists::release`]; its counter stays.
    pub(super) fn hold(&mut self, slot: Slot) {
        let home = self.place(slot);
        if matches!(home, Place::Small | Place::Main) {
            self.unlink(slot);
            self.insert_held(slot, home);
        }
    }

    /// Puts a held slot at the new end of its queue.
    pub(super) fn release(&mut self, slot: Slot) {
        if self.place(slot) == Place::Held {
            let home = self.home(slot);
            self.unlink(slot);
            self.link(slot, home);
        }
    }

    fn insert_held(&mut self, slot: Slot, home: Place) {
        self.held += 1;
        let node = &mut self.nodes[slot.0];
        node.older = home as u32;
        node.word = node.word & !3 | Place::Held as u32;
    }

    pub(super) fn hash(&self, slot: Slot) -> u32 {
        self.nodes[slot.0].word >> HASH_SHIFT
    }

    pub(super) fn counter(&self, slot: Slot) -> u8 {
        self.nodes.get(slot.0).map_or(0, |n| (n.word >> COUNTER_SHIFT & 3) as u8)
    }

    pub(super) fn set_counter(&mut self, slot: Slot, counter: u8) {
        if let Some(node) = self.nodes.get_mut(slot.0) {
            node.word = node.word & !(3 << COUNTER_SHIFT) | u32::from(counter.min(3)) << COUNTER_SHIFT;
        }
    }

    /// Puts an unqueued slot at the new end of a queue, with the counter at 0.
    pub(super) fn insert(&mut self, slot: Slot, place: Place, hash: u32) {
        self.make_room(slot);
        self.nodes[slot.0].word = hash << HASH_SHIFT;
        self.link(slot, place);
    }

    /// Moves a queued slot to the new end of a queue; its counter stays.
    pub(super) fn requeue(&mut self, slot: Slot, place: Place) {
        self.unlink(slot);
        self.link(slot, place);
    }

    /// Takes a slot out of its queue, if it is in one.
    pub(super) fn unlink(&mut self, slot: Slot) {
        let place = self.place(slot);
        if place == Place::None {
            return;
        }
        if place == Place::Held {
            self.held -= 1;
            let node = &mut self.nodes[slot.0];
            *node = Node { word: node.word & !3, ..UNLINKED };
            return;
        }
        let Node { newer, older, .. } = self.nodes[slot.0];
        if newer != NIL {
            self.nodes[newer].older = older;
        }
        if older != NIL {
            self.nodes[older].newer = newer;
        }
        let queue = self.queue(place);
        if newer == NIL {
            queue.newest = older;
        }
        if older == NIL {
            queue.oldest = newer;
        }
        queue.len -= 1;
        let node = &mut self.nodes[slot.0];
        node.newer = NIL;
        node.older = NIL;
        node.word &= !3;
    }

    pub(super) fn bytes(&self) -> usize {
        self.nodes.bytes()
    }

    fn link(&mut self, slot: Slot, place: Place) {
        let queue = self.queue(place);
        let older = queue.newest;
        queue.newest = slot.0;
        if queue.oldest == NIL {
            queue.oldest = slot.0;
        }
        queue.len += 1;
        if older != NIL {
            self.nodes[older].newer = slot.0;
        }
        let node = &mut self.nodes[slot.0];
        node.older = older;
        node.newer = NIL;
        node.word = node.word & !3 | place as u32;
    }

    fn queue(&mut self, place: Place) -> &mut Queue {
        if place == Place::Small { &mut self.small } else { &mut self.main }
    }

    fn make_room(&mut self, slot: Slot) {
        while self.nodes.len() <= slot.0 as usize {
            self.nodes.push(UNLINKED);
        }
    }
}
