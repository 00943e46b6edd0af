//! What a process can do with its processor.

use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::Duration;

use policy::unit::ProcessorId;

use super::{Entry, Processors, State, ThreadId, WAKE};

/// A thread of a process, for its script. Clones are the same thread.
#[derive(Clone)]
pub struct Thread {
    processors: Processors,
    id: ThreadId,
}

impl Processors {
    /// Starts a process with one thread, ready now. It ends when its script does.
    pub fn start<F: Future<Output = ()> + 'static>(&self, script: impl FnOnce(Thread) -> F + 'static) -> ThreadId {
        let id = ThreadId(self.0.threads.borrow().len() as u32);
        self.0.threads.borrow_mut().push(Entry::default());
        self.0.scheduler.borrow_mut().on_start(id);
        let thread = Thread { processors: self.clone(), id };
        self.0.time.spawn(async move {
            thread.processors.able(id, None);
            thread.acts().await;
            script(thread.clone()).await;
            thread.leave();
        });
        id
    }
}

impl Thread {
    pub fn id(&self) -> ThreadId {
        self.id
    }

    /// The processor that it runs on now, if any.
    pub fn processor(&self) -> Option<ProcessorId> {
        self.processors.entry(self.id, |entry| entry.on)
    }

    /// Computes in user mode: can be preempted any number of times.
    pub async fn compute(&self, time: Duration) {
        self.work(time, true).await;
    }

    /// Runs in the kernel: only interrupts delay it.
    pub async fn run_in_kernel(&self, time: Duration) {
        self.work(time, false).await;
    }

    pub async fn sleep(&self) {
        if self.processors.entry(self.id, |entry| std::mem::take(&mut entry.woken)) {
            return;
        }
        self.leave();
        self.acts().await;
    }

    /// Sleeps that long, up to the next clock tick; the clock of processor `clock` wakes it.
    pub async fn sleep_for(&self, time: Duration, clock: ProcessorId) {
        let processors = &self.processors;
        let end = processors.tick_from(processors.0.time.now() + time);
        processors.signal(end, WAKE, self.id.0, u32::from(clock.0));
        self.sleep().await;
    }

    /// Moves to that processor at once, and runs only there from now on.
    pub async fn bind(&self, to: ProcessorId) {
        let processors = &self.processors;
        processors.0.scheduler.borrow_mut().bind(self.id, Some(to));
        let on = self.processor();
        if on == Some(to) {
            return;
        }
        self.leave();
        processors.able(self.id, on);
        self.acts().await;
    }

    /// May run on all processors again. Stays where it is until it is stopped.
    pub fn unbind(&self) {
        self.processors.0.scheduler.borrow_mut().bind(self.id, None);
    }

    async fn work(&self, time: Duration, user: bool) {
        let processors = &self.processors;
        let on = processors.entry(self.id, |entry| {
            entry.left += time;
            (entry.user, entry.state) = (user, State::Works);
            entry.on
        });
        if let Some(on) = on {
            if user && processors.stops(on, self.id) {
                processors.with(on, |one| one.since = processors.0.time.now());
                processors.stop(on, self.id);
            } else {
                processors.go_on(on, self.id);
            }
        }
        self.acts().await;
    }

    fn leave(&self) {
        let on = self.processors.entry(self.id, |entry| {
            (entry.state, entry.user) = (State::Asleep, false);
            entry.on.take()
        });
        if let Some(on) = on {
            self.processors.take_next(on);
        }
    }

    /// Waits until it has a processor and its work is done.
    async fn acts(&self) {
        let processors = &self.processors;
        poll_fn(|_| {
            let waiter = processors.0.time.current();
            processors.entry(self.id, |entry| {
                entry.waiter = Some(waiter);
                if entry.state == State::Acts { Poll::Ready(()) } else { Poll::Pending }
            })
        })
        .await;
    }
}
