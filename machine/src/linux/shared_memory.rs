//! Memory that other programs can see, and that outlives this one: a mapped file.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// A mapped file as words.
pub struct SharedMemory {
    base: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: all threads access it through atomics only.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Makes a file of `words` zero words in place of an old one, for this user only, and maps it. Mappings of the old
    /// one stay.
    ///
    /// # Errors
    /// When the file cannot be made or mapped, or the host lacks the space for all of it.
    pub fn create(path: &Path, words: usize) -> io::Result<Self> {
        let draft = path.with_extension("new");
        match std::fs::remove_file(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&draft)?;
        let bytes = words as libc::off_t * 8;
        // SAFETY: only numbers are passed. A file with holes would end the program when the disk is full.
        let result = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, bytes) };
        if result != 0 {
            std::fs::remove_file(&draft)?;
            return Err(io::Error::from_raw_os_error(result));
        }
        let mapped = Self::map(&file, words, libc::PROT_READ | libc::PROT_WRITE)?;
        std::fs::rename(&draft, path)?;
        Ok(mapped)
    }

    /// Maps a file read-only.
    ///
    /// # Errors
    /// When it cannot be opened or mapped, or is not a regular file.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        Self::map(&file, (metadata.len() / 8) as usize, libc::PROT_READ)
    }

    /// Its words. Those of a read-only mapping must not be stored to.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: this number of words is mapped as long as `self` lives, and `AtomicU64` is valid for all bits.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }

    fn map(file: &File, words: usize, protection: libc::c_int) -> io::Result<Self> {
        if words == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file is empty"));
        }
        // SAFETY: a new mapping at an address that the host chooses.
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
        // SAFETY: it was mapped with this length, and no reference into it is left.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.words * 8) };
    }
}
