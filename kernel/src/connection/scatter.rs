//! Placement of received bytes: headers go into a buffer, payload directly into frames for the cache.
//!
//! What arrives next is unknown until it is received, so it is predicted (`arrivals.rs`). Among reads, many small
//! headers arrive in one receive. Where writes are expected, a receive is laid out as header, payload, header, payload,
//! … so that a pipeline of writes needs one receive and no copy. A wrong prediction costs a copy, never correctness.

use std::collections::VecDeque;
use std::ops::Range;

use machine::Segments;

use super::arrivals::{ArrivalEstimate, Shape};
use crate::connection::segment;
use crate::frame::append_segments;
use crate::{FRAME_BYTES, Frames, Hold};

/// Size of the header buffer, and of a receive after reads. Bytes.
const BUFFER_BYTES: usize = 4096;
/// Predicted payload of one receive, at most. Bytes.
const PREDICTED_BYTES_MAX: usize = 256 << 10;
/// Predicted requests of one receive, at most.
const PREDICTED_MAX: usize = 16;

/// Received bytes not taken yet, in stream order.
enum Piece {
    Buffer(Range<usize>),
    /// In frames laid out for a payload.
    Frames(Filling),
}

/// A payload being received into frames. Positions are bytes from the start of the first frame.
struct Filling {
    frames: Frames,
    /// Number of frames, valid also while a receive owns them.
    count: usize,
    start: usize,
    /// End of the bytes that have arrived.
    filled: usize,
    end: usize,
    /// Were the frames laid out before the request was known?
    was_predicted: bool,
}

/// Header bytes expected before payloads.
#[derive(Clone, Copy, Debug)]
pub struct Headers {
    /// Before the next payload, without what was already [taken](Scatter::take).
    pub first: usize,
    /// Before each further payload.
    pub each: usize,
}

/// Memory of a connection's receiving side.
pub struct Scatter {
    buffer: Vec<u8>,
    landed: VecDeque<Piece>,
    filling: Option<Filling>,
    /// The layout of the receive in flight.
    planned: Vec<Planned>,
    /// Unused predicted frames, for the next prediction.
    spare: Frames,
    estimate: ArrivalEstimate,
}

enum Planned {
    Buffer(Range<usize>),
    Frames { count: usize, shape: Shape },
}

/// Payloads of `len` bytes to lay out in one receive, at most.
fn most_expected(len: usize) -> usize {
    if len > PREDICTED_BYTES_MAX / 2 { 0 } else { (PREDICTED_BYTES_MAX / len.max(1)).clamp(1, PREDICTED_MAX) }
}

fn frames_for((offset, len): Shape) -> usize {
    (offset + len).div_ceil(FRAME_BYTES)
}

impl Scatter {
    pub fn new() -> Self {
        Scatter {
            buffer: vec![0; BUFFER_BYTES],
            landed: VecDeque::new(),
            filling: None,
            planned: Vec::new(),
            spare: Frames::new(),
            estimate: ArrivalEstimate::default(),
        }
    }

    /// Lays out the next receive, with up to `budget` frames for predicted payload. `take` adds up to a number of
    /// frames without waiting. Everything that [`Scatter::take`] or [`Scatter::payload`] could return must have been
    /// taken.
    pub fn plan(
        &mut self,
        headers: Headers,
        budget: usize,
        mut take: impl FnMut(usize, &mut Frames),
    ) -> (Hold, Segments) {
        debug_assert!(self.landed.is_empty(), "received bytes were not taken");
        self.planned.clear();
        let mut segments = Segments::new();
        let mut frames = Frames::new();
        let mut at = 0;
        let mut next = headers.first;
        let expected = self.expected();
        let mut left = budget.saturating_sub(self.predicted_and_begun());
        // More than the prediction needs would lie idle.
        self.spare.truncate(if expected.is_none_or(|(_, count)| count == 0) { 0 } else { left });
        if let Some(filling) = &mut self.filling {
            append_segments(&mut segments, &filling.frames, filling.filled, filling.end - filling.filled);
            frames.append(&mut filling.frames);
        }
        for shape in expected.into_iter().flat_map(|(shape, count)| std::iter::repeat_n(shape, count)) {
            let count = frames_for(shape);
            let Some(rest) = left.checked_sub(count) else { break };
            if at + next + headers.each > BUFFER_BYTES {
                break;
            }
            left = rest;
            let missing = count.saturating_sub(self.spare.len());
            take(missing, &mut self.spare);
            let Some(from) = self.spare.len().checked_sub(count) else { break };
            self.plan_buffer(&mut segments, at..at + next);
            at += next;
            next = headers.each;
            let mut own: Frames = self.spare.drain(from..).collect();
            append_segments(&mut segments, &own, shape.0, shape.1);
            frames.append(&mut own);
            self.planned.push(Planned::Frames { count, shape });
        }
        let end = if expected.is_some() { (at + next).min(BUFFER_BYTES) } else { BUFFER_BYTES };
        self.plan_buffer(&mut segments, at..end);
        (Hold::new(std::mem::take(&mut self.buffer), frames), segments)
    }

