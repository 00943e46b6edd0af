//! Guarantees of keeping cores awake.

use std::time::Duration;

use policy::awake::KeepAwake;
use proptest::prelude::*;

const LONGEST: Duration = Duration::from_micros(500);
const WAITS: u32 = 20_000;

/// How many permille of the waits it is on, if a wait takes so many microseconds without and with.
fn on_permille(awake: &mut KeepAwake, without: u64, with: u64) -> u32 {
    let is_on = (0..WAITS).filter(|_| {
        let is_on = awake.is_on();
        awake.on_work(Duration::from_micros(if is_on { with } else { without }), 1, LONGEST);
        is_on
    });
    is_on.count() as u32 * 1000 / WAITS
}

proptest! {
    #[test]
    fn cores_are_kept_awake_where_that_shortens_waits(without in 10u64..500, percent in 10u64..80) {
        prop_assert!(on_permille(&mut KeepAwake::default(), without, (without * percent / 100).max(1)) > 950);
    }

    #[test]
    fn cores_sleep_where_waits_stay_as_they_are(without in 10u64..500, percent in 95u64..200) {
        prop_assert!(on_permille(&mut KeepAwake::default(), without, without * percent / 100) < 50);
    }

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

    #[test]
    fn when_clients_change_that_is_found_out(without in 10u64..500) {
        let mut awake = KeepAwake::default();
        on_permille(&mut awake, without, without / 2);
        on_permille(&mut awake, without, without);
        prop_assert!(on_permille(&mut awake, without, without) < 50);
        on_permille(&mut awake, without, without / 2);
        prop_assert!(on_permille(&mut awake, without, without / 2) > 950);
    }
}

#[test]
fn cores_sleep_again_when_work_becomes_rare() {
    let mut awake = KeepAwake::default();
    on_permille(&mut awake, 50, 20);
    assert!(awake.is_on());
    awake.on_work(2 * LONGEST, 1, LONGEST);
    awake.on_work(2 * LONGEST, 1, LONGEST);
    awake.on_work(2 * LONGEST, 1, LONGEST);
    assert!(!awake.is_on());
}
