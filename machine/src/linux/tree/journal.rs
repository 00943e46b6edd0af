//! What the journal of a file system guarantees beyond POSIX.
//!
//! One `fsync` commits a group on ext4 with a journal; elsewhere each node is synced, up to 16 side by side, a new file
//! by the descriptor that made it. So the kernel flushes several files: their content is written back, one `fsync` of a directory
//! commits their metadata, and one file is flushed meanwhile, for the disk's cache, which a commit that finds nothing to write
//! leaves as it is (`ext4_force_commit`). (Without a journal ext4 writes all inodes of a block when one is synced, so that one
//! `fsync` for each block of them would do; but how many lie in a block the host tells nobody who may not read the
//! device.) `syncfs` was rejected: it writes what everybody else on the host has dirty.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;

use crate::linux::file_system::FileSystem;

/// Whether `fsync` of any directory makes all earlier changes of names and attributes on the file system durable.
///
/// True on ext4 with a journal: the journal is ordered, and for a directory ext4 commits all of it, not only the
/// changes of that directory (`ext4_fsync_journal`). Syncing each of several nodes would cost a flush each, since ext4
/// flushes the disk even when the node's changes were committed with another's.
pub fn is_committed_as_a_whole(root: &File) -> bool {
    FileSystem::of(root) == FileSystem::Ext && has_journal(root).unwrap_or(false)
}

/// A journal in use has a directory in `/proc/fs/jbd2`, named after its device and its inode.
fn has_journal(root: &File) -> io::Result<bool> {
    let device = root.metadata()?.dev();
    let link = fs::read_link(format!("/sys/dev/block/{}:{}", libc::major(device), libc::minor(device)))?;
    let Some(name) = link.file_name() else { return Ok(false) };
    let prefix = format!("{}-", name.to_string_lossy());
    let mut journals = fs::read_dir("/proc/fs/jbd2")?;
    Ok(journals.any(|journal| journal.is_ok_and(|journal| journal.file_name().to_string_lossy().starts_with(&prefix))))
}
