//! No storage: reads are answered from one chunk of memory, writes and flushes at once.

use std::io;
use std::os::fd::RawFd;

use super::arena::{Arena, Chunk};
use super::call::{Call, Files, Protocol, What};
use super::replies::{Replies, Storage};

/// The longest read.
const READ_BYTES_MAX: usize = 32 << 20;

/// The only file, whatever its name is.
const FILE: u32 = 0;

pub struct Null {
    bytes: u64,
    chunk: Chunk,
}

impl Null {
    /// Every file has `bytes` bytes.
    pub fn new(bytes: u64, arena: &mut Arena) -> io::Result<Null> {
        Ok(Null { bytes, chunk: arena.take(READ_BYTES_MAX)? })
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
        let content = (call.what == What::Read).then_some((self.chunk, false));
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
