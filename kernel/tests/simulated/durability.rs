//! Volumes with failing flushes, and with odd or large disks, in the simulated machine.

use kernel::counters::{Count, Reading};
use kernel::device::{Checked, Device, DeviceFacts, FileDevice, Work};
use kernel::queue::{DiskQueue, Queued};
use kernel::request::{Action, Context, Outcome, Request};
use kernel::volume::VOLUME_BYTES_MAX;
use kernel::{ForcedUnitAccess, Processor, Switches, Volume};
use machine::Errno;
use policy::unit::{ByteRange, Stability};
use sim::{DiskConfig, DiskId, Latency, OpClass, World};
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;
use testkit::rounds::for_seeds;
use testkit::scene::{Host, context, run, small_kernel, spawn};

const MIB: u64 = 1 << 20;

fn host(world: &World) -> Host {
    Host::boot(world, world.add_host("server"), small_kernel(2, 4 * MIB, Switches::default()))
}

fn open(host: &Host, device: Arc<dyn Device>, forced_unit_access: ForcedUnitAccess) -> Arc<Volume> {
    testkit::scene::disk::volume(&host.kernel, device, forced_unit_access)
}

fn volume(world: &World, host: &Host, config: DiskConfig, forced: ForcedUnitAccess) -> (DiskId, Arc<Volume>) {
    let disk = world.add_disk(host.id, config);
    (disk, open(host, Arc::new(Checked::new(Arc::new(FileDevice::new(world.open(disk, true))))), forced))
}

async fn write(cpu: &Processor, volume: &Volume, range: ByteRange, byte: u8, context: Context) -> Result<(), Errno> {
    let blocks = range.blocks();
    let mut frames = cpu.kernel().allocate(cpu, (blocks.end - blocks.start) as usize).await;
    frames.iter_mut().for_each(|frame| frame.bytes_mut().expect("unshared").fill(byte));
    volume.write(cpu, range, frames, context).await
}

async fn first_byte(cpu: &Processor, volume: &Volume, block: u64) -> Result<u8, Errno> {
    let frames = volume.read(cpu, ByteRange::new(block * 4096, 4096), context()).await?;
    Ok(frames[0].bytes()[0])
}

#[test]
fn what_was_zeroed_before_a_flush_failed_reads_as_zeroes_and_is_zeroed_again_by_the_next() {
    for_seeds("what_was_zeroed_before_a_flush_failed_reads_as_zeroes_and_is_zeroed_again_by_the_next", 40, |seed| {
        let world = World::new(seed);
        let host = host(&world);
        let config = DiskConfig { zero_supported: seed % 4 != 0, ..DiskConfig::new(8 * MIB) };
        let (disk, volume) = volume(&world, &host, config, ForcedUnitAccess::Never);
        let (seen, range) = (world.clone(), ByteRange::new(0, MIB));
        run(&world, &host, async move |cpu| {
            write(&cpu, &volume, range, 7, context()).await.expect("cached");
            volume.flush(&cpu, context()).await.expect("flushed");
            volume.zero(&cpu, range, true, false, context()).await.expect("zeroed");
            // Newer than the zeroes: it must not be zeroed again.
            write(&cpu, &volume, ByteRange::new(8 * 4096, 4096), 9, context()).await.expect("cached");
            seen.fail_next(disk, OpClass::Flush, 1, Errno::IO);
            assert_eq!(volume.flush(&cpu, context()).await, Err(Errno::IO));
            for block in 0..256 {
                let expected = if block == 8 { 9 } else { 0 };
                assert_eq!(first_byte(&cpu, &volume, block).await, Ok(expected), "block {block}");
            }
            volume.flush(&cpu, context()).await.expect("nothing is lost");
            let durable = seen.read_durable(disk, range);
            let is_right = |(at, byte): (usize, &u8)| *byte == if at / 4096 == 8 { 9 } else { 0 };
            assert!(durable.iter().enumerate().all(is_right), "durable as it was told");
        });
    });
}

