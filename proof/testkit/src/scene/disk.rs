//! A simulated disk as a volume, and switches drawn from a seed.

use std::sync::Arc;

use kernel::device::{Checked, DeviceRef, FileDevice};
use kernel::queue::{DiskQueue, Queued};
use kernel::request::Context;
use kernel::volume::VolumeConfig;
use kernel::{ForcedUnitAccess, Kernel, KernelConfig, Processor, Switches, Volume};
use machine::Errno;
use policy::unit::{BLOCK_BYTES, ByteRange, DiskNo, ProcessorId};
use sim::{DiskConfig, DiskId, World};

use super::{Host, boot, context, run, small_kernel};
use crate::random::Random;

/// A host with one disk.
pub struct Server {
    pub world: World,
    pub host: Host,
    pub disk: DiskId,
}

impl Server {
    /// Two processors, 4 MiB of memory, and a disk of 8 MiB.
    pub fn new(seed: u64) -> Server {
        Server::with_disk(seed, DiskConfig::new(8 << 20))
    }

    pub fn with_disk(seed: u64, disk: DiskConfig) -> Server {
        Server::of(seed, small_kernel(2, 4 << 20, Switches::default()), disk)
    }

    pub fn of(seed: u64, kernel: KernelConfig, disk: DiskConfig) -> Server {
        let (world, host) = boot(seed, kernel);
        let disk = world.add_disk(host.id, disk);
        Server { world, host, disk }
    }

    /// The disk as a device, open for writing.
    pub fn file(&self) -> DeviceRef {
        Arc::new(FileDevice::new(self.world.open(self.disk, true)))
    }

    /// A volume on the disk.
    pub fn volume(&self, forced_unit_access: ForcedUnitAccess) -> Arc<Volume> {
        self.volume_on(Arc::new(Checked::new(self.file())), forced_unit_access)
    }

    /// A volume on another device.
    pub fn volume_on(&self, device: DeviceRef, forced_unit_access: ForcedUnitAccess) -> Arc<Volume> {
        volume(&self.host.kernel, device, forced_unit_access)
    }

    /// Runs a task on its first processor to the end.
    pub fn run<T: 'static>(&self, task: impl AsyncFnOnce(Processor, World, DiskId) -> T + 'static) -> T {
        let (world, disk) = (self.world.clone(), self.disk);
        run(&self.world, &self.host, async move |cpu| task(cpu, world, disk).await)
    }
}

/// Block `number`.
pub fn block(number: u64) -> ByteRange {
    ByteRange::new(number * BLOCK_BYTES, BLOCK_BYTES)
}

/// Fills `range` with `byte`.
pub async fn fill(cpu: &Processor, volume: &Volume, range: ByteRange, byte: u8, context: Context) -> Result<(), Errno> {
    let blocks = range.blocks();
    let mut frames = cpu.kernel().allocate(cpu, (blocks.end - blocks.start) as usize).await;
    frames.iter_mut().for_each(|frame| frame.bytes_mut().expect("unshared").fill(byte));
    volume.write(cpu, range, frames, context).await
}

pub async fn read(cpu: &Processor, volume: &Volume, range: ByteRange, context: Context) -> Result<Vec<u8>, Errno> {
    let frames = volume.read(cpu, range, context).await?;
    let bytes: Vec<&[u8]> = frames.iter().map(|frame| frame.bytes()).collect();
    Ok(bytes.concat()[(range.at.0 % BLOCK_BYTES) as usize..][..range.len as usize].to_vec())
}

/// The first byte of block `number`.
pub async fn first_byte(cpu: &Processor, volume: &Volume, number: u64) -> Result<u8, Errno> {
    Ok(volume.read(cpu, block(number), context()).await?[0].bytes()[0])
}

/// The queue of a host's first disk, as its switches say.
pub fn queue(host: &Host) -> Arc<DiskQueue> {
    host.kernel.queue_of_disk(DiskNo(0), || {
        let switches = host.kernel.switches();
        let (merge, fair) = (switches.block_merge, switches.usage);
        DiskQueue::new(policy::queue::Config { merge, fair, ..Default::default() })
    })
}

/// A volume on the disk. The use of forced writes is drawn from the seed.
pub fn open_disk(world: &World, host: &Host, disk: DiskId, seed: u64) -> Arc<Volume> {
    let file = Arc::new(FileDevice::new(world.open(disk, true)));
    let device = Arc::new(Queued::new(queue(host), Arc::new(Checked::new(file))));
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
        resolved_names: random.chance(700),
        look_ahead: random.chance(700),
        huge_pages: policy::pages::Mode::Small,
        usage: random.chance(700),
        forwarding: random.chance(700),
        ..Switches::default()
    }
}
