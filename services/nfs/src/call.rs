//! A call between the wire and the procedures: what was asked, by whom, and what is answered.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use kernel::request::JobId;
use kernel::{FRAME_BYTES, Frames, Kernel, Processor};
use nfs3_types::rpc::auth_stat;
use smallvec::SmallVec;

use crate::replay::ConnectionNumber;
use crate::server::Server;

/// Most bytes of one READ or WRITE.
pub const TRANSFER_BYTES_MAX: u32 = 1 << 20;

/// And at least, however small the cache.
const TRANSFER_BYTES_MIN: u64 = 128 << 10;

/// A transfer is at most the cache's size divided by this, within these bounds: many must fit in.
const TRANSFER_SHARE: u64 = 64;

/// Most groups of a caller besides its first (RFC 5531, appendix A).
pub(crate) const GROUPS_MAX: usize = 16;

/// What FSINFO says of `rtmax` and `wtmax`, and what a READ gives at most. Bytes. A WRITE may be longer, up to
/// [`TRANSFER_BYTES_MAX`]: the cache may have shrunk since the client asked.
pub(crate) fn transfer_bytes_max(kernel: &Kernel) -> u32 {
    let share = kernel.cache_blocks() * FRAME_BYTES as u64 / TRANSFER_SHARE;
    share.clamp(TRANSFER_BYTES_MIN, u64::from(TRANSFER_BYTES_MAX)).next_power_of_two().min(TRANSFER_BYTES_MAX.into())
        as u32
}

/// From where a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ClientAddress {
    Ip(SocketAddr),
    /// Through a socket of this host, as this user of it.
    Unix(u32),
}

/// As whom the host says that a client has connected to a Unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalPeer {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

impl LocalPeer {
    /// In place of what its calls claim; `None`: root may act for anybody.
    pub(crate) fn credentials(&self) -> Option<Credentials> {
        let credentials = || Credentials::Unix { uid: self.uid, gid: self.gid, groups: self.groups.as_slice().into() };
        (self.uid != 0).then(credentials)
    }
}

/// Those who share what is kept for one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ClientHost {
    Address(IpAddr),
    /// A user of this one.
    User(u32),
}

/// Ports below this one are given by a host to root alone.
const UNPRIVILEGED_PORT_MIN: u16 = 1024;

impl ClientAddress {
    /// The host's address; `None`: this one.
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

    /// Does the client's host vouch for what it says, as far as its port shows?
    pub(crate) fn is_privileged(self) -> bool {
        match self {
            ClientAddress::Ip(address) => address.port() < UNPRIVILEGED_PORT_MIN,
            ClientAddress::Unix(_) => true,
        }
    }
}

/// The programs that are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Program {
    Nfs,
    Mount,
}

/// Who a caller says it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Credentials {
    None,
    Unix { uid: u32, gid: u32, groups: SmallVec<[u32; GROUPS_MAX]> },
}

/// The data of a WRITE.
#[derive(Debug)]
pub(crate) struct Payload {
    pub(crate) frames: Frames,
    /// Where its first byte lies in the first frame: the WRITE's offset modulo 4096.
    pub(crate) start: usize,
    /// Bytes of data: what the wire says, which may differ from the argument `count`.
    pub(crate) len: u32,
}

impl Payload {
    /// CRC-32 of the data: a tenth of a microsecond for 4 KiB that have just come (with carry-less multiplication).
    pub(crate) fn checksum(&self) -> u32 {
        let mut checksum = crc32fast::Hasher::new();
        let (mut start, mut left) = (self.start, self.len as usize);
        for frame in &self.frames {
            let now = left.min(FRAME_BYTES - start);
            checksum.update(&frame.bytes()[start..start + now]);
            (start, left) = (0, left - now);
        }
        checksum.finalize()
    }
}

pub(crate) struct Call {
    pub(crate) cpu: Processor,
    pub(crate) server: Arc<Server>,
    pub(crate) client: ClientAddress,
    /// On which connection it came.
    pub(crate) connection: ConnectionNumber,
    pub(crate) credentials: Credentials,
    pub(crate) program: Program,
    /// Its number in the program; may be one that there is not.
    pub(crate) procedure: u32,
    pub(crate) xid: u32,
    /// XDR of the arguments. No opaque in them is longer than they are. Of a WRITE up to `stable`: neither the data nor
    /// its length.
    pub(crate) arguments: Vec<u8>,
    /// The data of a WRITE; of no other.
    pub(crate) payload: Option<Payload>,
    /// To whom the work is charged.
    pub(crate) job: JobId,
}

/// What came of a call.
#[derive(Debug)]
pub(crate) enum Results {
    Bytes(Vec<u8>),
    /// Results that end with an opaque: the data of a READ.
    Data {
        /// Everything before the opaque's bytes, its length included.
        head: Vec<u8>,
        /// Where the bytes are.
        frames: Frames,
        /// Where they begin in the first frame.
        skip: usize,
        /// How many. The padding comes by itself.
        len: usize,
    },
    /// The arguments could not be decoded.
    GarbageArguments,
    /// There is no such procedure.
    ProcedureUnavailable,
    /// The caller must show other credentials.
    AuthError(auth_stat),
    SystemError,
    /// No reply: the same call is under way already.
    Silence,
}
