//! Flushes of a disk that are one forced write, and those that must not be, in the simulated machine.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use kernel::device::{Device, DeviceFacts, DeviceRef, Work};
use kernel::request::{Action, Outcome, Request};
use kernel::{ForcedUnitAccess, Processor, Volume};
use machine::Errno;
use policy::unit::ByteRange;
use sim::OpClass;
use testkit::scene::disk::{Server, block, fill};
use testkit::scene::{context, ended, spawn};

const MIB: u64 = 1 << 20;

fn begin_flush(cpu: &Processor, volume: &Arc<Volume>) -> Rc<RefCell<Option<Result<(), Errno>>>> {
    let volume = Arc::clone(volume);
    spawn(cpu, async move |cpu| volume.flush(&cpu, context()).await)
}

#[test]
fn a_flush_of_all_that_has_changed_is_one_forced_write_where_that_is_one_run() {
    let server = Server::new(1);
    let volume = server.volume(ForcedUnitAccess::Alone);
    server.run(async move |cpu, world, disk| {
        let counts = || {
            let counters = world.disk_counters(disk);
            (counters.stable_writes, counters.flushes)
        };
        // The group of the flush before ends: until then no flush is alone, and none a forced write, whatever is dirty.
        let settle = || cpu.sleep(Duration::from_millis(1));
        fill(&cpu, &volume, block(1), 1, context()).await.expect("cached");
        volume.flush(&cpu, context()).await.expect("flushed");
        assert_eq!(counts(), (0, 1), "who served the disk before may have left something unflushed");
        for number in 2..6 {
            settle().await;
            fill(&cpu, &volume, block(number), 2, context()).await.expect("cached");
            volume.flush(&cpu, context()).await.expect("flushed");
            volume.flush(&cpu, context()).await.expect("nothing to do");
            assert_eq!(counts(), (number - 1, 1));
            assert!(world.read_durable(disk, block(number)) == [2; 4096]);
        }
        settle().await;
        // Two runs.
        fill(&cpu, &volume, block(1), 3, context()).await.expect("cached");
        fill(&cpu, &volume, block(9), 3, context()).await.expect("cached");
        volume.flush(&cpu, context()).await.expect("flushed");
        assert_eq!(counts(), (4, 2));
        settle().await;
        // Written, but not flushed.
        fill(&cpu, &volume, block(1), 4, context()).await.expect("cached");
        volume.write_out_unflushed(&cpu, context()).await;
        fill(&cpu, &volume, block(5), 4, context()).await.expect("cached");
        volume.flush(&cpu, context()).await.expect("flushed");
        assert_eq!(counts(), (4, 3));
        settle().await;
        // Zeroed.
        volume.zero(&cpu, block(1), true, false, context()).await.expect("zeroed");
        fill(&cpu, &volume, block(5), 5, context()).await.expect("cached");
        volume.flush(&cpu, context()).await.expect("flushed");
        assert_eq!(counts(), (4, 4));
        settle().await;
        // Long.
        let long = ByteRange::new(MIB, 17 * 4096);
        fill(&cpu, &volume, long, 6, context()).await.expect("cached");
        volume.flush(&cpu, context()).await.expect("flushed");
        assert_eq!(counts(), (4, 5));
        for (range, byte) in [(block(1), 0), (block(5), 5), (block(9), 3), (long, 6)] {
            assert!(world.read_durable(disk, range).iter().all(|is| *is == byte), "{range:?}");
        }
        settle().await;
        // One that fails.
        fill(&cpu, &volume, block(5), 7, context()).await.expect("cached");
        world.fail_next(disk, OpClass::Write, 1, Errno::IO);
        assert_eq!(volume.flush(&cpu, context()).await, Err(Errno::IO));
        volume.flush(&cpu, context()).await.expect("nothing is lost");
        assert!(world.read_durable(disk, block(5)) == [7; 4096]);
    });
}

/// A disk whose flushes take long, and of which the second fails.
struct SecondFails {
    below: DeviceRef,
    flushes: AtomicU32,
}

impl Device for SecondFails {
    fn facts(&self) -> DeviceFacts {
        self.below.facts()
    }

