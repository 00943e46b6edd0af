//! Writes into the holes of a sparse image, in the simulated machine.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kernel::device::{Device, DeviceFacts, DeviceRef, FoundData, Work};
use kernel::request::{Action, Outcome, Request};
use kernel::{ForcedUnitAccess, Processor, Switches, Volume};
use machine::Errno;
use parking_lot::Mutex;
use policy::unit::{BlockNo, ByteOffset, ByteRange};
use sim::{DiskConfig, DiskId, OpClass, World};
use testkit::scene::disk::{Server, block, fill, first_byte};
use testkit::scene::{context, ended, small_kernel, spawn};

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

#[test]
fn so_does_one_up_to_the_end_of_an_image_that_does_not_end_with_a_block() {
    let server = Server::of(1, small_kernel(1, 4 * MIB, Switches::default()), DiskConfig::new(MIB + 512));
    let volume = server.volume(ForcedUnitAccess::Never);
    server.world.fail_range(server.disk, block(245), OpClass::Write);
    server.run(async move |cpu, world, disk| {
        until_holes_are_known(&cpu).await;
        let end = ByteRange::new(250 * BLOCK, 6 * BLOCK + 512);
        fill(&cpu, &volume, end, 7, context()).await.expect("cached");
        volume.flush(&cpu, context()).await.expect("flushed");
        assert!(world.read_durable(disk, end).iter().all(|byte| *byte == 7));
        assert_eq!(volume.failures_so_far(), 0);
    });
}

/// A disk on a host with space for some blocks. A write that does not fit takes what there is, and fails.
struct Scarce {
    below: DeviceRef,
    allocated: Mutex<BTreeSet<BlockNo>>,
    blocks_max: usize,
    errno: Errno,
}

impl Device for Scarce {
    fn facts(&self) -> DeviceFacts {
        self.below.facts()
    }

    fn perform<'a>(&'a self, cpu: &'a Processor, request: Request) -> Work<'a, Outcome> {
        let mut allocated = self.allocated.lock();
        match &request.action {
            Action::Write(range, _) => {
                for block in range.blocks().iter() {
                    if allocated.len() == self.blocks_max && !allocated.contains(&block) {
                        return Box::pin(async { Err(self.errno) });
                    }
                    allocated.insert(block);
                }
            }
            Action::Discard(range) => allocated.retain(|block| !range.blocks().contains(*block)),
            _ => {}
        }
        self.below.perform(cpu, request)
    }

    fn find_data<'a>(&'a self, cpu: &'a Processor, within: ByteRange, runs_max: usize) -> Work<'a, FoundData> {
        self.below.find_data(cpu, within, runs_max)
    }
}

#[test]
fn the_last_space_of_the_host_is_for_what_clients_write_and_not_for_what_is_around_it() {
    for errno in [Errno::NO_SPACE, Errno::QUOTA_EXCEEDED] {
        let server = server();
        let device = Scarce { below: server.file(), allocated: Mutex::default(), blocks_max: 8, errno };
        let volume = server.volume_on(Arc::new(device), ForcedUnitAccess::Never);
        server.run(async move |cpu, world, disk| {
            until_holes_are_known(&cpu).await;
            write(&cpu, &volume, &[27, 29, 30]).await;
            write(&cpu, &volume, &[35, 55, 75, 76, 77]).await;
            assert_eq!(durable(&world, disk), [27, 29, 30, 35, 55, 75, 76, 77]);
            assert_eq!(volume.failures_so_far(), 0);
            assert_eq!(world.disk_counters(disk).bytes_written, 8 * BLOCK, "nothing is filled any more");
        });
    }
}

