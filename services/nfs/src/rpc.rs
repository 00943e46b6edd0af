//! Calls and replies (RFC 5531, sections 8 to 10).

use kernel::connection::{Header, Reply};
use nfs3_types::rpc::{RPC_VERSION_2, accept_stat, auth_stat, fragment_header, msg_type, reject_stat, reply_stat};
use nfs3_types::{mount, nfs3, xdr_codec};
use smallvec::SmallVec;

use crate::call::Results;
use crate::client::{Credentials, GROUPS_MAX};
use crate::program::Program;
use crate::shape::{Cursor, Look};

/// Shortest call up to its credentials, in bytes.
pub(crate) const CALL_BYTES_MIN: usize = 24;

/// Shortest credentials, and shortest verifier, in bytes: a flavor and a length.
const AUTH_BYTES_MIN: usize = 8;

/// Shortest head of a call, in bytes.
pub(crate) const HEAD_BYTES_MIN: usize = CALL_BYTES_MIN + 2 * AUTH_BYTES_MIN;

/// Longest body of credentials or verifier, in bytes (section 8.2).
const AUTH_BYTES_MAX: usize = 400;

/// Longest name of a caller's machine, in bytes (appendix A).
const MACHINE_NAME_BYTES_MAX: usize = 255;

/// Longest results that [`append`] takes, in bytes: those of `READ3res` up to its data.
const RESULTS_BYTES_MAX: usize = 104;

const AUTH_NONE: u32 = 0;
const AUTH_SYS: u32 = 1;

/// A call without its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallHead {
    pub(crate) xid: u32,
    pub(crate) program: Program,
    pub(crate) procedure: u32,
    pub(crate) credentials: Credentials,
    /// Bytes.
    pub(crate) len: usize,
}

/// The result of parsing the first bytes of a record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Parsed {
    /// At least this many bytes are needed.
    More(usize),
    /// Not a call.
    NoCall,
    /// A call to be answered with this reply.
    Refused(Header),
    /// A call to be executed.
    Call(CallHead),
}

/// Parses the first bytes of a record. Errors are reported in a server's order: RPC version, credentials, program,
/// program version.
pub(crate) fn parse(message: &[u8]) -> Parsed {
    let (xid, kind, version) = match [0, 4, 8].map(|at| word(message, at)) {
        [Some(xid), Some(kind), version] => (xid, kind, version),
        _ => return Parsed::More(8),
    };
    if kind != msg_type::CALL as u32 {
        return Parsed::NoCall;
    }
    let Some(version) = version else { return Parsed::More(12) };
    if version != RPC_VERSION_2 {
        return Parsed::Refused(mismatch(xid));
    }
    let verifier_at = match auth_end(message, CALL_BYTES_MIN) {
        Look::Known(at) => at,
        Look::Malformed => return Parsed::Refused(denied(xid, auth_stat::AUTH_BADCRED)),
        // After the credentials there must be a verifier.
        Look::More(needed) => return Parsed::More(needed + AUTH_BYTES_MIN),
    };
    let end = match auth_end(message, verifier_at) {
        Look::Known(at) => at,
        Look::Malformed => return Parsed::Refused(denied(xid, auth_stat::AUTH_BADVERF)),
        Look::More(needed) => return Parsed::More(needed),
    };
    let credentials = match credentials(&message[CALL_BYTES_MIN..verifier_at], &message[verifier_at..end]) {
        Ok(credentials) => credentials,
        Err(error) => return Parsed::Refused(denied(xid, error)),
    };
    let mut at = Cursor(&message[12..]);
    let (Some(program), Some(version), Some(procedure)) = (at.u32(), at.u32(), at.u32()) else {
        return Parsed::More(CALL_BYTES_MIN);
    };
    let (program, served) = match program {
        nfs3::PROGRAM => (Program::Nfs, nfs3::VERSION),
        mount::PROGRAM => (Program::Mount, mount::VERSION),
        _ => return Parsed::Refused(refusal(xid, accept_stat::PROG_UNAVAIL)),
    };
    if version != served {
        let mut reply = accepted(xid, accept_stat::PROG_MISMATCH);
        put(&mut reply, [served, served]);
        return Parsed::Refused(finish(reply, 0));
    }
    Parsed::Call(CallHead { xid, program, procedure, credentials, len: end })
}

/// The first word of a record.
pub(crate) fn xid(message: &[u8]) -> u32 {
    word(message, 0).unwrap_or(0)
}

fn word(message: &[u8], at: usize) -> Option<u32> {
    Cursor(message.get(at..)?).u32()
}

/// The end of the credentials or the verifier that begin at `at`. Malformed: too long.
fn auth_end(message: &[u8], at: usize) -> Look<usize> {
    let Some(len) = word(message, at + 4) else { return Look::More(at + 8) };
    if len as usize > AUTH_BYTES_MAX {
        return Look::Malformed;
    }
    let end = at + 8 + (len as usize).next_multiple_of(4);
    if message.len() < end { Look::More(end) } else { Look::Known(end) }
}

