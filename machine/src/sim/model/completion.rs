//! How a device's completion gets to a processor: [`policy::delivery`] on interrupts that take time.

use std::time::Duration;

use policy::delivery::{Method, Target};
use policy::unit::ProcessorId;

use super::Virtual;
use super::lock::SpinLock;
use super::processors::{Effect, Processors, ThreadId};

/// What an interrupt costs the processor that takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// To save what runs, find out what has happened, and go back.
    pub entry: Duration,
    /// To complete the request and wake who waits for it.
    pub handler: Duration,
    /// Between the first and the last of several processors that an interrupt goes to, at most.
    pub spread: Duration,
}

/// Delivers completions. Clones are the same.
#[derive(Clone)]
pub struct Completions {
    time: Virtual,
    processors: Processors,
    method: Method,
    costs: Costs,
    lock: SpinLock,
}

impl Completions {
    /// Completions go to `processors` by `method`.
    pub fn new(time: &Virtual, processors: &Processors, method: Method, costs: Costs) -> Self {
        let (time, processors) = (time.clone(), processors.clone());
        Completions { lock: SpinLock::new(&time), time, processors, method, costs }
    }

    /// What `thread` waits for, which `initiator` has started, is done.
    pub fn deliver(&self, thread: ThreadId, initiator: ProcessorId) {
        let Costs { entry, handler, .. } = self.costs;
        match self.method.target(initiator, &self.processors.activities()) {
            Target::One(processor) => self.processors.interrupt(processor, entry + handler, wakes(thread)),
            Target::All => self.deliver_to_all(thread),
        }
    }

    /// All go for the lock. Who gets it first does the work; the others find nothing left to do.
    fn deliver_to_all(&self, thread: ThreadId) {
        let Costs { entry, handler, spread } = self.costs;
        let count = self.processors.count();
        let spread_ns = spread.as_nanos() as u64;
        let delays: Vec<u64> = (0..count).map(|_| self.time.below(spread_ns.max(1))).collect();
        let first = (0..count).min_by_key(|processor| delays[usize::from(*processor)]).unwrap_or(0);
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
