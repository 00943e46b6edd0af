//! Delivery of completions: on which processor (MP 2a-1 to 2b-4), and whether at once (OLTP-3).

use std::sync::Arc;

use machine::Completion;
use parking_lot::Mutex;
use policy::delivery::{Activity, Method, Target, Urgency};
use smallvec::SmallVec;

use super::Processor;
use super::mailbox::TaskWaker;
use super::recording::NOBODY;
use crate::trace::Event;

/// Tasks run immediately in one time slice, at most. Further ones are queued, which bounds the delay of tasks that were
/// ready before, however fast a disk is.
pub const IMMEDIATE_TASKS_MAX: usize = 32;

impl Processor {
    /// Runs `work` on the processor that the switch `delivery` chooses.
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

    /// Offered to every processor, this one included; the first that takes it runs it.
    fn deliver_to_all(&self, work: impl FnOnce(&Processor) + Send + 'static) {
        let (from, job, work) = (self.id(), self.job(), Arc::new(Mutex::new(Some(work))));
        for mailbox in self.0.kernel.mailboxes() {
            let work = Arc::clone(&work);
            mailbox.start(move |there| {
                let taken = work.lock().take();
                if let Some(work) = taken {
                    there.doing_for(job, || there.take_delivery(from.0, work));
                }
            });
        }
    }

    /// Runs work from another processor: at once, or as a task behind the ready ones.
    fn take_delivery(&self, from: u16, work: impl FnOnce(&Processor) + 'static) {
        self.trace(Event::CompletionDelivered, NOBODY, u64::from(from), 0);
        if self.switches().immediate_dispatch {
            work(self);
        } else {
            let here = self.clone();
            self.spawn(async move { work(&here) });
        }
    }

    /// The activity of each processor, in the order of their numbers (all enroll before there are devices); of this
    /// one, without the completion at hand.
    fn activities(&self) -> SmallVec<[Activity; 16]> {
        let own = match self.0.ready.borrow().len() {
            0 => Activity::Idle,
            ready => running(ready),
        };
        let mailboxes = self.0.kernel.mailboxes();
        mailboxes.map(|mailbox| if mailbox.id == self.id() { own } else { mailbox.activity.get() }).collect()
    }

    /// Publishes the activity, if the delivery method needs it.
    fn publish(&self, activity: Activity) {
        if self.switches().delivery.needs_activity() {
            self.0.mailbox.activity.set(activity);
        }
    }

    pub(super) fn publish_idle(&self) {
        self.publish(Activity::Idle);
    }

    /// The more tasks are ready, the more urgent.
    pub(super) fn publish_running(&self) {
        self.publish(running(self.0.ready.borrow().len()));
    }

    /// Processes completions. Short routines run at once; other woken tasks are queued (OLTP-3).
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

    /// The task queued since `ready` tasks were, if it may run before the others.
    fn take_woken(&self, ready: usize) -> Option<Arc<TaskWaker>> {
        let mut queue = self.0.ready.borrow_mut();
        if queue.len() > ready { queue.take_woken() } else { None }
    }
}

fn running(ready: usize) -> Activity {
    Activity::Running(Urgency(u32::try_from(ready).unwrap_or(u32::MAX)))
}
