//! Processors that run threads in time slices: dispatch, preemption, migration, interrupts that steal time.
//!
//! A process is a script: an async function with a [`Thread`] that works, waits and binds itself to a processor. A
//! [`Scheduler`] decides which thread runs where: [`mach`] or [`bsd`]. In user mode a thread can be preempted at any
//! time, in the kernel it cannot: both kernels of the time look for a better thread on the return to user mode, at a
//! clock tick and at the end of an interrupt. Clock ticks are on the agenda only when a thread waits for one.

pub mod bsd;
pub mod fair;
pub mod mach;
mod scheduler;
mod thread;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use policy::delivery::Activity;
use policy::unit::{Instant, ProcessorId};
use slab::Slab;

pub use scheduler::{Placement, Scheduler, ThreadId};
pub use thread::Thread;

use super::{Handler, Signals, Virtual, WaiterId};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// To switch to another thread.
    pub dispatch: Duration,
    /// Additional cost when that thread last ran on another processor, whose cache has its data.
    pub migration: Duration,
    /// From one clock tick to the next. All processors tick at the same time.
    pub tick: Duration,
}

/// Processors and their threads. Clones are the same ones.
#[derive(Clone)]
pub struct Processors(Rc<Inner>);

/// What an interrupt does at the end of its handler, on the processor that took it.
pub type Effect = Box<dyn FnOnce(&Processors, ProcessorId)>;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessorCounters {
    pub dispatches: u64,
    /// Of these, threads that ran on another processor before.
    pub migrations: u64,
    pub stops: u64,
    /// Interrupts of processors that ran a thread.
    pub interrupts_busy: u64,
    pub interrupts_idle: u64,
}

struct Inner {
    time: Virtual,
    signals: Signals,
    costs: Costs,
    scheduler: Rc<RefCell<dyn Scheduler>>,
    processors: RefCell<Vec<Processor>>,
    threads: RefCell<Vec<Entry>>,
    interrupts: RefCell<Slab<(ProcessorId, Effect)>>,
    counters: Cell<ProcessorCounters>,
}

#[derive(Clone, Copy, Default)]
struct Processor {
    running: Option<ThreadId>,
    /// Generation of the signal that ends its thread's work.
    generation: u32,
    /// The thread has worked since then.
    since: Instant,
    /// Interrupt handlers run until then.
    handlers_until: Instant,
    /// So long threads and handlers have run so far.
    busy: Duration,
    slice_end: Instant,
    /// The next scheduled look.
    look_at: Option<Instant>,
}

#[derive(Clone, Copy, Default)]
struct Entry {
    state: State,
    /// Work before its task continues.
    left: Duration,
    user: bool,
    on: Option<ProcessorId>,
    last: Option<ProcessorId>,
    waiter: Option<WaiterId>,
    /// Woken before it went to sleep.
    woken: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Asleep,
    /// Waits for a processor.
    Able,
    /// Has a processor and work to do.
    Works,
    /// Has a processor, and its task runs.
    Acts,
}

const DONE: u64 = 0;
const LOOK: u64 = 1;
const INTERRUPT: u64 = 2;
const WAKE: u64 = 3;

impl Processors {
    pub fn new(time: &Virtual, count: u16, costs: Costs, scheduler: Rc<RefCell<dyn Scheduler>>) -> Self {
        let inner = |signals| Inner {
            time: time.clone(),
            signals,
            costs,
            scheduler,
            processors: RefCell::new(vec![Processor::default(); usize::from(count)]),
            threads: RefCell::default(),
            interrupts: RefCell::default(),
            counters: Cell::default(),
        };
        (*time.handled(|signals| Processors(Rc::new(inner(signals))))).clone()
    }

    pub fn activities(&self) -> Vec<Activity> {
        let (now, scheduler) = (self.0.time.now(), self.0.scheduler.borrow());
        let activity = |one: &Processor| match one.running {
            Some(thread) => Activity::Running(scheduler.urgency(now, thread, now - one.since)),
            None => Activity::Idle,
        };
        self.0.processors.borrow().iter().map(activity).collect()
    }

    pub fn count(&self) -> u16 {
        self.0.processors.borrow().len() as u16
    }

    pub fn counters(&self) -> ProcessorCounters {
        self.0.counters.get()
    }

    /// How long a processor has worked so far, as of its last change.
    pub fn busy(&self, processor: ProcessorId) -> Duration {
        self.with(processor, |one| one.busy)
    }

