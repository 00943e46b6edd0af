//! Registration with the host's rpcbind (RFC 1833).
//!
//! Plain blocking calls with timeouts, for the program's start and end, not for a processor. After a failure, clients
//! have to specify the port.
//!
//! rpcbind accepts registrations only through its Unix socket (over loopback only from privileged ports, and only if
//! started with `-L` or `-i`), so that is tried first, with version 4; without it, port 111 with version 2, as of the
//! older portmap.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nfs3_types::portmap::{self, PMAP_PROG, mapping};
use nfs3_types::rpc::{RPC_VERSION_2, fragment_header, msg_type};
use nfs3_types::xdr_codec::{Opaque, Pack};
use nfs3_types::{mount, nfs3};

/// Of each step.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Longest reply that is read, in bytes: expected ones have 28.
const ANSWER_BYTES_MAX: u32 = 1024;

/// `RPCBPROC_SET` and `RPCBPROC_UNSET` (section 2.1); they have the same numbers in version 2.
const SET: u32 = PMAP_PROG::PMAPPROC_SET as u32;
const UNSET: u32 = PMAP_PROG::PMAPPROC_UNSET as u32;

/// The version spoken on the Unix socket.
const RPCBIND_VERSION: u32 = 4;

/// The programs and their versions.
const PROGRAMS: [(u32, u32); 2] = [(nfs3::PROGRAM, nfs3::VERSION), (mount::PROGRAM, mount::VERSION)];

/// Why the registration failed.
#[derive(Debug, thiserror::Error)]
pub enum RpcbindError {
    /// It cannot be reached, or disconnected.
    #[error("rpcbind does not answer: {0}; clients must be told the port")]
    Unreachable(#[from] io::Error),
    /// It sent an invalid reply.
    #[error("rpcbind did not understand; clients must be told the port")]
    NoAnswer,
    /// Another server is registered, or rpcbind refuses registrations by this user.
    #[error("rpcbind did not accept program {program}: is another server registered? (`rpcinfo -p` tells)")]
    Refused { program: u32 },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rpcbind {
    pub socket: PathBuf,
    /// Used if there is no such socket.
    pub address: SocketAddr,
}

impl Default for Rpcbind {
    fn default() -> Self {
        let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), portmap::PMAP_PORT);
        Rpcbind { socket: PathBuf::from("/run/rpcbind.sock"), address }
    }
}

impl Rpcbind {
    /// Registers NFS and MOUNT at `listening` over TCP, replacing earlier registrations by this user.
    ///
    /// # Errors
    /// Clients that specify the port are not affected.
    pub fn register(&self, listening: SocketAddr) -> Result<(), RpcbindError> {
        let mut session = Session::connect(self)?;
        for (program, version) in PROGRAMS {
            // Removes what a killed server may have left; fails harmlessly if there is nothing.
            session.ask(UNSET, program, version, listening)?;
            if !session.ask(SET, program, version, listening)? {
                return Err(RpcbindError::Refused { program });
            }
        }
        Ok(())
    }

    /// Removes the registration.
    ///
    /// # Errors
    /// The registration may still exist.
    pub fn unregister(&self, listening: SocketAddr) -> Result<(), RpcbindError> {
        let mut session = Session::connect(self)?;
        for (program, version) in PROGRAMS {
            if !session.ask(UNSET, program, version, listening)? {
                return Err(RpcbindError::Refused { program });
            }
        }
        Ok(())
    }
}

/// The universal address of a socket (RFC 5665, section 5.2.3.3), and its netid.
fn universal(listening: SocketAddr) -> (&'static str, String) {
    let [high, low] = listening.port().to_be_bytes();
    let netid = if listening.is_ipv4() { "tcp" } else { "tcp6" };
    (netid, format!("{}.{high}.{low}", listening.ip()))
}

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

struct Session {
    stream: Box<dyn Stream>,
    version: u32,
    xid: u32,
}

impl Session {
    fn connect(rpcbind: &Rpcbind) -> io::Result<Self> {
        let (stream, version): (Box<dyn Stream>, _) = match connect_local(&rpcbind.socket) {
            Ok(stream) => (Box::new(stream), RPCBIND_VERSION),
            Err(_) => (Box::new(connect_tcp(rpcbind.address)?), portmap::VERSION),
        };
        Ok(Session { stream, version, xid: std::process::id() })
    }

    /// A call whose result is a boolean.
    fn ask(&mut self, procedure: u32, prog: u32, vers: u32, listening: SocketAddr) -> Result<bool, RpcbindError> {
        let mut arguments = Vec::new();
        if self.version == portmap::VERSION {
            let port = if procedure == SET { listening.port().into() } else { 0 };
            let mapping = mapping { prog, vers, prot: portmap::IPPROTO_TCP, port };
            mapping.pack(&mut arguments).map_err(|_| RpcbindError::NoAnswer)?;
        } else {
            let (netid, address) = universal(listening);
            arguments.extend([prog, vers].iter().flat_map(|word| word.to_be_bytes()));
            // rpcbind determines the owner itself.
            for text in [netid, &address, ""] {
                Opaque::borrowed(text.as_bytes()).pack(&mut arguments).map_err(|_| RpcbindError::NoAnswer)?;
            }
        }
        let answer = self.exchange(procedure, &arguments)?;
        let words: Vec<u32> = answer.as_chunks().0.iter().map(|word| u32::from_be_bytes(*word)).collect();
        // xid, REPLY, MSG_ACCEPTED, verifier of AUTH_NONE, SUCCESS; then the boolean.
        match words[..] {
            [xid, kind, 0, 0, 0, 0, done] if xid == self.xid && kind == msg_type::REPLY as u32 => Ok(done != 0),
            _ => Err(RpcbindError::NoAnswer),
        }
    }

    fn exchange(&mut self, procedure: u32, arguments: &[u8]) -> io::Result<Vec<u8>> {
        self.xid = self.xid.wrapping_add(1);
        let none = [0, 0]; // AUTH_NONE, empty
        let head = [
            &[self.xid, msg_type::CALL as u32, RPC_VERSION_2, portmap::PROGRAM, self.version, procedure],
            &none[..],
            &none,
        ]
        .concat();
        let mut call: Vec<u8> = head.iter().flat_map(|word| word.to_be_bytes()).collect();
        call.extend_from_slice(arguments);
        let mark = fragment_header::new(call.len() as u32, true).into_xdr_buf();
        self.stream.write_all(&[&mark[..], &call].concat())?;
        let mut mark = [0; 4];
        self.stream.read_exact(&mut mark)?;
        let mark = fragment_header::from(mark);
        if !mark.eof() || mark.fragment_length() > ANSWER_BYTES_MAX {
            return Ok(Vec::new());
        }
        let mut answer = vec![0; mark.fragment_length() as usize];
        self.stream.read_exact(&mut answer)?;
        Ok(answer)
    }
}

fn connect_local(socket: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

fn connect_tcp(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    Ok(stream)
}
