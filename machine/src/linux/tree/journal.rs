//! What the journal of a file system promises beyond POSIX.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

/// Does `fsync` of any directory make durable all that was done before with any names and attributes of the file system?
///
/// So it is on ext4 with a journal: the journal is in order, and for a directory ext4 commits all of it, not just what
/// concerns that directory (`ext4_fsync_journal`). One by one, each of several nodes would cost a flush of its own, for
/// ext4 flushes the disk even when the node's changes have been committed with another's.
pub(super) fn is_committed_as_a_whole(root: &File) -> bool {
    is_ext4(root) && has_journal(root).unwrap_or(false)
}

fn is_ext4(root: &File) -> bool {
    // SAFETY: all bytes zero are a statfs.
    let mut facts: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open and `facts` is writable.
    let result = unsafe { libc::fstatfs(root.as_raw_fd(), &mut facts) };
    result == 0 && facts.f_type == libc::EXT4_SUPER_MAGIC
}

/// A journal in use has a directory in `/proc/fs/jbd2` that is named after its device and its inode.
fn has_journal(root: &File) -> io::Result<bool> {
    let device = root.metadata()?.dev();
    let link = fs::read_link(format!("/sys/dev/block/{}:{}", libc::major(device), libc::minor(device)))?;
    let Some(name) = link.file_name() else { return Ok(false) };
    let prefix = format!("{}-", name.to_string_lossy());
    let mut journals = fs::read_dir("/proc/fs/jbd2")?;
    Ok(journals.any(|journal| journal.is_ok_and(|journal| journal.file_name().to_string_lossy().starts_with(&prefix))))
}
