//! NBD: the fixed newstyle negotiation with what clients need of it, and simple replies.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};

use nbd::proto::{
    NBD_MAGIC, NBD_OPTS_MAGIC, NbdError, REQUEST_BYTES, Reader, Request, cmd, flag, handshake, info, option,
    option_reply, rep, simple_reply,
};

use super::call::{Call, Files, Parsed, Protocol, Stability, What};
use super::outbound::Outbound;

/// No client sends longer options.
const OPTION_BYTES_MAX: u32 = 64 << 10;

const FLAGS: u16 = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::CAN_MULTI_CONN;

pub struct Nbd;

/// Negotiates an export of `bytes` bytes, whatever its name is. False if the client leaves.
pub fn negotiate(socket: &OwnedFd, bytes: u64) -> io::Result<bool> {
    let mut stream = File::from(socket.as_fd().try_clone_to_owned()?);
    let hello = handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES;
    stream.write_all(&[&NBD_MAGIC.to_be_bytes()[..], &NBD_OPTS_MAGIC.to_be_bytes(), &hello.to_be_bytes()].concat())?;
    stream.read_exact(&mut [0; 4])?;
    let export = [&bytes.to_be_bytes()[..], &FLAGS.to_be_bytes()].concat();
    loop {
        let mut head = [0; 16];
        stream.read_exact(&mut head)?;
        let mut head = Reader::new(&head);
        let (magic, asked, length) = (head.u64(), head.u32().unwrap_or(0), head.u32().unwrap_or(0));
        if magic != Some(NBD_OPTS_MAGIC) || length > OPTION_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        io::copy(&mut (&stream).take(length.into()), &mut io::sink())?;
        let mut replies = Vec::new();
        match asked {
            option::EXPORT_NAME => return stream.write_all(&export).map(|()| true),
            option::GO | option::INFO => {
                let size_and_flags = [&info::EXPORT.to_be_bytes(), &export[..]].concat();
                option_reply(&mut replies, asked, rep::INFO, &size_and_flags);
                option_reply(&mut replies, asked, rep::ACK, &[]);
            }
            option::ABORT => option_reply(&mut replies, asked, rep::ACK, &[]),
            _ => option_reply(&mut replies, asked, rep::ERR_UNSUP, &[]),
        }
        stream.write_all(&replies)?;
        if matches!(asked, option::GO | option::ABORT) {
            return Ok(asked == option::GO);
        }
    }
}

impl Protocol for Nbd {
    fn parse(&self, input: &[u8], _out: &mut Outbound, _files: &mut dyn Files) -> io::Result<Parsed> {
        let Some(head) = input.first_chunk::<REQUEST_BYTES>() else { return Ok(Parsed::Incomplete) };
        let Request { flags, kind, cookie, offset, len } = Request::decode(head).ok_or(io::ErrorKind::InvalidData)?;
        let what = match kind {
            cmd::READ => What::Read,
            cmd::WRITE if flags & cmd::FLAG_FUA != 0 => What::Write(Stability::Durable),
            cmd::WRITE => What::Write(Stability::Unstable),
            cmd::FLUSH => What::Flush,
            cmd::DISC => return Ok(Parsed::End),
            _ => return Err(io::ErrorKind::Unsupported.into()),
        };
        let bytes = if kind == cmd::FLUSH { 0 } else { len };
        Ok(Parsed::Call { head: REQUEST_BYTES, call: Call { tag: cookie, file: 0, offset, bytes, what }, padding: 0 })
    }

    fn reply(&self, out: &mut Vec<u8>, call: &Call, done: io::Result<u32>, _file_bytes: u64) {
        let error = if done.is_ok_and(|bytes| bytes == call.bytes) { 0 } else { NbdError::EIO.0 };
        out.extend_from_slice(&simple_reply(error, call.tag));
    }

    fn padding(&self, _bytes: u32) -> usize {
        0
    }
}
