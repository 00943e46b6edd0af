//! Volumes whose blocks other nodes cache, too, at the only node that there is.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use kernel::device::{Delay, Device, DeviceRef, Fault, Faults, Operation, RamDisk, Work};
use kernel::request::{Action, Outcome, Request};
use kernel::volume::{Change, Coherence, Known, VolumeConfig, WrittenBy};
use kernel::{ForcedUnitAccess, Frames, Processor, Switches, Volume};
use machine::Errno;
use policy::unit::{BlockNo, BlockRange, DiskNo, JobId, ProcessorId};
use sim::World;
use testkit::scene::disk::{block, fill};
use testkit::scene::{Host, boot, context, run, small_kernel, spawn};

const SIZE: u64 = 1 << 20;

const BLOCK: BlockNo = BlockNo(3);

/// What a read, a write or a flush of the device takes.
const TAKES: Duration = Duration::from_millis(5);

/// Grants all. Failed flushes of other nodes are counted by the test; what is asked of those is done at once.
#[derive(Default)]
struct Alone {
    volume: OnceLock<Weak<Volume>>,
    failures: AtomicU64,
    returned: AtomicU64,
}

impl Coherence for Alone {
    fn answers(&self) -> bool {
        true
    }

    fn read<'a>(&'a self, _cpu: &'a Processor, _blocks: BlockRange, spare: Frames) -> Work<'a, Frames> {
        Box::pin(async move { Ok(spare) })
    }

    fn write<'a>(&'a self, _cpu: &'a Processor, changes: Vec<(BlockNo, Change)>, job: JobId) -> Work<'a, ()> {
        let volume = self.volume.get().and_then(Weak::upgrade).expect("it is open");
        for (block, change) in changes {
            assert!(volume.change(block, change, job).is_ok(), "whole blocks are written");
        }
        Box::pin(async { Ok(()) })
    }

    fn known(&self) -> Known {
        Known { deaths: 0, failures: self.returned.load(Ordering::SeqCst) }
    }

    fn flush<'a>(&'a self, _cpu: &'a Processor) -> Work<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    fn end_flush(&self, known: Known) -> Result<(), Errno> {
        let failures = self.failures.load(Ordering::SeqCst);
        self.returned.store(failures, Ordering::SeqCst);
        if failures > known.failures { Err(Errno::IO) } else { Ok(()) }
    }
}

struct Scene {
    world: World,
    host: Host,
    device: Arc<Fault>,
    coherence: Arc<Alone>,
    volume: Arc<Volume>,
}

fn scene() -> Scene {
    let (world, host) = boot(1, small_kernel(1, SIZE, Switches::default()));
    let device = Arc::new(Fault::new(Arc::new(RamDisk::new(SIZE, DiskNo(0))), Faults::default()));
    let (volume, coherence) = open(&host, device.clone());
    Scene { world, host, device, coherence, volume }
}

fn open(host: &Host, device: DeviceRef) -> (Arc<Volume>, Arc<Alone>) {
    let slow: DeviceRef = Arc::new(Delay::new(device, TAKES));
    let config = VolumeConfig {
        name: "shared".into(),
        read_only: false,
        forced_unit_access: ForcedUnitAccess::Never,
        grows: false,
    };
    let coherence = Arc::new(Alone::default());
    let volume = Volume::open_shared(&host.kernel, slow, coherence.clone(), config, ProcessorId(0)).expect("a number");
    coherence.volume.set(Arc::downgrade(&volume)).expect("once");
    (volume, coherence)
}

async fn flush(cpu: &Processor, volume: &Volume) -> Result<(), Errno> {
    volume.flush(cpu, context()).await
}

async fn write(cpu: &Processor, volume: &Volume) {
    fill(cpu, volume, block(BLOCK.0), 7, context()).await.expect("written");
}

async fn put(cpu: &Processor, volume: &Volume, block: BlockNo, by: Option<WrittenBy>) -> bool {
    let frame = cpu.kernel().allocate(cpu, 1).await.pop().expect("one");
    volume.put(block, frame, by)
}

async fn stored(cpu: &Processor, device: &Fault) -> u8 {
    let frames = cpu.kernel().allocate(cpu, 1).await;
    let request = Request { action: Action::Read(block(BLOCK.0), frames.clone()), context: context() };
    assert_eq!(device.perform(cpu, request).await.and_then(Outcome::required), Ok(()));
    frames[0].bytes()[0]
}

