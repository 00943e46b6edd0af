//! Which processor starts a device, which handles its completion, and when, in the simulated machine.

use kernel::device::{Device, DeviceFacts, DeviceRef, FileDevice, FoundData, RamDisk, Work};
use kernel::processor::IMMEDIATE_TASKS_MAX;
use kernel::queue::{DiskQueue, Queued};
use kernel::request::{Action, Context, JobId, Outcome, Request};
use kernel::trace::{Event, Mode as TraceMode, Record, Trace, TraceMemory, Tracer, private_memory};
use kernel::{Frames, Kernel, Processor, Switches};
use policy::access;
use policy::delivery::Method;
use policy::unit::{ByteRange, DiskNo, ProcessorId};
use sim::{DiskConfig, Latency, World};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use testkit::scene::{Host, drive, small_kernel, spawn};

use parking_lot::Mutex;

const MIB: u64 = 1 << 20;
const READS: u64 = 20;

/// A device that records which processor starts it.
struct Noting {
    below: DeviceRef,
    starts: Mutex<BTreeMap<ProcessorId, u64>>,
}

impl Noting {
    fn note(&self, cpu: &Processor) {
        *self.starts.lock().entry(cpu.id()).or_default() += 1;
    }
}

impl Device for Noting {
    fn facts(&self) -> DeviceFacts {
        self.below.facts()
    }

    fn is_immediate(&self) -> bool {
        self.below.is_immediate()
    }

    fn perform<'a>(&'a self, cpu: &'a Processor, request: Request) -> Work<'a, Outcome> {
        self.note(cpu);
        self.below.perform(cpu, request)
    }

    fn find_data<'a>(&'a self, cpu: &'a Processor, within: ByteRange, runs_max: usize) -> Work<'a, FoundData> {
        self.note(cpu);
        self.below.find_data(cpu, within, runs_max)
    }
}

/// A host of three processors with tracing.
fn host(world: &World, switches: Switches) -> (Host, TraceMemory) {
    let memory = private_memory(1 << 20);
    let tracer = Arc::new(Tracer::new(TraceMode::Direct, 3, memory, 0));
    let kernel = Kernel::traced(small_kernel(3, 4 * MIB, switches), tracer).expect("address space");
    (Host::with_kernel(world, world.add_host("server"), kernel), memory)
}

fn disk(world: &World, host: &Host, config: DiskConfig) -> DeviceRef {
    Arc::new(FileDevice::new(world.open(world.add_disk(host.id, config), true)))
}

fn queued(below: DeviceRef) -> DeviceRef {
    Arc::new(Queued::new(Arc::new(DiskQueue::new(policy::queue::Config::default())), below))
}

async fn perform(cpu: &Processor, device: &DeviceRef, action: Action) {
    let context = Context::synchronous(JobId(1));
    let done = device.perform(cpu, Request { action, context }).await;
    assert_eq!(done, Ok(Outcome::Done), "a faultless disk");
}

async fn frames(cpu: &Processor, byte: u8) -> Frames {
    let mut frames = cpu.kernel().allocate(cpu, 1).await;
    frames[0].bytes_mut().expect("unshared").fill(byte);
    frames
}

fn block(number: u64) -> ByteRange {
    ByteRange::new(number * 4096, 4096)
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Disk,
    /// Completes everything at once.
    Memory,
}