    /// Interrupts a processor: its thread is suspended for the handler's time, then `effect` happens.
    pub fn interrupt(&self, processor: ProcessorId, handler: Duration, effect: Effect) {
        let now = self.0.time.now();
        let running = self.with(processor, |one| one.running);
        self.count_up(|counters| match running {
            Some(_) => counters.interrupts_busy += 1,
            None => counters.interrupts_idle += 1,
        });
        self.pause(processor);
        let end = self.with(processor, |one| {
            one.handlers_until = one.handlers_until.max(now) + handler;
            one.busy += handler;
            one.handlers_until
        });
        if let Some(thread) = running
            && self.entry(thread, |entry| entry.state) == State::Works
        {
            self.go_on(processor, thread);
        }
        let slot = self.0.interrupts.borrow_mut().insert((processor, effect));
        self.signal(end, INTERRUPT, slot as u32, 0);
    }

    /// Wakes a thread, or cancels its next sleep; `on` is the processor where this happens.
    pub fn wake(&self, thread: ThreadId, on: Option<ProcessorId>) {
        if self.entry(thread, |entry| entry.state) == State::Asleep {
            self.able(thread, on);
        } else {
            self.entry(thread, |entry| entry.woken = true);
        }
    }

    fn able(&self, thread: ThreadId, on: Option<ProcessorId>) {
        self.entry(thread, |entry| entry.state = State::Able);
        let placement = self.0.scheduler.borrow_mut().on_ready(self.0.time.now(), thread, on);
        self.place(thread, placement);
    }

    fn place(&self, thread: ThreadId, placement: Placement) {
        let now = self.0.time.now();
        match placement {
            Placement::Dispatch(processor) => self.run(processor, thread),
            Placement::Look(processor) => self.look(processor),
            Placement::Tick(processor) => self.look_at(processor, self.next_tick(now)),
            Placement::Queued => {
                for number in 0..self.count() {
                    self.look_after_slice(ProcessorId(number));
                }
            }
        }
    }

    /// The processor decides at the end of its slice whether to continue, or, after that, at its next clock tick.
    fn look_after_slice(&self, processor: ProcessorId) {
        let now = self.0.time.now();
        let end = self.with(processor, |one| one.slice_end);
        self.look_at(processor, if end > now { end } else { self.next_tick(now) });
    }

    fn run(&self, processor: ProcessorId, thread: ThreadId) {
        let (now, Costs { dispatch, migration, .. }) = (self.0.time.now(), self.0.costs);
        let slice = self.0.scheduler.borrow().slice();
        let moves = self.entry(thread, |entry| {
            let moves = entry.last.is_some_and(|last| last != processor);
            entry.left += if moves { dispatch + migration } else { dispatch };
            entry.state = State::Works;
            (entry.on, entry.last) = (Some(processor), Some(processor));
            moves
        });
        self.count_up(|counters| {
            counters.dispatches += 1;
            counters.migrations += u64::from(moves);
        });
        self.with(processor, |one| {
            one.running = Some(thread);
            one.slice_end = self.tick_from(now + slice);
        });
        if self.0.scheduler.borrow().waits() {
            self.look_after_slice(processor);
        }
        self.go_on(processor, thread);
    }

    /// The processor's thread works from now on, or from the end of interrupt handlers.
    fn go_on(&self, processor: ProcessorId, thread: ThreadId) {
        let (now, left) = (self.0.time.now(), self.entry(thread, |entry| entry.left));
        let (end, generation) = self.with(processor, |one| {
            one.since = one.handlers_until.max(now);
            one.generation = one.generation.wrapping_add(1);
            (one.since + left, one.generation)
        });
        self.signal(end, DONE, u32::from(processor.0), generation);
    }

    /// Accounts for the work of the processor's thread; cancels its end signal.
    fn pause(&self, processor: ProcessorId) {
        let now = self.0.time.now();
        let (running, worked) = self.with(processor, |one| {
            let worked = now - one.since;
            one.since = one.since.max(now);
            one.generation = one.generation.wrapping_add(1);
            (one.running, worked)
        });
        let Some(thread) = running else { return };
        let works = self.entry(thread, |entry| {
            entry.left = entry.left.saturating_sub(worked);
            entry.state == State::Works
        });
        if works && !worked.is_zero() {
            self.with(processor, |one| one.busy += worked);
            self.0.scheduler.borrow_mut().on_used(now, thread, worked);
        }
    }

