//! Guarantees of the request queue: completeness, merging, order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use policy::queue::{Arrival, Batch, Config, Queue, RequestId, RequestKind, StreamId};
use policy::unit::{ByteRange, Class, Instant, JobId};
use proptest::prelude::*;

const US: Duration = Duration::from_micros(1);
const MS: Duration = Duration::from_millis(1);

fn arrival(id: u32, stream: u32, kind: RequestKind, at: u64, len: u64, class: Class) -> Arrival {
    Arrival { id: RequestId(id), stream: StreamId(stream), kind, range: ByteRange::new(at, len), class, job: JobId(1) }
}

fn read(id: u32, block: u64, class: Class) -> Arrival {
    arrival(id, 0, RequestKind::Read, block * 4096, 4096, class)
}

prop_compose! {
    fn config()(
        merge in any::<bool>(),
        priority in any::<bool>(),
        elevator in any::<bool>(),
        fair in any::<bool>(),
        transfer_bytes_max in 4096u32..1 << 20,
        depth in 1u16..80,
        asynchronous_bytes_max in 0u32..8 << 20,
    ) -> Config {
        Config { merge, priority, elevator, fair, transfer_bytes_max, depth, asynchronous_bytes_max, ..Config::default() }
    }
}

#[derive(Clone, Debug)]
enum Event {
    Arrive { stream: u32, kind: RequestKind, block: u64, blocks: u64, class: Class },
    Issue,
    Complete(usize),
    Promote(u32),
    Pass(Duration),
    Configure(Config),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let kind = prop_oneof![4 => Just(RequestKind::Read), 4 => Just(RequestKind::Write), 1 => Just(RequestKind::Flush), 1 => Just(RequestKind::Other)];
    let class = prop_oneof![Just(Class::Synchronous), Just(Class::Asynchronous)];
    let arrive = (0u32..3, kind, 0u64..60, 0u64..9, class)
        .prop_map(|(stream, kind, block, blocks, class)| Event::Arrive { stream, kind, block, blocks, class });
    let event = prop_oneof![
        12 => arrive,
        4 => Just(Event::Issue),
        6 => any::<usize>().prop_map(Event::Complete),
        1 => (0u32..400).prop_map(Event::Promote),
        4 => (0u32..100_000).prop_map(|us| Event::Pass(US * us)),
        1 => config().prop_map(Event::Configure),
    ];
    prop::collection::vec(event, 1..400)
}

fn is_full(queue: &Queue) -> bool {
    queue.in_flight() >= usize::from(queue.config().depth)
}

/// A queue, and a model of its contents.
struct Harness {
    queue: Queue,
    config: Config,
    now: Instant,
    waiting: BTreeMap<RequestId, Arrival>,
    in_flight: Vec<Batch>,
    issued: BTreeSet<RequestId>,
    arrived: u32,
}

impl Harness {
    fn new(config: Config) -> Self {
        Harness {
            queue: Queue::new(config.clone()),
            config,
            now: Instant::ZERO,
            waiting: BTreeMap::new(),
            in_flight: Vec::new(),
            issued: BTreeSet::new(),
            arrived: 0,
        }
    }

    fn issue(&mut self) -> Result<(), TestCaseError> {
        while let Some(batch) = self.queue.next(self.now) {
            self.check(&batch)?;
            self.in_flight.push(batch);
            prop_assert_eq!(self.queue.in_flight(), self.in_flight.len());
            prop_assert!(self.in_flight.len() <= usize::from(self.config.depth));
        }
        prop_assert_eq!(self.queue.waiting(), self.waiting.len());
        if let Some(deadline) = self.queue.next_deadline() {
            prop_assert!(deadline > self.now, "it should have been issued now");
        }
        Ok(())
    }

    fn check(&mut self, batch: &Batch) -> Result<(), TestCaseError> {
        prop_assert!(!batch.members.is_empty());
        prop_assert!(self.in_flight.iter().all(|b| b.id != batch.id), "number in use");
        let mut end = batch.range.at;
        let mut class = Class::Asynchronous;
        for id in &batch.members {
            let member = self.waiting.remove(id);
            prop_assert!(member.is_some() && self.issued.insert(*id), "issued twice or never arrived");
            let Some(member) = member else { continue };
            prop_assert_eq!((member.stream, member.kind), (batch.stream, batch.kind));
            prop_assert_eq!(member.range.at, end, "members lie end to end");
            end = member.range.end();
            class = class.min(member.class);
        }
        prop_assert_eq!(end, batch.range.end());
        prop_assert_eq!(class, batch.class);
        if batch.members.len() > 1 {
            prop_assert!(self.config.merge && batch.range.len <= self.config.transfer_bytes_max.into());
            prop_assert!(matches!(batch.kind, RequestKind::Read | RequestKind::Write));
        }
        Ok(())
    }

