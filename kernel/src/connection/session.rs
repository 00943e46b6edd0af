//! A session: one client, from the first byte until its connection is closed.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use machine::Connection;

use super::watchdog::Watchdog;
use super::{Holds, Outbound, Sessions, Tally};
use crate::Processor;
use crate::processor::Together;
use crate::trace::Event;

/// A connection in service, with a watchdog; ends when its protocol's sessions end.
pub struct Session {
    pub(super) cpu: Processor,
    pub(super) connection: Connection,
    pub(super) sessions: Arc<Sessions>,
    pub(super) watchdog: Rc<Watchdog>,
    pub(super) stop: Rc<Stop>,
    outbound: Rc<Outbound>,
    tally: Arc<Tally>,
    /// Calls answered at once and not counted yet.
    batch: Together,
}

/// Wakes a session that waits for a request when no more are accepted.
#[derive(Default)]
pub(super) struct Stop {
    pub(super) stopped: Cell<bool>,
    /// Set while nothing can be in flight.
    quiet: Cell<bool>,
    pub(super) waker: RefCell<Option<Waker>>,
    /// Waker of the task that follows the end of the sessions.
    follower: RefCell<Option<Waker>>,
}

impl Stop {
    /// Waits until `ended`, which is checked when the sessions change or this one ends.
    async fn either_ends(&self, sessions: &Sessions, ended: impl Fn() -> bool) {
        let mut changed = pin!(sessions.changed().until(|| ended().then_some(())));
        poll_fn(|cx| {
            self.follower.replace(Some(cx.waker().clone()));
            changed.as_mut().poll(cx)
        })
        .await;
    }
}

impl Session {
    pub(super) fn begin(cpu: &Processor, connection: Connection, sessions: &Arc<Sessions>) -> Session {
        let watchdog = Watchdog::watch(cpu, connection, sessions);
        let tally = cpu.kernel().connections().begin(connection, cpu);
        cpu.trace(Event::ConnectionBegun, &*tally, tally.number().0, 0);
        let session = Session {
            cpu: cpu.clone(),
            connection,
            sessions: Arc::clone(sessions),
            watchdog,
            stop: Rc::default(),
            outbound: Outbound::start(cpu, connection, sessions),
            tally,
            batch: Together::default(),
        };
        session.follow_end();
        session
    }

    /// The handshake begins or has ended: it has a timeout, and since nothing is in flight meanwhile, it may be aborted.
    pub(super) fn set_handshake(&self, is_under_way: bool) {
        self.stop.quiet.set(is_under_way);
        if is_under_way {
            self.watchdog.arm(&self.cpu, self.sessions.limits().handshake_timeout, Holds::Nothing);
        } else {
            self.watchdog.disarm(&self.cpu);
        }
    }

    pub fn cpu(&self) -> &Processor {
        &self.cpu
    }

    pub fn connection(&self) -> Connection {
        self.connection
    }

    pub fn outbound(&self) -> &Rc<Outbound> {
        &self.outbound
    }

    pub fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }

    /// Calls that are answered at once are counted in a batch, up to [`Session::end_batch`].
    pub fn batch(&self) -> &Together {
        &self.batch
    }

    /// Closes the batch, before other work or a wait.
    pub fn end_batch(&self) {
        self.cpu.end_together(&self.batch);
    }

    /// The client violated the protocol: the session is about to end.
    pub fn note_malformed(&self) {
        self.cpu.trace(Event::ConnectionMalformed, &*self.tally, self.tally.number().0, 0);
    }

    pub(super) fn end(self) {
        self.outbound.end();
        self.watchdog.end();
        if let Some(follower) = self.stop.follower.take() {
            follower.wake();
        }
        self.cpu.trace(Event::ConnectionEnded, &*self.tally, self.tally.number().0, self.tally.requests());
        self.cpu.kernel().connections().forget(self.connection);
        self.cpu.close(self.connection);
    }

    fn follow_end(&self) {
        let (here, connection, sessions) = (self.cpu.clone(), self.connection, Arc::clone(&self.sessions));
        let (watchdog, stop) = (Rc::clone(&self.watchdog), Rc::clone(&self.stop));
        self.cpu.spawn(async move {
            stop.either_ends(&sessions, || sessions.is_stopping() || watchdog.is_over()).await;
            stop.stopped.set(true);
            if stop.quiet.get() && !watchdog.is_over() {
                here.shutdown(connection);
            }
            if let Some(waker) = stop.waker.take() {
                waker.wake();
            }
            stop.either_ends(&sessions, || sessions.is_aborting() || watchdog.is_over()).await;
            if !watchdog.is_over() {
                here.shutdown(connection);
            }
        });
    }
}
