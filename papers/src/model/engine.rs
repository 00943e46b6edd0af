//! Virtual time: the agenda of future events, and the tasks that wait for them.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::future::{Future, poll_fn};
use std::ops::Deref;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use policy::unit::Instant;
use slab::Slab;

use sim::Random;

/// A model that receives its own scheduled signals, without a task.
pub trait Handler {
    /// The time of a signal with this token has come. Signals are never cancelled: the model must recognise a stale one
    /// by its token.
    fn on_signal(&self, token: u64);
}

/// Schedules the signals of a handler.
#[derive(Clone)]
pub struct Signals {
    time: Virtual,
    handler: u32,
}

impl Signals {
    /// Signals at `then`, or as the next event when that has passed.
    pub fn at(&self, then: Instant, token: u64) {
        self.time.put(then.max(self.time.now()), What::Signal { handler: self.handler, token });
    }
}

/// A task that waits. Wake-ups may be spurious.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WaiterId {
    index: u32,
    generation: u32,
}

/// One run of a simulated machine. Dropping it ends it, with all of its tasks.
pub struct Simulation(Virtual);

/// What tasks and models of a run share: its time, agenda and random numbers.
#[derive(Clone)]
pub struct Virtual(Rc<Core>);

struct Core {
    now_ns: Cell<u64>,
    sequence: Cell<u64>,
    events: Cell<u64>,
    agenda: RefCell<BinaryHeap<Reverse<Entry>>>,
    ready: RefCell<VecDeque<WaiterId>>,
    running: Cell<Option<WaiterId>>,
    tasks: RefCell<Slab<Task>>,
    generation: Cell<u32>,
    handlers: RefCell<Vec<Option<Rc<dyn Handler>>>>,
    random: RefCell<Random>,
}

struct Task {
    generation: u32,
    /// Taken out while it runs.
    work: Option<Pin<Box<dyn Future<Output = ()>>>>,
}

/// Ordered by time, then by insertion.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    at_ns: u64,
    sequence: u64,
    what: What,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Wake(WaiterId),
    Signal { handler: u32, token: u64 },
}

impl Simulation {
    /// A run at time zero, whose random numbers follow from `seed`.
    pub fn new(seed: u64) -> Self {
        Simulation(Virtual(Rc::new(Core {
            now_ns: Cell::new(0),
            sequence: Cell::new(0),
            events: Cell::new(0),
            agenda: RefCell::default(),
            ready: RefCell::default(),
            running: Cell::new(None),
            tasks: RefCell::default(),
            generation: Cell::new(0),
            handlers: RefCell::default(),
            random: RefCell::new(Random::new(seed, 0)),
        })))
    }

    /// Runs until nothing is left to happen. A machine with daemons never gets there: see [`Simulation::run_while`].
    pub fn run(&self) {
        self.run_while(|| true);
    }

    /// Runs until virtual time would pass `end`, and leaves it there.
    pub fn run_until(&self, end: Instant) {
        let core = &self.0.0;
        self.run_while(|| core.agenda.borrow().peek().is_some_and(|Reverse(next)| next.at_ns <= end.ns()));
        core.now_ns.set(core.now_ns.get().max(end.ns()));
    }

    /// Runs while `go_on` returns true (called before every event) and something is left to happen.
    pub fn run_while(&self, mut go_on: impl FnMut() -> bool) {
        self.run_ready();
        while go_on() && self.step() {
            self.run_ready();
        }
    }

