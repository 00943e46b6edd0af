//! The request queue of one disk (WS-3, WS-4): order, merging, synchronous before asynchronous, bounded waiting for
//! both. No data, only decisions.
//!
//! - **Merging (WS-3).** Neighbours in one stream go to the disk in one transfer, up to a bound, so that one transfer
//!   does not hold the disk too long.
//! - **Priority (WS-4).** Who is waited for goes first, and how much asynchronous work is in flight beside it adapts
//!   (`queue/window.rs`). An asynchronous request that has waited for its deadline takes turns with the synchronous ones.
//! - **Elevator.** On disks with moving parts, requests go in ascending order of position and then again from the
//!   start (C-SCAN: unlike SCAN, it treats the middle no better than the edges). One that is overdue is next, at most
//!   every [`RUN`] requests: a disk that only served overdue ones would seek for each.
//! - **Fairness (WS-7).** Within a class, jobs take turns (`queue/turns.rs`): one that has much waiting lets the few
//!   requests of others pass. One that is overdue is next as above.

mod turns;
mod waiting;
mod window;

use std::time::Duration;

use smallvec::SmallVec;

use crate::unit::{ByteOffset, ByteRange, Class, Instant, JobId};
use turns::Turns;
use waiting::{Position, Request, Waiting};
use window::{InFlight, Window};

/// A request, named by the caller. Unique among those that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u32);

/// A file or device on the disk. Requests merge only within one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u32);

/// A batch in flight. The number is used again after its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Read,
    /// Writes a range. A batch is stable if one of its members must be: that is for the caller to see.
    Write,
    /// Makes what was written stable. It may overtake: the caller has made sure that what it covers is complete.
    Flush,
    /// Discards or zeroes a range. Never merged.
    Other,
}

/// How a disk's queue is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Do neighbours go in one transfer?
    pub merge: bool,
    /// Do synchronous requests go before asynchronous ones?
    pub priority: bool,
    /// Do requests go in order of position, or of arrival?
    pub elevator: bool,
    /// Do jobs take turns within a class?
    pub fair: bool,
    /// Largest merged transfer, in bytes.
    pub transfer_bytes_max: u32,
    pub depth: u16,
    /// Asynchronous bytes in flight, at most. With priority.
    pub asynchronous_bytes_max: u32,
    /// An asynchronous request that has waited so long takes turns with synchronous ones.
    pub asynchronous_deadline: Duration,
    /// A synchronous request that has waited so long is no longer passed by others that lie better.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    pub id: RequestId,
    pub stream: StreamId,
    pub kind: Kind,
    /// Where. Without meaning for a flush.
    pub range: ByteRange,
    /// Does somebody wait for it?
    pub class: Class,
    pub job: JobId,
}

/// What to hand to the disk as one transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Its name until it is complete.
    pub id: BatchId,
    pub stream: StreamId,
    pub kind: Kind,
    /// The whole range. The members' ranges lie in it end to end.
    pub range: ByteRange,
    /// Synchronous if somebody waits for one of its members.
    pub class: Class,
    /// In order of address.
    pub members: SmallVec<[RequestId; 4]>,
}