/// All kinds of requests from each of three processors to a device that may have an access rule of its own. Returns the
/// starts by processor. Another device on the same disk has as many requests, and no rule.
fn starts(kind: Kind, access: access::Mode, own: Option<access::Mode>, delivery: Method) -> BTreeMap<ProcessorId, u64> {
    let world = World::new(1);
    let (host, _) = host(&world, Switches { access, delivery, ..Switches::default() });
    let below: DeviceRef = match kind {
        Kind::Disk => disk(&world, &host, DiskConfig::new(8 * MIB)),
        Kind::Memory => Arc::new(RamDisk::new(8 * MIB, DiskNo(0))),
    };
    let noting = Arc::new(Noting { below, starts: Mutex::default() });
    let disk = Arc::new(DiskQueue::new(policy::queue::Config { depth: 2, ..policy::queue::Config::default() }));
    let device: DeviceRef = Arc::new(Queued::new(Arc::clone(&disk), noting.clone()).with_access(own));
    let beside: DeviceRef = Arc::new(Queued::new(disk, Arc::new(RamDisk::new(8 * MIB, DiskNo(0)))));
    let clients: Vec<_> = (0u8..3)
        .map(|client| {
            let (device, beside) = (Arc::clone(&device), Arc::clone(&beside));
            spawn(&host.processors[usize::from(client)], async move |cpu| {
                for step in 0..READS {
                    let read = frames(&cpu, 0).await;
                    perform(&cpu, &beside, Action::Read(block(step), read)).await;
                }
            });
            spawn(&host.processors[usize::from(client)], async move |cpu| {
                for step in 0..READS {
                    let range = block(u64::from(client) * 100 + step);
                    let written = frames(&cpu, client + 1).await;
                    perform(&cpu, &device, Action::Write(range, written)).await;
                    let read = frames(&cpu, 0).await;
                    perform(&cpu, &device, Action::Read(range, read.clone())).await;
                    assert!(read[0].bytes().iter().all(|byte| *byte == client + 1), "{kind:?} {access:?} {delivery:?}");
                    perform(&cpu, &device, Action::Flush).await;
                    let found = device.find_data(&cpu, range, 1).await;
                    assert_eq!(found, Ok(FoundData { runs: vec![range], end: range.end() }));
                    perform(&cpu, &device, Action::Zero { range, may_release: true }).await;
                }
            })
        })
        .collect();
    assert!(drive(&world, &[&host], || clients.iter().all(|client| client.borrow().is_some())), "a request got lost");
    drop((device, beside));
    host.die();
    noting.starts.lock().clone()
}

#[test]
fn with_a_funnel_only_the_owner_starts_a_device() {
    for kind in [Kind::Disk, Kind::Memory] {
        for delivery in [Method::Initiator, Method::Fixed(ProcessorId(1)), Method::All] {
            let funnelled = starts(kind, access::Mode::Funnel, None, delivery);
            assert_eq!(funnelled.keys().collect::<Vec<_>>(), [&ProcessorId(0)], "{kind:?} {delivery:?}");
            let own = starts(kind, access::Mode::Symmetric, Some(access::Mode::Funnel), delivery);
            assert_eq!(own.keys().collect::<Vec<_>>(), [&ProcessorId(0)], "{kind:?} {delivery:?}, its own");
        }
        for (access, own) in [(access::Mode::Symmetric, None), (access::Mode::Funnel, Some(access::Mode::Symmetric))] {
            let symmetric = starts(kind, access, own, Method::Initiator);
            assert_eq!(symmetric.into_keys().collect::<Vec<_>>(), [0, 1, 2].map(ProcessorId), "{kind:?} {own:?}");
        }
    }
}

/// `READS` reads one after the other from `initiator`, while each processor `n` runs `busy[n]` tasks that are always
/// ready. Returns where the completions were handled.
fn delivered(method: Method, initiator: usize, busy: [usize; 3]) -> Vec<Record> {
    let world = World::new(2);
    // A read takes a time slice or two.
    world.set_slice_ns(100_000);
    let (host, memory) = host(&world, Switches { delivery: method, ..Switches::default() });
    let device = queued(disk(&world, &host, DiskConfig::new(8 * MIB)));
    let over = Rc::new(Cell::new(false));
    for (cpu, tasks) in host.processors.iter().zip(busy) {
        for _ in 0..tasks {
            let over = Rc::clone(&over);
            spawn(cpu, async move |cpu| {
                while !over.get() {
                    cpu.yield_now().await;
                }
            });
        }
    }
    let client = spawn(&host.processors[initiator], async move |cpu| {
        for number in 0..READS {
            let read = frames(&cpu, 1).await;
            perform(&cpu, &device, Action::Read(block(number), read)).await;
        }
        over.set(true);
    });
    assert!(drive(&world, &[&host], || client.borrow().is_some()), "{method:?}: a completion got lost");
    host.die();
    let trace = Trace::read(memory).expect("a trace");
    assert_eq!(trace.overwritten, 0);
    let records = trace.moments.into_iter().map(|moment| moment.record);
    records.filter(|record| record.event == Event::CompletionDelivered).collect()
}

