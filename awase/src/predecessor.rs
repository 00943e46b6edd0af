//! The server before this one. When it was killed, the kernel ends its rings a moment after it is gone, and what it had
//! open stays in use until then: a supervisor that restarts it at once must not fail for that. Its locks outlive its
//! last write to the disk, so whoever has them next meets no late write.

use std::thread;
use std::time::{Duration, Instant};

/// Ending a ring takes milliseconds, or as long as what is under way on its disks.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// Nobody is told when a lock or an address becomes free, so it is tried again.
const RETRY: Duration = Duration::from_millis(5);

/// How long is still waited for it, over all that it may have had.
#[derive(Clone, Copy)]
pub struct Patience {
    end: Instant,
}

impl Patience {
    /// For a server that starts now.
    pub fn new() -> Patience {
        Patience { end: Instant::now() + WAIT_MAX }
    }

    /// For who only looks.
    pub fn none() -> Patience {
        Patience { end: Instant::now() }
    }

    /// Tries again while the error says that somebody `is_using` it.
    ///
    /// # Errors
    /// Any other error, and that one when the time is over.
    pub fn retry<T, E>(self, mut attempt: impl FnMut() -> Result<T, E>, is_using: impl Fn(&E) -> bool) -> Result<T, E> {
        loop {
            match attempt() {
                Err(error) if is_using(&error) && Instant::now() < self.end => thread::sleep(RETRY),
                result => return result,
            }
        }
    }
}

impl Default for Patience {
    fn default() -> Self {
        Patience::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_becomes_free_is_taken_and_what_is_wrong_is_told_at_once() {
        let mut left = 3;
        let taken = Patience::new().retry(
            || {
                left -= 1;
                if left == 0 { Ok("free") } else { Err("in use") }
            },
            |error| *error == "in use",
        );
        assert_eq!(taken, Ok("free"));
        let mut attempts = 0;
        let refused: Result<(), _> = Patience::new().retry(
            || {
                attempts += 1;
                Err("not permitted")
            },
            |error| *error == "in use",
        );
        assert_eq!((refused, attempts), (Err("not permitted"), 1));
    }

    #[test]
    fn what_stays_in_use_is_told_at_the_end() {
        let refused: Result<(), _> = Patience::none().retry(|| Err("in use"), |_| true);
        assert_eq!(refused, Err("in use"));
    }
}
