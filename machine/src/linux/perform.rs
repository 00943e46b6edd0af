//! The system calls of [`Task`]s made by a thread itself.

use super::credentials::AsNobody;
use super::syscall::{check, check_long};
use super::task::{Call, Task};
use super::tree;
use super::userfault;
use crate::Errno;
use policy::unit::{ByteOffset, ByteRange, Stability};

fn signed(offset: u64) -> Result<libc::off_t, Errno> {
    libc::off_t::try_from(offset).map_err(|_| Errno::INVALID)
}

/// Makes the current call of `task`. Calls on files block; those on sockets, which are in non-blocking mode, do not.
///
/// # Safety
/// The memory of the task's vectors must be valid, and for reads and receives untouched by others.
pub(super) unsafe fn perform(task: &Task) -> Result<u64, Errno> {
    let vectors = task.vectors();
    let (iov, count) = (vectors.as_ptr(), vectors.len() as libc::c_int);
    match task.call {
        Call::Read { fd, at } => {
            let at = signed(at.0)?;
            // SAFETY: `iov` points to `count` vectors; the caller guarantees the memory they point to.
            check_long(unsafe { libc::preadv(fd, iov, count, at) } as i64)
        }
        Call::Write { fd, at, stability } => {
            let at = signed(at.0)?;
            let flags = write_flags(stability);
            let _acting = AsNobody::begin();
            // SAFETY: as above.
            check_long(unsafe { libc::pwritev2(fd, iov, count, at, flags) } as i64)
        }
        Call::Flush { fd } => {
            // SAFETY: no pointer is passed.
            check(unsafe { libc::fdatasync(fd) }).map(|_| 0)
        }
        Call::WriteBack { fd } => {
            // SAFETY: no pointer is passed.
            check(unsafe { libc::sync_file_range(fd, 0, 0, WRITE_BACK) }).map(|_| 0)
        }
        Call::Zero { fd, at, len, how, .. } => {
            let (at, len) = (signed(at.0)?, signed(len)?);
            let _acting = AsNobody::begin();
            // SAFETY: no pointer is passed.
            check(unsafe { libc::fallocate(fd, how.mode(), at, len) }).map(|_| 0)
        }
        Call::FindData { fd, within, runs_max } => {
            let (runs, end) = find_data(fd, within, runs_max)?;
            task.set_runs(runs);
            Ok(end.0)
        }
        Call::Populate { base, len } => {
            let base = std::ptr::with_exposed_provenance_mut::<libc::c_void>(base);
            // SAFETY: the caller guarantees the memory, whose content does not change. Kernels before 5.14 refuse, and
            // populate each page on access.
            unsafe { libc::madvise(base, len, libc::MADV_POPULATE_WRITE) };
            Ok(0)
        }
        Call::Accept { fd } => {
            let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
            let none = std::ptr::null_mut();
            // SAFETY: the address of the peer is not wanted, so null is allowed.
            check(unsafe { libc::accept4(fd, none, none.cast(), flags) }).map(|fd| fd as u64)
        }
        Call::Receive { fd } => {
            let mut message = message(vectors);
            // SAFETY: the message holds `count` vectors; the caller guarantees the memory they point to.
            check_long(unsafe { libc::recvmsg(fd, &raw mut message, libc::MSG_DONTWAIT) } as i64)
        }
        Call::Send { fd } => {
            let message = message(vectors);
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            // SAFETY: as above.
            check_long(unsafe { libc::sendmsg(fd, &raw const message, flags) } as i64)
        }
        // SAFETY: the caller guarantees the memory.
        Call::Faults { fd } => unsafe { userfault::read(fd, vectors) },
        Call::Tree => task.tree_op().map_or(Err(Errno::INVALID), tree::perform),
    }
}

/// The flags of `sync_file_range(2)` to write all that is dirty, and wait for it.
pub(super) const WRITE_BACK: libc::c_uint =
    libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;

/// The flags of `pwritev2(2)` for a stability.
pub(super) fn write_flags(stability: Stability) -> libc::c_int {
    match stability {
        Stability::Unstable => 0,
        Stability::Stable => libc::RWF_DSYNC,
    }
}

/// A message of these vectors, without address or control data.
pub(super) fn message(vectors: &[libc::iovec]) -> libc::msghdr {
    // SAFETY: all zeroes is a valid message header (no name, no vectors, no control data).
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors.as_ptr().cast_mut();
    // The type differs between the C libraries.
    message.msg_iovlen = vectors.len() as _;
    message
}

/// The runs of data in `within`, and how far they were looked for; see [`Op::FindData`](crate::Op::FindData).
/// Rejected: `FIEMAP`, one call for many extents. It does not tell which of those that are unwritten on the disk have data
/// in the page cache.
fn find_data(fd: libc::c_int, within: ByteRange, runs_max: usize) -> Result<(Vec<ByteRange>, ByteOffset), Errno> {
    let end = within.end();
    let (mut runs, mut at) = (Vec::new(), within.at);
    while at < end && runs.len() < runs_max {
        let data = match seek(fd, at, libc::SEEK_DATA) {
            Ok(data) if data < end => data,
            Ok(_) | Err(Errno::NO_SUCH_ADDRESS) => return Ok((runs, end)),
            // Block devices have no holes: all is data, as on file systems that do not track them.
            Err(Errno::INVALID) => {
                runs.push(at.to(end));
                return Ok((runs, end));
            }
            Err(errno) => return Err(errno),
        };
        at = match seek(fd, data, libc::SEEK_HOLE) {
            // What others have made a hole since is data up to the next byte, so that this comes to an end.
            Ok(hole) => hole.max(data + 1).min(end),
            Err(Errno::NO_SUCH_ADDRESS) => end,
            Err(errno) => return Err(errno),
        };
        runs.push(data.to(at));
    }
    Ok((runs, at))
}

fn seek(fd: libc::c_int, at: ByteOffset, whence: libc::c_int) -> Result<ByteOffset, Errno> {
    let at = signed(at.0)?;
    // SAFETY: no pointer is passed. The file position is not used otherwise.
    check_long(unsafe { libc::lseek(fd, at, whence) }).map(ByteOffset)
}
