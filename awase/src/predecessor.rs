//! The server before this one. The kernel tears down the rings of a killed process after its death, and its files and
//! sockets stay in use until then: a supervisor that restarts the server at once must not fail for that. The locks are
//! held past the last write to the disk, those on directories by the rings (`machine`), so that no late write can follow once
//! the successor has them.

use std::thread;
use std::time::{Duration, Instant};

/// Tearing down a ring takes milliseconds, or as long as its requests on disks.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// There is no notification when a lock or an address becomes free, so it is polled.
const RETRY: Duration = Duration::from_millis(5);

/// Until when to retry, for all files and sockets together.
#[derive(Clone, Copy)]
pub struct Deadline {
    end: Instant,
}

impl Deadline {
    /// For a server that starts now.
    pub fn for_takeover() -> Deadline {
        Deadline { end: Instant::now() + WAIT_MAX }
    }

    /// Does not retry.
    pub fn passed() -> Deadline {
        Deadline { end: Instant::now() }
    }

    /// Retries while the error `is_busy`.
    ///
    /// # Errors
    /// Any other error at once; after the deadline, that one.
    pub fn retry<T, E>(self, mut attempt: impl FnMut() -> Result<T, E>, is_busy: impl Fn(&E) -> bool) -> Result<T, E> {
        loop {
            match attempt() {
                Err(error) if is_busy(&error) && Instant::now() < self.end => thread::sleep(RETRY),
                result => return result,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_of_use_are_retried() {
        let mut left = 3;
        let taken = Deadline::for_takeover().retry(
            || {
                left -= 1;
                if left == 0 { Ok("free") } else { Err("in use") }
            },
            |error| *error == "in use",
        );
        assert_eq!(taken, Ok("free"));
        let mut attempts = 0;
        let refused: Result<(), _> = Deadline::for_takeover().retry(
            || {
                attempts += 1;
                Err("not permitted")
            },
            |error| *error == "in use",
        );
        assert_eq!((refused, attempts), (Err("not permitted"), 1));
    }

    #[test]
    fn after_the_deadline_the_error_is_returned() {
        let refused: Result<(), _> = Deadline::passed().retry(|| Err("in use"), |_| true);
        assert_eq!(refused, Err("in use"));
    }
}
