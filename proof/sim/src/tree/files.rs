//! Operations on the open files of a tree.

use std::sync::Arc;

use policy::unit::{DiskNo, Stability};

use super::SimTree;
use super::bytes::zeroes;
use super::in_flight::OpenInode;
use crate::change::{Change, Payload};
use crate::disk::DiskJob;
use crate::faults::OpClass;
use crate::file::{FileEntry, file_of};
use crate::ids::HostId;
use crate::operation::OpRef;
use crate::transfer::scatter_into;
use crate::world::{EventKind, Inner};
use machine::tree::Kind;
use machine::{Errno, File, FileFacts, Op, OpenFile, SEGMENTS_MAX, Segments, total_len};

/// First number of the disks of trees, beyond those of disks.
pub(super) const DISKS: u64 = 1 << 16;

impl SimTree {
    /// Starts `op` on the open `file` and returns when it will end, in nanoseconds.
    ///
    /// # Safety
    /// The memory of its segments is valid.
    unsafe fn start(&mut self, now: u64, file: &OpenInode, op: &Op, job: &mut DiskJob) -> Result<u64, Errno> {
        let changes = matches!(op, Op::Write { .. } | Op::Zero { .. } | Op::Discard { .. });
        if file.owner.strong_count() == 0 || (changes && !file.writable) {
            return Err(Errno(libc::EBADF));
        }
        self.check_file(file, op)?;
        job.covers = self.inodes[&file.number].bytes().map_or(0, |bytes| bytes.latest_change());
        // SAFETY: guaranteed by the caller.
        unsafe { self.disk.begin(now, op, job) }
    }

    fn check_file(&self, file: &OpenInode, op: &Op) -> Result<(), Errno> {
        let config = &self.disk.config;
        let segments = |at: u64, segments: &Segments| {
            let lens = segments.iter().fold(0, |lens, segment| lens | u64::from(segment.len));
            let aligned = (at | lens) & (u64::from(file.align) - 1) == 0;
            segments.len() <= SEGMENTS_MAX && aligned && at.checked_add(total_len(segments)).is_some()
        };
        let range = |at: u64, len: u64| match at.checked_add(len) {
            Some(end) if len > 0 && end <= self.config.file_bytes_max => Ok(()),
            Some(_) if len > 0 => Err(Errno(libc::EFBIG)),
            _ => Err(Errno::INVALID),
        };
        match op {
            Op::Read { at, into: memory, .. } | Op::Write { at, from: memory, .. } if !segments(at.0, memory) => {
                Err(Errno::INVALID)
            }
            Op::Zero { at, len, .. } if config.zero_supported => range(at.0, *len),
            Op::Discard { at, len, .. } if config.discard_supported => range(at.0, *len),
            Op::Zero { .. } | Op::Discard { .. } => Err(Errno::NOT_SUPPORTED),
            Op::Seek { .. } if !config.seek_supported => Err(Errno::NOT_SUPPORTED),
            _ => Ok(()),
        }
    }

    /// Applies the effect of `op` and returns its result.
    ///
    /// # Safety
    /// The memory of its segments is valid, and for reads not used by others.
    unsafe fn finish(&mut self, now: u64, file: &OpenInode, op: &Op, job: &mut DiskJob) -> Result<u64, Errno> {
        if self.inodes.get(&file.number).is_none_or(|inode| inode.generation != file.generation) {
            return Err(Errno(libc::ESTALE));
        }
        match op {
            // SAFETY: guaranteed by the caller.
            Op::Read { at, into, .. } => unsafe { self.finish_read(file.number, at.0, into, job) },
            Op::Write { at, from, stability, .. } => {
                // SAFETY: as above.
                let written = unsafe { self.finish_write(file, at.0, from, *stability, job) }?;
                self.note_modified(file.number, now);
                Ok(written)
            }
            Op::Flush { .. } => self.finish_flush(file.number, job),
            Op::WriteBack { .. } => job.fault.map_or(Ok(0), Err),
            Op::Zero { at, len, may_release, .. } => {
                let change = Change { at: at.0, len: *len, payload: zeroes(*may_release) };
                self.finish_change(file.number, OpClass::Zero, change, job, now)
            }
            Op::Discard { at, len, .. } => {
                let change = Change { at: at.0, len: *len, payload: Payload::Hole };
                self.finish_change(file.number, OpClass::Discard, change, job, now)
            }
            Op::Seek { at, target, .. } => match job.fault {
                Some(errno) => Err(errno),
                None => self.on_bytes(file.number, |bytes, _| bytes.seek(at.0, *target))?.ok_or(Errno::NO_SUCH_ADDRESS),
            },
            _ => Err(Errno::INVALID),
        }
    }

