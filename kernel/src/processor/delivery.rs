//! The work after a completion: on which processor it is done (MP 2a-1 to 2b-4), and whether at once (OLTP-3).

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use machine::Completion;
use policy::delivery::{Activity, Method, Target, Urgency};
use smallvec::SmallVec;

use super::Processor;
use super::mailbox::TaskWaker;
use super::recording::NOBODY;
use crate::trace::Event;

/// Tasks that run at once in one look at the machine. Those woken beyond that are queued: whoever was ready before has
/// its turn after at most so many, however fast a disk is.
pub const IMMEDIATE_TASKS_MAX: usize = 32;

/// What a processor does, for others to read. In cache lines of its own (two, as processors fetch pairs of them): the
/// mailbox beside it is written by everybody.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Published(AtomicU32);

impl Published {
    fn set(&self, activity: Activity) {
        let value = match activity {
            Activity::Idle => 0,
            Activity::Running(Urgency(urgency)) => urgency.saturating_add(1),
        };
        // Others have the line only if it changes.
        if self.0.load(Ordering::Relaxed) != value {
            self.0.store(value, Ordering::Relaxed);
        }
    }

    /// A hint: it may have changed already.
    fn get(&self) -> Activity {
        match self.0.load(Ordering::Relaxed) {
            0 => Activity::Idle,
            value => Activity::Running(Urgency(value - 1)),
        }
    }
}

impl Processor {
    /// Has the work after a completion done by the processor that the switch `delivery` chooses.
    pub(crate) fn deliver(&self, work: impl FnOnce(&Processor) + Send + 'static) {
        let method = self.switches().delivery;
        if method == Method::Initiator {
            return work(self);
        }
        match method.target(self.id(), &self.activities()) {
            Target::One(to) if to == self.id() => {
                self.trace(Event::CompletionDelivered, NOBODY, u64::from(to.0), 0);
                work(self);
            }
            Target::One(to) => {
                let (from, job) = (self.id(), self.job());
                self.0.kernel.mailbox(to).start(move |there| {
                    there.doing_for(job, || there.take_delivery(from.0, work));
                });
            }
            Target::All => self.deliver_to_all(work),
        }
    }

    /// Each processor gets it, this one no sooner than the others; the first that takes it does it.
    fn deliver_to_all(&self, work: impl FnOnce(&Processor) + Send + 'static) {
        let (from, job, work) = (self.id(), self.job(), Arc::new(Mutex::new(Some(work))));
        for mailbox in self.0.kernel.mailboxes() {
            let work = Arc::clone(&work);
            mailbox.start(move |there| {
                let taken = work.lock().unwrap_or_else(PoisonError::into_inner).take();
                if let Some(work) = taken {
                    there.doing_for(job, || there.take_delivery(from.0, work));
                }
            });
        }
    }

    /// Does what another processor delivered here: at once, or as a task behind those that are ready.
    fn take_delivery(&self, from: u16, work: impl FnOnce(&Processor) + 'static) {
        self.trace(Event::CompletionDelivered, NOBODY, u64::from(from), 0);
        if self.switches().immediate_dispatch {
            work(self);
        } else {
            let here = self.clone();
            self.spawn(async move { work(&here) });
        }
    }

    /// What each processor does; of this one, what it would do but for the completion at hand. In the order of their
    /// numbers: every processor enrolls before there are devices.
    fn activities(&self) -> SmallVec<[Activity; 16]> {
        let own = match self.0.ready.borrow().len() {
            0 => Activity::Idle,
            ready => running(ready),
        };
        let mailboxes = self.0.kernel.mailboxes();
        mailboxes.map(|mailbox| if mailbox.id == self.id() { own } else { mailbox.activity.get() }).collect()
    }

    /// Says what it does, if anybody wants to know.
    fn publish(&self, activity: Activity) {
        if self.switches().delivery.looks_at_activity() {
            self.0.mailbox.activity.set(activity);
        }
    }

    pub(super) fn publish_idle(&self) {
        self.publish(Activity::Idle);
    }

    /// It runs what is ready: the more there is, the more urgent.
    pub(super) fn publish_running(&self) {
        self.publish(running(self.0.ready.borrow().len()));
    }

    /// Takes note of what is complete. Short routines run at once; what else was woken is queued (OLTP-3).
    pub(super) fn complete(&self, done: &mut Vec<Completion>) {
        let is_on = self.switches().immediate_dispatch;
        let mut left = if is_on { IMMEDIATE_TASKS_MAX } else { 0 };
        for completion in done.drain(..) {
            let ready = self.0.ready.borrow().len();
            let is_short = self.0.operations.complete(completion);
            if is_short
                && left > 0
                && let Some(task) = self.take_woken(ready)
            {
                let job = self.run_task(task, true);
                left = if self.is_ready_turn_over(job) { 0 } else { left - 1 };
            }
        }
    }

    /// The task that was queued since so many were ready, if it may go before the others.
    fn take_woken(&self, ready: usize) -> Option<Arc<TaskWaker>> {
        let mut queue = self.0.ready.borrow_mut();
        if queue.len() > ready { queue.take_woken() } else { None }
    }
}

fn running(ready: usize) -> Activity {
    Activity::Running(Urgency(u32::try_from(ready).unwrap_or(u32::MAX)))
}
