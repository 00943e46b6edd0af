//! Stable writes: direct I/O in batches of as many writes as requests in flight, with a flush after each batch.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::Done;
use crate::measure::load::Load;
use crate::measure::spread::XorShift;

/// Memory alignment of direct I/O.
const ALIGN: usize = 4096;

/// `IOCB_CMD_PWRITE` and `struct io_event` of linux/aio_abi.h.
const WRITE: u16 = 1;

#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Event {
    data: u64,
    block: u64,
    result: i64,
    more: i64,
}

/// Writes at random offsets of an existing file.
pub fn overwrite(load: &Load, path: &Path, duration: Duration) -> Result<Done> {
    let in_flight = (load.in_flight * load.connections) as usize;
    let bytes = load.request_bytes as usize;
    let (file, buffer) = (direct(path)?, Buffer::new(bytes));
    fill(&file, load.file_bytes)?;
    let ring = Asynchronous::new(in_flight)?;
    let (start, mut requests, mut random) = (Instant::now(), 0, XorShift(XorShift::SEED));
    while start.elapsed() < duration {
        let mut offset = || random.number() % (load.file_bytes / bytes as u64) * bytes as u64;
        let offsets: Vec<u64> = (0..in_flight).map(|_| offset()).collect();
        ring.write(&file, buffer.bytes(), &offsets)?;
        file.sync_data()?;
        requests += in_flight as u64;
    }
    Ok(Done { requests, elapsed: start.elapsed() })
}

/// Extends a file, by one batch of writes at a time.
pub fn extend(load: &Load, path: &Path, duration: Duration) -> Result<Done> {
    let in_flight = u64::from(load.in_flight * load.connections);
    let buffer = Buffer::new(in_flight as usize * load.request_bytes as usize);
    let file = direct(path)?;
    let (start, mut requests, mut at) = (Instant::now(), 0, 0);
    while start.elapsed() < duration {
        file.write_all_at(buffer.bytes(), at)?;
        file.sync_data()?;
        at += buffer.bytes().len() as u64;
        requests += in_flight;
    }
    Ok(Done { requests, elapsed: start.elapsed() })
}

/// A new file for direct I/O.
pub fn direct(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(true).custom_flags(libc::O_DIRECT).open(path)
}

/// Fills a file and makes it durable.
pub fn fill(file: &File, bytes: u64) -> io::Result<()> {
    let buffer = Buffer::new(1 << 20);
    for at in (0..bytes).step_by(buffer.bytes().len()) {
        file.write_all_at(buffer.bytes(), at)?;
    }
    file.sync_all()
}

pub struct Buffer {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Buffer {
    /// `len` bytes, none of them zero: file systems and disks may treat zeroes specially.
    pub fn new(len: usize) -> Buffer {
        let memory = vec![7; len + ALIGN];
        let start = memory.as_ptr().align_offset(ALIGN);
        Buffer { memory, start, len }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }
}

/// The kernel's asynchronous I/O (`io_submit(2)`).
struct Asynchronous(libc::c_ulong);

impl Asynchronous {
    fn new(in_flight: usize) -> io::Result<Asynchronous> {
        let mut context: libc::c_ulong = 0;
        // SAFETY: the call stores a number in the variable, which is zero as it demands.
        check(unsafe { libc::syscall(libc::SYS_io_setup, in_flight, &raw mut context) })?;
        Ok(Asynchronous(context))
    }

    /// Writes the same bytes at all offsets, and waits until all are written.
    fn write(&self, file: &File, bytes: &[u8], offsets: &[u64]) -> Result<()> {
        let block = |&offset: &u64| {
            // SAFETY: a control block of zero bytes is valid.
            let mut block: libc::iocb = unsafe { std::mem::zeroed() };
            block.aio_lio_opcode = WRITE;
            block.aio_fildes = file.as_raw_fd() as u32;
            block.aio_buf = bytes.as_ptr() as u64;
            block.aio_nbytes = bytes.len() as u64;
            block.aio_offset = offset as i64;
            block
        };
        let mut blocks: Vec<libc::iocb> = offsets.iter().map(block).collect();
        let mut pointers: Vec<*mut libc::iocb> = blocks.iter_mut().map(|block| &raw mut *block).collect();
        let mut events = vec![Event::default(); offsets.len()];
        let count = offsets.len() as libc::c_long;
        // SAFETY: `count` pointers lead to control blocks; their bytes stay in place until io_getevents has reported
        // all of them as written.
        let submitted = check(unsafe { libc::syscall(libc::SYS_io_submit, self.0, count, pointers.as_mut_ptr()) })?;
        let none = std::ptr::null_mut::<libc::timespec>();
        // SAFETY: `events` holds `submitted` entries at least; there is no timeout.
        check(unsafe {
            libc::syscall(libc::SYS_io_getevents, self.0, submitted, submitted, events.as_mut_ptr(), none)
        })?;
        ensure!(submitted == count, "the kernel took {submitted} writes of {count}");
        ensure!(events.iter().all(|event| event.result == bytes.len() as i64), "a write failed");
        Ok(())
    }
}

impl Drop for Asynchronous {
    fn drop(&mut self) {
        // SAFETY: the context belongs to this value, and nothing is in flight in it.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.0) };
    }
}

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
