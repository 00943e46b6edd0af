//! The ready tasks of a processor, and the usage of their jobs.

use std::sync::Arc;

use policy::dispatch::Dispatch;
use policy::unit::Instant;

use super::Processor;
use super::mailbox::TaskWaker;
use crate::job::{Accounts, JobId, Jobs, NOBODY};

/// Tasks in one time slice while several jobs share the processor: an arrival for a light job must not wait until all
/// others have run before it is even noticed.
const SHARED_TASKS_A_TURN_MAX: usize = 16;

/// Length of such a time slice.
const SHARED_TURN_NS: u64 = 25_000;

/// Bytes sent in such a time slice: the host copies them during the call, which delays what has arrived meanwhile.
const SHARED_TURN_BYTES: u64 = 64 << 10;

/// Bytes of one send, at most, so that one does not exceed a time slice many times over.
const SHARED_SEND_BYTES_MAX: usize = 64 << 10;

/// If the next job has used this many times more, what this one started is submitted to the machine before the next one
/// runs.
const LIGHTER: u64 = 2;

/// Requests of one connection served in one batch, at most: other tasks need the processor, and clients their replies.
const LOOK_AHEAD_MAX: u32 = 32;

/// The same while several jobs share the processor.
const SHARED_LOOK_AHEAD_MAX: u32 = 8;

pub(super) struct Ready {
    dispatch: Dispatch<Arc<TaskWaker>>,
    by_usage: bool,
    accounts: Accounts,
    tasks: usize,
    turn_ns: u64,
    turn_bytes: u64,
    /// Has the last task started an operation?
    has_started: bool,
}

impl Ready {
    pub(super) fn new(by_usage: bool, jobs: &Arc<Jobs>) -> Self {
        let (dispatch, accounts) = (Dispatch::new(by_usage), Accounts::new(jobs));
        Ready { dispatch, by_usage, accounts, tasks: 0, turn_ns: 0, turn_bytes: 0, has_started: false }
    }

    pub(super) fn set_by_usage(&mut self, by_usage: bool) {
        self.by_usage = by_usage;
        let accounts = &self.accounts;
        self.dispatch.set_by_usage(by_usage, |job| accounts.used(job));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.dispatch.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.dispatch.len()
    }

    pub(super) fn push(&mut self, waker: Arc<TaskWaker>) {
        let accounts = &self.accounts;
        self.dispatch.push(waker.job(), waker, |job| accounts.used(job));
    }

    pub(super) fn next(&mut self) -> Option<Arc<TaskWaker>> {
        self.dispatch.take_next().map(|(_, waker)| waker)
    }

    /// The task that became ready last, if it may run before the others.
    pub(super) fn take_woken(&mut self) -> Option<Arc<TaskWaker>> {
        let (_, waker) = self.dispatch.take_newest()?;
        if !waker.of_many {
            return Some(waker);
        }
        self.push(waker);
        None
    }

    pub(super) fn clear(&mut self) {
        self.dispatch.clear();
    }

    /// A time slice begins.
    fn begin_turn(&mut self, ticks: u64, now: impl FnOnce() -> Instant) {
        (self.tasks, self.turn_ns, self.turn_bytes) = (0, 0, 0);
        if self.accounts.is_merge_due(ticks) {
            self.accounts.merge(now(), ticks);
            for (job, used) in self.accounts.active() {
                self.dispatch.set_used(job, used);
            }
        }
    }

    fn charge(&mut self, job: JobId, ticks: u64) {
        let (used, ns) = self.accounts.charge(job, ticks);
        self.tasks += 1;
        self.turn_ns += ns;
        self.dispatch.set_used(job, used);
    }

    /// Do several jobs share this processor, with `usage` switched on?
    fn is_shared(&self) -> bool {
        self.by_usage && self.accounts.is_shared()
    }

    /// An operation was started that sends `bytes`.
    fn start(&mut self, bytes: u64) {
        self.turn_bytes += bytes;
        self.has_started = true;
    }

    /// Should the machine be entered before the next task, after one of `job`?
    fn is_turn_over(&mut self, job: JobId) -> bool {
        let has_started = std::mem::take(&mut self.has_started);
        if !self.is_shared() {
            return false;
        }
        let is_long = self.turn_ns >= SHARED_TURN_NS || self.turn_bytes >= SHARED_TURN_BYTES;
        is_long || self.tasks >= SHARED_TASKS_A_TURN_MAX || has_started && self.is_lighter_than_next(job)
    }

    fn is_lighter_than_next(&self, job: JobId) -> bool {
        let next = self.dispatch.next_job().filter(|next| *next != job && *next != NOBODY);
        job != NOBODY && next.is_some_and(|next| self.accounts.used(next) > LIGHTER * self.accounts.used(job))
    }
}

impl Processor {
    /// The job of the running task.
    pub fn job(&self) -> JobId {
        self.0.job.get()
    }

    /// Requests of one connection that may be served in one batch (OLTP-6).
    pub fn look_ahead_max(&self) -> u32 {
        if self.0.ready.borrow().is_shared() { SHARED_LOOK_AHEAD_MAX } else { LOOK_AHEAD_MAX }
    }

    /// Charges the running task, and what it starts, to `job` from now on.
    pub fn work_for(&self, job: JobId) {
        let before = self.job();
        if job != before {
            // The time until now is the other job's.
            let ticks = self.charge_now(self.activity());
            self.charge_job(before, ticks + self.take_charged_before());
            self.0.job.set(job);
        }
    }

    /// Bytes of one send, at most; `most` while no other job shares the processor.
    pub(crate) fn send_bytes_max(&self, most: usize) -> usize {
        if self.0.ready.borrow().is_shared() { most.min(SHARED_SEND_BYTES_MAX) } else { most }
    }

    /// A task starts an operation that sends `bytes`.
    pub(super) fn note_start(&self, bytes: u64) {
        self.0.ready.borrow_mut().start(bytes);
    }

    /// Runs `work`, charging what it starts to `job`.
    pub(super) fn doing_for(&self, job: JobId, work: impl FnOnce()) {
        let before = self.0.job.replace(job);
        work();
        self.0.job.set(before);
    }

    /// The time must be accounted for up to now.
    pub(super) fn begin_ready_turn(&self) {
        self.0.ready.borrow_mut().begin_turn(self.0.charged.get(), || self.now());
    }

    /// Should the machine be entered now, after a task of `job`?
    pub(super) fn is_ready_turn_over(&self, job: JobId) -> bool {
        self.0.ready.borrow_mut().is_turn_over(job)
    }

    pub(super) fn count_job_requests(&self, job: JobId, count: u64) {
        self.0.ready.borrow_mut().accounts.count_requests(job, count);
    }

    /// Charges the run of a task.
    pub(super) fn charge_job(&self, job: JobId, ticks: u64) {
        self.0.ready.borrow_mut().charge(job, ticks);
    }
}
