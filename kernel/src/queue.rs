//! The request queue of one physical disk: every file and volume on it goes through here (WS-3, WS-4).
//!
//! Whoever brings a request, or completes one, takes from the queue what the disk may have next and gives it to the
//! disk. Lock order: the queue's lock is taken alone.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use machine::{Errno, SeekTarget};
use policy::access::{Access, Mode as AccessMode};
use policy::delivery::Method;
use policy::queue::{Arrival, Batch, BatchId, Config, Kind, Queue, RequestId, StreamId};
use policy::unit::{ByteOffset, ByteRange, Class, ProcessorId, Stability};
use slab::Slab;
use smallvec::SmallVec;

use crate::counters::{CountedGuard, CountedMutex, DiskBlock, DiskCounters, DiskReading};
use crate::device::{Device, DeviceFacts, DeviceRef, Work};
use crate::frame::Frames;
use crate::processor::Processor;
use crate::request::{Action, JobId, Request};
use crate::trace::{Began, Event};

/// The processor that owns the devices: with funnelled access it alone starts them (MP 1a).
const OWNER: ProcessorId = ProcessorId(0);

/// The queue of one disk.
pub struct DiskQueue {
    state: CountedMutex<State>,
    streams: AtomicU32,
    counts: DiskCounters,
}

struct State {
    policy: Queue,
    waiting: Slab<Waiting>,
}

/// What a queue has done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounters {
    pub requests: u64,
    /// Transfers given to the disk for them.
    pub batches: u64,
}

struct Waiting {
    request: Option<Request>,
    stream: StreamId,
    below: DeviceRef,
    access: Option<AccessMode>,
    end: Arc<End>,
    began: Began,
}

/// Where the one who brought a request learns how it ended.
#[derive(Default)]
struct End<T = ()> {
    state: Mutex<EndState<T>>,
}

#[derive(Default)]
struct EndState<T> {
    result: Option<Result<T, Errno>>,
    waker: Option<Waker>,
}

/// Requests that go to the disk as one: usually one alone.
type Members = SmallVec<[Member; 1]>;

/// What goes to the disk as one.
struct Issue {
    batch: BatchId,
    below: DeviceRef,
    /// Who may start it: the device's own rule, if it has one.
    access: Option<AccessMode>,
    members: Members,
}

/// One of them, and how it ended.
struct Member {
    /// Until it is done alone.
    request: Option<Request>,
    end: Arc<End>,
    result: Result<(), Errno>,
}

impl DiskQueue {
    pub fn new(config: Config) -> Self {
        let state = State { policy: Queue::new(config), waiting: Slab::new() };
        DiskQueue { state: CountedMutex::new(state), streams: AtomicU32::new(0), counts: DiskCounters::default() }
    }

    pub fn counters(&self) -> QueueCounters {
        let reading = self.reading();
        let batches = reading.reads + reading.writes + reading.flushes + reading.others;
        QueueCounters { requests: reading.requests, batches }
    }

    /// Merges, puts first who waits, and lets jobs take turns, or not, from now on; for those that wait here, too.
    pub(crate) fn set_switches(&self, merge: bool, priority: bool, fair: bool) {
        let mut state = self.lock();
        let config = Config { merge, priority, fair, ..state.policy.config().clone() };
        state.policy.set_config(config);
    }

    /// What was done with the disk. Takes no lock.
    pub fn reading(&self) -> DiskReading {
        self.counts.read(self.state.read())
    }