#[test]
fn a_failure_elsewhere_is_returned_when_a_flush_ends_and_so_by_each_that_was_asked_for_before() {
    let Scene { world, host, coherence, volume, .. } = scene();
    run(&world, &host, async move |cpu| {
        write(&cpu, &volume).await;
        coherence.failures.store(1, Ordering::SeqCst);
        let own = Arc::clone(&volume);
        let first = spawn(&cpu, async move |cpu| flush(&cpu, &own).await);
        // It has been written, and is being flushed.
        cpu.sleep(TAKES + TAKES / 2).await;
        assert!(first.borrow().is_none(), "its own part has ended");
        assert_eq!(flush(&cpu, &volume).await, Err(Errno::IO), "the first had not returned it");
        assert_eq!(first.take(), Some(Err(Errno::IO)));
        assert_eq!(flush(&cpu, &volume).await, Ok(()), "it was returned");
    });
}

#[test]
fn what_others_may_read_that_was_dirty_stays_until_it_is_flushed_and_is_written_again_if_that_fails() {
    let Scene { world, host, device, volume, .. } = scene();
    run(&world, &host, async move |cpu| {
        device.fail_next(Operation::Flush, 1, Errno::IO);
        write(&cpu, &volume).await;
        // It is stored elsewhere, so not here.
        assert!(volume.give_up(BLOCK, true).is_some() && volume.uncertain(BLOCK).is_some());
        assert_eq!(flush(&cpu, &volume).await, Err(Errno::IO));
        assert!(volume.uncertain(BLOCK).is_some());
        assert_eq!(flush(&cpu, &volume).await, Ok(()));
        assert!(volume.uncertain(BLOCK).is_none() && volume.cached(BLOCK).is_some());
        assert_eq!(stored(&cpu, &device).await, 7);
    });
}

#[test]
fn what_another_node_has_written_stays_until_it_is_durable_whatever_this_volume_flushes() {
    let Scene { world, host, volume, .. } = scene();
    run(&world, &host, async move |cpu| {
        assert!(!put(&cpu, &volume, BLOCK, None).await && volume.uncertain(BLOCK).is_none());
        assert!(put(&cpu, &volume, BLOCK, Some(WrittenBy::Others)).await);
        fill(&cpu, &volume, block(BLOCK.0 + 1), 7, context()).await.expect("written");
        assert_eq!(flush(&cpu, &volume).await, Ok(()));
        assert!(volume.uncertain(BLOCK).is_some() && volume.is_clean());
        volume.unmark(BLOCK);
        assert!(volume.uncertain(BLOCK).is_none() && volume.cached(BLOCK).is_some());
        assert!(put(&cpu, &volume, BLOCK, Some(WrittenBy::Others)).await);
        assert!(volume.give_up(BLOCK, false).is_some() && volume.uncertain(BLOCK).is_none());
    });
}

#[test]
fn what_this_volume_writes_it_makes_durable_although_another_node_had_written_it_before() {
    let Scene { world, host, device, volume, .. } = scene();
    run(&world, &host, async move |cpu| {
        assert!(put(&cpu, &volume, BLOCK, Some(WrittenBy::Others)).await);
        device.fail_next(Operation::Flush, 1, Errno::IO);
        write(&cpu, &volume).await;
        assert!(!put(&cpu, &volume, BLOCK, Some(WrittenBy::Others)).await, "it stays in any case");
        assert_eq!(flush(&cpu, &volume).await, Err(Errno::IO));
        assert!(volume.is_unwritten(BLOCK), "it is to be written again");
        assert_eq!(flush(&cpu, &volume).await, Ok(()));
        assert!(volume.uncertain(BLOCK).is_none());
    });
}

/// It would never be durable, as far as this node hears.
#[test]
fn what_another_node_has_written_stays_no_longer_when_the_volume_has_failed() {
    let Scene { world, host, device, volume, .. } = scene();
    run(&world, &host, async move |cpu| {
        assert!(put(&cpu, &volume, BLOCK, Some(WrittenBy::Others)).await);
        device.fail_next(Operation::Write, u32::MAX, Errno::IO);
        // More than a degraded volume may hold.
        for number in 10..40 {
            fill(&cpu, &volume, block(number), 7, context()).await.expect("cached");
        }
        cpu.sleep(Duration::from_secs(60)).await;
        assert!(volume.loss().is_some());
        assert!(volume.uncertain(BLOCK).is_none() && volume.cached(BLOCK).is_some());
        assert!(!put(&cpu, &volume, BLOCK + 1, Some(WrittenBy::Others)).await);
    });
}

/// What another node has written since this one gave it up is granted.
async fn grant_anew(cpu: &Processor, volume: &Volume, is_durable: bool) {
    assert!(volume.give_up(BLOCK, false).is_some());
    let by = (!is_durable).then_some(WrittenBy::Others);
    assert_eq!(put(cpu, volume, BLOCK, by).await, !is_durable);
}

