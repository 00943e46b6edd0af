//! Guarantees of trials.

use std::time::Duration;

use policy::trial::Trial;
use proptest::prelude::*;

const WAITS: u32 = 20_000;

/// For how many permille of the waits the change is in force, if a wait takes so many microseconds without and with.
fn on_permille(trial: &mut Trial, without: u64, with: u64) -> u32 {
    let is_on = (0..WAITS).filter(|_| {
        let is_on = trial.is_on();
        trial.on_wait(Duration::from_micros(if is_on { with } else { without }));
        is_on
    });
    is_on.count() as u32 * 1000 / WAITS
}

proptest! {
    #[test]
    fn what_shortens_waits_stays(without in 10u64..500, percent in 10u64..80) {
        prop_assert!(on_permille(&mut Trial::default(), without, (without * percent / 100).max(1)) > 950);
    }

    #[test]
    fn what_does_not_is_taken_back(without in 10u64..500, percent in 95u64..200) {
        prop_assert!(on_permille(&mut Trial::default(), without, without * percent / 100) < 50);
    }

    #[test]
    fn when_waits_change_that_is_found_out(without in 10u64..500) {
        let mut trial = Trial::default();
        on_permille(&mut trial, without, without / 2);
        on_permille(&mut trial, without, without);
        prop_assert!(on_permille(&mut trial, without, without) < 50);
        on_permille(&mut trial, without, without / 2);
        prop_assert!(on_permille(&mut trial, without, without / 2) > 950);
    }
}
