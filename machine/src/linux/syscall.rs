//! What system calls return, and their error numbers.

use std::io;

use crate::Errno;

/// The error number of `error`; `EIO` when it has none.
pub(super) fn errno(error: &io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(libc::EIO))
}

fn last_errno() -> Errno {
    errno(&io::Error::last_os_error())
}

/// The value of a system call that returns -1 and sets `errno` when it fails.
pub(super) fn check(value: libc::c_int) -> Result<libc::c_int, Errno> {
    if value < 0 { Err(last_errno()) } else { Ok(value) }
}

/// The same of one that returns a length or a position.
pub(super) fn check_long(value: i64) -> Result<u64, Errno> {
    u64::try_from(value).map_err(|_| last_errno())
}
