//! Writes into the holes of a sparse image, in the simulated machine.

use std::sync::Arc;
use std::time::Duration;

use kernel::device::FileDevice;
use kernel::{ForcedUnitAccess, Processor, Switches, Volume};
use policy::unit::{ByteOffset, ByteRange};
use sim::{DiskConfig, DiskId, OpClass, World};
use testkit::scene::disk::volume;
use testkit::scene::{Host, context, run, small_kernel};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;

fn scene() -> (World, Host, DiskId) {
    let world = World::new(1);
    let host = Host::boot(&world, world.add_host("server"), small_kernel(1, 4 * MIB, Switches::default()));
    let disk = world.add_disk(host.id, DiskConfig::new(8 * MIB));
    (world, host, disk)
}

fn open(world: &World, host: &Host, disk: DiskId) -> Arc<Volume> {
    volume(&host.kernel, Arc::new(FileDevice::new(world.open(disk, true))), ForcedUnitAccess::Never)
}

async fn until_holes_are_known(cpu: &Processor) {
    cpu.sleep(Duration::from_millis(100)).await;
}

/// Writes blocks, each with its number, and flushes.
async fn write(cpu: &Processor, volume: &Volume, blocks: &[u64]) {
    for block in blocks {
        let mut frames = cpu.kernel().allocate(cpu, 1).await;
        frames[0].bytes_mut().expect("unshared").fill(*block as u8);
        volume.write(cpu, ByteRange::new(block * BLOCK, BLOCK), frames, context()).await.expect("cached");
    }
    volume.flush(cpu, context()).await.expect("flushed");
}

/// The blocks that are not zero.
fn durable(world: &World, disk: DiskId) -> Vec<u8> {
    let bytes = world.read_durable(disk, ByteRange::new(0, MIB));
    bytes.chunks(BLOCK as usize).map(|block| block[0]).filter(|byte| *byte != 0).collect()
}

#[test]
fn the_first_write_into_a_hole_fills_its_cluster_and_later_ones_only_themselves() {
    let (world, host, disk) = scene();
    let volume = open(&world, &host, disk);
    let seen = world.clone();
    run(&world, &host, async move |cpu| {
        until_holes_are_known(&cpu).await;
        let written = || (seen.disk_counters(disk).writes, seen.disk_counters(disk).bytes_written / BLOCK);
        write(&cpu, &volume, &[21, 23, 30]).await;
        assert_eq!(written(), (1, 16), "all dirty blocks of a cluster go out at once");
        write(&cpu, &volume, &[22, 23]).await;
        assert_eq!(written(), (2, 18));
        assert_eq!(durable(&seen, disk), [21, 22, 23, 30]);
    });
}

#[test]
fn what_others_wrote_before_is_no_hole() {
    let (world, host, disk) = scene();
    world.write_disk(disk, ByteOffset(20 * BLOCK), &[20; BLOCK as usize]);
    let volume = open(&world, &host, disk);
    let seen = world.clone();
    run(&world, &host, async move |cpu| {
        until_holes_are_known(&cpu).await;
        write(&cpu, &volume, &[21]).await;
        assert_eq!(seen.disk_counters(disk).bytes_written, BLOCK);
        assert_eq!(durable(&seen, disk), [20, 21]);
    });
}

#[test]
fn a_write_succeeds_where_only_the_blocks_around_it_fail() {
    let (world, host, disk) = scene();
    let volume = open(&world, &host, disk);
    world.fail_range(disk, ByteRange::new(17 * BLOCK, BLOCK), OpClass::Write);
    let seen = world.clone();
    run(&world, &host, async move |cpu| {
        until_holes_are_known(&cpu).await;
        write(&cpu, &volume, &[20, 22, 23]).await;
        assert_eq!(durable(&seen, disk), [20, 22, 23]);
        assert_eq!(volume.failures_so_far(), 0);
    });
}
