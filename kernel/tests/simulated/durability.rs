//! Volumes with failing flushes, and with odd or large disks, in the simulated machine.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use kernel::counters::{Count, Reading};
use kernel::device::{Device, DeviceFacts, DeviceRef, Work};
use kernel::queue::{DiskQueue, Queued};
use kernel::request::{Action, Outcome, Request};
use kernel::volume::VOLUME_BYTES_MAX;
use kernel::{ForcedUnitAccess, Processor, Volume};
use machine::Errno;
use policy::unit::{ByteRange, Stability};
use sim::{DiskConfig, Latency, OpClass};
use testkit::rounds::for_seeds;
use testkit::scene::disk::{Server, block, fill, first_byte};
use testkit::scene::{context, ended, spawn, stable};

const MIB: u64 = 1 << 20;

/// Where a task leaves its result.
type Slot = Rc<RefCell<Option<Result<(), Errno>>>>;

fn begin_flush(cpu: &Processor, volume: &Arc<Volume>) -> Slot {
    let volume = Arc::clone(volume);
    spawn(cpu, async move |cpu| volume.flush(&cpu, context()).await)
}

fn begin_stable_write(cpu: &Processor, volume: &Arc<Volume>, range: ByteRange, byte: u8) -> Slot {
    let volume = Arc::clone(volume);
    spawn(cpu, async move |cpu| fill(&cpu, &volume, range, byte, stable()).await)
}

#[test]
fn what_was_zeroed_before_a_flush_failed_reads_as_zeroes_and_is_zeroed_again_by_the_next() {
    for_seeds("what_was_zeroed_before_a_flush_failed_reads_as_zeroes_and_is_zeroed_again_by_the_next", 40, |seed| {
        let config = DiskConfig { zero_supported: seed % 4 != 0, ..DiskConfig::new(8 * MIB) };
        let server = Server::with_disk(seed, config);
        let volume = server.volume(ForcedUnitAccess::Never);
        let range = ByteRange::new(0, MIB);
        server.run(async move |cpu, world, disk| {
            fill(&cpu, &volume, range, 7, context()).await.expect("cached");
            volume.flush(&cpu, context()).await.expect("flushed");
            volume.zero(&cpu, range, true, false, context()).await.expect("zeroed");
            // Newer than the zeroes: it must not be zeroed again.
            fill(&cpu, &volume, block(8), 9, context()).await.expect("cached");
            world.fail_next(disk, OpClass::Flush, 1, Errno::IO);
            assert_eq!(volume.flush(&cpu, context()).await, Err(Errno::IO));
            for block in 0..256 {
                let expected = if block == 8 { 9 } else { 0 };
                assert_eq!(first_byte(&cpu, &volume, block).await, Ok(expected), "block {block}");
            }
            volume.flush(&cpu, context()).await.expect("nothing is lost");
            let durable = world.read_durable(disk, range);
            let is_right = |(at, byte): (usize, &u8)| *byte == if at / 4096 == 8 { 9 } else { 0 };
            assert!(durable.iter().enumerate().all(is_right), "durable as it was told");
        });
    });
}

#[test]
fn what_a_failed_batch_of_forced_writes_took_with_it_is_written_again() {
    for_seeds("what_a_failed_batch_of_forced_writes_took_with_it_is_written_again", 40, |seed| {
        let server = Server::new(seed);
        let queue = Arc::new(DiskQueue::new(policy::queue::Config { depth: 1, ..Default::default() }));
        let queued = Queued::new(Arc::clone(&queue), server.file());
        let volume = server.volume_on(Arc::new(queued), ForcedUnitAccess::Always);
        server.run(async move |cpu, world, disk| {
            // Large writes are issued at once: the disk has this one, unflushed.
            let unflushed = ByteRange::new(MIB, MIB);
            fill(&cpu, &volume, unflushed, 7, context()).await.expect("cached");
            cpu.sleep(Duration::from_secs(1)).await;
            assert!(world.read_disk(disk, unflushed).iter().all(|byte| *byte == 7), "written out");
            let before = queue.counters();
            // The first occupies the disk meanwhile, so the next two are merged.
            let forced = [100, 5, 6].map(|number| begin_stable_write(&cpu, &volume, block(number), 8));
            while queue.counters().batches == before.batches {
                cpu.yield_now().await;
            }
            cpu.sleep(Duration::from_micros(1)).await;
            world.fail_next(disk, OpClass::Write, 1, Errno::IO);
            let mut failed = 0;
            for end in &forced {
                failed += u32::from(ended(&cpu, end).await == Err(Errno::IO));
            }
            assert!(failed > 0, "nobody is told of the failure");
            volume.flush(&cpu, context()).await.expect("the disk works again");
            assert!(world.read_durable(disk, unflushed).iter().all(|byte| *byte == 7), "seed {seed}");
        });
    });
}

