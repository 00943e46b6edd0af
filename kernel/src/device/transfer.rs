//! Transfers between frames and a file.

use machine::{Errno, File, Op, Segment, Segments};
use policy::unit::{ByteOffset, ByteRange, Stability};

use crate::frame::{FrameRef, Frames, MappedBuffer, segments};
use crate::operation::Hold;
use crate::processor::Processor;

/// Performs the operation that `op` makes of `segments`, which lie in `frames`; with `unmapped_io = off` through a
/// buffer mapped for it (UIO).
pub(crate) async fn transfer(
    cpu: &Processor,
    frames: Frames,
    segments: Segments,
    op: impl FnOnce(Segments) -> Op,
) -> (Result<u64, Errno>, Frames) {
    if cpu.switches().unmapped_io {
        // SAFETY: the callers made the segments from these frames, which the hold owns.
        let (result, hold) = unsafe { cpu.perform(Hold::new(Vec::new(), frames), op(segments)) }.await;
        return (result, hold.frames);
    }
    let buffer = match MappedBuffer::new(machine::total_len(&segments) as usize) {
        Ok(buffer) => buffer,
        Err(error) => return (Err(error), frames),
    };
    let op = op(buffer.segments());
    let is_read = matches!(op, Op::Read { .. });
    if !is_read {
        for (to, from) in places(&buffer, &segments) {
            // SAFETY: the buffer is as long as the segments, which lie in frames that do not change meanwhile.
            unsafe { to.copy_from_nonoverlapping(from.ptr, from.len as usize) };
        }
    }
    let hold = Hold { frames, mapped: Some(buffer), ..Hold::default() };
    // SAFETY: the operation's segments lie in the buffer, which the hold owns.
    let (result, hold) = unsafe { cpu.perform(hold, op) }.await;
    for (from, to) in hold.mapped.iter().filter(|_| is_read).flat_map(|buffer| places(buffer, &segments)) {
        // SAFETY: the buffer is as long as the segments, which lie in frames that this transfer fills.
        unsafe { to.ptr.copy_from_nonoverlapping(from, to.len as usize) };
    }
    (result, hold.frames)
}

/// Each segment with its place in the buffer.
fn places<'a>(buffer: &MappedBuffer, segments: &'a Segments) -> impl Iterator<Item = (*mut u8, &'a Segment)> {
    let mut next = buffer.as_ptr();
    segments.iter().map(move |segment| {
        let place = next;
        next = next.wrapping_add(segment.len as usize);
        (place, segment)
    })
}

/// Writes `part` of a file, all of it. The first byte of `frames` belongs at `base`.
pub(crate) async fn write_all(
    cpu: &Processor,
    file: File,
    base: ByteOffset,
    mut frames: Frames,
    part: ByteRange,
    stability: Stability,
) -> Result<Frames, Errno> {
    let mut at = part.at;
    while at < part.end() {
        let from = segments(&frames, (at - base) as usize, (part.end() - at) as usize);
        let result;
        (result, frames) = transfer(cpu, frames, from, |from| Op::Write { file, at, from, stability }).await;
        match result? {
            0 => return Err(Errno::IO),
            written => at = at + written,
        }
    }
    Ok(frames)
}

/// Zeroes a part of the frames that a transfer fills, beyond the end of the file.
pub(crate) fn zero_part(frames: &[FrameRef], from: usize, len: usize) {
    for segment in segments(frames, from, len) {
        // SAFETY: the frames are being filled by this transfer; there is no other access to them.
        unsafe { segment.ptr.write_bytes(0, segment.len as usize) };
    }
}