#[test]
fn what_a_failed_batch_of_forced_writes_took_with_it_is_written_again() {
    for_seeds("what_a_failed_batch_of_forced_writes_took_with_it_is_written_again", 40, |seed| {
        let world = World::new(seed);
        let host = host(&world);
        let disk = world.add_disk(host.id, DiskConfig::new(8 * MIB));
        let queue = Arc::new(DiskQueue::new(policy::queue::Config { depth: 1, ..Default::default() }));
        let queued = Queued::new(Arc::clone(&queue), Arc::new(FileDevice::new(world.open(disk, true))));
        let volume = open(&host, Arc::new(queued), ForcedUnitAccess::Always);
        let seen = world.clone();
        run(&world, &host, async move |cpu| {
            // Large writes are issued at once: the disk has this one, unflushed.
            let unflushed = ByteRange::new(MIB, MIB);
            write(&cpu, &volume, unflushed, 7, context()).await.expect("cached");
            cpu.sleep(Duration::from_secs(1)).await;
            assert!(seen.read_disk(disk, unflushed).iter().all(|byte| *byte == 7), "written out");
            let before = queue.counters();
            // The first occupies the disk meanwhile, so the next two are merged.
            let forced: Vec<_> = [100, 5, 6]
                .map(|block| {
                    let volume = Arc::clone(&volume);
                    let stable = context().with_stability(Stability::Stable);
                    spawn(&cpu, async move |cpu| {
                        write(&cpu, &volume, ByteRange::new(block * 4096, 4096), 8, stable).await
                    })
                })
                .into();
            while queue.counters().batches == before.batches {
                cpu.yield_now().await;
            }
            cpu.sleep(Duration::from_micros(1)).await;
            seen.fail_next(disk, OpClass::Write, 1, Errno::IO);
            while forced.iter().any(|end| end.borrow().is_none()) {
                cpu.sleep(Duration::from_micros(100)).await;
            }
            let failed = forced.iter().filter(|end| *end.borrow() == Some(Err(Errno::IO))).count();
            assert!(failed > 0, "nobody is told of the failure");
            volume.flush(&cpu, context()).await.expect("the disk works again");
            assert!(seen.read_durable(disk, unflushed).iter().all(|byte| *byte == 7), "seed {seed}");
        });
    });
}

/// A disk that holds back the completions of writes and zeroing at one place until released.
struct Late {
    below: Arc<dyn Device>,
    at: u64,
    holds: AtomicBool,
}

impl Device for Late {
    fn facts(&self) -> DeviceFacts {
        self.below.facts()
    }

    fn perform<'a>(&'a self, cpu: &'a Processor, request: Request) -> Work<'a, Outcome> {
        Box::pin(async move {
            let is_held = match &request.action {
                Action::Write(range, _) | Action::Zero { range, .. } => range.at.0 == self.at,
                _ => false,
            };
            let result = self.below.perform(cpu, request).await;
            while is_held && self.holds.load(Ordering::SeqCst) {
                cpu.sleep(Duration::from_micros(10)).await;
            }
            result
        })
    }
}

#[test]
fn a_write_whose_end_is_seen_after_a_flush_failed_is_written_again_before_the_next_one_counts() {
    for_seeds("a_write_whose_end_is_seen_after_a_flush_failed_is_written_again", 60, |seed| {
        let world = World::new(seed);
        let host = host(&world);
        let disk = world.add_disk(host.id, DiskConfig::new(8 * MIB));
        let below = Arc::new(FileDevice::new(world.open(disk, true)));
        let (early, late) = (ByteRange::new(9 * 4096, 4096), ByteRange::new(5 * 4096, 4096));
        let device = Arc::new(Late { below, at: late.at.0, holds: AtomicBool::new(true) });
        let volume = open(&host, device.clone(), ForcedUnitAccess::Never);
        let seen = world.clone();
        run(&world, &host, async move |cpu| {
            let flush = |volume: &Arc<Volume>| {
                let volume = Arc::clone(volume);
                spawn(&cpu, async move |cpu| volume.flush(&cpu, context()).await)
            };
            write(&cpu, &volume, late, 7, context()).await.expect("cached");
            let first = flush(&volume);
            cpu.sleep(Duration::from_millis(1)).await;
            // It is complete, but its completion not seen, when the flush of another write fails.
            seen.fail_next(disk, OpClass::Flush, 1, Errno::IO);
            let stable = context().with_stability(Stability::Stable);
            assert_eq!(write(&cpu, &volume, early, 8, stable).await, Err(Errno::IO));
            let second = flush(&volume);
            cpu.sleep(Duration::from_millis(1)).await;
            device.holds.store(false, Ordering::SeqCst);
            while first.borrow().is_none() || second.borrow().is_none() {
                cpu.sleep(Duration::from_micros(100)).await;
            }
            assert_eq!(*second.borrow(), Some(Ok(())));
            assert!(seen.read_durable(disk, late) == [7; 4096], "seed {seed}");
            assert!(seen.read_durable(disk, early) == [8; 4096], "seed {seed}");
        });
    });
}

