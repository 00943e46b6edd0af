//! A log: each query is one write of 4 KiB and its flush before it is answered, as the shortest transaction. All that have come
//! meanwhile share the next one.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::arena::{Arena, Chunk};
use super::call::{Call, Files, Protocol, What};
use super::replies::{Replies, Storage};

/// Of one write.
const RECORD_BYTES: usize = 4096;

/// Of the file, which is written over again and again: a write that makes a file longer costs its file system more.
const LOG_BYTES: usize = 16 << 20;

pub struct Log {
    file: File,
    record: Chunk,
    offset: usize,
    /// Calls in the order of their coming.
    waiting: Vec<(usize, Call)>,
    /// Those that are to be durable first.
    undurable: usize,
    /// As many as one write is for.
    group: usize,
    /// The group is as large as it will be.
    is_released: bool,
}

impl Log {
    /// # Errors
    /// When the file cannot be written, or not past the host's cache.
    pub fn new(path: &Path, group: usize, arena: &mut Arena) -> io::Result<Log> {
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).custom_flags(libc::O_DIRECT).open(path)?;
        let whole = arena.take(LOG_BYTES)?;
        let bytes: *const u8 = arena.address(whole);
        // SAFETY: the chunk has as many bytes, and nobody else uses it.
        let written = unsafe { libc::pwrite(file.as_raw_fd(), bytes.cast(), LOG_BYTES, 0) };
        if written != LOG_BYTES as isize {
            return Err(if written < 0 { io::Error::last_os_error() } else { io::ErrorKind::WriteZero.into() });
        }
        file.sync_all()?;
        arena.give_back(whole);
        let record = arena.take(RECORD_BYTES)?;
        let (offset, undurable) = Default::default();
        Ok(Log { file, record, offset, waiting: Vec::new(), undurable, group: group.max(1), is_released: false })
    }

    fn write(&mut self, arena: &Arena) -> io::Result<()> {
        let vector = libc::iovec { iov_base: arena.address(self.record).cast(), iov_len: RECORD_BYTES };
        let at = self.offset as libc::off_t;
        // SAFETY: the record is memory of the arena that nothing else writes.
        let written = unsafe { libc::pwritev2(self.file.as_raw_fd(), &raw const vector, 1, at, libc::RWF_DSYNC) };
        if written != RECORD_BYTES as isize {
            return Err(if written < 0 { io::Error::last_os_error() } else { io::ErrorKind::WriteZero.into() });
        }
        self.offset = (self.offset + RECORD_BYTES) % LOG_BYTES;
        Ok(())
    }
}

impl Files for Log {
    fn lookup(&mut self, _name: &[u8]) -> Option<u32> {
        None
    }

    fn create(&mut self, _name: &[u8]) -> io::Result<u32> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn remove(&mut self, _name: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn truncate(&mut self, _file: u32, _bytes: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn bytes(&self, _file: u32) -> u64 {
        0
    }
}

impl Storage for Log {
    const TAKES_DATA: bool = false;

    fn take(&mut self, from: usize, call: Call, _chunk: Option<Chunk>, _replies: &mut Replies<'_, impl Protocol>) {
        self.undurable += usize::from(call.what == What::Flush);
        self.waiting.push((from, call));
    }

    fn advance(&mut self, replies: &mut Replies<'_, impl Protocol>) -> io::Result<bool> {
        if self.waiting.is_empty() || (1..self.group).contains(&self.undurable) && !self.is_released {
            return Ok(false);
        }
        if self.undurable > 0 {
            self.write(replies.arena)?;
        }
        for (from, call) in self.waiting.drain(..) {
            replies.answer(from, &call, Ok(0), 0, None);
        }
        (self.undurable, self.is_released) = (0, false);
        Ok(true)
    }

    fn descriptor(&self) -> Option<RawFd> {
        None
    }

    fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn release(&mut self) {
        self.is_released = true;
    }
}
