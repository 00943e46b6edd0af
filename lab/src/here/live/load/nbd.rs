//! As much of the NBD protocol as a load needs (the protocol's document, "Transmission phase"): simple replies.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::{Action, PATIENCE, Protocol, Reply, refused};

const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Fixed newstyle, and no zeroes.
const CLIENT_FLAGS: u32 = 3;
const OPTION_GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const REPLY_ERROR: u32 = 1 << 31;
/// Longer replies to options are no replies.
const OPTION_BYTES_MAX: u32 = 64 << 10;

pub(super) struct Nbd {
    payload: Vec<u8>,
}

impl Nbd {
    /// Connects, and goes over to transmission.
    pub(super) fn connect(socket: &Path, export: &str, payload: Vec<u8>) -> io::Result<(Nbd, UnixStream)> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        if &greeting[..16] != b"NBDMAGICIHAVEOPT" {
            return Err(refused("it does not speak NBD"));
        }
        let mut hello = CLIENT_FLAGS.to_be_bytes().to_vec();
        hello.extend(b"IHAVEOPT");
        hello.extend(OPTION_GO.to_be_bytes());
        hello.extend((export.len() as u32 + 6).to_be_bytes());
        hello.extend((export.len() as u32).to_be_bytes());
        hello.extend(export.as_bytes());
        hello.extend([0; 2]);
        stream.write_all(&hello)?;
        loop {
            let mut head = [0; 20];
            stream.read_exact(&mut head)?;
            let (magic, kind, len) = (be64(&head), be32(&head[12..]), be32(&head[16..]));
            if magic != OPTION_REPLY_MAGIC || kind & REPLY_ERROR != 0 || len > OPTION_BYTES_MAX {
                return Err(refused(&format!("it does not serve {export:?}")));
            }
            io::copy(&mut (&stream).take(len.into()), &mut io::sink())?;
            if kind == REPLY_ACK {
                return Ok((Nbd { payload }, stream));
            }
        }
    }
}

impl Protocol for Nbd {
    fn head_bytes(&self) -> usize {
        16
    }

    fn request(&mut self, slot: u32, action: Action, out: &mut Vec<u8>) {
        let (kind, at, len): (u16, u64, u32) = match action {
            Action::Read { at, len } => (0, at, len),
            Action::Write { at, len } => (1, at, len),
            // There is nothing of the kind, and nothing asks for it.
            Action::Flush | Action::Attributes => (3, 0, 0),
        };
        out.extend(REQUEST_MAGIC.to_be_bytes());
        out.extend([0; 2]);
        out.extend(kind.to_be_bytes());
        out.extend(u64::from(slot).to_be_bytes());
        out.extend(at.to_be_bytes());
        out.extend(len.to_be_bytes());
        if let Action::Write { len, .. } = action {
            out.extend(&self.payload[..len as usize]);
        }
    }

    fn reply(&self, head: &[u8], slots: &[Action]) -> io::Result<Reply> {
        let (magic, error, slot) = (be32(head), be32(&head[4..]), be64(&head[8..]) as u32);
        match slots.get(slot as usize) {
            _ if magic != REPLY_MAGIC => Err(refused("a reply is none")),
            None => Err(refused("a reply to no request")),
            Some(action) if error != 0 => Err(refused(&format!("{action:?} failed with error {error}"))),
            Some(Action::Read { len, .. }) => Ok(Reply { slot, rest: u64::from(*len) }),
            Some(_) => Ok(Reply { slot, rest: 0 }),
        }
    }
}

pub(super) fn be32(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

pub(super) fn be64(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}
