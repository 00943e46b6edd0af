//! Guarantees of page colouring.

use std::collections::BTreeSet;
use std::time::Duration;

use policy::color::{Choice, Found, FreeFrames, Mode, PageNo, PhysicalFrame, conflicts};
use proptest::prelude::*;

proptest! {
    #[test]
    fn no_frame_is_lost_or_given_twice(
        hint in any::<bool>(),
        colors in 1u32..40,
        frames in proptest::collection::btree_set(0u64..1000, 0..200),
        pages in proptest::collection::vec(0u64..1000, 0..300),
    ) {
        let mode = if hint { Mode::Hint } else { Mode::NoHint };
        let mut free = FreeFrames::new(mode, colors);
        frames.iter().for_each(|frame| free.put(PhysicalFrame(*frame)));
        let taken: Vec<u64> = pages.iter().filter_map(|page| free.take(PageNo(*page))).map(|frame| frame.0).collect();
        prop_assert_eq!(taken.len(), pages.len().min(frames.len()));
        let distinct: BTreeSet<u64> = taken.iter().copied().collect();
        prop_assert_eq!(distinct.len(), taken.len());
        prop_assert!(distinct.is_subset(&frames));
        prop_assert_eq!(free.free(), frames.len() - taken.len());
    }

    #[test]
    fn a_page_gets_its_own_colour_as_long_as_there_is_one(
        colors in 1u32..40,
        frames in proptest::collection::btree_set(0u64..400, 0..200),
        pages in proptest::collection::vec(0u64..1000, 0..300),
    ) {
        let mut free = FreeFrames::new(Mode::Hint, colors);
        let color = |number: u64| (number % u64::from(colors)) as usize;
        let mut left = vec![0; colors as usize];
        for frame in &frames {
            free.put(PhysicalFrame(*frame));
            left[color(*frame)] += 1;
        }
        let mut missed = 0;
        for page in pages {
            let had = left[color(page)] > 0;
            let Some(frame) = free.take(PageNo(page)) else { break };
            left[color(frame.0)] -= 1;
            prop_assert_eq!(color(frame.0) == color(page), had);
            missed += u64::from(!had);
        }
        prop_assert_eq!(free.missed(), missed);
    }
}

#[test]
fn without_the_hint_the_frame_freed_longest_ago_goes_first() {
    let mut free = FreeFrames::new(Mode::NoHint, 16);
    [7, 3, 9].into_iter().for_each(|frame| free.put(PhysicalFrame(frame)));
    let taken: Vec<_> = (0..4).map(|page| free.take(PageNo(page))).collect();
    assert_eq!(taken, [Some(PhysicalFrame(7)), Some(PhysicalFrame(3)), Some(PhysicalFrame(9)), None]);
    assert_eq!(free.missed(), 0);
}

#[test]
fn when_a_colour_is_exhausted_the_most_plentiful_one_is_taken() {
    let mut free = FreeFrames::new(Mode::Hint, 4);
    [1, 2, 6, 3].into_iter().for_each(|frame| free.put(PhysicalFrame(frame)));
    assert_eq!(free.take(PageNo(4)), Some(PhysicalFrame(2)));
    assert_eq!(free.missed(), 1);
}

#[test]
fn colours_count_only_where_they_were_seen_unless_they_are_to() {
    let [nothing, stated, seen] =
        [(None, None), (Some(32), None), (Some(32), Some(16))].map(|(stated, measured)| Found { stated, measured });
    let all = |choice: Choice| [nothing, stated, seen].map(|found| choice.colors(found));
    assert_eq!([all(Choice::Auto), all(Choice::On), all(Choice::Off)], [[1, 1, 16], [16, 32, 16], [1, 1, 1]]);
}

#[test]
fn pages_conflict_if_their_lines_miss_the_cache() {
    let of = |nanoseconds: [u64; 2]| nanoseconds.map(Duration::from_nanos);
    let verdicts =
        [[14, 4], [7, 4], [6, 4], [5, 4], [4, 4], [4, 14]].map(of).map(|[same, spread]| conflicts(same, spread));
    assert_eq!(verdicts, [true, true, false, false, false, false]);
}
