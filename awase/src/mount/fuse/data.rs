//! Replies with what was read, from the frames as they are: the host copies out of them.

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use fuser::{ReplyData, Request};
use kernel::{FRAME_BYTES, Frames};
use policy::unit::ByteRange;

use super::waiting::Refuse;

/// `fuse_out_header`: length, error, number.
const HEADER_BYTES: usize = 16;

/// Begins a reply of this many bytes to the request of this number.
pub fn header(unique: u64, len: usize) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&((HEADER_BYTES + len) as u32).to_ne_bytes());
    header[8..].copy_from_slice(&unique.to_ne_bytes());
    header
}

/// A reply to be given.
pub struct DataReply {
    reply: ReplyData,
    unique: u64,
    device: Arc<OnceLock<OwnedFd>>,
}

impl Refuse for DataReply {
    fn refuse(self, errno: fuser::Errno) {
        self.reply.error(errno);
    }
}

impl DataReply {
    pub fn new(request: &Request, reply: ReplyData, device: &Arc<OnceLock<OwnedFd>>) -> DataReply {
        DataReply { reply, unique: request.unique().0, device: Arc::clone(device) }
    }

    /// Replies with the bytes of `range`, the first of which lies `range.at % 4096` bytes into the first of `frames`.
    pub fn send(self, range: ByteRange, frames: &Frames) {
        let Some(device) = self.device.get() else { return self.refuse(fuser::Errno::EIO) };
        let (len, mut from) = (range.len as usize, range.at.in_block());
        let header = header(self.unique, len);
        let mut slices = Vec::with_capacity(1 + frames.len());
        slices.push(IoSlice::new(&header));
        let mut left = len;
        for frame in frames {
            let here = left.min(FRAME_BYTES - from);
            slices.push(IoSlice::new(&frame.bytes()[from..from + here]));
            (left, from) = (left - here, 0);
        }
        // It is whole or fails: then the host has given up the request.
        let _ = rustix::io::writev(device, &slices);
        // The crate's own reply takes one slice, and would send an error when it is dropped. It holds nothing but a count
        // of the device's users.
        std::mem::forget(self.reply);
    }
}
