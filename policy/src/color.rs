//! Which frame a page gets, by cache colour (WS-6).
//!
//! In a physically indexed cache, frames whose numbers are equal modulo the cache's size (of one way) map to the same
//! place: they have one colour. With the hint, a page gets a frame of its own page number's colour, so that a range of
//! virtual addresses as large as the cache never conflicts with itself. Without it, the frame freed longest ago.
//!
//! The paper does not say what happens when a colour is exhausted. Here the page gets a frame of the colour with most
//! frames left, which leaves the others to pages that may still get their own.

use std::collections::VecDeque;

/// A page of virtual addresses, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageNo(pub u64);

/// A frame of physical memory, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PhysicalFrame(pub u64);

/// Whether the page number is a hint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// A page gets a frame of its own colour.
    #[default]
    Hint,
    NoHint,
}

#[derive(Clone, Debug)]
pub struct FreeFrames {
    mode: Mode,
    /// One list for each colour, or a single one; longest free first.
    lists: Vec<VecDeque<PhysicalFrame>>,
    free: usize,
    missed: u64,
}

impl FreeFrames {
    /// Without frames, for a cache of `colors` colours: the bytes of one way divided by the page size, at least 1.
    pub fn new(mode: Mode, colors: u32) -> Self {
        let lists = match mode {
            Mode::Hint => colors.max(1) as usize,
            Mode::NoHint => 1,
        };
        FreeFrames { mode, lists: vec![VecDeque::new(); lists], free: 0, missed: 0 }
    }

    /// Frees a frame. O(1).
    pub fn put(&mut self, frame: PhysicalFrame) {
        let list = self.list_of(frame.0);
        self.lists[list].push_back(frame);
        self.free += 1;
    }

    /// The frame for a page; `None` when none is free. O(1), or O(colours) when the page's colour is exhausted.
    pub fn take(&mut self, page: PageNo) -> Option<PhysicalFrame> {
        let own = self.list_of(page.0);
        let frame = self.lists[own].pop_front().or_else(|| {
            self.missed += u64::from(self.free > 0);
            let most = self.lists.iter_mut().max_by_key(|list| list.len())?;
            most.pop_front()
        })?;
        self.free -= 1;
        Some(frame)
    }

    pub fn mode(&self) -> Mode {
        self.mode
    }

    pub fn free(&self) -> usize {
        self.free
    }

    /// Pages that got a frame of another colour because their own was exhausted.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    fn list_of(&self, number: u64) -> usize {
        (number % self.lists.len() as u64) as usize
    }
}
