//! Guarantees of the choice of the processor that takes a completion.

use policy::delivery::{Activity, Method, Target, Urgency};
use policy::unit::ProcessorId;
use proptest::prelude::*;

fn activities() -> impl Strategy<Value = (Vec<Activity>, ProcessorId)> {
    let activity = prop_oneof![Just(Activity::Idle), (0u32..8).prop_map(|urgency| Activity::Running(Urgency(urgency)))];
    prop::collection::vec(activity, 1..12).prop_flat_map(|all| {
        let count = all.len() as u16;
        (Just(all), (0..count).prop_map(ProcessorId))
    })
}

fn one(target: Target) -> ProcessorId {
    match target {
        Target::One(processor) => processor,
        Target::All => panic!("one was asked for"),
    }
}

proptest! {
    #[test]
    fn no_busy_processor_is_interrupted_while_another_is_idle((all, initiator) in activities()) {
        let to = one(Method::Idle.target(initiator, &all));
        prop_assert_eq!(all[usize::from(to.0)], *all.iter().min().expect("not empty"));
        if all[usize::from(initiator.0)] == Activity::Idle {
            prop_assert_eq!(to, initiator);
        }
    }

    #[test]
    fn the_busiest_runs_what_is_most_urgent((all, initiator) in activities()) {
        let to = one(Method::Busiest.target(initiator, &all));
        prop_assert!(all.iter().all(|activity| *activity <= all[usize::from(to.0)]));
    }

    #[test]
    fn a_completion_goes_to_the_initiator_or_the_fixed_processor((all, initiator) in activities(), fixed in 0u16..16) {
        prop_assert_eq!(one(Method::Initiator.target(initiator, &all)), initiator);
        let to = one(Method::Fixed(ProcessorId(fixed)).target(initiator, &all));
        prop_assert_eq!(to, if usize::from(fixed) < all.len() { ProcessorId(fixed) } else { initiator });
        prop_assert_eq!(Method::All.target(initiator, &all), Target::All);
    }
}

#[test]
fn completions_go_to_the_initiator_by_default() {
    assert_eq!(Method::default(), Method::Initiator);
}
