//! Failures of the host's own writing back of what buffered writes have written (T14). The pages are clean then, and what they
//! held is lost (Linux: `mm/filemap.c`, `fs/buffer.c`).

use super::SimTree;
use super::in_flight::OpenInode;
use super::journal::Coverage;
use crate::disk::DiskJob;
use machine::{Errno, Op};
use policy::unit::Stability;

/// Other operations on a file, in a thousand, before which the host writes back what has to fail.
const SOON_PERMILLE: u32 = 100;

impl SimTree {
    /// A buffered write has ended: its write-back will fail, if `job` says so.
    pub(super) fn note_buffered(&mut self, file: &OpenInode, job: &DiskJob) {
        let inode = self.inode_mut(file.number);
        let latest = inode.bytes().map_or(0, |bytes| bytes.latest_change());
        inode.failing.extend(job.background.map(|errno| (latest, errno)));
    }

    /// Before `op` ends: what the host has written back meanwhile fails, and the error that `op` has to tell is returned.
    pub(super) fn write_back_before(&mut self, file: &OpenInode, op: &Op) -> Option<Errno> {
        let waits = matches!(op, Op::Flush { .. } | Op::WriteBack { .. });
        let tells = waits || matches!(op, Op::Write { stability: Stability::Stable, .. });
        if !self.inodes[&file.number].failing.is_empty() && (waits || self.disk.random.permille(SOON_PERMILLE)) {
            self.fail_write_back(file.number);
        }
        if tells { self.inode_mut(file.number).errors.tell(&file.told) } else { None }
    }

    /// The same of a sync, whose descriptors are new.
    pub(super) fn write_back_before_sync(&mut self, sync: &Coverage) -> Option<Errno> {
        let mut told = None;
        for number in sync.numbers_with_content() {
            if self.inodes.contains_key(&number) {
                self.fail_write_back(number);
                let errors = &mut self.inode_mut(number).errors;
                told = told.or(errors.tell(&errors.on_open()));
            }
        }
        told
    }

    fn fail_write_back(&mut self, number: u64) {
        for (change, errno) in std::mem::take(&mut self.inode_mut(number).failing) {
            let lost = self.on_bytes(number, |bytes, disk| bytes.drop_change(change, &mut disk.random));
            debug_assert!(lost.is_ok(), "only regular files are written");
            let inode = self.inode_mut(number);
            inode.committable.cached.retain(|cached| *cached != change);
            inode.errors.add(errno);
        }
    }
}
