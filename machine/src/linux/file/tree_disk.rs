//! The disk under a directory tree, examined once for all files of the tree, which are opened by the thousand.

use std::fs::File as StdFile;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, OnceLock};

use policy::unit::DiskNo;

use super::disk::{self, Disk, Status};
use super::set_status;
use crate::linux::file_system::FileSystem;
use crate::linux::syscall;
use crate::{Errno, File, FileFacts, OpenFile};

/// Properties that files of one tree share.
pub(in crate::linux) struct TreeDisk {
    disk: Disk,
    /// Nothing on this file system bypasses memory.
    is_in_memory: bool,
    /// Direct reads work on this file system. Unknown before the first file that is not empty.
    direct_reads_work: OnceLock<bool>,
}

impl TreeDisk {
    /// The disk under the tree with this root.
    pub(in crate::linux) fn under(root: &StdFile) -> io::Result<Self> {
        Ok(TreeDisk {
            disk: Disk::under(&root.metadata()?),
            is_in_memory: FileSystem::of(root).lives_in_memory(),
            direct_reads_work: OnceLock::new(),
        })
    }

    pub(in crate::linux) fn number(&self) -> DiskNo {
        self.disk.number
    }

    pub(in crate::linux) fn rotational(&self) -> bool {
        self.disk.rotational
    }

    pub(in crate::linux) fn transfer_bytes_max(&self) -> u32 {
        self.disk.transfer_bytes_max
    }

    /// The open regular file, with direct I/O where its file system supports it.
    pub(in crate::linux) fn open_direct(&self, file: Arc<StdFile>, writable: bool) -> Result<OpenFile, Errno> {
        let Status { size, align: reported } = status_of(&file)?;
        let align = if self.is_in_memory { None } else { disk::align_of(&file, &self.disk, reported) };
        // Who reports it can do it. A read to try it out would change the time of the last access, and wait for the journal.
        let works = |align| reported.is_some() || self.reads_work(&file, align, size);
        let align = align.filter(|&align| set_status(&file, libc::O_DIRECT).is_ok() && works(align));
        if align.is_none() {
            set_status(&file, 0)?;
        }
        Ok(self.open(file, size, align, writable))
    }

    /// The open regular file, through the page cache.
    pub(in crate::linux) fn open_buffered(&self, file: Arc<StdFile>, writable: bool) -> Result<OpenFile, Errno> {
        let Status { size, .. } = status_of(&file)?;
        Ok(self.open(file, size, None, writable))
    }

    fn reads_work(&self, file: &StdFile, align: u32, size: u64) -> bool {
        match self.direct_reads_work.get() {
            Some(&known) => known,
            None if size == 0 => disk::try_direct_read(file, align).is_ok(),
            None => *self.direct_reads_work.get_or_init(|| disk::try_direct_read(file, align).is_ok()),
        }
    }

    fn open(&self, file: Arc<StdFile>, size: u64, direct: Option<u32>, writable: bool) -> OpenFile {
        let facts = FileFacts {
            size,
            align: direct.unwrap_or(1),
            direct: direct.is_some(),
            writable,
            rotational: self.disk.rotational,
            transfer_bytes_max: self.disk.transfer_bytes_max,
            disk: self.disk.number,
        };
        self.opened(file, facts)
    }

    /// The open regular file of these facts.
    pub(in crate::linux) fn opened(&self, file: Arc<StdFile>, facts: FileFacts) -> OpenFile {
        OpenFile { file: File(file.as_raw_fd() as u32), facts, tail: None, owner: file }
    }
}

fn status_of(file: &StdFile) -> Result<Status, Errno> {
    Status::of(file).map_err(|error| syscall::errno(&error))
}
