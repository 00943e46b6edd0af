//! The buffer of `unmapped_io = off`: mapped before each I/O and unmapped after it, as in FreeBSD 9 (UIO).
//!
//! Each unmapping costs a TLB shootdown on every processor of the process; that is what is to be measured.

use machine::{Errno, Op, Segment, Segments};
use smallvec::smallvec;

use crate::frame::Frames;
use crate::operation::Hold;
use crate::processor::Processor;

/// Memory mapped for one I/O.
#[derive(Debug)]
pub(crate) struct MappedBuffer {
    ptr: *mut u8,
    len: usize,
}

impl MappedBuffer {
    fn new(len: usize) -> Result<Self, Errno> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh anonymous mapping touches nobody's memory.
        let ptr = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
        if ptr == libc::MAP_FAILED { Err(Errno::NO_MEMORY) } else { Ok(MappedBuffer { ptr: ptr.cast(), len }) }
    }

    fn segments(&self) -> Segments {
        smallvec![Segment { ptr: self.ptr, len: self.len as u32, region: None }]
    }
}

impl Drop for MappedBuffer {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which no operation uses any more: it was in the operation's hold.
        unsafe { libc::munmap(self.ptr.cast(), self.len) };
    }
}

/// Reads into `frames` through a mapped buffer. `op` makes the operation for the buffer's segments.
pub(crate) async fn read_mapped(
    cpu: &Processor,
    frames: Frames,
    within: Segments,
    op: impl FnOnce(Segments) -> Op,
) -> (Result<u64, Errno>, Frames) {
    let buffer = match MappedBuffer::new(machine::total_len(&within) as usize) {
        Ok(buffer) => buffer,
        Err(error) => return (Err(error), frames),
    };
    let op = op(buffer.segments());
    let hold = Hold { frames, mapped: Some(buffer), ..Hold::default() };
    // SAFETY: the segments lie in the buffer, which the hold keeps.
    let (result, hold) = unsafe { cpu.perform(hold, op) }.await;
    if let Some(buffer) = &hold.mapped {
        let mut from = buffer.ptr;
        for segment in &within {
            // SAFETY: the buffer is as long as the segments, which lie in frames that this transfer fills.
            unsafe {
                segment.ptr.copy_from_nonoverlapping(from, segment.len as usize);
                from = from.add(segment.len as usize);
            }
        }
    }
    (result, hold.frames)
}

/// Writes from `frames` through a mapped buffer.
pub(crate) async fn write_mapped(
    cpu: &Processor,
    frames: Frames,
    within: Segments,
    op: impl FnOnce(Segments) -> Op,
) -> (Result<u64, Errno>, Frames) {
    let buffer = match MappedBuffer::new(machine::total_len(&within) as usize) {
        Ok(buffer) => buffer,
        Err(error) => return (Err(error), frames),
    };
    let mut to = buffer.ptr;
    for segment in &within {
        // SAFETY: the buffer is as long as the segments, which lie in frames that do not change meanwhile.
        unsafe {
            to.copy_from_nonoverlapping(segment.ptr, segment.len as usize);
            to = to.add(segment.len as usize);
        }
    }
    let op = op(buffer.segments());
    let hold = Hold { frames, mapped: Some(buffer), ..Hold::default() };
    // SAFETY: as in `read_mapped`.
    let (result, hold) = unsafe { cpu.perform(hold, op) }.await;
    (result, hold.frames)
}