    unsafe fn finish_read(&mut self, number: u64, at: u64, into: &Segments, job: &DiskJob) -> Result<u64, Errno> {
        let asked = total_len(into);
        self.on_bytes(number, |bytes, disk| {
            let len = asked.min(bytes.size().saturating_sub(at));
            if let Some(errno) = job.fault {
                return Err(errno);
            }
            // SAFETY: guaranteed by the caller.
            unsafe {
                scatter_into(into, len, |passed, out| bytes.read(at + passed, out));
                disk.flip_by_chance(into, len);
            }
            Ok(len)
        })?
    }

    unsafe fn finish_write(
        &mut self,
        file: &OpenInode,
        at: u64,
        from: &Segments,
        stability: Stability,
        job: &mut DiskJob,
    ) -> Result<u64, Errno> {
        let asked = total_len(from);
        let (file_bytes_max, room) = (self.config.file_bytes_max, self.room());
        let align = u64::from(file.align);
        self.on_bytes(file.number, |bytes, disk| {
            let mut len = asked.min(file_bytes_max.saturating_sub(at));
            if len == 0 && asked > 0 {
                return Err(Errno(libc::EFBIG));
            }
            if let Some(errno) = job.fault {
                tear(bytes, disk, errno, &Change { at, len, payload: job.payload() });
                if stability == Stability::Stable && disk.config.faults.failed_flush_drops {
                    bytes.drop_covered(bytes.latest_change(), &mut disk.random);
                }
                return Err(errno);
            }
            if len > align && disk.random.permille(disk.config.faults.short_write_permille) {
                len = align * disk.random.between(1, (len - 1) / align);
            }
            let fitting = bytes.fitting(at, len, room);
            if fitting < len {
                len = fitting - fitting % align;
            }
            if len == 0 && asked > 0 {
                return Err(Errno::NO_SPACE);
            }
            // SAFETY: guaranteed by the caller.
            unsafe { job.fetch_late(from, len, &mut disk.random) };
            let lies = disk.random.permille(disk.config.faults.stable_lie_permille);
            let change = Change { at, len, payload: job.payload() };
            bytes.write(&change, stability == Stability::Stable && !lies);
            Ok(len)
        })?
    }

    fn finish_change(
        &mut self,
        number: u64,
        class: OpClass,
        change: Change,
        job: &DiskJob,
        now: u64,
    ) -> Result<u64, Errno> {
        let room = self.room();
        self.on_bytes(number, |bytes, disk| {
            if let Some(errno) = job.fault {
                tear(bytes, disk, errno, &change);
                return Err(errno);
            }
            let allocates = matches!(change.payload, Payload::Zeroes);
            let len = change.len.min(bytes.size().saturating_sub(change.at));
            if class == OpClass::Zero && allocates && bytes.fitting(change.at, len, room) < len {
                return Err(Errno::NO_SPACE);
            }
            bytes.change_within(&change);
            Ok(())
        })??;
        self.note_modified(number, now);
        Ok(0)
    }

    fn finish_flush(&mut self, number: u64, job: &DiskJob) -> Result<u64, Errno> {
        self.on_bytes(number, |bytes, disk| {
            let faults = disk.config.faults;
            if let Some(errno) = job.fault {
                if faults.failed_flush_drops {
                    let covers = disk.dropped_by_failure(job.covers, bytes.latest_change());
                    bytes.drop_covered(covers, &mut disk.random);
                }
                return Err(errno);
            }
            if !disk.random.permille(faults.flush_lie_permille) {
                bytes.flush(job.covers);
            }
            Ok(0)
        })?
    }