#[test]
fn what_another_node_has_written_since_is_not_written_again_by_this_one_if_a_flush_or_write_fails_that_began_before() {
    let cases = [(false, false), (false, true), (true, false)].into_iter();
    for ((is_written, is_failed_write), is_durable) in cases.flat_map(|case| [(case, false), (case, true)]) {
        let Scene { world, host, device, volume, .. } = scene();
        run(&world, &host, async move |cpu| {
            write(&cpu, &volume).await;
            device.fail_next(if is_failed_write { Operation::Write } else { Operation::Flush }, 1, Errno::IO);
            let own = Arc::clone(&volume);
            let flushed = spawn(&cpu, async move |cpu| flush(&cpu, &own).await);
            // It is being written, or has been and is being flushed.
            cpu.sleep(TAKES / 2 + if is_written { TAKES } else { Duration::ZERO }).await;
            assert!(flushed.borrow().is_none() && volume.is_unwritten(BLOCK) != is_written);
            grant_anew(&cpu, &volume, is_durable).await;
            cpu.sleep(3 * TAKES).await;
            assert_eq!(flushed.take(), Some(Err(Errno::IO)));
            assert!(!volume.is_unwritten(BLOCK), "{is_written}, {is_failed_write}, {is_durable}");
        });
    }
}

#[test]
fn what_this_node_writes_anew_and_gives_up_while_it_is_being_written_is_flushed_or_written_again() {
    for is_failed in [false, true] {
        let Scene { world, host, device, volume, .. } = scene();
        run(&world, &host, async move |cpu| {
            write(&cpu, &volume).await;
            if is_failed {
                device.fail_next(Operation::Flush, 1, Errno::IO);
            }
            let own = Arc::clone(&volume);
            let flushed = spawn(&cpu, async move |cpu| flush(&cpu, &own).await);
            cpu.sleep(TAKES / 2).await;
            assert!(volume.give_up(BLOCK, false).is_some());
            let frame = cpu.kernel().allocate(&cpu, 1).await.pop().expect("one");
            assert!(volume.change(BLOCK, Change::Whole(frame), JobId::default()).is_ok());
            assert!(volume.give_up(BLOCK, true).is_some());
            cpu.sleep(3 * TAKES).await;
            assert_eq!(flushed.take(), Some(if is_failed { Err(Errno::IO) } else { Ok(()) }));
            assert_eq!(volume.is_unwritten(BLOCK), is_failed);
            assert_eq!(volume.uncertain(BLOCK).is_some(), is_failed);
        });
    }
}

#[test]
fn a_volume_whose_flushes_fail_for_long_is_not_lost_for_what_others_have_written() {
    let Scene { world, host, device, volume, .. } = scene();
    run(&world, &host, async move |cpu| {
        device.fail_next(Operation::Flush, 60, Errno::IO);
        let blocks = || (10..74).map(BlockNo);
        let mut marked = 0;
        for block in blocks() {
            marked += u64::from(put(&cpu, &volume, block, Some(WrittenBy::Others)).await);
        }
        write(&cpu, &volume).await;
        cpu.sleep(Duration::from_secs(40)).await;
        assert_eq!(volume.loss(), None);
        assert_eq!(flush(&cpu, &volume).await, Err(Errno::IO));
        // They are still there, and not to be written by this volume.
        assert_eq!(blocks().filter(|block| volume.uncertain(*block).is_some()).count() as u64, marked);
        assert!(blocks().all(|block| !volume.is_unwritten(block)));
        while flush(&cpu, &volume).await.is_err() {}
        assert_eq!(blocks().filter(|block| volume.uncertain(*block).is_some()).count() as u64, marked);
        assert!(marked > 0 && marked <= cpu.kernel().cache_blocks() / 20, "they have a limit: {marked}");
        assert!(volume.has_many_marked());
        blocks().for_each(|block| volume.unmark(block));
        assert!(!volume.has_many_marked() && blocks().all(|block| volume.uncertain(block).is_none()));
    });
}

#[test]
fn all_volumes_together_retain_a_twentieth_of_the_cache_for_others() {
    let Scene { world, host, device, volume, .. } = scene();
    let (other, _) = open(&host, device);
    run(&world, &host, async move |cpu| {
        let most = cpu.kernel().cache_blocks() / 20;
        let mark = async |volume: &Volume| {
            let mut marked = 0;
            for block in (0..64).map(BlockNo) {
                marked += u64::from(put(&cpu, volume, block, Some(WrittenBy::Others)).await);
            }
            marked
        };
        assert_eq!((mark(&volume).await, mark(&other).await), (most, 0));
        assert!(other.has_many_marked());
        drop(volume);
        assert_eq!(mark(&other).await, most, "it is closed");
    });
}
