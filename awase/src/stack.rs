//! The layers of an export's device. From the top: queue, contract, injected faults and delay, behaviour, store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kernel::Kernel;
use kernel::device::RamDisk;
use kernel::device::{Checked, Delay, DeviceRef, Fault, Faults, FileDevice, FixedLatency, Mechanical};
use kernel::queue::{DiskQueue, Queued};
use machine::OpenFile;
use machine::tree::OpenTree;
use policy::{access, queue};

use crate::config::Behaviour;

/// What an export's bytes lie in.
pub enum Bottom {
    /// An open file or block device.
    File(OpenFile),
    Ram {
        /// How much. Bytes.
        size: u64,
    },
}

/// What is put over it.
#[derive(Clone, Debug)]
pub struct Layers {
    pub behaviour: Behaviour,
    /// Who may start it, where it has a rule of its own.
    pub access: Option<access::Mode>,
    pub delay: std::time::Duration,
    pub faults: Faults,
}

/// From here on disks have numbers that exist in memory or as a model only; the host's own are device numbers, far below.
const FIRST_IN_MEMORY: u64 = 1 << 63;

static NEXT_DISK: AtomicU64 = AtomicU64::new(FIRST_IN_MEMORY);

/// Which one of the disks that exist in memory or as a model only, if `disk` is one.
pub fn is_in_memory(disk: u64) -> Option<u64> {
    disk.checked_sub(FIRST_IN_MEMORY)
}

/// Puts the layers on each other.
pub fn stack(kernel: &Arc<Kernel>, bottom: Bottom, layers: &Layers) -> DeviceRef {
    let own_disk = NEXT_DISK.fetch_add(1, Ordering::Relaxed);
    let mut device: DeviceRef = match bottom {
        Bottom::File(open) => Arc::new(FileDevice::new(open)),
        Bottom::Ram { size } => Arc::new(RamDisk::new(size, own_disk)),
    };
    let mut disk = device.facts().disk;
    match &layers.behaviour {
        Behaviour::Plain => {}
        Behaviour::FixedLatency(latency) => device = Arc::new(FixedLatency::new(device, *latency)),
        Behaviour::Mechanical(model) => {
            // A modelled disk has its own arm, whatever disk its bytes lie on.
            disk = own_disk;
            device = Arc::new(Mechanical::new(device, *model));
        }
    }
    if !layers.delay.is_zero() {
        device = Arc::new(Delay::new(device, layers.delay));
    }
    if layers.faults != Faults::default() {
        device = Arc::new(Fault::new(device, layers.faults));
    }
    let device: DeviceRef = Arc::new(Checked::new(device));
    let facts = device.facts();
    let is_model = matches!(layers.behaviour, Behaviour::Mechanical(_));
    let queue = queue_of(kernel, disk, Arm { rotational: facts.rotational, is_model }, facts.transfer_bytes_max);
    Arc::new(Queued::new(queue, device).with_access(layers.access))
}

/// The queue of the disk that a directory lies on, which is that of the image files there.
pub fn queue_of_directory(kernel: &Kernel, open: &OpenTree) -> Arc<DiskQueue> {
    queue_of(kernel, open.disk, Arm { rotational: open.rotational, is_model: false }, open.transfer_bytes_max)
}

#[derive(Clone, Copy)]
struct Arm {
    rotational: bool,
    is_model: bool,
}

fn queue_of(kernel: &Kernel, disk: u64, arm: Arm, transfer_bytes_max: u32) -> Arc<DiskQueue> {
    kernel.queue_of_disk(disk, || DiskQueue::new(queue_config(kernel, arm, transfer_bytes_max)))
}

fn queue_config(kernel: &Kernel, arm: Arm, transfer_bytes_max: u32) -> queue::Config {
    let switches = kernel.switches();
    let defaults = queue::Config::default();
    queue::Config {
        merge: switches.block_merge,
        priority: switches.priority,
        elevator: arm.rotational,
        fair: switches.usage,
        transfer_bytes_max: transfer_bytes_max.min(defaults.transfer_bytes_max),
        // The disks that are modelled took one command at a time.
        depth: if arm.is_model { 1 } else { defaults.depth },
        ..defaults
    }
}