    /// Predicted frames of the payload that is arriving.
    fn predicted_and_begun(&self) -> usize {
        self.filling.as_ref().filter(|filling| filling.was_predicted).map_or(0, |filling| filling.count)
    }

    /// Frames reserved for predicted payload, after [`Scatter::plan`], until it is complete, which may be never.
    pub fn predicted(&self) -> usize {
        let planned = self.planned.iter().map(|planned| match planned {
            Planned::Frames { count, .. } => *count,
            Planned::Buffer(_) => 0,
        });
        self.spare.len() + planned.sum::<usize>() + self.predicted_and_begun()
    }

    /// `received` bytes have arrived in the layout; may be 0.
    pub fn land(&mut self, hold: Hold, received: usize) {
        self.buffer = hold.bytes;
        let mut frames = hold.frames.into_iter();
        let mut left = received;
        if let Some(filling) = &mut self.filling {
            filling.frames = frames.by_ref().take(filling.count).collect();
            let here = left.min(filling.end - filling.filled);
            filling.filled += here;
            left -= here;
        }
        let (mut used, mut expected, mut most) = (0, 0, 1);
        for planned in self.planned.drain(..) {
            match planned {
                Planned::Buffer(range) => {
                    let here = left.min(range.len());
                    left -= here;
                    if here > 0 {
                        self.landed.push_back(Piece::Buffer(range.start..range.start + here));
                    }
                }
                Planned::Frames { count, shape: (start, len) } => {
                    let own: Frames = frames.by_ref().take(count).collect();
                    let here = left.min(len);
                    left -= here;
                    expected += 1;
                    most = most_expected(len);
                    if here > 0 {
                        used += 1;
                        let filling = Filling {
                            frames: own,
                            count,
                            start,
                            filled: start + here,
                            end: start + len,
                            was_predicted: true,
                        };
                        self.landed.push_back(Piece::Frames(filling));
                    } else {
                        self.spare.extend(own);
                    }
                }
            }
        }
        self.estimate.on_landed(used, expected, most);
    }

    /// Takes received bytes until `to` is full; returns the number taken.
    pub fn take(&mut self, mut to: &mut [u8]) -> usize {
        let most = to.len();
        while !to.is_empty() {
            let Some(piece) = self.landed.front_mut() else { break };
            let len = to.len().min(piece.len());
            let (here, rest) = to.split_at_mut(len);
            piece.copy(&self.buffer, here);
            piece.skip(len);
            to = rest;
            self.drop_empty();
        }
        most - to.len()
    }

    /// Is a payload incomplete?
    pub fn is_within_payload(&self) -> bool {
        self.filling.is_some()
    }

    /// The request was not a write.
    pub fn on_other(&mut self) {
        self.estimate.on_other();
    }

    /// Did the next payload arrive in frames laid out for exactly its shape?
    pub fn is_predicted(&self, offset: usize, len: usize) -> bool {
        matches!(self.landed.front(), Some(Piece::Frames(piece))
            if piece.start == offset && piece.end == offset + len && piece.frames.len() == frames_for((offset, len)))
    }

    /// Have `len` bytes arrived that were not taken?
    pub fn has(&self, len: usize) -> bool {
        self.landed.iter().map(Piece::len).sum::<usize>() >= len
    }

