//! Guarantees of spread checkpoints.

use policy::checkpoint::{Next, next};
use proptest::prelude::*;

proptest! {
    /// Each slice does a part of the work, and so does each rest use a part of the room, in which several slices fit.
    #[test]
    fn a_checkpoint_is_over_before_two_thirds_of_the_room_are_used(rests in 20u32..100_000, slices in 10u32..10_000) {
        prop_assume!(slices <= rests);
        let (slice, rest) = (1.0 / f64::from(slices), 1.0 / f64::from(rests));
        let (mut done, mut used) = (0.0, 0.0);
        while done < 1.0 {
            done += slice;
            // A slice takes a tenth of a rest.
            used += rest / 10.0 + if next(done, used, false) == Next::Rest { rest } else { 0.0 };
            prop_assert!(used <= 2.0 / 3.0, "{done} of it took {used}");
        }
    }

    #[test]
    fn it_rests_while_nobody_transacts_but_not_if_it_is_awaited(done in 0.0..=1.0) {
        prop_assert_eq!(next(done, 0.0, false), Next::Rest);
        prop_assert_eq!(next(done, 0.0, true), Next::Yield);
    }
}
