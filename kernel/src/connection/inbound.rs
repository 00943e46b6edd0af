//! The receiving side of a connection, and its end.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use machine::Connection;

use super::kept::Predicted;
use crate::Processor;
use crate::connection::{Gone, Headers, Keeps, Outbound, Scatter, Service, Tally, Watchdog};
use crate::counters::Count;
use crate::trace::Event;

/// A connection that is being served: watched, and ended when its service ends.
pub struct Served {
    cpu: Processor,
    connection: Connection,
    service: Arc<Service>,
    watchdog: Rc<Watchdog>,
    stop: Rc<Stop>,
    tally: Arc<Tally>,
}

/// Tells a connection that waits for a request that none will be taken any more.
#[derive(Default)]
struct Stop {
    stopped: Cell<bool>,
    /// Nothing can be under way.
    quiet: Cell<bool>,
    waker: RefCell<Option<Waker>>,
    /// Of the task that follows the end of the service, while the connection lasts.
    follower: RefCell<Option<Waker>>,
}

impl Stop {
    /// Waits until `ended`, which is asked when something changes for the service or the connection ends.
    async fn either_ends(&self, service: &Service, ended: impl Fn() -> bool) {
        let mut changed = pin!(service.changed().until(|| ended().then_some(())));
        poll_fn(|cx| {
            self.follower.replace(Some(cx.waker().clone()));
            changed.as_mut().poll(cx)
        })
        .await;
    }
}

impl Served {
    /// Follows the service's end for as long as the connection lasts.
    pub fn begin(cpu: &Processor, connection: Connection, service: &Arc<Service>) -> Served {
        let watchdog = Watchdog::watch(cpu, connection, service);
        let tally = cpu.kernel().connections().begin(connection, cpu);
        cpu.trace(Event::ConnectionBegun, &*tally, tally.number(), 0);
        let service = Arc::clone(service);
        let served = Served { cpu: cpu.clone(), connection, service, watchdog, stop: Rc::default(), tally };
        served.follow_end();
        served
    }

    pub fn watchdog(&self) -> &Rc<Watchdog> {
        &self.watchdog
    }

    /// What it counts with.
    pub fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }

    /// Its peer said what no client may: it is going to be ended.
    pub fn note_malformed(&self) {
        self.cpu.trace(Event::ConnectionMalformed, &*self.tally, self.tally.number(), 0);
    }

    /// While nothing can be under way, it may be ended at once.
    pub fn set_quiet(&self, quiet: bool) {
        self.stop.quiet.set(quiet);
    }

    pub fn end(self) {
        self.watchdog.end();
        if let Some(follower) = self.stop.follower.take() {
            follower.wake();
        }
        self.cpu.trace(Event::ConnectionEnded, &*self.tally, self.tally.number(), self.tally.requests());
        self.cpu.kernel().connections().forget(self.connection);
        self.cpu.close(self.connection);
    }

    fn follow_end(&self) {
        let (here, connection, service) = (self.cpu.clone(), self.connection, Arc::clone(&self.service));
        let (watchdog, stop) = (Rc::clone(&self.watchdog), Rc::clone(&self.stop));
        self.cpu.spawn(async move {
            stop.either_ends(&service, || service.is_stopping() || watchdog.is_over()).await;
            stop.stopped.set(true);
            if stop.quiet.get() && !watchdog.is_over() {
                here.shutdown(connection);
            }
            if let Some(waker) = stop.waker.take() {
                waker.wake();
            }
            stop.either_ends(&service, || service.is_overdue() || watchdog.is_over()).await;
            if !watchdog.is_over() {
                here.shutdown(connection);
            }
        });
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// For the next message, so long if at all.
    Next(Option<Duration>),
    /// For the rest of a message, so long. Meanwhile this is kept from others.
    Rest(Duration, Keeps),
}

/// The receiving side of a connection.
pub struct Inbound<'a> {
    served: &'a Served,
    pub scatter: Scatter,
    predicted: Predicted,
    outbound: Rc<Outbound>,
}

impl<'a> Inbound<'a> {
    pub fn new(served: &'a Served, outbound: Rc<Outbound>) -> Self {
        let predicted = Predicted::new(&served.service);
        Inbound { served, scatter: Scatter::new(), predicted, outbound }
    }

    pub fn served(&self) -> &'a Served {
        self.served
    }

    pub fn outbound(&self) -> &Rc<Outbound> {
        &self.outbound
    }

    /// Receives what has arrived; false at the end of the stream. Fails when the service ends between two messages.
    ///
    /// # Errors
    /// The connection is of no use any more.
    pub async fn receive(&mut self, wait: Wait, headers: Headers) -> Result<bool, Gone> {
        let (cpu, connection, watchdog, stop) =
            (&self.served.cpu, self.served.connection, &self.served.watchdog, &self.served.stop);
        match wait {
            Wait::Next(None) => {}
            Wait::Next(Some(timeout)) => watchdog.arm(cpu, timeout, Keeps::Nothing),
            Wait::Rest(timeout, keeps) => watchdog.arm(cpu, timeout, keeps),
        }
        let kernel = cpu.kernel();
        let room = self.predicted.room(kernel.cache_blocks());
        let (hold, segments) = self.scatter.plan(headers, room, |missing, into| {
            kernel.try_allocate(into.len() + missing, into);
        });
        self.predicted.set(self.scatter.predicted());
        let mut received = pin!(cpu.receive(connection, hold, segments));
        let outcome = poll_fn(|cx| match received.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if stop.stopped.get() && matches!(wait, Wait::Next(_)) => Poll::Ready(None),
            Poll::Pending => {
                stop.waker.replace(Some(cx.waker().clone()));
                Poll::Pending
            }
        })
        .await;
        watchdog.disarm();
        let Some((result, hold)) = outcome else {
            // The receive must end before the connection is closed; the replies leave first.
            self.outbound.until_idle().await;
            cpu.shutdown(connection);
            let _ = received.await;
            return Err(Gone);
        };
        let count = result.unwrap_or(0) as usize;
        cpu.count(Count::BytesReceived, count as u64);
        self.served.tally.receive(count as u64);
        cpu.trace(Event::Received, &*self.served.tally, count as u64, 0);
        self.scatter.land(hold, count);
        Ok(count > 0)
    }
}