/// A disk that holds back the completions of writes and zeroing at one place until released.
struct Late {
    below: DeviceRef,
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
            if is_held {
                while_held(cpu, &self.holds).await;
            }
            result
        })
    }
}

#[test]
fn a_write_whose_end_is_seen_after_a_flush_failed_is_written_again_before_the_next_one_counts() {
    for_seeds("a_write_whose_end_is_seen_after_a_flush_failed_is_written_again", 60, |seed| {
        let server = Server::new(seed);
        let below = server.file();
        let (early, late) = (block(9), block(5));
        let device = Arc::new(Late { below, at: late.at.0, holds: AtomicBool::new(true) });
        let volume = server.volume_on(device.clone(), ForcedUnitAccess::Never);
        server.run(async move |cpu, world, disk| {
            fill(&cpu, &volume, late, 7, context()).await.expect("cached");
            let first = begin_flush(&cpu, &volume);
            cpu.sleep(Duration::from_millis(1)).await;
            // It is complete, but its completion not seen, when the flush of another write fails.
            world.fail_next(disk, OpClass::Flush, 1, Errno::IO);
            assert_eq!(fill(&cpu, &volume, early, 8, stable()).await, Err(Errno::IO));
            let second = begin_flush(&cpu, &volume);
            cpu.sleep(Duration::from_millis(1)).await;
            device.holds.store(false, Ordering::SeqCst);
            let _ = ended(&cpu, &first).await;
            assert_eq!(ended(&cpu, &second).await, Ok(()));
            assert!(world.read_durable(disk, late) == [7; 4096], "seed {seed}");
            assert!(world.read_durable(disk, early) == [8; 4096], "seed {seed}");
        });
    });
}

#[test]
fn the_end_of_a_disk_that_is_no_whole_number_of_its_blocks_is_written_and_flushed() {
    for forced in [ForcedUnitAccess::Never, ForcedUnitAccess::Always] {
        let server = Server::with_disk(1, DiskConfig { align: 4096, ..DiskConfig::new(MIB + 512) });
        let volume = server.volume(forced);
        server.run(async move |cpu, world, disk| {
            let tail = ByteRange::new(MIB, 512);
            fill(&cpu, &volume, tail, 7, context()).await.expect("cached");
            volume.flush(&cpu, context()).await.expect("flushed");
            assert!(world.read_durable(disk, tail) == [7; 512]);
            let both = ByteRange::new(MIB - 8192, 8192 + 512);
            fill(&cpu, &volume, both, 8, stable()).await.expect("durable");
            assert!(world.read_durable(disk, both) == [8; 8192 + 512]);
            volume.zero(&cpu, ByteRange::new(0, MIB + 512), true, false, context()).await.expect("zeroed");
            let frames = volume.read(&cpu, tail, context()).await.expect("read");
            assert!(frames[0].bytes()[..512] == [0; 512]);
            volume.flush(&cpu, context()).await.expect("flushed");
            assert!(world.read_durable(disk, both) == [0; 8192 + 512]);
        });
    }
}

#[test]
fn zeroes_whose_end_is_seen_after_a_flush_failed_are_written_again_before_the_next_one_counts() {
    for_seeds("zeroes_whose_end_is_seen_after_a_flush_failed_are_written_again", 40, |seed| {
        let server = Server::new(seed);
        let below = server.file();
        let (early, late) = (ByteRange::new(MIB, 4096), ByteRange::new(2 * MIB, 64 << 10));
        let device = Arc::new(Late { below, at: late.at.0, holds: AtomicBool::new(false) });
        let volume = server.volume_on(device.clone(), ForcedUnitAccess::Never);
        server.run(async move |cpu, world, disk| {
            fill(&cpu, &volume, late, 7, context()).await.expect("cached");
            volume.flush(&cpu, context()).await.expect("flushed");
            device.holds.store(true, Ordering::SeqCst);
            let zeroed = {
                let volume = Arc::clone(&volume);
                spawn(&cpu, async move |cpu| volume.zero(&cpu, late, true, false, context()).await)
            };
            cpu.sleep(Duration::from_millis(1)).await;
            world.fail_next(disk, OpClass::Flush, 1, Errno::IO);
            assert_eq!(fill(&cpu, &volume, early, 8, stable()).await, Err(Errno::IO));
            device.holds.store(false, Ordering::SeqCst);
            assert_eq!(ended(&cpu, &zeroed).await, Ok(()));
            volume.flush(&cpu, context()).await.expect("nothing is lost");
            assert!(world.read_durable(disk, late).iter().all(|byte| *byte == 0), "zeroes are lost");
        });
    });
}

