//! Exports, the devices and disks below them, open files, connections.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use policy::unit::DeviceId;

use crate::connection::ConnectionTable;
use crate::export::ExportNumbers;
use crate::queue::DiskQueue;
use crate::tree::Siblings;

#[derive(Default)]
pub struct Served {
    pub(crate) devices: Arc<DeviceNumbers>,
    queues: Mutex<BTreeMap<u64, Arc<DiskQueue>>>,
    /// Open files of all trees, to find aliases.
    pub(crate) siblings: Arc<Siblings>,
    pub(crate) exports: ExportNumbers,
    pub(crate) connections: ConnectionTable,
}

impl Served {
    /// The request queue of a physical disk, made on first use.
    pub fn queue_of_disk(&self, disk: u64, make: impl FnOnce() -> DiskQueue) -> Arc<DiskQueue> {
        Arc::clone(self.queues().entry(disk).or_insert_with(|| Arc::new(make())))
    }

    /// The queues of all physical disks, each with the disk's number.
    pub fn disk_queues(&self) -> Vec<(u64, Arc<DiskQueue>)> {
        self.queues().iter().map(|(disk, queue)| (*disk, Arc::clone(queue))).collect()
    }

    /// Drops requests that wait for disks, at the end of the kernel.
    pub(crate) fn forget_queues(&self) {
        self.queues().clear();
    }

    fn queues(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<DiskQueue>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The numbers of devices in the cache's keys.
#[derive(Default)]
pub(crate) struct DeviceNumbers(Mutex<Numbers>);

#[derive(Default)]
struct Numbers {
    next: u16,
    returned: Vec<u16>,
}

impl DeviceNumbers {
    /// A number that no open device has; `None` if all are in use.
    pub(crate) fn take(&self) -> Option<DeviceId> {
        let mut numbers = self.lock();
        if let Some(number) = numbers.returned.pop() {
            return Some(DeviceId(number));
        }
        let number = numbers.next;
        numbers.next = number.checked_add(1)?;
        Some(DeviceId(number))
    }

    /// The device is closed, and the cache has none of its blocks.
    pub(crate) fn give_back(&self, device: DeviceId) {
        self.lock().returned.push(device.0);
    }

    fn lock(&self) -> MutexGuard<'_, Numbers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
