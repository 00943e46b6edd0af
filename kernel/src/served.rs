//! Exports, the devices and disks below them, open files, connections.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use policy::unit::DiskNo;

use crate::connection::ConnectionTable;
use crate::device::DeviceNumbers;
use crate::export::ExportNumbers;
use crate::queue::DiskQueue;
use crate::tree::Siblings;

enum Listed {
    /// To the end of the kernel.
    Lasting(Arc<DiskQueue>),
    /// As long as any device has it.
    Passing(Weak<DiskQueue>),
}

impl Listed {
    fn queue(&self) -> Option<Arc<DiskQueue>> {
        match self {
            Listed::Lasting(queue) => Some(Arc::clone(queue)),
            Listed::Passing(queue) => queue.upgrade(),
        }
    }

    fn is_there(&self) -> bool {
        match self {
            Listed::Lasting(_) => true,
            Listed::Passing(queue) => queue.strong_count() > 0,
        }
    }
}

#[derive(Default)]
pub struct Served {
    pub(crate) devices: Arc<DeviceNumbers>,
    queues: Mutex<BTreeMap<DiskNo, Listed>>,
    /// Open files of all trees, to find aliases.
    pub(crate) siblings: Arc<Siblings>,
    pub(crate) exports: ExportNumbers,
    pub(crate) connections: ConnectionTable,
}

impl Served {
    /// The request queue of a physical disk, made on first use. Its counters go on when the disk is used again.
    pub fn queue_of_disk(&self, disk: DiskNo, make: impl FnOnce() -> DiskQueue) -> Arc<DiskQueue> {
        self.queue(disk, make, Listed::Lasting)
    }

    /// The same for a disk that ends with its devices, so that it is not counted for ever.
    pub fn queue_of_passing_disk(&self, disk: DiskNo, make: impl FnOnce() -> DiskQueue) -> Arc<DiskQueue> {
        self.queue(disk, make, |queue| Listed::Passing(Arc::downgrade(&queue)))
    }

    fn queue(
        &self,
        disk: DiskNo,
        make: impl FnOnce() -> DiskQueue,
        list: impl FnOnce(Arc<DiskQueue>) -> Listed,
    ) -> Arc<DiskQueue> {
        let mut queues = self.queues.lock();
        if let Some(queue) = queues.get(&disk).and_then(Listed::queue) {
            return queue;
        }
        // Not each time: there may be thousands.
        if queues.len().is_power_of_two() {
            queues.retain(|_, listed| listed.is_there());
        }
        let queue = Arc::new(make());
        queues.insert(disk, list(Arc::clone(&queue)));
        queue
    }

    /// The queues of all physical disks, each with the disk's number.
    pub fn disk_queues(&self) -> Vec<(DiskNo, Arc<DiskQueue>)> {
        self.queues.lock().iter().filter_map(|(disk, listed)| Some((*disk, listed.queue()?))).collect()
    }

    /// Drops requests that wait for disks, at the end of the kernel.
    pub(crate) fn forget_queues(&self) {
        self.queues.lock().clear();
    }
}