    fn lock(&self) -> CountedGuard<'_, State> {
        self.state.lock()
    }

    /// Takes what the disk may have next.
    fn take_next(&self, cpu: &Processor) -> Option<Issue> {
        let now = cpu.now();
        let mut state = self.lock();
        let batch = state.policy.next(now)?;
        Some(state.take(cpu, &batch))
    }

    /// Gives the disk what it may have, each transfer as a task of this processor.
    fn pump(self: &Arc<Self>, cpu: &Processor) {
        while let Some(issue) = self.take_next(cpu) {
            self.start(cpu, issue);
        }
    }

    /// What is done for a job is charged to it, whoever starts it.
    fn start(self: &Arc<Self>, cpu: &Processor, issue: Issue) {
        if let Some(owner) = owner_elsewhere(cpu, issue.access) {
            let disk = Arc::clone(self);
            return hand_over(cpu, owner, move |there| disk.start(&there, issue));
        }
        let (disk, here) = (Arc::clone(self), cpu.clone());
        let job = issue.members.first().map_or(JobId::default(), Member::job);
        cpu.spawn_path_for(job, async move { disk.issue(&here, issue).await });
    }

    /// Like [`pump`](Self::pump), on the processor that starts devices with this rule.
    fn pump_where_started(self: &Arc<Self>, cpu: &Processor, access: Option<AccessMode>) {
        let Some(owner) = owner_elsewhere(cpu, access) else { return self.pump(cpu) };
        if self.lock().waiting.is_empty() {
            return;
        }
        let disk = Arc::clone(self);
        hand_over(cpu, owner, move |there| disk.pump(&there));
    }

    async fn issue(self: &Arc<Self>, cpu: &Processor, issue: Issue) {
        let in_flight = InFlight { disk: self, cpu, batch: issue.batch };
        let mut members = issue.members;
        let counts = self.counts.of(cpu);
        let is_shared = members.len() > 1;
        let request = if is_shared { merge(&members) } else { members[0].request.take() };
        let mut result = Ok(());
        if let Some(request) = request {
            result = perform(cpu, counts, &issue.below, request).await;
        }
        for member in &mut members {
            member.result = match (result, &member.request) {
                // One bad sector must not fail its neighbours.
                (Err(_), Some(request)) if is_shared => perform(cpu, counts, &issue.below, request.clone()).await,
                _ => result,
            };
        }
        counts.end(members.len());
        // From here on it is over when the work after it is done, wherever that is.
        std::mem::forget(in_flight);
        let (disk, batch) = (Arc::clone(self), issue.batch);
        cpu.deliver(move |there| disk.finish(there, batch, members));
    }

    /// Has a device that does everything at once do it: nobody waits for the disk, and no processor for another's lock.
    async fn perform_at_once(&self, cpu: &Processor, below: &DeviceRef, request: Request) -> Result<(), Errno> {
        let counts = self.counts.of(cpu);
        counts.arrive();
        let result = perform(cpu, counts, below, request).await;
        counts.end(1);
        result
    }

    /// The work after a completion: lets the disk have the next request, and wakes who waited for these.
    fn finish(self: &Arc<Self>, cpu: &Processor, batch: BatchId, members: Members) {
        let now = cpu.now();
        self.lock().policy.on_completion(now, batch);
        self.pump_where_started(cpu, None);
        for Member { request, end, result } in members {
            drop(request);
            end.set(result);
        }
    }
}

impl Member {
    fn job(&self) -> JobId {
        self.request.as_ref().map_or(JobId::default(), |request| request.context.job)
    }
}

impl State {
    fn take(&mut self, cpu: &Processor, batch: &Batch) -> Issue {
        let (mut below, mut access) = (None, None);
        let mut members = Members::with_capacity(batch.members.len());
        for id in &batch.members {
            let waiting = self.waiting.remove(id.0 as usize);
            let request = waiting.request.unwrap_or_else(|| unreachable!("a waiting request is issued once"));
            let (at, len) = request.action.range().map_or((0, 0), |range| (range.at.0, range.len));
            cpu.end(waiting.began, Event::QueueWaited, request.context, at, len);
            below.get_or_insert(waiting.below);
            access = waiting.access;
            members.push(Member { request: Some(request), end: waiting.end, result: Ok(()) });
        }
        let below = below.unwrap_or_else(|| unreachable!("a batch has members"));
        if members.len() > 1 {
            cpu.trace(Event::QueueMerged, JobId::default(), members.len() as u64, batch.range.len);
        }
        Issue { batch: batch.id, below, access, members }
    }
}

/// Has the device do it, and records how long that took.
async fn perform(cpu: &Processor, counts: &DiskBlock, below: &DeviceRef, request: Request) -> Result<(), Errno> {
    let event = match request.action {
        Action::Read(..) => Event::DeviceRead,
        Action::Write(..) => Event::DeviceWrite,
        Action::Flush => Event::DeviceFlush,
        Action::Zero { .. } | Action::Discard(_) => Event::DeviceOther,
    };
    let (context, range) = (request.context, request.action.range());
    counts.issue(&request.action);
    let began = cpu.begin_timed(event, context);
    let result = below.perform(cpu, request).await;
    let (at, len) = range.map_or((0, 0), |range| (range.at.0, range.len));
    counts.complete(cpu.end_timed(began, event, context, at, len), result.is_ok());
    if let Err(error) = result {
        cpu.trace(Event::DeviceFailed, context, error.0 as u64, 0);
    }
    result
}

