//! Guarantees of the request queue to jobs: fairness within a class, and bounded waiting.

use std::collections::BTreeMap;
use std::time::Duration;

use policy::queue::{Arrival, Config, Queue, RUN, RequestId, RequestKind, StreamId};
use policy::unit::{ByteRange, Class, Instant, JobId};
use proptest::prelude::*;

/// The cost of a request in addition to its bytes (`queue/fair.rs`).
const REQUEST_BYTES: u64 = 32 << 10;

const HEAVY: JobId = JobId(1);
const LIGHT: JobId = JobId(2);

fn read(id: u32, job: JobId, block: u64, blocks: u64) -> Arrival {
    let range = ByteRange::new(block * 4096, blocks * 4096);
    Arrival { id: RequestId(id), stream: StreamId(0), kind: RequestKind::Read, range, class: Class::Synchronous, job }
}

fn alone() -> Config {
    Config { merge: false, ..Config::default() }
}

proptest! {
    /// As long as all of them have waiting requests (start-time fair queueing, theorem 1).
    #[test]
    fn jobs_with_a_backlog_get_equal_shares_up_to_one_request_each(
        blocks in prop::collection::vec(1u64..64, 2..6),
        deep in 1usize..20,
        batches in 50u32..300,
        priority in any::<bool>(),
    ) {
        let mut queue = Queue::new(Config { depth: 1, priority, ..alone() });
        let mut job_of = BTreeMap::new();
        let mut served: BTreeMap<JobId, u64> = BTreeMap::new();
        let mut next = 0;
        let mut arrive = |queue: &mut Queue, job_of: &mut BTreeMap<RequestId, JobId>, job: JobId| {
            let id = next;
            next += 1;
            job_of.insert(RequestId(id), job);
            queue.on_arrival(Instant::ZERO, read(id, job, u64::from(id) * 100, blocks[job.0 as usize]));
        };
        for job in 0..blocks.len() as u32 {
            // The first has the longest backlog.
            (0..if job == 0 { deep * 10 } else { deep }).for_each(|_| arrive(&mut queue, &mut job_of, JobId(job)));
        }
        for _ in 0..batches {
            let batch = queue.next(Instant::ZERO).expect("all have waiting requests");
            let job = job_of[&batch.members[0]];
            *served.entry(job).or_default() += batch.range.len + REQUEST_BYTES;
            arrive(&mut queue, &mut job_of, job);
            queue.on_completion(Instant::ZERO, batch.id);
        }
        let cost = |job: u32| blocks[job as usize] * 4096 + REQUEST_BYTES;
        for (one, other) in (0..blocks.len() as u32).flat_map(|one| (0..one).map(move |other| (one, other))) {
            let of = |job: u32| served.get(&JobId(job)).copied().unwrap_or(0);
            prop_assert!(of(one).abs_diff(of(other)) <= cost(one) + cost(other), "{served:?}");
        }
    }

    /// At once, or soon on a disk with an arm.
    #[test]
    fn a_single_request_passes_the_backlog_of_another_job(
        many in 20u32..500,
        before in 1u32..200,
        elevator in any::<bool>(),
    ) {
        let mut queue = Queue::new(Config { elevator, depth: 1, ..alone() });
        for id in 0..many {
            queue.on_arrival(Instant::ZERO, read(id, HEAVY, 1000 + u64::from(id), 1));
        }
        for _ in 0..before.min(many - 18) {
            let batch = queue.next(Instant::ZERO).expect("many wait");
            queue.on_completion(Instant::ZERO, batch.id);
        }
        // Behind the arm.
        queue.on_arrival(Instant::ZERO, read(many, LIGHT, 7, 1));
        let mut passed = 0;
        loop {
            let batch = queue.next(Instant::ZERO).expect("it waits");
            if batch.members.contains(&RequestId(many)) {
                break;
            }
            passed += 1;
            queue.on_completion(Instant::ZERO, batch.id);
        }
        prop_assert!(passed <= if elevator { 9 } else { 1 }, "{passed} went first");
    }

    /// Each newcomer starts level with the next job, and one arrives for each request issued.
    #[test]
    fn with_new_jobs_arriving_all_the_time_waits_are_bounded_by_the_deadline(
        backlog in 1u32..30,
        elevator in any::<bool>(),
    ) {
        let config = Config { elevator, depth: 1, ..alone() };
        let step = Duration::from_millis(1);
        let bound = config.synchronous_deadline + step * (RUN + 1) * (backlog + 1);
        let mut queue = Queue::new(config);
        let (mut now, mut waiting) = (Instant::ZERO, backlog);
        for id in 0..backlog {
            queue.on_arrival(now, read(id, HEAVY, 1 << 30, 200));
        }
        let mut next = backlog;
        while waiting > 0 {
            for _ in 0..2 {
                queue.on_arrival(now, read(next, JobId(10 + next), u64::from(next), 1));
                next += 1;
            }
            now += step;
            let batch = queue.next(now).expect("some wait");
            waiting -= u32::from(batch.members[0].0 < backlog);
            queue.on_completion(now, batch.id);
            prop_assert!(now.since(Instant::ZERO) <= bound, "{waiting} still wait");
        }
    }
}

