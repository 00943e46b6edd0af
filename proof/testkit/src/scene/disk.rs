//! A simulated disk as a volume, and switches drawn from a seed.

use std::sync::Arc;

use kernel::device::{Checked, DeviceRef, FileDevice};
use kernel::queue::{DiskQueue, Queued};
use kernel::volume::VolumeConfig;
use kernel::{ForcedUnitAccess, Kernel, Switches, Volume};
use policy::unit::{DiskNo, ProcessorId};
use sim::{DiskConfig, DiskId, World};

use super::Host;
use crate::random::Random;

/// A volume on the disk. The use of forced writes is drawn from the seed.
pub fn open_disk(world: &World, host: &Host, disk: DiskId, seed: u64) -> Arc<Volume> {
    let file = Arc::new(FileDevice::new(world.open(disk, true)));
    let queue = host.kernel.queue_of_disk(DiskNo(0), || {
        let switches = host.kernel.switches();
        let (merge, fair) = (switches.block_merge, switches.usage);
        DiskQueue::new(policy::queue::Config { merge, fair, ..Default::default() })
    });
    let device = Arc::new(Queued::new(queue, Arc::new(Checked::new(file))));
    let forced = [ForcedUnitAccess::Never, ForcedUnitAccess::Alone, ForcedUnitAccess::Always][(seed % 3) as usize];
    volume(&host.kernel, device, forced)
}

/// A volume on `device`.
pub fn volume(kernel: &Arc<Kernel>, device: DeviceRef, forced_unit_access: ForcedUnitAccess) -> Arc<Volume> {
    let config = VolumeConfig { name: "disk".into(), read_only: false, forced_unit_access, grows: false };
    Volume::open(kernel, device, config, ProcessorId(0)).expect("a number")
}

/// Requests fail now and then, and a flush that fails may lose what it covered.
pub fn add_faults(config: &mut DiskConfig, random: &mut Random) {
    config.faults.write_error_permille = 20;
    config.faults.flush_error_permille = 100;
    config.faults.read_error_permille = 10;
    config.faults.short_write_permille = 50;
    config.faults.failed_flush_drops = random.chance(500);
}

pub fn drawn_switches(seed: u64) -> Switches {
    let mut random = Random(seed ^ 0x5717);
    Switches {
        scan_resistant: random.chance(700),
        smooth_write_back: random.chance(700),
        block_merge: random.chance(700),
        priority: random.chance(700),
        flush_gathering: random.chance(700),
        unmapped_io: random.chance(700),
        hottest_first: random.chance(700),
        look_ahead: random.chance(700),
        huge_pages: policy::pages::Mode::Small,
        usage: random.chance(700),
        ..Switches::default()
    }
}