    /// A write's payload of `len` bytes follows; its first byte lies `offset` bytes into the first frame. `fresh`:
    /// frames for it, unneeded if it [is predicted](Self::is_predicted).
    pub fn begin_payload(&mut self, offset: usize, len: usize, fresh: Frames) {
        self.estimate.on_write((offset, len));
        if self.is_predicted(offset, len) {
            if let Some(Piece::Frames(filling)) = self.landed.pop_front() {
                self.filling = Some(filling);
            }
            return;
        }
        self.fill(offset, len, fresh);
    }

    /// A part of a payload follows: `len` bytes, to be placed `offset` bytes into `frames`.
    pub fn fill(&mut self, offset: usize, len: usize, frames: Frames) {
        let count = frames.len();
        let mut filling =
            Filling { frames, count, start: offset, filled: offset, end: offset + len, was_predicted: false };
        self.copy_into(&mut filling);
        self.filling = Some(filling);
    }

    /// The payload, once complete.
    pub fn payload(&mut self) -> Option<Frames> {
        let complete = self.filling.as_ref().is_some_and(|filling| filling.filled == filling.end);
        if complete { self.filling.take().map(|filling| filling.frames) } else { None }
    }

    /// Discards up to `len` received bytes; returns the number discarded.
    pub fn skip(&mut self, len: usize) -> usize {
        let mut left = len;
        while left > 0 {
            let Some(piece) = self.landed.front_mut() else { break };
            left -= piece.skip(left);
            self.drop_empty();
        }
        len - left
    }

    fn plan_buffer(&mut self, segments: &mut Segments, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        segments.push(segment(&mut self.buffer[range.clone()]));
        self.planned.push(Planned::Buffer(range));
    }

    /// The shape of the writes expected next, and the number to lay out.
    fn expected(&self) -> Option<(Shape, usize)> {
        self.estimate.expected().map(|(shape, count)| (shape, count.min(most_expected(shape.1))))
    }

    fn copy_into(&mut self, filling: &mut Filling) {
        while filling.filled < filling.end {
            let Some(piece) = self.landed.front_mut() else { return };
            let within = filling.filled % FRAME_BYTES;
            let len = piece.len().min(filling.end - filling.filled).min(FRAME_BYTES - within);
            let to = filling.frames[filling.filled / FRAME_BYTES].segment(within, len);
            // SAFETY: the frames are given to be filled by what arrives, which is this copy as well as a receive into them;
            // the cache may have shares in them (a block that is being loaded), but nobody reads or writes them meanwhile.
            let bytes = unsafe { std::slice::from_raw_parts_mut(to.ptr, len) };
            piece.copy(&self.buffer, bytes);
            piece.skip(len);
            filling.filled += len;
            self.drop_empty();
        }
    }

    fn drop_empty(&mut self) {
        if self.landed.front().is_some_and(|piece| piece.len() == 0)
            && let Some(Piece::Frames(filling)) = self.landed.pop_front()
            && self.spare.len() < PREDICTED_MAX
        {
            self.spare.extend(filling.frames);
        }
    }
}

impl Default for Scatter {
    fn default() -> Self {
        Scatter::new()
    }
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Piece::Buffer(range) => range.len(),
            Piece::Frames(filling) => filling.filled - filling.start,
        }
    }

    fn skip(&mut self, len: usize) -> usize {
        let len = len.min(self.len());
        match self {
            Piece::Buffer(range) => range.start += len,
            Piece::Frames(filling) => filling.start += len,
        }
        len
    }

    /// Copies its first bytes to `to`.
    fn copy(&self, buffer: &[u8], to: &mut [u8]) {
        match self {
            Piece::Buffer(range) => to.copy_from_slice(&buffer[range.start..range.start + to.len()]),
            Piece::Frames(filling) => {
                let mut at = filling.start;
                let mut to = to;
                while !to.is_empty() {
                    let within = at % FRAME_BYTES;
                    let len = to.len().min(FRAME_BYTES - within);
                    let (here, rest) = to.split_at_mut(len);
                    here.copy_from_slice(&filling.frames[at / FRAME_BYTES].bytes()[within..within + len]);
                    at += len;
                    to = rest;
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "scatter_tests.rs"]
mod tests;
