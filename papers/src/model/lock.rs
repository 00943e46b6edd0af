//! A spin lock: a waiter occupies its processor.
//!
//! Granted in order of request, which is close to what a fair bus makes of Mach's `simple_lock`.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use policy::unit::Instant;

use super::Virtual;
use super::processors::Thread;

/// A spin lock. Clones are the same lock.
#[derive(Clone)]
pub struct SpinLock(Rc<State>);

struct State {
    time: Virtual,
    free_at: Cell<Instant>,
    spun: Cell<Duration>,
    tries: Cell<Tries>,
}

/// How often the lock was wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tries {
    pub all: u64,
    /// Of them, those that found it free.
    pub free: u64,
}

impl SpinLock {
    pub fn new(time: &Virtual) -> Self {
        SpinLock(Rc::new(State {
            time: time.clone(),
            free_at: Cell::default(),
            spun: Cell::default(),
            tries: Cell::default(),
        }))
    }

    /// The thread, in the kernel, takes the lock, holds it that long and releases it.
    pub async fn hold(&self, thread: &Thread, time: Duration) {
        let spins = self.reserve(time);
        thread.run_in_kernel(spins + time).await;
    }

    /// Takes it for an interrupt handler if it is free.
    pub fn try_hold(&self, time: Duration) -> bool {
        let is_free = self.0.free_at.get() <= self.0.time.now();
        if is_free {
            self.reserve(time);
        }
        is_free
    }

    /// Time that all processors have spun for it so far.
    pub fn spun(&self) -> Duration {
        self.0.spun.get()
    }

    pub fn tries(&self) -> Tries {
        self.0.tries.get()
    }

    fn reserve(&self, time: Duration) -> Duration {
        let State { time: clock, free_at, spun, tries } = &*self.0;
        let spins = free_at.get() - clock.now();
        let Tries { all, free } = tries.get();
        tries.set(Tries { all: all + 1, free: free + u64::from(spins.is_zero()) });
        free_at.set(free_at.get().max(clock.now()) + time);
        spun.set(spun.get() + spins);
        spins
    }
}

#[cfg(test)]
mod tests {
    use super::super::Simulation;
    use super::*;

    #[test]
    fn a_later_processor_spins_until_the_lock_is_free() {
        let run = Simulation::new(1);
        let lock = SpinLock::new(&run);
        let ms = Duration::from_millis;
        assert!(lock.try_hold(ms(5)));
        assert!(!lock.try_hold(ms(5)), "it is held");
        run.run_until(Instant::ZERO + ms(2));
        assert_eq!(lock.reserve(ms(1)), ms(3));
        assert_eq!((lock.spun(), lock.tries()), (ms(3), Tries { all: 2, free: 1 }));
        run.run_until(Instant::ZERO + ms(6));
        assert!(lock.try_hold(ms(1)));
    }
}
