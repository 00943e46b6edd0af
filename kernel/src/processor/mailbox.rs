//! The mailbox of a processor, and the wakers of its tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::Wake;

use machine::Doorbell;
use parking_lot::Mutex;
use policy::delivery::{Activity, Urgency};
use policy::unit::ProcessorId;

use super::{CURRENT, Processor, Start};
use crate::job::JobId;

/// Where other processors put tasks and wake-ups for one processor.
pub struct Mailbox {
    pub(super) id: ProcessorId,
    pub(super) post: Mutex<Post>,
    pub(super) has_post: AtomicBool,
    pub(super) parked: AtomicBool,
    pub(super) stopping: AtomicBool,
    pub(super) activity: Published,
    /// Of clients, as last published by the processor.
    pub(super) requests: AtomicU64,
    pub(super) doorbell: Arc<dyn Doorbell>,
}

#[derive(Default)]
pub(super) struct Post {
    pub(super) woken: Vec<Arc<TaskWaker>>,
    pub(super) starts: Vec<Start>,
}

impl Mailbox {
    pub fn id(&self) -> ProcessorId {
        self.id
    }

    /// Runs `start` on that processor.
    pub fn start(&self, start: impl FnOnce(Processor) + Send + 'static) {
        self.post(|post| post.starts.push(Box::new(start)));
    }

    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.doorbell.ring();
    }

    /// Drops post that no processor will take any more.
    pub(crate) fn forget_post(&self) {
        let post = std::mem::take(&mut *self.post.lock());
        drop(post);
    }

    /// Client requests so far, as of the last time that the processor had nothing to do.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Called by its processor only.
    pub(super) fn note_requests(&self, more: u64) {
        if more > 0 {
            self.requests.store(self.requests.load(Ordering::Relaxed) + more, Ordering::Relaxed);
        }
    }

    fn post(&self, put: impl FnOnce(&mut Post)) {
        put(&mut self.post.lock());
        self.has_post.store(true, Ordering::SeqCst);
        // Only a parked processor needs the doorbell (a system call); it checks for post again after setting `parked`.
        if self.parked.swap(false, Ordering::SeqCst) {
            self.doorbell.ring();
        }
    }
}

/// A processor's activity, for others to read. On cache lines of its own (two: processors prefetch pairs), since all
/// processors write the rest of the mailbox.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Published(AtomicU32);

impl Published {
    pub(super) fn set(&self, activity: Activity) {
        let value = match activity {
            Activity::Idle => 0,
            Activity::Running(Urgency(urgency)) => urgency.saturating_add(1),
        };
        // Avoids invalidating the others' copies of the line.
        if self.0.load(Ordering::Relaxed) != value {
            self.0.store(value, Ordering::Relaxed);
        }
    }

    /// A hint, possibly outdated.
    pub(super) fn get(&self) -> Activity {
        match self.0.load(Ordering::Relaxed) {
            0 => Activity::Idle,
            value => Activity::Running(Urgency(value - 1)),
        }
    }
}

pub(super) struct TaskWaker {
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) key: usize,
    pub(super) serial: u64,
    /// It waits for many completions: none of them runs it at once.
    pub(super) of_many: bool,
    /// The job to charge. Only its processor changes it.
    pub(super) job: AtomicU32,
    pub(super) queued: AtomicBool,
}

impl TaskWaker {
    pub(super) fn job(&self) -> JobId {
        JobId(self.job.load(Ordering::Relaxed))
    }

    pub(super) fn set_job(&self, job: JobId) {
        self.job.store(job.0, Ordering::Relaxed);
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        if self.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let here = CURRENT.with_borrow(|current| match current {
            Some(processor) if Arc::ptr_eq(&processor.0.mailbox, &self.mailbox) => {
                processor.0.ready.borrow_mut().push(Arc::clone(&self));
                true
            }
            _ => false,
        });
        if !here {
            let mailbox = Arc::clone(&self.mailbox);
            mailbox.post(|post| post.woken.push(self));
        }
    }
}
