//! Calls and replies of ONC RPC (RFC 5531, sections 9 to 11), as a client writes and reads them.

use kernel::Frames;
use kernel::connection::Header;
use nfs3_types::rpc::{RPC_VERSION_2, accept_stat, auth_unix, msg_type, opaque_auth, reply_stat};
use nfs3_types::xdr_codec::{Opaque, Pack};

use super::Failure;
use crate::results::Results;

/// The end of a record (section 11).
pub(crate) const LAST_FRAGMENT: u32 = 1 << 31;

/// Bytes of a record's mark.
pub(crate) const MARK_BYTES: usize = 4;

/// Groups in AUTH_SYS, at most (appendix A).
const GROUPS_MAX: usize = 16;

/// Longest verifier of a reply (section 8.2). Bytes.
const VERIFIER_BYTES_MAX: usize = 400;

/// A program and its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    pub number: u32,
    pub version: u32,
}

/// Who calls, as AUTH_SYS says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    pub machine: String,
    pub uid: u32,
    pub gid: u32,
    /// The first sixteen are sent.
    pub groups: Vec<u32>,
}

impl Caller {
    /// The credentials of its calls, encoded.
    pub(crate) fn credentials(&self) -> Vec<u8> {
        let gids = self.groups.iter().copied().take(GROUPS_MAX).collect();
        let machinename = Opaque::owned(self.machine.as_bytes().to_vec());
        let body = auth_unix { stamp: 0, machinename, uid: self.uid, gid: self.gid, gids };
        packed(&opaque_auth::auth_unix(&body))
    }
}

pub(crate) fn packed(value: &impl Pack) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(value.packed_size());
    // Into memory it fails only for opaque data beyond 4 GiB, which nothing here has.
    let _ = value.pack(&mut bytes);
    bytes
}

/// What follows the arguments' fixed part: bytes of frames, the first of them `offset` bytes into the first frame.
#[derive(Clone, Debug, Default)]
pub(crate) struct Payload {
    pub frames: Frames,
    pub offset: usize,
    pub len: usize,
}

impl Payload {
    pub fn padding(&self) -> usize {
        self.len.next_multiple_of(4) - self.len
    }
}

/// The record of a call up to its payload.
pub(crate) fn encode(
    xid: u32,
    program: Program,
    procedure: u32,
    credentials: &[u8],
    arguments: &[u8],
    payload: &Payload,
) -> Header {
    let mut header = Header::new();
    let len = 24 + credentials.len() + 8 + arguments.len() + payload.len + payload.padding();
    let words = [
        len as u32 | LAST_FRAGMENT,
        xid,
        msg_type::CALL as u32,
        RPC_VERSION_2,
        program.number,
        program.version,
        procedure,
    ];
    words.iter().for_each(|word| header.extend_from_slice(&word.to_be_bytes()));
    header.extend_from_slice(credentials);
    // No verifier.
    header.extend_from_slice(&[0; 8]);
    header.extend_from_slice(arguments);
    header
}

/// What the first bytes of a reply say of it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Parsed {
    /// At least this many bytes are needed.
    More(usize),
    /// Its results begin after this many bytes.
    Accepted(usize),
    Refused(Failure),
    Malformed,
}

/// Parses the head of a reply, from its number on.
pub(crate) fn parse(reply: &[u8]) -> Parsed {
    let word = |at: usize| reply.get(at..at + 4).map(|bytes| Results::new(bytes).u32().unwrap_or_default());
    let (Some(kind), Some(stat)) = (word(4), word(8)) else { return Parsed::More(12) };
    if kind != msg_type::REPLY as u32 {
        return Parsed::Malformed;
    }
    if stat == reply_stat::MSG_DENIED as u32 {
        let Some(why) = word(12) else { return Parsed::More(16) };
        // Of a reason other than the credentials: the version of RPC.
        return Parsed::Refused(if why == 1 { Failure::Credentials } else { Failure::Refused });
    }
    let Some(len) = word(16) else { return Parsed::More(20) };
    let len = len as usize;
    if stat != reply_stat::MSG_ACCEPTED as u32 || len > VERIFIER_BYTES_MAX {
        return Parsed::Malformed;
    }
    let at = 20 + len.next_multiple_of(4);
    let Some(accepted) = word(at) else { return Parsed::More(at + 4) };
    if accepted == accept_stat::SUCCESS as u32 {
        Parsed::Accepted(at + 4)
    } else if accepted == accept_stat::PROG_UNAVAIL as u32 || accepted == accept_stat::PROG_MISMATCH as u32 {
        Parsed::Refused(Failure::NoProgram)
    } else if accepted == accept_stat::PROC_UNAVAIL as u32 {
        Parsed::Refused(Failure::NoProcedure)
    } else {
        Parsed::Refused(Failure::Refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    #[test]
    fn a_reply_that_comes_in_pieces_says_how_much_is_needed() {
        let whole = words(&[7, 1, 0, 0, 4, 0xaaaa_aaaa, 0, 9]);
        for len in 0..28 {
            let Parsed::More(needed) = parse(&whole[..len]) else { panic!("{len} bytes are not enough") };
            assert!(needed > len && needed <= 28);
        }
        assert_eq!(parse(&whole), Parsed::Accepted(28));
    }

    #[test]
    fn refusals_are_told_apart() {
        assert_eq!(parse(&words(&[7, 1, 1, 1, 2])), Parsed::Refused(Failure::Credentials));
        assert_eq!(parse(&words(&[7, 1, 1, 0, 2, 2])), Parsed::Refused(Failure::Refused));
        assert_eq!(parse(&words(&[7, 1, 0, 0, 0, 1])), Parsed::Refused(Failure::NoProgram));
        assert_eq!(parse(&words(&[7, 1, 0, 0, 0, 3])), Parsed::Refused(Failure::NoProcedure));
        assert_eq!(parse(&words(&[7, 0, 0, 0, 0, 0])), Parsed::Malformed);
        assert_eq!(parse(&words(&[7, 1, 0, 0, 401])), Parsed::Malformed);
    }

    #[test]
    fn a_call_has_the_length_that_its_mark_says() {
        let caller = Caller { machine: "host".into(), uid: 1000, gid: 100, groups: (0..40).collect() };
        let credentials = caller.credentials();
        // Flavor and length; stamp, name, user, group, sixteen groups.
        assert_eq!(credentials.len(), 8 + 4 + 8 + 8 + 4 + 16 * 4);
        let payload = Payload { len: 5, ..Payload::default() };
        let program = Program { number: 100_003, version: 3 };
        let header = encode(7, program, 7, &credentials, &[1, 2, 3, 4], &payload);
        let mark = Results::new(&header).u32().expect("a mark");
        assert_eq!((mark & !LAST_FRAGMENT) as usize, header.len() - MARK_BYTES + 8);
    }
}
