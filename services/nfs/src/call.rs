//! A call between the wire and the procedures, and its results.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use kernel::connection::{LocalUser, Peer};
use kernel::request::JobId;
use kernel::{FRAME_BYTES, Frames, Kernel, Processor};
use nfs3_types::rpc::auth_stat;
use smallvec::SmallVec;

use crate::nfs::Nfs;
use crate::replay::ConnectionNumber;
use crate::shape::WriteArguments;

/// One READ or WRITE, at most.
pub const TRANSFER_BYTES_MAX: u32 = 1 << 20;

/// And at least, even with a small cache.
const TRANSFER_BYTES_MIN: u64 = 128 << 10;

/// A transfer is at most the cache's size divided by this, within these bounds, so that many fit.
const TRANSFER_SHARE: u64 = 64;

/// Groups of a caller besides its first, at most (RFC 5531, appendix A).
pub(crate) const GROUPS_MAX: usize = 16;

/// `rtmax` and `wtmax` of FSINFO, and the most that a READ returns. Bytes. A WRITE may be longer, up to
/// [`TRANSFER_BYTES_MAX`]: the cache may have shrunk since FSINFO.
pub(crate) fn transfer_bytes_max(kernel: &Kernel) -> u32 {
    let share = kernel.cache_blocks() * FRAME_BYTES as u64 / TRANSFER_SHARE;
    share.clamp(TRANSFER_BYTES_MIN, u64::from(TRANSFER_BYTES_MAX)).next_power_of_two().min(TRANSFER_BYTES_MAX.into())
        as u32
}

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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Program {
    Nfs,
    Mount,
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

/// Data of a WRITE.
#[derive(Debug)]
pub struct Payload {
    pub(crate) write: WriteArguments,
    /// The first byte lies [here](WriteArguments::start) in the first frame.
    pub(crate) frames: Frames,
}

impl Payload {
    /// CRC-32 of the data: a tenth of a microsecond for 4 KiB that were just received (with carry-less multiplication).
    pub(crate) fn checksum(&self) -> u32 {
        let mut checksum = crc32fast::Hasher::new();
        let (mut start, mut left) = (self.write.start(), self.write.data_len as usize);
        for frame in &self.frames {
            let now = left.min(FRAME_BYTES - start);
            checksum.update(&frame.bytes()[start..start + now]);
            (start, left) = (0, left - now);
        }
        checksum.finalize()
    }
}

pub struct Call {
    pub(crate) cpu: Processor,
    pub(crate) nfs: Arc<Nfs>,
    pub(crate) client: ClientAddress,
    /// On which it was received.
    pub(crate) connection: ConnectionNumber,
    pub(crate) credentials: Credentials,
    pub(crate) program: Program,
    /// Its number in the program, possibly undefined.
    pub(crate) procedure: u32,
    pub(crate) xid: u32,
    /// XDR of the arguments, in which opaques were checked to be complete. Of a WRITE up to `stable`, without the data
    /// and its length.
    pub(crate) arguments: Vec<u8>,
    /// Of a WRITE only.
    pub(crate) payload: Option<Payload>,
    /// The job to charge.
    pub(crate) job: JobId,
}

#[derive(Debug)]
pub enum Results {
    Bytes(Vec<u8>),
    /// Results that end with an opaque: the data of a READ.
    Data {
        /// Everything before the opaque's bytes, its length included.
        head: Vec<u8>,
        /// The bytes.
        frames: Frames,
        /// Their offset in the first frame.
        skip: usize,
        /// Their number, without padding.
        len: usize,
    },
    /// The arguments are malformed.
    GarbageArguments,
    ProcedureUnavailable,
    /// Other credentials are required.
    AuthError(auth_stat),
    SystemError,
    /// No reply: the same call is in progress.
    Silence,
}
