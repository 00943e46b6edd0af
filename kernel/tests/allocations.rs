//! How much of the heap a read or a stable write takes: a call of the allocator costs as much as a cache lookup.

use kernel::device::{Delay, DeviceRef, RamDisk};
use kernel::queue::{DiskQueue, Queued};
use kernel::{ForcedUnitAccess, Switches, Volume};
use policy::unit::{BLOCK_BYTES, ByteRange, DiskNo, Stability};
use sim::World;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;
use testkit::scene::disk::volume;
use testkit::scene::{Host, context, run, small_kernel};

thread_local! {
    static TAKEN: Cell<u64> = const { Cell::new(0) };
}

/// Counts the allocations of each thread.
struct Counting;

// SAFETY: all calls go to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        TAKEN.set(TAKEN.get() + 1);
        // SAFETY: as the caller guarantees.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller guarantees.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// For one uncached block, through the queue of a disk that answers at once: the boxed work of two devices and the
/// completion's receiver. A few more for tables that grow from time to time.
const UNCACHED_MAX: u64 = 6;

/// For one uncached block of a disk that takes its time, where no other request waits. By way of the disk's queue it is one more.
const AT_ONCE_MAX: u64 = 4;

/// For a stable write of one block with its flush: the boxed work of two devices for each, what must run to its end,
/// the flush's group and task, and sets that were empty.
const STABLE_MAX: u64 = 15;

/// Of the future of a write, which all futures above it contain. Bytes.
const WRITE_BYTES_MAX: usize = 620;

const READS: u64 = 200;

fn block(no: u64) -> ByteRange {
    ByteRange::new(no * BLOCK_BYTES, BLOCK_BYTES)
}

fn ram_disk() -> DeviceRef {
    Arc::new(RamDisk::new(8 << 20, DiskNo(0)))
}

fn read_ahead_off() -> Switches {
    Switches { read_ahead: policy::readahead::Mode::Off, ..Switches::default() }
}

/// A volume on the disk, with its queue.
fn scene(switches: Switches, disk: DeviceRef) -> (World, Host, Arc<Volume>) {
    let world = World::new(1);
    let host = Host::boot(&world, world.add_host("server"), small_kernel(1, 16 << 20, switches));
    let queue = Arc::new(DiskQueue::new(policy::queue::Config::default()));
    let volume = volume(&host.kernel, Arc::new(Queued::new(queue, disk)), ForcedUnitAccess::Never);
    (world, host, volume)
}

#[test]
fn a_cached_read_takes_nothing_from_the_heap_and_an_uncached_one_little() {
    let (world, host, volume) = scene(read_ahead_off(), ram_disk());
    let (uncached, cached) = run(&world, &host, async move |cpu| {
        let before = TAKEN.get();
        for no in 0..READS {
            let frames = volume.read(&cpu, block(no), context()).await.expect("read");
            assert_eq!(frames.len(), 1);
        }
        let between = TAKEN.get();
        for no in 0..READS {
            assert!(volume.try_read(&cpu, block(no)).is_some(), "it was just read");
        }
        (between - before, TAKEN.get() - between)
    });
    assert_eq!(cached, 0);
    assert!(uncached > 0 && uncached <= READS * UNCACHED_MAX, "{READS} reads took {uncached} times from the heap");
}

#[test]
fn a_request_that_finds_none_waiting_does_not_go_through_the_queue() {
    let disk = Delay::new(ram_disk(), Duration::from_micros(100));
    let (world, host, volume) = scene(read_ahead_off(), Arc::new(disk));
    let taken = run(&world, &host, async move |cpu| {
        let before = TAKEN.get();
        for no in 0..READS {
            volume.read(&cpu, block(no), context()).await.expect("read");
        }
        TAKEN.get() - before
    });
    assert!(taken <= READS * AT_ONCE_MAX, "{READS} reads took {taken} times from the heap");
}

#[test]
fn a_stable_write_takes_little_from_the_heap_and_its_future_is_small() {
    let (world, host, volume) = scene(Switches::default(), ram_disk());
    let (taken, bytes) = run(&world, &host, async move |cpu| {
        let (mut taken, mut bytes) = (0, 0);
        for no in 0..READS {
            let frames = cpu.kernel().allocate(&cpu, 1).await;
            let before = TAKEN.get();
            let write = volume.write(&cpu, block(no), frames, context().with_stability(Stability::Stable));
            bytes = size_of_val(&write);
            write.await.expect("written");
            taken += TAKEN.get() - before;
        }
        (taken, bytes)
    });
    assert!(taken <= READS * STABLE_MAX, "{READS} stable writes took {taken} times from the heap");
    assert!(bytes <= WRITE_BYTES_MAX, "the future of a write has {bytes} bytes");
}
