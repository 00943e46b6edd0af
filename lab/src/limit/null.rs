//! No storage: reads are answered from one chunk of memory, writes and flushes at once. The data of a read is the chunk's
//! beginning, which the processor's cache holds; or, as in a server that caches much, it lies where the offset says.

use std::io;
use std::os::fd::RawFd;

use super::arena::{Arena, Chunk};
use super::call::{Call, Files, Protocol, What};
use super::replies::{Replies, Storage};

/// The longest read.
const READ_BYTES_MAX: usize = 32 << 20;

/// Memory that reads are spread over: more than processors cache.
const SPREAD_BYTES: usize = 128 << 20;

/// The only file, whatever its name is.
const FILE: u32 = 0;

pub struct Null {
    bytes: u64,
    chunk: Chunk,
    /// Bytes of the chunk in which reads begin; 0: all at its beginning.
    spread: u64,
}

impl Null {
    /// Every file has `bytes` bytes. `spread`: reads come from all over the memory.
    pub fn new(bytes: u64, spread: bool, arena: &mut Arena) -> io::Result<Null> {
        if !spread {
            return Ok(Null { bytes, chunk: arena.take(READ_BYTES_MAX)?, spread: 0 });
        }
        let chunk = arena.take(SPREAD_BYTES)?;
        // SAFETY: the chunk has as many bytes. Until they are written, all pages are the same one of zeroes.
        unsafe { arena.address(chunk).write_bytes(1, SPREAD_BYTES) };
        Ok(Null { bytes, chunk, spread: (SPREAD_BYTES - READ_BYTES_MAX) as u64 })
    }
}

impl Files for Null {
    fn lookup(&mut self, _name: &[u8]) -> Option<u32> {
        Some(FILE)
    }

    fn create(&mut self, _name: &[u8]) -> io::Result<u32> {
        Ok(FILE)
    }

    fn remove(&mut self, _name: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn truncate(&mut self, _file: u32, _bytes: u64) -> io::Result<()> {
        Ok(())
    }

    fn bytes(&self, _file: u32) -> u64 {
        self.bytes
    }
}

impl Storage for Null {
    const TAKES_DATA: bool = false;

    fn take(&mut self, from: usize, call: Call, chunk: Option<Chunk>, replies: &mut Replies<'_, impl Protocol>) {
        if let Some(chunk) = chunk {
            replies.arena.give_back(chunk);
        }
        let at = call.offset.checked_rem(self.spread).unwrap_or(0);
        let content = (call.what == What::Read).then_some((self.chunk.from(at as usize), false));
        replies.answer(from, &call, Ok(call.bytes), self.bytes, content);
    }

    fn advance(&mut self, _replies: &mut Replies<'_, impl Protocol>) -> io::Result<bool> {
        Ok(false)
    }

    fn descriptor(&self) -> Option<RawFd> {
        None
    }

    fn is_waiting(&self) -> bool {
        false
    }

    fn release(&mut self) {}
}