/// The processor that starts devices, if it is another one; `access`: the device's own rule, if it has one.
fn owner_elsewhere(cpu: &Processor, access: Option<AccessMode>) -> Option<ProcessorId> {
    let owner = Access::new(access.unwrap_or(cpu.switches().access), OWNER).starts(cpu.id());
    (owner != cpu.id()).then_some(owner)
}

/// Has the owner of the disks do something with them.
fn hand_over(cpu: &Processor, owner: ProcessorId, work: impl FnOnce(Processor) + Send + 'static) {
    cpu.trace(Event::QueueHandedOver, JobId::default(), u64::from(owner.0), 0);
    cpu.spawn_on(owner, work);
}

/// One request for the bytes of all, which lie end to end.
fn merge(members: &[Member]) -> Option<Request> {
    let mut frames = Frames::new();
    let mut range: Option<ByteRange> = None;
    let mut requests = members.iter().filter_map(|member| member.request.as_ref()).peekable();
    let mut context = requests.peek()?.context;
    let mut is_write = false;
    for request in requests {
        if let Action::Read(at, some) | Action::Write(at, some) = &request.action {
            frames.extend(some.iter().cloned());
            range = Some(range.map_or(*at, |before| ByteRange { at: before.at, len: before.len + at.len }));
            is_write = matches!(request.action, Action::Write(..));
        }
        if request.context.class == Class::Synchronous {
            context.class = Class::Synchronous;
        }
        if request.context.stability == Stability::Stable {
            context.stability = Stability::Stable;
        }
    }
    let range = range.unwrap_or_else(|| unreachable!("only transfers are merged"));
    let action = if is_write { Action::Write(range, frames) } else { Action::Read(range, frames) };
    Some(Request { action, context })
}

/// Tells the policy that the disk is done with a batch, also when its task was dropped.
struct InFlight<'a> {
    disk: &'a DiskQueue,
    cpu: &'a Processor,
    batch: BatchId,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let now = self.cpu.now();
        self.disk.lock().policy.on_completion(now, self.batch);
    }
}