/// A disk that holds back the start of flushes, and the completion of forced writes, which then fail.
struct Refusing {
    below: DeviceRef,
    holds_flushes: AtomicBool,
    holds_forced: AtomicBool,
}

impl Refusing {
    fn new(below: DeviceRef) -> Arc<Self> {
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
    let server = Server::new(1);
    let device = Refusing::new(server.file());
    let volume = server.volume_on(device.clone(), ForcedUnitAccess::Always);
    server.run(async move |cpu, world, disk| {
        let (covered, forced) = (block(9), block(5));
        fill(&cpu, &volume, covered, 7, context()).await.expect("cached");
        let flushed = begin_flush(&cpu, &volume);
        cpu.sleep(Duration::from_millis(1)).await;
        let written = begin_stable_write(&cpu, &volume, forced, 8);
        cpu.sleep(Duration::from_millis(1)).await;
        device.holds_flushes.store(false, Ordering::SeqCst);
        cpu.sleep(Duration::from_millis(1)).await;
        // The host may have reported the loss of the other write to the forced write.
        assert!(flushed.borrow().is_none(), "the flush counts before the forced write has ended");
        device.holds_forced.store(false, Ordering::SeqCst);
        assert_eq!((ended(&cpu, &flushed).await, ended(&cpu, &written).await), (Err(Errno::IO), Err(Errno::IO)));
        let before = world.disk_counters(disk).bytes_written;
        volume.flush(&cpu, context()).await.expect("nothing is lost");
        assert_eq!(world.disk_counters(disk).bytes_written - before, 2 * 4096, "both are written again");
        assert!(world.read_durable(disk, covered) == [7; 4096] && world.read_durable(disk, forced) == [8; 4096]);
    });
}

#[test]
fn what_was_zeroed_or_written_while_a_failing_flush_was_under_way_is_done_again_before_the_next_one_counts() {
    for_seeds("what_was_zeroed_or_written_while_a_failing_flush_was_under_way_is_done_again", 40, |seed| {
        let server = Server::new(seed);
        let device = Refusing::new(server.file());
        let volume = server.volume_on(device.clone(), ForcedUnitAccess::Never);
        server.run(async move |cpu, world, disk| {
            let (zeroed, written) = (ByteRange::new(0, 64 << 10), ByteRange::new(MIB, 4096));
            device.holds_flushes.store(false, Ordering::SeqCst);
            fill(&cpu, &volume, zeroed, 7, context()).await.expect("cached");
            volume.flush(&cpu, context()).await.expect("flushed");
            device.holds_flushes.store(true, Ordering::SeqCst);
            fill(&cpu, &volume, ByteRange::new(2 * MIB, 4096), 6, context()).await.expect("cached");
            let flush = begin_flush(&cpu, &volume);
            cpu.sleep(Duration::from_millis(1)).await;
            // The flush has begun; when it fails, the disk loses what it has.
            volume.zero(&cpu, zeroed, true, false, context()).await.expect("zeroed");
            let stable = begin_stable_write(&cpu, &volume, written, 8);
            cpu.sleep(Duration::from_millis(1)).await;
            world.fail_next(disk, OpClass::Flush, 1, Errno::IO);
            device.holds_flushes.store(false, Ordering::SeqCst);
            assert_eq!(ended(&cpu, &flush).await, Err(Errno::IO));
            assert_eq!(ended(&cpu, &stable).await, Err(Errno::IO));
            volume.flush(&cpu, context()).await.expect("nothing is lost");
            assert!(world.read_durable(disk, zeroed).iter().all(|byte| *byte == 0), "zeroes are lost");
            assert!(world.read_durable(disk, written) == [8; 4096], "a write is lost");
        });
    });
}

#[test]
fn a_flush_counts_when_the_syncs_beside_it_have_ended_and_fails_with_them() {
    let server = Server::new(1);
    let volume = server.volume(ForcedUnitAccess::Never);
    server.run(async move |cpu, world, disk| {
        let range = ByteRange::new(0, 4096);
        fill(&cpu, &volume, range, 7, context()).await.expect("cached");
        let sync = volume.begin_foreign_flush();
        let flushed = begin_flush(&cpu, &volume);
        cpu.sleep(Duration::from_secs(1)).await;
        assert!(flushed.borrow().is_none(), "the flush counts before the sync has ended");
        sync.failed(Errno::IO);
        assert_eq!(ended(&cpu, &flushed).await, Err(Errno::IO));
        let before = world.disk_counters(disk).bytes_written;
        volume.flush(&cpu, context()).await.expect("nothing is lost");
        assert_eq!(world.disk_counters(disk).bytes_written - before, 4096, "written again");
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
            may_be_sparse: false,
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
    let server = Server::new(1);
    let volume = server.volume_on(Arc::new(Endless), ForcedUnitAccess::Never);
    server.run(async move |cpu, _, _| {
        for at in [0, 1 << 40, VOLUME_BYTES_MAX - 4096] {
            fill(&cpu, &volume, ByteRange::new(at, 4096), 7, context()).await.expect("cached");
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
    // During such a flush write-back finds nothing to do.
    let flush = Latency::us(500_000, 500_000);
    let server = Server::with_disk(1, DiskConfig { flush, ..DiskConfig::new(8 * MIB) });
    let volume = server.volume(ForcedUnitAccess::Never);
    server.run(async move |cpu, world, disk| {
        fill(&cpu, &volume, ByteRange::new(MIB, 4096), 7, context()).await.expect("cached");
        world.fail_next(disk, OpClass::Flush, 1, Errno::IO);
        assert_eq!(volume.flush(&cpu, context()).await, Err(Errno::IO));
        assert!(!volume.is_clean());
        cpu.sleep(Duration::from_secs(60)).await;
        assert!(volume.is_clean(), "nobody asked again");
        assert_eq!(world.read_durable(disk, ByteRange::new(MIB, 4096))[0], 7);
    });
}

/// Tasks that a stable write to cached blocks starts.
fn tasks_of_a_stable_write(forced: ForcedUnitAccess) -> u64 {
    let server = Server::new(1);
    let volume = server.volume(forced);
    server.run(async move |cpu, _, _| {
        let range = ByteRange::new(MIB, 8192);
        fill(&cpu, &volume, range, 1, stable()).await.expect("durable");
        // So that write-back, which runs while there is anything to write, does so already.
        fill(&cpu, &volume, ByteRange::new(0, 4096), 1, context()).await.expect("cached");
        cpu.sleep(Duration::from_millis(1)).await;
        let started = || Reading::sum(&cpu.kernel().counters().read()).count(Count::TasksStarted);
        let before = started();
        fill(&cpu, &volume, range, 2, stable()).await.expect("durable");
        started() - before
    })
}

#[test]
fn a_stable_write_starts_tasks_for_its_data_and_the_flush_and_a_forced_one_none() {
    assert_eq!(tasks_of_a_stable_write(ForcedUnitAccess::Never), 2);
    assert_eq!(tasks_of_a_stable_write(ForcedUnitAccess::Always), 0);
}

#[test]
fn a_stable_write_whose_task_is_dropped_is_completed_nevertheless() {
    let server = Server::new(1);
    let volume = server.volume(ForcedUnitAccess::Never);
    server.run(async move |cpu, world, disk| {
        let (range, stable) = (ByteRange::new(MIB, 8192), stable());
        let mut dropped = Box::pin(fill(&cpu, &volume, range, 7, stable));
        while volume.dirty_blocks() == 0 {
            poll_fn(|cx| Poll::Ready(dropped.as_mut().poll(cx).is_ready())).await;
        }
        drop(dropped);
        fill(&cpu, &volume, range, 8, context()).await.expect("cached");
        volume.flush(&cpu, context()).await.expect("the first write does not stay in flight for ever");
        assert!(world.read_durable(disk, range) == [8; 8192]);
        assert_eq!(volume.dirty_blocks(), 0);
    });
}
