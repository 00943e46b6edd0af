//! The other end of a connection.

use std::net::SocketAddr;

use crate::job::Origin;

/// The remote end of a connection.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    pub address: Option<SocketAddr>,
    /// The client's user, if it is on this host and the host reports it.
    pub user: Option<LocalUser>,
    /// The client's core, if it is on this host.
    pub core: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalUser {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

impl Peer {
    /// Determines the job to charge.
    pub(super) fn origin(&self) -> Origin {
        Origin { address: self.address.map(|address| address.ip()), user: self.user.as_ref().map(|user| user.uid) }
    }
}
