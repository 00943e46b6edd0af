//! Timers: tasks that are woken at a time.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::task::{Poll, Waker};
use std::time::Duration;

use policy::unit::Instant;

use super::Processor;
use super::recording::NOBODY;
use crate::trace::Event;

/// By the time at which they are due, then by the order of setting.
pub(super) type Timers = BTreeMap<(Instant, u64), Waker>;

/// A timer that is taken back when this is dropped: a sleep that is given up, as one that bounds something else, leaves nothing
/// behind.
struct Timer<'a> {
    cpu: &'a Processor,
    at: (Instant, u64),
    waker: Waker,
}

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        let removed = self.cpu.0.timers.borrow_mut().remove(&self.at);
        drop(removed);
    }
}

impl Processor {
    pub async fn sleep_until(&self, at: Instant) {
        let mut timer: Option<Timer> = None;
        poll_fn(|cx| {
            if self.now() >= at {
                return Poll::Ready(());
            }
            // Set anew for another task: a future may be begun by one task and finished by another.
            if !timer.as_ref().is_some_and(|timer| timer.waker.will_wake(cx.waker())) {
                let waker = cx.waker().clone();
                timer = Some(Timer { cpu: self, at: self.set_timer(at, waker.clone()), waker });
            }
            Poll::Pending
        })
        .await;
    }

    pub async fn sleep(&self, duration: Duration) {
        self.sleep_until(self.now() + duration).await;
    }

    pub(crate) fn wake_at(&self, at: Instant, waker: Waker) {
        self.set_timer(at, waker);
    }

    fn set_timer(&self, at: Instant, waker: Waker) -> (Instant, u64) {
        let at = (at, self.next_serial());
        self.0.timers.borrow_mut().insert(at, waker);
        at
    }

    /// Timers that are set.
    pub fn timers(&self) -> usize {
        self.0.timers.borrow().len()
    }

    /// When the next one is due.
    pub(super) fn next_timer(&self) -> Option<Instant> {
        self.0.timers.borrow().first_key_value().map(|((at, _), _)| *at)
    }

    pub(super) fn fire_timers(&self) {
        if self.0.timers.borrow().is_empty() {
            return;
        }
        let now = self.now();
        loop {
            let due = {
                let mut timers = self.0.timers.borrow_mut();
                timers.first_entry().filter(|timer| timer.key().0 <= now).map(|timer| timer.remove())
            };
            let Some(waker) = due else { return };
            self.trace(Event::TimerFired, NOBODY, 0, 0);
            waker.wake();
        }
    }
}