    /// Runs a task to its end, or to `end` at the latest. Returns its result.
    pub fn complete_by<T: 'static>(&self, end: Instant, work: impl Future<Output = T> + 'static) -> Option<T> {
        let result = Rc::new(RefCell::new(None));
        let output = Rc::clone(&result);
        self.spawn(async move {
            let done = work.await;
            *output.borrow_mut() = Some(done);
        });
        self.run_while(|| result.borrow().is_none() && self.now() < end);
        result.take()
    }

    /// Runs a task to its end. `None` if it waits for ever.
    pub fn complete<T: 'static>(&self, work: impl Future<Output = T> + 'static) -> Option<T> {
        self.complete_by(Instant::from_ns(u64::MAX), work)
    }

    /// Number of events so far: entries of the agenda, and tasks that others woke.
    pub fn events(&self) -> u64 {
        self.0.0.events.get()
    }

    fn step(&self) -> bool {
        let core = &self.0.0;
        let Some(Reverse(entry)) = core.agenda.borrow_mut().pop() else { return false };
        assert!(entry.at_ns >= core.now_ns.get(), "time runs forwards");
        core.now_ns.set(entry.at_ns);
        match entry.what {
            What::Wake(waiter) => self.turn(waiter),
            What::Signal { handler, token } => {
                core.events.set(core.events.get() + 1);
                let handler = core.handlers.borrow()[handler as usize].clone();
                if let Some(handler) = handler {
                    handler.on_signal(token);
                }
            }
        }
        true
    }

    fn run_ready(&self) {
        let core = &self.0.0;
        loop {
            let next = core.ready.borrow_mut().pop_front();
            let Some(waiter) = next else { return };
            self.turn(waiter);
        }
    }

    fn turn(&self, waiter: WaiterId) {
        let core = &self.0.0;
        core.events.set(core.events.get() + 1);
        let index = waiter.index as usize;
        let work = match core.tasks.borrow_mut().get_mut(index) {
            Some(task) if task.generation == waiter.generation => task.work.take(),
            _ => None,
        };
        let Some(mut work) = work else { return };
        core.running.set(Some(waiter));
        let polled = work.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        core.running.set(None);
        match polled {
            Poll::Pending => {
                if let Some(task) = core.tasks.borrow_mut().get_mut(index) {
                    task.work = Some(work);
                }
            }
            Poll::Ready(()) => {
                drop(work);
                core.tasks.borrow_mut().try_remove(index);
            }
        }
    }
}

impl Deref for Simulation {
    type Target = Virtual;
    fn deref(&self) -> &Virtual {
        &self.0
    }
}

impl Drop for Simulation {
    /// Breaks the cycle: tasks and models refer to the run that owns them.
    fn drop(&mut self) {
        let core = &self.0.0;
        let tasks = std::mem::take(&mut *core.tasks.borrow_mut());
        drop(tasks);
        let handlers = std::mem::take(&mut *core.handlers.borrow_mut());
        drop(handlers);
    }
}

impl Virtual {
    pub fn now(&self) -> Instant {
        Instant::from_ns(self.0.now_ns.get())
    }

    /// Starts a task. It first runs when the running one waits or ends.
    pub fn spawn(&self, work: impl Future<Output = ()> + 'static) {
        let generation = self.0.generation.get().wrapping_add(1);
        self.0.generation.set(generation);
        let index = self.0.tasks.borrow_mut().insert(Task { generation, work: Some(Box::pin(work)) });
        // A run has fewer tasks than 2^32.
        self.wake(WaiterId { index: index as u32, generation });
    }

    /// The running task.
    ///
    /// # Panics
    /// Outside of a task.
    pub fn current(&self) -> WaiterId {
        self.0.running.get().expect("only a task can wait")
    }

    /// Makes a task ready, after those that are ready already.
    pub fn wake(&self, waiter: WaiterId) {
        self.0.ready.borrow_mut().push_back(waiter);
    }

    /// Waits until `then`; not at all when that has passed.
    pub async fn sleep_until(&self, then: Instant) {
        let mut was_polled = false;
        poll_fn(|_| {
            if self.now() >= then {
                return Poll::Ready(());
            }
            if !std::mem::replace(&mut was_polled, true) {
                self.put(then, What::Wake(self.current()));
            }
            Poll::Pending
        })
        .await;
    }

    pub async fn sleep(&self, time: Duration) {
        self.sleep_until(self.now() + time).await;
    }

