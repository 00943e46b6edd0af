//! Files, read and written past the host's cache by one ring.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use io_uring::{IoUring, opcode, squeue, types};

use super::arena::{Arena, Chunk};

/// Requests in flight that the ring has room for.
const ENTRIES: u32 = 1024;

/// Files that it can know.
const FILES_MAX: u32 = 1024;

/// Offsets and lengths of direct I/O are multiples of this.
const ALIGN: u64 = 512;

/// An open file.
pub struct Opened {
    direct: File,
    /// For what is no whole block.
    cached: File,
    pub bytes: u64,
}

impl Opened {
    pub fn new(path: &Path, options: &OpenOptions) -> io::Result<Opened> {
        let cached = options.open(path)?;
        let direct = OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(path)?;
        let bytes = cached.metadata()?.len();
        Ok(Opened { direct, cached, bytes })
    }

    pub fn truncate(&mut self, bytes: u64) -> io::Result<()> {
        self.bytes = bytes;
        self.cached.set_len(bytes)
    }

    pub fn flush(&self) -> io::Result<()> {
        self.direct.sync_data()
    }
}

/// Where in which file.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub file: u32,
    pub offset: u64,
    pub bytes: u32,
}

impl Place {
    /// Can direct I/O write it?
    fn is_whole(self) -> bool {
        self.offset.is_multiple_of(ALIGN) && u64::from(self.bytes).is_multiple_of(ALIGN)
    }
}

pub struct Disk {
    ring: IoUring,
    pub files: Vec<Opened>,
    /// Does the ring know the arena?
    is_registered: bool,
    in_flight: usize,
    /// Ends of what needed no ring.
    ended: Vec<(u64, io::Result<u32>)>,
    /// Vectors of writes in flight: freed when nothing is.
    vectors: Vec<Vec<libc::iovec>>,
}

impl Disk {
    pub fn new(arena: &Arena) -> io::Result<Disk> {
        let ring = IoUring::builder().setup_coop_taskrun().setup_single_issuer().build(ENTRIES)?;
        ring.submitter().register_files_sparse(FILES_MAX)?;
        // SAFETY: the arena is never unmapped.
        let is_registered = unsafe { ring.submitter().register_buffers(&[arena.whole()]) }.is_ok();
        let (files, ended, vectors) = Default::default();
        Ok(Disk { ring, files, is_registered, in_flight: 0, ended, vectors })
    }

    /// Adds a file. Returns its number.
    pub fn add(&mut self, file: Opened) -> io::Result<u32> {
        let number = self.files.len() as u32;
        self.ring.submitter().register_files_update(number, &[file.direct.as_raw_fd()])?;
        self.files.push(file);
        Ok(number)
    }

    /// Reads into a chunk. `key` is reported with the end.
    pub fn read(&mut self, key: u64, at: Place, chunk: Chunk, arena: &Arena) -> io::Result<()> {
        let address = arena.address(chunk);
        if !at.offset.is_multiple_of(ALIGN) {
            // SAFETY: the chunk is as long as what is read, and nobody else uses it.
            let data = unsafe { std::slice::from_raw_parts_mut(address, at.bytes as usize) };
            self.ended
                .push((key, self.files[at.file as usize].cached.read_at(data, at.offset).map(|bytes| bytes as u32)));
            return Ok(());
        }
        // Chunks are of whole blocks.
        let bytes = u64::from(at.bytes).next_multiple_of(ALIGN) as u32;
        let file = types::Fixed(at.file);
        let entry = match self.is_registered {
            true => opcode::ReadFixed::new(file, address, bytes, 0).offset(at.offset).build(),
            false => opcode::Read::new(file, address, bytes).offset(at.offset).build(),
        };
        self.push(entry.user_data(key))
    }

    /// Writes from a chunk.
    pub fn write(&mut self, key: u64, at: Place, chunk: Chunk, arena: &Arena) -> io::Result<()> {
        let address = arena.address(chunk);
        if !at.is_whole() {
            // SAFETY: the chunk is as long as what is written, and nobody changes it.
            let data = unsafe { std::slice::from_raw_parts(address, at.bytes as usize) };
            let written = self.files[at.file as usize].cached.write_all_at(data, at.offset);
            self.ended.push((key, written.map(|()| at.bytes)));
            return Ok(());
        }
        let file = types::Fixed(at.file);
        let entry = match self.is_registered {
            true => opcode::WriteFixed::new(file, address, at.bytes, 0).offset(at.offset).build(),
            false => opcode::Write::new(file, address, at.bytes).offset(at.offset).build(),
        };
        self.push(entry.user_data(key))
    }

    /// Writes from several chunks, of so many bytes each, what is one piece in the file.
    pub fn write_pieces(&mut self, key: u64, at: Place, pieces: &[(Chunk, u32)], arena: &Arena) -> io::Result<()> {
        let piece = |&(chunk, bytes): &(Chunk, u32)| libc::iovec {
            iov_base: arena.address(chunk).cast(),
            iov_len: bytes as usize,
        };
        let vector: Vec<libc::iovec> = pieces.iter().map(piece).collect();
        let entry = opcode::Writev::new(types::Fixed(at.file), vector.as_ptr(), vector.len() as u32);
        let entry = entry.offset(at.offset).build().user_data(key);
        self.vectors.push(vector);
        self.push(entry)
    }

    /// Makes durable what was written to a file before, while other requests go on.
    pub fn flush(&mut self, key: u64, file: u32) -> io::Result<()> {
        let entry = opcode::Fsync::new(types::Fixed(file)).flags(types::FsyncFlags::DATASYNC);
        self.push(entry.build().user_data(key))
    }

    fn push(&mut self, entry: squeue::Entry) -> io::Result<()> {
        // SAFETY: what the entry leads to stays in place until its end is reported: chunks belong to a request until then,
        // vectors until nothing is in flight, the arena for ever.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.ring.submit()?;
        }
        self.in_flight += 1;
        Ok(())
    }

    /// Hands over what was asked for, and sleeps until so many requests have ended.
    pub fn wait(&mut self, count: usize) -> io::Result<()> {
        match self.ring.submit_and_wait(count) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }

    /// Hands over what was asked for, and reports what has ended: keys, and bytes that were transferred.
    pub fn advance(&mut self, ended: &mut Vec<(u64, io::Result<u32>)>) -> io::Result<()> {
        if !self.ring.submission().is_empty() {
            self.ring.submit()?;
        }
        ended.append(&mut self.ended);
        for entry in self.ring.completion() {
            self.in_flight -= 1;
            let result = entry.result();
            let done = u32::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result));
            ended.push((entry.user_data(), done));
        }
        if self.in_flight == 0 {
            self.vectors.clear();
        }
        Ok(())
    }
}

impl AsRawFd for Disk {
    fn as_raw_fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }
}
