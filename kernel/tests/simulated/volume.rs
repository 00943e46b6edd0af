//! A volume's guarantees to the services above it, in the simulated machine.

use kernel::device::{Checked, Delay, Device, Fault, Faults, FileDevice, Operation, RamDisk};
use kernel::queue::{DiskQueue, Queued};
use kernel::{FRAME_BYTES, ForcedUnitAccess, Kernel, Processor, Switches, Volume};
use machine::Errno;
use policy::unit::{ByteRange, DiskNo, Stability};
use sim::{DiskConfig, World};
use std::sync::Arc;
use std::time::Duration;
use testkit::random::Random;
use testkit::scene::disk::volume;
use testkit::scene::{Host, context, drive, run, small_kernel, spawn};

const MIB: u64 = 1 << 20;

fn host(world: &World, memory: u64, switches: Switches) -> Host {
    let id = world.add_host("server");
    Host::boot(world, id, small_kernel(2, memory, switches))
}

fn open(kernel: &Arc<Kernel>, device: Arc<dyn Device>) -> Arc<Volume> {
    volume(kernel, Arc::new(Checked::new(device)), ForcedUnitAccess::Never)
}

/// Fills `range`, a multiple of blocks, with `byte`.
async fn write(cpu: &Processor, volume: &Volume, range: ByteRange, byte: u8) -> Result<(), Errno> {
    let blocks = range.blocks();
    let mut frames = cpu.kernel().allocate(cpu, (blocks.end - blocks.start) as usize).await;
    frames.iter_mut().for_each(|frame| frame.bytes_mut().expect("unshared").fill(byte));
    volume.write(cpu, range, frames, context()).await
}

async fn first_byte(cpu: &Processor, volume: &Volume, block: u64) -> Result<u8, Errno> {
    let frames = volume.read(cpu, ByteRange::new(block * 4096, 4096), context()).await?;
    Ok(frames[0].bytes()[0])
}

#[test]
fn a_failing_flush_is_an_error_and_the_next_one_writes_again() {
    let world = World::new(1);
    let host = host(&world, 4 * MIB, Switches::default());
    let disk = world.add_disk(host.id, DiskConfig::new(8 * MIB));
    let fault = Arc::new(Fault::new(Arc::new(FileDevice::new(world.open(disk, true))), Faults::default()));
    let volume = open(&host.kernel, fault.clone());
    let (first, second) = run(&world, &host, {
        let volume = Arc::clone(&volume);
        async move |cpu| {
            write(&cpu, &volume, ByteRange::new(0, 64 << 10), 7).await.expect("cached");
            fault.fail_next(Operation::Flush, 1, Errno::IO);
            let first = volume.flush(&cpu, context()).await;
            let second = volume.flush(&cpu, context()).await;
            (first, second)
        }
    });
    assert_eq!((first, second), (Err(Errno::IO), Ok(())));
    let counters = world.disk_counters(disk);
    assert_eq!(counters.bytes_written, 2 * (64 << 10), "what the failed flush covered is written again");
    assert_eq!(world.read_durable(disk, ByteRange::new(0, 64 << 10)), vec![7; 64 << 10]);
}

#[test]
fn a_forced_write_whose_content_an_unforced_one_took_along_is_durable() {
    for seed in 0..40 {
        let world = World::new(seed);
        let host = host(&world, 4 * MIB, Switches::default());
        let disk = world.add_disk(host.id, DiskConfig::drawn(8 * MIB, seed));
        let device = || Arc::new(FileDevice::new(world.open(disk, true)));
        let volume = volume(&host.kernel, device(), ForcedUnitAccess::Always);
        run(&world, &host, {
            let volume = Arc::clone(&volume);
            async move |cpu| {
                let block = ByteRange::new(0, 4096);
                write(&cpu, &volume, block, 1).await.expect("cached");
                volume.flush(&cpu, context()).await.expect("flushed");
                // A flush is expected: this early write is claimed at once, and begun after the tasks before it.
                write(&cpu, &volume, block, 2).await.expect("cached");
                cpu.yield_now().await;
                let mut frames = cpu.kernel().allocate(&cpu, 1).await;
                frames[0].bytes_mut().expect("unshared").fill(3);
                let stable = context().with_stability(Stability::Stable);
                volume.write(&cpu, ByteRange::new(0, 512), frames, stable).await.expect("durable");
            }
        });
        drop(volume);
        let id = host.id;
        world.power_cut(id);
        host.die();
        let host = Host::boot(&world, id, small_kernel(2, 4 * MIB, Switches::default()));
        let volume = open(&host.kernel, device());
        let found = run(&world, &host, async move |cpu| first_byte(&cpu, &volume, 0).await);
        assert_eq!(found, Ok(3), "seed {seed}");
    }
}

