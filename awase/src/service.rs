//! What is spoken with clients, over the sockets of this host.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kernel::Processor;
use kernel::connection::{Acceptor, Peer, Protocol, Service, Session};
use kernel::job::Origin;
use machine::linux::net::{self, Address, ListeningSocket, PeerCredentials};
use machine::{Connection, Errno};
use nfs::{ClientAddress, LocalPeer};
use policy::unit::ProcessorId;

use crate::processors::Processors;

pub struct Disks(pub Arc<nbd::Server>);

pub struct Directories(pub Arc<nfs::Server>);

impl Protocol for Disks {
    fn name(&self) -> &'static str {
        "nbd"
    }

    fn service(&self) -> &Service {
        self.0.service()
    }

    fn peer(&self, connection: Connection) -> Option<Peer> {
        peer(connection)
    }

    fn serve(self: Arc<Self>, cpu: Processor, connection: Connection, _peer: Peer) -> Session {
        Box::pin(async move { nbd::serve(&cpu, connection, &self.0).await })
    }

    fn note_refusal(&self, error: Errno) {
        note_refusal(error);
    }
}

impl Protocol for Directories {
    fn name(&self) -> &'static str {
        "nfs"
    }

    fn service(&self) -> &Service {
        self.0.service()
    }

    fn peer(&self, connection: Connection) -> Option<Peer> {
        peer(connection)
    }

    fn serve(self: Arc<Self>, cpu: Processor, connection: Connection, peer: Peer) -> Session {
        let server = Arc::clone(&self.0);
        match (peer.address, net::peer_credentials(connection)) {
            (Some(address), _) => Box::pin(nfs::serve(cpu, connection, ClientAddress::Ip(address), server)),
            (None, Some(PeerCredentials { uid, gid, groups })) => {
                Box::pin(nfs::serve_local(cpu, connection, LocalPeer { uid, gid, groups }, server))
            }
            // Whose it is decides what it may have, so nothing is guessed.
            (None, None) => Box::pin(async move {
                cpu.kernel().connections().forget(connection);
                cpu.close(connection);
            }),
        }
    }

    fn note_refusal(&self, error: Errno) {
        note_refusal(error);
    }
}

/// Says that clients are not accepted, once a minute at most: the host refuses again and again until it has room.
fn note_refusal(error: Errno) {
    static SAID: Mutex<Throttle> = Mutex::new(Throttle::new());
    let said = SAID.lock().unwrap_or_else(PoisonError::into_inner).on_event(Instant::now());
    let Some(missed) = said else { return };
    let hint = match error {
        Errno(libc::EMFILE) => "; raise the limit of open files (LimitNOFILE=, ulimit -n)",
        _ => "",
    };
    let before = if missed == 0 { String::new() } else { format!(" ({missed} times more since this was last said)") };
    eprintln!("awase: a client could not be accepted: {error}{hint}{before}");
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

fn peer(connection: Connection) -> Option<Peer> {
    let address = match net::peer_address(connection).ok()? {
        Address::Tcp(address) => Some(address),
        Address::Unix(_) | Address::Unnamed => None,
    };
    let origin = Origin {
        address: address.map(|address| address.ip()),
        user: net::peer_credentials(connection).map(|peer| peer.uid),
    };
    Some(Peer { origin, address, core: net::peer_core(connection) })
}

/// Accepts clients of `protocol` on `sockets`, each on a processor, until they are stopped.
pub fn accept(
    acceptor: &Arc<Acceptor>,
    processors: &Processors,
    protocol: Arc<dyn Protocol>,
    sockets: &[ListeningSocket],
) {
    acceptor.add(&protocol);
    let ids: Vec<ProcessorId> = processors.ids().collect();
    for (socket, id) in sockets.iter().zip(ids.into_iter().cycle()) {
        let (acceptor, protocol, listener) = (Arc::clone(acceptor), Arc::clone(&protocol), socket.listener());
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
