//! What tasks of a simulated machine wait for, other than time: a resource, an answer, a message, a change.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use policy::unit::Instant;

use super::{Virtual, WaiterId};

/// Wakes all waiters, which check their conditions.
#[derive(Clone)]
pub struct Gate(Rc<GateState>);

struct GateState {
    time: Virtual,
    openings: Cell<u64>,
    waiting: RefCell<Vec<WaiterId>>,
}

impl Gate {
    pub fn new(time: &Virtual) -> Self {
        Gate(Rc::new(GateState { time: time.clone(), openings: Cell::new(0), waiting: RefCell::default() }))
    }

    /// Wakes the present waiters.
    pub fn open(&self) {
        self.0.openings.set(self.0.openings.get() + 1);
        for waiter in self.0.waiting.borrow_mut().drain(..) {
            self.0.time.wake(waiter);
        }
    }

    /// Waits for the next opening.
    pub async fn wait(&self) {
        let before = self.0.openings.get();
        let mut queued = false;
        poll_fn(|_| {
            if self.0.openings.get() != before {
                return Poll::Ready(());
            }
            if !std::mem::replace(&mut queued, true) {
                self.0.waiting.borrow_mut().push(self.0.time.current());
            }
            Poll::Pending
        })
        .await;
    }

    /// Waits for the next opening, and opens it itself at `deadline`.
    pub async fn wait_until(&self, deadline: Instant) {
        let gate = self.clone();
        self.0.time.spawn(async move {
            gate.0.time.sleep_until(deadline).await;
            gate.open();
        });
        self.wait().await;
    }

    /// Waits until `condition` holds; checked now and at each opening.
    pub async fn until(&self, mut condition: impl FnMut() -> bool) {
        while !condition() {
            self.wait().await;
        }
    }
}

/// A resource of several units, granted in order of request: a lock, a bus, a processor without time slices.
#[derive(Clone)]
pub struct Resource(Rc<ResourceState>);

struct ResourceState {
    time: Virtual,
    free: Cell<u32>,
    waiting: RefCell<VecDeque<Rc<Grant>>>,
    busy: Cell<Duration>,
    waited: Cell<Duration>,
}

struct Grant {
    waiter: WaiterId,
    given: Cell<bool>,
}

/// A unit of a resource, released when dropped.
pub struct Held {
    resource: Rc<ResourceState>,
    since: Instant,
}

impl Resource {
    pub fn new(time: &Virtual, count: u32) -> Self {
        Resource(Rc::new(ResourceState {
            time: time.clone(),
            free: Cell::new(count),
            waiting: RefCell::default(),
            busy: Cell::default(),
            waited: Cell::default(),
        }))
    }

    /// Waits for one unit.
    pub async fn acquire(&self) -> Held {
        let state = &self.0;
        let requested = state.time.now();
        if state.free.get() > 0 {
            state.free.set(state.free.get() - 1);
        } else {
            let grant = Rc::new(Grant { waiter: state.time.current(), given: Cell::new(false) });
            state.waiting.borrow_mut().push_back(Rc::clone(&grant));
            poll_fn(|_| if grant.given.get() { Poll::Ready(()) } else { Poll::Pending }).await;
            state.waited.set(state.waited.get() + (state.time.now() - requested));
        }
        Held { resource: Rc::clone(state), since: state.time.now() }
    }

    /// Waits for one unit and uses it for that long.
    pub async fn serve(&self, time: Duration) {
        let held = self.acquire().await;
        self.0.time.sleep(time).await;
        drop(held);
    }

    /// Sum of the times that units were held, ended uses only.
    pub fn busy(&self) -> Duration {
        self.0.busy.get()
    }

    /// Sum of the times that tasks waited for it.
    pub fn waited(&self) -> Duration {
        self.0.waited.get()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let state = &self.resource;
        state.busy.set(state.busy.get() + (state.time.now() - self.since));
        match state.waiting.borrow_mut().pop_front() {
            Some(next) => {
                next.given.set(true);
                state.time.wake(next.waiter);
            }
            None => state.free.set(state.free.get() + 1),
        }
    }
}

