//! Calls and replies (RFC 5531, sections 8 to 10).

use kernel::connection::{Header, Reply};
use nfs3_types::rpc::{RPC_VERSION_2, accept_stat, auth_stat, fragment_header, msg_type, reject_stat, reply_stat};
use nfs3_types::{mount, nfs3};
use smallvec::SmallVec;

use crate::call::{Credentials, GROUPS_MAX, Program, Results};
use crate::shape::Cursor;

/// Shortest call, in bytes, as far as credentials and verifier.
pub(crate) const CALL_BYTES_MIN: usize = 24;

/// Shortest credentials, and shortest verifier, in bytes: a flavor and a length.
const AUTH_BYTES_MIN: usize = 8;

/// Shortest head of a call, in bytes: no arguments begin before it.
pub(crate) const HEAD_BYTES_MIN: usize = CALL_BYTES_MIN + 2 * AUTH_BYTES_MIN;

/// Longest body of credentials and of a verifier, in bytes (section 8.2).
const AUTH_BYTES_MAX: usize = 400;

/// Longest name of a caller's machine, in bytes (appendix A).
const MACHINE_NAME_BYTES_MAX: usize = 255;

const AUTH_NONE: u32 = 0;
const AUTH_SYS: u32 = 1;

/// The part of a call before its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallHead {
    pub(crate) xid: u32,
    pub(crate) program: Program,
    pub(crate) procedure: u32,
    pub(crate) credentials: Credentials,
    /// Its length in bytes.
    pub(crate) len: usize,
}

/// What the first bytes of a record say.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Parsed {
    /// Nothing yet: so many bytes are needed at least.
    More(usize),
    /// It is no call, as far as can be seen.
    NoCall,
    /// A call that is answered with this reply.
    Refused(Header),
    /// A call that may be done.
    Call(CallHead),
}

/// Looks at the first bytes of a record. What is wrong with a call is told in the order in which a server finds it:
/// version of RPC, credentials, program, version of the program.
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
        Ok(at) => at,
        Err(None) => return Parsed::Refused(denied(xid, auth_stat::AUTH_BADCRED)),
        // After the credentials there must be a verifier.
        Err(Some(needed)) => return Parsed::More(needed + AUTH_BYTES_MIN),
    };
    let end = match auth_end(message, verifier_at) {
        Ok(at) => at,
        Err(None) => return Parsed::Refused(denied(xid, auth_stat::AUTH_BADVERF)),
        Err(Some(needed)) => return Parsed::More(needed),
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
        put(&mut reply, &[served, served]);
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

/// Where the credentials or the verifier end that begin at `at`; else how many bytes are needed to tell, or `None` if they
/// are too long.
fn auth_end(message: &[u8], at: usize) -> Result<usize, Option<usize>> {
    let len = word(message, at + 4).ok_or(Some(at + 8))? as usize;
    if len > AUTH_BYTES_MAX {
        return Err(None);
    }
    let end = at + 8 + len.next_multiple_of(4);
    if message.len() < end { Err(Some(end)) } else { Ok(end) }
}

fn credentials(credentials: &[u8], verifier: &[u8]) -> Result<Credentials, auth_stat> {
    // Both flavors that are taken come with an empty verifier (section 10.1 and appendix A).
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
        // A shorthand that was never given out, or a flavor that is not known here: "client must begin new session".
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

/// The reply to a call that is refused for what it is.
pub(crate) fn refusal(xid: u32, stat: accept_stat) -> Header {
    finish(accepted(xid, stat), 0)
}

/// The reply to a caller that must show other credentials.
fn denied(xid: u32, error: auth_stat) -> Header {
    let mut reply = begin(xid, reply_stat::MSG_DENIED);
    put(&mut reply, &[reject_stat::AUTH_ERROR as u32, error as u32]);
    finish(reply, 0)
}

/// The reply to a call of another version of RPC.
fn mismatch(xid: u32) -> Header {
    let mut reply = begin(xid, reply_stat::MSG_DENIED);
    put(&mut reply, &[reject_stat::RPC_MISMATCH as u32, RPC_VERSION_2, RPC_VERSION_2]);
    finish(reply, 0)
}

/// The reply with what came of a call; `None` if there is to be none.
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

/// Room for the mark, and the beginning of a reply.
fn begin(xid: u32, stat: reply_stat) -> Header {
    let mut reply = Header::new();
    put(&mut reply, &[0, xid, msg_type::REPLY as u32, stat as u32]);
    reply
}

/// Room for the mark, and a reply up to the results.
pub(crate) fn accepted(xid: u32, stat: accept_stat) -> Header {
    let mut reply = begin(xid, reply_stat::MSG_ACCEPTED);
    put(&mut reply, &[AUTH_NONE, 0, stat as u32]);
    reply
}

/// Writes the mark of a reply that goes on with `more` bytes.
pub(crate) fn finish(mut reply: Header, more: usize) -> Header {
    let len = (reply.len() - 4 + more) as u32 & fragment_header::MASK;
    if let Some(mark) = reply.first_chunk_mut() {
        *mark = fragment_header::new(len, true).into_xdr_buf();
    }
    reply
}

fn put(reply: &mut Header, words: &[u32]) {
    words.iter().for_each(|word| reply.extend_from_slice(&word.to_be_bytes()));
}
