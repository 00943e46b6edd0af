//! Clients of the sockets of this host, whatever is spoken with them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kernel::connection::{Acceptor, Limits, LocalUser, Peer, Protocol, Sockets};
use machine::linux::net::{self, Address, PeerCredentials};
use machine::{Connection, Errno};
use parking_lot::Mutex;
use policy::unit::ProcessorId;

use crate::config::Settings;
use crate::listeners::Sockets as Listening;
use crate::processors::Processors;
use crate::tell::tell;

/// The sockets of this host.
pub struct HostSockets;

impl Sockets for HostSockets {
    fn peer(&self, connection: Connection) -> Option<Peer> {
        let address = match net::peer_address(connection).ok()? {
            Address::Tcp(address) => Some(address),
            Address::Unix(_) | Address::Unnamed => None,
        };
        let user = |PeerCredentials { uid, gid, groups }| LocalUser { uid, gid, groups };
        let user = net::peer_credentials(connection).map(user);
        Some(Peer { address, user, core: net::peer_core(connection) })
    }

    fn note_refusal(&self, error: Errno) {
        note_refusal(error);
    }
}

/// Says that clients are not accepted, once a minute at most: the host refuses again and again until it has room.
fn note_refusal(error: Errno) {
    static SAID: Mutex<Throttle> = Mutex::new(Throttle::new());
    let said = SAID.lock().on_event(Instant::now());
    let Some(missed) = said else { return };
    let hint = match error {
        Errno(libc::EMFILE) => "; raise the limit of open files (LimitNOFILE=, ulimit -n)",
        _ => "",
    };
    let before = if missed == 0 { String::new() } else { format!(" ({missed} times more since this was last said)") };
    tell(format_args!("a client could not be accepted: {error}{hint}{before}"));
}

/// Between two messages about the same.
const MESSAGE_INTERVAL: Duration = Duration::from_secs(60);

/// Lets through the first of many messages, then one in each [`MESSAGE_INTERVAL`].
struct Throttle {
    said: Option<Instant>,
    missed: u64,
}

impl Throttle {
    const fn new() -> Self {
        Throttle { said: None, missed: 0 }
    }

    /// Is it to be said now? Then with how often it was not since the last time.
    fn on_event(&mut self, now: Instant) -> Option<u64> {
        if self.said.is_some_and(|said| now.duration_since(said) < MESSAGE_INTERVAL) {
            self.missed += 1;
            return None;
        }
        self.said = Some(now);
        Some(std::mem::take(&mut self.missed))
    }
}

/// What one connection may have: the protocol's own limits, but for what is configured.
pub fn limits(settings: &Settings, own: Limits) -> Limits {
    let limits = &settings.limits;
    Limits {
        requests: limits.requests_a_connection as usize,
        bytes: limits.bytes_a_connection,
        stall_timeout: limits.stall_timeout,
        ..own
    }
}

/// Accepts clients of `protocol` on those of `sockets` that are its own, each on a processor, until they are stopped.
pub fn accept<P: Protocol>(acceptor: &Arc<Acceptor>, processors: &Processors, protocol: &Arc<P>, sockets: &Listening) {
    acceptor.add(&**protocol);
    let ids: Vec<ProcessorId> = processors.ids().collect();
    for (socket, id) in sockets.of(P::NAME).zip(ids.into_iter().cycle()) {
        let (acceptor, protocol, listener) = (Arc::clone(acceptor), Arc::clone(protocol), socket.listener());
        drop(processors.start_task(id, move |cpu| acceptor.accept(cpu, protocol, listener)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_many_messages_is_said_and_then_one_a_minute() {
        let (mut throttle, start) = (Throttle::new(), Instant::now());
        assert_eq!(throttle.on_event(start), Some(0));
        let later = (1..600).filter_map(|tenth| throttle.on_event(start + Duration::from_millis(100 * tenth)));
        assert_eq!(later.count(), 0);
        assert_eq!(throttle.on_event(start + MESSAGE_INTERVAL), Some(599));
        assert_eq!(throttle.on_event(start + 2 * MESSAGE_INTERVAL), Some(0));
    }
}
