//! Transfers with `unmapped_io = off`: each through a buffer mapped for it.

use machine::{Errno, Op, Segments};

use crate::frame::{Frames, MappedBuffer};
use crate::operation::Hold;
use crate::processor::Processor;

/// Reads into `frames` through a mapped buffer. `op` makes the operation from the buffer's segments.
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
    // SAFETY: the segments lie in the buffer, which the hold owns.
    let (result, hold) = unsafe { cpu.perform(hold, op) }.await;
    if let Some(buffer) = &hold.mapped {
        let mut from = buffer.as_ptr();
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
    let mut to = buffer.as_ptr();
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