impl<T: Copy> End<T> {
    fn set(&self, result: Result<T, Errno>) {
        let waker = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.result = Some(result);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn poll(&self, cx: &Context<'_>) -> Poll<Result<T, Errno>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match state.result {
            Some(result) => Poll::Ready(result),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// A device whose requests go through its disk's queue.
pub struct Queued {
    disk: Arc<DiskQueue>,
    stream: StreamId,
    below: DeviceRef,
    access: Option<AccessMode>,
    is_immediate: bool,
    /// Asynchronous requests that are not done, for [`Device::expedite`].
    asynchronous: Mutex<BTreeMap<RequestId, ByteRange>>,
}

impl Queued {
    /// `below`, behind the queue of its disk.
    pub fn new(disk: Arc<DiskQueue>, below: DeviceRef) -> Self {
        let stream = StreamId(disk.streams.fetch_add(1, Ordering::Relaxed));
        let is_immediate = below.is_immediate();
        Queued { disk, stream, below, access: None, is_immediate, asynchronous: Mutex::default() }
    }

    /// The same with a rule of its own for who may start it, in place of the switch.
    #[must_use]
    pub fn with_access(self, access: Option<AccessMode>) -> Self {
        Queued { access, ..self }
    }

    fn arrive(&self, cpu: &Processor, request: Request, end: &Arc<End>) -> RequestId {
        let now = cpu.now();
        let (kind, range) = match &request.action {
            Action::Read(range, _) => (Kind::Read, *range),
            Action::Write(range, _) => (Kind::Write, *range),
            Action::Zero { range, .. } | Action::Discard(range) => (Kind::Other, *range),
            Action::Flush => (Kind::Flush, ByteRange::new(0, 0)),
        };
        let (class, job) = (request.context.class, request.context.job);
        let began = cpu.begin(Event::QueueWaited, request.context);
        self.disk.counts.of(cpu).arrive();
        let mut state = self.disk.lock();
        let id = RequestId(state.waiting.insert(Waiting {
            request: Some(request),
            stream: self.stream,
            below: Arc::clone(&self.below),
            access: self.access,
            end: Arc::clone(end),
            began,
        }) as u32);
        state.policy.on_arrival(now, Arrival { id, stream: self.stream, kind, range, class, job });
        drop(state);
        if class == Class::Asynchronous {
            self.asynchronous().insert(id, range);
        }
        id
    }

    /// Past the queue, on the processor that starts the disk.
    async fn perform_at_once(&self, cpu: &Processor, request: Request) -> Result<(), Errno> {
        let Some(owner) = owner_elsewhere(cpu, self.access) else {
            return self.disk.perform_at_once(cpu, &self.below, request).await;
        };
        let end = Arc::new(End::default());
        let (disk, below, theirs) = (Arc::clone(&self.disk), Arc::clone(&self.below), Arc::clone(&end));
        hand_over(cpu, owner, move |there| {
            let here = there.clone();
            there.spawn_path(async move { theirs.set(disk.perform_at_once(&here, &below, request).await) });
        });
        poll_fn(|cx| end.poll(cx)).await
    }

    /// Gives the disk what it may have. Usually it has room, and the request at hand, which ends at `end`, is what it may
    /// have: no task is needed for that.
    async fn start(&self, cpu: &Processor, end: &Arc<End>) {
        let mut own = None;
        while let Some(issue) = self.disk.take_next(cpu) {
            let is_own = issue.members.len() == 1 && Arc::ptr_eq(&issue.members[0].end, end);
            if is_own {
                own = Some(issue);
            } else {
                self.disk.start(cpu, issue);
            }
        }
        if let Some(issue) = own {
            self.disk.issue(cpu, issue).await;
        }
    }

    fn asynchronous(&self) -> MutexGuard<'_, BTreeMap<RequestId, ByteRange>> {
        self.asynchronous.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Device for Queued {
    fn facts(&self) -> DeviceFacts {
        self.below.facts()
    }

    fn perform<'a>(&'a self, cpu: &'a Processor, request: Request) -> Work<'a, ()> {
        // What is done at once has no completion that could be delivered elsewhere.
        if self.is_immediate && cpu.switches().delivery == Method::Initiator {
            return Box::pin(self.perform_at_once(cpu, request));
        }
        Box::pin(async move {
            let class = request.context.class;
            let end = Arc::new(End::default());
            let id = self.arrive(cpu, request, &end);
            if owner_elsewhere(cpu, self.access).is_some() {
                self.disk.pump_where_started(cpu, self.access);
            } else {
                self.start(cpu, &end).await;
            }
            let result = poll_fn(|cx| end.poll(cx)).await;
            if class == Class::Asynchronous {
                self.asynchronous().remove(&id);
            }
            result
        })
    }

    fn expedite(&self, cpu: &Processor, range: ByteRange) {
        let overlaps = |at: &ByteRange| at.at < range.end() && range.at < at.end();
        let ids: Vec<_> = self.asynchronous().iter().filter(|(_, at)| overlaps(at)).map(|(id, _)| *id).collect();
        if ids.is_empty() {
            return;
        }
        let now = cpu.now();
        let mut state = self.disk.lock();
        for id in ids {
            // The number may stand for a later request by now; only one that still waits here is meant.
            let waits = state.waiting.get(id.0 as usize).is_some_and(|waiting| waiting.stream == self.stream);
            if waits {
                cpu.trace(Event::QueuePromoted, JobId::default(), range.at.0, 0);
                state.policy.promote(now, id);
            }
        }
        drop(state);
        self.disk.pump_where_started(cpu, self.access);
    }

    fn seek<'a>(&'a self, cpu: &'a Processor, at: ByteOffset, target: SeekTarget) -> Work<'a, Option<ByteOffset>> {
        let Some(owner) = owner_elsewhere(cpu, self.access) else { return self.below.seek(cpu, at, target) };
        Box::pin(async move {
            let end = Arc::new(End::default());
            let (below, theirs) = (Arc::clone(&self.below), Arc::clone(&end));
            hand_over(cpu, owner, move |there| {
                let here = there.clone();
                there.spawn(async move { theirs.set(below.seek(&here, at, target).await) });
            });
            poll_fn(|cx| end.poll(cx)).await
        })
    }
}