#[test]
fn without_fairness_requests_go_in_order_of_arrival_whatever_their_job() {
    let mut queue = Queue::new(Config { fair: false, ..alone() });
    for id in 0..60 {
        queue.on_arrival(Instant::ZERO, read(id, JobId(u32::from(id > 50)), 1000 - u64::from(id), 1));
    }
    let order: Vec<u32> = std::iter::from_fn(|| queue.next(Instant::ZERO)).map(|b| b.members[0].0).collect();
    assert_eq!(order, (0..60).collect::<Vec<_>>());
}

#[test]
fn idling_earns_no_credit() {
    let mut queue = Queue::new(Config { depth: 1, ..alone() });
    let issue = |queue: &mut Queue| {
        let batch = queue.next(Instant::ZERO).expect("some wait");
        queue.on_completion(Instant::ZERO, batch.id);
        batch.members[0].0
    };
    for id in 0..300 {
        queue.on_arrival(Instant::ZERO, read(id, HEAVY, u64::from(id), 1));
    }
    for _ in 0..200 {
        issue(&mut queue);
    }
    for id in 300..400 {
        queue.on_arrival(Instant::ZERO, read(id, LIGHT, u64::from(id), 1));
    }
    let of_light = (0..100).filter(|_| issue(&mut queue) >= 300).count();
    assert!((45..=55).contains(&of_light), "{of_light} of 100");
}

#[test]
fn a_trim_costs_its_job_no_more_than_a_transfer() {
    for is_at_once in [true, false] {
        let mut queue = Queue::new(Config { depth: 1, ..alone() });
        let range = ByteRange::new(0, 1 << 40);
        let trim = Arrival { kind: RequestKind::Other, range, ..read(0, LIGHT, 0, 1) };
        let issued = if is_at_once {
            queue.issue_at_once(Instant::ZERO, trim).expect("none waits")
        } else {
            queue.on_arrival(Instant::ZERO, trim);
            queue.next(Instant::ZERO).expect("it waits").id
        };
        for id in 1..400 {
            queue.on_arrival(
                Instant::ZERO,
                read(id, if id.is_multiple_of(2) { LIGHT } else { HEAVY }, u64::from(id) * 100, 1),
            );
        }
        queue.on_completion(Instant::ZERO, issued);
        let mut of_light = 0;
        for _ in 0..100 {
            let batch = queue.next(Instant::ZERO).expect("many wait");
            of_light += u32::from(batch.members[0].0.is_multiple_of(2));
            queue.on_completion(Instant::ZERO, batch.id);
        }
        assert!(of_light >= 40, "{of_light} of 100 reads");
    }
}
