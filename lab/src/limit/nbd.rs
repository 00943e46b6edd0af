//! NBD: the fixed newstyle negotiation with what clients need of it, and simple replies.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};

use super::call::{Call, Files, Parsed, Protocol, Stability, What};
use super::outbound::Outbound;
use crate::measure::load::nbd::{
    OPTION_BYTES_MAX, OPTION_GO, OPTION_REPLY_MAGIC, REPLY_ACK, REPLY_MAGIC, REQUEST_MAGIC, be32, be64,
};

const FIXED_NEWSTYLE_AND_NO_ZEROES: u16 = 3;
const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const OPTION_EXPORT_NAME: u32 = 1;
const OPTION_ABORT: u32 = 2;
const OPTION_INFO: u32 = 6;
const REPLY_INFO: u32 = 3;
const REPLY_UNSUPPORTED: u32 = 1 << 31 | 1;

/// `HAS_FLAGS`, `SEND_FLUSH`, `SEND_FUA`, `CAN_MULTI_CONN`.
const FLAGS: u16 = 1 | 1 << 2 | 1 << 3 | 1 << 8;

const REQUEST_BYTES: usize = 28;
const FORCED: u16 = 1;
const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const FLUSH: u16 = 3;
const EIO: u32 = 5;

pub struct Nbd;

/// Negotiates an export of `bytes` bytes, whatever its name is. False if the client leaves.
pub fn negotiate(socket: &OwnedFd, bytes: u64) -> io::Result<bool> {
    let mut stream = File::from(socket.as_fd().try_clone_to_owned()?);
    stream.write_all(&[&b"NBDMAGICIHAVEOPT"[..], &FIXED_NEWSTYLE_AND_NO_ZEROES.to_be_bytes()].concat())?;
    stream.read_exact(&mut [0; 4])?;
    let export = [&bytes.to_be_bytes()[..], &FLAGS.to_be_bytes()].concat();
    loop {
        let mut head = [0; 16];
        stream.read_exact(&mut head)?;
        let (magic, option, length) = (be64(&head), be32(&head[8..]), be32(&head[12..]));
        if magic != OPTION_MAGIC || length > OPTION_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        io::copy(&mut (&stream).take(length.into()), &mut io::sink())?;
        let mut reply = |kind: u32, data: &[u8]| {
            let head = [option, kind, data.len() as u32].map(u32::to_be_bytes).concat();
            stream.write_all(&[&OPTION_REPLY_MAGIC.to_be_bytes()[..], &head, data].concat())
        };
        match option {
            OPTION_EXPORT_NAME => return stream.write_all(&export).map(|()| true),
            OPTION_GO | OPTION_INFO => {
                // An information of type 0: size and flags.
                reply(REPLY_INFO, &[&[0, 0], &export[..]].concat())?;
                reply(REPLY_ACK, &[])?;
                if option == OPTION_GO {
                    return Ok(true);
                }
            }
            OPTION_ABORT => return reply(REPLY_ACK, &[]).map(|()| false),
            _ => reply(REPLY_UNSUPPORTED, &[])?,
        }
    }
}

impl Protocol for Nbd {
    fn parse(&self, input: &[u8], _out: &mut Outbound, _files: &mut dyn Files) -> io::Result<Parsed> {
        let Some(head) = input.first_chunk::<REQUEST_BYTES>() else { return Ok(Parsed::Incomplete) };
        if be32(head) != REQUEST_MAGIC {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let (flags, kind) = (be32(&head[4..]) >> 16, be32(&head[4..]) as u16);
        let what = match kind {
            READ => What::Read,
            WRITE if flags as u16 & FORCED != 0 => What::Write(Stability::Durable),
            WRITE => What::Write(Stability::Unstable),
            FLUSH => What::Flush,
            DISCONNECT => return Ok(Parsed::End),
            _ => return Err(io::ErrorKind::Unsupported.into()),
        };
        let bytes = if kind == FLUSH { 0 } else { be32(&head[24..]) };
        let call = Call { tag: be64(&head[8..]), file: 0, offset: be64(&head[16..]), bytes, what };
        Ok(Parsed::Call { head: REQUEST_BYTES, call, padding: 0 })
    }

    fn reply(&self, out: &mut Vec<u8>, call: &Call, done: io::Result<u32>, _file_bytes: u64) {
        let error = if done.is_ok_and(|bytes| bytes == call.bytes) { 0 } else { EIO };
        let mut head = [0; 16];
        head[..4].copy_from_slice(&REPLY_MAGIC.to_be_bytes());
        head[4..8].copy_from_slice(&error.to_be_bytes());
        head[8..].copy_from_slice(&call.tag.to_be_bytes());
        out.extend_from_slice(&head);
    }

    fn padding(&self, _bytes: u32) -> usize {
        0
    }
}