#[test]
fn the_end_of_a_disk_that_is_no_whole_number_of_its_blocks_is_written_and_flushed() {
    for forced in [ForcedUnitAccess::Never, ForcedUnitAccess::Always] {
        let world = World::new(1);
        let host = host(&world);
        let config = DiskConfig { align: 4096, ..DiskConfig::new(MIB + 512) };
        let (disk, volume) = volume(&world, &host, config, forced);
        let seen = world.clone();
        run(&world, &host, async move |cpu| {
            let tail = ByteRange::new(MIB, 512);
            write(&cpu, &volume, tail, 7, context()).await.expect("cached");
            volume.flush(&cpu, context()).await.expect("flushed");
            assert!(seen.read_durable(disk, tail) == [7; 512]);
            let both = ByteRange::new(MIB - 8192, 8192 + 512);
            write(&cpu, &volume, both, 8, context().with_stability(Stability::Stable)).await.expect("durable");
            assert!(seen.read_durable(disk, both) == [8; 8192 + 512]);
            volume.zero(&cpu, ByteRange::new(0, MIB + 512), true, false, context()).await.expect("zeroed");
            let frames = volume.read(&cpu, tail, context()).await.expect("read");
            assert!(frames[0].bytes()[..512] == [0; 512]);
            volume.flush(&cpu, context()).await.expect("flushed");
            assert!(seen.read_durable(disk, both) == [0; 8192 + 512]);
        });
    }
}

#[test]
fn zeroes_whose_end_is_seen_after_a_flush_failed_are_written_again_before_the_next_one_counts() {
    for_seeds("zeroes_whose_end_is_seen_after_a_flush_failed_are_written_again", 40, |seed| {
        let world = World::new(seed);
        let host = host(&world);
        let disk = world.add_disk(host.id, DiskConfig::new(8 * MIB));
        let below = Arc::new(FileDevice::new(world.open(disk, true)));
        let (early, late) = (ByteRange::new(MIB, 4096), ByteRange::new(2 * MIB, 64 << 10));
        let device = Arc::new(Late { below, at: late.at.0, holds: AtomicBool::new(false) });
        let volume = open(&host, device.clone(), ForcedUnitAccess::Never);
        let seen = world.clone();
        run(&world, &host, async move |cpu| {
            write(&cpu, &volume, late, 7, context()).await.expect("cached");
            volume.flush(&cpu, context()).await.expect("flushed");
            device.holds.store(true, Ordering::SeqCst);
            let zeroed = {
                let volume = Arc::clone(&volume);
                spawn(&cpu, async move |cpu| volume.zero(&cpu, late, true, false, context()).await)
            };
            cpu.sleep(Duration::from_millis(1)).await;
            seen.fail_next(disk, OpClass::Flush, 1, Errno::IO);
            let stable = context().with_stability(Stability::Stable);
            assert_eq!(write(&cpu, &volume, early, 8, stable).await, Err(Errno::IO));
            device.holds.store(false, Ordering::SeqCst);
            while zeroed.borrow().is_none() {
                cpu.sleep(Duration::from_micros(100)).await;
            }
            assert_eq!(*zeroed.borrow(), Some(Ok(())));
            volume.flush(&cpu, context()).await.expect("nothing is lost");
            assert!(seen.read_durable(disk, late).iter().all(|byte| *byte == 0), "zeroes are lost");
        });
    });
}