    /// The processor has lost its thread and takes another.
    fn take_next(&self, processor: ProcessorId) {
        self.with(processor, |one| {
            one.running = None;
            one.generation = one.generation.wrapping_add(1);
        });
        let next = self.0.scheduler.borrow_mut().next(self.0.time.now(), processor);
        if let Some(thread) = next {
            self.run(processor, thread);
        }
    }

    /// The processor preempts its thread.
    fn stop(&self, processor: ProcessorId, thread: ThreadId) {
        self.count_up(|counters| counters.stops += 1);
        self.pause(processor);
        self.entry(thread, |entry| (entry.on, entry.state) = (None, State::Able));
        self.take_next(processor);
        let placement = self.0.scheduler.borrow_mut().on_stopped(self.0.time.now(), thread, processor);
        self.place(thread, placement);
    }

    /// The processor checks whether to preempt its thread, or, when idle, whether one can run.
    fn look(&self, processor: ProcessorId) {
        let now = self.0.time.now();
        let one = self.with(processor, |one| *one);
        if one.handlers_until > now {
            return;
        }
        let Some(thread) = one.running else {
            let woken = self.0.scheduler.borrow_mut().wake(now, processor);
            if let Some(thread) = woken {
                self.run(processor, thread);
            }
            return;
        };
        let can_stop = self.entry(thread, |entry| entry.user && entry.state == State::Works);
        if can_stop {
            self.pause(processor);
            if self.stops(processor, thread) {
                self.stop(processor, thread);
                return;
            }
            self.go_on(processor, thread);
        }
        if self.0.scheduler.borrow().waits() {
            self.look_after_slice(processor);
        }
    }

    fn stops(&self, processor: ProcessorId, thread: ThreadId) -> bool {
        let slice_is_over = self.with(processor, |one| one.slice_end) <= self.0.time.now();
        self.0.scheduler.borrow().stops(processor, thread, slice_is_over)
    }

    /// The thread's work is done: its task continues.
    fn done(&self, processor: ProcessorId) {
        self.pause(processor);
        let Some(thread) = self.with(processor, |one| one.running) else { return };
        let waiter = self.entry(thread, |entry| {
            entry.state = State::Acts;
            entry.waiter.take()
        });
        if let Some(waiter) = waiter {
            self.0.time.wake(waiter);
        }
    }

    fn look_at(&self, processor: ProcessorId, then: Instant) {
        let planned = self.with(processor, |one| one.look_at);
        if planned.is_none_or(|planned| then < planned) {
            self.with(processor, |one| one.look_at = Some(then));
            self.signal(then, LOOK, u32::from(processor.0), 0);
        }
    }

    fn next_tick(&self, after: Instant) -> Instant {
        self.tick_from(Instant::from_ns(after.ns() + 1))
    }

    fn tick_from(&self, then: Instant) -> Instant {
        let tick = self.0.costs.tick.as_nanos().max(1) as u64;
        Instant::from_ns(then.ns().div_ceil(tick) * tick)
    }

    fn signal(&self, then: Instant, kind: u64, which: u32, generation: u32) {
        self.0.signals.at(then, kind << 56 | u64::from(which) << 32 | u64::from(generation));
    }

    fn with<T>(&self, processor: ProcessorId, change: impl FnOnce(&mut Processor) -> T) -> T {
        change(&mut self.0.processors.borrow_mut()[usize::from(processor.0)])
    }

    fn entry<T>(&self, thread: ThreadId, change: impl FnOnce(&mut Entry) -> T) -> T {
        change(&mut self.0.threads.borrow_mut()[thread.0 as usize])
    }

    fn count_up(&self, change: impl FnOnce(&mut ProcessorCounters)) {
        let mut counters = self.0.counters.get();
        change(&mut counters);
        self.0.counters.set(counters);
    }
}

impl Handler for Processors {
    fn on_signal(&self, token: u64) {
        let (kind, which, generation) = (token >> 56, (token >> 32) as u32 & 0xff_ffff, token as u32);
        let processor = ProcessorId(which as u16);
        match kind {
            DONE if self.with(processor, |one| one.generation) == generation => self.done(processor),
            LOOK => {
                let now = self.0.time.now();
                if self.with(processor, |one| one.look_at) == Some(now) {
                    self.with(processor, |one| one.look_at = None);
                    self.look(processor);
                }
            }
            INTERRUPT => {
                let (processor, effect) = self.0.interrupts.borrow_mut().remove(which as usize);
                effect(self, processor);
                self.look(processor);
            }
            WAKE => self.wake(ThreadId(which), Some(ProcessorId(generation as u16))),
            _ => (),
        }
    }
}

#[cfg(test)]
pub mod tests;
