//! Frames: the memory that every byte passes through, from socket to disk and back.
//!
//! A frame holds one block. It is written by its only owner and immutable while shared: the cache replaces the frame of
//! a block, it does not change it under a reader, a sender or a disk write. So nobody waits for anybody's transfer,
//! and what is on its way to the disk or the wire stays as it was.

mod free;
mod pool;
mod region;
mod reserve;

use std::fmt;

use machine::{Segment, Segments};
use policy::unit::BLOCK_BYTES;
use smallvec::SmallVec;

use crate::operation::Hold;
pub(crate) use free::set_thread_processor;
use pool::Shared;
pub use pool::{CHUNKS_MAX, FrameNo, FramePool, HUGE_PAGE_BYTES, PoolConfig};

/// Bytes in one frame.
pub const FRAME_BYTES: usize = BLOCK_BYTES as usize;

/// A share in a frame. Dropping the last one frees it.
pub struct FrameRef {
    pool: *const Shared,
    no: FrameNo,
}

/// Several frames, in the order of their blocks.
pub type Frames = SmallVec<[FrameRef; 2]>;

// SAFETY: the frame's count is atomic, its bytes are written only through an exclusive reference to the only share,
// and the pool is shared between threads and outlives all shares.
unsafe impl Send for FrameRef {}
// SAFETY: as above.
unsafe impl Sync for FrameRef {}

impl FrameRef {
    pub fn no(&self) -> FrameNo {
        self.no
    }

    /// The first byte. Whoever writes through it must have the only share or own the frame's content by contract
    /// (a transfer into it under way).
    pub fn as_ptr(&self) -> *mut u8 {
        self.pool().address(self.no)
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the frame is mapped while a share exists, and nobody writes a frame that has a reader.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), FRAME_BYTES) }
    }

    /// Its content, to write, if this is the only share.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if self.pool().references(self.no) != 1 {
            return None;
        }
        // SAFETY: this is the only share and it is borrowed exclusively.
        Some(unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), FRAME_BYTES) })
    }

    /// A segment for `len` bytes from `offset`.
    ///
    /// # Panics
    /// When they do not lie in the frame.
    pub fn segment(&self, offset: usize, len: usize) -> Segment {
        assert!(len > 0 && offset + len <= FRAME_BYTES, "segment {offset}+{len} outside a frame");
        // SAFETY: inside the frame, as just asserted.
        let ptr = unsafe { self.as_ptr().add(offset) };
        Segment { ptr, len: len as u32, region: Some(self.pool().region_of(self.no)) }
    }

    fn pool(&self) -> &Shared {
        // SAFETY: the pool is kept (leaked, if need be) while there is a share.
        unsafe { &*self.pool }
    }

    /// Gives up the share without freeing the frame; [`FramePool::adopt`] takes it back. The cache keeps numbers.
    pub(crate) fn into_no(self) -> FrameNo {
        let no = self.no;
        std::mem::forget(self);
        no
    }
}

impl Clone for FrameRef {
    fn clone(&self) -> Self {
        self.pool().retain(self.no);
        FrameRef { pool: self.pool, no: self.no }
    }
}

impl Drop for FrameRef {
    fn drop(&mut self) {
        self.pool().release(self.no);
    }
}

impl fmt::Debug for FrameRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "frame {}", self.no.0)
    }
}

/// Segments for `len` bytes from the `offset`-th byte of `frames`; neighbours in memory are joined.
///
/// # Panics
/// When `frames` hold fewer bytes.
pub fn segments(frames: &[FrameRef], offset: usize, len: usize) -> Segments {
    let mut segments = Segments::new();
    append_segments(&mut segments, frames, offset, len);
    segments
}

/// Like [`segments`], appended to what is there.
///
/// # Panics
/// When `frames` hold fewer bytes.
pub fn append_segments(segments: &mut Segments, frames: &[FrameRef], offset: usize, len: usize) {
    let mut left = len;
    let skip = (offset / FRAME_BYTES).min(frames.len());
    let mut offset = offset - skip * FRAME_BYTES;
    for frame in &frames[skip..] {
        if left == 0 {
            return;
        }
        let here = left.min(FRAME_BYTES - offset);
        push_joined(segments, frame.segment(offset, here));
        left -= here;
        offset = 0;
    }
    assert!(left == 0, "{left} bytes more than the frames hold");
}

fn push_joined(segments: &mut Segments, next: Segment) {
    if let Some(last) = segments.last_mut() {
        let end = last.ptr.wrapping_add(last.len as usize);
        if end == next.ptr && last.region == next.region && last.len.checked_add(next.len).is_some() {
            last.len += next.len;
            return;
        }
    }
    segments.push(next);
}

impl Hold {
    /// Asserts that the segments lie in this memory. Frames are looked up only in builds with debug assertions:
    /// every caller makes its segments from the frames that it holds.
    pub(crate) fn assert_holds(&self, segments: &[Segment]) {
        if cfg!(debug_assertions) {
            let mut bases: Vec<usize> = self.frames.iter().map(|frame| frame.as_ptr() as usize).collect();
            bases.sort_unstable();
            let in_frame = |at: usize| {
                let base = bases[..bases.partition_point(|&base| base <= at)].last();
                base.is_some_and(|base| at < base + FRAME_BYTES)
            };
            for segment in segments {
                let start = segment.ptr as usize;
                let end = start + segment.len as usize;
                let bytes = self.bytes.as_ptr() as usize..self.bytes.as_ptr() as usize + self.bytes.capacity();
                let inside = (bytes.start <= start && end <= bytes.end)
                    || (in_frame(end - 1) && (start..end).step_by(FRAME_BYTES).all(in_frame));
                assert!(inside, "a segment lies outside the memory that the operation holds");
            }
        }
    }
}
