//! What the services have in common: connections of clients, what they may have, and how they end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::wait::WaitList;

mod accept;
mod exact;
mod inbound;
mod kept;
mod outbound;
mod rhythm;
mod scatter;
mod table;
mod watchdog;

pub use accept::{Acceptor, Peer, Protocol, Session};
pub use exact::{Gone, receive_exact, segment, send_all};
pub use inbound::{Inbound, Served, Wait};
pub use kept::{ArrivalPermit, EdgePermit, Kept};
pub use outbound::{Header, Outbound, Release, Reply};
pub use scatter::{Headers, Scatter};
pub use table::{ConnectionReading, ConnectionTable, Introduction, Tally, Uses};
pub use watchdog::{Keeps, Watchdog};

/// How much one connection may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub requests: usize,
    /// Payload of the requests under way, in bytes. One request always passes.
    pub bytes: u64,
    /// A client that stops in the middle of a message for so long is disconnected.
    pub stall_timeout: Duration,
}

/// What all connections of one service share.
pub struct Service {
    bounds: Bounds,
    stopping: AtomicBool,
    overdue: AtomicBool,
    kept: Kept,
    changed: WaitList,
}

impl Service {
    /// A service without connections.
    pub fn new(bounds: Bounds) -> Self {
        Service {
            bounds,
            stopping: AtomicBool::new(false),
            overdue: AtomicBool::new(false),
            kept: Kept::default(),
            changed: WaitList::default(),
        }
    }

    /// How much one connection may have.
    pub fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// What the connections keep of the cache's frames.
    pub fn kept(&self) -> &Kept {
        &self.kept
    }

    /// Takes no more requests: those under way are answered, then the connections end.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.changed.wake_all();
    }

    /// Ends the connections that are left, whatever is under way.
    pub fn give_up(&self) {
        self.overdue.store(true, Ordering::SeqCst);
        self.changed.wake_all();
    }

    /// Has it been told to end?
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Has it waited long enough for requests under way?
    pub fn is_overdue(&self) -> bool {
        self.overdue.load(Ordering::SeqCst)
    }

    /// Woken when [`Service::is_stopping`] or [`Service::is_overdue`] changes.
    pub fn changed(&self) -> &WaitList {
        &self.changed
    }
}
