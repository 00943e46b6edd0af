//! Which frame a page gets, by cache colour (WS-6).
//!
//! In a physically indexed cache, frames whose numbers are equal modulo the cache's size (of one way) map to the same
//! place: they have one colour. With the hint, a page gets a frame of its own page number's colour, so that a range of
//! virtual addresses as large as the cache never conflicts with itself. Without it, the frame freed longest ago.
//!
//! The paper does not say what happens when a colour is exhausted. Here the page gets a frame of the colour with most
//! frames left, which leaves the others to pages that may still get their own.
//!
//! The server knows the colour of a frame only within a huge page, if its host has one there too. Many virtual machines
//! have huge pages that are scattered in the host's memory. So colours count only if they were measured ([`Found`]).

use std::collections::VecDeque;
use std::time::Duration;

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

/// Whether the server chooses frames by colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// If colours were found.
    #[default]
    Auto,
    On,
    Off,
}

/// Colours assumed where nothing is known: 1 MiB in 16 ways.
const COLORS_USUAL: u32 = 16;

/// What is known of the second-level cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The bytes of one way divided by the page size, as the host states it.
    pub stated: Option<u32>,
    /// The number of colours at which pages of one colour were seen to conflict.
    pub measured: Option<u32>,
}

impl Choice {
    /// The number of colours to tell apart; 1: none.
    pub fn colors(self, found: Found) -> u32 {
        let colors = match self {
            Choice::Off => None,
            Choice::Auto => found.measured,
            Choice::On => found.measured.or(found.stated).or(Some(COLORS_USUAL)),
        };
        colors.unwrap_or(1).max(1)
    }
}

/// Do pages of one colour conflict? `same` and `spread`: the time of an access to one line in each of twice as many pages
/// as the cache has ways, of one colour and of all. What misses a second-level cache takes three times as long and more
/// (judged, from measurements of current processors); noise is less than half. Both have as many accesses more that hit, at
/// most twice as many.
pub fn conflicts(same: Duration, spread: Duration) -> bool {
    same > spread * 3 / 2
}

/// The colour of what has this number.
pub fn color_of(number: u64, colors: usize) -> usize {
    (number % colors.max(1) as u64) as usize
}

/// The list that a page's frame comes from: that of its own colour, or the longest. `None` if all are empty.
pub fn list_for(own: usize, lens: impl ExactSizeIterator<Item = usize> + Clone) -> Option<usize> {
    if lens.clone().nth(own).is_some_and(|len| len > 0) {
        return Some(own);
    }
    let (longest, len) = lens.enumerate().max_by_key(|(_, len)| *len)?;
    (len > 0).then_some(longest)
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
        let list = list_for(own, self.lists.iter().map(VecDeque::len))?;
        self.missed += u64::from(list != own);
        self.free -= 1;
        self.lists[list].pop_front()
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
        color_of(number, self.lists.len())
    }
}
