//! A non-blocking connection: requests out, bytes of replies in.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};

/// Slices of one system call.
const SLICES_MAX: usize = 64;

/// Requests that are not completely sent. The payload, if any, follows the last one.
struct Piece {
    bytes: Vec<u8>,
    with_payload: bool,
}

/// One connection. All its payloads are the same bytes.
pub struct Connection {
    /// As a file: a socket is read and written like one.
    socket: File,
    payload: Arc<[u8]>,
    unsent: VecDeque<Piece>,
    /// Bytes of the first piece that were sent.
    sent: usize,
    /// Reused memory of pieces that were sent.
    spare: Vec<Vec<u8>>,
}

impl Connection {
    pub fn new(socket: OwnedFd, payload: Arc<[u8]>) -> Result<Connection> {
        // For any address family: this sets a flag.
        let socket = UnixStream::from(socket);
        socket.set_nonblocking(true)?;
        let socket = File::from(OwnedFd::from(socket));
        Ok(Connection { socket, payload, unsent: VecDeque::new(), sent: 0, spare: Vec::new() })
    }

    /// Queues a request that `pack` encodes.
    pub fn queue(&mut self, with_payload: bool, pack: impl FnOnce(&mut Vec<u8>) -> Result<()>) -> Result<()> {
        let mut piece = match self.unsent.pop_back() {
            Some(last) if !last.with_payload => last,
            last => {
                self.unsent.extend(last);
                Piece { bytes: self.spare.pop().unwrap_or_default(), with_payload }
            }
        };
        piece.with_payload = with_payload;
        let packed = pack(&mut piece.bytes);
        self.unsent.push_back(piece);
        packed
    }

    /// Sends what the socket takes; true if nothing is left to send.
    pub fn send(&mut self) -> Result<bool> {
        while !self.unsent.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let mut count = 0;
            let mut skip = self.sent;
            let parts = self
                .unsent
                .iter()
                .flat_map(|piece| [piece.bytes.as_slice(), if piece.with_payload { &self.payload[..] } else { &[] }]);
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
            match self.socket.write_vectored(&slices[..count]) {
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
            let whole = piece.bytes.len() + if piece.with_payload { self.payload.len() } else { 0 };
            if self.sent < whole {
                break;
            }
            self.sent -= whole;
            if let Some(mut piece) = self.unsent.pop_front() {
                piece.bytes.clear();
                self.spare.push(piece.bytes);
            }
        }
    }

    /// Receives what has arrived, at most what fits into `buffer`. Returns the number of bytes, possibly 0.
    pub fn receive(&mut self, buffer: &mut [u8]) -> Result<usize> {
        match self.socket.read(buffer) {
            Ok(received) => {
                ensure!(received > 0, "the server closed the connection");
                Ok(received)
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(0),
            Err(error) => Err(error).context("cannot receive"),
        }
    }
}

impl AsRawFd for Connection {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}
