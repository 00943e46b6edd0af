//! PostgreSQL's protocol, version 3.0: whatever is asked, the answer is one row with one number. A client has one query in
//! flight.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};

use super::call::{Call, Files, Parsed, Protocol, What};
use super::outbound::Outbound;
use crate::measure::load::nbd::be32;

const SSL_REQUEST: u32 = 80_877_103;
const GSS_REQUEST: u32 = 80_877_104;

/// The longest first message.
const STARTUP_BYTES_MAX: u32 = 10_000;

/// Kind and length.
const HEADER_BYTES: usize = 5;

const AUTHENTICATED: [u8; 9] = [b'R', 0, 0, 0, 8, 0, 0, 0, 0];
const READY: [u8; 6] = [b'Z', 0, 0, 0, 5, b'I'];
const PARSED: [u8; 5] = [b'1', 0, 0, 0, 4];
const BOUND: [u8; 5] = [b'2', 0, 0, 0, 4];
/// One column `n` of type bigint, as text.
const DESCRIPTION: [u8; 27] =
    [b'T', 0, 0, 0, 26, 0, 1, b'n', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 20, 0, 8, 255, 255, 255, 255, 0, 0];
const ROW: [u8; 14] = [b'D', 0, 0, 0, 13, 0, 1, 0, 0, 0, 3, b'9', b'9', b'9'];
const COMPLETE: [u8; 14] = *b"C\0\0\0\x0dSELECT 1\0";

/// Tags of calls: what their replies are.
const QUERY: u64 = 0;
const EXECUTE: u64 = 1;
const SYNC: u64 = 2;

pub struct Postgres {
    /// Queries are answered when the storage says so.
    pub is_stored: bool,
}

fn parts(tag: u64) -> &'static [&'static [u8]] {
    match tag {
        QUERY => &[&DESCRIPTION, &ROW, &COMPLETE, &READY],
        EXECUTE => &[&ROW, &COMPLETE],
        _ => &[&READY],
    }
}

/// Begins a session, whoever it is with. False if the client leaves.
pub fn begin(socket: &OwnedFd) -> io::Result<bool> {
    let mut stream = File::from(socket.as_fd().try_clone_to_owned()?);
    loop {
        let mut head = [0; 8];
        stream.read_exact(&mut head)?;
        let (length, version) = (be32(&head), be32(&head[4..]));
        if !(8..=STARTUP_BYTES_MAX).contains(&length) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if matches!(version, SSL_REQUEST | GSS_REQUEST) {
            stream.write_all(b"N")?;
            continue;
        }
        io::copy(&mut (&stream).take(u64::from(length) - 8), &mut io::sink())?;
        return stream.write_all(&[&AUTHENTICATED[..], &READY].concat()).map(|()| true);
    }
}

impl Protocol for Postgres {
    fn parse(&self, input: &[u8], out: &mut Outbound, _files: &mut dyn Files) -> io::Result<Parsed> {
        let Some(head) = input.first_chunk::<HEADER_BYTES>() else { return Ok(Parsed::Incomplete) };
        let whole = 1 + be32(&head[1..]) as usize;
        if whole < HEADER_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if input.len() < whole {
            return Ok(Parsed::Incomplete);
        }
        let late = |tag, what| Parsed::Call {
            head: whole,
            call: Call { tag, file: 0, offset: 0, bytes: 0, what },
            padding: 0,
        };
        let parts: &[&[u8]] = match head[0] {
            b'P' => &[&PARSED],
            b'B' => &[&BOUND],
            b'D' => &[&DESCRIPTION],
            b'E' if self.is_stored => return Ok(late(EXECUTE, What::Flush)),
            b'E' => parts(EXECUTE),
            // Behind what it follows.
            b'S' if self.is_stored => return Ok(late(SYNC, What::Read)),
            b'S' => parts(SYNC),
            b'Q' if self.is_stored => return Ok(late(QUERY, What::Flush)),
            b'Q' => parts(QUERY),
            b'X' => return Ok(Parsed::End),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        out.push(None, |out| parts.iter().for_each(|part| out.extend_from_slice(part)));
        Ok(Parsed::Answered(whole))
    }

    fn reply(&self, out: &mut Vec<u8>, call: &Call, _done: io::Result<u32>, _file_bytes: u64) {
        parts(call.tag).iter().for_each(|part| out.extend_from_slice(part));
    }

    fn padding(&self, _bytes: u32) -> usize {
        0
    }
}
