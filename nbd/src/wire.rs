//! Whole messages over a connection that gives and takes pieces: for negotiation and the client. Bytes are copied here;
//! payload does not pass.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use kernel::{Frames, Hold, Processor};
use machine::{Connection, Errno, Segment};
use policy::unit::Instant;
use smallvec::smallvec;

use crate::export::Server;

/// The peer has closed, or the connection broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gone;

/// A segment for a part of a buffer that is going into a [`Hold`].
pub(crate) fn segment(bytes: &mut [u8]) -> Segment {
    Segment { ptr: bytes.as_mut_ptr(), len: bytes.len() as u32, region: None }
}

/// Receives exactly `len` bytes.
pub(crate) async fn receive_exact(cpu: &Processor, connection: Connection, len: usize) -> Result<Vec<u8>, Gone> {
    let mut bytes = vec![0; len];
    let mut at = 0;
    while at < len {
        let into = smallvec![segment(&mut bytes[at..])];
        let (result, hold) = cpu.receive(connection, Hold::new(bytes, Default::default()), into).await;
        bytes = hold.bytes;
        match result {
            Ok(0) | Err(_) => return Err(Gone),
            Ok(received) => at += received as usize,
        }
    }
    Ok(bytes)
}

/// Sends all of `bytes`.
pub(crate) async fn send_all(cpu: &Processor, connection: Connection, mut bytes: Vec<u8>) -> Result<(), Gone> {
    let mut at = 0;
    while at < bytes.len() {
        let from = smallvec![segment(&mut bytes[at..])];
        let (result, hold) = cpu.send(connection, Hold::new(bytes, Default::default()), from).await;
        bytes = hold.bytes;
        at += result.map_err(|_: Errno| Gone)? as usize;
    }
    Ok(())
}

/// How often a watchdog looks while somebody is late. So long it may outlive its connection.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// A client that keeps frames and does not move is given up after so long when others wait for memory: of those who hold
/// it, the ones that do nothing with it go first.
const PATIENCE_WHEN_SHORT: Duration = Duration::from_secs(5);

/// What a connection keeps from others while its peer is late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeps {
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
    fn is_over(&self, cpu: &Processor, server: &Server) -> bool {
        let waited = cpu.now().since(self.since);
        let is_short = || server.kept().is_waited_for() || !cpu.kernel().try_allocate(1, &mut Frames::new());
        let hinders = || self.keeps == Keeps::Frames && is_short();
        waited >= self.timeout || (waited >= PATIENCE_WHEN_SHORT && hinders())
    }
}

/// Ends a connection whose peer takes too long. Costs nothing while nothing is expected of it.
#[derive(Default)]
pub(crate) struct Watchdog {
    deadline: Cell<Option<Deadline>>,
    over: Cell<bool>,
    /// Waits for a deadline to watch, or for the end.
    sleeper: Cell<Option<Waker>>,
}

impl Watchdog {
    /// Watches `connection`.
    pub(crate) fn watch(cpu: &Processor, connection: Connection, server: &Arc<Server>) -> Rc<Watchdog> {
        let watchdog = Rc::new(Watchdog::default());
        let (here, own, server) = (cpu.clone(), Rc::clone(&watchdog), Arc::clone(server));
        cpu.spawn(async move {
            while let Some(deadline) = own.next_deadline().await {
                if deadline.is_over(&here, &server) {
                    here.shutdown(connection);
                    return;
                }
                here.sleep_until((deadline.since + deadline.timeout).min(here.now() + LOOK_INTERVAL)).await;
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
    pub(crate) fn arm(&self, cpu: &Processor, timeout: Duration, keeps: Keeps) {
        if self.deadline.get().is_none() {
            self.deadline.set(Some(Deadline { since: cpu.now(), timeout, keeps }));
            self.wake();
        }
    }

    /// It did.
    pub(crate) fn disarm(&self) {
        self.deadline.set(None);
    }

    /// Is the connection over?
    pub(crate) fn is_over(&self) -> bool {
        self.over.get()
    }

    /// The connection is over: do not touch it any more.
    pub(crate) fn end(&self) {
        self.over.set(true);
        self.wake();
    }

    fn wake(&self) {
        if let Some(waker) = self.sleeper.take() {
            waker.wake();
        }
    }
}
