//! A lock that counts acquisitions and contention (MP, future work: lock efficiency).

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::Counter;

/// The holder counts acquisitions, so that counter needs no protection; it lies next to the lock, on a cache line that
/// the holder has anyway. Contention is counted before waiting.
#[derive(Default)]
pub(crate) struct CountedMutex<T> {
    mutex: Mutex<T>,
    taken: Counter,
    contended: AtomicU64,
}

pub(crate) type CountedGuard<'a, T> = MutexGuard<'a, T>;

impl<T> CountedMutex<T> {
    pub(crate) fn new(value: T) -> Self {
        CountedMutex { mutex: Mutex::new(value), taken: Counter::default(), contended: AtomicU64::new(0) }
    }

    #[inline]
    pub(crate) fn lock(&self) -> CountedGuard<'_, T> {
        let guard = match self.mutex.try_lock() {
            Some(guard) => guard,
            None => {
                self.contended.fetch_add(1, Ordering::Relaxed);
                self.mutex.lock()
            }
        };
        self.taken.add(1);
        guard
    }

    pub(crate) fn read(&self) -> LockReading {
        LockReading { taken: self.taken.get(), contended: self.contended.load(Ordering::Relaxed) }
    }
}

/// Use of one or several locks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockReading {
    pub taken: u64,
    /// Acquisitions that had to wait.
    pub contended: u64,
}

impl std::iter::Sum for LockReading {
    fn sum<I: Iterator<Item = LockReading>>(readings: I) -> Self {
        readings.fold(LockReading::default(), |sum, more| LockReading {
            taken: sum.taken + more.taken,
            contended: sum.contended + more.contended,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_was_not_free_is_counted_as_contended_and_a_free_one_is_not() {
        let lock = CountedMutex::new(0);
        drop(lock.lock());
        assert_eq!(lock.read(), LockReading { taken: 1, contended: 0 });
        std::thread::scope(|scope| {
            let held = lock.lock();
            scope.spawn(|| *lock.lock() += 1);
            while lock.read().contended == 0 {
                std::thread::yield_now();
            }
            drop(held);
        });
        assert_eq!(lock.read(), LockReading { taken: 3, contended: 1 });
        assert_eq!(*lock.lock(), 1);
    }
}
