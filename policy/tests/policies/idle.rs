//! Guarantees of idle polling.

use std::time::Duration;

use policy::idle::{Awaited, Config, IdlePolling};
use proptest::prelude::*;

const fn us(count: u64) -> Duration {
    Duration::from_micros(count)
}

fn any_awaited() -> impl Strategy<Value = Awaited> {
    prop_oneof![Just(Awaited::Client), Just(Awaited::LoneRequest), Just(Awaited::LoneCall), Just(Awaited::Requests)]
}

proptest! {
    #[test]
    fn polling_is_never_longer_than_allowed_and_ends_with_silence(
        longest in 0u64..500,
        waits in prop::collection::vec((any_awaited(), 0u64..2000), 0..100),
    ) {
        let mut polling = IdlePolling::new(Config::new(us(longest)));
        for (awaited, wait) in waits {
            polling.on_work(awaited, us(wait));
            prop_assert!(polling.duration(awaited) <= us(longest));
            for lone in [Awaited::LoneRequest, Awaited::LoneCall] {
                prop_assert!(polling.duration(lone) <= us(longest) / 10);
            }
        }
        for awaited in [Awaited::Client, Awaited::LoneRequest, Awaited::LoneCall, Awaited::Requests] {
            for _ in 0..10 {
                polling.on_work(awaited, us(longest) + us(1));
            }
            prop_assert_eq!(polling.duration(awaited), Duration::ZERO);
        }
    }

    #[test]
    fn steady_work_is_soon_seen_without_sleeping(longest in 1u64..500, permille in 0u64..=1000, other in 0u64..500) {
        let wait = us(longest) * permille as u32 / 1000;
        for (awaited, others) in [(Awaited::Client, Awaited::Requests), (Awaited::Requests, Awaited::Client)] {
            let mut polling = IdlePolling::new(Config::new(us(longest)));
            let slept = (0..100).filter(|_| {
                let slept = wait > polling.duration(awaited);
                polling.on_work(awaited, wait);
                polling.on_work(others, us(other));
                slept
            });
            prop_assert!(slept.count() <= 7);
            prop_assert!(polling.duration(awaited) >= wait);
            prop_assert!(polling.duration(awaited) <= us(longest).min(us(10).max(2 * wait)), "no longer than needed");
        }
    }

    #[test]
    fn neither_a_lone_requests_long_wait_is_polled_nor_the_next_two_requests(disk in 51u64..500, client in 0u64..500) {
        let mut polling = IdlePolling::new(Config::default());
        for _ in 0..20 {
            prop_assert!(polling.on_work(Awaited::Client, us(client)));
            prop_assert!(!polling.on_work(Awaited::LoneRequest, us(disk)));
            prop_assert!(polling.on_work(Awaited::LoneRequest, us(1)), "the reply is sent");
        }
        prop_assert!(polling.duration(Awaited::LoneRequest) <= us(10), "no longer than for the reply");
        for _ in 0..2 {
            prop_assert_eq!(polling.duration(Awaited::Client), Duration::ZERO);
            prop_assert!(polling.on_work(Awaited::Client, us(client)));
        }
        prop_assert!(polling.duration(Awaited::Client) >= us(client), "as if there had been no such request");
    }

    #[test]
    fn what_a_lone_request_waits_shortly_and_the_next_one_are_polled_for(disk in 0u64..=50, client in 0u64..500) {
        let mut polling = IdlePolling::new(Config::default());
        for _ in 0..20 {
            prop_assert!(polling.on_work(Awaited::Client, us(client)));
            prop_assert!(polling.on_work(Awaited::LoneRequest, us(disk)));
        }
        prop_assert!(polling.duration(Awaited::LoneRequest) >= us(disk));
        prop_assert!(polling.duration(Awaited::Client) >= us(client));
    }

    #[test]
    fn a_lone_requests_calls_are_polled_for_whatever_disks_take(call in 0u64..=50, long in 51u64..2000, client in 0u64..500) {
        let mut polling = IdlePolling::new(Config::default());
        for _ in 0..20 {
            prop_assert!(polling.on_work(Awaited::LoneCall, us(call)));
            prop_assert!(!polling.on_work(Awaited::LoneRequest, us(long)));
        }
        prop_assert!(polling.duration(Awaited::LoneCall) >= us(call));
        for _ in 0..20 {
            prop_assert!(polling.on_work(Awaited::Client, us(client)));
            prop_assert!(!polling.on_work(Awaited::LoneCall, us(long)));
        }
        prop_assert!(polling.duration(Awaited::Client) >= us(client), "the client is polled for after a long call");
        prop_assert_eq!(polling.duration(Awaited::LoneCall), Duration::ZERO);
    }
}
