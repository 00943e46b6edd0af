//! The servers that are compared.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nfs3_types::{mount, nfs3};

use super::awase::Awase;
use super::ganesha::Ganesha;
use crate::bench::process::{Interrupted, Process};
use crate::load::Endpoint;
use crate::load::session::Session;

/// Timeout of a server's start.
pub const START_PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    Awase(&'static [&'static str]),
    /// NFS-Ganesha with VFS.
    Ganesha,
    /// The same, on a directory in which names change durably (`chattr +D`): Ganesha has no setting for that.
    GaneshaOnSynchronousDirectory,
    /// No server: the machine alone ([`super::raw`]).
    Raw,
}

/// What a server is to export.
pub struct Order<'a> {
    pub awase: &'a Path,
    pub directory: &'a Path,
    /// A directory for this server alone.
    pub place: &'a Path,
}

pub enum Server {
    Awase(Awase),
    Ganesha(Ganesha),
}

impl Server {
    /// Starts a server and waits until it answers.
    pub fn start(peer: Peer, order: &Order<'_>, interrupted: &Interrupted) -> Result<Server> {
        let Order { awase, directory, place } = *order;
        match peer {
            Peer::Awase(flags) => Awase::start(awase, flags, directory, place, interrupted).map(Server::Awase),
            Peer::Ganesha | Peer::GaneshaOnSynchronousDirectory => {
                Ganesha::start(directory, place, interrupted).map(Server::Ganesha)
            }
            Peer::Raw => bail!("nobody serves"),
        }
    }

    pub fn endpoint(&self) -> &Endpoint {
        match self {
            Server::Awase(awase) => &awase.endpoint,
            Server::Ganesha(ganesha) => &ganesha.endpoint,
        }
    }

    pub fn process(&self) -> &Process {
        match self {
            Server::Awase(awase) => &awase.process,
            Server::Ganesha(ganesha) => &ganesha.process,
        }
    }

    pub fn stop(self) -> Result<()> {
        match self {
            Server::Awase(awase) => awase.process.stop(),
            Server::Ganesha(ganesha) => ganesha.stop(),
        }
    }
}

/// Waits until a server answers and has its export.
pub fn await_answer(process: &mut Process, endpoint: &Endpoint) -> Result<()> {
    let deadline = Instant::now() + START_PATIENCE;
    // Not all servers report when they are ready.
    while let Err(error) = answers(endpoint) {
        if let Some(status) = process.ended()? {
            bail!("it ended ({status}): {}", process.messages());
        }
        if Instant::now() > deadline {
            return Err(error).context(format!("no answer within {} s", START_PATIENCE.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn answers(endpoint: &Endpoint) -> Result<()> {
    Session::new(endpoint.nfs, 0, 0)?.null(nfs3::PROGRAM, nfs3::VERSION)?;
    Session::new(endpoint.mount, 0, 0)?.null(mount::PROGRAM, mount::VERSION)?;
    // The export may appear after the ports.
    Session::mount(endpoint).map(drop)
}

/// Ports of loopback that were free a moment ago.
pub fn free_ports<const COUNT: usize>() -> Result<[SocketAddr; COUNT]> {
    let sockets: Vec<TcpListener> = (0..COUNT).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<io::Result<_>>()?;
    let mut ports = [SocketAddr::from(([127, 0, 0, 1], 0)); COUNT];
    for (port, socket) in ports.iter_mut().zip(&sockets) {
        *port = socket.local_addr()?;
    }
    Ok(ports)
}