#[test]
fn a_write_whose_last_block_cannot_be_read_leaves_nothing_in_the_cache_that_never_goes() {
    let world = World::new(9);
    let host = host(&world, 4 * MIB, Switches { read_ahead: policy::readahead::Mode::Off, ..Switches::default() });
    let disk = world.add_disk(host.id, DiskConfig::new(8 * MIB));
    let fault = Arc::new(Fault::new(Arc::new(FileDevice::new(world.open(disk, true))), Faults::default()));
    let volume = open(&host.kernel, fault.clone());
    let kernel = Arc::clone(&host.kernel);
    run(&world, &host, async move |cpu| {
        for at in 0..50 {
            fault.fail_next(Operation::Read, 1, Errno::IO);
            let range = ByteRange::new(at * 65536, 32768 + 512);
            assert_eq!(write(&cpu, &volume, range, 5).await, Err(Errno::IO));
        }
        volume.flush(&cpu, context()).await.expect("flushed");
        assert!(volume.is_clean());
        let mut all = kernel::Frames::new();
        let count = (4 * MIB) as usize / FRAME_BYTES;
        assert!(kernel.try_allocate(count, &mut all), "only {} of {count} frames can be had", all.len());
    });
}

#[test]
fn a_failing_write_stays_dirty_and_readable_until_it_succeeds() {
    let world = World::new(2);
    let host = host(&world, 4 * MIB, Switches::default());
    let disk = world.add_disk(host.id, DiskConfig::new(8 * MIB));
    let fault = Arc::new(Fault::new(Arc::new(FileDevice::new(world.open(disk, true))), Faults::default()));
    let volume = open(&host.kernel, fault.clone());
    run(&world, &host, async move |cpu| {
        fault.fail_next(Operation::Write, 3, Errno::NO_SPACE);
        write(&cpu, &volume, ByteRange::new(8192, 4096), 9).await.expect("cached");
        for _ in 0..3 {
            assert_eq!(volume.flush(&cpu, context()).await, Err(Errno::NO_SPACE));
            assert_eq!(first_byte(&cpu, &volume, 2).await, Ok(9));
        }
        assert_eq!(volume.flush(&cpu, context()).await, Ok(()));
        assert_eq!(volume.dirty_blocks(), 0);
    });
}

#[test]
fn flushes_that_come_while_one_is_under_way_share_the_next() {
    let flushes = |gathering| {
        let world = World::new(3);
        let host = host(&world, 4 * MIB, Switches { flush_gathering: gathering, ..Switches::default() });
        let disk = world.add_disk(host.id, DiskConfig::new(8 * MIB));
        let volume = open(&host.kernel, Arc::new(FileDevice::new(world.open(disk, true))));
        let writers: Vec<_> = (0..16)
            .map(|writer: u64| {
                let volume = Arc::clone(&volume);
                spawn(&host.processors[writer as usize % 2], async move |cpu| {
                    for round in 0..10 {
                        let at = (writer * 10 + round) * 4096;
                        write(&cpu, &volume, ByteRange::new(at, 4096), 1).await.expect("cached");
                        volume.flush(&cpu, context()).await.expect("flushed");
                    }
                })
            })
            .collect();
        host.processors.iter().for_each(|cpu| world.kick(host.id, cpu.id()));
        assert!(drive(&world, &[&host], || writers.iter().all(|writer| writer.borrow().is_some())));
        world.disk_counters(disk).flushes
    };
    let (shared, alone) = (flushes(true), flushes(false));
    assert!(shared * 4 <= alone, "{shared} flushes with gathering, {alone} without");
}

