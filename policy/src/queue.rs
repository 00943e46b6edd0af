//! The request queue of one disk (WS-3, WS-4): order, merging, synchronous before asynchronous, bounded waiting for
//! both. No data, only decisions.
//!
//! - **Merging (WS-3).** Adjacent requests of one stream go to the disk in one transfer, up to a bound, so that one
//!   transfer does not occupy the disk too long.
//! - **Priority (WS-4).** Synchronous requests go first, and the amount of concurrent asynchronous work adapts
//!   (`queue/window.rs`). An asynchronous request beyond its deadline alternates with the synchronous ones.
//! - **Elevator.** On disks with moving parts, requests go in ascending order of position and then again from the
//!   start (C-SCAN: unlike SCAN, it does not favour the middle). An overdue request is next, but only once in [`RUN`]
//!   requests: a disk that served only overdue ones would seek for each.
//! - **Fairness (WS-7).** Within a class, jobs share the disk (`queue/fair.rs`): one with a long backlog lets the few
//!   requests of others pass. An overdue request is next as above.
//!
//! An asynchronous request is promoted when a client begins to wait for it. So read-ahead and write-back can be delayed
//! much in favour of readers, without any client being stuck behind them.

mod fair;
mod waiting;
mod window;

use std::time::Duration;

use smallvec::SmallVec;

use crate::unit::{ByteOffset, ByteRange, Class, Instant, JobId};
use fair::FairQueue;
use waiting::{Position, Request, Waiting};
use window::{InFlight, Window};

/// A request, numbered by the caller. Unique among those that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u32);

/// A file or device on the disk. Requests merge only within one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u32);

/// A batch in flight. Reused after its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RequestKind {
    Read,
    /// A batch is stable if one of its members must be: the caller sees to that.
    Write,
    /// Makes completed writes stable. It may overtake others: the caller has made sure that what it covers is complete.
    Flush,
    /// Discards or zeroes a range. Never merged.
    Other,
}

/// Parameters of a disk's queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Merge adjacent requests into one transfer.
    pub merge: bool,
    /// Synchronous requests go before asynchronous ones.
    pub priority: bool,
    /// Order by position instead of arrival.
    pub elevator: bool,
    /// Jobs share the disk within a class.
    pub fair: bool,
    /// Largest merged transfer, in bytes.
    pub transfer_bytes_max: u32,
    pub depth: u16,
    /// Asynchronous bytes in flight, at most. Used with `priority`.
    pub asynchronous_bytes_max: u32,
    /// An asynchronous request that has waited this long alternates with synchronous ones.
    pub asynchronous_deadline: Duration,
    /// A synchronous request that has waited this long is no longer overtaken by better placed ones.
    pub synchronous_deadline: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            merge: true,
            priority: true,
            elevator: false,
            fair: true,
            transfer_bytes_max: 512 << 10,
            depth: 64,
            asynchronous_bytes_max: 4 << 20,
            asynchronous_deadline: Duration::from_millis(500),
            synchronous_deadline: Duration::from_millis(50),
        }
    }
}

impl Config {
    /// The bytes that a job is charged for a request: to zero or discard a range takes the disk about as long however long it is.
    fn charged(&self, arrival: &Arrival) -> u64 {
        match arrival.kind {
            RequestKind::Other => arrival.range.len.min(self.transfer_bytes_max.into()),
            RequestKind::Read | RequestKind::Write | RequestKind::Flush => arrival.range.len,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    pub id: RequestId,
    pub stream: StreamId,
    pub kind: RequestKind,
    /// Meaningless for a flush.
    pub range: ByteRange,
    pub class: Class,
    pub job: JobId,
}

/// One transfer to hand to the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Identifies the batch until it is complete.
    pub id: BatchId,
    pub stream: StreamId,
    pub kind: RequestKind,
    /// The whole range; the members' ranges lie in it end to end.
    pub range: ByteRange,
    /// Synchronous if one of its members is.
    pub class: Class,
    /// In order of address.
    pub members: SmallVec<[RequestId; 4]>,
}

/// Requests in one batch, at most: each has its own memory segments, of which a host accepts about a thousand.
pub const MEMBERS_MAX: usize = 128;
/// One request in this number, of its class, may be an overdue one taken out of the elevator's order.
pub const RUN: u32 = 16;
/// Times within a deadline that an overdue asynchronous request is issued beyond the window.
const FORCED_PER_DEADLINE: u32 = 8;

const BOTH: [Class; 2] = [Class::Synchronous, Class::Asynchronous];

/// The queue of one disk.
pub struct Queue {
    config: Config,
    waiting: Waiting,
    window: Window,
    batches: Vec<Option<InFlight>>,
    free: Vec<u32>,
    sequence: u64,
    head: Position,
    /// Requests of each class issued since an overdue one was preferred.
    run: [u32; 2],
    asynchronous_went_last: bool,
    /// For each class; without priority the first serves both.
    fair_queues: [FairQueue; 2],
    forced: Option<Instant>,
}

impl Queue {
    pub fn new(config: Config) -> Self {
        Queue {
            window: Window::new(u64::from(config.asynchronous_bytes_max)),
            config,
            waiting: Waiting::default(),
            batches: Vec::new(),
            free: Vec::new(),
            sequence: 0,
            head: (StreamId(0), ByteOffset(0)),
            run: [RUN; 2],
            asynchronous_went_last: false,
            fair_queues: Default::default(),
            forced: None,
        }
    }

    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Changes the parameters, also for waiting requests.
    pub fn set_config(&mut self, config: Config) {
        self.window.set_bytes_max(u64::from(config.asynchronous_bytes_max));
        self.config = config;
    }

