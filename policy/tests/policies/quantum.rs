//! Guarantees of the quantum.

use std::time::Duration;

use policy::quantum::{Mode, Quantum};
use policy::unit::Instant;
use proptest::prelude::*;

/// Load of a processor: requests a second, and how many arrive in a time slice.
#[derive(Clone, Copy, Debug)]
struct Load {
    rate: u64,
    a_slice: u64,
}

/// Runs a processor under `load(waits)` for `time`; every second time slice serves nothing. Returns in how many of a
/// thousand of the others it waited.
fn waited_permille(quantum: &mut Quantum, now: &mut Instant, time: Duration, load: impl Fn(bool) -> Load) -> u64 {
    let (mut slices, mut waited) = (0, 0);
    let (end, mut waits) = (*now + time, false);
    while *now < end {
        let Load { rate, a_slice } = load(waits);
        *now += Duration::from_nanos(a_slice * 1_000_000_000 / rate);
        waits = !quantum.on_time_slice(*now, a_slice).is_zero();
        slices += 1;
        waited += u64::from(waits);
        assert!(quantum.on_time_slice(*now, 0).is_zero(), "it waited after a time slice that served nothing");
    }
    waited * 1000 / slices
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn it_waits_where_that_gathers_and_serves_more_and_hardly_ever_otherwise(
        rate in 30_000u64..500_000,
        a_slice in 1u64..4,
        gain_permille in prop_oneof![500u64..990, 1010u64..2000],
        gathers in prop::bool::ANY,
    ) {
        let mut quantum = Quantum::new(Mode::Adaptive);
        let mut now = Instant::ZERO;
        let with = Load { rate: (rate * gain_permille / 1000).max(21_000), a_slice: if gathers { a_slice * 3 } else { a_slice } };
        let load = |waits: bool| if waits { with } else { Load { rate, a_slice } };
        let waited = waited_permille(&mut quantum, &mut now, Duration::from_secs(3), load);
        if gathers && gain_permille > 1000 {
            prop_assert!(waited > 700, "{waited}");
        } else {
            prop_assert!(waited < 60, "{waited}");
        }
    }

    /// So a lone request in flight is hardly ever delayed.
    #[test]
    fn without_gathering_it_waits_at_most_once_in_a_thousand_time_slices(rate in 30_000u64..500_000) {
        let mut quantum = Quantum::new(Mode::Adaptive);
        let mut now = Instant::ZERO;
        let load = |waits: bool| Load { rate: if waits { rate / 2 } else { rate }, a_slice: 1 };
        let waited = waited_permille(&mut quantum, &mut now, Duration::from_secs(3), load);
        prop_assert!(waited <= 1, "{waited}");
    }

    #[test]
    fn it_never_waits_under_little_load(rate in 100u64..19_000, before in 30_000u64..200_000) {
        let mut quantum = Quantum::new(Mode::Adaptive);
        let mut now = Instant::ZERO;
        let busy = |waits: bool| Load { rate: before + u64::from(waits) * before, a_slice: 1 + 3 * u64::from(waits) };
        let little = |_: bool| Load { rate, a_slice: 1 };
        waited_permille(&mut quantum, &mut now, Duration::from_secs(1), busy);
        waited_permille(&mut quantum, &mut now, Duration::from_millis(30), little);
        let waited = waited_permille(&mut quantum, &mut now, Duration::from_secs(1), little);
        prop_assert_eq!(waited, 0);
    }
}

#[test]
fn off_never_waits_and_fixed_always_does() {
    let fixed = Duration::from_millis(24);
    let at = |ms: u64| Instant::ZERO + Duration::from_millis(ms);
    let (mut off, mut always) = (Quantum::new(Mode::Off), Quantum::new(Mode::Fixed { quantum: fixed }));
    assert!((0..1000).all(|ms| off.on_time_slice(at(ms), 100_000).is_zero()));
    assert!((0..1000).all(|ms| always.on_time_slice(at(ms), 0) == fixed));
}