    /// Lets all other ready tasks run first.
    pub async fn yield_now(&self) {
        let mut yielded = false;
        poll_fn(|_| {
            if std::mem::replace(&mut yielded, true) {
                return Poll::Ready(());
            }
            self.wake(self.current());
            Poll::Pending
        })
        .await;
    }

    /// Makes a handler, given what schedules its signals.
    pub fn handled<H: Handler + 'static>(&self, make: impl FnOnce(Signals) -> H) -> Rc<H> {
        let index = self.0.handlers.borrow().len();
        self.0.handlers.borrow_mut().push(None);
        let handler = Rc::new(make(Signals { time: self.clone(), handler: index as u32 }));
        self.0.handlers.borrow_mut()[index] = Some(Rc::clone(&handler) as Rc<dyn Handler>);
        handler
    }

    /// A random number below `bound`, which is not 0.
    pub fn below(&self, bound: u64) -> u64 {
        self.0.random.borrow_mut().below(bound)
    }

    /// A random number from 0 to 1, 1 excluded.
    pub fn fraction(&self) -> f64 {
        (self.0.random.borrow_mut().next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn put(&self, then: Instant, what: What) {
        let sequence = self.0.sequence.get();
        self.0.sequence.set(sequence + 1);
        self.0.agenda.borrow_mut().push(Reverse(Entry { at_ns: then.ns(), sequence, what }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn tasks_run_in_order_of_time_and_then_of_their_start() {
        let run = Simulation::new(1);
        let seen = Rc::new(RefCell::new(Vec::new()));
        for (name, delay) in [("late", 5), ("first", 3), ("second", 3)] {
            let (time, seen) = (run.clone(), Rc::clone(&seen));
            run.spawn(async move {
                time.sleep(ms(delay)).await;
                seen.borrow_mut().push((name, time.now().ns() / 1_000_000));
            });
        }
        run.run();
        assert_eq!(*seen.borrow(), [("first", 3), ("second", 3), ("late", 5)]);
    }

    #[test]
    fn a_run_that_ends_frees_its_tasks_though_they_hold_on_to_it() {
        let alive = Rc::new(());
        let run = Simulation::new(1);
        let (time, held) = (run.clone(), Rc::clone(&alive));
        run.spawn(async move {
            loop {
                time.sleep(ms(1)).await;
                assert_eq!(Rc::strong_count(&held), 2);
            }
        });
        run.run_until(Instant::ZERO + ms(10));
        assert_eq!(run.now(), Instant::ZERO + ms(10));
        drop(run);
        assert_eq!(Rc::strong_count(&alive), 1);
    }

    #[test]
    fn a_task_that_was_woken_after_its_end_does_not_wake_its_successor() {
        let run = Simulation::new(1);
        let first = Rc::new(Cell::new(None));
        let (time, output) = (run.clone(), Rc::clone(&first));
        run.spawn(async move { output.set(Some(time.current())) });
        run.run();
        let turns = Rc::new(Cell::new(0));
        let counted = Rc::clone(&turns);
        run.spawn(poll_fn(move |_| {
            counted.set(counted.get() + 1);
            Poll::Pending
        }));
        run.wake(first.get().expect("it ran"));
        run.run();
        assert_eq!(turns.get(), 1);
    }

    #[test]
    fn signals_come_in_time_and_the_same_seed_draws_the_same() {
        struct Notes(RefCell<Vec<u64>>, Signals);
        impl Handler for Notes {
            fn on_signal(&self, token: u64) {
                self.0.borrow_mut().push(token);
            }
        }
        let run = Simulation::new(7);
        let notes = run.handled(|signals| Notes(RefCell::default(), signals));
        for token in [3, 1, 2] {
            notes.1.at(Instant::ZERO + ms(token), token);
        }
        run.run();
        assert_eq!(*notes.0.borrow(), [1, 2, 3]);
        let other = Simulation::new(7);
        assert_eq!(run.below(1 << 40), other.below(1 << 40));
        assert_eq!(run.fraction(), other.fraction());
    }
}
