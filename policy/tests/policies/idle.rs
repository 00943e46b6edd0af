//! Guarantees of idle polling.

use std::time::Duration;

use policy::idle::{Config, IdlePolling};
use proptest::prelude::*;

const fn us(count: u64) -> Duration {
    Duration::from_micros(count)
}

proptest! {
    #[test]
    fn polling_is_never_longer_than_allowed_and_ends_with_silence(
        longest in 0u64..500,
        waits in prop::collection::vec((any::<bool>(), 0u64..2000), 0..100),
    ) {
        let mut polling = IdlePolling::new(Config { longest: us(longest) });
        for (in_progress, wait) in waits {
            polling.on_work(in_progress, us(wait));
            prop_assert!(polling.duration(in_progress) <= us(longest));
        }
        for in_progress in [false, true] {
            (0..10).for_each(|_| polling.on_work(in_progress, us(longest) + us(1)));
            prop_assert_eq!(polling.duration(in_progress), Duration::ZERO);
        }
    }

    #[test]
    fn steady_work_is_soon_seen_without_sleeping(longest in 1u64..500, permille in 0u64..=1000, other in 0u64..500) {
        let wait = us(longest) * permille as u32 / 1000;
        for in_progress in [false, true] {
            let mut polling = IdlePolling::new(Config { longest: us(longest) });
            let slept = (0..100).filter(|_| {
                let slept = wait > polling.duration(in_progress);
                polling.on_work(in_progress, wait);
                polling.on_work(!in_progress, us(other));
                slept
            });
            prop_assert!(slept.count() <= 7);
            prop_assert!(polling.duration(in_progress) >= wait);
            prop_assert!(polling.duration(in_progress) <= us(longest).min(us(10).max(2 * wait)), "no longer than needed");
        }
    }
}
