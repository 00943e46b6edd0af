//! How many pages to give ahead to a program that reads mapped memory in order. Of its reads only the faults are seen: those
//! of pages that it does not have yet. So a stream goes on where the last window ended. Within a window, faults tell of
//! pages that have not come yet, or were taken away again: one in its last half is the time to fetch the next window, which
//! then comes without a wait. Of pages that all come at once nothing tells how far the reader is.
//!
//! Nothing is given at the first fault. A window may end in a wait for what comes after it, so windows grow fast.
//!
//! Rejected: a page left out in the middle of each window, so that its fault starts the next one before this one ends. A
//! fault costs as much as ten pages that are given ahead.

use super::Mode;
use crate::unit::{BlockNo, BlockRange};

/// Blocks: of the first window of a stream, and of the largest.
const WINDOW_MIN: u64 = 16;
const WINDOW_MAX: u64 = 256;

/// Each window is so many times the last one.
const GROWTH: u64 = 4;

/// Streams tracked at a time.
const STREAMS_MAX: usize = 8;

#[derive(Debug, Default)]
pub struct FaultAhead {
    /// The most recently used one is the last.
    streams: Vec<Stream>,
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    /// The last fault, with what was given after it.
    given: BlockRange,
    /// What was given last. Blocks.
    window: u64,
}

impl FaultAhead {
    /// A program reads a block that it does not have. Returns what to give it in addition; the caller clips that to the
    /// device.
    pub fn on_fault(&mut self, mode: Mode, block: BlockNo) -> Option<BlockRange> {
        let window_max = match mode {
            Mode::Off => return None,
            Mode::Fixed { blocks } => blocks,
            Mode::Adaptive { blocks_max } => blocks_max.min(WINDOW_MAX),
        };
        let is_near = |stream: &Stream| (stream.given.start..=stream.given.end).contains(&block);
        let found = self.streams.iter().position(is_near).map(|index| self.streams.remove(index));
        let (mut given, mut window) = (block.run(1), 0);
        if let Some(stream) = found {
            if block + stream.window / 2 < stream.given.end {
                // In the first half it has not come yet, or was taken away again.
                self.streams.push(stream);
                return None;
            }
            let next =
                if matches!(mode, Mode::Fixed { .. }) { window_max } else { (GROWTH * stream.window).max(WINDOW_MIN) };
            window = next.min(window_max);
            given.end = given.end.max(stream.given.end);
        }
        let first = given.end;
        given.end = BlockNo(first.0.saturating_add(window));
        if self.streams.len() >= STREAMS_MAX {
            self.streams.remove(0);
        }
        self.streams.push(Stream { given, window });
        let ahead = first.to(given.end);
        (!ahead.is_empty()).then_some(ahead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADAPTIVE: Mode = Mode::Adaptive { blocks_max: 512 };

    fn run(start: u64, end: u64) -> Option<BlockRange> {
        Some(BlockNo(start).to(BlockNo(end)))
    }

    #[test]
    fn windows_begin_with_the_second_fault_and_grow_with_each_at_their_end() {
        let mut ahead = FaultAhead::default();
        let mut fault = |block| ahead.on_fault(ADAPTIVE, BlockNo(block));
        assert_eq!(fault(100), None);
        assert_eq!(fault(101), run(102, 118));
        assert_eq!(fault(118), run(119, 183));
        assert_eq!(fault(183), run(184, 440));
        assert_eq!(fault(440), run(441, 697), "no larger");
    }

    #[test]
    fn faults_elsewhere_or_within_a_window_give_nothing() {
        let mut ahead = FaultAhead::default();
        let mut fault = |block| ahead.on_fault(ADAPTIVE, BlockNo(block));
        assert_eq!([fault(7), fault(9), fault(5), fault(1000), fault(7)], [None; 5]);
        assert_eq!(fault(8), run(9, 25));
        assert_eq!(fault(12), None);
        assert_eq!(fault(25), run(26, 90), "the window stands");
    }

    #[test]
    fn the_next_window_is_given_while_the_last_half_of_one_has_not_come() {
        let mut ahead = FaultAhead::default();
        let mut fault = |block| ahead.on_fault(ADAPTIVE, BlockNo(block));
        assert_eq!([fault(7), fault(8)], [None, run(9, 25)]);
        assert_eq!([fault(10), fault(16)], [None; 2], "the first half");
        assert_eq!(fault(17), run(25, 89));
        assert_eq!([fault(18), fault(26), fault(56)], [None; 3]);
        assert_eq!([fault(57), fault(344)], [run(89, 345), run(345, 601)]);
    }

    #[test]
    fn several_streams_go_on_beside_each_other_and_others_are_forgotten() {
        let mut ahead = FaultAhead::default();
        for stream in 0..STREAMS_MAX as u64 {
            assert_eq!(ahead.on_fault(ADAPTIVE, BlockNo(stream * 1000)), None);
        }
        for stream in 0..STREAMS_MAX as u64 {
            assert!(ahead.on_fault(ADAPTIVE, BlockNo(stream * 1000 + 1)).is_some());
        }
        ahead.on_fault(ADAPTIVE, BlockNo(90_000));
        assert_eq!(ahead.on_fault(ADAPTIVE, BlockNo(18)), None, "the one that was used longest ago");
    }

    #[test]
    fn the_mode_bounds_the_window() {
        let mut ahead = FaultAhead::default();
        let modes = [Mode::Off, Mode::Fixed { blocks: 3 }, Mode::Fixed { blocks: 3 }, Mode::Adaptive { blocks_max: 8 }];
        let given = [1, 1, 2, 6].into_iter().zip(modes).map(|(block, mode)| ahead.on_fault(mode, BlockNo(block)));
        assert_eq!(given.collect::<Vec<_>>(), [None, None, run(3, 6), run(7, 15)]);
    }
}