    /// A request arrives. O(log n).
    pub fn on_arrival(&mut self, now: Instant, arrival: Arrival) {
        if arrival.class == Class::Synchronous {
            self.window.on_synchronous(now);
        }
        self.sequence += 1;
        self.waiting.insert(Request { arrival, since: now, sequence: self.sequence });
    }

    /// A synchronous request arrives and may go to the disk at once, since none waits: what [`on_arrival`](Self::on_arrival)
    /// and [`next`](Self::next) would do. O(log jobs).
    pub fn issue_at_once(&mut self, now: Instant, arrival: Arrival) -> Option<BatchId> {
        let is_full = self.in_flight() >= usize::from(self.config.depth.max(1));
        if arrival.class != Class::Synchronous || is_full || self.waiting.len() > 0 {
            return None;
        }
        self.window.on_synchronous(now);
        self.sequence += 1;
        self.asynchronous_went_last &= !self.config.priority;
        self.count_issue(arrival.class, false);
        let index = self.fair_index(arrival.class);
        let queue = &mut self.fair_queues[index];
        queue.advance(queue.start_tag(arrival.job));
        queue.charge(arrival.job, self.config.charged(&arrival));
        if arrival.kind != RequestKind::Flush {
            self.head = (arrival.stream, arrival.range.end());
        }
        let in_flight = self.window.on_issue(now, arrival.class, arrival.kind, arrival.range.len);
        Some(self.number(in_flight))
    }

    /// An asynchronous request becomes synchronous (a reader reached what is being read ahead). False when no such one of
    /// this number waits in the queue. O(log n).
    pub fn promote(&mut self, now: Instant, id: RequestId) -> bool {
        let waits = self.waiting.get(id).is_some_and(|request| request.arrival.class == Class::Asynchronous);
        let Some(mut request) = waits.then(|| self.waiting.remove(id)).flatten() else {
            return false;
        };
        request.arrival.class = Class::Synchronous;
        self.window.on_synchronous(now);
        self.waiting.insert(request);
        true
    }

    /// The next batch to issue. Call it until `None` after arrivals, after a completion and at
    /// [`next_deadline`](Self::next_deadline). O(log n) for each member, and O(jobs that have waiting requests).
    pub fn next(&mut self, now: Instant) -> Option<Batch> {
        if self.in_flight() >= usize::from(self.config.depth.max(1)) {
            return None;
        }
        let seed = if self.config.priority {
            self.by_priority(now)?
        } else {
            self.seed(now, &BOTH, self.config.synchronous_deadline)?
        };
        self.issue(now, seed)
    }

    /// A batch is complete, or failed.
    pub fn on_completion(&mut self, now: Instant, id: BatchId) {
        let batch = self.batches.get_mut(id.0 as usize).and_then(Option::take);
        debug_assert!(batch.is_some(), "completion of a batch that is not in flight");
        if let Some(batch) = batch {
            self.free.push(id.0);
            self.window.on_completion(now, batch);
        }
    }

    /// When to call [`next`](Self::next) again even if nothing arrives or completes: when an asynchronous request that
    /// the window holds back becomes overdue.
    pub fn next_deadline(&self) -> Option<Instant> {
        let is_full = self.in_flight() >= usize::from(self.config.depth.max(1));
        if is_full || !self.config.priority {
            return None;
        }
        let oldest = self.waiting.oldest(Class::Asynchronous)?;
        let overdue = oldest.since + self.config.asynchronous_deadline;
        Some(self.forced.map_or(overdue, |then| overdue.max(then + self.forced_pace())))
    }

    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub fn in_flight(&self) -> usize {
        self.batches.len() - self.free.len()
    }

    /// Asynchronous bytes that may be in flight at present while synchronous requests are.
    pub fn asynchronous_window_bytes(&self) -> u64 {
        self.window.bytes()
    }