#[test]
fn flushing_one_volume_writes_nothing_of_another() {
    let world = World::new(4);
    let host = host(&world, 16 * MIB, Switches::default());
    let (one, other) =
        (world.add_disk(host.id, DiskConfig::new(8 * MIB)), world.add_disk(host.id, DiskConfig::new(8 * MIB)));
    let open = |disk| open(&host.kernel, Arc::new(FileDevice::new(world.open(disk, true))));
    let (a, b) = (open(one), open(other));
    run(&world, &host, async move |cpu| {
        for at in 0..64 {
            write(&cpu, &b, ByteRange::new(at * 65536, 4096), 2).await.expect("cached");
        }
        write(&cpu, &a, ByteRange::new(0, 4096), 1).await.expect("cached");
        a.flush(&cpu, context()).await.expect("flushed");
        assert_eq!(b.dirty_blocks(), 64);
    });
    assert_eq!(world.disk_counters(other).writes, 0);
}

#[test]
fn sequential_small_writes_reach_the_disk_merged_up_to_the_bound() {
    let writes = |merge| {
        let world = World::new(5);
        let host = host(&world, 16 * MIB, Switches { block_merge: merge, ..Switches::default() });
        let disk = world.add_disk(host.id, DiskConfig { transfer_bytes_max: 128 << 10, ..DiskConfig::new(8 * MIB) });
        let queue = Arc::new(DiskQueue::new(policy::queue::Config {
            merge,
            transfer_bytes_max: 128 << 10,
            depth: 1,
            ..Default::default()
        }));
        let file = Arc::new(FileDevice::new(world.open(disk, true)));
        let device = Arc::new(Queued::new(queue, file));
        run(&world, &host, async move |cpu| {
            let requests = (0..64).map(|at: u64| {
                let (device, cpu) = (Arc::clone(&device), cpu.clone());
                async move {
                    let range = ByteRange::new(at * 8192, 8192);
                    let frames = cpu.kernel().allocate(&cpu, 2).await;
                    let action = kernel::request::Action::Write(range, frames);
                    device.perform(&cpu, kernel::request::Request { action, context: context() }).await
                }
            });
            for result in futures_util::future::join_all(requests).await {
                assert_eq!(result, Ok(kernel::request::Outcome::Done));
            }
        });
        world.disk_counters(disk).writes
    };
    assert_eq!(writes(false), 64);
    // The first goes alone, at once; the others queue behind it and go 128 KiB at a time.
    assert_eq!(writes(true), 1 + 63_u64.div_ceil(16));
}

#[test]
fn partial_writes_keep_the_rest_of_the_block() {
    let world = World::new(6);
    let host = host(&world, 4 * MIB, Switches::default());
    let volume = open(&host.kernel, Arc::new(RamDisk::new(MIB + 1536, DiskNo(0))));
    run(&world, &host, async move |cpu| {
        let mut random = Random(6);
        let size = volume.size();
        let mut model = vec![0u8; size as usize];
        for step in 1..400u64 {
            let at = random.below(size);
            let len = 1 + random.below((size - at).min(20_000));
            let range = ByteRange::new(at, len);
            let end = (at + len) as usize;
            if step.is_multiple_of(7) {
                volume.zero(&cpu, range, true, false, context()).await.expect("zeroed");
                model[at as usize..end].fill(0);
            } else {
                let blocks = range.blocks();
                let mut frames = cpu.kernel().allocate(&cpu, (blocks.end - blocks.start) as usize).await;
                frames.iter_mut().for_each(|frame| frame.bytes_mut().expect("unshared").fill(step as u8));
                let stability = if step.is_multiple_of(5) { Stability::Stable } else { Stability::Unstable };
                volume.write(&cpu, range, frames, context().with_stability(stability)).await.expect("written");
                model[at as usize..end].fill(step as u8);
            }
            let from = random.below(size - 1);
            let probe = ByteRange::new(from, (size - from).min(9000));
            let frames = volume.read(&cpu, probe, context()).await.expect("read");
            let bytes: Vec<u8> = frames.iter().flat_map(|frame| frame.bytes().iter().copied()).collect();
            let skip = (from % FRAME_BYTES as u64) as usize;
            assert_eq!(bytes[skip..skip + probe.len as usize], model[from as usize..][..probe.len as usize]);
        }
    });
}

