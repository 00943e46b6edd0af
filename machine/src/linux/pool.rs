//! Threads that make blocking calls on files for the processors: all of them for the thread engine, the few that
//! io_uring lacks for the other, unless a lone request waits for them ([`super::core_worker`]).
//!
//! The host serializes changes of the names in one directory. Several threads that make such calls would only wait for
//! each other, each put to sleep and woken for every change: so these calls form a lane, and one thread makes all that
//! have gathered.
//!
//! A resource (a tree, a file) that hangs or is slow keeps a part of the threads busy at most: the others serve the rest.
//!
//! Lock order: the state of a core's worker → the pool's queue. An inbox is never held with either.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::bell::Bell;
use super::cores::Cores;
use super::credentials;
use super::perform;
use super::task::{Lane, Resource, Step, Task};
use super::tree;
use crate::{Completion, Errno};

/// Enough threads for one resource to keep a disk's queue busy, few enough that a slow disk does not fill the host with
/// sleepers.
const RESOURCE_WORKERS_MAX: usize = 24;

const WORKERS_MAX: usize = 2 * RESOURCE_WORKERS_MAX;

/// Calls of one lane that a thread makes before it serves others.
const LANE_CALLS_MAX: usize = 32;

/// Completions until their processor collects them.
pub(super) struct Inbox {
    state: Mutex<InboxState>,
    idle: Condvar,
    bell: Arc<Bell>,
}

#[derive(Default)]
struct InboxState {
    done: Vec<Completion>,
    /// Tasks submitted and not done yet.
    in_flight: usize,
    /// Of these, the brief ones ([`Task::is_brief`]).
    brief: usize,
}

impl Inbox {
    pub(super) fn new(bell: Arc<Bell>) -> Arc<Self> {
        Arc::new(Inbox { state: Mutex::default(), idle: Condvar::new(), bell })
    }

    /// Moves completions to `done`. Returns their number.
    pub(super) fn collect(&self, done: &mut Vec<Completion>) -> usize {
        let mut state = self.state.lock();
        let count = state.done.len();
        done.append(&mut state.done);
        count
    }

    /// Are brief tasks not done yet?
    pub(super) fn awaits_brief(&self) -> bool {
        self.state.lock().brief > 0
    }

    fn begin(&self, task: &Task) {
        let mut state = self.state.lock();
        state.in_flight += 1;
        state.brief += usize::from(task.is_brief());
    }

    fn complete(&self, task: &Task, result: Result<u64, Errno>) {
        let mut state = self.state.lock();
        state.done.push(Completion { token: task.token, result });
        state.in_flight -= 1;
        state.brief -= usize::from(task.is_brief());
        if state.in_flight == 0 {
            self.idle.notify_all();
        }
        drop(state);
        self.bell.wake();
    }
}

/// A call to make, and who waits for it.
pub(super) struct Job {
    task: Task,
    inbox: Arc<Inbox>,
}

impl Job {
    /// # Safety
    /// As [`Pool::submit`].
    pub(super) unsafe fn new(task: Task, inbox: &Arc<Inbox>) -> Job {
        inbox.begin(&task);
        Job { task, inbox: Arc::clone(inbox) }
    }

    fn run(mut self) {
        let result = self.call();
        self.finish(result);
    }

    /// Makes the call.
    pub(super) fn call(&mut self) -> Result<u64, Errno> {
        loop {
            // SAFETY: the starter of the operation guarantees its memory until the completion is returned, and the
            // processor that owns the inbox waits for its jobs before it ends.
            let result = unsafe { perform::perform(&self.task) };
            if let Step::Done(result) = self.task.on_result(result) {
                return result;
            }
        }
    }

    /// Returns the completion.
    pub(super) fn finish(self, result: Result<u64, Errno>) {
        self.inbox.complete(&self.task, result);
    }
}

enum Work {
    Job(Job),
    /// The jobs waiting in a lane.
    Lane(Lane),
}

impl Work {
    fn resource(&self) -> Resource {
        match self {
            Work::Job(job) => job.task.resource(),
            Work::Lane(lane) => Resource::Tree(lane.tree),
        }
    }
}

/// What a resource keeps busy.
#[derive(Default)]
struct Busy {
    workers: usize,
    /// Its work beyond that, in order.
    waiting: VecDeque<Work>,
}

/// The threads and their queue. The queue's length is bounded by the processors' operations in flight.
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
    /// Jobs of lanes that are in the queue or served by a thread.
    lanes: HashMap<Lane, VecDeque<Job>>,
    /// The resources for which threads work.
    busy: HashMap<Resource, Busy>,
    workers: usize,
    idle: usize,
    closed: bool,
}

impl Pool {
    /// Without threads: they start when there is work. They may run on all of `cores`, not only on that of the
    /// processor that starts them.
    pub(super) fn new(cores: Cores) -> Arc<Self> {
        Arc::new(Pool { shared: Arc::new(Shared { state: Mutex::default(), work: Condvar::new(), cores }) })
    }

    /// Has a thread make a call; its completion goes to `inbox`.
    ///
    /// # Safety
    /// The memory of the task's vectors must stay valid, and untouched where it is read into, until `inbox` has the
    /// completion or [`abandon`](Self::abandon) returned.
    pub(super) unsafe fn submit(&self, task: Task, inbox: &Arc<Inbox>) {
        // SAFETY: as the caller guarantees.
        self.take(unsafe { Job::new(task, inbox) });
    }

    /// Has a thread do a job.
    pub(super) fn take(&self, job: Job) {
        let mut state = self.shared.state.lock();
        let work = state.take_in(job).and_then(|work| state.within_share(work));
        let Some(work) = work else { return };
        state.queue.push_back(work);
        self.provide(state);
    }

