//! Guarantees of usage estimates and their inheritance.

use std::time::Duration;

use policy::unit::Instant;
use policy::usage::{Decay, Inheritance, Usage};
use proptest::prelude::*;

const LOAD: f64 = 2.0;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn at(time: u64) -> Instant {
    Instant::ZERO + ms(time)
}

/// Usage of a job of one process with these `bursts`: pauses and uses, in milliseconds.
fn one_process(bursts: &[(u64, u64)]) -> (Usage, u64) {
    let decay = Decay::default();
    let (mut usage, mut now) = (Usage::new(decay, at(0)), 0);
    for (pause, used) in bursts {
        now += pause + used;
        usage.charge(decay, at(now), LOAD, ms(*used));
    }
    (usage, now)
}

/// The same work by children, one after the other, one for each burst.
fn by_children(bursts: &[(u64, u64)], inheritance: Inheritance) -> (Usage, u64) {
    let decay = Decay::default();
    let (mut parent, mut now) = (Usage::new(decay, at(0)), 0);
    for (pause, used) in bursts {
        now += pause;
        let mut child = parent.fork(decay, at(now), LOAD, inheritance);
        now += used;
        child.charge(decay, at(now), LOAD, ms(*used));
        parent.take_over(child, decay, at(now), LOAD, inheritance);
    }
    (parent, now)
}

proptest! {
    #[test]
    fn a_job_of_short_processes_weighs_as_much_as_one_long_one(
        bursts in proptest::collection::vec((0u64..3000, 1u64..500), 1..60),
    ) {
        let decay = Decay::default();
        let ((mut one, now), (mut many, _)) = (one_process(&bursts), by_children(&bursts, Inheritance::BOTH));
        let (one, many) = (one.estimate(decay, at(now), LOAD), many.estimate(decay, at(now), LOAD));
        prop_assert!(one.abs_diff(many) <= Duration::from_nanos(10), "{one:?} and {many:?}");
    }

    #[test]
    fn without_inheritance_a_parent_of_many_children_seems_idle(bursts in proptest::collection::vec((0u64..3000, 1u64..500), 1..60)) {
        let (mut parent, now) = by_children(&bursts, Inheritance::NONE);
        prop_assert_eq!(parent.estimate(Decay::default(), at(now), LOAD), Duration::ZERO);
    }

    #[test]
    fn what_concurrent_children_inherited_counts_once(
        before in 0u64..1000,
        used in proptest::collection::vec(0u64..100, 0..12),
        after in 0u64..5000,
    ) {
        let decay = Decay::default();
        let mut parent = Usage::new(decay, at(0));
        parent.charge(decay, at(0), LOAD, ms(before));
        let mut alone = parent;
        let mut children: Vec<Usage> =
            used.iter().map(|_| parent.fork(decay, at(0), LOAD, Inheritance::BOTH)).collect();
        for (child, used) in children.iter_mut().zip(&used) {
            child.charge(decay, at(0), LOAD, ms(*used));
            alone.charge(decay, at(0), LOAD, ms(*used));
        }
        for child in children {
            parent.take_over(child, decay, at(after), LOAD, Inheritance::BOTH);
        }
        let (parent, alone) = (parent.estimate(decay, at(after), LOAD), alone.estimate(decay, at(after), LOAD));
        prop_assert!(parent.abs_diff(alone) <= Duration::from_nanos(20), "{parent:?} and {alone:?}");
    }

    /// It decays to zero, faster with less load, and never grows by itself or beyond its bound.
    #[test]
    fn use_decays_and_is_bounded(used in 0u64..10_000, load in 0.0f64..50.0, times in proptest::collection::vec(0u64..9000, 1..20)) {
        let decay = Decay::default();
        let (mut usage, mut idle) = (Usage::new(decay, at(0)), Usage::new(decay, at(0)));
        usage.charge(decay, at(0), load, ms(used));
        idle.charge(decay, at(0), load, ms(used));
        let (mut now, mut last) = (0, decay.most);
        for time in times {
            now += time;
            let estimate = usage.estimate(decay, at(now), load);
            prop_assert!(estimate <= last);
            prop_assert!(idle.estimate(decay, at(now), load / 2.0) <= estimate + Duration::from_nanos(2));
            last = estimate;
        }
        prop_assert!(usage.estimate(decay, at(now + 10_000_000), load) < ms(1));
    }
}

#[test]
fn with_a_load_of_one_90_percent_decay_in_about_five_seconds() {
    // Leffler et al., section 4.4: "the load average is 1 ... after five seconds, 90 % of the user's CPU usage".
    let decay = Decay::default();
    let mut usage = Usage::new(decay, at(0));
    usage.charge(decay, at(0), 1.0, ms(1000));
    let left = usage.estimate(decay, at(5000), 1.0).as_secs_f64();
    assert!((0.1..0.15).contains(&left), "{left}");
}
