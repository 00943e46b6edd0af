//! In which page size the cache takes memory from the host.
//!
//! Huge pages save address translations. But a virtual machine that reports free memory to its host gives back whole
//! huge pages, and getting one again costs ten times as much as small pages that it retained. Whether that holds
//! changes at run time: a page freed a moment ago is still backed. So the cost is measured with every chunk taken.
//!
//! To measure once at the start was tried: the result depended on what had been freed just before.

use std::time::Duration;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Huge pages where the host provides them at about the cost of small ones.
    #[default]
    Auto,
    /// Huge pages where available.
    Huge,
    Small,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageSize {
    /// 2 MiB.
    Huge,
    /// 4 KiB.
    Small,
}

/// Chunks taken in small pages after huge ones were slow: the first time, and at most.
const SMALL_CHUNKS: (u32, u32) = (16, 256);

/// One chunk in this number is taken in small pages, to compare.
const COMPARE_EVERY: u32 = 64;

/// Chooses the page size of each chunk; all chunks have the same length.
#[derive(Clone, Debug)]
pub struct PageChoice {
    mode: Mode,
    /// Time to take a chunk in small pages, smoothed.
    small: Option<Duration>,
    /// Chunks to take in small pages before huge ones are tried again.
    small_left: u32,
    /// What `small_left` becomes when huge pages are slow again.
    small_next: u32,
    huge_in_a_row: u32,
}

impl PageChoice {
    pub const fn new(mode: Mode) -> Self {
        PageChoice { mode, small: None, small_left: 0, small_next: SMALL_CHUNKS.0, huge_in_a_row: 0 }
    }

    /// Changes the mode; measurements stay.
    pub const fn set_mode(&mut self, mode: Mode) {
        self.mode = mode;
    }

    pub fn next(&self) -> PageSize {
        match self.mode {
            Mode::Huge => PageSize::Huge,
            Mode::Small => PageSize::Small,
            Mode::Auto if self.small.is_none() || self.small_left > 0 => PageSize::Small,
            Mode::Auto => PageSize::Huge,
        }
    }

    /// The host took `took` to provide a chunk in pages of this size.
    pub fn on_taken(&mut self, size: PageSize, took: Duration) {
        match size {
            PageSize::Small => {
                self.small = Some(self.small.map_or(took, |before| (before * 3 + took) / 4));
                self.small_left = self.small_left.saturating_sub(1);
            }
            PageSize::Huge if self.small.is_some_and(|small| took > small * 2) => {
                self.small_left = self.small_next;
                self.small_next = (self.small_next * 2).min(SMALL_CHUNKS.1);
                self.huge_in_a_row = 0;
            }
            PageSize::Huge => {
                self.small_next = SMALL_CHUNKS.0;
                self.huge_in_a_row += 1;
                self.small_left = u32::from(self.huge_in_a_row.is_multiple_of(COMPARE_EVERY));
            }
        }
    }
}