/// Starts by processor of `READS` concurrent requests of `initiator`, on a disk of depth 1.
fn starts_one_by_one(method: Method, initiator: usize) -> BTreeMap<ProcessorId, u64> {
    let world = World::new(4);
    let (host, _) = host(&world, Switches { delivery: method, ..Switches::default() });
    let noting = Arc::new(Noting { below: disk(&world, &host, DiskConfig::new(8 * MIB)), starts: Mutex::default() });
    let config = policy::queue::Config { depth: 1, merge: false, ..Default::default() };
    let device: DeviceRef = Arc::new(Queued::new(Arc::new(DiskQueue::new(config)), noting.clone()));
    let clients: Vec<_> = (0..READS)
        .map(|number| {
            let device = Arc::clone(&device);
            spawn(&host.processors[initiator], async move |cpu| {
                let read = frames(&cpu, 1).await;
                perform(&cpu, &device, Action::Read(block(number), read)).await;
            })
        })
        .collect();
    assert!(drive(&world, &[&host], || clients.iter().all(|client| client.borrow().is_some())), "a request got lost");
    host.die();
    noting.starts.lock().clone()
}

#[test]
fn who_takes_a_completion_starts_the_next_request() {
    let (one, other) = (ProcessorId(1), ProcessorId(2));
    assert_eq!(starts_one_by_one(Method::Initiator, 2), BTreeMap::from([(other, READS)]));
    assert_eq!(starts_one_by_one(Method::Fixed(one), 2), BTreeMap::from([(other, 1), (one, READS - 1)]));
}

fn places(records: &[Record]) -> BTreeSet<u16> {
    records.iter().map(|record| record.processor).collect()
}

#[test]
fn the_work_after_a_completion_is_done_where_it_was_started_unless_told_otherwise() {
    for initiator in 0..3 {
        assert_eq!(delivered(Method::Initiator, initiator, [0, 1, 2]), []);
    }
}

#[test]
fn a_fixed_processor_does_the_work_after_every_completion() {
    for (fixed, initiator) in [(0, 2), (1, 2), (1, 0), (1, 1)] {
        let records = delivered(Method::Fixed(ProcessorId(fixed)), initiator, [0; 3]);
        assert_eq!((places(&records), records.len() as u64), (BTreeSet::from([fixed]), READS));
    }
    let absent = delivered(Method::Fixed(ProcessorId(7)), 2, [0; 3]);
    assert_eq!(places(&absent), BTreeSet::from([2]), "it is left to the initiator");
}

#[test]
fn an_idle_processor_does_the_work_after_completions_of_a_busy_one() {
    let records = delivered(Method::Idle, 0, [3, 3, 0]);
    assert_eq!((places(&records), records.len() as u64), (BTreeSet::from([2]), READS));
    let records = delivered(Method::Idle, 1, [0; 3]);
    assert_eq!(places(&records), BTreeSet::from([1]), "the initiator is idle itself");
    let records = delivered(Method::Idle, 0, [6, 5, 2]);
    assert_eq!(places(&records), BTreeSet::from([2]), "nobody is idle: what is least urgent");
}

#[test]
fn the_busiest_processor_does_the_work_where_that_is_asked_for() {
    let records = delivered(Method::Busiest, 0, [0, 2, 5]);
    assert_eq!((places(&records), records.len() as u64), (BTreeSet::from([2]), READS));
}

#[test]
fn one_of_all_does_the_work_of_each_completion_once() {
    let mut places_of_all = BTreeSet::new();
    for initiator in 0..3 {
        let records = delivered(Method::All, initiator, [0; 3]);
        assert_eq!(records.len() as u64, READS);
        assert!(records.iter().all(|record| record.a == initiator as u64));
        places_of_all.extend(places(&records).into_iter().filter(|place| usize::from(*place) != initiator));
    }
    assert!(!places_of_all.is_empty(), "the initiator was always the first");
}

/// Events on one processor, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Happened {
    Turn,
    Spun,
    Read,
}

