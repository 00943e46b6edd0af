//! Address space of the host, and in which pages it is filled.

use std::ptr;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::HUGE_PAGE_BYTES;

/// Memory taken in pages of each size to compare what they cost. Bytes.
const PROBE_BYTES: usize = 4 * HUGE_PAGE_BYTES as usize;

/// Does the host provide huge pages about as cheaply as small ones? Measured once a process, within some milliseconds. A
/// guest that reports free memory to its host gets huge pages that the host must first find memory for.
pub(crate) fn huge_pages_are_cheap() -> bool {
    static CHEAP: OnceLock<bool> = OnceLock::new();
    *CHEAP.get_or_init(|| match (cost(libc::MADV_HUGEPAGE), cost(libc::MADV_NOHUGEPAGE)) {
        (Some(huge), Some(small)) => huge <= small + small / 4,
        // A kernel that cannot be asked to provide memory: as it was before anybody measured.
        _ => true,
    })
}

/// How long the host takes to provide fresh memory in pages as advised.
fn cost(advice: libc::c_int) -> Option<Duration> {
    let base: *mut libc::c_void = reserve(PROBE_BYTES, HUGE_PAGE_BYTES as usize).ok()?.cast();
    // SAFETY: our own fresh mapping.
    unsafe { libc::madvise(base, PROBE_BYTES, advice) };
    let start = Instant::now();
    // SAFETY: as above.
    let done = unsafe { libc::madvise(base, PROBE_BYTES, libc::MADV_POPULATE_WRITE) };
    let took = start.elapsed();
    // SAFETY: nobody else knows of the mapping.
    unsafe { libc::munmap(base, PROBE_BYTES) };
    (done == 0).then_some(took)
}

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
    Ok(aligned as *mut u8)
}
