//! Locks on whole files.

use std::fs::File;
use std::os::fd::AsRawFd;

use super::super::syscall;
use crate::Errno;

/// Locks the whole file, until it is closed: for ourselves, or against writers only. Fails with `EAGAIN` or `EACCES`
/// when somebody else holds a lock that forbids it.
///
/// The lock belongs to the open file, not to the process (`F_OFD_SETLK`, fcntl(2)): it excludes a second export of the
/// same file in this process too, and is not lost when something else here closes the file. It also meets the locks on
/// single bytes that QEMU takes on its images.
pub(super) fn lock(file: &File, exclusive: bool) -> Result<(), Errno> {
    let kind = if exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
    // SAFETY: all zeroes is a valid request: from the start to the end of the file.
    let mut request: libc::flock = unsafe { std::mem::zeroed() };
    request.l_type = kind as libc::c_short;
    request.l_whence = libc::SEEK_SET as libc::c_short;
    let fd = file.as_raw_fd();
    // SAFETY: the request outlives the call.
    syscall::check(unsafe { libc::fcntl(fd, libc::F_OFD_SETLK, &raw const request) }).map(drop)
}
