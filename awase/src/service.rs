//! What is spoken with clients, over the sockets of this host.

use std::sync::Arc;

use kernel::Processor;
use kernel::connection::{Acceptor, Peer, Protocol, Service, Session};
use kernel::job::Origin;
use machine::linux::net::{self, Address, ListeningSocket, PeerCredentials};
use machine::{Connection, Errno};
use nfs::{ClientAddress, LocalPeer};
use policy::unit::ProcessorId;

use crate::processors::Processors;

/// NBD: disks.
pub struct Disks(pub Arc<nbd::Server>);

/// NFS: directories.
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

fn note_refusal(error: Errno) {
    eprintln!("awase: a client could not be accepted: {error}");
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
