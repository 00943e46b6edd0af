//! A client's connection: received bytes, cut into calls; data of writes goes where the disk takes it from.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use super::arena::{Arena, Chunk};
use super::call::{Call, Files, Parsed, Protocol, What};
use super::outbound::Outbound;

/// Received at once, beside the rest of a write.
const RECEIVE_BYTES: usize = 128 << 10;

/// Writes from this size on are received where they are to be: what is received behind them is short, so that the next one
/// is not in it.
const LARGE_WRITE: usize = 32 << 10;

/// What is received behind a large write: the head of a call.
const HEAD_BYTES: usize = 256;

/// A write whose data is arriving.
struct Arriving {
    call: Call,
    chunk: Chunk,
    bytes: usize,
    /// To be skipped behind the data.
    padding: usize,
}

pub struct Connection {
    socket: OwnedFd,
    input: Vec<u8>,
    start: usize,
    end: usize,
    arriving: Option<Arriving>,
    /// Bytes of padding that are still to be skipped.
    skip: usize,
    was_large: bool,
    acknowledges: bool,
    pub out: Outbound,
    /// Does epoll report when it can be sent to?
    pub is_blocked: bool,
    /// Is it among those to be sent to?
    pub is_due: bool,
}

/// A call, with the data of a write.
pub type Complete = (Call, Option<Chunk>);

impl Connection {
    /// `acknowledges`: replies may come late, and acknowledgements must not wait for them.
    pub fn new(socket: OwnedFd, acknowledges: bool) -> Connection {
        Connection {
            acknowledges,
            socket,
            input: vec![0; RECEIVE_BYTES],
            start: 0,
            end: 0,
            arriving: None,
            skip: 0,
            was_large: false,
            out: Outbound::default(),
            is_blocked: false,
            is_due: false,
        }
    }

    /// Receives what is there, once. False if nothing is.
    ///
    /// # Errors
    /// Also at the client's end.
    pub fn receive(&mut self, arena: &Arena) -> io::Result<bool> {
        self.input.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let room = self.input.len() - self.end;
        let room = if self.was_large { room.min(HEAD_BYTES) } else { room };
        let mut vector = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 2];
        let mut count = 0;
        let mut missing = 0;
        if let Some(Arriving { call, chunk, bytes, .. }) = &self.arriving {
            missing = call.bytes as usize - bytes;
            // SAFETY: the chunk has room for the whole write.
            let base = unsafe { arena.address(*chunk).add(*bytes) };
            vector[0] = libc::iovec { iov_base: base.cast(), iov_len: missing };
            count = 1;
        }
        vector[count] = libc::iovec { iov_base: self.input[self.end..].as_mut_ptr().cast(), iov_len: room };
        // SAFETY: a message of zeroes is an empty one.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (vector.as_mut_ptr(), count + 1);
        // SAFETY: the vector leads to the rest of a chunk that nobody else uses, and to the input behind its end.
        let received = unsafe { libc::recvmsg(self.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
        if received <= 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                _ if received == 0 => Err(io::ErrorKind::UnexpectedEof.into()),
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(false),
                _ => Err(error),
            };
        }
        if self.acknowledges {
            self.acknowledge();
        }
        let of_data = missing.min(received as usize);
        self.end += received as usize - of_data;
        if let Some(arriving) = &mut self.arriving {
            arriving.bytes += of_data;
        }
        Ok(true)
    }

    /// Has the kernel acknowledge what was received at once. A client that does not set `TCP_NODELAY`, such as libnfs 4,
    /// sends nothing that does not fill a segment until all before it is acknowledged: if the acknowledgement waited for a
    /// reply, and the reply for a group, its next requests would come 40 ms later.
    fn acknowledge(&self) {
        let on: libc::c_int = 1;
        let at: *const libc::c_int = &raw const on;
        // SAFETY: an open socket and a number that lives until the call returns. It works without it, too.
        unsafe { libc::setsockopt(self.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_QUICKACK, at.cast(), 4) };
    }

    /// The next call that is complete. Data of writes is not looked at if nobody wants it.
    ///
    /// # Errors
    /// Also at the client's end.
    pub fn next(
        &mut self,
        protocol: &impl Protocol,
        arena: &mut Arena,
        files: &mut dyn Files,
        is_data_wanted: bool,
    ) -> io::Result<Option<Complete>> {
        loop {
            if let Some(arriving) = self.arriving.take() {
                if arriving.bytes < arriving.call.bytes as usize {
                    self.arriving = Some(arriving);
                    return Ok(None);
                }
                self.skip = arriving.padding;
                return Ok(Some((arriving.call, Some(arriving.chunk))));
            }
            let skipped = self.skip.min(self.end - self.start);
            self.start += skipped;
            self.skip -= skipped;
            let input = &self.input[self.start..self.end];
            if input.is_empty() {
                return Ok(None);
            }
            match protocol.parse(input, &mut self.out, files)? {
                Parsed::Incomplete => return Ok(None),
                Parsed::Answered(bytes) => self.start += bytes,
                Parsed::End => return Err(io::ErrorKind::UnexpectedEof.into()),
                Parsed::Call { head, call, padding } => {
                    self.start += head;
                    let What::Write(_) = call.what else {
                        self.was_large = false;
                        return Ok(Some((call, None)));
                    };
                    self.begin(call, padding, arena, is_data_wanted)?;
                }
            }
        }
    }

    /// Begins to take the data of a write: what was received already is copied.
    fn begin(&mut self, call: Call, padding: usize, arena: &mut Arena, is_data_wanted: bool) -> io::Result<()> {
        let chunk = arena.take(call.bytes as usize)?;
        let bytes = (call.bytes as usize).min(self.end - self.start);
        if is_data_wanted {
            // SAFETY: the chunk has room for the whole write, and is not the input.
            unsafe { arena.address(chunk).copy_from_nonoverlapping(self.input[self.start..].as_ptr(), bytes) };
        }
        self.start += bytes;
        self.was_large = call.bytes as usize >= LARGE_WRITE;
        self.arriving = Some(Arriving { call, chunk, bytes, padding });
        Ok(())
    }
}

impl AsRawFd for Connection {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}