/// A disk that holds back the start of flushes, and the completion of forced writes, which then fail.
struct Refusing {
    below: Arc<dyn Device>,
    holds_flushes: AtomicBool,
    holds_forced: AtomicBool,
}

impl Refusing {
    fn new(below: Arc<dyn Device>) -> Arc<Self> {
        Arc::new(Refusing { below, holds_flushes: AtomicBool::new(true), holds_forced: AtomicBool::new(true) })
    }
}

async fn while_held(cpu: &Processor, holds: &AtomicBool) {
    while holds.load(Ordering::SeqCst) {
        cpu.sleep(Duration::from_micros(10)).await;
    }
}

impl Device for Refusing {
    fn facts(&self) -> DeviceFacts {
        self.below.facts()
    }

    fn perform<'a>(&'a self, cpu: &'a Processor, request: Request) -> Work<'a, Outcome> {
        Box::pin(async move {
            if matches!(request.action, Action::Flush) {
                while_held(cpu, &self.holds_flushes).await;
                return self.below.perform(cpu, request).await;
            }
            let is_forced = request.context.stability == Stability::Stable;
            let result = self.below.perform(cpu, request).await;
            if !is_forced {
                return result;
            }
            while_held(cpu, &self.holds_forced).await;
            Err(Errno::IO)
        })
    }
}

#[test]
fn a_flush_beside_a_forced_write_counts_when_that_has_ended_and_fails_with_it() {
    let world = World::new(1);
    let host = host(&world);
    let disk = world.add_disk(host.id, DiskConfig::new(8 * MIB));
    let device = Refusing::new(Arc::new(FileDevice::new(world.open(disk, true))));
    let volume = open(&host, device.clone(), ForcedUnitAccess::Always);
    let seen = world.clone();
    run(&world, &host, async move |cpu| {
        let (covered, forced) = (ByteRange::new(9 * 4096, 4096), ByteRange::new(5 * 4096, 4096));
        write(&cpu, &volume, covered, 7, context()).await.expect("cached");
        let flushed = {
            let volume = Arc::clone(&volume);
            spawn(&cpu, async move |cpu| volume.flush(&cpu, context()).await)
        };
        cpu.sleep(Duration::from_millis(1)).await;
        let written = {
            let volume = Arc::clone(&volume);
            let stable = context().with_stability(Stability::Stable);
            spawn(&cpu, async move |cpu| write(&cpu, &volume, forced, 8, stable).await)
        };
        cpu.sleep(Duration::from_millis(1)).await;
        device.holds_flushes.store(false, Ordering::SeqCst);
        cpu.sleep(Duration::from_millis(1)).await;
        // The host may have reported the loss of the other write to the forced write.
        assert!(flushed.borrow().is_none(), "the flush counts before the forced write has ended");
        device.holds_forced.store(false, Ordering::SeqCst);
        while flushed.borrow().is_none() || written.borrow().is_none() {
            cpu.sleep(Duration::from_micros(100)).await;
        }
        assert_eq!((*flushed.borrow(), *written.borrow()), (Some(Err(Errno::IO)), Some(Err(Errno::IO))));
        let before = seen.disk_counters(disk).bytes_written;
        volume.flush(&cpu, context()).await.expect("nothing is lost");
        assert_eq!(seen.disk_counters(disk).bytes_written - before, 2 * 4096, "both are written again");
        assert!(seen.read_durable(disk, covered) == [7; 4096] && seen.read_durable(disk, forced) == [8; 4096]);
    });
}

