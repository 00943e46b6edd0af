//! A disk that accepts nothing any more: its clients get errors, and clients of other disks hardly notice.

use kernel::device::{Checked, FileDevice};
use kernel::{ForcedUnitAccess, Kernel, Processor, Switches, Volume};
use machine::Errno;
use policy::unit::{ByteRange, Instant};
use sim::{DiskConfig, DiskFaults, DiskId, World};
use std::sync::Arc;
use std::time::Duration;
use testkit::scene::disk::{Server, block, fill, first_byte, volume};
use testkit::scene::{Host, boot, context, run, run_beside, small_kernel, spawn, stable};

const MIB: u64 = 1 << 20;

fn open(world: &World, kernel: &Arc<Kernel>, disk: DiskId) -> Arc<Volume> {
    let device = Arc::new(Checked::new(Arc::new(FileDevice::new(world.open(disk, true)))));
    volume(kernel, device, ForcedUnitAccess::Never)
}

/// A host whose cache has room for 1024 blocks, with a disk that is going to fail and a good one.
struct Scene {
    world: World,
    host: Host,
    bad_disk: DiskId,
    good_disk: DiskId,
    bad: Arc<Volume>,
    good: Arc<Volume>,
}

impl Scene {
    fn new(seed: u64) -> Scene {
        let switches = Switches { read_ahead: policy::readahead::Mode::Off, ..Switches::default() };
        let (world, host) = boot(seed, small_kernel(2, 4 * MIB, switches));
        let disk = || world.add_disk(host.id, DiskConfig::new(16 * MIB));
        let (bad_disk, good_disk) = (disk(), disk());
        let open = |disk| open(&world, &host.kernel, disk);
        Scene { bad: open(bad_disk), good: open(good_disk), world, host, bad_disk, good_disk }
    }

    /// Runs a task with the bad disk and its volume.
    fn run<T: 'static>(&self, task: impl AsyncFnOnce(Processor, World, DiskId, Arc<Volume>) -> T + 'static) -> T {
        let (world, disk, bad) = (self.world.clone(), self.bad_disk, Arc::clone(&self.bad));
        run(&self.world, &self.host, async move |cpu| task(cpu, world, disk, bad).await)
    }

    /// Of every second block of the bad disk, what [`write_every_second`] wrote is durable.
    fn assert_every_second_is_durable(&self, count: u64) {
        for number in (0..count).map(|number| number * 2) {
            let durable = self.world.read_durable(self.bad_disk, block(number));
            assert!(durable.iter().all(|&byte| byte == 1), "block {number}");
        }
    }
}

async fn write(cpu: &Processor, volume: &Volume, number: u64, byte: u8) -> Result<(), Errno> {
    fill(cpu, volume, block(number), byte, context()).await
}

async fn write_every_second(cpu: &Processor, bad: &Volume, count: u64) {
    for number in 0..count {
        write(cpu, bad, number * 2, 1).await.expect("cached");
    }
}

fn no_writes() -> DiskFaults {
    DiskFaults { write_error_permille: 1000, ..DiskFaults::default() }
}

fn no_flushes() -> DiskFaults {
    DiskFaults { flush_error_permille: 1000, ..DiskFaults::default() }
}

#[test]
fn what_a_dead_disk_cannot_take_does_not_make_writers_of_others_wait() {
    let scene = Scene::new(1);
    let good = Arc::clone(&scene.good);
    let slowest = scene.run(async move |cpu, world, bad_disk, bad| {
        // As much as any volume may have dirty.
        write_every_second(&cpu, &bad, 400).await;
        world.set_faults(bad_disk, no_writes());
        bad.flush(&cpu, context()).await.expect_err("the disk takes nothing");
        let mut slowest = Duration::ZERO;
        for block in 0..2000 {
            let start = cpu.now();
            write(&cpu, &good, block, 2).await.expect("the good disk works");
            slowest = slowest.max(cpu.now().since(start));
        }
        good.flush(&cpu, context()).await.expect("flushed");
        slowest
    });
    assert!(slowest < Duration::from_secs(1), "a write took {slowest:?}");
}

