//! The request queue of one physical disk, for every file and volume on it (WS-3, WS-4).
//!
//! The task that adds or completes a request also takes from the queue what the disk may have next, and issues it. Lock
//! order: under the queue's lock only the central trace recorder's is taken.
//!
//! Memory disks bypass the queue: they complete at once, so there is nothing to order, and with the queue's lock two
//! processors read no faster than one.

mod end;
mod member;

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use machine::Errno;
use policy::access::{Access, Mode as AccessMode};
use policy::delivery::Method;
use policy::queue::{Arrival, Batch, BatchId, Config, Queue, RequestId, RequestKind, StreamId};
use policy::unit::{ByteRange, Class, Instant, ProcessorId};
use slab::Slab;
use smallvec::SmallVec;

use crate::counters::{CountedGuard, CountedMutex, DiskBlock, DiskCounters, DiskReading};
use crate::device::{Device, DeviceFacts, DeviceRef, FoundData, Work};
use crate::processor::Processor;
use crate::request::{Action, Context, JobId, Outcome, Request};
use crate::trace::{Began, Event};
use end::End;
use member::{Member, Members, merge, report_forced};

/// With funnelled access, only this processor starts devices (MP 1a).
const OWNER: ProcessorId = ProcessorId(0);

pub struct DiskQueue {
    state: CountedMutex<State>,
    streams: AtomicU32,
    counts: DiskCounters,
}

struct State {
    policy: Queue,
    waiting: Slab<Waiting>,
    /// A timer is set for what the policy holds back.
    is_timed: bool,
}

/// Totals since the queue was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounters {
    pub requests: u64,
    /// Requests issued to the disk for them.
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

impl Waiting {
    fn overlaps(&self, stream: StreamId, range: ByteRange) -> bool {
        let own = self.request.as_ref().and_then(|request| request.action.range());
        self.stream == stream && own.is_some_and(|own| own.at < range.end() && range.at < own.end())
    }
}

/// What the disk may have now: usually one batch, or nothing.
type Issues = SmallVec<[Issue; 1]>;

/// A batch to be issued.
struct Issue {
    batch: BatchId,
    below: DeviceRef,
    /// The device's own access rule, if it has one.
    access: Option<AccessMode>,
    members: Members,
}

impl DiskQueue {
    pub fn new(config: Config) -> Self {
        let state = State { policy: Queue::new(config), waiting: Slab::new(), is_timed: false };
        DiskQueue { state: CountedMutex::new(state), streams: AtomicU32::new(0), counts: DiskCounters::default() }
    }

    pub fn counters(&self) -> QueueCounters {
        let reading = self.reading();
        let batches = reading.reads + reading.writes + reading.flushes + reading.others;
        QueueCounters { requests: reading.requests, batches }
    }

    /// Switches merging, priority of synchronous requests and fairness between jobs; affects waiting requests, too.
    pub(crate) fn set_switches(&self, merge: bool, priority: bool, fair: bool) {
        let mut state = self.lock();
        let config = Config { merge, priority, fair, ..state.policy.config().clone() };
        state.policy.set_config(config);
    }

    /// Takes no lock.
    pub fn reading(&self) -> DiskReading {
        self.counts.read(self.state.read())
    }

    fn counts_of(&self, cpu: &Processor) -> &DiskBlock {
        self.counts.of(cpu.id(), cpu.kernel().processors())
    }

