//! Reservation of address space.

use std::ptr;

/// Reserves `len` bytes of zeroed, unused memory whose address is a multiple of `align`.
pub(super) fn reserve(len: usize, align: usize) -> std::io::Result<*mut u8> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new anonymous mapping does not overlap other memory.
    let raw = unsafe { libc::mmap(ptr::null_mut(), len + align, prot, flags, -1, 0) };
    if raw == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    let start = raw as usize;
    let aligned = start.next_multiple_of(align);
    let end = (aligned + len).next_multiple_of(4096);
    // SAFETY: head and tail of the new mapping, to which there are no references yet.
    unsafe {
        if aligned > start {
            libc::munmap(raw, aligned - start);
        }
        if start + len + align > end {
            libc::munmap(end as *mut libc::c_void, start + len + align - end);
        }
    }
    // `mlockall` would lock this memory, too, but it must stay releasable.
    // SAFETY: the mapping is our own and remains mapped.
    unsafe { libc::munlock(aligned as *const libc::c_void, len) };
    Ok(aligned as *mut u8)
}
