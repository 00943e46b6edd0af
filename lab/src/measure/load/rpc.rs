//! Calls and replies of ONC RPC over TCP (RFC 5531), for a client.

use anyhow::{Context, Result, bail, ensure};
use nfs3_types::nfs3::{self, NFS_PROGRAM};
use nfs3_types::rpc::{
    RPC_VERSION_2, accept_stat_data, auth_unix, call_body, fragment_header, msg_body, opaque_auth, reply_body, rpc_msg,
};
use nfs3_types::xdr_codec::{self, Opaque, Pack, Unpack};

/// Retained bytes of a reply: more than any reply's header that is decoded. The data of a READ follow them.
pub const HEAD_BYTES_MAX: usize = 1024;

/// The longest reply that is accepted: more than the largest READ that servers offer.
const RECORD_BYTES_MAX: usize = 64 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Procedure {
    pub program: u32,
    pub version: u32,
    pub number: u32,
}

impl From<NFS_PROGRAM> for Procedure {
    fn from(procedure: NFS_PROGRAM) -> Procedure {
        Procedure { program: nfs3::PROGRAM, version: nfs3::VERSION, number: procedure as u32 }
    }
}

/// The caller: a user, as in `AUTH_UNIX`.
pub struct Caller {
    credential: opaque_auth<'static>,
}

impl Caller {
    pub fn new(uid: u32, gid: u32) -> Caller {
        let unix = auth_unix { stamp: 0, machinename: Opaque::borrowed(b"awase-lab"), uid, gid, gids: Vec::new() };
        Caller { credential: opaque_auth::auth_unix(&unix) }
    }

    /// Adds a call in one fragment, which announces `payload_bytes` more bytes that the caller sends behind it.
    /// `arguments` packs the arguments before those.
    pub fn call(
        &self,
        call: &mut Vec<u8>,
        xid: u32,
        procedure: impl Into<Procedure>,
        payload_bytes: usize,
        arguments: impl FnOnce(&mut Vec<u8>) -> xdr_codec::Result<usize>,
    ) -> Result<()> {
        let (mark, procedure) = (call.len(), procedure.into());
        call.extend_from_slice(&[0; 4]);
        let head = rpc_msg {
            xid,
            body: msg_body::CALL(call_body {
                rpcvers: RPC_VERSION_2,
                prog: procedure.program,
                vers: procedure.version,
                proc: procedure.number,
                cred: self.credential.borrow(),
                verf: opaque_auth::default(),
            }),
        };
        head.pack(call)?;
        arguments(call)?;
        let bytes = u32::try_from(call.len() - mark - 4 + payload_bytes)?;
        ensure!(bytes <= fragment_header::MASK, "a call of {bytes} bytes does not fit into a fragment");
        call[mark..mark + 4].copy_from_slice(&fragment_header::new(bytes, true).into_xdr_buf());
        Ok(())
    }
}

/// Splits the start of a reply into the identifier of its call and its results. An error if the call was not accepted.
pub fn reply(head: &[u8]) -> Result<(u32, &[u8])> {
    let mut rest = head;
    let (message, _) = rpc_msg::unpack(&mut rest).context("a reply that cannot be read")?;
    match message.body {
        msg_body::REPLY(reply_body::MSG_ACCEPTED(accepted)) => match accepted.reply_data {
            accept_stat_data::SUCCESS => Ok((message.xid, rest)),
            other => bail!("the server did not carry out a call: {other:?}"),
        },
        msg_body::REPLY(reply_body::MSG_DENIED(denied)) => bail!("the server denied a call: {denied:?}"),
        msg_body::CALL(_) => bail!("the server sent a call"),
    }
}

/// Assembles records from the bytes of a connection, and retains the start of each.
#[derive(Default)]
pub struct Records {
    mark: Vec<u8>,
    fragment_left: usize,
    is_last: bool,
    head: Vec<u8>,
    bytes: usize,
}

impl Records {
    /// Consumes `input` until a record is complete, or to its end. Returns the start of the record, at most
    /// [`HEAD_BYTES_MAX`], and its length in bytes.
    pub fn next(&mut self, input: &mut &[u8]) -> Result<Option<(&[u8], usize)>> {
        if self.fragment_left == 0 && self.is_last {
            (self.is_last, self.bytes) = (false, 0);
            self.head.clear();
        }
        loop {
            if self.fragment_left == 0 {
                if self.is_last {
                    return Ok(Some((&self.head, self.bytes)));
                }
                if !self.take_mark(input)? {
                    return Ok(None);
                }
                continue;
            }
            let (part, rest) = input.split_at(self.fragment_left.min(input.len()));
            if part.is_empty() {
                return Ok(None);
            }
            let room = HEAD_BYTES_MAX - self.head.len();
            self.head.extend_from_slice(&part[..part.len().min(room)]);
            self.bytes += part.len();
            self.fragment_left -= part.len();
            *input = rest;
        }
    }

    /// Reads the mark before a fragment; false if it is incomplete.
    fn take_mark(&mut self, input: &mut &[u8]) -> Result<bool> {
        let (part, rest) = input.split_at((4 - self.mark.len()).min(input.len()));
        self.mark.extend_from_slice(part);
        *input = rest;
        let Ok(mark) = <[u8; 4]>::try_from(self.mark.as_slice()) else { return Ok(false) };
        self.mark.clear();
        let mark = fragment_header::from(mark);
        (self.fragment_left, self.is_last) = (mark.fragment_length() as usize, mark.eof());
        let bytes = self.bytes + self.fragment_left;
        ensure!(bytes <= RECORD_BYTES_MAX, "the server sent a reply of {bytes} bytes or more");
        ensure!(self.is_last || self.fragment_left > 0, "the server sent an empty fragment that is not the last");
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fragment(bytes: &[u8], last: bool) -> Vec<u8> {
        let mut out = fragment_header::new(bytes.len() as u32, last).into_xdr_buf().to_vec();
        out.extend_from_slice(bytes);
        out
    }

    #[test]
    fn records_are_the_same_however_they_are_cut() {
        let long = vec![7; HEAD_BYTES_MAX + 100];
        let stream = [fragment(b"abc", false), fragment(b"defg", true), fragment(&long, true), fragment(b"", true)];
        let stream = stream.concat();
        let expected = [(b"abcdefg".to_vec(), 7), (long[..HEAD_BYTES_MAX].to_vec(), long.len()), (Vec::new(), 0)];
        for piece in [1, 2, 3, 5, 64, stream.len()] {
            let (mut records, mut got) = (Records::default(), Vec::new());
            for mut part in stream.chunks(piece) {
                while let Some((head, bytes)) = records.next(&mut part).unwrap() {
                    got.push((head.to_vec(), bytes));
                }
            }
            assert_eq!(got, expected, "in pieces of {piece}");
        }
    }

    #[test]
    fn a_reply_without_end_is_refused() {
        let mut records = Records::default();
        let mark = fragment_header::new(fragment_header::MASK, false).into_xdr_buf();
        assert!(records.next(&mut mark.as_slice()).is_err());
        assert!(Records::default().next(&mut [0; 8].as_slice()).is_err());
    }

    #[test]
    fn a_call_says_how_long_it_is_with_what_will_be_added() {
        let mut call = vec![1; 3];
        Caller::new(0, 0).call(&mut call, 9, NFS_PROGRAM::NFSPROC3_NULL, 8192, |_| Ok(0)).unwrap();
        let mark = fragment_header::from(<[u8; 4]>::try_from(&call[3..7]).unwrap());
        assert_eq!((mark.fragment_length() as usize, mark.eof()), (call.len() - 7 + 8192, true));
    }
}