/// Requests in one batch, at most: each has memory segments of its own, of which a host takes about a thousand.
pub const MEMBERS_MAX: usize = 128;
/// An overdue request is preferred over the elevator's order once in so many requests of its class.
pub const RUN: u32 = 16;
/// Beyond the window, an overdue asynchronous request is issued so many times within a deadline.
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
    /// Of each class; without priority the first is for both.
    turns: [Turns; 2],
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
            head: (StreamId(0), 0),
            run: [RUN; 2],
            asynchronous_went_last: false,
            turns: Default::default(),
            forced: None,
        }
    }

    /// The rules by which it decides.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Decides by other rules from now on, for those that wait too.
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

    /// Somebody now waits for an asynchronous request (a reader reached what is being read ahead). False when it no
    /// longer waits in the queue. O(log n).
    pub fn promote(&mut self, now: Instant, id: RequestId) -> bool {
        let Some(mut request) = self.waiting.remove(id) else {
            return false;
        };
        request.arrival.class = Class::Synchronous;
        self.window.on_synchronous(now);
        self.waiting.insert(request);
        true
    }

    /// What to issue next; call it until `None` after arrivals, after a completion and at
    /// [`next_deadline`](Self::next_deadline). O(log n) for each member, and O(jobs that have requests waiting).
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

    /// A batch is complete, well or not.
    pub fn on_completion(&mut self, now: Instant, id: BatchId) {
        let batch = self.batches.get_mut(id.0 as usize).and_then(Option::take);
        debug_assert!(batch.is_some(), "completion of a batch that is not in flight");
        if let Some(batch) = batch {
            self.free.push(id.0);
            self.window.on_completion(now, batch);
        }
    }

    /// When to call [`next`](Self::next) again even if nothing arrives or completes: when the window keeps back an
    /// asynchronous request.
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

    /// Asynchronous bytes that may be in flight beside synchronous requests, at present.
    pub fn asynchronous_window_bytes(&self) -> u64 {
        self.window.bytes()
    }

    fn by_priority(&mut self, now: Instant) -> Option<RequestId> {
        let synchronous_waits = self.waiting.has(Class::Synchronous);
        if let Some(seed) = self.asynchronous_turn(now, synchronous_waits) {
            self.asynchronous_went_last = synchronous_waits;
            return Some(seed);
        }
        let seed = self.seed(now, &[Class::Synchronous], self.config.synchronous_deadline)?;
        self.asynchronous_went_last = false;
        Some(seed)
    }

    /// An asynchronous request, when it is the turn of one: none synchronous waits and the window has room; or it is
    /// overdue, and the last one was not (turns). An overdue one may exceed the window now and then, or one request
    /// that hangs in the disk would stop all others.
    fn asynchronous_turn(&mut self, now: Instant, synchronous_waits: bool) -> Option<RequestId> {
        let oldest = self.waiting.oldest(Class::Asynchronous)?;
        let overdue = now >= oldest.since + self.config.asynchronous_deadline;
        if synchronous_waits && (!overdue || self.asynchronous_went_last) {
            return None;
        }
        let seed = self.seed(now, &[Class::Asynchronous], self.config.asynchronous_deadline)?;
        let bytes = self.waiting.get(seed)?.arrival.range.len;
        // Some of the depth is kept for a synchronous request that comes next.
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
        let unfair = if self.config.elevator { self.in_order(classes, oldest) } else { oldest };
        let seed = if is_fair { self.in_turn(classes, unfair) } else { unfair };
        Some(seed.arrival.id)
    }

    /// What the elevator takes next.
    fn in_order<'a>(&'a self, classes: &[Class], oldest: &'a Request) -> &'a Request {
        let first_from = |from: Position| {
            let first = classes.iter().filter_map(|c| self.waiting.first_from(*c, from));
            first.min_by_key(|r| (r.position(), r.sequence))
        };
        let flush = classes.iter().find_map(|c| self.waiting.flush(*c));
        let next = flush.or_else(|| first_from(self.head)).or_else(|| first_from((StreamId(0), 0)));
        next.unwrap_or(oldest)
    }

    /// `unfair`, unless it is the turn of another job: then one of that.
    fn in_turn<'a>(&'a self, classes: &[Class], unfair: &'a Request) -> &'a Request {
        if unfair.arrival.kind == Kind::Flush && self.config.elevator {
            return unfair;
        }
        let turns = &self.turns[self.turns_of(classes[0])];
        let jobs = classes.iter().flat_map(|class| self.waiting.jobs(*class));
        let Some((least, _, job)) = jobs.map(|(job, since)| (turns.next_of(job), since, job)).min() else {
            return unfair;
        };
        let slack = if self.config.elevator { turns::SLACK } else { 0 };
        let own = turns.next_of(unfair.arrival.job);
        if unfair.arrival.job == job || slack > 0 && own <= least + slack {
            return unfair;
        }
        let of_job = classes.iter().filter_map(|class| {
            let from_head = self.config.elevator.then(|| self.waiting.first_of(*class, job, self.head)).flatten();
            from_head.or_else(|| self.waiting.oldest_of(*class, job))
        });
        of_job.min_by_key(|request| request.sequence).unwrap_or(unfair)
    }

    fn turns_of(&self, class: Class) -> usize {
        if self.config.priority { class as usize } else { 0 }
    }

    /// Takes a request out to be issued, and charges its job.
    fn take(&mut self, id: RequestId) -> Option<Request> {
        let request = self.waiting.remove(id)?;
        let turns = self.turns_of(request.arrival.class);
        self.turns[turns].charge(request.arrival.job, request.arrival.range.len);
        Some(request)
    }

    fn issue(&mut self, now: Instant, seed: RequestId) -> Option<Batch> {
        self.count_run(now, seed);
        self.begin_turn(seed);
        let seed = self.take(seed)?;
        let Arrival { id, stream, kind, range, class, job: _ } = seed.arrival;
        let mut run = MergedRun { range, class, members: SmallVec::from_slice(&[id]) };
        if self.config.merge && seed.may_merge() {
            self.gather_behind(&mut run, stream, kind);
            self.gather_before(&mut run, stream, kind);
        }
        if kind != Kind::Flush {
            self.head = (stream, run.range.end().0);
        }
        let in_flight = self.window.on_issue(now, run.class, kind, run.range.len);
        let id = self.number(in_flight);
        Some(Batch { id, stream, kind, range: run.range, class: run.class, members: run.members })
    }

    /// Jobs that come from now on are not behind those that wait.
    fn begin_turn(&mut self, seed: RequestId) {
        let Some(class) = self.waiting.get(seed).map(|request| request.arrival.class) else { return };
        let classes: &[Class] = if self.config.priority { &[class] } else { &BOTH };
        let turns = self.turns_of(class);
        let jobs = classes.iter().flat_map(|class| self.waiting.jobs(*class));
        let least = jobs.map(|(job, _)| self.turns[turns].next_of(job)).min();
        self.turns[turns].advance(least.unwrap_or(0));
    }

    fn gather_behind(&mut self, run: &mut MergedRun, stream: StreamId, kind: Kind) {
        while let Some(next) = self.waiting.following(stream, kind, run.range.end().0).copied() {
            if !self.may_join(run, &next) {
                return;
            }
            self.take(next.arrival.id);
            run.members.push(next.arrival.id);
            run.add(&next, run.range.at);
        }
    }

    fn gather_before(&mut self, run: &mut MergedRun, stream: StreamId, kind: Kind) {
        let mut before: SmallVec<[RequestId; 4]> = SmallVec::new();
        while let Some(next) = self.waiting.preceding(stream, kind, run.range.at.0).copied() {
            if run.members.len() + before.len() >= MEMBERS_MAX || !self.may_join(run, &next) {
                break;
            }
            self.take(next.arrival.id);
            before.push(next.arrival.id);
            run.add(&next, next.arrival.range.at);
        }
        run.members.insert_many(0, before.into_iter().rev());
    }

    /// Nobody waits for the longer transfer that a narrow window forbids.
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

    /// Counts for [`Queue::seed`] how many requests were issued since an overdue one was preferred.
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
        let preferred = oldest && now >= seed.since + deadline;
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
        // As many as the depth, which is 16 bits wide.
        BatchId(self.batches.len() as u32 - 1)
    }
}

/// A batch while it grows.
struct MergedRun {
    range: ByteRange,
    class: Class,
    members: SmallVec<[RequestId; 4]>,
}

impl MergedRun {
    fn add(&mut self, next: &Request, at: ByteOffset) {
        self.range = ByteRange { at, len: self.range.len + next.arrival.range.len };
        // Synchronous is the lesser of the two.
        self.class = self.class.min(next.arrival.class);
    }
}
