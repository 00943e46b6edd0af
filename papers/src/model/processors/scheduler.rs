//! A scheduler's events and decisions. The kernels of the time are in files of their own.

use std::time::Duration;

use policy::delivery::Urgency;
use policy::unit::{Instant, ProcessorId};

/// Threads are numbered in order of their start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadId(pub u32);

/// Where a ready thread goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// This idle processor takes it at once.
    Dispatch(ProcessorId),
    /// It is queued, and this processor checks at once whether to preempt.
    Look(ProcessorId),
    /// It is queued, and this processor looks at its next clock tick, or earlier for another reason.
    Tick(ProcessorId),
    /// It is queued until a processor becomes idle, or a slice ends.
    Queued,
}

/// A scheduler. Every call that it accounts for carries the time.
pub trait Scheduler {
    /// A thread starts, not yet ready.
    fn on_start(&mut self, thread: ThreadId);

    /// From now on the thread may run on that processor only, or again on all.
    /// A single processor has nothing to do for it.
    fn bind(&mut self, _thread: ThreadId, _to: Option<ProcessorId>) {}

    /// A thread is ready; `on` is where this happens. An idle processor that is chosen is idle no more.
    fn on_ready(&mut self, now: Instant, thread: ThreadId, on: Option<ProcessorId>) -> Placement;

    /// A thread was stopped, after its slice or before; it is still ready.
    fn on_stopped(&mut self, now: Instant, thread: ThreadId, on: ProcessorId) -> Placement;

    /// The processor has nothing to run: what does it run now? `None` makes it idle.
    fn next(&mut self, now: Instant, processor: ProcessorId) -> Option<ThreadId>;

    /// An idle processor looks for a thread.
    fn wake(&mut self, now: Instant, processor: ProcessorId) -> Option<ThreadId>;

    /// Should the processor stop what it runs for another thread?
    fn stops(&self, processor: ProcessorId, running: ThreadId, slice_is_over: bool) -> bool;

    /// Do threads wait that a processor could run instead of what it runs?
    fn waits(&self) -> bool;

    /// The thread used a processor for `time`.
    fn on_used(&mut self, now: Instant, thread: ThreadId, time: Duration);

    /// How urgent is it, after `running_for` that was not accounted for yet?
    fn urgency(&self, now: Instant, thread: ThreadId, running_for: Duration) -> Urgency;

    /// How long a thread runs when others of the same priority wait.
    fn slice(&self) -> Duration;
}
