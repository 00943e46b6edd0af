//! What the request queue promises to jobs: turns within a class, and that nobody waits without bound.

use std::collections::BTreeMap;
use std::time::Duration;

use policy::queue::{Arrival, Config, Kind, Queue, RUN, RequestId, StreamId};
use policy::unit::{ByteRange, Class, Instant, JobId};
use proptest::prelude::*;

/// What a request costs beside its bytes (`queue/turns.rs`).
const REQUEST_BYTES: u64 = 32 << 10;

const HEAVY: JobId = JobId(1);
const LIGHT: JobId = JobId(2);

fn read(id: u32, job: JobId, block: u64, blocks: u64) -> Arrival {
    let range = ByteRange::new(block * 4096, blocks * 4096);
    Arrival { id: RequestId(id), stream: StreamId(0), kind: Kind::Read, range, class: Class::Synchronous, job }
}

fn alone() -> Config {
    Config { merge: false, ..Config::default() }
}

proptest! {
    /// As long as all of them have something waiting (start-time fair queueing, theorem 1).
    #[test]
    fn jobs_that_always_wait_get_the_same_of_the_disk_but_for_one_request_each(
        blocks in prop::collection::vec(1u64..64, 2..6),
        deep in 1usize..20,
        turns in 50u32..300,
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
            // The first has the most.
            (0..if job == 0 { deep * 10 } else { deep }).for_each(|_| arrive(&mut queue, &mut job_of, JobId(job)));
        }
        for _ in 0..turns {
            let batch = queue.next(Instant::ZERO).expect("all have something waiting");
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

    /// One request of a job that has nothing else waiting goes at once; on a disk with an arm, soon.
    #[test]
    fn a_single_request_passes_those_of_a_job_that_has_many(
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

    /// Each newcomer is level with whoever is next, and there is one for each request that is issued.
    #[test]
    fn among_ever_new_jobs_nobody_waits_much_longer_than_its_deadline(
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
fn with_turns_off_requests_go_in_order_of_arrival_whoevers_they_are() {
    let mut queue = Queue::new(Config { fair: false, ..alone() });
    for id in 0..60 {
        queue.on_arrival(Instant::ZERO, read(id, JobId(u32::from(id > 50)), 1000 - u64::from(id), 1));
    }
    let order: Vec<u32> = std::iter::from_fn(|| queue.next(Instant::ZERO)).map(|b| b.members[0].0).collect();
    assert_eq!(order, (0..60).collect::<Vec<_>>());
}

#[test]
fn a_pause_saves_nothing_up() {
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