    fn lock(&self) -> CountedGuard<'_, State> {
        self.state.lock()
    }

    /// Changes the queue and takes what the disk may have then; leaves that to the processor that may start devices, if
    /// it is a remote one.
    fn update(
        self: &Arc<Self>,
        cpu: &Processor,
        access: Option<AccessMode>,
        change: impl FnOnce(&mut State, Instant),
    ) -> Issues {
        let (now, owner) = (cpu.now(), owner_elsewhere(cpu, access));
        let mut state = self.lock();
        change(&mut state, now);
        let Some(owner) = owner else { return self.take_next(cpu, state, now) };
        let is_empty = state.waiting.is_empty();
        drop(state);
        if !is_empty {
            let disk = Arc::clone(self);
            hand_over(cpu, owner, move |there| {
                let issues = disk.take_next(&there, disk.lock(), there.now());
                disk.start_all(&there, issues);
            });
        }
        Issues::new()
    }

    /// What the policy holds back until a deadline is looked at again then, if nothing arrives or completes before.
    fn take_next(self: &Arc<Self>, cpu: &Processor, mut state: CountedGuard<'_, State>, now: Instant) -> Issues {
        let issues = state.take_next(cpu, now);
        // A deadline is never followed by an earlier one.
        let deadline = if state.is_timed { None } else { state.policy.next_deadline() };
        state.is_timed |= deadline.is_some();
        drop(state);
        if let Some(deadline) = deadline {
            let (disk, here) = (Arc::downgrade(self), cpu.clone());
            cpu.spawn_for(JobId::default(), async move {
                here.sleep_until(deadline).await;
                let Some(disk) = disk.upgrade() else { return };
                let issues = disk.update(&here, None, |state, _| state.is_timed = false);
                disk.start_all(&here, issues);
            });
        }
        issues
    }

    /// Issues batches, each in a task of this processor.
    fn start_all(self: &Arc<Self>, cpu: &Processor, issues: Issues) {
        issues.into_iter().for_each(|issue| self.start(cpu, issue));
    }

    /// The task is charged to the request's job, on any processor.
    fn start(self: &Arc<Self>, cpu: &Processor, issue: Issue) {
        if let Some(owner) = owner_elsewhere(cpu, issue.access) {
            let disk = Arc::clone(self);
            return hand_over(cpu, owner, move |there| disk.start(&there, issue));
        }
        let (disk, here) = (Arc::clone(self), cpu.clone());
        let job = issue.members.first().map_or(JobId::default(), Member::job);
        let mut issue = issue;
        cpu.spawn_path_for(job, async move { disk.issue(&here, &mut issue).await });
    }

    /// Leaves no member.
    async fn issue(self: &Arc<Self>, cpu: &Processor, issue: &mut Issue) {
        let in_flight = InFlight { disk: self, cpu, batch: issue.batch };
        let members = &mut issue.members;
        let counts = self.counts_of(cpu);
        let is_shared = members.len() > 1;
        let begun = {
            let request = if is_shared { merge(members) } else { members[0].request.take() };
            request.map(|request| perform(cpu, counts, &issue.below, request))
        };
        let mut result = Ok(Outcome::Done);
        if let Some(begun) = begun {
            result = begun.await;
        }
        for member in &mut *members {
            member.result = match (result, &member.request) {
                // One bad sector must not fail the other requests of a batch.
                (Err(_), Some(request)) if is_shared => perform(cpu, counts, &issue.below, request.clone()).await,
                _ => result,
            };
        }
        if result.is_err() {
            report_forced(members, result);
        }
        counts.end(members.len());
        // From here on, `finish` reports the completion to the policy.
        std::mem::forget(in_flight);
        let (disk, batch, members) = (Arc::clone(self), issue.batch, std::mem::take(members));
        cpu.deliver(move |there| disk.finish(there, batch, members));
    }

    /// Performs a request that the disk has as a batch of its own (`in_flight`), in the caller's task to its end.
    async fn perform_alone(
        self: &Arc<Self>,
        in_flight: InFlight<'_>,
        below: &DeviceRef,
        request: Request,
    ) -> Result<Outcome, Errno> {
        let (cpu, batch) = (in_flight.cpu, in_flight.batch);
        let counts = self.counts_of(cpu);
        let result = perform(cpu, counts, below, request).await;
        counts.end(1);
        // From here on, `finish` reports the completion to the policy.
        std::mem::forget(in_flight);
        self.finish(cpu, batch, Members::new());
        result
    }

    /// For a device that completes at once: needs no queue, and no lock shared by processors.
    async fn perform_at_once(&self, cpu: &Processor, below: &DeviceRef, request: Request) -> Result<Outcome, Errno> {
        let counts = self.counts_of(cpu);
        counts.arrive();
        let result = perform(cpu, counts, below, request).await;
        counts.end(1);
        result
    }

    /// After a completion: issues what the disk may have next, and wakes the waiters.
    fn finish(self: &Arc<Self>, cpu: &Processor, batch: BatchId, members: Members) {
        let issues = self.update(cpu, None, |state, now| state.policy.on_completion(now, batch));
        self.start_all(cpu, issues);
        for Member { request, end, result } in members {
            drop(request);
            end.set(result);
        }
    }
}

impl State {
    fn take_next(&mut self, cpu: &Processor, now: Instant) -> Issues {
        let mut issues = Issues::new();
        while let Some(batch) = self.policy.next(now) {
            issues.push(self.take(cpu, &batch));
        }
        issues
    }

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
            members.push(Member { request: Some(request), end: waiting.end, result: Ok(Outcome::Done) });
        }
        let below = below.unwrap_or_else(|| unreachable!("a batch has members"));
        if members.len() > 1 {
            cpu.trace(Event::QueueMerged, JobId::default(), members.len() as u64, batch.range.len);
        }
        Issue { batch: batch.id, below, access, members }
    }
}