    fn by_priority(&mut self, now: Instant) -> Option<RequestId> {
        let synchronous_waits = self.waiting.has(Class::Synchronous);
        if let Some(seed) = self.admissible_asynchronous(now, synchronous_waits) {
            self.asynchronous_went_last = synchronous_waits;
            return Some(seed);
        }
        let seed = self.seed(now, &[Class::Synchronous], self.config.synchronous_deadline)?;
        self.asynchronous_went_last = false;
        Some(seed)
    }

    /// An asynchronous request, if one may go next: no synchronous one waits and the window has room; or it is overdue
    /// and the last one issued was synchronous. An overdue one may exceed the window at times, or one request that
    /// hangs in the disk would stop all others.
    fn admissible_asynchronous(&mut self, now: Instant, synchronous_waits: bool) -> Option<RequestId> {
        let oldest = self.waiting.oldest(Class::Asynchronous)?;
        let overdue = now >= oldest.since + self.config.asynchronous_deadline;
        if synchronous_waits && (!overdue || self.asynchronous_went_last) {
            return None;
        }
        let seed = self.seed(now, &[Class::Asynchronous], self.config.asynchronous_deadline)?;
        let bytes = self.waiting.get(seed)?.arrival.range.len;
        // Part of the depth is reserved for the next synchronous request.
        let depth = u64::from(self.config.depth - self.config.depth / 8);
        if self.window.admits(bytes) && (overdue || self.window.in_flight() < depth.max(1)) {
            return Some(seed);
        }
        let may_force = self.forced.is_none_or(|then| now >= then + self.forced_pace());
        if overdue && may_force {
            self.forced = Some(now);
            return Some(seed);
        }
        None
    }

    fn forced_pace(&self) -> Duration {
        self.config.asynchronous_deadline / FORCED_PER_DEADLINE
    }

    /// The request of these classes around which the next batch is built.
    fn seed(&self, now: Instant, classes: &[Class], deadline: Duration) -> Option<RequestId> {
        let oldest = classes.iter().filter_map(|c| self.waiting.oldest(*c)).min_by_key(|r| r.sequence)?;
        let overdue = now >= oldest.since + deadline;
        let is_fair = self.config.fair && self.waiting.has_several_jobs(classes);
        let prefers_oldest = !self.config.elevator && !is_fair;
        if prefers_oldest || overdue && self.run[oldest.arrival.class as usize] >= RUN {
            return Some(oldest.arrival.id);
        }
        let unfair = if self.config.elevator { self.by_position(classes, oldest) } else { oldest };
        let seed = if is_fair { self.by_fairness(classes, unfair) } else { unfair };
        Some(seed.arrival.id)
    }

    /// The next request in the elevator's order.
    fn by_position<'a>(&'a self, classes: &[Class], oldest: &'a Request) -> &'a Request {
        let first_from = |from: Position| {
            let first = classes.iter().filter_map(|c| self.waiting.first_from(*c, from));
            first.min_by_key(|r| (r.position(), r.sequence))
        };
        let flush = classes.iter().find_map(|c| self.waiting.flush(*c));
        let next = flush.or_else(|| first_from(self.head)).or_else(|| first_from((StreamId(0), ByteOffset(0))));
        next.unwrap_or(oldest)
    }

    /// `unfair`, unless another job has received less: then a request of that job.
    fn by_fairness<'a>(&'a self, classes: &[Class], unfair: &'a Request) -> &'a Request {
        if unfair.arrival.kind == RequestKind::Flush && self.config.elevator {
            return unfair;
        }
        let queue = &self.fair_queues[self.fair_index(classes[0])];
        let jobs = classes.iter().flat_map(|class| self.waiting.jobs(*class));
        let Some((least, _, job)) = jobs.map(|(job, since)| (queue.start_tag(job), since, job)).min() else {
            return unfair;
        };
        let slack = if self.config.elevator { fair::SLACK } else { 0 };
        let own = queue.start_tag(unfair.arrival.job);
        if unfair.arrival.job == job || slack > 0 && own <= least + slack {
            return unfair;
        }
        let of_job = classes.iter().filter_map(|class| {
            let from_head = self.config.elevator.then(|| self.waiting.first_of(*class, job, self.head)).flatten();
            from_head.or_else(|| self.waiting.oldest_of(*class, job))
        });
        of_job.min_by_key(|request| request.sequence).unwrap_or(unfair)
    }

    fn fair_index(&self, class: Class) -> usize {
        if self.config.priority { class as usize } else { 0 }
    }

    /// Takes a request out of the queue, and charges its job.
    fn take(&mut self, id: RequestId) -> Option<Request> {
        let request = self.waiting.remove(id)?;
        let index = self.fair_index(request.arrival.class);
        self.fair_queues[index].charge(request.arrival.job, self.config.charged(&request.arrival));
        Some(request)
    }