#[test]
fn what_was_zeroed_or_written_while_a_failing_flush_was_under_way_is_done_again_before_the_next_one_counts() {
    for_seeds("what_was_zeroed_or_written_while_a_failing_flush_was_under_way_is_done_again", 40, |seed| {
        let world = World::new(seed);
        let host = host(&world);
        let disk = world.add_disk(host.id, DiskConfig::new(8 * MIB));
        let device = Refusing::new(Arc::new(FileDevice::new(world.open(disk, true))));
        let volume = open(&host, device.clone(), ForcedUnitAccess::Never);
        let seen = world.clone();
        run(&world, &host, async move |cpu| {
            let (zeroed, written) = (ByteRange::new(0, 64 << 10), ByteRange::new(MIB, 4096));
            device.holds_flushes.store(false, Ordering::SeqCst);
            write(&cpu, &volume, zeroed, 7, context()).await.expect("cached");
            volume.flush(&cpu, context()).await.expect("flushed");
            device.holds_flushes.store(true, Ordering::SeqCst);
            write(&cpu, &volume, ByteRange::new(2 * MIB, 4096), 6, context()).await.expect("cached");
            let flush = {
                let volume = Arc::clone(&volume);
                spawn(&cpu, async move |cpu| volume.flush(&cpu, context()).await)
            };
            cpu.sleep(Duration::from_millis(1)).await;
            // The flush has begun; when it fails, the disk loses what it has.
            volume.zero(&cpu, zeroed, true, false, context()).await.expect("zeroed");
            let stable = {
                let (volume, context) = (Arc::clone(&volume), context().with_stability(Stability::Stable));
                spawn(&cpu, async move |cpu| write(&cpu, &volume, written, 8, context).await)
            };
            cpu.sleep(Duration::from_millis(1)).await;
            seen.fail_next(disk, OpClass::Flush, 1, Errno::IO);
            device.holds_flushes.store(false, Ordering::SeqCst);
            while flush.borrow().is_none() || stable.borrow().is_none() {
                cpu.sleep(Duration::from_micros(100)).await;
            }
            assert_eq!(*flush.borrow(), Some(Err(Errno::IO)));
            assert_eq!(*stable.borrow(), Some(Err(Errno::IO)));
            volume.flush(&cpu, context()).await.expect("nothing is lost");
            assert!(seen.read_durable(disk, zeroed).iter().all(|byte| *byte == 0), "zeroes are lost");
            assert!(seen.read_durable(disk, written) == [8; 4096], "a write is lost");
        });
    });
}

#[test]
fn a_flush_counts_when_the_syncs_beside_it_have_ended_and_fails_with_them() {
    let world = World::new(1);
    let host = host(&world);
    let (disk, volume) = volume(&world, &host, DiskConfig::new(8 * MIB), ForcedUnitAccess::Never);
    let seen = world.clone();
    run(&world, &host, async move |cpu| {
        let range = ByteRange::new(0, 4096);
        write(&cpu, &volume, range, 7, context()).await.expect("cached");
        let sync = volume.begin_foreign_flush();
        let flushed = {
            let volume = Arc::clone(&volume);
            spawn(&cpu, async move |cpu| volume.flush(&cpu, context()).await)
        };
        cpu.sleep(Duration::from_secs(1)).await;
        assert!(flushed.borrow().is_none(), "the flush counts before the sync has ended");
        sync.failed(Errno::IO);
        while flushed.borrow().is_none() {
            cpu.sleep(Duration::from_micros(100)).await;
        }
        assert_eq!(*flushed.borrow(), Some(Err(Errno::IO)));
        let before = seen.disk_counters(disk).bytes_written;
        volume.flush(&cpu, context()).await.expect("nothing is lost");
        assert_eq!(seen.disk_counters(disk).bytes_written - before, 4096, "written again");
    });
}

/// A disk of the largest size, that completes everything at once and stores nothing.
struct Endless;

impl Device for Endless {
    fn facts(&self) -> DeviceFacts {
        DeviceFacts {
            size: VOLUME_BYTES_MAX,
            writable: true,
            rotational: false,
            transfer_bytes_max: 1 << 20,
            fast_zero: true,
            disk: policy::unit::DiskNo(7),
        }
    }

    fn perform<'a>(&'a self, _cpu: &'a Processor, request: Request) -> Work<'a, Outcome> {
        Box::pin(async move {
            match request.action {
                Action::Read(..) => Err(Errno::IO),
                _ => Ok(Outcome::Done),
            }
        })
    }
}