#[test]
fn what_nobody_has_written_is_read_as_zeroes_without_the_device() {
    let server = server();
    server.world.write_disk(server.disk, ByteOffset(40 * BLOCK), &[40; BLOCK as usize]);
    let volume = server.volume(ForcedUnitAccess::Never);
    server.run(async move |cpu, world, disk| {
        until_holes_are_known(&cpu).await;
        write(&cpu, &volume, &[21, 23]).await;
        // A part of a block.
        let part = ByteRange::new(25 * BLOCK + 100, 50);
        fill(&cpu, &volume, part, 25, context()).await.expect("cached");
        let reads = || world.disk_counters(disk).reads;
        let before = reads();
        let first = |frames: kernel::Frames| frames.iter().map(|frame| frame.bytes()[120]).collect::<Vec<u8>>();
        let read = volume.read(&cpu, ByteRange::new(16 * BLOCK, 12 * BLOCK), context()).await.expect("read");
        assert_eq!(first(read), [0, 0, 0, 0, 0, 21, 0, 23, 0, 25, 0, 0]);
        let read = volume.read(&cpu, block(1000), context()).await.expect("read");
        assert_eq!(first(read), [0]);
        assert_eq!(reads(), before);
        let read = volume.read(&cpu, block(40), context()).await.expect("read");
        assert_eq!(first(read), [40]);
        assert_eq!(reads(), before + 1, "others wrote it before");
    });
}

#[test]
fn what_was_in_a_hole_is_read_from_the_device_once_it_was_written_and_evicted() {
    let server = server();
    let volume = server.volume(ForcedUnitAccess::Never);
    server.run(async move |cpu, _, _| {
        until_holes_are_known(&cpu).await;
        let numbers: Vec<u64> = (0..2048).step_by(3).collect();
        for some in numbers.chunks(100) {
            write(&cpu, &volume, some).await;
        }
        volume.forget_delivered(ByteRange::new(0, 8 * MIB).blocks());
        for number in 0..2048 {
            let read = volume.read(&cpu, block(number), context()).await.expect("read");
            let expected = if number % 3 == 0 { number as u8 } else { 0 };
            assert_eq!(read[0].bytes()[7], expected, "block {number}");
        }
    });
}

/// A disk that takes long to read one block.
struct SlowToRead {
    below: DeviceRef,
    block: ByteRange,
    by: Duration,
}

impl Device for SlowToRead {
    fn facts(&self) -> DeviceFacts {
        self.below.facts()
    }

    fn perform<'a>(&'a self, cpu: &'a Processor, request: Request) -> Work<'a, Outcome> {
        Box::pin(async move {
            if matches!(&request.action, Action::Read(range, _) if range.at == self.block.at) {
                cpu.sleep(self.by).await;
            }
            self.below.perform(cpu, request).await
        })
    }

    fn find_data<'a>(&'a self, cpu: &'a Processor, within: ByteRange, runs_max: usize) -> Work<'a, FoundData> {
        self.below.find_data(cpu, within, runs_max)
    }
}

#[test]
fn what_another_s_write_into_the_hole_took_along_while_a_block_after_it_was_read_is_no_hole() {
    // Nothing is written before it is flushed.
    let switches = Switches { smooth_write_back: false, ..Switches::default() };
    let server = Server::of(1, small_kernel(1, 4 * MIB, switches), DiskConfig::new(8 * MIB));
    server.world.write_disk(server.disk, ByteOffset(16 * BLOCK), &[16; BLOCK as usize]);
    let device = SlowToRead { below: server.file(), block: block(16), by: Duration::from_millis(200) };
    let volume = server.volume_on(Arc::new(device), ForcedUnitAccess::Never);
    server.run(async move |cpu, world, disk| {
        until_holes_are_known(&cpu).await;
        // Its last block, which is no whole one, is read first.
        let write = {
            let volume = Arc::clone(&volume);
            let range = ByteRange::new(5 * BLOCK, 11 * BLOCK + 512);
            spawn(&cpu, async move |cpu| fill(&cpu, &volume, range, 5, context()).await)
        };
        cpu.sleep(Duration::from_millis(10)).await;
        self::write(&cpu, &volume, &[3]).await;
        assert_eq!(durable(&world, disk), [&[3][..], &[5; 11], &[16]].concat(), "all of the cluster");
        assert_eq!(ended(&cpu, &write).await, Ok(()));
        volume.forget_delivered(ByteRange::new(0, 16 * BLOCK).blocks());
        assert_eq!(first_byte(&cpu, &volume, 5).await, Ok(5), "acknowledged");
        volume.forget_delivered(ByteRange::new(0, 16 * BLOCK).blocks());
        let part = ByteRange::new(6 * BLOCK + 100, 50);
        fill(&cpu, &volume, part, 7, context()).await.expect("cached");
        assert_eq!(first_byte(&cpu, &volume, 6).await, Ok(5), "the rest of the block was acknowledged");
    });
}
