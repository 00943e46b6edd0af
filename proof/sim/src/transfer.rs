//! Copies bytes between the memory of an operation and the simulated world.

use machine::Segment;

/// Appends the first `len` bytes of `segments` to `out`, or fewer when they hold fewer.
///
/// # Safety
/// The memory of the segments is valid.
pub(crate) unsafe fn gather(segments: &[Segment], len: u64, out: &mut impl for<'a> Extend<&'a u8>) {
    let mut left = len;
    for segment in segments {
        let n = left.min(u64::from(segment.len));
        // SAFETY: valid as guaranteed by the caller; nothing else runs while the slice lives, in a single thread.
        let bytes = unsafe { std::slice::from_raw_parts(segment.ptr, n as usize) };
        out.extend(bytes);
        left -= n;
    }
}

/// Passes the memory of the first `len` bytes of `segments` to `fill`, segment by segment, with the offset of each from
/// the first byte.
///
/// # Safety
/// The memory of the segments is valid, and not used by others.
pub(crate) unsafe fn scatter_into(segments: &[Segment], len: u64, mut fill: impl FnMut(u64, &mut [u8])) {
    let mut passed = 0;
    for segment in segments {
        let n = (len - passed).min(u64::from(segment.len));
        if n == 0 {
            return;
        }
        // SAFETY: valid and unshared as guaranteed by the caller.
        let bytes = unsafe { std::slice::from_raw_parts_mut(segment.ptr, n as usize) };
        fill(passed, bytes);
        passed += n;
    }
}
