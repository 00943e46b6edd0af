//! How a device's completion reaches a processor: [`policy::delivery`] on interrupts that take time.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use policy::delivery::{Method, Target};
use policy::unit::ProcessorId;

use super::Virtual;
use super::lock::SpinLock;
use super::processors::{Effect, Processors, ThreadId};

/// Cost of an interrupt for the processor that takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// To save state, find the cause, and return.
    pub entry: Duration,
    /// To complete the request and wake its waiter.
    pub handler: Duration,
    /// Delay between the first and the last of several interrupted processors, at most.
    pub spread: Duration,
    /// More of the handler on another processor than the initiator, whose cache has the request.
    pub remote: Duration,
}

/// Delivers completions. Clones are the same.
#[derive(Clone)]
pub struct Completions {
    time: Virtual,
    processors: Processors,
    method: Method,
    costs: Costs,
    lock: SpinLock,
    handled: Rc<Cell<Handled>>,
}

/// Completions so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handled {
    pub all: u64,
    /// Of them, those of which the initiator's cache still had the request.
    pub cached: u64,
}

impl Completions {
    /// Completions go to `processors` by `method`.
    pub fn new(time: &Virtual, processors: &Processors, method: Method, costs: Costs) -> Self {
        let (time, processors) = (time.clone(), processors.clone());
        Completions { lock: SpinLock::new(&time), time, processors, method, costs, handled: Rc::default() }
    }

    /// Completes a request of `initiator` that `thread` waits for.
    pub fn deliver(&self, thread: ThreadId, initiator: ProcessorId) {
        let Costs { entry, handler, remote, .. } = self.costs;
        match self.method.target(initiator, &self.processors.activities()) {
            Target::One(processor) => {
                self.count(processor == initiator);
                let fetched = if processor == initiator { Duration::ZERO } else { remote };
                self.processors.interrupt(processor, entry + handler + fetched, wakes(thread));
            }
            Target::All => self.deliver_to_all(thread, initiator),
        }
    }

    pub fn handled(&self) -> Handled {
        self.handled.get()
    }

    fn count(&self, is_cached: bool) {
        let Handled { all, cached } = self.handled.get();
        self.handled.set(Handled { all: all + 1, cached: cached + u64::from(is_cached) });
    }

    /// All contend for the lock. The first one does the work; the others find nothing left to do.
    fn deliver_to_all(&self, thread: ThreadId, initiator: ProcessorId) {
        let Costs { entry, handler, spread, .. } = self.costs;
        let count = self.processors.count();
        let spread_ns = spread.as_nanos() as u64;
        let delays: Vec<u64> = (0..count).map(|_| self.time.below(spread_ns.max(1))).collect();
        let first = (0..count).min_by_key(|processor| delays[usize::from(*processor)]).unwrap_or(0);
        self.count(ProcessorId(first) == initiator);
        for (number, delay) in (0..count).zip(&delays) {
            let begins = entry + Duration::from_nanos(*delay);
            if number == first {
                self.lock.try_hold(begins + handler);
                self.processors.interrupt(ProcessorId(number), begins + handler, wakes(thread));
            } else {
                self.processors.interrupt(ProcessorId(number), begins, Box::new(|_, _| ()));
            }
        }
    }
}

fn wakes(thread: ThreadId) -> Effect {
    Box::new(move |processors, on| processors.wake(thread, Some(on)))
}

#[cfg(test)]
mod tests {
    use super::super::processors::ProcessorCounters;
    use super::super::processors::tests::{Scene, ms};
    use super::*;

    /// One of three processors runs a thread to its end; another thread waits. Returns the end of each in milliseconds,
    /// and the number of processors that were interrupted.
    fn delivered(method: Method) -> (u64, u64, u64) {
        let scene = Scene::of_mach(3, false);
        let costs = Costs { entry: ms(1), handler: ms(2), spread: Duration::ZERO, remote: Duration::ZERO };
        let completions = Completions::new(&scene.run, &scene.processors, method, costs);
        scene.compute(1, ms(50));
        let note = scene.note();
        let waits = scene.processors.start(move |thread| async move {
            thread.sleep().await;
            note(1);
        });
        scene.run_for(ms(20));
        completions.deliver(waits, ProcessorId(2));
        scene.run.run();
        let handled = completions.handled();
        assert!(handled.all == 1 && (method != Method::Initiator || handled.cached == 1), "{handled:?}");
        let end = |of| scene.log.borrow().iter().find(|(name, _)| *name == of).map_or(0, |(_, end)| *end);
        let ProcessorCounters { interrupts_busy, interrupts_idle, .. } = scene.processors.counters();
        (end(0), end(1), interrupts_busy + interrupts_idle)
    }

    #[test]
    fn one_processor_takes_a_completion_and_its_running_thread_stands_still() {
        assert_eq!(delivered(Method::Initiator), (50, 23, 1));
        assert_eq!(delivered(Method::Idle), (50, 23, 1));
        assert_eq!(delivered(Method::Busiest), (53, 23, 1));
    }

    #[test]
    fn all_processors_are_interrupted_and_one_of_them_does_the_work() {
        let (computed, woke, interrupts) = delivered(Method::All);
        assert_eq!((woke, interrupts), (23, 3));
        assert!(computed > 50 && computed <= 53, "{computed}");
    }
}
