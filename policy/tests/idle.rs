//! What looking out for work promises.

use std::time::Duration;

use policy::idle::{Config, LookOut};
use proptest::prelude::*;

const fn us(count: u64) -> Duration {
    Duration::from_micros(count)
}

proptest! {
    #[test]
    fn it_is_never_longer_than_allowed_and_silence_ends_it(
        longest in 0u64..500,
        waits in prop::collection::vec(0u64..2000, 0..100),
    ) {
        let mut look_out = LookOut::new(Config { longest: us(longest) });
        for wait in waits {
            look_out.on_work(us(wait));
            prop_assert!(look_out.span() <= us(longest));
        }
        (0..10).for_each(|_| look_out.on_work(us(longest) + us(1)));
        prop_assert_eq!(look_out.span(), Duration::ZERO);
    }

    #[test]
    fn what_comes_steadily_is_soon_seen_without_sleeping(longest in 1u64..500, permille in 0u64..=1000) {
        let wait = us(longest) * permille as u32 / 1000;
        let mut look_out = LookOut::new(Config { longest: us(longest) });
        let slept = (0..100).filter(|_| {
            let slept = wait > look_out.span();
            look_out.on_work(wait);
            slept
        });
        prop_assert!(slept.count() <= 7);
        prop_assert!(look_out.span() >= wait);
        prop_assert!(look_out.span() <= us(longest).min(us(10).max(2 * wait)), "no longer than needed");
    }
}
