//! The content of other files that the flush of one makes durable, where there is one journal (T13).

use super::SimTree;
use super::in_flight::OpenInode;
use super::inode::Inode;
use crate::disk::DiskJob;
use machine::{Errno, Op};
use policy::unit::Stability;

impl SimTree {
    /// What a flush that starts now may cover of all files: what is on the disk.
    pub(super) fn on_disk(&self) -> Vec<(u64, u32, u64)> {
        let latest = |inode: &Inode| inode.bytes().map_or(0, |bytes| bytes.latest_change());
        let on_disk = |inode: &Inode| (inode.number, inode.generation, inode.committable.on_disk(latest(inode)));
        self.inodes.values().map(on_disk).collect()
    }

    /// An operation on a file has ended.
    pub(super) fn note_operation(&mut self, file: &OpenInode, op: &Op, job: &DiskJob, result: Result<u64, Errno>) {
        let inode = self.inode_mut(file.number);
        let latest = inode.bytes().map_or(0, |bytes| bytes.latest_change());
        let cached = &mut inode.committable.cached;
        match op {
            Op::Write { stability: Stability::Unstable, .. } if file.align == 1 => cached.push(latest),
            Op::WriteBack { .. } | Op::Flush { .. } if result.is_ok() => cached.retain(|change| *change > job.covers),
            _ => {}
        }
        if !matches!(op, Op::Flush { .. }) || result.is_err() {
            return;
        }
        for (number, generation, on_disk) in &job.others {
            let Some(inode) = self.inodes.get_mut(number).filter(|inode| inode.generation == *generation) else {
                continue;
            };
            let flushed = inode.committable.on_flushed(*on_disk);
            if let Some(bytes) = inode.bytes_mut() {
                bytes.flush(flushed);
            }
        }
    }
}
