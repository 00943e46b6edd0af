//! Threads that make blocking calls on files for the processors: for all of them in the thread engine, for the few
//! that io_uring lacks in the other.
//!
//! The host changes the names in one directory one after the other. Several threads that ask for that only wait for each
//! other, and are put to sleep and woken for each change: so such calls form a lane, and one thread makes those that have
//! come together.
//!
//! Lock order: the pool's queue and an inbox are never held together.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::bell::Bell;
use super::cores::Cores;
use super::credentials;
use super::syscall;
use super::task::{Lane, Step, Task};
use super::tree;
use crate::{Completion, Errno};

/// Threads at most. Enough to keep a disk's queue busy, few enough that a slow disk does not fill the host with
/// sleeping threads.
const WORKERS_MAX: usize = 24;

/// Calls of one lane that a thread makes before it looks what else there is to do.
const LANE_CALLS_MAX: usize = 32;

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

/// What a thread takes on.
enum Work {
    Job(Job),
    /// What waits in a lane.
    Lane(Lane),
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
    queue: VecDeque<Work>,
    /// What waits in lanes that are in the queue, or that a thread is busy with.
    lanes: HashMap<Lane, VecDeque<Job>>,
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
        let Some(work) = state.take_in(Job { task, inbox }) else { return };
        state.queue.push_back(work);
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
            credentials::keep_to_limits();
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
        let jobs = state.take_all();
        drop(state);
        jobs.into_iter().for_each(Job::run);
    }

    /// Takes back what waits for `inbox` and waits for what is being done: afterwards no thread touches its memory.
    pub(super) fn abandon(&self, inbox: &Arc<Inbox>) {
        let mut state = lock(&self.shared.state);
        let mine = state.take_out(|job| Arc::ptr_eq(&job.inbox, inbox));
        drop(state);
        mine.into_iter().for_each(|job| job.finish(Err(Errno::CANCELLED)));
        let mut state = lock(&inbox.state);
        while state.under_way > 0 {
            state = inbox.idle.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl PoolState {
    /// Puts a job into its lane; returns what the threads are to take on, unless one does already.
    fn take_in(&mut self, job: Job) -> Option<Work> {
        let Some(lane) = job.task.lane() else { return Some(Work::Job(job)) };
        match self.lanes.entry(lane) {
            Entry::Occupied(mut waiting) => {
                waiting.get_mut().push_back(job);
                None
            }
            Entry::Vacant(free) => {
                free.insert(VecDeque::from([job]));
                Some(Work::Lane(lane))
            }
        }
    }

    /// The next job of a lane that the caller is busy with. Without one the lane is free.
    fn next_of(&mut self, lane: Lane) -> Option<Job> {
        let job = self.lanes.get_mut(&lane).and_then(VecDeque::pop_front);
        if job.is_none() {
            self.lanes.remove(&lane);
        }
        job
    }

    /// Takes out the jobs of which that is true. Lanes that are empty then are left to who takes them on.
    fn take_out(&mut self, mut which: impl FnMut(&Job) -> bool) -> Vec<Job> {
        let mut out = Vec::new();
        for work in std::mem::take(&mut self.queue) {
            match work {
                Work::Job(job) if which(&job) => out.push(job),
                other => self.queue.push_back(other),
            }
        }
        for waiting in self.lanes.values_mut() {
            let (taken, left): (VecDeque<Job>, _) = std::mem::take(waiting).into_iter().partition(|job| which(job));
            *waiting = left;
            out.extend(taken);
        }
        out
    }

    /// Takes out everything, when nobody is busy.
    fn take_all(&mut self) -> Vec<Job> {
        let all = self.take_out(|_| true);
        self.queue.clear();
        self.lanes.clear();
        all
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
            match state.queue.pop_front() {
                Some(Work::Job(job)) => {
                    drop(state);
                    job.run();
                    state = lock(&self.state);
                }
                Some(Work::Lane(lane)) => {
                    drop(state);
                    self.work_in(lane);
                    state = lock(&self.state);
                }
                None if state.closed => return,
                None => {
                    state.idle += 1;
                    state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                    state.idle -= 1;
                }
            }
        }
    }

    /// Makes the calls of a lane, until there is none or others must have their turn.
    fn work_in(&self, lane: Lane) {
        let _held = tree::hold_directory();
        for _ in 0..LANE_CALLS_MAX {
            let job = lock(&self.state).next_of(lane);
            let Some(job) = job else { return };
            job.run();
        }
        let mut state = lock(&self.state);
        state.queue.push_back(Work::Lane(lane));
        // The caller takes on the first; somebody else may wait behind it, or the rest of this lane.
        if state.queue.len() > 1 {
            self.work.notify_one();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
