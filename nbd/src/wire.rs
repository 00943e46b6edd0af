//! Whole messages over a connection that gives and takes pieces: for negotiation and the client. Bytes are copied here;
//! payload does not pass.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use kernel::{Hold, Processor};
use machine::{Connection, Errno, Segment};
use policy::unit::Instant;
use smallvec::smallvec;

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

/// How often a watchdog looks, at least. So long it may outlive its connection.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// Ends a connection whose peer takes too long.
#[derive(Default)]
pub(crate) struct Watchdog {
    /// By when something must have happened, if something must.
    due: Cell<Option<Instant>>,
    over: Cell<bool>,
}

impl Watchdog {
    /// Watches `connection`, for delays of about `timeout`.
    pub(crate) fn watch(cpu: &Processor, connection: Connection, timeout: Duration) -> Rc<Watchdog> {
        let interval = timeout.min(LOOK_INTERVAL);
        let watchdog = Rc::new(Watchdog::default());
        let (here, own) = (cpu.clone(), Rc::clone(&watchdog));
        cpu.spawn(async move {
            while !own.over.get() {
                let late = own.due.get().is_some_and(|due| due <= here.now());
                if late {
                    here.shutdown(connection);
                    return;
                }
                let next = own.due.get().unwrap_or(here.now() + interval).min(here.now() + interval);
                here.sleep_until(next).await;
            }
        });
        watchdog
    }

    /// Something must happen within `duration`.
    pub(crate) fn arm(&self, cpu: &Processor, duration: Duration) {
        if self.due.get().is_none() {
            self.due.set(Some(cpu.now() + duration));
        }
    }

    /// It did.
    pub(crate) fn disarm(&self) {
        self.due.set(None);
    }

    /// Is the connection over?
    pub(crate) fn is_over(&self) -> bool {
        self.over.get()
    }

    /// The connection is over: do not touch it any more.
    pub(crate) fn end(&self) {
        self.over.set(true);
    }
}
