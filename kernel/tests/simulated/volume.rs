//! A volume's guarantees to the services above it, in the simulated machine.

use std::sync::Arc;
use std::time::Duration;

use kernel::device::{Checked, Delay, Device, DeviceRef, Fault, Faults, FileDevice, Operation, RamDisk};
use kernel::queue::{DiskQueue, Queued};
use kernel::{FRAME_BYTES, ForcedUnitAccess, Kernel, Processor, Switches, Volume};
use machine::Errno;
use policy::unit::{ByteRange, DiskNo, Stability};
use sim::DiskConfig;
use testkit::random::Random;
use testkit::scene::disk::{Server, block, fill, first_byte, volume};
use testkit::scene::{Host, boot, context, count_turns, drive, run, small_kernel, spawn, stable};

const MIB: u64 = 1 << 20;

fn server(seed: u64, memory: u64, switches: Switches) -> Server {
    Server::of(seed, small_kernel(2, memory, switches), DiskConfig::without_holes(8 * MIB))
}

fn open(kernel: &Arc<Kernel>, device: DeviceRef) -> Arc<Volume> {
    volume(kernel, Arc::new(Checked::new(device)), ForcedUnitAccess::Never)
}

/// A server of a disk that can be made to fail, and a volume on it.
fn failing(seed: u64, switches: Switches) -> (Server, Arc<Fault>, Arc<Volume>) {
    let server = server(seed, 4 * MIB, switches);
    let fault = Arc::new(Fault::new(server.file(), Faults::default()));
    let volume = open(&server.host.kernel, fault.clone());
    (server, fault, volume)
}

/// Fills `range`, a multiple of blocks, with `byte`.
async fn write(cpu: &Processor, volume: &Volume, range: ByteRange, byte: u8) -> Result<(), Errno> {
    fill(cpu, volume, range, byte, context()).await
}

#[test]
fn a_failing_flush_is_an_error_and_the_next_one_writes_again() {
    let (server, fault, volume) = failing(1, Switches::default());
    server.run(async move |cpu, world, disk| {
        let range = ByteRange::new(0, 64 << 10);
        write(&cpu, &volume, range, 7).await.expect("cached");
        fault.fail_next(Operation::Flush, 1, Errno::IO);
        assert_eq!(volume.flush(&cpu, context()).await, Err(Errno::IO));
        assert_eq!(volume.flush(&cpu, context()).await, Ok(()));
        let written = world.disk_counters(disk).bytes_written;
        assert_eq!(written, 2 * (64 << 10), "what the failed flush covered is written again");
        assert_eq!(world.read_durable(disk, range), vec![7; 64 << 10]);
    });
}

#[test]
fn a_forced_write_whose_content_an_unforced_one_took_along_is_durable() {
    for seed in 0..40 {
        let mut server = Server::with_disk(seed, DiskConfig::drawn(8 * MIB, seed));
        let volume = server.volume_on(server.file(), ForcedUnitAccess::Always);
        server.run(async move |cpu, _, _| {
            write(&cpu, &volume, block(0), 1).await.expect("cached");
            volume.flush(&cpu, context()).await.expect("flushed");
            // A flush is expected: this early write is claimed at once, and begun after the tasks before it.
            write(&cpu, &volume, block(0), 2).await.expect("cached");
            cpu.yield_now().await;
            fill(&cpu, &volume, ByteRange::new(0, 512), 3, stable()).await.expect("durable");
        });
        let id = server.host.id;
        server.world.power_cut(id);
        server.host.die();
        server.host = Host::boot(&server.world, id, small_kernel(2, 4 * MIB, Switches::default()));
        let volume = server.volume(ForcedUnitAccess::Never);
        let found = server.run(async move |cpu, _, _| first_byte(&cpu, &volume, 0).await);
        assert_eq!(found, Ok(3), "seed {seed}");
    }
}

