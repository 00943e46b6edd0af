//! Moves bytes between the memory of an operation and the simulated world.

use machine::Segment;

/// Appends the first `len` bytes of `segments` to `out`, fewer when they hold fewer.
///
/// # Safety
/// The memory of the segments is valid.
pub(crate) unsafe fn gather(segments: &[Segment], len: u64, out: &mut impl for<'a> Extend<&'a u8>) {
    let mut left = len;
    for segment in segments {
        let n = left.min(u64::from(segment.len));
        // SAFETY: valid by the caller's promise; nothing else runs while the slice lives, for this is one thread.
        let bytes = unsafe { std::slice::from_raw_parts(segment.ptr, n as usize) };
        out.extend(bytes);
        left -= n;
    }
}

/// Hands the memory of the first `len` bytes of `segments` to `fill`, piece by piece, with each piece's distance from
/// the first byte.
///
/// # Safety
/// The memory of the segments is valid, and nobody else uses it.
pub(crate) unsafe fn scatter_into(segments: &[Segment], len: u64, mut fill: impl FnMut(u64, &mut [u8])) {
    let mut passed = 0;
    for segment in segments {
        let n = (len - passed).min(u64::from(segment.len));
        if n == 0 {
            return;
        }
        // SAFETY: valid and unshared by the caller's promise.
        let bytes = unsafe { std::slice::from_raw_parts_mut(segment.ptr, n as usize) };
        fill(passed, bytes);
        passed += n;
    }
}
