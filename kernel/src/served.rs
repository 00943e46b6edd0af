//! Exports, the devices and disks below them, open files, connections.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use policy::unit::DiskNo;

use crate::connection::ConnectionTable;
use crate::device::DeviceNumbers;
use crate::export::ExportNumbers;
use crate::queue::DiskQueue;
use crate::tree::Siblings;

#[derive(Default)]
pub struct Served {
    pub(crate) devices: Arc<DeviceNumbers>,
    queues: Mutex<BTreeMap<DiskNo, Arc<DiskQueue>>>,
    /// Open files of all trees, to find aliases.
    pub(crate) siblings: Arc<Siblings>,
    pub(crate) exports: ExportNumbers,
    pub(crate) connections: ConnectionTable,
}

impl Served {
    /// The request queue of a physical disk, made on first use.
    pub fn queue_of_disk(&self, disk: DiskNo, make: impl FnOnce() -> DiskQueue) -> Arc<DiskQueue> {
        Arc::clone(self.queues.lock().entry(disk).or_insert_with(|| Arc::new(make())))
    }

    /// The queues of all physical disks, each with the disk's number.
    pub fn disk_queues(&self) -> Vec<(DiskNo, Arc<DiskQueue>)> {
        self.queues.lock().iter().map(|(disk, queue)| (*disk, Arc::clone(queue))).collect()
    }

    /// Drops requests that wait for disks, at the end of the kernel.
    pub(crate) fn forget_queues(&self) {
        self.queues.lock().clear();
    }
}