#[test]
fn a_read_beside_a_write_sees_the_old_block_or_the_new_one() {
    let world = World::new(7);
    let host = host(&world, 4 * MIB, Switches::default());
    let volume = open(&host.kernel, Arc::new(RamDisk::new(MIB, DiskNo(0))));
    run(&world, &host, async move |cpu| {
        write(&cpu, &volume, ByteRange::new(0, 4096), 1).await.expect("written");
        let before = volume.try_read(&cpu, ByteRange::new(0, 4096)).expect("cached");
        write(&cpu, &volume, ByteRange::new(0, 4096), 2).await.expect("written");
        let mut frames = cpu.kernel().allocate(&cpu, 1).await;
        frames[0].bytes_mut().expect("unshared").fill(3);
        volume.write(&cpu, ByteRange::new(100, 50), frames, context()).await.expect("written");
        assert!(before[0].bytes().iter().all(|&byte| byte == 1), "a share is what it was");
        let after = volume.try_read(&cpu, ByteRange::new(0, 4096)).expect("cached");
        assert_eq!((after[0].bytes()[99], after[0].bytes()[100], after[0].bytes()[150]), (2, 3, 2));
    });
}

#[test]
fn a_cache_full_of_dirty_blocks_takes_more_as_they_are_written() {
    let world = World::new(8);
    let host = host(&world, 2 * MIB, Switches::default());
    let disk = world.add_disk(host.id, DiskConfig::new(32 * MIB));
    let volume = open(&host.kernel, Arc::new(FileDevice::new(world.open(disk, true))));
    run(&world, &host, async move |cpu| {
        for at in 0..(24 * MIB / 65536) {
            write(&cpu, &volume, ByteRange::new(at * 65536, 65536), at as u8).await.expect("taken");
        }
        for at in 0..(24 * MIB / 65536) {
            assert_eq!(first_byte(&cpu, &volume, at * 16).await, Ok(at as u8));
        }
    });
}

#[test]
fn a_device_that_goes_on_failing_refuses_writes_and_leaves_the_cache_to_others() {
    let world = World::new(9);
    let host = host(&world, 4 * MIB, Switches::default());
    let disks = [world.add_disk(host.id, DiskConfig::new(8 * MIB)), world.add_disk(host.id, DiskConfig::new(8 * MIB))];
    let broken = Faults { write_permille: 1000, ..Faults::default() };
    let file = |disk| Arc::new(FileDevice::new(world.open(disk, true)));
    let bad = open(&host.kernel, Arc::new(Fault::new(file(disks[0]), broken)));
    let good = open(&host.kernel, file(disks[1]));
    run(&world, &host, async move |cpu| {
        let mut refused = None;
        for at in 0..1024 {
            if let Err(error) = write(&cpu, &bad, ByteRange::new(at * 4096, 4096), 1).await {
                refused = Some(error);
                break;
            }
            cpu.sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(refused, Some(Errno::IO));
        for at in 0..1500 {
            write(&cpu, &good, ByteRange::new(at * 4096, 4096), 2).await.expect("the good disk works");
        }
        good.flush(&cpu, context()).await.expect("flushed");
    });
}

#[test]
fn what_is_dirty_is_written_and_flushed_without_being_asked() {
    let world = World::new(10);
    let host = host(&world, 8 * MIB, Switches::default());
    let disk = world.add_disk(host.id, DiskConfig::new(8 * MIB));
    let volume = open(&host.kernel, Arc::new(FileDevice::new(world.open(disk, true))));
    run(&world, &host, async move |cpu| {
        write(&cpu, &volume, ByteRange::new(0, 256 << 10), 5).await.expect("cached");
        cpu.sleep(Duration::from_secs(90)).await;
        assert_eq!(volume.dirty_blocks(), 0);
    });
    assert!(world.read_durable(disk, ByteRange::new(0, 256 << 10)) == [5; 256 << 10], "it is on the medium");
}

#[test]
fn read_ahead_hides_the_latency_of_a_sequential_reader() {
    let elapsed = |mode| {
        let world = World::new(11);
        let host = host(&world, 16 * MIB, Switches { read_ahead: mode, ..Switches::default() });
        let device = Arc::new(Delay::new(Arc::new(RamDisk::new(8 * MIB, DiskNo(0))), Duration::from_millis(1)));
        let volume = open(&host.kernel, device);
        run(&world, &host, async move |cpu| {
            let start = cpu.now();
            for at in 0..512 {
                volume.read(&cpu, ByteRange::new(at * 16384, 16384), context()).await.expect("read");
            }
            cpu.now() - start
        })
    };
    let off = elapsed(policy::readahead::Mode::Off);
    let adaptive = elapsed(policy::readahead::Config::default().mode);
    assert!(adaptive * 8 < off, "{adaptive:?} with read-ahead, {off:?} without");
}
