//! Threads that make blocking calls on files for the processors: for all of them in the thread engine, for the few
//! that io_uring lacks in the other.
//!
//! Lock order: the pool's queue and an inbox are never held together.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::bell::Bell;
use super::cores::Cores;
use super::syscall;
use super::task::{Step, Task};
use crate::{Completion, Errno};

/// Threads at most. Enough to keep a disk's queue busy, few enough that a slow disk does not fill the host with
/// sleeping threads.
const WORKERS_MAX: usize = 16;

/// Where completions wait until their processor collects them.
pub(super) struct Inbox {
    state: Mutex<InboxState>,
    idle: Condvar,
    bell: Arc<Bell>,
}

#[derive(Default)]
struct InboxState {
    done: Vec<Completion>,
    /// Tasks handed in and not done yet.
    under_way: usize,
}

impl Inbox {
    pub(super) fn new(bell: Arc<Bell>) -> Arc<Self> {
        Arc::new(Inbox { state: Mutex::default(), idle: Condvar::new(), bell })
    }

    /// Moves what is complete to `done`. Returns how many there were.
    pub(super) fn collect(&self, done: &mut Vec<Completion>) -> usize {
        let mut state = lock(&self.state);
        let count = state.done.len();
        done.append(&mut state.done);
        count
    }

    fn complete(&self, completion: Completion) {
        let mut state = lock(&self.state);
        state.done.push(completion);
        state.under_way -= 1;
        if state.under_way == 0 {
            self.idle.notify_all();
        }
        drop(state);
        self.bell.wake();
    }
}

struct Job {
    task: Task,
    inbox: Arc<Inbox>,
}

impl Job {
    fn run(mut self) {
        let result = loop {
            // SAFETY: whoever started the operation promises its memory until the completion is returned, and the
            // processor that owns the inbox waits for its jobs before it goes.
            let result = unsafe { syscall::perform(&self.task) };
            if let Step::Done(result) = self.task.on_result(result) {
                break result;
            }
        };
        self.finish(result);
    }

    fn finish(self, result: Result<u64, Errno>) {
        self.inbox.complete(Completion { token: self.task.token, result });
    }
}

/// The threads and what waits for them. The queue's length is bounded by what the processors have under way.
pub(super) struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<PoolState>,
    work: Condvar,
    cores: Cores,
}

#[derive(Default)]
struct PoolState {
    queue: VecDeque<Job>,
    workers: usize,
    idle: usize,
    closed: bool,
}

impl Pool {
    /// A pool without threads: they start when there is work. They may run on all of `cores`, not just on the one to
    /// which the processor that starts them is pinned.
    pub(super) fn new(cores: Cores) -> Arc<Self> {
        Arc::new(Pool { shared: Arc::new(Shared { state: Mutex::default(), work: Condvar::new(), cores }) })
    }

    /// Has a call on a file made; its completion goes to `inbox`.
    ///
    /// # Safety
    /// The memory of the task's vectors must stay valid, and untouched where it is read into, until `inbox` has the
    /// completion or [`abandon`](Self::abandon) returned.
    pub(super) unsafe fn submit(&self, task: Task, inbox: &Arc<Inbox>) {
        lock(&inbox.state).under_way += 1;
        let inbox = Arc::clone(inbox);
        let mut state = lock(&self.shared.state);
        state.queue.push_back(Job { task, inbox });
        if state.queue.len() <= state.idle {
            drop(state);
            self.shared.work.notify_one();
        } else if state.workers < WORKERS_MAX {
            state.workers += 1;
            drop(state);
            self.start_worker();
        }
    }

    fn start_worker(&self) {
        let shared = Arc::clone(&self.shared);
        let name = "awase-file".to_string();
        let started = std::thread::Builder::new().name(name).spawn(move || {
            shared.cores.use_all();
            shared.work();
        });
        if started.is_err() {
            self.run_without_threads();
        }
    }

    /// The host gives no more threads: when there is none at all, the processor has to make the calls itself. Slow is
    /// better than never.
    fn run_without_threads(&self) {
        let mut state = lock(&self.shared.state);
        state.workers -= 1;
        if state.workers > 0 {
            return;
        }
        let jobs = std::mem::take(&mut state.queue);
        drop(state);
        jobs.into_iter().for_each(Job::run);
    }

    /// Takes back what waits for `inbox` and waits for what is being done: afterwards no thread touches its memory.
    pub(super) fn abandon(&self, inbox: &Arc<Inbox>) {
        let mut state = lock(&self.shared.state);
        let (mine, others) =
            std::mem::take(&mut state.queue).into_iter().partition(|job| Arc::ptr_eq(&job.inbox, inbox));
        state.queue = others;
        drop(state);
        let mine: VecDeque<Job> = mine;
        mine.into_iter().for_each(|job| job.finish(Err(Errno::CANCELLED)));
        let mut state = lock(&inbox.state);
        while state.under_way > 0 {
            state = inbox.idle.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        lock(&self.shared.state).closed = true;
        self.shared.work.notify_all();
    }
}

impl Shared {
    fn work(&self) {
        let mut state = lock(&self.state);
        loop {
            if let Some(job) = state.queue.pop_front() {
                drop(state);
                job.run();
                state = lock(&self.state);
            } else if state.closed {
                return;
            } else {
                state.idle += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