#[test]
fn writers_to_a_dead_disk_get_its_error_and_do_not_wait_for_it_to_write() {
    let memory = small_kernel(1, 512 * MIB, Switches::default());
    let server = Server::of(6, memory, DiskConfig::new(128 * MIB));
    let bad = server.volume(ForcedUnitAccess::Never);
    server.world.set_faults(server.disk, no_writes());
    let taken = server.run(async move |cpu, _, _| {
        let mut block = 0;
        while write(&cpu, &bad, block, 1).await.is_ok() {
            block += 1;
        }
        assert!(cpu.now() < Instant::ZERO + Duration::from_secs(60), "the error came after {}", cpu.now());
        block
    });
    assert!((4096..8192).contains(&taken), "{taken} blocks were taken");
}

#[test]
fn a_dead_disk_holds_a_twentieth_of_the_cache_in_the_end_and_nobody_is_told_that_it_is_well() {
    let scene = Scene::new(2);
    scene.run(async move |cpu, world, bad_disk, bad| {
        write_every_second(&cpu, &bad, 400).await;
        world.set_faults(bad_disk, no_writes());
        cpu.sleep(Duration::from_secs(20)).await;
        assert_eq!(bad.dirty_blocks(), 400, "the disk may come back");
        assert_eq!(write(&cpu, &bad, 1001, 1).await, Err(Errno::IO), "and takes no more until it does");
        cpu.sleep(Duration::from_secs(40)).await;
        let left = bad.dirty_blocks();
        assert!((1..=1024 / 20).contains(&left), "{left} blocks are left");
        // An abandoned block must not read as the disk's older content.
        let mut answers = [0, 0];
        for block in 0..400 {
            match first_byte(&cpu, &bad, block * 2).await {
                Ok(1) => answers[0] += 1,
                Err(Errno::IO) => answers[1] += 1,
                other => panic!("block {}: {other:?}", block * 2),
            }
        }
        assert_eq!(answers, [left, 400 - left]);
        assert!(bad.extents(&cpu, ByteRange::new(0, 4 * MIB), 100).await.is_err(), "a hole is no zero here");
        // Even when the disk works again.
        world.set_faults(bad_disk, DiskFaults::default());
        cpu.sleep(Duration::from_secs(60)).await;
        for _ in 0..3 {
            assert_eq!(bad.flush(&cpu, context()).await, Err(Errno::IO));
            assert_eq!(write(&cpu, &bad, 1001, 1).await, Err(Errno::IO));
        }
        assert_eq!(first_byte(&cpu, &bad, 2001).await, Ok(0), "what was never written is read");
        assert_eq!(bad.dirty_blocks(), 0, "what was kept is written now");
    });
}

#[test]
fn a_disk_that_comes_back_before_memory_is_needed_loses_nothing() {
    let scene = Scene::new(3);
    scene.run(async move |cpu, world, bad_disk, bad| {
        write_every_second(&cpu, &bad, 50).await;
        world.set_faults(bad_disk, DiskFaults { flush_error_permille: 1000, ..no_writes() });
        bad.flush(&cpu, context()).await.expect_err("the disk takes nothing");
        cpu.sleep(Duration::from_secs(600)).await;
        bad.flush(&cpu, context()).await.expect_err("nor after ten minutes");
        world.set_faults(bad_disk, DiskFaults::default());
        bad.flush(&cpu, context()).await.expect("it works again");
    });
    scene.assert_every_second_is_durable(50);
}

#[test]
fn after_a_stop_of_the_process_a_disk_is_tried_before_anything_is_given_up() {
    let scene = Scene::new(9);
    let other = Host::boot(&scene.world, scene.world.add_host("other"), small_kernel(1, MIB, Switches::default()));
    let (world, host, disk) = (scene.world.clone(), scene.host.id, scene.bad_disk);
    spawn(&other.processors[0], async move |cpu| {
        cpu.sleep(Duration::from_secs(10)).await;
        world.pause(host, true);
        cpu.sleep(Duration::from_secs(60)).await;
        world.set_faults(disk, DiskFaults::default());
        world.pause(host, false);
    });
    scene.world.kick(other.id, other.processors[0].id());
    let (world, bad) = (scene.world.clone(), Arc::clone(&scene.bad));
    run_beside(&scene.world, &scene.host, &[&scene.host, &other], async move |cpu| {
        write_every_second(&cpu, &bad, 400).await;
        world.set_faults(disk, no_writes());
        bad.flush(&cpu, context()).await.expect_err("the disk takes nothing");
        cpu.sleep(Duration::from_secs(30)).await;
        assert!(cpu.now() >= Instant::from_ns(70_000_000_000), "it was stopped");
        cpu.sleep(Duration::from_secs(5)).await;
        bad.flush(&cpu, context()).await.expect("it works again");
    });
    scene.assert_every_second_is_durable(400);
}

