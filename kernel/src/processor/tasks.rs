//! Starting tasks, and running them.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Waker};

use super::mailbox::TaskWaker;
use super::recording::NOBODY;
use super::{LocalFuture, Processor};
use crate::counters::{Activity, Count};
use crate::job::JobId;
use crate::trace::Event;

/// Wakers of ended tasks retained for new ones, at most.
const USED_WAKERS_MAX: usize = 256;

pub(super) struct Task {
    future: Option<LocalFuture>,
    waker: Arc<TaskWaker>,
    activity: Activity,
}

/// How a task begins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Begins {
    /// Run by its maker.
    Running,
    /// Among the ready ones.
    Queued,
    /// So, and it waits for many completions.
    QueuedForMany,
}

impl Processor {
    /// Starts a local task, charged to the job of this one.
    pub fn spawn(&self, future: impl Future<Output = ()> + 'static) {
        self.spawn_for(self.job(), future);
    }

    /// Starts a local task, charged to `job`, as is what it starts.
    pub fn spawn_for(&self, job: JobId, future: impl Future<Output = ()> + 'static) {
        self.spawn_boxed_as(self.activity_of_new_tasks(), job, Box::pin(future));
    }

    fn activity_of_new_tasks(&self) -> Activity {
        match self.0.activity.get() {
            Activity::Monitor | Activity::Program => Activity::Monitor,
            _ => Activity::Service,
        }
    }

    /// Starts a local task, charged to the job of this one, as a part of which it runs until it first waits.
    pub fn spawn_running(&self, mut future: LocalFuture) {
        let waker = self.enlist(None, Activity::Service, self.job(), Begins::Running);
        let (key, serial) = (waker.key, waker.serial);
        let waker = Waker::from(waker);
        let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
        drop(waker);
        if polled.is_ready() {
            drop(future);
            return self.dismiss(key);
        }
        self.note_spawned(self.job(), serial);
        if let Some(task) = self.0.tasks.borrow_mut().get_mut(key) {
            (task.future, task.activity) = (Some(future), self.activity_of_new_tasks());
            task.waker.set_job(self.job());
        }
    }

    /// Starts a local task of the I/O path, charged to the job of this one.
    pub(crate) fn spawn_path(&self, future: impl Future<Output = ()> + 'static) {
        self.spawn_path_for(self.job(), future);
    }

    /// Starts a local task of the I/O path, charged to `job`.
    pub(crate) fn spawn_path_for(&self, job: JobId, future: impl Future<Output = ()> + 'static) {
        self.spawn_path_boxed(job, Box::pin(future));
    }

    pub(crate) fn spawn_path_boxed(&self, job: JobId, future: LocalFuture) {
        self.spawn_boxed_as(Activity::Path, job, future);
    }

    /// As `spawn_path_for`, for a task that waits for many completions: it runs after those that were taken together, not
    /// at each.
    pub(crate) fn spawn_path_of_many(&self, job: JobId, future: impl Future<Output = ()> + 'static) {
        self.spawn_queued(Activity::Path, job, Box::pin(future), Begins::QueuedForMany);
    }

    fn spawn_boxed_as(&self, activity: Activity, job: JobId, future: LocalFuture) {
        self.spawn_queued(activity, job, future, Begins::Queued);
    }

    fn spawn_queued(&self, activity: Activity, job: JobId, future: LocalFuture, begins: Begins) {
        let waker = self.enlist(Some(future), activity, job, begins);
        self.note_spawned(job, waker.serial);
        self.0.ready.borrow_mut().push(waker);
    }

    fn note_spawned(&self, job: JobId, serial: u64) {
        self.trace(Event::TaskStarted, job, serial, 0);
        self.count(Count::TasksStarted, 1);
    }

    /// Makes a task, without a future for one that its maker runs first.
    fn enlist(&self, future: Option<LocalFuture>, activity: Activity, job: JobId, begins: Begins) -> Arc<TaskWaker> {
        let (queued, of_many) = (begins != Begins::Running, begins == Begins::QueuedForMany);
        let serial = self.next_serial();
        let mut tasks = self.0.tasks.borrow_mut();
        let entry = tasks.vacant_entry();
        let mut used = self.0.used_wakers.borrow_mut().pop();
        let waker = match used.as_mut().and_then(Arc::get_mut) {
            Some(waker) => {
                (waker.key, waker.serial, waker.of_many) = (entry.key(), serial, of_many);
                *waker.job.get_mut() = job.0;
                *waker.queued.get_mut() = queued;
                used
            }
            None => None,
        };
        let waker = waker.unwrap_or_else(|| {
            let (mailbox, job, queued) = (Arc::clone(&self.0.mailbox), AtomicU32::new(job.0), AtomicBool::new(queued));
            Arc::new(TaskWaker { mailbox, key: entry.key(), serial, of_many, job, queued })
        });
        entry.insert(Task { future, waker: Arc::clone(&waker), activity });
        waker
    }

    /// A task has ended.
    fn dismiss(&self, key: usize) {
        let mut task = self.0.tasks.borrow_mut().remove(key);
        let mut used = self.0.used_wakers.borrow_mut();
        // A waker without other references is reused.
        if used.len() < USED_WAKERS_MAX && Arc::get_mut(&mut task.waker).is_some() {
            used.push(task.waker);
        }
    }

    /// Runs a task; returns the job that it worked for.
    pub(super) fn run_task(&self, waker: Arc<TaskWaker>, immediate: bool) -> JobId {
        let (key, serial) = (waker.key, waker.serial);
        let taken = match self.0.tasks.borrow_mut().get_mut(key) {
            Some(task) if task.waker.serial == serial => task.future.take().map(|future| (future, task.activity)),
            _ => None,
        };
        let Some((mut future, activity)) = taken else { return NOBODY };
        waker.queued.store(false, Ordering::Release);
        let before = self.0.job.replace(waker.job());
        let activity_before = self.0.activity.replace(activity);
        let waker = Waker::from(waker);
        let began = self.begin(Event::TaskRan, self.job());
        let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
        let job = self.0.job.replace(before);
        self.end(began, Event::TaskRan, job, serial, immediate.into());
        let activity = self.0.activity.replace(activity_before);
        let ticks = self.charge(activity);
        self.charge_job(job, ticks + self.0.charged_before.take());
        self.count(if immediate { Count::ImmediateDispatches } else { Count::Dispatches }, 1);
        if polled.is_ready() {
            self.trace(Event::TaskEnded, job, serial, 0);
            drop((future, waker));
            self.dismiss(key);
        } else if let Some(task) = self.0.tasks.borrow_mut().get_mut(key) {
            (task.future, task.activity) = (Some(future), activity);
            task.waker.set_job(job);
        }
        job
    }
}
