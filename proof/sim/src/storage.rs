//! The disks of a world and the open files on them.

use std::rc::Rc;
use std::sync::Arc;

use policy::unit::{ByteOffset, ByteRange, DiskNo};

use crate::change::{Change, Payload};
use crate::config::DiskConfig;
use crate::disk::{Disk, DiskCounters};
use crate::faults::{DiskFaults, OpClass};
use crate::file::{FileEntry, file_of};
use crate::ids::{DiskId, HostId};
use crate::operation::{OpRef, OpState, Operation};
use crate::random::Random;
use crate::world::{EventKind, Inner, World};
use machine::{Errno, File, FileFacts, Op, OpenFile};

/// First stream number of the random numbers of disks.
const DISK_STREAMS: u64 = 1 << 32;

impl World {
    /// Adds a disk to `host`, full of zeroes, none of them allocated.
    ///
    /// # Panics
    /// When `config` is inconsistent.
    pub fn add_disk(&self, host: HostId, config: DiskConfig) -> DiskId {
        let mut inner = self.0.borrow_mut();
        let id = DiskId(inner.disks.len() as u16);
        let random = Random::new(inner.seed, DISK_STREAMS + u64::from(id.0));
        inner.disks.push(Disk::new(host, config, random));
        id
    }

    /// Opens a disk. The file stays open when its host dies, for the restarted process.
    pub fn open(&self, disk: DiskId, writable: bool) -> OpenFile {
        let mut inner = self.0.borrow_mut();
        let Inner { files, disks, .. } = &mut *inner;
        let config = &disks[usize::from(disk.0)].drive.config;
        let owner = Arc::new(());
        let mut open = |align| {
            files.push(FileEntry::Disk { disk, writable, align, owner: Arc::downgrade(&owner) });
            File(files.len() as u32 - 1)
        };
        let file = open(config.align);
        let tail = (!config.size.is_multiple_of(u64::from(config.align))).then(|| open(1));
        let facts = FileFacts {
            size: config.size,
            align: config.align,
            direct: config.align > 1,
            writable,
            rotational: config.rotational,
            transfer_bytes_max: config.transfer_bytes_max,
            disk: DiskNo(u64::from(disk.0)),
        };
        OpenFile { file, facts, tail, owner }
    }

    /// Makes the next `count` operations of `class` that start on `disk` fail with `errno`. Calls for the same class
    /// are served in order.
    pub fn fail_next(&self, disk: DiskId, class: OpClass, count: u32, errno: Errno) {
        self.disk(disk, |disk| disk.drive.injections.fail_next(class, count, errno));
    }

    /// Makes every operation of `class` that touches `range` fail with `EIO`, until [`heal`](Self::heal).
    pub fn fail_range(&self, disk: DiskId, range: ByteRange, class: OpClass) {
        self.disk(disk, |disk| disk.drive.injections.fail_range(range, class, false));
    }

    /// Makes every read that touches `range` fail with `EIO`, until it is rewritten.
    pub fn latent_error(&self, disk: DiskId, range: ByteRange) {
        self.disk(disk, |disk| disk.drive.injections.fail_range(range, OpClass::Read, true));
    }

    /// Removes all faults of `disk`, requested and random.
    pub fn heal(&self, disk: DiskId) {
        self.disk(disk, |disk| {
            disk.drive.injections.clear();
            disk.drive.config.faults = DiskFaults::default();
        });
    }

    /// Sets the random faults of `disk`.
    pub fn set_faults(&self, disk: DiskId, faults: DiskFaults) {
        self.disk(disk, |disk| disk.drive.config.faults = faults);
    }

    /// Writes that would allocate more than `bytes` in total are shortened or fail with `ENOSPC`; `None`: no limit.
    pub fn limit_space(&self, disk: DiskId, bytes: Option<u64>) {
        self.disk(disk, |disk| disk.drive.space_max = bytes);
    }

    /// Operations on `disk` so far.
    pub fn disk_counters(&self, disk: DiskId) -> DiskCounters {
        self.disk(disk, |disk| disk.drive.counters)
    }

    /// The content of `range` as a read would return it without faults.
    pub fn read_disk(&self, disk: DiskId, range: ByteRange) -> Vec<u8> {
        let mut bytes = vec![0; range.len as usize];
        self.disk(disk, |disk| disk.bytes.read(range.at.0, &mut bytes));
        bytes
    }