    fn apply(&mut self, event: Event) -> Result<(), TestCaseError> {
        match event {
            Event::Arrive { stream, kind, block, blocks, class } => {
                let arrival = arrival(self.arrived, stream, kind, block * 4096, blocks * 4096, class);
                let arrival = Arrival { job: JobId((block % 4) as u32), ..arrival };
                self.arrived += 1;
                self.waiting.insert(arrival.id, arrival);
                self.queue.on_arrival(self.now, arrival);
            }
            Event::Issue => self.issue()?,
            Event::Complete(n) if !self.in_flight.is_empty() => {
                let batch = self.in_flight.swap_remove(n % self.in_flight.len());
                self.queue.on_completion(self.now, batch.id);
            }
            Event::Promote(id) => {
                let waits = self.waiting.get_mut(&RequestId(id)).filter(|waiting| waiting.class == Class::Asynchronous);
                prop_assert_eq!(self.queue.promote(self.now, RequestId(id)), waits.is_some());
                if let Some(request) = waits {
                    request.class = Class::Synchronous;
                }
            }
            Event::Pass(time) => self.now += time,
            Event::Configure(config) => {
                // A smaller depth would be violated by what is in flight.
                let config = Config { depth: config.depth.max(self.config.depth), ..config };
                self.config = config.clone();
                self.queue.set_config(config);
            }
            Event::Complete(_) => {}
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn every_arrival_is_issued_exactly_once_in_sound_batches(config in config(), events in events()) {
        let mut harness = Harness::new(config);
        for event in events {
            harness.apply(event)?;
        }
        // When all completes, all waiting requests are issued, without any time passing.
        for n in 0.. {
            harness.issue()?;
            if harness.in_flight.is_empty() {
                break;
            }
            harness.apply(Event::Complete(n))?;
        }
        prop_assert_eq!(harness.issued.len(), harness.arrived as usize);
    }

    /// What is issued at once goes as it would through the queue, and nothing that follows goes otherwise.
    #[test]
    fn a_request_that_is_issued_at_once_is_what_the_queue_would_issue(config in config(), events in events()) {
        let mut queues = [Queue::new(config.clone()), Queue::new(config)];
        let (mut now, mut in_flight, mut id) = (Instant::ZERO, Vec::new(), 0);
        for event in events {
            let mut at_once = None;
            match event {
                Event::Arrive { stream, kind, block, blocks, class } => {
                    let job = JobId(1 + block as u32 % 3);
                    let arrival = Arrival { job, ..arrival(id, stream, kind, block * 4096, blocks * 4096, class) };
                    id += 1;
                    queues[0].on_arrival(now, arrival);
                    at_once = queues[1].issue_at_once(now, arrival).map(|batch| (batch, arrival.id));
                    if at_once.is_none() {
                        prop_assert!(class == Class::Asynchronous || queues[1].waiting() > 0 || is_full(&queues[1]));
                        queues[1].on_arrival(now, arrival);
                    }
                }
                Event::Complete(which) if !in_flight.is_empty() => {
                    let batch = in_flight.swap_remove(which % in_flight.len());
                    queues.iter_mut().for_each(|queue| queue.on_completion(now, batch));
                }
                Event::Promote(id) => {
                    let [through, other] = queues.each_mut().map(|queue| queue.promote(now, RequestId(id)));
                    prop_assert_eq!(through, other);
                }
                Event::Pass(time) => now += time,
                Event::Configure(config) => queues.iter_mut().for_each(|queue| queue.set_config(config.clone())),
                Event::Issue | Event::Complete(_) => {}
            }
            if let Some((batch, id)) = at_once {
                let issued = queues[0].next(now).map(|batch| (batch.id, batch.members.to_vec()));
                prop_assert_eq!(issued, Some((batch, vec![id])));
                in_flight.push(batch);
            }
            loop {
                let [through, other] = queues.each_mut().map(|queue| queue.next(now));
                prop_assert_eq!(&through, &other);
                let Some(batch) = through else { break };
                in_flight.push(batch.id);
            }
            let [through, other] = queues.each_ref().map(|queue| {
                (queue.next_deadline(), queue.in_flight(), queue.waiting(), queue.asynchronous_window_bytes())
            });
            prop_assert_eq!(through, other);
        }
    }

    #[test]
    fn no_asynchronous_request_overtakes_a_synchronous_one_before_its_deadline(
        classes in prop::collection::vec(any::<bool>(), 1..200),
        depth in 1u16..10,
        elevator in any::<bool>(),
    ) {
        let mut queue = Queue::new(Config { depth, elevator, merge: false, ..Config::default() });
        let mut synchronous = 0;
        let mut in_flight = Vec::new();
        let mut now = Instant::ZERO;
        for (n, is_synchronous) in classes.iter().enumerate() {
            now += MS;
            let class = if *is_synchronous { Class::Synchronous } else { Class::Asynchronous };
            synchronous += u32::from(*is_synchronous);
            queue.on_arrival(now, read(n as u32, n as u64 * 37 % 101, class));
            if n % 3 == 0 {
                in_flight.drain(..).for_each(|id| queue.on_completion(now, id));
                while let Some(batch) = queue.next(now) {
                    prop_assert!(batch.class == Class::Synchronous || synchronous == 0);
                    synchronous -= u32::from(batch.class == Class::Synchronous);
                    in_flight.push(batch.id);
                }
            }
        }
    }

    #[test]
    fn under_endless_synchronous_load_asynchronous_requests_are_issued_within_a_bound(
        backlog in 1u32..60,
        depth in 1u16..8,
        elevator in any::<bool>(),
        service_us in 100u32..3000,
    ) {
        let mut queue = Queue::new(Config { depth, elevator, merge: false, ..Config::default() });
        let mut now = Instant::ZERO;
        for n in 0..backlog {
            // Behind what is read: the elevator alone would never reach them.
            queue.on_arrival(now, read(n, 1 << 30, Class::Asynchronous));
        }
        let mut next_id = backlog;
        let mut issued = 0;
        let mut in_flight = Vec::new();
        let bound = Duration::from_millis(500) + (MS * 63 + US * service_us * 4) * (backlog + 1);
        while issued < backlog {
            prop_assert!(now.since(Instant::ZERO) <= bound, "{issued} of {backlog} issued");
            while queue.waiting() < (backlog - issued) as usize + 2 * usize::from(depth) {
                queue.on_arrival(now, read(next_id, u64::from(next_id), Class::Synchronous));
                next_id += 1;
            }
            let mut synchronous_passed = 0;
            while let Some(batch) = queue.next(now) {
                if batch.class == Class::Asynchronous {
                    issued += 1;
                    synchronous_passed += 1;
                    prop_assert!(synchronous_passed <= 1, "two in a row while synchronous requests wait");
                } else {
                    synchronous_passed = 0;
                }
                in_flight.push(batch.id);
            }
            now += US * service_us;
            let done = in_flight.len().div_ceil(2);
            in_flight.drain(..done).for_each(|id| queue.on_completion(now, id));
        }
    }

    #[test]
    fn neighbours_are_found_on_both_sides_in_any_order_of_arrival(
        order in Just((0..64u32).collect::<Vec<_>>()).prop_shuffle(),
        elevator in any::<bool>(),
        transfer_blocks in 1u32..65,
    ) {
        let transfer_bytes_max = transfer_blocks * 4096;
        let mut queue = Queue::new(Config { elevator, transfer_bytes_max, ..Config::default() });
        for n in &order {
            queue.on_arrival(Instant::ZERO, read(*n, u64::from(*n), Class::Synchronous));
        }
        let issued: Vec<Batch> = std::iter::from_fn(|| queue.next(Instant::ZERO)).collect();
        for batch in &issued {
            let ids: Vec<u32> = batch.members.iter().map(|id| id.0).collect();
            let first = (batch.range.at.0 / 4096) as u32;
            prop_assert_eq!(&ids, &(first..first + ids.len() as u32).collect::<Vec<_>>());
        }
        let batches = issued.len() as u32;
        if elevator {
            prop_assert_eq!(batches, 64u32.div_ceil(transfer_blocks));
        } else {
            // The oldest is the seed, and what is left may lie in pieces.
            prop_assert!(batches <= 2 * 64u32.div_ceil(transfer_blocks));
        }
    }

    #[test]
    fn the_elevator_passes_over_the_disk_in_one_direction(blocks in prop::collection::btree_set(0u64..10_000, 1..60)) {
        let mut queue = Queue::new(Config { elevator: true, merge: false, ..Config::default() });
        for (n, block) in blocks.iter().rev().enumerate() {
            queue.on_arrival(Instant::ZERO, read(n as u32, *block, Class::Synchronous));
        }
        let order: Vec<u64> =
            std::iter::from_fn(|| queue.next(Instant::ZERO)).map(|b| b.range.at.0 / 4096).collect();
        prop_assert_eq!(order, blocks.into_iter().collect::<Vec<_>>());
    }
}

#[test]
fn sequential_arrivals_merge_up_to_the_bound() {
    // 1 MiB in requests of 4 KiB becomes 128 KiB transfers (WS-3) of 32 each.
    let mut queue = Queue::new(Config { transfer_bytes_max: 128 << 10, ..Config::default() });
    for n in 0..256 {
        queue.on_arrival(Instant::ZERO, read(n, n.into(), Class::Asynchronous));
    }
    let members: Vec<usize> = std::iter::from_fn(|| queue.next(Instant::ZERO)).map(|b| b.members.len()).collect();
    assert_eq!(members, [32; 8]);
}

#[test]
fn blocks_that_are_read_again_and_again_merge_each_time() {
    let mut queue = Queue::new(Config::default());
    for round in 0..5 {
        for block in [9, 5, 4, 3] {
            queue.on_arrival(Instant::ZERO, read(round * 10 + block, block.into(), Class::Synchronous));
        }
        let batches: Vec<Batch> = std::iter::from_fn(|| queue.next(Instant::ZERO)).collect();
        let members: Vec<usize> = batches.iter().map(|b| b.members.len()).collect();
        assert_eq!(members, [1, 3], "round {round}");
        batches.iter().for_each(|b| queue.on_completion(Instant::ZERO, b.id));
    }
}

#[test]
fn without_merging_each_request_is_a_batch() {
    let mut queue = Queue::new(Config { merge: false, ..Config::default() });
    for n in 0..20 {
        queue.on_arrival(Instant::ZERO, read(n, n.into(), Class::Synchronous));
    }
    assert_eq!(std::iter::from_fn(|| queue.next(Instant::ZERO)).count(), 20);
}

#[test]
fn an_asynchronous_neighbour_joins_a_synchronous_batch() {
    let mut queue = Queue::new(Config::default());
    queue.on_arrival(Instant::ZERO, read(0, 0, Class::Asynchronous));
    queue.on_arrival(Instant::ZERO, read(1, 1, Class::Synchronous));
    queue.on_arrival(Instant::ZERO, read(2, 2, Class::Asynchronous));
    let batch = queue.next(Instant::ZERO).expect("three wait");
    assert_eq!(batch.members.as_slice(), [RequestId(0), RequestId(1), RequestId(2)]);
    assert_eq!(batch.class, Class::Synchronous);
}

#[test]
fn without_priority_requests_go_in_order_of_arrival() {
    let mut queue = Queue::new(Config { priority: false, merge: false, ..Config::default() });
    for n in 0..40 {
        let class = if n < 20 { Class::Asynchronous } else { Class::Synchronous };
        queue.on_arrival(Instant::ZERO, read(n, 100 - u64::from(n), class));
    }
    let order: Vec<u32> = std::iter::from_fn(|| queue.next(Instant::ZERO)).map(|b| b.members[0].0).collect();
    assert_eq!(order, (0..40).collect::<Vec<_>>());
}

#[test]
fn the_elevator_does_not_starve_an_overdue_synchronous_request() {
    let mut queue = Queue::new(Config { elevator: true, merge: false, depth: 1, ..Config::default() });
    queue.on_arrival(Instant::ZERO, read(0, 5, Class::Synchronous));
    queue.on_arrival(Instant::ZERO, read(1, 1000, Class::Synchronous));
    let mut now = Instant::ZERO;
    let mut id = 2;
    // After the first, the far one waits while new ones arrive just ahead of the head.
    for _ in 0..200 {
        let batch = queue.next(now).expect("some always wait");
        if batch.members[0] == RequestId(1) {
            assert!(now.since(Instant::ZERO) <= MS * (50 + 2 * 17));
            return;
        }
        let behind = batch.range.end().0 / 4096;
        queue.on_arrival(now, read(id, behind % 900, Class::Synchronous));
        queue.on_arrival(now, read(id + 1, (behind + 1) % 900, Class::Synchronous));
        id += 2;
        now += MS * 2;
        queue.on_completion(now, batch.id);
    }
    panic!("request 1 starved");
}

#[test]
fn a_hanging_asynchronous_request_does_not_stop_the_others() {
    let mut queue = Queue::new(Config { asynchronous_bytes_max: 0, merge: false, ..Config::default() });
    queue.on_arrival(Instant::ZERO, read(0, 0, Class::Asynchronous));
    queue.on_arrival(Instant::ZERO, read(1, 9, Class::Asynchronous));
    assert!(queue.next(Instant::ZERO).is_some());
    assert!(queue.next(Instant::ZERO).is_none(), "the window holds one");
    let deadline = queue.next_deadline().expect("one is held back");
    assert_eq!(deadline, Instant::ZERO + MS * 500);
    queue.on_arrival(Instant::ZERO, read(2, 99, Class::Asynchronous));
    assert!(queue.next(deadline).is_some());
    assert!(queue.next(deadline).is_none(), "a backlog does not exceed the window all at once");
    let deadline = queue.next_deadline().expect("one is held back");
    assert!(queue.next(deadline).is_some());
}