#[test]
fn zeroing_and_looking_at_a_huge_disk_cost_what_is_cached_and_not_what_is_addressed() {
    let world = World::new(1);
    let host = host(&world);
    let volume = open(&host, Arc::new(Endless), ForcedUnitAccess::Never);
    run(&world, &host, async move |cpu| {
        for at in [0, 1 << 40, VOLUME_BYTES_MAX - 4096] {
            write(&cpu, &volume, ByteRange::new(at, 4096), 7, context()).await.expect("cached");
        }
        let all = ByteRange::new(0, VOLUME_BYTES_MAX);
        volume.zero(&cpu, ByteRange::new(1, VOLUME_BYTES_MAX - 1), true, false, context()).await.expect("zeroed");
        assert_eq!(first_byte(&cpu, &volume, 0).await, Ok(7), "the byte before it");
        assert_eq!(first_byte(&cpu, &volume, (1 << 40) / 4096).await, Ok(0));
        volume.discard(&cpu, all, context()).await.expect("discarded");
        volume.extents(&cpu, all, 100).await.expect("found");
        volume.flush(&cpu, context()).await.expect("flushed");
        assert!(volume.is_clean());
    });
}

#[test]
fn write_back_that_has_ended_begins_again_after_a_failed_flush() {
    let world = World::new(1);
    let host = host(&world);
    // During such a flush write-back finds nothing to do.
    let flush = Latency::us(500_000, 500_000);
    let (disk, volume) =
        volume(&world, &host, DiskConfig { flush, ..DiskConfig::new(8 * MIB) }, ForcedUnitAccess::Never);
    let seen = world.clone();
    run(&world, &host, async move |cpu| {
        write(&cpu, &volume, ByteRange::new(MIB, 4096), 7, context()).await.expect("cached");
        seen.fail_next(disk, OpClass::Flush, 1, Errno::IO);
        assert_eq!(volume.flush(&cpu, context()).await, Err(Errno::IO));
        assert!(!volume.is_clean());
        cpu.sleep(Duration::from_secs(60)).await;
        assert!(volume.is_clean(), "nobody asked again");
        assert_eq!(seen.read_durable(disk, ByteRange::new(MIB, 4096))[0], 7);
    });
}

/// Tasks that a stable write to cached blocks starts.
fn tasks_of_a_stable_write(forced: ForcedUnitAccess) -> u64 {
    let world = World::new(1);
    let host = host(&world);
    let (_, volume) = volume(&world, &host, DiskConfig::new(8 * MIB), forced);
    run(&world, &host, async move |cpu| {
        let range = ByteRange::new(MIB, 8192);
        let stable = context().with_stability(Stability::Stable);
        write(&cpu, &volume, range, 1, stable).await.expect("durable");
        // So that write-back, which runs while there is anything to write, does so already.
        write(&cpu, &volume, ByteRange::new(0, 4096), 1, context()).await.expect("cached");
        cpu.sleep(Duration::from_millis(1)).await;
        let started = || Reading::sum(&cpu.kernel().counters().read()).count(Count::TasksStarted);
        let before = started();
        write(&cpu, &volume, range, 2, stable).await.expect("durable");
        started() - before
    })
}

#[test]
fn a_stable_write_starts_a_task_for_the_flush_and_a_forced_one_none() {
    assert_eq!(tasks_of_a_stable_write(ForcedUnitAccess::Never), 1);
    assert_eq!(tasks_of_a_stable_write(ForcedUnitAccess::Always), 0);
}

#[test]
fn a_stable_write_whose_task_is_dropped_is_completed_nevertheless() {
    let world = World::new(1);
    let host = host(&world);
    let (disk, volume) = volume(&world, &host, DiskConfig::new(8 * MIB), ForcedUnitAccess::Never);
    let seen = world.clone();
    run(&world, &host, async move |cpu| {
        let (range, stable) = (ByteRange::new(MIB, 8192), context().with_stability(Stability::Stable));
        let mut dropped = Box::pin(write(&cpu, &volume, range, 7, stable));
        while volume.dirty_blocks() == 0 {
            poll_fn(|cx| Poll::Ready(dropped.as_mut().poll(cx).is_ready())).await;
        }
        drop(dropped);
        write(&cpu, &volume, range, 8, context()).await.expect("cached");
        volume.flush(&cpu, context()).await.expect("the first write does not stay in flight for ever");
        assert!(seen.read_durable(disk, range) == [8; 8192]);
        assert_eq!(volume.dirty_blocks(), 0);
    });
}
