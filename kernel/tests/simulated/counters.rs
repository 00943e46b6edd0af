//! The counters after a load that is known to the last block.

use kernel::counters::{Activity, Count, Group, Reading, RequestType, Service};
use kernel::device::{Checked, Device, FileDevice, FixedLatency, RamDisk};
use kernel::processor::Together;
use kernel::queue::{DiskQueue, Queued};
use kernel::request::JobId;
use kernel::trace::Event;
use kernel::{ForcedUnitAccess, Kernel, Processor, Switches, Volume};
use policy::readahead;
use policy::unit::{ByteRange, DiskNo};
use sim::{DiskConfig, World};
use std::sync::Arc;
use std::time::Duration;
use testkit::scene::disk::{fill, volume};
use testkit::scene::{Host, boot, context, run, small_kernel};

const MIB: u64 = 1 << 20;

const DISK: DiskNo = DiskNo(7);

fn server(seed: u64, memory: u64) -> (World, Host) {
    let switches = Switches { read_ahead: readahead::Mode::Off, ..Switches::default() };
    boot(seed, small_kernel(2, memory, switches))
}

/// A volume behind the queue of a disk of its own.
fn open(kernel: &Arc<Kernel>, device: Arc<dyn Device>) -> Arc<Volume> {
    let queue = kernel.queue_of_disk(DISK, || DiskQueue::new(policy::queue::Config::default()));
    let device = Arc::new(Queued::new(queue, Arc::new(Checked::new(device))));
    volume(kernel, device, ForcedUnitAccess::Never)
}

async fn write(cpu: &Processor, volume: &Volume, range: ByteRange) {
    fill(cpu, volume, range, 1, context()).await.expect("written");
}

async fn read(cpu: &Processor, volume: &Volume, range: ByteRange) {
    if volume.try_read(cpu, range).is_none() {
        volume.read(cpu, range, context()).await.expect("read");
    }
}

fn sum(kernel: &Kernel) -> Reading {
    Reading::sum(&kernel.counters().read())
}

#[test]
fn what_was_read_written_and_flushed_is_counted_to_the_last_block() {
    let (world, host) = server(3, 8 * MIB);
    let disk = world.add_disk(host.id, DiskConfig::without_holes(8 * MIB));
    let volume = open(&host.kernel, Arc::new(FileDevice::new(world.open(disk, true))));
    run(&world, &host, async move |cpu| {
        for block in [10, 200, 300, 10, 300] {
            read(&cpu, &volume, ByteRange::new(block * 4096, 2 * 4096)).await;
        }
        // One of its two blocks is cached.
        read(&cpu, &volume, ByteRange::new(11 * 4096, 2 * 4096)).await;
        write(&cpu, &volume, ByteRange::new(MIB, 64 << 10)).await;
        write(&cpu, &volume, ByteRange::new(4 * MIB, 4096)).await;
        volume.flush(&cpu, context()).await.expect("flushed");
    });
    let sum = sum(&host.kernel);
    assert_eq!(sum.count(Count::CacheReads), 6);
    assert_eq!((sum.count(Count::CacheHits), sum.count(Count::CacheMisses)), (5, 7));
    assert_eq!(sum.count(Count::CacheWrites), 2);
    assert_eq!((sum.count(Count::WriteOuts), sum.count(Count::WriteOutBlocks)), (2, 17));
    assert_eq!((sum.count(Count::Gathers), sum.count(Count::Flushes)), (1, 1));
    assert_eq!(sum.count(Count::ReadAheads), 0);
    let (number, queue) = host.kernel.disk_queues().pop().expect("the disk");
    let read = queue.reading();
    assert_eq!(number, DISK);
    assert_eq!((read.reads, read.bytes_read), (4, 7 * 4096));
    assert_eq!((read.writes, read.bytes_written), (2, 17 * 4096));
    assert_eq!((read.flushes, read.others, read.failed), (1, 0, 0));
    assert_eq!((read.requests, read.depth), (7, 0));
    // The disk itself has counted the same.
    let seen = world.disk_counters(disk);
    assert_eq!(seen.bytes_written, read.bytes_written);
    assert!(read.lock.taken >= 7 && host.kernel.cache().lock_use().taken >= 12);
    assert_eq!(host.kernel.cache().lock_use().contended, 0, "one thread runs both processors");
}

