//! The buffer of `unmapped_io = off`: mapped before each I/O and unmapped after it, as in FreeBSD 9 (UIO). Each
//! unmapping costs a TLB shootdown on every processor of the process, which is what this switch measures.

use machine::{Errno, Segment, Segments};
use smallvec::smallvec;

/// Memory mapped for one I/O.
#[derive(Debug)]
pub(crate) struct MappedBuffer {
    ptr: *mut u8,
    len: usize,
}

impl MappedBuffer {
    pub(crate) fn new(len: usize) -> Result<Self, Errno> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new anonymous mapping does not overlap other memory.
        let ptr = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
        if ptr == libc::MAP_FAILED { Err(Errno::NO_MEMORY) } else { Ok(MappedBuffer { ptr: ptr.cast(), len }) }
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.ptr
    }

    pub(crate) fn segments(&self) -> Segments {
        smallvec![Segment { ptr: self.ptr, len: self.len as u32, region: None }]
    }
}

impl Drop for MappedBuffer {
    fn drop(&mut self) {
        // SAFETY: our own mapping; the operation that used it has ended and returned it in its hold.
        unsafe { libc::munmap(self.ptr.cast(), self.len) };
    }
}
