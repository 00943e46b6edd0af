//! The servers that are compared.

use std::path::Path;

use anyhow::Result;

use super::ganesha::Ganesha;
use super::session::Endpoint;
use crate::process::{Interrupted, Process};

/// Who serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// NFS-Ganesha with VFS.
    Ganesha,
}

impl Peer {
    /// How reports name it.
    pub fn label(self) -> &'static str {
        match self {
            Peer::Ganesha => "NFS-Ganesha",
        }
    }
}

/// What a server is to serve.
pub struct Order<'a> {
    /// The directory.
    pub directory: &'a Path,
    /// A directory for the server alone.
    pub place: &'a Path,
}

/// A server that is ready.
pub enum Server {
    /// NFS-Ganesha.
    Ganesha(Ganesha),
}

impl Server {
    /// Starts one and waits until it answers.
    pub fn start(peer: Peer, order: &Order<'_>, interrupted: &Interrupted) -> Result<Server> {
        match peer {
            Peer::Ganesha => Ok(Server::Ganesha(Ganesha::start(order.directory, order.place, interrupted)?)),
        }
    }

    /// Where it answers.
    pub fn endpoint(&self) -> &Endpoint {
        match self {
            Server::Ganesha(ganesha) => &ganesha.endpoint,
        }
    }

    /// Its process.
    pub fn process(&self) -> &Process {
        match self {
            Server::Ganesha(ganesha) => &ganesha.process,
        }
    }

    /// Ends it.
    pub fn stop(self) -> Result<()> {
        match self {
            Server::Ganesha(ganesha) => ganesha.stop(),
        }
    }
}