    /// The durable content of `range`.
    pub fn read_durable(&self, disk: DiskId, range: ByteRange) -> Vec<u8> {
        let mut bytes = vec![0; range.len as usize];
        self.disk(disk, |disk| disk.bytes.content.read_durable(range.at.0, &mut bytes));
        bytes
    }

    /// Writes `bytes` to `disk`, durable, without taking time.
    ///
    /// # Panics
    /// When they reach beyond its end.
    pub fn write_disk(&self, disk: DiskId, at: ByteOffset, bytes: &[u8]) {
        self.disk(disk, |disk| {
            let len = bytes.len() as u64;
            assert!(at.0 + len <= disk.drive.config.size, "{len} bytes at {at} reach beyond the end of the disk");
            if len > 0 {
                let payload = Payload::Bytes(Rc::new(bytes.to_vec()));
                disk.bytes.content.apply(&Change { at: at.0, len, payload }, true);
            }
        });
    }

    fn disk<T>(&self, id: DiskId, act: impl FnOnce(&mut Disk) -> T) -> T {
        act(&mut self.0.borrow_mut().disks[usize::from(id.0)])
    }
}

/// What an operation is on.
fn entry_of<'a>(files: &'a [FileEntry], op: &Op) -> Option<&'a FileEntry> {
    files.get(file_of(op)?.0 as usize)
}

/// The same, which must be open until the operation has ended: on Linux the next file or connection has its number.
fn open_entry_of<'a>(files: &'a [FileEntry], op: &Op) -> Option<&'a FileEntry> {
    let entry = entry_of(files, op)?;
    assert!(entry.is_open(), "a closed file is used: {op:?}");
    Some(entry)
}

impl Inner {
    pub(crate) fn submit_file_op(&mut self, of: OpRef) {
        let Inner { operations, processors, disks, trees, files, now, .. } = self;
        let Some(Operation { processor, op, job, .. }) = operations.get_mut(of) else {
            return;
        };
        let host = processors[*processor].host;
        let changes = matches!(op, Op::Write { .. } | Op::Zero { .. } | Op::Discard { .. });
        let ends = match open_entry_of(files, op) {
            Some(FileEntry::Disk { disk, writable, align, .. })
                if disks[usize::from(disk.0)].host == host && (*writable || !changes) =>
            {
                // SAFETY: the starter of the operation keeps its memory valid until its completion is returned or the
                // machine is gone, and then it is not among the operations.
                unsafe { disks[usize::from(disk.0)].start(*now, op, *align, job) }
            }
            Some(FileEntry::Node(open)) if trees[open.tree].host == host && (open.writable || !changes) => {
                // SAFETY: as above.
                unsafe { trees[open.tree].start(*now, open, op, job) }
            }
            _ => Err(Errno(libc::EBADF)),
        };
        match ends {
            Ok(at) => self.schedule(at, EventKind::FileOpDone(of)),
            Err(errno) => self.complete(of, Err(errno)),
        }
    }

    pub(crate) fn finish_file_op(&mut self, of: OpRef) {
        let Inner { operations, disks, trees, files, now, .. } = self;
        let Some(Operation { op, job, .. }) = operations.get_mut(of) else {
            return;
        };
        let (result, late_ns) = match open_entry_of(files, op) {
            Some(FileEntry::Disk { disk, .. }) => {
                let disk = &mut disks[usize::from(disk.0)];
                // SAFETY: as in `submit_file_op`; the memory of a read is not used by others by the same guarantee.
                (unsafe { disk.finish(op, job) }, disk.drive.lateness())
            }
            Some(FileEntry::Node(open)) => {
                let tree = &mut trees[open.tree];
                // SAFETY: as above.
                (unsafe { tree.finish(*now, open, op, job) }, tree.disk.lateness())
            }
            None => (Err(Errno(libc::EBADF)), 0),
        };
        self.complete_late(of, result, late_ns);
    }

    /// The changes that the operations of a machine that just died would have made: (index of the disk, change).
    pub(crate) fn changes_in_flight(&self, died: &[Operation]) -> Vec<(usize, Change)> {
        let in_flight = died.iter().filter(|operation| operation.state == OpState::InFlight);
        let change = |operation: &Operation| {
            let Some(FileEntry::Disk { disk, .. }) = entry_of(&self.files, &operation.op) else { return None };
            let disk = usize::from(disk.0);
            Some((disk, self.disks[disk].change_in_flight(&operation.op, &operation.job)?))
        };
        in_flight.filter_map(change).collect()
    }
}
