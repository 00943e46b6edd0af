//! The ready tasks of a processor, and what their jobs have used.

use std::sync::Arc;

use policy::dispatch::Dispatch;
use policy::unit::Instant;

use super::Processor;
use super::mailbox::TaskWaker;
use crate::job::{Accounts, JobId, Jobs};

/// Tasks that run between two looks at the machine while several jobs share the processor: who has used little must
/// not wait until all others had their turn before it is even noticed.
const SHARED_TASKS_A_TURN_MAX: usize = 16;

/// And how long they run.
const SHARED_TURN_NS: u64 = 50_000;

pub(super) struct Ready {
    dispatch: Dispatch<Arc<TaskWaker>>,
    /// `None` when usage is not looked at.
    accounts: Option<Accounts>,
    /// When the last task ended. Ticks.
    since: u64,
    /// In this turn.
    tasks: usize,
    turn_ns: u64,
}

impl Ready {
    pub(super) fn new(by_usage: bool, jobs: &Arc<Jobs>) -> Self {
        let accounts = by_usage.then(|| Accounts::new(jobs));
        Ready { dispatch: Dispatch::new(by_usage), accounts, since: 0, tasks: 0, turn_ns: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.dispatch.is_empty()
    }

    pub(super) fn push(&mut self, waker: Arc<TaskWaker>) {
        let accounts = &self.accounts;
        let used = |job| accounts.as_ref().map_or(0, |accounts| accounts.used(job));
        self.dispatch.push(waker.job, waker, used);
    }

    pub(super) fn next(&mut self) -> Option<Arc<TaskWaker>> {
        self.dispatch.take_next().map(|(_, waker)| waker)
    }

    pub(super) fn clear(&mut self) {
        self.dispatch.clear();
    }

    /// Is the time looked at, which costs something?
    fn is_timed(&self) -> bool {
        self.accounts.is_some()
    }

    /// Tasks are going to run.
    fn begin_turn(&mut self, ticks: u64, now: impl FnOnce() -> Instant) {
        (self.since, self.tasks, self.turn_ns) = (ticks, 0, 0);
        let Some(accounts) = &mut self.accounts else { return };
        if accounts.is_merge_due(ticks) {
            accounts.merge(now(), ticks);
            for (job, used) in accounts.active() {
                self.dispatch.set_used(job, used);
            }
        }
    }

    /// A task of the job has run until `ticks`.
    fn charge(&mut self, job: JobId, ticks: u64) {
        let Some(accounts) = &mut self.accounts else { return };
        let (used, ns) = accounts.charge(job, ticks.saturating_sub(self.since));
        self.since = ticks;
        self.tasks += 1;
        self.turn_ns += ns;
        self.dispatch.set_used(job, used);
    }

    fn is_turn_over(&self) -> bool {
        let is_long = self.tasks >= SHARED_TASKS_A_TURN_MAX || self.turn_ns >= SHARED_TURN_NS;
        is_long && self.accounts.as_ref().is_some_and(Accounts::is_shared)
    }
}

impl Processor {
    /// For whom the task that runs now was started.
    pub fn job(&self) -> JobId {
        self.0.job.get()
    }

    pub(super) fn begin_ready_turn(&self) {
        if self.0.ready.borrow().is_timed() {
            let ticks = self.ticks();
            self.0.ready.borrow_mut().begin_turn(ticks, || self.now());
        }
    }

    /// Charges a task that has just run. Tells whether the machine should be looked at now.
    pub(super) fn charge_task(&self, job: JobId) -> bool {
        if !self.0.ready.borrow().is_timed() {
            return false;
        }
        // Its end was just recorded: with a stamp.
        let ticks = if self.0.recorder.is_on() { self.0.recorder.stamp() } else { self.ticks() };
        let mut ready = self.0.ready.borrow_mut();
        ready.charge(job, ticks);
        ready.is_turn_over()
    }
}