#[test]
fn a_write_whose_last_block_cannot_be_read_leaves_nothing_in_the_cache_that_never_goes() {
    let (server, fault, volume) =
        failing(9, Switches { read_ahead: policy::readahead::Mode::Off, ..Switches::default() });
    let kernel = Arc::clone(&server.host.kernel);
    server.run(async move |cpu, _, _| {
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
    let (server, fault, volume) = failing(2, Switches::default());
    server.run(async move |cpu, _, _| {
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
        let server = server(3, 4 * MIB, Switches { flush_gathering: gathering, ..Switches::default() });
        let volume = server.volume(ForcedUnitAccess::Never);
        let writers: Vec<_> = (0..16)
            .map(|writer: u64| {
                let volume = Arc::clone(&volume);
                spawn(&server.host.processors[writer as usize % 2], async move |cpu| {
                    for round in 0..10 {
                        let at = (writer * 10 + round) * 4096;
                        write(&cpu, &volume, ByteRange::new(at, 4096), 1).await.expect("cached");
                        volume.flush(&cpu, context()).await.expect("flushed");
                    }
                })
            })
            .collect();
        let Server { world, host, disk } = server;
        host.processors.iter().for_each(|cpu| world.kick(host.id, cpu.id()));
        assert!(drive(&world, &[&host], || writers.iter().all(|writer| writer.borrow().is_some())));
        world.disk_counters(disk).flushes
    };
    let (shared, alone) = (flushes(true), flushes(false));
    assert!(shared * 4 <= alone, "{shared} flushes with gathering, {alone} without");
}

#[test]
fn flushes_that_are_delayed_come_once_in_each_delay_while_data_keeps_coming_and_after_it() {
    const PART: u64 = 64 << 10;
    let flushes = |delay| {
        let server = server(5, 64 * MIB, Switches::default());
        let volume = server.volume(ForcedUnitAccess::Never);
        volume.delay_flushes(delay);
        server.run(async move |cpu, world, disk| {
            // The cache grows, so that what is not flushed is never much of it.
            write(&cpu, &volume, ByteRange::new(4 * MIB, 4 * MIB), 1).await.expect("cached");
            volume.flush(&cpu, context()).await.expect("flushed");
            let before = world.disk_counters(disk).flushes;
            for part in 0..64 {
                write(&cpu, &volume, ByteRange::new(part * PART, PART), 1).await.expect("cached");
                cpu.sleep(Duration::from_millis(300)).await;
            }
            let meanwhile = world.disk_counters(disk).flushes - before;
            cpu.sleep(Duration::from_secs(40)).await;
            assert_eq!(world.read_durable(disk, ByteRange::new(0, 8 * MIB)), vec![1; 8 << 20]);
            meanwhile
        })
    };
    // In 19 s.
    let (at_once, delayed) = (flushes(Duration::ZERO), flushes(Duration::from_secs(2)));
    assert!(at_once > 30 && (5..=10).contains(&delayed), "{at_once} and {delayed} flushes");
}

#[test]
fn flushing_one_volume_writes_nothing_of_another() {
    let (world, host) = boot(4, small_kernel(2, 16 * MIB, Switches::default()));
    let (one, other) = (
        world.add_disk(host.id, DiskConfig::without_holes(8 * MIB)),
        world.add_disk(host.id, DiskConfig::without_holes(8 * MIB)),
    );
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
        let (world, host) = boot(5, small_kernel(2, 16 * MIB, Switches { block_merge: merge, ..Switches::default() }));
        let disk =
            world.add_disk(host.id, DiskConfig { transfer_bytes_max: 128 << 10, ..DiskConfig::without_holes(8 * MIB) });
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
    let (world, host) = boot(6, small_kernel(2, 4 * MIB, Switches::default()));
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
    let (world, host) = boot(7, small_kernel(2, 4 * MIB, Switches::default()));
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
    let memory = small_kernel(2, 2 * MIB, Switches::default());
    let server = Server::of(8, memory, DiskConfig::without_holes(32 * MIB));
    let volume = server.volume(ForcedUnitAccess::Never);
    server.run(async move |cpu, _, _| {
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
    let (world, host) = boot(9, small_kernel(2, 4 * MIB, Switches::default()));
    let disks = [
        world.add_disk(host.id, DiskConfig::without_holes(8 * MIB)),
        world.add_disk(host.id, DiskConfig::without_holes(8 * MIB)),
    ];
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
    let server = server(10, 8 * MIB, Switches::default());
    let volume = server.volume(ForcedUnitAccess::Never);
    server.run(async move |cpu, world, disk| {
        write(&cpu, &volume, ByteRange::new(0, 256 << 10), 5).await.expect("cached");
        cpu.sleep(Duration::from_secs(90)).await;
        assert_eq!(volume.dirty_blocks(), 0);
        assert!(world.read_durable(disk, ByteRange::new(0, 256 << 10)) == [5; 256 << 10], "it is on the medium");
    });
}

#[test]
fn read_ahead_hides_the_latency_of_a_sequential_reader() {
    let elapsed = |mode| {
        let (world, host) = boot(11, small_kernel(2, 16 * MIB, Switches { read_ahead: mode, ..Switches::default() }));
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

#[test]
fn others_get_their_turns_while_a_large_hole_is_brought_into_the_cache() {
    let server = Server::of(12, small_kernel(1, 4 * MIB, Switches::default()), DiskConfig::new(64 * MIB));
    let volume = server.volume(ForcedUnitAccess::Never);
    server.run(async move |cpu, world, disk| {
        // Until its holes are known.
        cpu.sleep(Duration::from_millis(100)).await;
        let turns = count_turns(&cpu);
        volume.prefetch(&cpu, ByteRange::new(0, 64 * MIB), context()).await.expect("a disk that works");
        assert!(turns.get() >= 3, "only {}", turns.get());
        assert_eq!(world.disk_counters(disk).reads, 0, "it is a hole");
    });
}
