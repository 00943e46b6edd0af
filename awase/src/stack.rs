//! The layers of an export's device, from the top: an overlay's gate, queue, contract checks, injected faults and delay,
//! behaviour, overlay, store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kernel::Kernel;
use kernel::device::RamDisk;
use kernel::device::{Checked, Delay, DeviceRef, Fault, Faults, FileDevice, FixedLatency, Gated, Overlay};
use kernel::queue::{DiskQueue, Queued};
use machine::OpenFile;
use machine::tree::OpenTree;
use policy::unit::DiskNo;
use policy::{access, queue};

use crate::config::Behaviour;

/// The store of an export's bytes.
pub enum Bottom {
    /// An open file or block device.
    File(OpenFile),
    /// A store, and where changes go.
    Overlay(Arc<Overlay>),
    Ram {
        /// Bytes.
        size: u64,
    },
}

impl Bottom {
    pub fn device(self) -> DeviceRef {
        match self {
            Bottom::File(open) => Arc::new(FileDevice::new(open)),
            Bottom::Overlay(overlay) => overlay,
            Bottom::Ram { size } => Arc::new(RamDisk::new(size, disk_in_memory())),
        }
    }
}

#[derive(Clone)]
pub struct Layers {
    pub behaviour: Behaviour,
    /// Which processors may start it; `None`: as the switch says.
    pub access: Option<access::Mode>,
    pub delay: std::time::Duration,
    pub faults: Faults,
}

/// First number of disks that exist in memory or as a model only; the host's device numbers are far below.
const FIRST_IN_MEMORY: u64 = 1 << 63;

static NEXT_DISK: AtomicU64 = AtomicU64::new(FIRST_IN_MEMORY);

/// The index of `disk` among those that exist in memory or as a model only.
pub fn is_in_memory(disk: DiskNo) -> Option<u64> {
    disk.0.checked_sub(FIRST_IN_MEMORY)
}

/// The number of another disk that exists in memory or as a model only.
pub fn disk_in_memory() -> DiskNo {
    DiskNo(NEXT_DISK.fetch_add(1, Ordering::Relaxed))
}

/// Puts the layers on each other.
pub fn stack(kernel: &Kernel, bottom: Bottom, layers: &Layers) -> DeviceRef {
    let overlay = match &bottom {
        Bottom::Overlay(overlay) => Some(Arc::clone(overlay)),
        Bottom::File(_) | Bottom::Ram { .. } => None,
    };
    let mut device = bottom.device();
    if let Behaviour::FixedLatency(latency) = layers.behaviour {
        device = Arc::new(FixedLatency::new(device, latency));
    }
    if !layers.delay.is_zero() {
        device = Arc::new(Delay::new(device, layers.delay));
    }
    if layers.faults != Faults::default() {
        device = Arc::new(Fault::new(device, layers.faults));
    }
    let queued = queued(kernel, device, layers.access, queue::Config::default().depth);
    match overlay {
        Some(overlay) => Arc::new(Gated::new(overlay, queued)),
        None => queued,
    }
}

/// Puts the contract and the queue of its disk, which takes `depth` requests at a time, over a device.
pub fn queued(kernel: &Kernel, device: DeviceRef, access: Option<access::Mode>, depth: u16) -> DeviceRef {
    let facts = device.facts();
    let make = || DiskQueue::new(queue_config(kernel, facts.rotational, facts.transfer_bytes_max, depth));
    let queue = match is_in_memory(facts.disk) {
        Some(_) => kernel.queue_of_passing_disk(facts.disk, make),
        None => kernel.queue_of_disk(facts.disk, make),
    };
    Arc::new(Queued::new(queue, Arc::new(Checked::new(device))).with_access(access))
}

/// The queue of the disk under a directory, shared with image files on the same disk.
pub fn queue_of_directory(kernel: &Kernel, open: &OpenTree) -> Arc<DiskQueue> {
    let depth = queue::Config::default().depth;
    kernel.queue_of_disk(open.disk, || {
        DiskQueue::new(queue_config(kernel, open.rotational, open.transfer_bytes_max, depth))
    })
}

fn queue_config(kernel: &Kernel, rotational: bool, transfer_bytes_max: u32, depth: u16) -> queue::Config {
    let switches = kernel.switches();
    let defaults = queue::Config::default();
    queue::Config {
        merge: switches.block_merge,
        priority: switches.priority,
        elevator: rotational,
        fair: switches.usage,
        transfer_bytes_max: transfer_bytes_max.min(defaults.transfer_bytes_max),
        depth,
        ..defaults
    }
}
