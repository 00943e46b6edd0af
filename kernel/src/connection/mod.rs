//! Client connections of all protocols: accepting, receiving, limits, timeouts, replies and closing. A service provides
//! a [`Protocol`]: a [`Decoder`] for what a client sends, and a [`Handler`] that executes calls.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::wait::WaitList;

mod accept;
mod arrivals;
mod decoder;
mod exact;
mod fixed;
mod inbound;
mod outbound;
mod peer;
mod protocol;
mod reservation;
mod scatter;
mod serve;
mod session;
mod table;
mod watchdog;

pub use accept::{Acceptor, Sockets};
pub use decoder::{Decoder, End, Next, Step};
pub use exact::{Gone, receive_exact, segment, send_all};
pub use fixed::{FixedHeader, Headerwise};
pub use inbound::Inbound;
pub use outbound::{Header, Outbound, Release, Reply};
pub use peer::{LocalUser, Peer};
pub use protocol::{FastPath, Handler, Protocol};
pub use reservation::{EdgePermit, Reservations};
pub use scatter::{Headers, Scatter};
pub use serve::converse;
pub use session::Session;
pub use table::{ConnectionNo, ConnectionReading, ConnectionTable, Introduction, Tally, Uses};
pub use watchdog::Holds;

/// Limits of one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests in flight.
    pub requests: usize,
    /// Payload of the requests in flight, in bytes. A single request is always admitted.
    pub bytes: u64,
    /// For one message (of a long payload, for each piece), and for the client to accept replies.
    pub stall_timeout: Duration,
    /// From the connection's start until [`Protocol::open`] has ended.
    pub handshake_timeout: Duration,
    /// Between two messages; `None`: unlimited.
    pub idle_timeout: Option<Duration>,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            requests: 128,
            bytes: 8 << 20,
            stall_timeout: Duration::from_secs(60),
            handshake_timeout: Duration::from_secs(30),
            idle_timeout: None,
        }
    }
}

/// Shared by all sessions of one protocol.
pub struct Sessions {
    limits: Limits,
    stopping: AtomicBool,
    aborting: AtomicBool,
    reservations: Reservations,
    changed: WaitList,
}

impl Sessions {
    pub fn new(limits: Limits) -> Self {
        Sessions {
            limits,
            stopping: AtomicBool::new(false),
            aborting: AtomicBool::new(false),
            reservations: Reservations::default(),
            changed: WaitList::default(),
        }
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    pub fn reservations(&self) -> &Reservations {
        &self.reservations
    }

    /// Accepts no more requests: those in flight are answered, then the sessions end.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.changed.wake_all();
    }

    /// Ends the remaining sessions, whatever is in flight.
    pub fn abort(&self) {
        self.aborting.store(true, Ordering::SeqCst);
        self.changed.wake_all();
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    pub fn is_aborting(&self) -> bool {
        self.aborting.load(Ordering::SeqCst)
    }

    /// Woken by [`Sessions::stop`] and [`Sessions::abort`].
    pub fn changed(&self) -> &WaitList {
        &self.changed
    }
}