/// An answer given once; any number of tasks may wait for it.
#[derive(Clone)]
pub struct Answer<T>(Rc<(RefCell<Option<T>>, Gate)>);

impl<T: Clone> Answer<T> {
    pub fn new(time: &Virtual) -> Self {
        Answer(Rc::new((RefCell::new(None), Gate::new(time))))
    }

    /// Starts a task whose result is the answer.
    pub fn of(time: &Virtual, work: impl Future<Output = T> + 'static) -> Self
    where
        T: 'static,
    {
        let answer = Answer::new(time);
        let given = answer.clone();
        time.spawn(async move { given.give(work.await) });
        answer
    }

    pub fn give(&self, value: T) {
        *self.0.0.borrow_mut() = Some(value);
        self.0.1.open();
    }

    pub fn is_given(&self) -> bool {
        self.0.0.borrow().is_some()
    }

    pub async fn wait(&self) -> T {
        loop {
            if let Some(value) = self.0.0.borrow().clone() {
                return value;
            }
            self.0.1.wait().await;
        }
    }
}

/// Messages in order; each goes to one waiter.
#[derive(Clone)]
pub struct Mailbox<T>(Rc<(RefCell<VecDeque<T>>, Gate)>);

impl<T> Mailbox<T> {
    pub fn new(time: &Virtual) -> Self {
        Mailbox(Rc::new((RefCell::default(), Gate::new(time))))
    }

    pub fn send(&self, message: T) {
        self.0.0.borrow_mut().push_back(message);
        self.0.1.open();
    }

    /// Takes a message, if any.
    pub fn try_receive(&self) -> Option<T> {
        self.0.0.borrow_mut().pop_front()
    }

    pub async fn receive(&self) -> T {
        loop {
            if let Some(message) = self.try_receive() {
                return message;
            }
            self.0.1.wait().await;
        }
    }

    pub fn len(&self) -> usize {
        self.0.0.borrow().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::super::Simulation;
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_resource_is_given_out_in_order_of_asking_and_knows_how_long_it_was_held() {
        let run = Simulation::new(1);
        let bus = Resource::new(&run, 1);
        let ends = Rc::new(RefCell::new(Vec::new()));
        for name in 0..3 {
            let (time, bus, ends) = (run.clone(), bus.clone(), Rc::clone(&ends));
            run.spawn(async move {
                bus.serve(ms(2)).await;
                ends.borrow_mut().push((name, time.now()));
            });
        }
        run.run();
        let at = |time| Instant::ZERO + ms(time);
        assert_eq!(*ends.borrow(), [(0, at(2)), (1, at(4)), (2, at(6))]);
        assert_eq!((bus.busy(), bus.waited()), (ms(6), ms(6)));
    }

    #[test]
    fn a_message_goes_to_one_receiver_and_an_answer_to_all() {
        let run = Simulation::new(1);
        let (mailbox, answer) = (Mailbox::new(&run), Answer::new(&run));
        let seen = Rc::new(RefCell::new(Vec::new()));
        for name in ["a", "b"] {
            let (mailbox, answer, seen) = (mailbox.clone(), answer.clone(), Rc::clone(&seen));
            run.spawn(async move {
                let message: u32 = mailbox.receive().await;
                let word: &str = answer.wait().await;
                seen.borrow_mut().push((name, message, word));
            });
        }
        run.run();
        mailbox.send(1);
        mailbox.send(2);
        run.run();
        assert!(mailbox.is_empty() && seen.borrow().is_empty());
        answer.give("now");
        run.run();
        assert_eq!(*seen.borrow(), [("a", 1, "now"), ("b", 2, "now")]);
    }

    #[test]
    fn a_waiter_for_a_condition_looks_whenever_the_gate_opens() {
        let run = Simulation::new(1);
        let (gate, count, done) = (Gate::new(&run), Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        let (waits, counted, ended) = (gate.clone(), Rc::clone(&count), Rc::clone(&done));
        run.spawn(async move {
            waits.until(|| counted.get() == 2).await;
            ended.set(true);
        });
        for _ in 0..2 {
            run.run();
            assert!(!done.get());
            count.set(count.get() + 1);
            gate.open();
        }
        run.run();
        assert!(done.get());
    }
}
