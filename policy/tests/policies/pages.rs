//! Guarantees of the choice of page sizes.

use std::time::Duration;

use policy::pages::{Mode, PageChoice, PageSize};
use proptest::prelude::*;

/// Takes `count` chunks at these costs; returns how many of them were huge.
fn take(choice: &mut PageChoice, count: u32, small_us: u64, huge_us: u64) -> u32 {
    (0..count)
        .filter(|_| {
            let size = choice.next();
            let cost = if size == PageSize::Huge { huge_us } else { small_us };
            choice.on_taken(size, Duration::from_micros(cost));
            size == PageSize::Huge
        })
        .count() as u32
}

proptest! {
    #[test]
    fn the_cheaper_size_is_soon_taken_nearly_always_and_again_after_a_change(
        small in 100u64..1000,
        times in 3u64..20,
        phases in prop::collection::vec(any::<bool>(), 1..5),
    ) {
        let mut choice = PageChoice::new(Mode::Auto);
        for huge_is_slow in phases {
            let huge = if huge_is_slow { small * times } else { small };
            take(&mut choice, 300, small, huge);
            let taken = take(&mut choice, 512, small, huge);
            if huge_is_slow {
                prop_assert!(taken <= 512 / 16, "{taken} of 512 though slow");
            } else {
                prop_assert!(taken >= 500, "{taken} of 512 though fast");
            }
        }
    }

    #[test]
    fn a_configured_size_is_always_used(small in 1u64..1000, huge in 1u64..1000) {
        prop_assert_eq!(take(&mut PageChoice::new(Mode::Huge), 100, small, huge), 100);
        prop_assert_eq!(take(&mut PageChoice::new(Mode::Small), 100, small, huge), 0);
    }
}