#[test]
fn blocks_that_left_for_others_are_counted() {
    let (world, host) = server(4, MIB);
    let volume = open(&host.kernel, Arc::new(RamDisk::new(8 * MIB, DISK)));
    run(&world, &host, async move |cpu| {
        for block in 0..2048 {
            read(&cpu, &volume, ByteRange::new(block * 4096, 4096)).await;
        }
        // While the volume is open: its blocks leave with it.
        let cache = cpu.kernel().cache();
        let cached = cache.len() as u64;
        assert_eq!(cache.evictions(), 2048 - cached);
        assert!(cached <= 256);
    });
}

#[test]
fn time_is_charged_to_what_was_done_and_none_is_lost() {
    let (world, host) = server(5, 8 * MIB);
    let latency = Duration::from_millis(10);
    let device = FixedLatency::new(Arc::new(RamDisk::new(8 * MIB, DISK)), latency);
    let volume = open(&host.kernel, Arc::new(device));
    let before = host.processors[0].now();
    let elapsed = run(&world, &host, async move |cpu| {
        for block in 0..20 {
            read(&cpu, &volume, ByteRange::new(block * MIB / 4, 4096)).await;
        }
        cpu.now().since(before)
    });
    host.processors[0].turn();
    assert!(elapsed >= 20 * latency, "{elapsed:?}");
    let first = &host.kernel.counters().read()[0];
    let total: u64 = Activity::ALL.iter().map(|activity| first.time(*activity)).sum();
    assert_eq!(total, host.processors[0].now().since(before).as_nanos() as u64);
    assert!(first.time(Activity::Idle) >= 20 * latency.as_nanos() as u64, "nothing is done while the device works");
    assert!(first.count(Count::Dispatches) >= 20 && first.count(Count::Parks) >= 20);
    let disk = host.kernel.disk_queues().pop().expect("the disk").1.reading();
    assert_eq!((disk.reads, disk.ticks), (20, 20 * latency.as_nanos() as u64));
}

#[test]
fn a_volume_that_is_closed_wakes_the_write_back_of_no_other() {
    let (world, host) = server(6, 8 * MIB);
    let device = Arc::new(RamDisk::new(8 * MIB, DISK));
    let volumes: Vec<_> = (0..32).map(|_| open(&host.kernel, Arc::clone(&device) as Arc<dyn Device>)).collect();
    run(&world, &host, async move |cpu| {
        for volume in &volumes {
            write(&cpu, volume, ByteRange::new(0, 4096)).await;
        }
        cpu.sleep(Duration::from_millis(5)).await;
        let before = sum(cpu.kernel()).count(Count::Dispatches);
        volumes[0].stop();
        cpu.sleep(Duration::from_millis(1)).await;
        let woken = sum(cpu.kernel()).count(Count::Dispatches) - before;
        assert_eq!(woken, 2, "its own, and this task");
    });
}

#[test]
fn requests_are_counted_by_type_with_their_latency_on_each_processor() {
    let (world, host) = server(6, 8 * MIB);
    for (cpu, milliseconds) in host.processors.iter().zip([1, 4]) {
        for event in [Event::NbdRead, Event::NbdRead, Event::NfsCommit] {
            let here = cpu.clone();
            cpu.spawn(async move {
                let timed = here.begin_timed(event, JobId(1));
                here.sleep(Duration::from_millis(milliseconds)).await;
                here.end_request(timed, event, JobId(1), 0, 0);
            });
            world.kick(host.id, cpu.id());
        }
    }
    run(&world, &host, async |cpu| cpu.sleep(Duration::from_millis(10)).await);
    let reading = host.kernel.counters().read();
    let read = RequestType::of(Event::NbdRead).expect("a type");
    assert_eq!(reading[0].requests(read), (2, 2_000_000));
    assert_eq!(reading[1].requests(read), (2, 8_000_000));
    let sum = sum(&host.kernel);
    assert_eq!(sum.requests(read), (4, 10_000_000));
    let latency = sum.latency(Service::Nbd, Group::Read);
    assert_eq!((latency.total(), latency.below(2e6), latency.below(3.9e6)), (4, 2, 2));
    assert_eq!(sum.latency(Service::Nfs, Group::Sync).total(), 2);
    assert_eq!(sum.latency(Service::Nfs, Group::Read).total(), 0);
}