    pub(super) fn note_modified(&mut self, number: u64, now: u64) {
        let time = self.time(now);
        let stat = &mut self.inode_mut(number).stat;
        (stat.modified, stat.changed) = (time, time);
    }

    /// The change that `op`, in flight when its machine died, would have made, and whether it may extend the file.
    fn change_in_flight(op: &Op, job: &DiskJob) -> Option<(Change, bool)> {
        let change = match op {
            Op::Write { at, .. } => Change { at: at.0, len: job.data_len(), payload: job.payload() },
            Op::Zero { at, len, may_release, .. } => Change { at: at.0, len: *len, payload: zeroes(*may_release) },
            Op::Discard { at, len, .. } => Change { at: at.0, len: *len, payload: Payload::Hole },
            _ => return None,
        };
        Some((change, matches!(op, Op::Write { .. })))
    }

    /// The machine that made `op` died before its end: it landed, did not land, or was torn.
    pub(super) fn abandon_file_op(&mut self, file: &OpenInode, op: &Op, job: &DiskJob) {
        if self.inodes.get(&file.number).is_none_or(|inode| inode.generation != file.generation) {
            return;
        }
        let Some((mut change, grows)) = Self::change_in_flight(op, job) else {
            return;
        };
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

/// A change failed with `errno`: it may have taken effect partly, but without extending the file.
fn tear(bytes: &mut super::FileBytes, disk: &mut super::Disk, errno: Errno, change: &Change) {
    if errno == Errno::IO && disk.config.faults.failed_write_tears {
        bytes.tear(change, disk.random.next(), false);
    }
}

/// The open file of a tree that `op` is on, if any.
fn open_inode<'a>(files: &'a [FileEntry], op: &Op) -> Option<&'a OpenInode> {
    match files.get(file_of(op)?.0 as usize)? {
        FileEntry::Node(open) => Some(open),
        FileEntry::Disk { .. } => None,
    }
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
        self.files.push(FileEntry::Node(OpenInode { tree: index, number, generation, align, writable, owner: weak }));
        Ok(OpenFile { file, facts, tail: None, owner })
    }

    /// Whether the operation is on a file of a tree.
    pub(crate) fn is_in_tree(&mut self, of: OpRef) -> bool {
        let operation = self.operations.get_mut(of);
        operation.is_some_and(|operation| open_inode(&self.files, &operation.op).is_some())
    }

    pub(crate) fn submit_tree_file_op(&mut self, of: OpRef) {
        let Inner { operations, processors, trees, files, now, .. } = self;
        let Some(operation) = operations.get_mut(of) else {
            return;
        };
        let host: HostId = processors[operation.processor].host;
        let open = open_inode(files, &operation.op).filter(|open| trees[open.tree].host == host);
        let ends = open.ok_or(Errno(libc::EBADF)).and_then(|open| {
            // SAFETY: the starter of the operation keeps its memory valid until its completion is returned or the
            // machine is gone, and then it is not among the operations.
            unsafe { trees[open.tree].start(*now, open, &operation.op, &mut operation.job) }
        });
        match ends {
            Ok(at) => self.schedule(at, EventKind::FileOpDone(of)),
            Err(errno) => self.complete(of, Err(errno)),
        }
    }

    pub(crate) fn finish_tree_file_op(&mut self, of: OpRef) {
        let Inner { operations, trees, files, now, .. } = self;
        let Some(operation) = operations.get_mut(of) else {
            return;
        };
        let (result, late_ns) = match open_inode(files, &operation.op) {
            Some(open) => {
                let tree = &mut trees[open.tree];
                // SAFETY: as in `submit_tree_file_op`; by the same guarantee, others do not use the memory of a read.
                (unsafe { tree.finish(*now, open, &operation.op, &mut operation.job) }, tree.disk.lateness())
            }
            None => (Err(Errno(libc::EBADF)), 0),
        };
        self.complete_late(of, result, late_ns);
    }

    /// The open file of a tree that `op` is on.
    pub(super) fn open_inode_of(&self, op: &Op) -> Option<OpenInode> {
        open_inode(&self.files, op).cloned()
    }
}
