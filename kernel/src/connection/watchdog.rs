//! Ends connections whose peer exceeds its timeout.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use machine::Connection;
use policy::unit::Instant;

use crate::connection::Sessions;
use crate::trace::Event;
use crate::{Frames, Processor};

/// Checks per timeout, at intervals within these bounds. The watchdog may be late for a shorter deadline by one interval.
const LOOKS: u32 = 32;
const LOOK_INTERVAL_MIN: Duration = Duration::from_secs(1);
const LOOK_INTERVAL_MAX: Duration = Duration::from_secs(10);

/// Whatever is left of a timeout, it comes to an end.
const WAITED_AT_ONCE_MIN: Duration = Duration::from_millis(10);

/// Timeout of a stalled client that holds frames while others wait for memory.
const TIMEOUT_WHEN_SHORT: Duration = Duration::from_secs(5);

/// What a connection holds while its peer is late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    Nothing,
    Frames,
}

#[derive(Clone, Copy)]
struct Deadline {
    /// Until the last look.
    waited: Duration,
    looked: Instant,
    timeout: Duration,
    holds: Holds,
}

impl Deadline {
    fn interval(&self) -> Duration {
        (self.timeout / LOOKS).clamp(LOOK_INTERVAL_MIN, LOOK_INTERVAL_MAX)
    }

    /// So long the peer was waited for. Between two looks that are further apart this process was stopped (SIGSTOP, a frozen
    /// container), which is no fault of the peer's.
    fn waited(&self, now: Instant) -> Duration {
        let most = (self.interval() * 2).min(self.timeout / 2).max(WAITED_AT_ONCE_MIN);
        self.waited + now.since(self.looked).min(most)
    }

    fn is_over(&self, cpu: &Processor, sessions: &Sessions) -> bool {
        let is_short = || sessions.reservations().has_waiters() || !cpu.kernel().try_allocate(1, &mut Frames::new());
        let hinders = || self.holds == Holds::Frames && is_short();
        self.waited >= self.timeout || (self.waited >= TIMEOUT_WHEN_SHORT && hinders())
    }
}

/// Ends a connection whose peer exceeds its timeout. Costs nothing while no deadline is set.
#[derive(Default)]
pub struct Watchdog {
    deadline: Cell<Option<Deadline>>,
    over: Cell<bool>,
    /// Waits for a deadline, or for the end.
    sleeper: Cell<Option<Waker>>,
    /// Sleeps between two checks, or until the end.
    between_checks: Cell<Option<Waker>>,
}

impl Watchdog {
    pub fn watch(cpu: &Processor, connection: Connection, sessions: &Arc<Sessions>) -> Rc<Watchdog> {
        let watchdog = Rc::new(Watchdog::default());
        let (here, own, sessions) = (cpu.clone(), Rc::clone(&watchdog), Arc::clone(sessions));
        cpu.spawn(async move {
            while let Some(mut deadline) = own.next_deadline().await {
                let now = here.now();
                (deadline.waited, deadline.looked) = (deadline.waited(now), now);
                own.deadline.set(Some(deadline));
                if deadline.is_over(&here, &sessions) {
                    let tally = here.kernel().connections().tally(connection);
                    let waited_ms = deadline.waited.as_millis() as u64;
                    here.trace(Event::ConnectionStalled, &*tally, tally.number().0, waited_ms);
                    here.shutdown(connection);
                    return;
                }
                let left = deadline.timeout.saturating_sub(deadline.waited);
                own.sleep_until(&here, now + left.min(deadline.interval())).await;
            }
        });
        watchdog
    }

    async fn next_deadline(&self) -> Option<Deadline> {
        poll_fn(|cx| match self.deadline.get() {
            _ if self.over.get() => Poll::Ready(None),
            Some(deadline) => Poll::Ready(Some(deadline)),
            None => {
                self.sleeper.set(Some(cx.waker().clone()));
                Poll::Pending
            }
        })
        .await
    }

    /// Until then, or the end: of many connections that last for a moment nothing must be kept for an interval.
    async fn sleep_until(&self, cpu: &Processor, at: Instant) {
        let mut sleep = pin!(cpu.sleep_until(at));
        poll_fn(|cx| {
            if self.over.get() {
                return Poll::Ready(());
            }
            self.between_checks.set(Some(cx.waker().clone()));
            sleep.as_mut().poll(cx)
        })
        .await;
    }

    /// Sets a deadline `timeout` from now, unless one is set.
    pub fn arm(&self, cpu: &Processor, timeout: Duration, holds: Holds) {
        if self.deadline.get().is_none() {
            self.deadline.set(Some(Deadline { waited: Duration::ZERO, looked: cpu.now(), timeout, holds }));
            wake(&self.sleeper);
        }
    }

    /// Returns for how long the peer was waited for.
    pub fn disarm(&self, cpu: &Processor) -> Duration {
        self.deadline.take().map_or(Duration::ZERO, |deadline| deadline.waited(cpu.now()))
    }

    pub fn is_over(&self) -> bool {
        self.over.get()
    }

    /// The connection is closing and must not be touched any more.
    pub fn end(&self) {
        self.over.set(true);
        wake(&self.sleeper);
        wake(&self.between_checks);
    }
}

fn wake(waiting: &Cell<Option<Waker>>) {
    if let Some(waker) = waiting.take() {
        waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deadline(timeout: Duration) -> Deadline {
        Deadline { waited: Duration::ZERO, looked: Instant::ZERO, timeout, holds: Holds::Nothing }
    }

    #[test]
    fn whatever_is_left_of_a_timeout_is_over_after_it() {
        for timeout in (0..100).chain([1_000_000, 999_999_999]).map(Duration::from_nanos) {
            let (mut one, mut looks) = (deadline(timeout), 0);
            while one.waited < timeout {
                let now = one.looked + (timeout - one.waited);
                (one.waited, one.looked, looks) = (one.waited(now), now, looks + 1);
                assert!(looks < 64, "{timeout:?}: {:?} after {looks} looks", one.waited);
            }
        }
    }

    #[test]
    fn a_stop_of_the_process_counts_as_two_looks_at_most() {
        let one = deadline(Duration::from_secs(64));
        assert_eq!(one.waited(Instant::ZERO + Duration::from_secs(3)), Duration::from_secs(3));
        assert_eq!(one.waited(Instant::ZERO + Duration::from_secs(3600)), Duration::from_secs(4));
    }
}
