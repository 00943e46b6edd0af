//! Whether it is worth trying to execute calls of a function at once.

use std::sync::atomic::{AtomicU32, Ordering};

/// After calls of a function that had to be given up, this many are not tried, at most.
const UNTRIED_MAX: u32 = 64;

/// Whether calls of a function are worth trying at once.
#[derive(Default)]
pub(super) struct Attempts {
    /// Calls that are not tried, and how many there will be after the next one that is given up.
    untried: AtomicU32,
    next: AtomicU32,
}

impl Attempts {
    /// `comes_again`: if not executed, the call is asked about once more, on the general path. Races count a call too much or
    /// too little, which does not matter.
    pub(super) fn is_worth(&self, comes_again: bool) -> bool {
        match self.untried.load(Ordering::Relaxed) {
            0 => true,
            untried => {
                self.untried.store(untried - u32::from(!comes_again), Ordering::Relaxed);
                false
            }
        }
    }

    pub(super) fn succeeded(&self) {
        if self.next.load(Ordering::Relaxed) > 0 {
            self.next.store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn given_up(&self, comes_again: bool) {
        let next = self.next.load(Ordering::Relaxed);
        self.untried.store(next + u32::from(comes_again), Ordering::Relaxed);
        self.next.store((2 * next + 1).min(UNTRIED_MAX), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of calls that are given up each time, how many of a thousand are tried.
    fn tried(is_in_block: bool) -> u32 {
        let (attempts, mut tried) = (Attempts::default(), 0);
        for _ in 0..1000 {
            let ways: &[bool] = if is_in_block { &[false] } else { &[true, false] };
            for &comes_again in ways {
                if attempts.is_worth(comes_again) {
                    tried += 1;
                    attempts.given_up(comes_again);
                }
            }
        }
        tried
    }

    #[test]
    fn calls_that_are_given_up_each_time_are_seldom_tried_in_blocks_and_outside() {
        assert_eq!([tried(true), tried(false)], [21, 21]);
    }

    #[test]
    fn after_a_success_the_next_call_is_tried() {
        let attempts = Attempts::default();
        (0..5).for_each(|_| attempts.given_up(true));
        while !attempts.is_worth(false) {}
        attempts.succeeded();
        assert!(attempts.is_worth(true));
        attempts.given_up(true);
        assert!(!attempts.is_worth(false), "the call that was given up is not tried once more");
        assert!(attempts.is_worth(true), "one that is given up now and then costs no others");
    }
}
