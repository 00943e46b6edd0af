//! Ends connections whose peer takes too long.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use machine::Connection;
use policy::unit::Instant;

use crate::connection::Service;
use crate::trace::Event;
use crate::{Frames, Processor};

/// How often a watchdog looks while somebody is late: so many times until the timeout, within these bounds. So long it may
/// outlive its connection, or overlook a shorter deadline.
const LOOKS: u32 = 32;
const LOOK_INTERVAL_MIN: Duration = Duration::from_secs(1);
const LOOK_INTERVAL_MAX: Duration = Duration::from_secs(10);

/// A client that keeps frames and does not move is given up after so long when others wait for memory: of those who hold
/// it, the ones that do nothing with it go first.
const PATIENCE_WHEN_SHORT: Duration = Duration::from_secs(5);

/// What a connection keeps from others while its peer is late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeps {
    /// Nothing that others could need.
    Nothing,
    Frames,
}

/// By when something must have happened.
#[derive(Clone, Copy)]
struct Deadline {
    since: Instant,
    timeout: Duration,
    keeps: Keeps,
}

impl Deadline {
    fn is_over(&self, cpu: &Processor, service: &Service) -> bool {
        let waited = cpu.now().since(self.since);
        let is_short = || service.kept().is_waited_for() || !cpu.kernel().try_allocate(1, &mut Frames::new());
        let hinders = || self.keeps == Keeps::Frames && is_short();
        waited >= self.timeout || (waited >= PATIENCE_WHEN_SHORT && hinders())
    }
}

/// Ends a connection whose peer takes too long. Costs nothing while nothing is expected of it.
#[derive(Default)]
pub struct Watchdog {
    deadline: Cell<Option<Deadline>>,
    over: Cell<bool>,
    /// Waits for a deadline to watch, or for the end.
    sleeper: Cell<Option<Waker>>,
}

impl Watchdog {
    pub fn watch(cpu: &Processor, connection: Connection, service: &Arc<Service>) -> Rc<Watchdog> {
        let watchdog = Rc::new(Watchdog::default());
        let (here, own, service) = (cpu.clone(), Rc::clone(&watchdog), Arc::clone(service));
        cpu.spawn(async move {
            while let Some(deadline) = own.next_deadline().await {
                if deadline.is_over(&here, &service) {
                    let tally = here.kernel().connections().tally(connection);
                    let waited_ms = here.now().since(deadline.since).as_millis() as u64;
                    here.trace(Event::ConnectionStalled, &*tally, tally.number(), waited_ms);
                    here.shutdown(connection);
                    return;
                }
                let interval = (deadline.timeout / LOOKS).clamp(LOOK_INTERVAL_MIN, LOOK_INTERVAL_MAX);
                here.sleep_until((deadline.since + deadline.timeout).min(here.now() + interval)).await;
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

    /// Something must happen within `timeout`.
    pub fn arm(&self, cpu: &Processor, timeout: Duration, keeps: Keeps) {
        if self.deadline.get().is_none() {
            self.deadline.set(Some(Deadline { since: cpu.now(), timeout, keeps }));
            self.wake();
        }
    }

    pub fn disarm(&self) {
        self.deadline.set(None);
    }

    pub fn is_over(&self) -> bool {
        self.over.get()
    }

    /// The connection is over: do not touch it any more.
    pub fn end(&self) {
        self.over.set(true);
        self.wake();
    }

    fn wake(&self) {
        if let Some(waker) = self.sleeper.take() {
            waker.wake();
        }
    }
}
