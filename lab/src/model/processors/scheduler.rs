//! What a scheduler decides, and what it is told. The kernels of the time are in files of their own.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use policy::delivery::Urgency;
use policy::unit::{Instant, ProcessorId};

/// A thread of a process, in order of its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadId(pub u32);

/// Where a thread that can run goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// This idle processor takes it at once.
    Dispatch(ProcessorId),
    /// It is queued, and this processor looks at once whether to go on with what it runs.
    Look(ProcessorId),
    /// It is queued, and this processor looks at its next clock tick, or earlier for another reason.
    Tick(ProcessorId),
    /// It is queued until a processor has nothing else to do, or a slice ends.
    Queued,
}

/// A scheduler. It is told the time with everything that it accounts for.
pub trait Scheduler {
    /// A thread starts, not yet able to run.
    fn on_start(&mut self, thread: ThreadId);

    /// From now on the thread may run on that processor only, or again on all.
    fn bind(&mut self, thread: ThreadId, to: Option<ProcessorId>);

    /// A thread can run; `on` is where this happens. An idle processor that is chosen is idle no more.
    fn on_ready(&mut self, now: Instant, thread: ThreadId, on: Option<ProcessorId>) -> Placement;

    /// A thread was stopped, after its slice or before; it can run as before.
    fn on_stopped(&mut self, now: Instant, thread: ThreadId, on: ProcessorId) -> Placement;

    /// The processor has nothing to run: what does it run now? When nothing, it is idle.
    fn next(&mut self, now: Instant, processor: ProcessorId) -> Option<ThreadId>;

    /// An idle processor looks up: is there something for it?
    fn wake(&mut self, now: Instant, processor: ProcessorId) -> Option<ThreadId>;

    /// Should the processor stop what it runs for another thread?
    fn stops(&self, processor: ProcessorId, running: ThreadId, slice_is_over: bool) -> bool;

    /// Do threads wait that a processor could run instead of what it runs?
    fn waits(&self) -> bool;

    /// The thread used so much of a processor.
    fn on_used(&mut self, now: Instant, thread: ThreadId, time: Duration);

    /// How urgent is it, when it has run so long beside what was accounted for?
    fn urgency(&self, now: Instant, thread: ThreadId, running_for: Duration) -> Urgency;

    /// How long a thread runs when others of the same priority wait.
    fn slice(&self) -> Duration;
}

/// One that somebody else asks or tells things, too.
impl<S: Scheduler> Scheduler for Rc<RefCell<S>> {
    fn on_start(&mut self, thread: ThreadId) {
        self.borrow_mut().on_start(thread);
    }

    fn bind(&mut self, thread: ThreadId, to: Option<ProcessorId>) {
        self.borrow_mut().bind(thread, to);
    }

    fn on_ready(&mut self, now: Instant, thread: ThreadId, on: Option<ProcessorId>) -> Placement {
        self.borrow_mut().on_ready(now, thread, on)
    }

    fn on_stopped(&mut self, now: Instant, thread: ThreadId, on: ProcessorId) -> Placement {
        self.borrow_mut().on_stopped(now, thread, on)
    }

    fn next(&mut self, now: Instant, processor: ProcessorId) -> Option<ThreadId> {
        self.borrow_mut().next(now, processor)
    }

    fn wake(&mut self, now: Instant, processor: ProcessorId) -> Option<ThreadId> {
        self.borrow_mut().wake(now, processor)
    }

    fn stops(&self, processor: ProcessorId, running: ThreadId, slice_is_over: bool) -> bool {
        self.borrow().stops(processor, running, slice_is_over)
    }

    fn on_used(&mut self, now: Instant, thread: ThreadId, time: Duration) {
        self.borrow_mut().on_used(now, thread, time);
    }

    fn waits(&self) -> bool {
        self.borrow().waits()
    }

    fn urgency(&self, now: Instant, thread: ThreadId, running_for: Duration) -> Urgency {
        self.borrow().urgency(now, thread, running_for)
    }

    fn slice(&self) -> Duration {
        self.borrow().slice()
    }
}