#[test]
fn a_disk_that_cannot_flush_does_not_keep_the_cache_for_ever() {
    let scene = Scene::new(4);
    let good = Arc::clone(&scene.good);
    let kernel = Arc::clone(&scene.host.kernel);
    scene.run(async move |cpu, world, bad_disk, bad| {
        world.set_faults(bad_disk, no_flushes());
        // Its writes succeed, so no block is dirty for long, but all remain unflushed.
        let mut refused = None;
        for block in 0..3000 {
            refused = refused.or(write(&cpu, &bad, block, 1).await.err());
        }
        assert_eq!(refused, Some(Errno::IO));
        cpu.sleep(Duration::from_secs(60)).await;
        let start = cpu.now();
        for block in 0..2000 {
            write(&cpu, &good, block, 2).await.expect("the good disk works");
        }
        assert!(cpu.now().since(start) < Duration::from_secs(5), "it took {:?}", cpu.now().since(start));
        good.flush(&cpu, context()).await.expect("flushed");
        let mut all = kernel::Frames::new();
        assert!(kernel.try_allocate(900, &mut all), "only {} of 1024 frames can be had", all.len());
        drop(all);
        world.set_faults(bad_disk, DiskFaults::default());
        assert_eq!(bad.flush(&cpu, context()).await, Err(Errno::IO), "nobody knows what the disk forgot");
        assert_eq!(first_byte(&cpu, &bad, 5).await, Ok(1));
    });
    assert!(scene.world.disk_counters(scene.good_disk).flushes > 0);
}

#[test]
fn one_whose_flush_failed_is_written_after_forced_writes_although_a_dead_disk_holds_much() {
    let scene = Scene::new(8);
    let (dead_disk, dead) = (scene.good_disk, Arc::clone(&scene.good));
    scene.run(async move |cpu, world, disk, _| {
        let device = Arc::new(FileDevice::new(world.open(disk, true)));
        let good = volume(cpu.kernel(), device, ForcedUnitAccess::Always);
        write(&cpu, &good, 0, 1).await.expect("cached");
        world.set_faults(disk, no_flushes());
        good.flush(&cpu, context()).await.expect_err("it fails once");
        world.set_faults(disk, DiskFaults::default());
        fill(&cpu, &good, block(0), 2, stable()).await.expect("forced");
        assert!(good.is_clean());
        write_every_second(&cpu, &dead, 200).await;
        world.set_faults(dead_disk, no_writes());
        dead.flush(&cpu, context()).await.expect_err("the disk takes nothing");
        write(&cpu, &good, 1, 3).await.expect("the disk works");
        good.flush(&cpu, context()).await.expect("flushed");
    });
}

#[test]
fn many_volumes_on_a_dead_disk_hold_no_more_together_than_one() {
    let scene = Scene::new(5);
    scene.run(async move |cpu, world, bad_disk, _| {
        let files: Vec<_> = (0..20).map(|_| open(&world, cpu.kernel(), bad_disk)).collect();
        world.set_faults(bad_disk, no_writes());
        let mut refused = 0;
        for block in 0..100 {
            for file in &files {
                refused += u64::from(write(&cpu, file, block, 1).await.is_err());
                cpu.sleep(Duration::from_millis(5)).await;
            }
            for file in &files {
                let _ = file.flush(&cpu, context()).await;
            }
        }
        let held: u64 = files.iter().map(|file| file.dirty_blocks()).sum();
        assert!(held <= 1024 / 20 + 20, "{held} blocks are held");
        assert!(refused > 1500, "{refused} writes were refused");
        files.iter().for_each(|file| file.stop());
    });
}

#[test]
fn a_flush_that_fails_once_costs_nothing_however_much_it_covered() {
    let scene = Scene::new(7);
    scene.run(async move |cpu, world, bad_disk, bad| {
        write_every_second(&cpu, &bad, 400).await;
        world.set_faults(bad_disk, no_flushes());
        bad.flush(&cpu, context()).await.expect_err("the disk cannot flush");
        world.set_faults(bad_disk, DiskFaults::default());
        cpu.sleep(Duration::from_secs(90)).await;
        assert!(bad.is_clean(), "write-back has done it again");
        bad.flush(&cpu, context()).await.expect("it works again");
    });
    scene.assert_every_second_is_durable(400);
}
