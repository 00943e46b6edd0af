//! What the quantum promises.

use std::time::Duration;

use policy::quantum::{Mode, Quantum};
use policy::unit::Instant;
use proptest::prelude::*;

/// Runs a processor that serves `rate(waits)` requests a second, in turns of 50 µs, for `time`. Returns for how many of
/// a thousand turns it waited.
fn waited_permille(quantum: &mut Quantum, now: &mut Instant, time: Duration, rate: impl Fn(bool) -> u64) -> u64 {
    let (mut turns, mut waited, mut left) = (0, 0, 0);
    let (end, mut waits) = (*now + time, false);
    while *now < end {
        *now += Duration::from_micros(50);
        left += rate(waits) * 50;
        waits = !quantum.on_turn(*now, left / 1_000_000).is_zero();
        left %= 1_000_000;
        turns += 1;
        waited += u64::from(waits);
    }
    waited * 1000 / turns
}

proptest! {
    #[test]
    fn it_waits_where_that_serves_more_and_hardly_ever_where_it_does_not(
        without in 30_000u64..500_000,
        gain_permille in prop_oneof![500u64..1000, 1100u64..2000],
    ) {
        let mut quantum = Quantum::new(Mode::Adaptive);
        let mut now = Instant::ZERO;
        let rate = |waits: bool| if waits { (without * gain_permille / 1000).max(21_000) } else { without };
        let waited = waited_permille(&mut quantum, &mut now, Duration::from_secs(3), rate);
        if gain_permille > 1000 {
            prop_assert!(waited > 900, "{waited}");
        } else {
            prop_assert!(waited < 60, "{waited}");
        }
    }

    #[test]
    fn it_never_waits_under_little_load(rate in 0u64..19_000, before in 30_000u64..200_000) {
        let mut quantum = Quantum::new(Mode::Adaptive);
        let mut now = Instant::ZERO;
        waited_permille(&mut quantum, &mut now, Duration::from_secs(1), |waits| before + u64::from(waits) * before);
        waited_permille(&mut quantum, &mut now, Duration::from_millis(10), |_| rate);
        let waited = waited_permille(&mut quantum, &mut now, Duration::from_secs(1), |_| rate);
        prop_assert_eq!(waited, 0);
    }
}

#[test]
fn off_and_fixed_are_what_they_say() {
    let fixed = Duration::from_millis(24);
    let at = |ms: u64| Instant::ZERO + Duration::from_millis(ms);
    let (mut off, mut always) = (Quantum::new(Mode::Off), Quantum::new(Mode::Fixed { quantum: fixed }));
    assert!((0..1000).all(|ms| off.on_turn(at(ms), 100_000).is_zero()));
    assert!((0..1000).all(|ms| always.on_turn(at(ms), 0) == fixed));
}
