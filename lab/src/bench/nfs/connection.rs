//! A connection that never blocks: calls out, replies in.

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, RawFd};

use anyhow::{Context, Result, ensure};

use super::rpc::Records;

/// Slices that are sent with one system call.
const SLICES_MAX: usize = 64;

/// A call that is not sent whole yet.
struct Piece {
    head: Vec<u8>,
    with_payload: bool,
}

/// One connection. All its payloads are the same bytes.
pub struct Connection<'a> {
    stream: TcpStream,
    payload: &'a [u8],
    unsent: VecDeque<Piece>,
    /// Bytes of the first of them that were sent.
    sent: usize,
    records: Records,
}

impl<'a> Connection<'a> {
    pub fn new(address: SocketAddr, payload: &'a [u8]) -> Result<Connection<'a>> {
        let stream = TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Connection { stream, payload, unsent: VecDeque::new(), sent: 0, records: Records::default() })
    }

    pub fn queue(&mut self, head: Vec<u8>, with_payload: bool) {
        self.unsent.push_back(Piece { head, with_payload });
    }

    /// Sends what it can; true if nothing is left to send.
    pub fn send(&mut self) -> Result<bool> {
        while !self.unsent.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let mut count = 0;
            let mut skip = self.sent;
            let parts = self
                .unsent
                .iter()
                .flat_map(|piece| [piece.head.as_slice(), if piece.with_payload { self.payload } else { &[] }]);
            for part in parts {
                let skipped = skip.min(part.len());
                skip -= skipped;
                if skipped < part.len() {
                    slices[count] = IoSlice::new(&part[skipped..]);
                    count += 1;
                }
                if count == SLICES_MAX {
                    break;
                }
            }
            match self.stream.write_vectored(&slices[..count]) {
                Ok(bytes) => self.count_sent(bytes),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("cannot send"),
            }
        }
        Ok(true)
    }

    fn count_sent(&mut self, bytes: usize) {
        self.sent += bytes;
        while let Some(piece) = self.unsent.front() {
            let whole = piece.head.len() + if piece.with_payload { self.payload.len() } else { 0 };
            if self.sent < whole {
                break;
            }
            self.sent -= whole;
            self.unsent.pop_front();
        }
    }

    /// Receives what is there, at most what fits into `buffer`, and hands on each reply that is complete: its head and its
    /// length in bytes.
    pub fn receive(&mut self, buffer: &mut [u8], mut on_reply: impl FnMut(&[u8], usize) -> Result<()>) -> Result<()> {
        let received = match self.stream.read(buffer) {
            Ok(bytes) => bytes,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return Ok(()),
            Err(error) => return Err(error).context("cannot receive"),
        };
        ensure!(received > 0, "the server closed the connection");
        let mut input = &buffer[..received];
        while let Some((head, bytes)) = self.records.next(&mut input)? {
            on_reply(head, bytes)?;
        }
        Ok(())
    }
}

impl AsRawFd for Connection<'_> {
    fn as_raw_fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }
}
