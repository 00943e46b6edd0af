//! Writes into the holes of a sparse image, in the simulated machine.

use std::time::Duration;

use kernel::{ForcedUnitAccess, Processor, Switches, Volume};
use policy::unit::{ByteOffset, ByteRange};
use sim::{DiskConfig, DiskId, OpClass, World};
use testkit::scene::disk::{Server, block, fill};
use testkit::scene::{context, small_kernel};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;

fn server() -> Server {
    Server::of(1, small_kernel(1, 4 * MIB, Switches::default()), DiskConfig::new(8 * MIB))
}

async fn until_holes_are_known(cpu: &Processor) {
    cpu.sleep(Duration::from_millis(100)).await;
}

/// Writes blocks, each with its number, and flushes.
async fn write(cpu: &Processor, volume: &Volume, blocks: &[u64]) {
    for number in blocks {
        fill(cpu, volume, block(*number), *number as u8, context()).await.expect("cached");
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
    let server = server();
    let volume = server.volume(ForcedUnitAccess::Never);
    server.run(async move |cpu, world, disk| {
        until_holes_are_known(&cpu).await;
        let written = || (world.disk_counters(disk).writes, world.disk_counters(disk).bytes_written / BLOCK);
        write(&cpu, &volume, &[21, 23, 30]).await;
        assert_eq!(written(), (1, 16), "all dirty blocks of a cluster go out at once");
        write(&cpu, &volume, &[22, 23]).await;
        assert_eq!(written(), (2, 18));
        assert_eq!(durable(&world, disk), [21, 22, 23, 30]);
    });
}

#[test]
fn what_others_wrote_before_is_no_hole() {
    let server = server();
    server.world.write_disk(server.disk, ByteOffset(20 * BLOCK), &[20; BLOCK as usize]);
    let volume = server.volume(ForcedUnitAccess::Never);
    server.run(async move |cpu, world, disk| {
        until_holes_are_known(&cpu).await;
        write(&cpu, &volume, &[21]).await;
        assert_eq!(world.disk_counters(disk).bytes_written, BLOCK);
        assert_eq!(durable(&world, disk), [20, 21]);
    });
}

#[test]
fn a_write_succeeds_where_only_the_blocks_around_it_fail() {
    let server = server();
    let volume = server.volume(ForcedUnitAccess::Never);
    server.world.fail_range(server.disk, block(17), OpClass::Write);
    server.run(async move |cpu, world, disk| {
        until_holes_are_known(&cpu).await;
        write(&cpu, &volume, &[20, 22, 23]).await;
        assert_eq!(durable(&world, disk), [20, 22, 23]);
        assert_eq!(volume.failures_so_far(), 0);
    });
}
