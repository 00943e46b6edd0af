//! Memory that other programs see, and that outlives this one: a mapped file.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// A mapped file, seen as words.
pub struct SharedMemory {
    base: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: it is memory that all threads may use, through atomics only.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Makes a file of so many zero words in place of whatever was there, for this user only, and maps it. Who has the old
    /// one mapped keeps it.
    ///
    /// # Errors
    /// When the file cannot be made or mapped; the host has room for all of it, or it is not made.
    pub fn create(path: &Path, words: usize) -> io::Result<Self> {
        let beside = path.with_extension("new");
        match std::fs::remove_file(&beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&beside)?;
        let bytes = words as libc::off_t * 8;
        // SAFETY: only numbers are passed. A file with holes would end the program when the disk is full.
        let result = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, bytes) };
        if result != 0 {
            std::fs::remove_file(&beside)?;
            return Err(io::Error::from_raw_os_error(result));
        }
        let mapped = Self::map(&file, words, libc::PROT_READ | libc::PROT_WRITE)?;
        std::fs::rename(&beside, path)?;
        Ok(mapped)
    }

    /// Maps a file to look at.
    ///
    /// # Errors
    /// When it cannot be opened or mapped, or is no file.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        Self::map(&file, (metadata.len() / 8) as usize, libc::PROT_READ)
    }

    /// Its words. Of one that was opened to look at, none may be stored.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: so many words are mapped as long as `self` lives, and `AtomicU64` is valid for all bits.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }

    fn map(file: &File, words: usize, protection: libc::c_int) -> io::Result<Self> {
        if words == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file is empty"));
        }
        // SAFETY: a new mapping at a place that the host chooses.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), words * 8, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        match NonNull::new(base.cast::<AtomicU64>()) {
            Some(base) if base.as_ptr().cast::<libc::c_void>() != libc::MAP_FAILED => Ok(SharedMemory { base, words }),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and nobody has a reference into it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.words * 8) };
    }
}