    fn issue(&mut self, now: Instant, seed: RequestId) -> Option<Batch> {
        self.count_run(now, seed);
        self.advance_virtual_time(seed);
        let seed = self.take(seed)?;
        let Arrival { id, stream, kind, range, class, job: _ } = seed.arrival;
        let mut run = MergedRun { range, class, members: SmallVec::from_slice(&[id]) };
        if self.config.merge && seed.may_merge() {
            self.gather_behind(&mut run, stream, kind);
            self.gather_before(&mut run, stream, kind);
        }
        if kind != RequestKind::Flush {
            self.head = (stream, run.range.end());
        }
        let in_flight = self.window.on_issue(now, run.class, kind, run.range.len);
        let id = self.number(in_flight);
        Some(Batch { id, stream, kind, range: run.range, class: run.class, members: run.members })
    }

    /// Keeps the queue's virtual time up with the waiting jobs: a job that arrives later starts level with them.
    fn advance_virtual_time(&mut self, seed: RequestId) {
        let Some(class) = self.waiting.get(seed).map(|request| request.arrival.class) else { return };
        let classes: &[Class] = if self.config.priority { &[class] } else { &BOTH };
        let index = self.fair_index(class);
        let jobs = classes.iter().flat_map(|class| self.waiting.jobs(*class));
        let least = jobs.map(|(job, _)| self.fair_queues[index].start_tag(job)).min();
        self.fair_queues[index].advance(least.unwrap_or(0));
    }

    fn gather_behind(&mut self, run: &mut MergedRun, stream: StreamId, kind: RequestKind) {
        while let Some(next) = self.waiting.following(stream, kind, run.range.end()).copied() {
            if !self.may_join(run, &next) {
                return;
            }
            self.take(next.arrival.id);
            run.members.push(next.arrival.id);
            run.add(&next, run.range.at);
        }
    }

    fn gather_before(&mut self, run: &mut MergedRun, stream: StreamId, kind: RequestKind) {
        let mut before: SmallVec<[RequestId; 4]> = SmallVec::new();
        while let Some(next) = self.waiting.preceding(stream, kind, run.range.at).copied() {
            if run.members.len() + before.len() >= MEMBERS_MAX || !self.may_join(run, &next) {
                break;
            }
            self.take(next.arrival.id);
            before.push(next.arrival.id);
            run.add(&next, next.arrival.range.at);
        }
        run.members.insert_many(0, before.into_iter().rev());
    }

    /// A narrow window also bounds merged transfers with asynchronous members.
    fn may_join(&self, run: &MergedRun, next: &Request) -> bool {
        let transfer_bytes_max = u64::from(self.config.transfer_bytes_max);
        let carries_asynchronous = run.class == Class::Asynchronous || next.arrival.class == Class::Asynchronous;
        let bytes_max = if self.config.priority && carries_asynchronous {
            self.window.batch_bytes_max(transfer_bytes_max)
        } else {
            transfer_bytes_max
        };
        let len = run.range.len.saturating_add(next.arrival.range.len);
        run.members.len() < MEMBERS_MAX && len <= bytes_max
    }

    /// Counts the requests issued since an overdue one was preferred, for [`Queue::seed`].
    fn count_run(&mut self, now: Instant, seed: RequestId) {
        let Some(seed) = self.waiting.get(seed) else {
            return;
        };
        let class = seed.arrival.class;
        let deadline = match (self.config.priority, class) {
            (true, Class::Asynchronous) => self.config.asynchronous_deadline,
            _ => self.config.synchronous_deadline,
        };
        let oldest = self.waiting.oldest(class).is_some_and(|r| r.sequence == seed.sequence);
        self.count_issue(class, oldest && now >= seed.since + deadline);
    }

    /// A request of this class is issued; is it overdue and `preferred`?
    fn count_issue(&mut self, class: Class, preferred: bool) {
        for other in BOTH {
            let run = &mut self.run[other as usize];
            if preferred && other == class {
                *run = 0;
            } else if !self.config.priority || other == class {
                *run = run.saturating_add(1);
            }
        }
    }

    fn number(&mut self, in_flight: InFlight) -> BatchId {
        if let Some(free) = self.free.pop() {
            self.batches[free as usize] = Some(in_flight);
            return BatchId(free);
        }
        self.batches.push(Some(in_flight));
        // At most the depth, which is 16 bits wide.
        BatchId(self.batches.len() as u32 - 1)
    }
}

/// A batch under construction.
struct MergedRun {
    range: ByteRange,
    class: Class,
    members: SmallVec<[RequestId; 4]>,
}

impl MergedRun {
    fn add(&mut self, next: &Request, at: ByteOffset) {
        self.range = ByteRange { at, len: self.range.len + next.arrival.range.len };
        // Synchronous is the smaller one.
        self.class = self.class.min(next.arrival.class);
    }
}
