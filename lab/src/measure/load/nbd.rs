//! The part of the NBD protocol that a load needs (the protocol's document, "Transmission phase"): simple replies.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use anyhow::{Result, bail, ensure};

use super::TIMEOUT;
use super::plan::{Flight, Step};

pub(crate) const REQUEST_MAGIC: u32 = 0x2560_9513;
pub(crate) const REPLY_MAGIC: u32 = 0x6744_6698;
pub(crate) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const CLIENT_FLAGS: u32 = 3;
pub(crate) const OPTION_GO: u32 = 7;
pub(crate) const REPLY_ACK: u32 = 1;
const REPLY_ERROR: u32 = 1 << 31;
/// Limit of an option and of a reply to one.
pub(crate) const OPTION_BYTES_MAX: u32 = 64 << 10;
/// Header of a simple reply.
const HEAD_BYTES: usize = 16;

#[derive(Clone, Debug)]
pub enum Address {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

/// Connects, and negotiates up to the transmission phase.
///
/// # Errors
/// When no server answers, or it has no such export.
pub fn connect(at: &Address, export: &str) -> Result<OwnedFd> {
    let socket = match at {
        Address::Unix(path) => {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            OwnedFd::from(stream)
        }
        Address::Tcp(address) => {
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            OwnedFd::from(stream)
        }
    };
    let mut stream = File::from(socket);
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting)?;
    ensure!(&greeting[..16] == b"NBDMAGICIHAVEOPT", "it does not speak NBD");
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
            bail!("it does not serve {export:?}");
        }
        io::copy(&mut (&stream).take(len.into()), &mut io::sink())?;
        if kind == REPLY_ACK {
            return Ok(stream.into());
        }
    }
}

/// Flushes an export.
///
/// # Errors
/// When the flush fails, or as [`connect`].
pub fn flush(at: &Address, export: &str) -> Result<()> {
    let mut stream = File::from(connect(at, export)?);
    let mut request = Vec::new();
    encode(&mut request, 0, Step::Flush, 0);
    stream.write_all(&request)?;
    let mut head = [0; HEAD_BYTES];
    stream.read_exact(&mut head)?;
    let error = be32(&head[4..]);
    ensure!(be32(&head) == REPLY_MAGIC && error == 0, "the flush failed with error {error}");
    Ok(())
}

/// Adds the header of a request of `bytes` bytes.
pub(super) fn encode(out: &mut Vec<u8>, slot: usize, step: Step, bytes: u32) {
    let (kind, at, bytes): (u16, u64, u32) = match step {
        Step::Read { offset, .. } => (0, offset, bytes),
        Step::Write { offset, .. } => (1, offset, bytes),
        _ => (3, 0, 0),
    };
    out.extend(REQUEST_MAGIC.to_be_bytes());
    out.extend([0; 2]);
    out.extend(kind.to_be_bytes());
    out.extend((slot as u64).to_be_bytes());
    out.extend(at.to_be_bytes());
    out.extend(bytes.to_be_bytes());
}

/// Assembles replies from the bytes of a connection.
#[derive(Default)]
pub(super) struct Replies {
    /// The partial header of a reply.
    head: Vec<u8>,
    /// Slot of a reply and its outstanding bytes of data.
    rest: Option<(usize, usize)>,
}

impl Replies {
    /// Consumes `input` until a reply is complete, or to its end. Returns the reply's slot.
    pub(super) fn next(&mut self, input: &mut &[u8], flights: &[Option<Flight>], bytes: u32) -> Result<Option<usize>> {
        loop {
            if let Some((slot, rest)) = self.rest {
                let taken = rest.min(input.len());
                *input = &input[taken..];
                self.rest = (taken < rest).then_some((slot, rest - taken));
                return Ok(self.rest.is_none().then_some(slot));
            }
            let (part, behind) = input.split_at((HEAD_BYTES - self.head.len()).min(input.len()));
            self.head.extend_from_slice(part);
            *input = behind;
            if self.head.len() < HEAD_BYTES {
                return Ok(None);
            }
            let (magic, error, slot) = (be32(&self.head), be32(&self.head[4..]), be64(&self.head[8..]) as usize);
            self.head.clear();
            ensure!(magic == REPLY_MAGIC, "a reply is none");
            let Some(Some(Flight { step, .. })) = flights.get(slot) else { bail!("a reply to no request") };
            ensure!(error == 0, "{step:?} failed with error {error}");
            self.rest = Some((slot, if matches!(step, Step::Read { .. }) { bytes as usize } else { 0 }));
        }
    }
}

pub(crate) fn be32(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

pub(crate) fn be64(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn replies_are_the_same_however_they_are_cut() {
        let flight = |step| Some(Flight { step, start: Instant::now() });
        let flights = [flight(Step::Flush), flight(Step::Read { file: 0, offset: 0 })];
        let mut stream = Vec::new();
        for slot in [1_u64, 0, 1] {
            stream.extend(REPLY_MAGIC.to_be_bytes());
            stream.extend(0_u32.to_be_bytes());
            stream.extend(slot.to_be_bytes());
            stream.extend(vec![7; if slot == 1 { 512 } else { 0 }]);
        }
        for piece in [1, 5, 16, 100, stream.len()] {
            let (mut replies, mut slots) = (Replies::default(), Vec::new());
            for mut part in stream.chunks(piece) {
                while let Some(slot) = replies.next(&mut part, &flights, 512).expect("replies") {
                    slots.push(slot);
                }
            }
            assert_eq!(slots, [1, 0, 1], "in pieces of {piece}");
        }
        stream[7] = 5;
        let mut replies = Replies::default();
        assert!(replies.next(&mut stream.as_slice(), &flights, 512).is_err(), "an error of the server");
    }
}
