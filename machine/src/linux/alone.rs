//! Whether a processor's request is the only one that was waited for of late.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use policy::unit::{Instant, ProcessorId};

/// Others are no longer there when none of their requests was seen for this time.
const FORGOTTEN: Duration = Duration::from_millis(10);

/// No processor.
const NOBODY: u32 = u32::MAX;

/// Which processor waited for requests last: one word for all, which a lone one only reads. In cache lines of its own, since
/// busy ones write it in turn.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct LastWaiter(AtomicU32);

impl Default for LastWaiter {
    fn default() -> Self {
        LastWaiter(AtomicU32::new(NOBODY))
    }
}

/// What one processor knows of others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Alone {
    /// It has seen others' requests before.
    until: Instant,
}

impl Default for Alone {
    fn default() -> Self {
        Alone { until: Instant::ZERO }
    }
}

impl Alone {
    /// `processor` begins to wait, while so many of its requests are in progress. Returns whether that is one, and no others were
    /// waited for of late.
    pub(super) fn is_alone(
        &mut self,
        last: &LastWaiter,
        processor: ProcessorId,
        requests: usize,
        now: Instant,
    ) -> bool {
        let number = u32::from(processor.0);
        let is_other = last.0.load(Ordering::Relaxed) != number;
        if is_other {
            last.0.store(number, Ordering::Relaxed);
        }
        if is_other || requests > 1 {
            self.until = now + FORGOTTEN;
        }
        now >= self.until
    }

    /// Whether the request that `processor` waited for last was alone.
    pub(super) fn was_alone(&self, last: &LastWaiter, processor: ProcessorId, now: Instant) -> bool {
        last.0.load(Ordering::Relaxed) == u32::from(processor.0) && now >= self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_request_is_alone_when_no_other_was_seen_for_a_while() {
        let last = LastWaiter::default();
        let (mut first, mut second) = (Alone::default(), Alone::default());
        let mut waits = |first_waits: bool, requests, ms| {
            let (alone, number) = if first_waits { (&mut first, 0) } else { (&mut second, 1) };
            alone.is_alone(&last, ProcessorId(number), requests, Instant::from_ns(ms * MS))
        };
        assert!(!waits(true, 1, 0), "who waited before is not known");
        assert!(waits(true, 1, 10));
        assert!(!waits(true, 2, 2), "two of its own");
        assert!(!waits(true, 1, 11));
        assert!(waits(true, 1, 12));
        assert!(!waits(false, 1, 13), "another processor's was before");
        assert!(!waits(true, 1, 14));
        assert!(!waits(true, 1, 23));
        assert!(waits(true, 1, 24));
        let was_alone =
            |alone: &Alone, number, ms| alone.was_alone(&last, ProcessorId(number), Instant::from_ns(ms * MS));
        assert!(was_alone(&first, 0, 24));
        assert!(!was_alone(&second, 1, 24), "the first one waited last");
        first.is_alone(&last, ProcessorId(0), 2, Instant::from_ns(25 * MS));
        assert!(!was_alone(&first, 0, 34), "two of its own");
        assert!(was_alone(&first, 0, 35));
    }
}