    fn perform<'a>(&'a self, cpu: &'a Processor, request: Request) -> Work<'a, Outcome> {
        Box::pin(async move {
            if !matches!(request.action, Action::Flush) {
                return self.below.perform(cpu, request).await;
            }
            let before = self.flushes.fetch_add(1, Ordering::SeqCst);
            cpu.sleep(Duration::from_millis(1)).await;
            let result = self.below.perform(cpu, request).await;
            if before == 1 { Err(Errno::IO) } else { result }
        })
    }
}

#[test]
fn after_a_failed_flush_the_next_one_asks_the_disk_though_nothing_was_left_to_cover() {
    let server = Server::new(1);
    let device = Arc::new(SecondFails { below: server.file(), flushes: AtomicU32::new(0) });
    let volume = server.volume_on(device.clone(), ForcedUnitAccess::Alone);
    server.run(async move |cpu, _, _| {
        fill(&cpu, &volume, block(1), 1, context()).await.expect("cached");
        let first = begin_flush(&cpu, &volume);
        cpu.sleep(Duration::from_micros(500)).await;
        let second = begin_flush(&cpu, &volume);
        assert_eq!((ended(&cpu, &first).await, ended(&cpu, &second).await), (Ok(()), Err(Errno::IO)));
        cpu.sleep(Duration::from_millis(1)).await;
        fill(&cpu, &volume, block(1), 2, context()).await.expect("cached");
        volume.flush(&cpu, context()).await.expect("flushed");
        assert_eq!(device.flushes.load(Ordering::SeqCst), 3, "the disk is in doubt until a flush succeeds");
    });
}

/// A disk that tells when it has zeroed something.
struct Telling {
    below: DeviceRef,
    has_zeroed: AtomicBool,
    told: Mutex<Option<Waker>>,
}

impl Telling {
    async fn until_zeroed(&self) {
        poll_fn(|cx| {
            *self.told.lock().expect("no panic") = Some(cx.waker().clone());
            if self.has_zeroed.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

impl Device for Telling {
    fn facts(&self) -> DeviceFacts {
        self.below.facts()
    }

    fn perform<'a>(&'a self, cpu: &'a Processor, request: Request) -> Work<'a, Outcome> {
        Box::pin(async move {
            let zeroes = matches!(request.action, Action::Zero { .. });
            let result = self.below.perform(cpu, request).await;
            if zeroes {
                self.has_zeroed.store(true, Ordering::SeqCst);
                self.told.lock().expect("no panic").take().into_iter().for_each(Waker::wake);
            }
            result
        })
    }
}

#[test]
fn a_flush_right_after_the_disk_has_zeroed_what_was_written_before_makes_that_durable() {
    let server = Server::new(1);
    let device = Arc::new(Telling { below: server.file(), has_zeroed: AtomicBool::new(false), told: Mutex::default() });
    let volume = server.volume_on(device.clone(), ForcedUnitAccess::Alone);
    server.run(async move |cpu, world, disk| {
        let (zeroed, other) = (ByteRange::new(MIB, 64 << 10), block(9));
        for range in [zeroed, other] {
            fill(&cpu, &volume, range, 7, context()).await.expect("cached");
        }
        volume.flush(&cpu, context()).await.expect("flushed");
        cpu.sleep(Duration::from_millis(1)).await;
        let flushed = {
            let (volume, device) = (Arc::clone(&volume), Arc::clone(&device));
            spawn(&cpu, async move |cpu| {
                device.until_zeroed().await;
                volume.flush(&cpu, context()).await
            })
        };
        let acknowledged = {
            let volume = Arc::clone(&volume);
            spawn(&cpu, async move |cpu| {
                fill(&cpu, &volume, other, 8, context()).await?;
                volume.zero(&cpu, zeroed, true, false, context()).await
            })
        };
        assert_eq!(ended(&cpu, &flushed).await, Ok(()));
        // What it held before the zeroing, which a client may have written and been told of, is gone from the cache.
        assert!(world.read_durable(disk, zeroed).iter().all(|byte| *byte == 0), "the flush did not cover the zeroing");
        assert_eq!(ended(&cpu, &acknowledged).await, Ok(()));
    });
}