#[test]
fn what_is_cached_is_not_read_ahead_again() {
    let (world, host) = boot(4, small_kernel(1, 16 * MIB, Switches::default()));
    let disk = world.add_disk(host.id, DiskConfig::without_holes(8 * MIB));
    let volume = open(&host.kernel, Arc::new(FileDevice::new(world.open(disk, true))));
    let pass = || {
        let volume = Arc::clone(&volume);
        run(&world, &host, async move |cpu| {
            for at in (0..4 * MIB).step_by(16 << 10) {
                read(&cpu, &volume, ByteRange::new(at, 16 << 10)).await;
            }
        });
        sum(&host.kernel).count(Count::ReadAheadBlocks)
    };
    let first = pass();
    // What is ahead of the last read is not fetched yet.
    assert!(first > 0 && pass() - first <= 512, "{first} blocks at the first time");
    let before = sum(&host.kernel).count(Count::ReadAheadBlocks);
    assert_eq!(pass(), before);
}

#[test]
fn requests_that_are_answered_together_are_counted_each_with_the_latency_of_all() {
    let (world, host) = server(7, 8 * MIB);
    run(&world, &host, async |cpu| {
        let together = Together::default();
        let began = cpu.begin_timed(Event::NbdRead, JobId(1));
        cpu.end_with(&together, began, Event::NbdRead, JobId(1), 0, 0);
        for event in [Event::NfsGetattr, Event::NbdRead] {
            cpu.end_with(&together, cpu.begin_next(event, JobId(1)), event, JobId(1), 0, 0);
        }
        assert_eq!(sum(cpu.kernel()).latency(Service::Nbd, Group::Read).total(), 0, "they have not left");
        cpu.sleep(Duration::from_millis(3)).await;
        cpu.end_together(&together);
        cpu.sleep(Duration::from_millis(1)).await;
        cpu.end_together(&together);
    });
    let sum = sum(&host.kernel);
    for (event, count) in [(Event::NbdRead, 2), (Event::NfsGetattr, 1)] {
        let kind = RequestType::of(event).expect("a type");
        assert_eq!(sum.requests(kind), (count, count * 3_000_000), "{event:?}");
    }
    assert_eq!(sum.latency(Service::Nbd, Group::Read).total(), 2);
}

#[test]
fn what_a_memory_disk_does_at_once_is_counted_as_that_of_other_disks() {
    let (world, host) = server(8, 8 * MIB);
    let volume = open(&host.kernel, Arc::new(RamDisk::new(8 * MIB, DISK)));
    run(&world, &host, async move |cpu| {
        read(&cpu, &volume, ByteRange::new(0, 8192)).await;
        write(&cpu, &volume, ByteRange::new(MIB, 64 << 10)).await;
        volume.flush(&cpu, context()).await.expect("flushed");
    });
    let queue = host.kernel.disk_queues().pop().expect("the disk").1;
    let read = queue.reading();
    assert_eq!((read.requests, read.depth, read.failed), (3, 0, 0));
    assert_eq!((read.reads, read.bytes_read, read.writes, read.bytes_written), (1, 8192, 1, 64 << 10));
    assert_eq!((read.flushes, queue.counters().requests, queue.counters().batches), (1, 3, 3));
    assert_eq!(read.lock.taken, 0, "nobody waits for others there");
}
