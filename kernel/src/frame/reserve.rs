//! Address space of the host.

use std::ptr;

/// Reserves `len` bytes of zeroed, unused memory whose address is a multiple of `align`.
pub(super) fn reserve(len: usize, align: usize) -> std::io::Result<*mut u8> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh anonymous mapping touches nobody's memory.
    let raw = unsafe { libc::mmap(ptr::null_mut(), len + align, prot, flags, -1, 0) };
    if raw == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    let start = raw as usize;
    let aligned = start.next_multiple_of(align);
    let end = (aligned + len).next_multiple_of(4096);
    // SAFETY: head and tail of the mapping just made, which nobody has seen.
    unsafe {
        if aligned > start {
            libc::munmap(raw, aligned - start);
        }
        if start + len + align > end {
            libc::munmap(end as *mut libc::c_void, start + len + align - end);
        }
    }
    // A process that locks all its memory would lock this, too; but it must be possible to give it back.
    // SAFETY: the mapping is our own, and stays as it is.
    unsafe { libc::munlock(aligned as *const libc::c_void, len) };
    Ok(aligned as *mut u8)
}
