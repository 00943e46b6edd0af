//! Frames: the memory of all data, from socket to disk and back.
//!
//! A frame holds one block. Only a sole owner writes it; while shared it is immutable: the cache replaces a block's
//! frame instead of changing it under a reader, a sender or a disk write. So no transfer blocks another, and data in
//! flight never changes.

mod chunks;
mod free;
mod mapped;
mod pool;
mod region;
mod reserve;

use std::fmt;

use machine::{Segment, Segments};
use policy::unit::BLOCK_BYTES;
use smallvec::SmallVec;

pub use free::FrameNo;
pub(crate) use free::set_thread_processor;
pub(crate) use mapped::MappedBuffer;
use pool::Shared;
pub use pool::{CHUNKS_MAX, FramePool, HUGE_PAGE_BYTES, PoolConfig, pools_left_mapped};

pub const FRAME_BYTES: usize = BLOCK_BYTES as usize;

/// A counted reference to a frame. Dropping the last one frees it.
pub struct FrameRef {
    pool: *const Shared,
    no: FrameNo,
}

/// In the order of their blocks.
pub type Frames = SmallVec<[FrameRef; 2]>;

// SAFETY: the frame's count is atomic, its bytes are written only through an exclusive reference to the only share, and
// the pool is shared between threads and outlives all shares.
unsafe impl Send for FrameRef {}
// SAFETY: as above.
unsafe impl Sync for FrameRef {}

impl FrameRef {
    pub fn no(&self) -> FrameNo {
        self.no
    }

    /// The first byte. A writer through it must have the only reference, or own the frame's content by contract (a
    /// transfer into it is in flight).
    pub fn as_ptr(&self) -> *mut u8 {
        self.pool().address(self.no)
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the frame is mapped while there is a reference, and a frame with readers is never written.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), FRAME_BYTES) }
    }

    /// The content for writing, if this is the only reference.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if self.pool().references(self.no) != 1 {
            return None;
        }
        self.clear_verified();
        // SAFETY: this is the only reference and it is borrowed exclusively.
        Some(unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), FRAME_BYTES) })
    }

    /// Whether somebody has found its content to be right, by a checksum in it, since it was written or read.
    pub fn is_verified(&self) -> bool {
        self.pool().is_verified(self.no)
    }

    pub fn set_verified(&self) {
        self.pool().set_verified(self.no, true);
    }

    /// After its content was changed in place.
    pub(crate) fn clear_verified(&self) {
        self.pool().set_verified(self.no, false);
    }

    /// A segment for `len` bytes from `offset`.
    ///
    /// # Panics
    /// If they are not within the frame.
    pub fn segment(&self, offset: usize, len: usize) -> Segment {
        assert!(len > 0 && offset + len <= FRAME_BYTES, "segment {offset}+{len} outside a frame");
        // SAFETY: inside the frame, as just asserted.
        let ptr = unsafe { self.as_ptr().add(offset) };
        Segment { ptr, len: len as u32, region: Some(self.pool().region_of(self.no)) }
    }

    fn pool(&self) -> &Shared {
        // SAFETY: the pool is retained (leaked, if need be) while there is a reference.
        unsafe { &*self.pool }
    }

    /// Gives up the reference without freeing the frame; [`FramePool::adopt`] restores it. The cache stores numbers.
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

/// Segments for `len` bytes from the `offset`-th byte of `frames`; contiguous ones are joined.
///
/// # Panics
/// If `frames` hold fewer bytes.
pub fn segments(frames: &[FrameRef], offset: usize, len: usize) -> Segments {
    let mut segments = Segments::new();
    append_segments(&mut segments, frames, offset, len);
    segments
}

/// As [`segments`], appended to `segments`.
///
/// # Panics
/// If `frames` hold fewer bytes.
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

#[cfg(test)]
mod tests {
    use policy::pages::PageSize;

    use super::pool::PoolConfig;
    use super::*;

    #[test]
    fn a_frame_with_new_content_is_not_verified() {
        let pool =
            FramePool::new(PoolConfig { bytes_max: 4 << 20, chunk_bytes: 4 << 20, register: false, processors: 1 })
                .expect("address space");
        assert!(pool.grow(1, PageSize::Small));
        let mut taken = Frames::new();
        pool.take(1, &mut taken);
        let no = taken[0].no();
        assert!(!taken[0].is_verified());
        taken[0].set_verified();
        assert!(taken[0].clone().is_verified());
        assert!(taken[0].bytes_mut().is_some() && !taken[0].is_verified());
        taken[0].set_verified();
        taken.clear();
        pool.take(pool.frames_free() as usize, &mut taken);
        let again = taken.iter().find(|frame| frame.no() == no).expect("it is free again");
        assert!(!again.is_verified());
    }
}
