//! Locks on whole files.

use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};

use super::super::syscall;
use crate::Errno;

/// A file that is locked until it is dropped.
///
/// Unlocked before it is closed: a program that this process starts has a copy of the descriptor until it executes, and
/// would hold the lock.
pub(super) struct Locked(File);

impl Locked {
    /// Locks the whole file: exclusively, or against writers only. `EAGAIN` or `EACCES` when another lock conflicts.
    ///
    /// The lock belongs to the open file, not to the process (`F_OFD_SETLK`, fcntl(2)): it excludes a second export of
    /// the same file in this process too, and survives when another descriptor of the file is closed. It also conflicts
    /// with the locks on single bytes that QEMU takes on its images.
    pub(super) fn new(file: File, exclusive: bool) -> Result<Self, Errno> {
        set(file.as_raw_fd(), if exclusive { libc::F_WRLCK } else { libc::F_RDLCK })?;
        Ok(Locked(file))
    }

    /// A file that is not locked.
    pub(super) fn not(file: File) -> Self {
        Locked(file)
    }

    pub(super) fn file(&self) -> &File {
        &self.0
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // If it fails, closing unlocks.
        let _ = set(self.0.as_raw_fd(), libc::F_UNLCK);
    }
}

/// The only lock of a file, in place of one against writers that this process has on it as well, which is there again
/// when this is dropped.
pub(super) struct Instead {
    file: Locked,
    /// Open as long as this is.
    shared: RawFd,
}

impl Instead {
    /// `file` is the one of `shared`, open for writing, and `shared` is locked against writers. `EAGAIN` or `EACCES` when
    /// others have it open, too.
    pub(super) fn new(file: File, shared: RawFd) -> Result<Self, Errno> {
        // At no time is it without a lock.
        let file = Locked::new(file, false)?;
        set(shared, libc::F_UNLCK)?;
        let instead = Instead { file, shared };
        set(instead.file().as_raw_fd(), libc::F_WRLCK)?;
        Ok(instead)
    }

    pub(super) fn file(&self) -> &File {
        self.file.file()
    }
}

impl Drop for Instead {
    fn drop(&mut self) {
        // Neither can conflict with the other, nor with any that came meanwhile.
        let _ = set(self.file().as_raw_fd(), libc::F_RDLCK);
        let _ = set(self.shared, libc::F_RDLCK);
    }
}

fn set(file: RawFd, kind: libc::c_int) -> Result<(), Errno> {
    // SAFETY: all zeroes is a valid request: from the start to the end of the file.
    let mut request: libc::flock = unsafe { std::mem::zeroed() };
    request.l_type = kind as libc::c_short;
    request.l_whence = libc::SEEK_SET as libc::c_short;
    // SAFETY: the request outlives the call.
    syscall::check(unsafe { libc::fcntl(file, libc::F_OFD_SETLK, &raw const request) }).map(drop)
}
