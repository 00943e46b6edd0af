//! Finding a server's ports (rpcbind, RFC 1833) and the root of an export (MOUNT, RFC 1813, appendix I).

use std::sync::Arc;
use std::time::Duration;

use kernel::Processor;
use machine::Errno;
use nfs3_types::mount::{self as protocol, MOUNT_PROGRAM, dirpath, mountstat3};
use nfs3_types::nfs3::{self, NFS3_FHSIZE};
use nfs3_types::portmap::{self, IPPROTO_TCP, PMAP_PORT, PMAP_PROG, mapping};
use nfs3_types::xdr_codec::Opaque;

use crate::client::{NFS, Server};
use crate::handle::Handle;
use crate::rpc::{Caller, Connector, Failure, Port, Program, Remote, Route, Timeouts, packed};

const MOUNT: Program = Program { number: protocol::PROGRAM, version: protocol::VERSION };
const RPCBIND: Program = Program { number: portmap::PROGRAM, version: portmap::VERSION };

/// Where NFS is served if nobody says another port.
const NFS_PORT: Port = Port(2049);

/// For each of the calls before the mount is there, whose user waits for an error.
const TIMEOUTS: Timeouts =
    Timeouts { reply: Duration::from_secs(5), fails_after: Some(Duration::from_secs(10)), fails_unconnected: true };

/// The ports that the user says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    pub nfs: Option<Port>,
    pub mount: Option<Port>,
}

/// What is to be mounted, and how it is reached.
pub struct Export {
    pub connector: Arc<dyn Connector>,
    pub caller: Caller,
    /// Absolute.
    pub path: String,
    pub ports: Ports,
    /// Connections for NFS.
    pub connections: usize,
    /// Of its calls.
    pub timeouts: Timeouts,
    /// A number that no other mount draws.
    pub serial: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MountError {
    #[error("no answer at port {port}: {failure}")]
    Unreachable { port: u16, failure: Failure },
    #[error("the server has no export {0:?}")]
    NoExport(String),
    #[error(
        "the server does not let this host or user mount {0:?}; if it wants a port below 1024, root may use -o resvport"
    )]
    Denied(String),
    #[error("{0:?} on the server is no directory")]
    NotADirectory(String),
    #[error("the server serves no NFS version 3")]
    NoNfs,
    #[error("the server does not mount {path:?}: error {status} of the MOUNT protocol")]
    Refused { path: String, status: u32 },
    #[error("the server's answer is not one of the MOUNT protocol")]
    Garbage,
    #[error("{0:?} is mounted, but the server refuses what every mount asks: {1}")]
    Unusable(String, Errno),
}

/// Finds an export, and connects to it.
///
/// # Errors
/// What is wrong, in words for people.
pub async fn mount(cpu: &Processor, export: &Export) -> Result<Server, MountError> {
    let root = find_root(cpu, export).await?;
    let nfs = match export.ports.nfs {
        Some(port) => port,
        None => ask_port(cpu, export, NFS).await?.unwrap_or(NFS_PORT),
    };
    // Whether NFS is served there is known before a call could wait for it for ever.
    let probe = remote(cpu, export, NFS, nfs, TIMEOUTS, 1);
    let answer = probe.call(cpu, nfs3::NFS_PROGRAM::NFSPROC3_NULL as u32, &[]).await;
    probe.close();
    match answer {
        Ok(_) => {}
        Err(Failure::NoProgram) => return Err(MountError::NoNfs),
        Err(failure) => return Err(MountError::Unreachable { port: nfs.0, failure }),
    }
    let remote = remote(cpu, export, NFS, nfs, export.timeouts, export.connections);
    Server::open(cpu, remote, root).await.map_err(|errno| MountError::Unusable(export.path.clone(), errno))
}

fn remote(
    cpu: &Processor,
    export: &Export,
    program: Program,
    port: Port,
    timeouts: Timeouts,
    connections: usize,
) -> Remote {
    let route = Route {
        connector: Arc::clone(&export.connector),
        port,
        connections,
        timeouts,
        caller: export.caller.clone(),
        first_xid: export.serial as u32,
    };
    Remote::new(cpu, program, &route)
}

/// The export's root. A server may serve MOUNT beside NFS, as Awase does, or where rpcbind says.
async fn find_root(cpu: &Processor, export: &Export) -> Result<Handle, MountError> {
    if let Some(port) = export.ports.mount {
        return ask_root(cpu, export, port).await;
    }
    if let Some(port) = export.ports.nfs {
        match ask_root(cpu, export, port).await {
            Err(MountError::Unreachable { failure: Failure::NoProgram, .. }) => {}
            result => return result,
        }
    }
    let port = ask_port(cpu, export, MOUNT).await?.unwrap_or(NFS_PORT);
    ask_root(cpu, export, port).await
}

async fn ask_root(cpu: &Processor, export: &Export, port: Port) -> Result<Handle, MountError> {
    let remote = remote(cpu, export, MOUNT, port, TIMEOUTS, 1);
    let arguments = packed(&dirpath(Opaque::borrowed(export.path.as_bytes())));
    let reply = remote.call(cpu, MOUNT_PROGRAM::MOUNTPROC3_MNT as u32, &arguments).await;
    remote.close();
    let reply = reply.map_err(|failure| MountError::Unreachable { port: port.0, failure })?;
    const NOENT: u32 = mountstat3::MNT3ERR_NOENT as u32;
    const ACCES: u32 = mountstat3::MNT3ERR_ACCES as u32;
    const PERM: u32 = mountstat3::MNT3ERR_PERM as u32;
    const NOTDIR: u32 = mountstat3::MNT3ERR_NOTDIR as u32;
    let (mut results, path) = (reply.results(), export.path.clone());
    match results.u32().ok_or(MountError::Garbage)? {
        0 => {
            let root = results.opaque(NFS3_FHSIZE).filter(|root| !root.is_empty());
            root.map(Handle::new).ok_or(MountError::Garbage)
        }
        NOENT => Err(MountError::NoExport(path)),
        ACCES | PERM => Err(MountError::Denied(path)),
        NOTDIR => Err(MountError::NotADirectory(path)),
        status => Err(MountError::Refused { path, status }),
    }
}

/// The port of a program, as rpcbind says it; `None`: there is no rpcbind, or it does not know.
async fn ask_port(cpu: &Processor, export: &Export, program: Program) -> Result<Option<Port>, MountError> {
    let remote = remote(cpu, export, RPCBIND, Port(PMAP_PORT), TIMEOUTS, 1);
    let wanted = mapping { prog: program.number, vers: program.version, prot: IPPROTO_TCP, port: 0 };
    let reply = remote.call(cpu, PMAP_PROG::PMAPPROC_GETPORT as u32, &packed(&wanted)).await;
    remote.close();
    let Ok(reply) = reply else { return Ok(None) };
    let port = reply.results().u32().ok_or(MountError::Garbage)?;
    Ok(u16::try_from(port).ok().filter(|port| *port != 0).map(Port))
}
