//! The wire format: constants under the protocol's names, encoding and decoding. Source: the NBD protocol
//! specification, `doc/proto.md` of the NetworkBlockDevice project. All integers are big-endian.

use policy::unit::ByteRange;

/// `NBDMAGIC`, the first bytes from a server.
pub const NBD_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`, before every option, and after [`NBD_MAGIC`].
pub const NBD_OPTS_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Before every reply to an option.
pub const NBD_REP_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Before every request.
pub const NBD_REQUEST_MAGIC: u32 = 0x2560_9513;
/// Before every simple reply.
pub const NBD_SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Before every chunk of a structured reply.
pub const NBD_STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Handshake flags, server and client ("Handshake phase").
pub mod handshake {
    pub const FIXED_NEWSTYLE: u16 = 1;
    /// No 124 zeroes after `NBD_OPT_EXPORT_NAME`.
    pub const NO_ZEROES: u16 = 2;
}

pub mod option {
    #![allow(missing_docs, reason = "the names are the protocol's")]
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const STARTTLS: u32 = 5;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Replies to options ("Option reply types").
pub mod rep {
    #![allow(missing_docs, reason = "the names are the protocol's")]
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    pub const ERR: u32 = 1 << 31;
    pub const ERR_UNSUP: u32 = ERR + 1;
    pub const ERR_POLICY: u32 = ERR + 2;
    pub const ERR_INVALID: u32 = ERR + 3;
    pub const ERR_UNKNOWN: u32 = ERR + 6;
    pub const ERR_TOO_BIG: u32 = ERR + 9;
}

/// Information types of `NBD_OPT_INFO` and `NBD_OPT_GO`.
pub mod info {
    #![allow(missing_docs, reason = "the names are the protocol's")]
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

pub mod flag {
    #![allow(missing_docs, reason = "the names are the protocol's")]
    pub const HAS_FLAGS: u16 = 1;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const ROTATIONAL: u16 = 1 << 4;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const SEND_DF: u16 = 1 << 7;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    pub const SEND_CACHE: u16 = 1 << 10;
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

pub mod cmd {
    #![allow(missing_docs, reason = "the names are the protocol's")]
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISC: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const CACHE: u16 = 5;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;

    pub const FLAG_FUA: u16 = 1;
    pub const FLAG_NO_HOLE: u16 = 1 << 1;
    pub const FLAG_DF: u16 = 1 << 2;
    pub const FLAG_REQ_ONE: u16 = 1 << 3;
    pub const FLAG_FAST_ZERO: u16 = 1 << 4;
}

/// Chunks of structured replies ("Structured reply types").
pub mod chunk {
    #![allow(missing_docs, reason = "the names are the protocol's")]
    pub const FLAG_DONE: u16 = 1;
    pub const NONE: u16 = 0;
    pub const OFFSET_DATA: u16 = 1;
    pub const OFFSET_HOLE: u16 = 2;
    pub const BLOCK_STATUS: u16 = 5;
    pub const ERROR: u16 = (1 << 15) + 1;
    pub const ERROR_OFFSET: u16 = (1 << 15) + 2;
}

/// Flags of an extent in `base:allocation`.
pub mod state {
    #![allow(missing_docs, reason = "the names are the protocol's")]
    pub const HOLE: u32 = 1;
    pub const ZERO: u32 = 2;
}

/// The only meta context provided.
pub const BASE_ALLOCATION: &str = "base:allocation";

/// The protocol's errors ("Error values").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NbdError(pub u32);

impl NbdError {
    #![allow(missing_docs, reason = "the names are the protocol's")]
    pub const EPERM: NbdError = NbdError(1);
    pub const EIO: NbdError = NbdError(5);
    pub const ENOMEM: NbdError = NbdError(12);
    pub const EINVAL: NbdError = NbdError(22);
    pub const ENOSPC: NbdError = NbdError(28);
    pub const EOVERFLOW: NbdError = NbdError(75);
    pub const ENOTSUP: NbdError = NbdError(95);
    pub const ESHUTDOWN: NbdError = NbdError(108);
}

impl From<machine::Errno> for NbdError {
    fn from(errno: machine::Errno) -> Self {
        match errno {
            // Quotas and size limits are those of the server's files: to a client the disk is full.
            machine::Errno::NO_SPACE | machine::Errno::QUOTA_EXCEEDED | machine::Errno::FILE_TOO_LARGE => {
                NbdError::ENOSPC
            }
            machine::Errno::NO_MEMORY => NbdError::ENOMEM,
            machine::Errno::INVALID => NbdError::EINVAL,
            machine::Errno::NOT_SUPPORTED => NbdError::ENOTSUP,
            machine::Errno::READ_ONLY => NbdError::EPERM,
            _ => NbdError::EIO,
        }
    }
}

pub const REQUEST_BYTES: usize = 28;

/// A request's header ("Request message").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub flags: u16,
    pub kind: u16,
    /// Chosen by the client, returned with the reply.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

impl Request {
    /// The bytes that it is about; their end must have been checked.
    pub fn range(&self) -> ByteRange {
        ByteRange::new(self.offset, u64::from(self.len))
    }

    /// `None` if the magic is wrong.
    pub fn decode(bytes: &[u8; REQUEST_BYTES]) -> Option<Request> {
        let mut at = Reader::new(bytes);
        if at.u32()? != NBD_REQUEST_MAGIC {
            return None;
        }
        Some(Request { flags: at.u16()?, kind: at.u16()?, cookie: at.u64()?, offset: at.u64()?, len: at.u32()? })
    }

    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..4].copy_from_slice(&NBD_REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.kind.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }
}

pub fn simple_reply(error: u32, cookie: u64) -> [u8; 16] {
    let mut header = [0; 16];
    header[..4].copy_from_slice(&NBD_SIMPLE_REPLY_MAGIC.to_be_bytes());
    header[4..8].copy_from_slice(&error.to_be_bytes());
    header[8..].copy_from_slice(&cookie.to_be_bytes());
    header
}

/// A chunk's header; `len` bytes of payload follow it.
pub fn structured_chunk(done: bool, kind: u16, cookie: u64, len: u32) -> [u8; 20] {
    let mut header = [0; 20];
    header[..4].copy_from_slice(&NBD_STRUCTURED_REPLY_MAGIC.to_be_bytes());
    header[4..6].copy_from_slice(&(if done { chunk::FLAG_DONE } else { 0 }).to_be_bytes());
    header[6..8].copy_from_slice(&kind.to_be_bytes());
    header[8..16].copy_from_slice(&cookie.to_be_bytes());
    header[16..].copy_from_slice(&len.to_be_bytes());
    header
}

/// Appends the reply to an option.
pub fn option_reply(to: &mut Vec<u8>, option: u32, kind: u32, payload: &[u8]) {
    to.extend_from_slice(&NBD_REP_MAGIC.to_be_bytes());
    to.extend_from_slice(&option.to_be_bytes());
    to.extend_from_slice(&kind.to_be_bytes());
    to.extend_from_slice(&(payload.len() as u32).to_be_bytes());
    to.extend_from_slice(payload);
}

/// Decodes integers and strings from a slice; `None` if it is too short.
pub struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { bytes }
    }

    pub fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.bytes.split_at_checked(len)?;
        self.bytes = tail;
        Some(head)
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub fn u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.take(2)?.try_into().ok()?))
    }

    pub fn u32(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    pub fn u64(&mut self) -> Option<u64> {
        Some(u64::from_be_bytes(self.take(8)?.try_into().ok()?))
    }

    /// A UTF-8 string after its length.
    pub fn string(&mut self) -> Option<&'a str> {
        let len = self.u32()? as usize;
        std::str::from_utf8(self.take(len)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_has_no_room_on_the_server_is_a_full_disk_to_the_client() {
        use machine::Errno;
        let errors = [Errno::NO_SPACE, Errno::QUOTA_EXCEEDED, Errno::FILE_TOO_LARGE];
        assert_eq!(errors.map(NbdError::from), [NbdError::ENOSPC; 3]);
        assert_eq!(NbdError::from(Errno::STALE), NbdError::EIO);
    }

    proptest! {
        #[test]
        fn a_request_is_read_as_it_was_written(
            flags: u16, kind: u16, cookie: u64, offset: u64, len: u32
        ) {
            let request = Request { flags, kind, cookie, offset, len };
            prop_assert_eq!(Request::decode(&request.encode()), Some(request));
        }

        #[test]
        fn a_reader_never_reads_beyond_its_bytes(bytes: Vec<u8>, steps: Vec<u8>) {
            let mut reader = Reader::new(&bytes);
            let mut left = bytes.len();
            for step in steps {
                let taken = match step % 4 {
                    0 => reader.u16().map(|_| 2),
                    1 => reader.u32().map(|_| 4),
                    2 => reader.u64().map(|_| 8),
                    _ => reader.take(usize::from(step)).map(<[u8]>::len),
                };
                left -= taken.unwrap_or(0);
                prop_assert_eq!(reader.is_empty(), left == 0);
            }
        }
    }

    #[test]
    fn a_request_with_another_magic_is_none() {
        let mut bytes = Request { flags: 0, kind: 0, cookie: 1, offset: 2, len: 3 }.encode();
        bytes[3] ^= 1;
        assert_eq!(Request::decode(&bytes), None);
    }
}
