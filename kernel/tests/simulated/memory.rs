//! The cache takes what memory is free and returns it (WS-2), in the simulated machine.

use kernel::device::{Checked, FileDevice};
use kernel::{FRAME_BYTES, ForcedUnitAccess, KernelConfig, Processor, Switches, Volume};
use policy::sizing::{self, MemoryFacts};
use policy::unit::ByteRange;
use sim::{DiskConfig, World};
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use testkit::random::Random;
use testkit::scene::disk::{block, fill, first_byte, volume};
use testkit::scene::{Host, context, run, small_kernel};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn boot(world: &World, memory: u64, switches: Switches) -> (Host, Arc<Volume>) {
    let id = world.add_host("server");
    let sizing = sizing::Config { step_bytes: 64 << 10, floor_bytes: 2 * MIB, ..sizing::Config::default() };
    let config = KernelConfig { sizing: Some(sizing), ..small_kernel(2, memory, switches) };
    world.set_memory(id, MemoryFacts { total: GIB, available: GIB, group: None });
    let host = Host::boot(world, id, config);
    let disk = world.add_disk(id, DiskConfig::without_holes(128 * MIB));
    let device = Arc::new(Checked::new(Arc::new(FileDevice::new(world.open(disk, true)))));
    let volume = volume(&host.kernel, device, ForcedUnitAccess::Never);
    (host, volume)
}

async fn write(cpu: &Processor, volume: &Volume, number: u64, byte: u8) {
    fill(cpu, volume, block(number), byte, context()).await.expect("written");
}

async fn read(cpu: &Processor, volume: &Volume, number: u64) -> u8 {
    first_byte(cpu, volume, number).await.expect("read")
}

#[test]
fn the_cache_grows_into_free_memory_and_gives_it_back_within_a_second() {
    let world = World::new(1);
    let (host, volume) = boot(&world, 64 * MIB, Switches::default());
    let (server, kernel, knob) = (host.id, Arc::clone(&host.kernel), world.clone());
    let (before, after) = run(&world, &host, async move |cpu| {
        let range = |at| ByteRange::new(at * 262_144, 262_144);
        // Some of it dirty, in all parts of the cache.
        for at in 0..200 {
            volume.read(&cpu, range(at), context()).await.expect("read");
            write(&cpu, &volume, at * 64 + 7, at as u8).await;
            cpu.sleep(Duration::from_millis(1)).await;
        }
        let before = kernel.frames().bytes_held();
        // A program takes nearly everything; what the cache returns counts as available.
        let hungry = MemoryFacts { total: GIB, available: 20 * MIB, group: None };
        knob.set_memory(server, hungry);
        cpu.sleep(Duration::from_secs(1)).await;
        let after = kernel.frames().bytes_held();
        for at in 0..200 {
            assert_eq!(read(&cpu, &volume, at * 64 + 7).await, at as u8, "nothing is lost");
        }
        (before, after)
    });
    assert!(before > 40 * MIB, "it grew to {before} only");
    assert!(after <= 4 * MIB, "it kept {after} of {before}");
}

/// Has the cache grow, and keeps a frame of each of its chunks, as idle clients do.
async fn one_of_each_chunk(cpu: &Processor, volume: &Volume) -> Vec<kernel::Frames> {
    let mut held = Vec::new();
    for at in 0..200 {
        volume.read(cpu, ByteRange::new(at * 262_144, 262_144), context()).await.expect("read");
        held.push(cpu.kernel().allocate(cpu, 16).await);
        cpu.sleep(Duration::from_millis(1)).await;
    }
    held.iter_mut().for_each(|frames| frames.truncate(1));
    held
}

#[test]
fn frames_that_are_held_for_long_do_not_keep_the_rest_of_the_cache() {
    /// What others leave to the cache.
    const ROOM: u64 = 24 * MIB;
    let world = World::new(2);
    let (host, volume) = boot(&world, 64 * MIB, Switches::default());
    let (server, kernel, knob) = (host.id, Arc::clone(&host.kernel), world.clone());
    let (before, after) = run(&world, &host, async move |cpu| {
        let _held = one_of_each_chunk(&cpu, &volume).await;
        let before = kernel.frames().bytes_held();
        // Others take more and more. A quarter of memory is the reserve.
        for step in 0..1000 {
            let room = GIB / 4 + ROOM + (1000u64 - step).saturating_sub(200) * (64 << 10);
            let available = room.saturating_sub(kernel.frames().bytes_held());
            knob.set_memory(server, MemoryFacts { total: GIB, available, group: None });
            cpu.sleep(Duration::from_millis(5)).await;
        }
        (before, kernel.frames().bytes_held())
    });
    assert!(before > 2 * ROOM, "it grew to {before} only");
    assert!(after <= ROOM, "it kept {after} of {before}");
}

