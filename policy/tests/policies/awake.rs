//! Guarantees of keeping cores awake.

use std::time::Duration;

use policy::awake::KeepAwake;
use proptest::prelude::*;

const LONGEST: Duration = Duration::from_micros(500);
const WAITS: u32 = 20_000;

/// A lone client's short waits, which are halved where cores are awake.
fn gain(awake: &mut KeepAwake) {
    for _ in 0..WAITS {
        awake.on_work(Duration::from_micros(if awake.is_on() { 20 } else { 40 }), 1, LONGEST);
    }
}

proptest! {
    #[test]
    fn cores_sleep_while_half_of_the_waits_are_long(short in 1u64..500, long in 501u64..100_000) {
        let mut awake = KeepAwake::default();
        for wait in 0..WAITS {
            awake.on_work(Duration::from_micros(if wait % 2 == 0 { short } else { long }), 1, LONGEST);
            prop_assert!(!awake.is_on());
        }
    }

    #[test]
    fn cores_sleep_while_waits_end_with_the_requests_of_many(without in 10u64..500) {
        let mut awake = KeepAwake::default();
        for wait in 0..WAITS {
            awake.on_work(Duration::from_micros(without), if wait % 4 == 0 { 3 } else { 1 }, LONGEST);
            prop_assert!(!awake.is_on());
        }
    }
}

#[test]
fn cores_are_kept_awake_where_that_shortens_waits_until_work_becomes_rare() {
    let mut awake = KeepAwake::default();
    gain(&mut awake);
    assert!(awake.is_on());
    awake.on_work(2 * LONGEST, 1, LONGEST);
    awake.on_work(2 * LONGEST, 1, LONGEST);
    awake.on_work(2 * LONGEST, 1, LONGEST);
    assert!(!awake.is_on());
}

#[test]
fn cores_sleep_while_requests_take_long_between_the_short_waits_for_their_client() {
    let mut awake = KeepAwake::default();
    for _ in 0..WAITS {
        awake.on_work(Duration::from_micros(20), 1, LONGEST);
        awake.on_long_request();
        assert!(!awake.is_on());
    }
}