    /// Provides a thread for what was queued.
    fn provide(&self, mut state: MutexGuard<'_, PoolState>) {
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
            credentials::drop_resource_capability();
            shared.work();
        });
        if started.is_err() {
            self.run_without_threads();
        }
    }

    /// The host gives no more threads: if there is none at all, the processor makes the calls itself, which is slow but
    /// makes progress.
    fn run_without_threads(&self) {
        let mut state = self.shared.state.lock();
        state.workers -= 1;
        if state.workers > 0 {
            return;
        }
        let jobs = state.take_all();
        drop(state);
        jobs.into_iter().for_each(Job::run);
    }

    /// Excludes the pool's threads from the job's lane until [`leave`](Self::leave). False: one serves it.
    pub(super) fn enter(&self, job: &Job) -> bool {
        let Some(lane) = job.task.lane() else { return true };
        match self.shared.state.lock().lanes.entry(lane) {
            Entry::Occupied(_) => false,
            Entry::Vacant(free) => {
                free.insert(VecDeque::new());
                true
            }
        }
    }

    /// The job that had entered its lane is done; a thread serves what has gathered there.
    pub(super) fn leave(&self, job: &Job) {
        let Some(lane) = job.task.lane() else { return };
        let mut state = self.shared.state.lock();
        if state.lanes.get(&lane).is_some_and(VecDeque::is_empty) {
            state.lanes.remove(&lane);
            return;
        }
        state.queue.push_back(Work::Lane(lane));
        self.provide(state);
    }

    /// Cancels the waiting jobs of `inbox` and waits for the running ones: afterwards no thread touches its memory.
    pub(super) fn abandon(&self, inbox: &Arc<Inbox>) {
        let mut state = self.shared.state.lock();
        let mine = state.take_out(|job| Arc::ptr_eq(&job.inbox, inbox));
        drop(state);
        mine.into_iter().for_each(|job| job.finish(Err(Errno::CANCELLED)));
        let mut state = inbox.state.lock();
        while state.in_flight > 0 {
            inbox.idle.wait(&mut state);
        }
    }
}

impl PoolState {
    /// Queues a job; returns the work for a thread, unless one serves the job's lane already.
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

    /// The work, unless its resource has all threads that it may have: then it waits for one of them.
    fn within_share(&mut self, work: Work) -> Option<Work> {
        match self.busy.get_mut(&work.resource()) {
            Some(busy) if busy.workers >= RESOURCE_WORKERS_MAX => {
                busy.waiting.push_back(work);
                None
            }
            _ => Some(work),
        }
    }

    /// The next work for a thread, until [`end`](Self::end).
    fn begin(&mut self) -> Option<(Work, Resource)> {
        while let Some(work) = self.queue.pop_front() {
            if let Some(work) = self.within_share(work) {
                let resource = work.resource();
                self.busy.entry(resource).or_default().workers += 1;
                return Some((work, resource));
            }
        }
        None
    }

    fn end(&mut self, resource: Resource) {
        let Entry::Occupied(mut entry) = self.busy.entry(resource) else { return };
        let busy = entry.get_mut();
        busy.workers -= 1;
        // For the caller, which looks for work now.
        if let Some(work) = busy.waiting.pop_front() {
            self.queue.push_back(work);
        } else if busy.workers == 0 {
            entry.remove();
        }
    }

    /// The next job of a lane that the caller serves. Without one the lane is removed.
    fn next_of(&mut self, lane: Lane) -> Option<Job> {
        let job = self.lanes.get_mut(&lane).and_then(VecDeque::pop_front);
        if job.is_none() {
            self.lanes.remove(&lane);
        }
        job
    }

    /// Removes the jobs for which `which` is true. Empty lanes are left to the thread that serves them.
    fn take_out(&mut self, mut which: impl FnMut(&Job) -> bool) -> Vec<Job> {
        let mut out = Vec::new();
        for queue in self.busy.values_mut().map(|busy| &mut busy.waiting).chain([&mut self.queue]) {
            for work in std::mem::take(queue) {
                match work {
                    Work::Job(job) if which(&job) => out.push(job),
                    other => queue.push_back(other),
                }
            }
        }
        for waiting in self.lanes.values_mut() {
            let (taken, left): (VecDeque<Job>, _) = std::mem::take(waiting).into_iter().partition(|job| which(job));
            *waiting = left;
            out.extend(taken);
        }
        out
    }

    /// Removes all jobs, when no thread runs.
    fn take_all(&mut self) -> Vec<Job> {
        let all = self.take_out(|_| true);
        self.queue.clear();
        self.lanes.clear();
        all
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.state.lock().closed = true;
        self.shared.work.notify_all();
    }
}

impl Shared {
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            match state.begin() {
                Some((work, resource)) => {
                    drop(state);
                    match work {
                        Work::Job(job) => job.run(),
                        Work::Lane(lane) => self.work_in(lane),
                    }
                    state = self.state.lock();
                    state.end(resource);
                }
                None if state.closed => return,
                None => {
                    state.idle += 1;
                    self.work.wait(&mut state);
                    state.idle -= 1;
                }
            }
        }
    }

    /// Makes the calls of a lane, until it is empty or its time slice is over.
    fn work_in(&self, lane: Lane) {
        let _held = tree::hold_directory();
        for _ in 0..LANE_CALLS_MAX {
            let job = self.state.lock().next_of(lane);
            let Some(job) = job else { return };
            job.run();
        }
        let mut state = self.state.lock();
        state.queue.push_back(Work::Lane(lane));
        // The caller serves the first; others may wait behind it, or the rest of this lane.
        if state.queue.len() > 1 {
            self.work.notify_one();
        }
    }
}