/// `reads` complete at the same time while `spinning` tasks are always ready. Returns the events of that time slice.
fn turn_of_completion(immediate_dispatch: bool, spinning: usize, reads: u64) -> Vec<Happened> {
    let world = World::new(3);
    world.set_slice_ns(1_000);
    let (host, _) = host(&world, Switches { immediate_dispatch, ..Switches::default() });
    let config = DiskConfig { read: Latency::us(100, 100), ns_per_kib: 0, channels: 1000, ..DiskConfig::new(8 * MIB) };
    let device = disk(&world, &host, config);
    let log = Rc::new(RefCell::new(Vec::new()));
    let cpu = &host.processors[0];
    let tasks: Vec<_> = (0..reads)
        .map(|number| {
            let (log, device) = (Rc::clone(&log), Arc::clone(&device));
            spawn(cpu, async move |cpu| {
                let read = frames(&cpu, 1).await;
                perform(&cpu, &device, Action::Read(block(number), read)).await;
                log.borrow_mut().push(Happened::Read);
            })
        })
        .collect();
    for _ in 0..spinning {
        let log = Rc::clone(&log);
        spawn(cpu, async move |cpu| {
            loop {
                cpu.yield_now().await;
                log.borrow_mut().push(Happened::Spun);
            }
        });
    }
    let is_over = || tasks.iter().all(|task| task.borrow().is_some());
    assert!(drive(&world, &[&host], || {
        log.borrow_mut().push(Happened::Turn);
        is_over()
    }));
    host.die();
    let log = log.take();
    let first = log.iter().position(|happened| *happened == Happened::Read).expect("all were read");
    let turn = log[..first].iter().rposition(|happened| *happened == Happened::Turn).expect("in a turn");
    log[turn + 1..].iter().copied().take_while(|happened| *happened != Happened::Turn).collect()
}

#[test]
fn what_a_completion_wakes_runs_at_once_and_without_the_switch_behind_what_is_ready() {
    use Happened::{Read, Spun};
    assert_eq!(turn_of_completion(true, 2, 1)[..3], [Read, Spun, Spun]);
    assert_eq!(turn_of_completion(false, 2, 1)[..3], [Spun, Spun, Read]);
}

#[test]
fn tasks_that_are_ready_have_their_turn_however_much_is_complete() {
    let turn = turn_of_completion(true, 2, 100);
    let (at_once, queued) = turn.split_at(IMMEDIATE_TASKS_MAX);
    assert!(at_once.iter().all(|happened| *happened == Happened::Read), "{at_once:?}");
    assert_eq!(queued[..3], [Happened::Spun, Happened::Spun, Happened::Read]);
}

#[test]
fn a_task_that_yields_runs_once_in_a_time_slice() {
    let turn = turn_of_completion(true, 2, 1);
    let spun = turn.iter().filter(|happened| **happened == Happened::Spun).count();
    assert_eq!(spun, 2, "{turn:?}");
}

/// What waits for the place of a request that is given up gets it, though no other request ends.
#[test]
fn a_request_that_is_given_up_leaves_its_place_to_the_next() {
    let world = World::new(1);
    let (host, _) = host(&world, Switches::default());
    let below = disk(&world, &host, DiskConfig::new(8 * MIB));
    let config = policy::queue::Config { depth: 1, ..policy::queue::Config::default() };
    let device: DeviceRef = Arc::new(Queued::new(Arc::new(DiskQueue::new(config)), below));
    let next = Arc::clone(&device);
    let is_waiting = Rc::new(Cell::new(false));
    let waiting = Rc::clone(&is_waiting);
    let first = spawn(&host.processors[0], async move |cpu| {
        let (context, read) = (Context::synchronous(JobId(1)), frames(&cpu, 0).await);
        let mut given_up = device.perform(&cpu, Request { action: Action::Read(block(0), read), context });
        assert!(poll_fn(|cx| Poll::Ready(given_up.as_mut().poll(cx).is_pending())).await);
        while !waiting.get() {
            cpu.yield_now().await;
        }
        drop(given_up);
    });
    let second = spawn(&host.processors[0], async move |cpu| {
        let read = frames(&cpu, 0).await;
        let context = Context::synchronous(JobId(1));
        let mut work = next.perform(&cpu, Request { action: Action::Read(block(1), read), context });
        let done = poll_fn(|cx| {
            let done = work.as_mut().poll(cx);
            is_waiting.set(true);
            done
        });
        assert_eq!(done.await, Ok(Outcome::Done));
    });
    let are_done = || first.borrow().is_some() && second.borrow().is_some();
    assert!(drive(&world, &[&host], are_done), "the second request was never issued");
}
