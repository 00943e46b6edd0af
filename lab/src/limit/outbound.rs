//! Replies on their way: heads in one buffer, data where it lies, all that is ready in one send.

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;

use super::arena::{Arena, Chunk};

/// Parts of one send.
const PARTS_MAX: usize = 512;

/// Sent heads that stay in the buffer until it is moved up.
const SENT_HEADS_MAX: usize = 64 << 10;

static PADDING: [u8; 4] = [0; 4];

/// Data of a reply.
#[derive(Clone, Copy, Debug)]
pub struct Data {
    pub chunk: Chunk,
    pub bytes: usize,
    pub padding: usize,
    /// Is the chunk given back when it is sent?
    pub is_owned: bool,
}

struct Part {
    head: usize,
    data: Option<Data>,
}

impl Part {
    fn bytes(&self) -> usize {
        self.head + self.data.map_or(0, |data| data.bytes + data.padding)
    }
}

#[derive(Default)]
pub struct Outbound {
    /// The heads of all parts, one behind the other.
    heads: Vec<u8>,
    /// Start of the first part's head.
    first: usize,
    parts: VecDeque<Part>,
    /// Bytes of the first part that were sent.
    sent: usize,
    vector: Vec<libc::iovec>,
}

impl Outbound {
    /// Adds a reply whose head `pack` writes.
    pub fn push(&mut self, data: Option<Data>, pack: impl FnOnce(&mut Vec<u8>)) {
        let before = self.heads.len();
        pack(&mut self.heads);
        let head = self.heads.len() - before;
        match self.parts.back_mut() {
            // Replies without data in a row are one part.
            Some(last) if last.data.is_none() => {
                last.head += head;
                last.data = data;
            }
            _ => self.parts.push_back(Part { head, data }),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Sends what the socket takes.
    pub fn send(&mut self, socket: RawFd, arena: &mut Arena) -> io::Result<()> {
        while !self.parts.is_empty() {
            let whole = self.gather(arena);
            // SAFETY: a message of zeroes is an empty one.
            let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
            (message.msg_iov, message.msg_iovlen) = (self.vector.as_mut_ptr(), self.vector.len());
            // SAFETY: the vector leads to heads and chunks, which nobody changes until the call returns.
            let sent = unsafe { libc::sendmsg(socket, &raw const message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) };
            match sent {
                0.. => self.count(sent as usize, arena),
                _ => {
                    let error = io::Error::last_os_error();
                    return match error.kind() {
                        io::ErrorKind::WouldBlock => Ok(()),
                        io::ErrorKind::Interrupted => continue,
                        _ => Err(error),
                    };
                }
            }
            if (sent as usize) < whole {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Fills the vector with what is to be sent. Returns its bytes.
    fn gather(&mut self, arena: &Arena) -> usize {
        self.vector.clear();
        let (mut head_at, mut skip, mut whole) = (self.first, self.sent, 0);
        for part in self.parts.iter().take(PARTS_MAX / 3) {
            let data = part.data.map(|data| {
                let padding = (PADDING.as_ptr(), data.padding);
                [(arena.address(data.chunk).cast_const(), data.bytes), padding]
            });
            let head = (self.heads[head_at..].as_ptr(), part.head);
            for (at, bytes) in [head].into_iter().chain(data.into_iter().flatten()) {
                let skipped = skip.min(bytes);
                skip -= skipped;
                if skipped < bytes {
                    // SAFETY: within the head, the chunk or the padding.
                    let base = unsafe { at.add(skipped) }.cast_mut().cast();
                    self.vector.push(libc::iovec { iov_base: base, iov_len: bytes - skipped });
                    whole += bytes - skipped;
                }
            }
            head_at += part.head;
        }
        whole
    }

    fn count(&mut self, sent: usize, arena: &mut Arena) {
        self.sent += sent;
        while let Some(part) = self.parts.front() {
            if self.sent < part.bytes() {
                break;
            }
            self.sent -= part.bytes();
            self.first += part.head;
            if let Some(data) = part.data.filter(|data| data.is_owned) {
                arena.give_back(data.chunk);
            }
            self.parts.pop_front();
        }
        if self.parts.is_empty() {
            self.heads.clear();
            self.first = 0;
        } else if self.first > SENT_HEADS_MAX {
            self.heads.drain(..self.first);
            self.first = 0;
        }
    }
}
