//! In pages of which size the cache takes memory from the host.
//!
//! Huge pages save address translations. But a virtual machine that reports free memory to its host gives away whole huge
//! pages, and gets one back at ten times the cost of small pages out of what it kept. Whether that is so changes while
//! it runs: a page that was freed a moment ago is still there. So the cost is measured with every piece taken.

use std::time::Duration;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Huge pages where the host provides them about as cheaply as small ones.
    #[default]
    Auto,
    /// Huge pages where the host has them.
    Huge,
    /// Small pages.
    Small,
}

/// The size of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageSize {
    /// 2 MiB.
    Huge,
    /// 4 KiB.
    Small,
}

/// Pieces in small pages after huge ones were dear: at first, and when they were so again and again.
const SMALL_PIECES: (u32, u32) = (16, 256);

/// Of so many pieces in huge pages, one is taken in small ones, to compare.
const COMPARE_EVERY: u32 = 64;

/// Chooses for each piece of memory, all of the same length.
#[derive(Clone, Debug)]
pub struct PageChoice {
    mode: Mode,
    /// What a piece in small pages takes, smoothed.
    small: Option<Duration>,
    /// Pieces to take in small pages before huge ones are tried again.
    small_left: u32,
    /// How many it will be when they are dear again.
    small_next: u32,
    huge_in_a_row: u32,
}

impl PageChoice {
    /// A policy that has seen nothing yet.
    pub const fn new(mode: Mode) -> Self {
        PageChoice { mode, small: None, small_left: 0, small_next: SMALL_PIECES.0, huge_in_a_row: 0 }
    }

    /// Allows other sizes from now on; what was measured is kept.
    pub const fn set_mode(&mut self, mode: Mode) {
        self.mode = mode;
    }

    /// In which pages to take the next piece.
    pub fn next(&self) -> PageSize {
        match self.mode {
            Mode::Huge => PageSize::Huge,
            Mode::Small => PageSize::Small,
            Mode::Auto if self.small.is_none() || self.small_left > 0 => PageSize::Small,
            Mode::Auto => PageSize::Huge,
        }
    }

    /// So long the host took to provide a piece in pages of this size.
    pub fn on_taken(&mut self, size: PageSize, took: Duration) {
        match size {
            PageSize::Small => {
                self.small = Some(self.small.map_or(took, |before| (before * 3 + took) / 4));
                self.small_left = self.small_left.saturating_sub(1);
            }
            PageSize::Huge if self.small.is_some_and(|small| took > small * 2) => {
                self.small_left = self.small_next;
                self.small_next = (self.small_next * 2).min(SMALL_PIECES.1);
                self.huge_in_a_row = 0;
            }
            PageSize::Huge => {
                self.small_next = SMALL_PIECES.0;
                self.huge_in_a_row += 1;
                self.small_left = u32::from(self.huge_in_a_row.is_multiple_of(COMPARE_EVERY));
            }
        }
    }
}
