//! Operations on the open files of a tree.

use std::sync::Arc;

use policy::unit::{DiskNo, Stability};

use super::SimTree;
use super::in_flight::OpenInode;
use crate::disk::{Bounds, DiskJob, change_of};
use crate::faults::OpClass;
use crate::file::{FileEntry, file_of};
use crate::world::Inner;
use machine::tree::Kind;
use machine::{Errno, File, FileFacts, Op, OpenFile};

/// First number of the disks of trees, beyond those of disks.
pub(super) const DISKS: u64 = 1 << 16;

impl SimTree {
    /// Starts `op` on the open `file` and returns when it will end, in nanoseconds.
    ///
    /// # Safety
    /// The memory of its segments is valid.
    pub(crate) unsafe fn start(
        &mut self,
        now: u64,
        file: &OpenInode,
        op: &Op,
        job: &mut DiskJob,
    ) -> Result<u64, Errno> {
        let size_max = self.config.file_bytes_max;
        self.disk.check(op, file.align, |at, len| match at.checked_add(len) {
            Some(end) if len > 0 && end <= size_max => Ok(()),
            Some(_) if len > 0 => Err(Errno(libc::EFBIG)),
            _ => Err(Errno::INVALID),
        })?;
        job.covers = self.inodes[&file.number].bytes().map_or(0, |bytes| bytes.latest_change());
        if self.config.journal && matches!(op, Op::Flush { .. }) {
            job.others = self.on_disk();
        }
        if is_buffered(file, op) {
            job.background = self.disk.draw_fault(OpClass::Background);
        }
        // SAFETY: guaranteed by the caller.
        unsafe { self.disk.begin(now, op, job) }
    }

    /// Applies the effect of `op` and returns its result.
    ///
    /// # Safety
    /// The memory of its segments is valid, and for reads not used by others.
    pub(crate) unsafe fn finish(
        &mut self,
        now: u64,
        file: &OpenInode,
        op: &Op,
        job: &mut DiskJob,
    ) -> Result<u64, Errno> {
        if self.inodes.get(&file.number).is_none_or(|inode| inode.generation != file.generation) {
            return Err(Errno(libc::ESTALE));
        }
        job.fault = job.fault.or(self.write_back_before(file, op));
        let (size_max, align, room) = (self.config.file_bytes_max, u64::from(file.align), self.room());
        let bounds = Bounds { size_max, beyond: Errno(libc::EFBIG), align, room };
        // SAFETY: guaranteed by the caller.
        let result = self.on_bytes(file.number, |bytes, disk| unsafe { disk.finish(bytes, &bounds, op, job) })?;
        self.note_operation(file, op, job, result);
        let done = result?;
        if is_buffered(file, op) {
            self.note_buffered(file, job);
        }
        if matches!(op, Op::Write { .. } | Op::Zero { .. } | Op::Discard { .. }) {
            self.note_modified(file.number, now);
        }
        Ok(done)
    }

    pub(super) fn note_modified(&mut self, number: u64, now: u64) {
        let time = self.time(now);
        let stat = &mut self.inode_mut(number).stat;
        (stat.modified, stat.changed) = (time, time);
    }

    /// The machine that made `op` died before its end: it landed, did not land, or was torn.
    pub(super) fn abandon_file_op(&mut self, file: &OpenInode, op: &Op, job: &DiskJob) {
        if self.inodes.get(&file.number).is_none_or(|inode| inode.generation != file.generation) {
            return;
        }
        let Some(mut change) = change_of(op, job) else {
            return;
        };
        let grows = matches!(op, Op::Write { .. });
        let (file_bytes_max, room) = (self.config.file_bytes_max, self.room());
        let landed = self.on_bytes(file.number, |bytes, disk| {
            change.len = change.len.min(file_bytes_max.saturating_sub(change.at));
            if grows {
                change.len = bytes.fitting(change.at, change.len, room);
            }
            match (disk.random.below(3), grows) {
                (0, _) => {}
                (1, true) => bytes.write(&change, false),
                (1, false) => bytes.change_within(&change),
                _ => bytes.tear(&change, disk.random.next(), grows),
            }
        });
        debug_assert!(landed.is_ok(), "only regular files are open");
    }
}

/// Is it a write that is only in the host's page cache when it ends?
fn is_buffered(file: &OpenInode, op: &Op) -> bool {
    file.align == 1 && matches!(op, Op::Write { stability: Stability::Unstable, .. })
}

impl Inner {
    pub(super) fn open_inode(
        &mut self,
        index: usize,
        number: u64,
        align: u32,
        writable: bool,
    ) -> Result<OpenFile, Errno> {
        let tree = &mut self.trees[index];
        let inode = &tree.inodes[&number];
        let (generation, kind) = (inode.generation, inode.kind);
        let told = inode.errors.on_open();
        let Some(size) = inode.bytes().map(|bytes| bytes.size()) else {
            return Err(if kind == Kind::Directory { Errno(libc::EISDIR) } else { Errno::INVALID });
        };
        let config = &tree.config.disk;
        let facts = FileFacts {
            size,
            align,
            direct: align > 1,
            writable,
            rotational: config.rotational,
            transfer_bytes_max: config.transfer_bytes_max,
            disk: DiskNo(DISKS + index as u64),
        };
        let owner = Arc::new(());
        tree.inode_mut(number).open.push((Arc::downgrade(&owner), writable));
        let file = File(self.files.len() as u32);
        let weak = Arc::downgrade(&owner);
        let open = OpenInode { tree: index, number, generation, align, writable, owner: weak, told };
        self.files.push(FileEntry::Node(open));
        Ok(OpenFile { file, facts, tail: None, owner })
    }

    /// The open file of a tree that `op` is on.
    pub(super) fn open_inode_of(&self, op: &Op) -> Option<OpenInode> {
        match self.files.get(file_of(op)?.0 as usize)? {
            FileEntry::Node(open) => Some(open.clone()),
            FileEntry::Disk { .. } => None,
        }
    }
}
