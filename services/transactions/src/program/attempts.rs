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
    /// Races count a call too much or too little, which does not matter.
    pub(super) fn is_worth(&self) -> bool {
        match self.untried.load(Ordering::Relaxed) {
            0 => true,
            untried => {
                self.untried.store(untried - 1, Ordering::Relaxed);
                false
            }
        }
    }

    pub(super) fn succeeded(&self) {
        if self.next.load(Ordering::Relaxed) > 0 {
            self.next.store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn given_up(&self) {
        let next = self.next.load(Ordering::Relaxed);
        // It is this call that comes again first, on the general path.
        self.untried.store(next + 1, Ordering::Relaxed);
        self.next.store((2 * next + 1).min(UNTRIED_MAX), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_are_given_up_each_time_are_seldom_tried() {
        let attempts = Attempts::default();
        let mut tried = 0;
        for _ in 0..1000 {
            if attempts.is_worth() {
                tried += 1;
                attempts.given_up();
            }
        }
        assert!((10..30).contains(&tried), "{tried}");
        while !attempts.is_worth() {}
        attempts.succeeded();
        assert!(attempts.is_worth(), "after a success the next is tried");
        attempts.given_up();
        assert!(!attempts.is_worth(), "the call that was given up is not tried once more");
        assert!(attempts.is_worth(), "one that is given up now and then costs no others");
    }
}