/// Performs a request on the device, and records its duration. No `async fn`: its future would hold the request.
fn perform<'a>(
    cpu: &'a Processor,
    counts: &'a DiskBlock,
    below: &'a DeviceRef,
    request: Request,
) -> impl Future<Output = Result<Outcome, Errno>> + use<'a> {
    let event = match request.action {
        Action::Read(..) => Event::DeviceRead,
        Action::Write(..) => Event::DeviceWrite,
        Action::Flush => Event::DeviceFlush,
        Action::Zero { .. } | Action::Discard(_) => Event::DeviceOther,
    };
    let (context, range) = (request.context, request.action.range());
    counts.issue(&request.action);
    let began = cpu.begin_timed(event, context);
    let work = below.perform(cpu, request);
    async move {
        let result = work.await;
        let (at, len) = range.map_or((0, 0), |range| (range.at.0, range.len));
        counts.complete(event, len, cpu.end_timed(began, event, context, at, len), result.is_ok());
        if let Err(error) = result {
            cpu.trace(Event::DeviceFailed, context, error.0 as u64, 0);
        }
        result
    }
}

/// The processor that starts devices, if it is a remote one. `access`: the device's own rule.
fn owner_elsewhere(cpu: &Processor, access: Option<AccessMode>) -> Option<ProcessorId> {
    let owner = Access::new(access.unwrap_or(cpu.switches().access), OWNER).starts(cpu.id());
    (owner != cpu.id()).then_some(owner)
}

/// Runs `work` on the owner of the disks.
fn hand_over(cpu: &Processor, owner: ProcessorId, work: impl FnOnce(Processor) + Send + 'static) {
    cpu.trace(Event::QueueHandedOver, JobId::default(), u64::from(owner.0), 0);
    cpu.spawn_on(owner, work);
}

/// Reports a batch as completed to the policy if its task was dropped.
struct InFlight<'a> {
    disk: &'a Arc<DiskQueue>,
    cpu: &'a Processor,
    batch: BatchId,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let now = self.cpu.now();
        let mut state = self.disk.lock();
        state.policy.on_completion(now, self.batch);
        if state.waiting.is_empty() {
            return;
        }
        drop(state);
        // By post: who drops its tasks starts no others.
        let disk = Arc::clone(self.disk);
        self.cpu.kernel().mailbox(self.cpu.id()).start(move |cpu| {
            let issues = disk.update(&cpu, None, |_, _| {});
            disk.start_all(&cpu, issues);
        });
    }
}

/// A device behind its disk's queue.
pub struct Queued {
    disk: Arc<DiskQueue>,
    stream: StreamId,
    below: DeviceRef,
    access: Option<AccessMode>,
    is_immediate: bool,
}

impl Queued {
    /// `below`, behind the queue of its disk.
    pub fn new(disk: Arc<DiskQueue>, below: DeviceRef) -> Self {
        let stream = StreamId(disk.streams.fetch_add(1, Ordering::Relaxed));
        let is_immediate = below.is_immediate();
        Queued { disk, stream, below, access: None, is_immediate }
    }

    /// Sets an access rule of its own, in place of the switch.
    #[must_use]
    pub fn with_access(self, access: Option<AccessMode>) -> Self {
        Queued { access, ..self }
    }

    /// What the policy is told of a request that has no number yet.
    fn arrival(&self, request: &Request) -> Arrival {
        let (kind, range) = match &request.action {
            Action::Read(range, _) => (RequestKind::Read, *range),
            Action::Write(range, _) => (RequestKind::Write, *range),
            Action::Zero { range, .. } | Action::Discard(range) => (RequestKind::Other, *range),
            Action::Flush => (RequestKind::Flush, ByteRange::new(0, 0)),
        };
        let Context { class, job, .. } = request.context;
        Arrival { id: RequestId(0), stream: self.stream, kind, range, class, job }
    }

    /// Lets the disk have a request at once, if none waits: on a disk that keeps up, most find none. Not where its start
    /// or the work after its completion may be another processor's.
    fn admit_at_once<'a>(&'a self, cpu: &'a Processor, request: &Request) -> Option<InFlight<'a>> {
        let is_remote = cpu.switches().delivery != Method::Initiator || owner_elsewhere(cpu, self.access).is_some();
        if is_remote || request.context.class != Class::Synchronous {
            return None;
        }
        let (now, arrival) = (cpu.now(), self.arrival(request));
        let batch = self.disk.lock().policy.issue_at_once(now, arrival)?;
        self.disk.counts_of(cpu).arrive();
        let began = cpu.begin(Event::QueueWaited, request.context);
        let (at, len) = request.action.range().map_or((0, 0), |range| (range.at.0, range.len));
        cpu.end(began, Event::QueueWaited, request.context, at, len);
        Some(InFlight { disk: &self.disk, cpu, batch })
    }

