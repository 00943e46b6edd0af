//! Who calls: the client's address, and the user whom it states.

use std::net::{IpAddr, SocketAddr};

use kernel::connection::{LocalUser, Peer};
use smallvec::SmallVec;

/// Groups of a caller besides its first, at most (RFC 5531, appendix A).
pub(crate) const GROUPS_MAX: usize = 16;

/// The client's end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ClientAddress {
    Ip(SocketAddr),
    /// A Unix socket of this host, used by this user.
    Unix(u32),
}

/// A client in the duplicate-request cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ClientHost {
    Address(IpAddr),
    /// A user of this host.
    User(u32),
}

/// Hosts reserve the ports below this one for root.
const UNPRIVILEGED_PORT_MIN: u16 = 1024;

impl ClientAddress {
    /// `None`: the host does not report the peer.
    pub(crate) fn of(peer: &Peer) -> Option<ClientAddress> {
        let user = || peer.user.as_ref().map(|user| ClientAddress::Unix(user.uid));
        peer.address.map(ClientAddress::Ip).or_else(user)
    }

    /// `None`: this host.
    pub(crate) fn ip(self) -> Option<IpAddr> {
        match self {
            ClientAddress::Ip(address) => Some(address.ip()),
            ClientAddress::Unix(_) => None,
        }
    }

    pub(crate) fn host(self) -> ClientHost {
        match self {
            ClientAddress::Ip(address) => ClientHost::Address(address.ip().to_canonical()),
            ClientAddress::Unix(user) => ClientHost::User(user),
        }
    }

    /// Does the port show that the client's host vouches for its calls?
    pub(crate) fn is_privileged(self) -> bool {
        match self {
            ClientAddress::Ip(address) => address.port() < UNPRIVILEGED_PORT_MIN,
            ClientAddress::Unix(_) => true,
        }
    }
}

/// The caller's identity, as stated by the client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Credentials {
    None,
    Unix { uid: u32, gid: u32, groups: SmallVec<[u32; GROUPS_MAX]> },
}

impl Credentials {
    /// Those of a user of this host, to replace what its calls state; `None`: root may act for any user.
    pub(crate) fn of(user: &LocalUser) -> Option<Credentials> {
        let credentials = || Credentials::Unix { uid: user.uid, gid: user.gid, groups: user.groups.as_slice().into() };
        (user.uid != 0).then(credentials)
    }
}
