//! Memory for data: one mapping of huge pages, which the ring knows, in chunks of powers of two.

use std::io;
use std::ptr::NonNull;

/// Memory that is mapped; touched as it is used.
const ARENA_BYTES: usize = 256 << 20;

/// Alignment of chunks: that of huge pages for the whole, of pages for each.
const HUGE: usize = 2 << 20;
const CHUNK_BYTES_MIN: usize = 4096;

/// Classes of sizes: from [`CHUNK_BYTES_MIN`] on.
const CLASSES: usize = 16;

/// Memory of the arena; whoever has it alone uses it, until it is given back.
#[derive(Clone, Copy, Debug)]
pub struct Chunk {
    at: usize,
    class: u8,
}

impl Chunk {
    /// What begins `bytes` bytes into it; not to be given back.
    pub fn from(self, bytes: usize) -> Chunk {
        Chunk { at: self.at + bytes, ..self }
    }
}

pub struct Arena {
    memory: NonNull<u8>,
    used: usize,
    free: [Vec<Chunk>; CLASSES],
}

impl Arena {
    pub fn new() -> io::Result<Arena> {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), ARENA_BYTES + HUGE, protection, flags, -1, 0) };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = memory.cast::<u8>();
        // SAFETY: the mapping is longer than the arena by as much as it may be moved.
        let memory = unsafe { memory.add(memory.align_offset(HUGE)) };
        // SAFETY: a part of the mapping. Without huge pages it works as well.
        unsafe { libc::madvise(memory.cast(), ARENA_BYTES, libc::MADV_HUGEPAGE) };
        let memory = NonNull::new(memory).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Arena { memory, used: 0, free: Default::default() })
    }

    /// # Errors
    /// When all memory is taken.
    pub fn take(&mut self, bytes: usize) -> io::Result<Chunk> {
        let class = bytes.div_ceil(CHUNK_BYTES_MIN).next_power_of_two().trailing_zeros() as usize;
        if let Some(chunk) = self.free.get_mut(class).and_then(Vec::pop) {
            return Ok(chunk);
        }
        let bytes = CHUNK_BYTES_MIN << class;
        if class >= CLASSES || self.used + bytes > ARENA_BYTES {
            return Err(io::Error::other(format!("no memory for {bytes} bytes more in flight")));
        }
        let chunk = Chunk { at: self.used, class: class as u8 };
        self.used += bytes;
        Ok(chunk)
    }

    pub fn give_back(&mut self, chunk: Chunk) {
        self.free[usize::from(chunk.class)].push(chunk);
    }

    pub fn address(&self, chunk: Chunk) -> *mut u8 {
        // SAFETY: chunks lie in the arena.
        unsafe { self.memory.as_ptr().add(chunk.at) }
    }

    /// The whole, for the ring; it is never unmapped.
    pub fn whole(&self) -> libc::iovec {
        libc::iovec { iov_base: self.memory.as_ptr().cast(), iov_len: ARENA_BYTES }
    }
}