#[test]
fn memory_that_could_not_be_returned_is_of_use_again_although_some_of_it_is_held() {
    let world = World::new(2);
    let (host, volume) = boot(&world, 64 * MIB, Switches::default());
    let (server, kernel, knob) = (host.id, Arc::clone(&host.kernel), world.clone());
    run(&world, &host, async move |cpu| {
        let held = one_of_each_chunk(&cpu, &volume).await;
        knob.set_memory(server, MemoryFacts { total: GIB, available: 20 * MIB, group: None });
        cpu.sleep(Duration::from_secs(1)).await;
        let (kept, few) = (kernel.frames().chunks_retiring(), kernel.frames().chunks_active());
        assert!(kept > 100 && few < 100, "{kept} cannot be returned, {few} are in use");
        knob.set_memory(server, MemoryFacts { total: GIB, available: GIB, group: None });
        cpu.sleep(Duration::from_secs(1)).await;
        drop(one_of_each_chunk(&cpu, &volume).await);
        assert_eq!(kernel.frames().chunks_retiring(), 0, "all are of use again");
        drop(held);
        let all = kernel.frames().bytes_held() / FRAME_BYTES as u64;
        let (mut one, mut taken) = (kernel::Frames::new(), std::collections::BTreeSet::new());
        let mut frames = Vec::new();
        while kernel.try_allocate(1, &mut one) {
            let frame = one.pop().expect("it was allocated");
            assert!(taken.insert(frame.no()), "{frame:?} was handed out twice");
            frames.push(frame);
        }
        assert!(taken.len() as u64 >= all, "{} of {all}", taken.len());
    });
}

#[test]
fn a_request_given_up_while_it_waits_for_memory_waits_no_more() {
    let world = World::new(3);
    let (host, volume) = boot(&world, 16 * MIB, Switches { dynamic_cache: false, ..Switches::default() });
    let kernel = Arc::clone(&host.kernel);
    run(&world, &host, async move |cpu| {
        let mut all = kernel::Frames::new();
        assert!(!kernel.try_allocate(64 << 10, &mut all), "there are no more");
        let timers = cpu.timers();
        let mut waiting = Box::pin(kernel.allocate(&cpu, 1));
        let is_waiting = poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx).is_pending())).await;
        assert!(is_waiting && cpu.timers() > timers);
        drop(waiting);
        assert_eq!(cpu.timers(), timers, "nobody is woken for it");
        drop(all);
        for at in 0..16 {
            read(&cpu, &volume, at).await;
        }
        cpu.sleep(Duration::from_millis(100)).await;
        let before = cpu.now();
        read(&cpu, &volume, 16).await;
        assert_eq!(cpu.now(), before, "blocks are read ahead again, as memory is not short");
    });
}

#[test]
fn memory_is_in_stock_before_it_is_needed_and_not_before_the_first_is() {
    let world = World::new(7);
    let (host, _volume) = boot(&world, 64 * MIB, Switches::default());
    let kernel = Arc::clone(&host.kernel);
    run(&world, &host, async move |cpu| {
        cpu.sleep(Duration::from_millis(10)).await;
        assert_eq!(kernel.frames().bytes_held(), 0, "nobody has asked for any");
        let mut taken = Vec::new();
        for _ in 0..300 {
            taken.push(kernel.allocate(&cpu, 16).await);
            cpu.sleep(Duration::from_millis(1)).await;
            assert!(kernel.frames().frames_free() >= 16, "the next one would wait");
        }
        let held = kernel.frames().bytes_held();
        let used = (300 * 16 * FRAME_BYTES) as u64;
        assert!(held <= used + 64 * MIB / 32 + (64 << 10), "{held} held for {used}");
    });
}

