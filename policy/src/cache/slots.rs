//! A value for each slot, in segments that never move. A vector that grows in one allocation copies itself each time,
//! leaves a hole in the heap and over-reserves: over many tables that was a hundredth of the memory cached.

use std::ops::{Index, IndexMut};

/// Values of the slots from 0 on, in segments of `PIECE` (a power of two).
pub struct Slots<T, const PIECE: usize = 256> {
    pieces: Vec<Box<[T; PIECE]>>,
    len: usize,
}

impl<T: Copy, const PIECE: usize> Slots<T, PIECE> {
    pub const fn new() -> Self {
        Slots { pieces: Vec::new(), len: 0 }
    }

    /// Number of slots that have a value.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn get(&self, slot: u32) -> Option<&T> {
        let slot = slot as usize;
        if slot < self.len { Some(&self.pieces[slot / PIECE][slot % PIECE]) } else { None }
    }

    pub fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        let slot = slot as usize;
        if slot < self.len { Some(&mut self.pieces[slot / PIECE][slot % PIECE]) } else { None }
    }

    /// Appends the next slot's value.
    pub fn push(&mut self, value: T) {
        if self.len == self.pieces.len() * PIECE {
            self.pieces.push(Box::new([value; PIECE]));
        } else {
            self.pieces[self.len / PIECE][self.len % PIECE] = value;
        }
        self.len += 1;
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.pieces.iter().flat_map(|piece| piece.iter()).take(self.len)
    }

    /// Removes the values of all slots from `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        self.pieces.truncate(self.len.div_ceil(PIECE));
        self.pieces.shrink_to(self.pieces.len() * 2);
    }

    /// Memory used, in bytes.
    pub fn bytes(&self) -> usize {
        self.pieces.len() * size_of::<[T; PIECE]>() + self.pieces.capacity() * size_of::<Box<[T; PIECE]>>()
    }
}

impl<T: Copy, const PIECE: usize> Default for Slots<T, PIECE> {
    fn default() -> Self {
        Slots::new()
    }
}

/// Panics for a slot without a value.
impl<T: Copy, const PIECE: usize> Index<u32> for Slots<T, PIECE> {
    type Output = T;

    fn index(&self, slot: u32) -> &T {
        self.get(slot).expect("a slot that has a value")
    }
}

impl<T: Copy, const PIECE: usize> IndexMut<u32> for Slots<T, PIECE> {
    fn index_mut(&mut self, slot: u32) -> &mut T {
        self.get_mut(slot).expect("a slot that has a value")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_do_not_change_while_the_table_grows() {
        let mut slots = Slots::<u32, 64>::new();
        for slot in 0..1000u32 {
            assert_eq!(slots.get(slot), None);
            slots.push(slot * 7);
            slots[slot] += 1;
        }
        assert_eq!(slots.len(), 1000);
        assert!(slots.iter().copied().eq((0..1000).map(|slot| slot * 7 + 1)));
        assert!((0..1000).all(|slot| slots[slot] == slot * 7 + 1));
        slots.truncate(500);
        assert_eq!((slots.len(), slots.get(499), slots.get(500)), (500, Some(&(499 * 7 + 1)), None));
        slots.truncate(0);
        assert!(slots.is_empty() && slots.get(0).is_none() && slots.bytes() == 0);
    }

    #[test]
    fn the_reserve_is_less_than_a_segment() {
        let mut slots = Slots::<u32>::new();
        for slot in 0..100_000u32 {
            slots.push(slot);
            assert!(slots.bytes() <= (slots.len() + 256) * size_of::<u32>() + slots.len() / 256 * 16 + 64);
        }
    }
}
