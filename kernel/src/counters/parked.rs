//! The idle time of a processor that is parked: it grows without the processor, which may sleep for hours.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Counter;

/// Set while the processor is parked. The other bits are then the time at which it parked, less what it had counted until
/// then: one word, so that a reader never counts a wait twice or not at all.
const PARKED: u64 = 1 << 63;

impl Counter {
    /// Counts all time from `at` on. Ticks.
    #[inline]
    pub(super) fn park(&self, at: u64) {
        self.0.store(PARKED | at.wrapping_sub(self.get()), Ordering::Relaxed);
    }

    /// Counts until `at`, and stops.
    #[inline]
    pub(super) fn wake(&self, at: u64) {
        self.0.store(at.wrapping_sub(self.get() & !PARKED), Ordering::Relaxed);
    }

    /// What was counted until `now`.
    fn get_at(&self, now: u64) -> u64 {
        let word = self.get();
        if word & PARKED == 0 { word } else { now.saturating_sub(word & !PARKED) }
    }
}

/// What was last read of such a counter.
#[derive(Default)]
pub(super) struct LastRead(AtomicU64);

impl LastRead {
    /// Reads `counter` at `now`, which was read before. Never less than before: who wakes has read the time already, and
    /// clocks of cores differ by some ticks.
    pub(super) fn read(&self, counter: &Counter, now: u64) -> u64 {
        let read = counter.get_at(now);
        self.0.fetch_max(read, Ordering::Relaxed).max(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_grows_while_a_processor_is_parked_and_never_falls() {
        let (counter, last) = (Counter::default(), LastRead::default());
        counter.add(30);
        assert_eq!(last.read(&counter, 1000), 30);
        counter.park(1000);
        assert_eq!(last.read(&counter, 999), 30, "another core's clock");
        assert_eq!(last.read(&counter, 1000), 30);
        assert_eq!(last.read(&counter, 1500), 530);
        // It has read the time and not stored it yet.
        assert_eq!(last.read(&counter, 1607), 637);
        counter.wake(1600);
        assert_eq!(last.read(&counter, 1700), 637);
        counter.add(5);
        assert_eq!(last.read(&counter, 1800), 637);
        counter.park(2000);
        assert_eq!(last.read(&counter, 2001), 637);
        assert_eq!(last.read(&counter, 3000), 1635);
        counter.wake(4000);
        assert_eq!(last.read(&counter, 5000), 2635, "no wait is counted twice");
    }
}
