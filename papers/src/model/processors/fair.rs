//! A fair scheduler: the thread with the least use runs, by threads or by sessions of threads; on several processors
//! from one queue for all of them.
//!
//! In the manner of Linux' CFS (`kernel/sched/fair.c` before 6.6; its design document `sched-design-CFS`): each thread
//! has a virtual run time, and the least one runs; a thread that wakes is put at most half a latency period before the
//! least one, so that it cannot save up; it preempts when it is ahead by more than the wake-up granularity. With
//! sessions (`autogroup`, Linux 2.6.38), time is shared between sessions first, and within each between its threads.

use std::time::Duration;

use policy::delivery::Urgency;
use policy::unit::{Instant, ProcessorId};

use super::scheduler::{Placement, Scheduler, ThreadId};

/// `sched_latency_ns` of Linux: within this time, each of a few threads runs once.
const LATENCY_NS: u64 = 6_000_000;
/// `sched_min_granularity_ns`: no thread is stopped earlier.
const SLICE: Duration = Duration::from_micros(750);
const WAKE_UP_NS: u64 = 1_000_000;

#[derive(Default)]
pub struct Fair {
    by_sessions: bool,
    threads: Vec<Thread>,
    /// One for all threads, or one for each session.
    groups: Vec<Group>,
    /// Least virtual run time of a group with a ready thread; never decreases.
    floor_ns: u64,
    waiting: Vec<ThreadId>,
    /// By processor.
    running: Vec<Option<ThreadId>>,
    /// The group of threads that are started now.
    group: usize,
}

#[derive(Clone, Copy, Default)]
struct Thread {
    ran_ns: u64,
    group: usize,
    started: bool,
}

#[derive(Clone, Copy, Default)]
struct Group {
    /// Virtual run time of all its threads.
    ran_ns: u64,
    /// Least virtual run time of a ready thread; never decreases.
    floor_ns: u64,
}

impl Fair {
    /// All threads are in session 0 until [`Fair::set_session`].
    pub fn new(by_sessions: bool, processors: u16) -> Self {
        let running = vec![None; usize::from(processors)];
        Fair { by_sessions, groups: vec![Group::default()], running, ..Fair::default() }
    }

    /// Threads started from now on belong to this session.
    pub fn set_session(&mut self, session: usize) {
        if self.by_sessions {
            self.groups.resize(self.groups.len().max(session + 1), Group::default());
            self.group = session;
        }
    }

    /// By session first, if sessions count.
    fn key(&self, thread: ThreadId) -> (u64, u64) {
        let Thread { ran_ns, group, .. } = self.threads[thread.0 as usize];
        (if self.by_sessions { self.groups[group].ran_ns } else { 0 }, ran_ns)
    }

    /// Threads that run or are ready.
    fn able(&self) -> impl Iterator<Item = Thread> + '_ {
        self.waiting.iter().chain(self.running.iter().flatten()).map(|thread| self.threads[thread.0 as usize])
    }

    /// Raises the floors to the least that can run.
    fn raise_floors(&mut self, group: usize) {
        let in_group = self.able().filter(|thread| thread.group == group);
        if let Some(least_ns) = in_group.map(|thread| thread.ran_ns).min() {
            self.groups[group].floor_ns = self.groups[group].floor_ns.max(least_ns);
        }
        if let Some(least_ns) = self.able().map(|thread| self.groups[thread.group].ran_ns).min() {
            self.floor_ns = self.floor_ns.max(least_ns);
        }
    }

    /// A thread that wakes is placed a little before the others; a new one, level with them.
    fn place(&mut self, thread: ThreadId) {
        let Thread { group, started, .. } = self.threads[thread.0 as usize];
        self.raise_floors(group);
        let is_group_idle = !self.able().any(|other| other.group == group);
        let of_group = &mut self.groups[group];
        if is_group_idle {
            of_group.ran_ns = of_group.ran_ns.max(self.floor_ns.saturating_sub(LATENCY_NS / 2));
        }
        let credit_ns = if started { LATENCY_NS / 2 } else { 0 };
        let least_ns = of_group.floor_ns.saturating_sub(credit_ns);
        let thread = &mut self.threads[thread.0 as usize];
        thread.ran_ns = thread.ran_ns.max(least_ns);
        thread.started = true;
    }

    fn is_ahead(&self, thread: ThreadId, of: ThreadId, by_ns: u64) -> bool {
        let (waits, runs) = (self.key(thread), self.key(of));
        match waits.0.cmp(&runs.0) {
            std::cmp::Ordering::Equal => waits.1 + by_ns < runs.1,
            _ => waits.0 + by_ns < runs.0,
        }
    }
}

impl Scheduler for Fair {
    fn on_start(&mut self, thread: ThreadId) {
        assert_eq!(thread.0 as usize, self.threads.len());
        self.threads.push(Thread { group: self.group, ..Thread::default() });
    }

    fn on_ready(&mut self, _now: Instant, thread: ThreadId, _on: Option<ProcessorId>) -> Placement {
        self.place(thread);
        if let Some(idle) = self.running.iter().position(Option::is_none) {
            self.running[idle] = Some(thread);
            return Placement::Dispatch(ProcessorId(idle as u16));
        }
        self.waiting.push(thread);
        let running = (0..).map(ProcessorId).zip(self.running.iter().flatten());
        // The one that has had most.
        match running.max_by_key(|(_, running)| self.key(**running)) {
            Some((processor, running)) if self.is_ahead(thread, *running, WAKE_UP_NS) => Placement::Look(processor),
            _ => Placement::Queued,
        }
    }

    fn on_stopped(&mut self, _now: Instant, thread: ThreadId, _on: ProcessorId) -> Placement {
        self.waiting.push(thread);
        Placement::Queued
    }

    fn next(&mut self, _now: Instant, processor: ProcessorId) -> Option<ThreadId> {
        let best = (0..self.waiting.len()).min_by_key(|place| self.key(self.waiting[*place]));
        let next = best.map(|place| self.waiting.remove(place));
        self.running[usize::from(processor.0)] = next;
        next
    }

    fn wake(&mut self, now: Instant, processor: ProcessorId) -> Option<ThreadId> {
        if self.running[usize::from(processor.0)].is_none() { self.next(now, processor) } else { None }
    }

    fn stops(&self, _processor: ProcessorId, running: ThreadId, slice_is_over: bool) -> bool {
        let by_ns = if slice_is_over { 0 } else { WAKE_UP_NS };
        self.waiting.iter().any(|waits| self.is_ahead(*waits, running, by_ns))
    }

    fn on_used(&mut self, _now: Instant, thread: ThreadId, time: Duration) {
        let used = time.as_nanos() as u64;
        let thread = &mut self.threads[thread.0 as usize];
        thread.ran_ns += used;
        let group = thread.group;
        self.groups[group].ran_ns += used;
        self.raise_floors(group);
    }

    fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn urgency(&self, _now: Instant, _thread: ThreadId, _running_for: Duration) -> Urgency {
        Urgency(0)
    }

    fn slice(&self) -> Duration {
        SLICE
    }
}