    /// Queues a request, and takes what the disk may have then.
    fn arrive(&self, cpu: &Processor, request: Request, end: &Arc<End>) -> Issues {
        let arrival = self.arrival(&request);
        let began = cpu.begin(Event::QueueWaited, request.context);
        self.disk.counts_of(cpu).arrive();
        let (stream, access) = (self.stream, self.access);
        let (below, end) = (Arc::clone(&self.below), Arc::clone(end));
        let waiting = Waiting { request: Some(request), stream, below, access, end, began };
        self.disk.update(cpu, access, |state, now| {
            let id = RequestId(state.waiting.insert(waiting) as u32);
            state.policy.on_arrival(now, Arrival { id, ..arrival });
        })
    }

    /// Bypasses the queue, on the processor that starts the disk.
    async fn perform_at_once(&self, cpu: &Processor, request: Request) -> Result<Outcome, Errno> {
        let Some(owner) = owner_elsewhere(cpu, self.access) else {
            return self.disk.perform_at_once(cpu, &self.below, request).await;
        };
        let end = End::new();
        let (disk, below, theirs) = (Arc::clone(&self.disk), Arc::clone(&self.below), Arc::clone(&end));
        hand_over(cpu, owner, move |there| {
            let here = there.clone();
            there.spawn_path(async move { theirs.set(disk.perform_at_once(&here, &below, request).await) });
        });
        poll_fn(|cx| end.poll(cx)).await
    }

    /// Issues `issues`, without the request at hand, which ends at `end` and which the caller must issue. Usually it is the
    /// only one: it needs no task.
    fn start_others(&self, cpu: &Processor, issues: Issues, end: &Arc<End>) -> Option<Issue> {
        let mut own = None;
        for issue in issues {
            let is_own = issue.members.len() == 1 && Arc::ptr_eq(&issue.members[0].end, end);
            if is_own {
                own = Some(issue);
            } else {
                self.disk.start(cpu, issue);
            }
        }
        own
    }
}

impl Device for Queued {
    fn facts(&self) -> DeviceFacts {
        self.below.facts()
    }

    fn perform<'a>(&'a self, cpu: &'a Processor, request: Request) -> Work<'a, Outcome> {
        // What completes at once has no completion that could be delivered elsewhere.
        if self.is_immediate && cpu.switches().delivery == Method::Initiator {
            return Box::pin(self.perform_at_once(cpu, request));
        }
        if let Some(in_flight) = self.admit_at_once(cpu, &request) {
            return Box::pin(self.disk.perform_alone(in_flight, &self.below, request));
        }
        Box::pin(async move {
            let end = End::new();
            let issues = self.arrive(cpu, request, &end);
            if let Some(mut issue) = self.start_others(cpu, issues, &end) {
                self.disk.issue(cpu, &mut issue).await;
            }
            poll_fn(|cx| end.poll(cx)).await
        })
    }

    fn expedite(&self, cpu: &Processor, range: ByteRange) {
        if self.is_immediate || self.disk.lock().waiting.is_empty() {
            return;
        }
        let issues = self.disk.update(cpu, self.access, |state, now| {
            for (id, waiting) in &state.waiting {
                if waiting.overlaps(self.stream, range) && state.policy.promote(now, RequestId(id as u32)) {
                    cpu.trace(Event::QueuePromoted, JobId::default(), range.at.0, 0);
                }
            }
        });
        self.disk.start_all(cpu, issues);
    }

    fn find_data<'a>(&'a self, cpu: &'a Processor, within: ByteRange, runs_max: usize) -> Work<'a, FoundData> {
        let Some(owner) = owner_elsewhere(cpu, self.access) else {
            return self.below.find_data(cpu, within, runs_max);
        };
        Box::pin(async move {
            let end = End::new();
            let (below, theirs) = (Arc::clone(&self.below), Arc::clone(&end));
            hand_over(cpu, owner, move |there| {
                let here = there.clone();
                there.spawn(async move { theirs.set(below.find_data(&here, within, runs_max).await) });
            });
            poll_fn(|cx| end.poll(cx)).await
        })
    }
}