fn credentials(credentials: &[u8], verifier: &[u8]) -> Result<Credentials, auth_stat> {
    // Both supported flavors have an empty verifier (section 10.1 and appendix A).
    if verifier != [0; 8] {
        return Err(auth_stat::AUTH_BADVERF);
    }
    let mut at = Cursor(credentials);
    match at.u32() {
        Some(AUTH_NONE) => Ok(Credentials::None),
        Some(AUTH_SYS) => {
            let body = at.opaque(AUTH_BYTES_MAX).ok_or(auth_stat::AUTH_BADCRED)?;
            unix(Cursor(body)).ok_or(auth_stat::AUTH_BADCRED)
        }
        // An unknown shorthand or flavor: "client must begin new session".
        _ => Err(auth_stat::AUTH_REJECTEDCRED),
    }
}

fn unix(mut at: Cursor<'_>) -> Option<Credentials> {
    let _stamp = at.u32()?;
    let _machine = at.opaque(MACHINE_NAME_BYTES_MAX)?;
    let (uid, gid) = (at.u32()?, at.u32()?);
    let count = at.u32()? as usize;
    if count > GROUPS_MAX || at.0.len() != count * 4 {
        return None;
    }
    let groups = (0..count).map(|_| at.u32()).collect::<Option<SmallVec<_>>>()?;
    Some(Credentials::Unix { uid, gid, groups })
}

/// The reply to a refused call.
pub(crate) fn refusal(xid: u32, stat: accept_stat) -> Header {
    finish(accepted(xid, stat), 0)
}

/// The reply to a caller with insufficient credentials.
fn denied(xid: u32, error: auth_stat) -> Header {
    let mut reply = begin(xid, reply_stat::MSG_DENIED);
    put(&mut reply, [reject_stat::AUTH_ERROR as u32, error as u32]);
    finish(reply, 0)
}

/// The reply to another version of RPC.
fn mismatch(xid: u32) -> Header {
    let mut reply = begin(xid, reply_stat::MSG_DENIED);
    put(&mut reply, [reject_stat::RPC_MISMATCH as u32, RPC_VERSION_2, RPC_VERSION_2]);
    finish(reply, 0)
}

/// The reply with a call's results; `None`: no reply.
pub(crate) fn reply(xid: u32, results: Results) -> Option<Reply> {
    let header = match results {
        Results::Bytes(bytes) => {
            let mut reply = accepted(xid, accept_stat::SUCCESS);
            reply.extend_from_slice(&bytes);
            finish(reply, 0)
        }
        Results::Data { head, frames, skip, len } => {
            let mut header = accepted(xid, accept_stat::SUCCESS);
            header.extend_from_slice(&head);
            let padding = len.next_multiple_of(4) - len;
            let header = finish(header, len + padding);
            return Some(Reply { header, frames, offset: skip, len, padding, ..Reply::default() });
        }
        Results::GarbageArguments => refusal(xid, accept_stat::GARBAGE_ARGS),
        Results::ProcedureUnavailable => refusal(xid, accept_stat::PROC_UNAVAIL),
        Results::SystemError => refusal(xid, accept_stat::SYSTEM_ERR),
        Results::AuthError(error) => denied(xid, error),
        Results::Silence => return None,
    };
    Some(Reply { header, ..Reply::default() })
}

/// Space for the mark, and the start of a reply.
fn begin(xid: u32, stat: reply_stat) -> Header {
    let mut reply = Header::new();
    put(&mut reply, [0, xid, msg_type::REPLY as u32, stat as u32]);
    reply
}

/// Space for the mark, and a reply up to the results.
pub(crate) fn accepted(xid: u32, stat: accept_stat) -> Header {
    let mut reply = begin(xid, reply_stat::MSG_ACCEPTED);
    put(&mut reply, [AUTH_NONE, 0, stat as u32]);
    reply
}

/// Writes the mark of a reply that continues with `more` bytes.
pub(crate) fn finish(mut reply: Header, more: usize) -> Header {
    let len = (reply.len() - 4 + more) as u32 & fragment_header::MASK;
    if let Some(mark) = reply.first_chunk_mut() {
        *mark = fragment_header::new(len, true).into_xdr_buf();
    }
    reply
}

/// Appends results of at most [`RESULTS_BYTES_MAX`], which `pack` writes. `None`: it failed.
///
/// They are packed elsewhere and copied in one piece: a [`Header`] looks whether it must grow at each word.
pub(crate) fn append(reply: &mut Header, pack: impl FnOnce(&mut &mut [u8]) -> xdr_codec::Result<()>) -> Option<()> {
    let mut results = [0; RESULTS_BYTES_MAX];
    let mut rest = &mut results[..];
    pack(&mut rest).ok()?;
    let len = RESULTS_BYTES_MAX - rest.len();
    reply.extend_from_slice(&results[..len]);
    Some(())
}

fn put<const WORDS: usize>(reply: &mut Header, words: [u32; WORDS]) {
    reply.extend_from_slice(words.map(u32::to_be_bytes).as_flattened());
}