#[test]
fn shrinking_keeps_what_is_used_often() {
    let world = World::new(2);
    let (host, volume) =
        boot(&world, 32 * MIB, Switches { read_ahead: policy::readahead::Mode::Off, ..Switches::default() });
    let (server, kernel, knob) = (host.id, Arc::clone(&host.kernel), world.clone());
    run(&world, &host, async move |cpu| {
        let blocks = |range: std::ops::Range<u64>| range.step_by(16);
        for at in 0..30 * 256u64 {
            read(&cpu, &volume, at).await;
        }
        for _ in 0..5 {
            for at in blocks(0..30 * 256) {
                read(&cpu, &volume, at).await;
            }
        }
        // Half of the cache must be returned.
        for _ in 0..8 {
            let held = kernel.frames().bytes_held();
            if held > 16 * MIB {
                let reserve = GIB / 4;
                knob.set_memory(
                    server,
                    MemoryFacts { total: GIB, available: reserve.saturating_sub(4 * MIB), group: None },
                );
            } else {
                knob.set_memory(server, MemoryFacts { total: GIB, available: GIB / 4 + 32 * MIB, group: None });
            }
            cpu.sleep(Duration::from_millis(60)).await;
        }
        let hot = blocks(0..30 * 256).filter(|&at| volume.try_read(&cpu, block(at)).is_some()).count();
        assert!(kernel.frames().bytes_held() <= 20 * MIB, "{} held", kernel.frames().bytes_held());
        assert!(hot * 10 >= 480 * 9, "{hot} of 480 hot blocks are left");
    });
}

#[test]
fn book_keeping_is_at_most_two_hundredths_of_what_is_cached() {
    for pattern in ["sequential", "scattered"] {
        let world = World::new(3);
        let switches = Switches { read_ahead: policy::readahead::Mode::Off, ..Switches::default() };
        let (host, volume) = boot(&world, 64 * MIB, switches);
        let kernel = Arc::clone(&host.kernel);
        run(&world, &host, async move |cpu| {
            let mut random = Random(3);
            for at in 0..40_000 {
                let block = if pattern == "sequential" { at % 32_768 } else { random.below(32_768) };
                read(&cpu, &volume, block).await;
            }
            let cached = kernel.cache().len();
            let bytes =
                kernel.cache().bookkeeping_bytes() + cached * kernel::frame::FramePool::bookkeeping_bytes_a_frame();
            let share = bytes as f64 / (cached * FRAME_BYTES) as f64;
            assert!(share <= 0.02, "{pattern}: {:.2} % for {cached} blocks", share * 100.0);
        });
    }
}

#[test]
fn neighbouring_blocks_are_loaded_into_neighbouring_frames() {
    let world = World::new(5);
    let switches = Switches { read_ahead: policy::readahead::Mode::Off, ..Switches::default() };
    let (host, volume) = boot(&world, 16 * MIB, switches);
    let frames_a_chunk = host.kernel.frames().chunk_bytes() / FRAME_BYTES as u64;
    run(&world, &host, async move |cpu| {
        for at in 0..16 {
            let len = 8 * FRAME_BYTES;
            let range = ByteRange::new(at * MIB, len as u64);
            let frames = volume.read(&cpu, range, context()).await.expect("read");
            let pieces = kernel::frame::segments(&frames, 0, len).len() as u64;
            assert!(pieces <= 1 + 8u64.div_ceil(frames_a_chunk), "{pieces} pieces: {frames:?}");
        }
    });
}

#[test]
fn a_scan_of_twice_the_cache_leaves_the_hot_set() {
    for (resistant, least, most) in [(true, 950, 1000), (false, 0, 100)] {
        let world = World::new(4);
        let (host, volume) = boot(&world, 16 * MIB, Switches { scan_resistant: resistant, ..Switches::default() });
        run(&world, &host, async move |cpu| {
            for _ in 0..4 {
                for at in 0..1000u64 {
                    read(&cpu, &volume, at * 3).await;
                }
            }
            for at in 0..2 * 16 * 256 / 64 {
                volume.read(&cpu, ByteRange::new(64 * MIB + at * 262_144, 262_144), context()).await.expect("read");
            }
            let left = (0..1000).filter(|&at| volume.try_read(&cpu, block(at * 3)).is_some()).count();
            assert!((least..=most).contains(&left), "{left} of 1000 are left; scan resistant: {resistant}");
        });
    }
}

#[test]
fn clean_blocks_behind_many_dirty_ones_leave_at_once_for_those_who_need_frames() {
    let world = World::new(8);
    let switches = Switches { dynamic_cache: false, read_ahead: policy::readahead::Mode::Off, ..Switches::default() };
    let (host, volume) = boot(&world, 16 * MIB, switches);
    let kernel = Arc::clone(&host.kernel);
    run(&world, &host, async move |cpu| {
        // A third of the cache: written in advance of everything else, and not flushed before a second has passed.
        for at in 0..1300 {
            write(&cpu, &volume, at, 1).await;
        }
        for at in 0..2700 {
            read(&cpu, &volume, 8192 + at).await;
        }
        let before = cpu.now();
        let mut taken = kernel::Frames::new();
        assert!(kernel.try_allocate(2000, &mut taken), "only {} of 2000 without waiting", taken.len());
        assert_eq!(cpu.now(), before);
    });
}
