//! A simulated disk as a volume, and switches drawn from a seed.

use std::sync::Arc;

use kernel::device::{Checked, FileDevice};
use kernel::queue::{DiskQueue, Queued};
use kernel::volume::VolumeConfig;
use kernel::{ForcedUnitAccess, Switches, Volume};
use policy::unit::{DiskNo, ProcessorId};
use sim::{DiskId, World};

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
    let config = VolumeConfig {
        name: "disk".into(),
        read_only: false,
        forced_unit_access: [ForcedUnitAccess::Never, ForcedUnitAccess::Alone, ForcedUnitAccess::Always]
            [(seed % 3) as usize],
        grows: false,
    };
    Volume::open(&host.kernel, device, config, ProcessorId(0)).expect("a number")
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
