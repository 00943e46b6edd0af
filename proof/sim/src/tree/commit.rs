//! The content of other files that the flush of one makes durable, where there is one journal (T13).

use super::SimTree;
use super::in_flight::OpenInode;
use crate::disk::DiskJob;
use machine::{Errno, Op};
use policy::unit::Stability;

impl SimTree {
    /// What a flush that starts now covers of all files.
    pub(super) fn committed(&self) -> Vec<(u64, u32, u64)> {
        self.inodes.values().map(|inode| (inode.number, inode.generation, inode.committable.committed)).collect()
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
        for (number, generation, committed) in &job.others {
            let inode = self.inodes.get_mut(number).filter(|inode| inode.generation == *generation);
            if let Some(bytes) = inode.and_then(|inode| inode.bytes_mut()) {
                bytes.flush(*committed);
            }
        }
    }
}
