//! A job's share of processors and disks that others use as well.

use kernel::device::{Checked, Device, DeviceRef, FileDevice, FixedLatency, RamDisk};
use kernel::job::{Client, JobId};
use kernel::queue::{DiskQueue, Queued};
use kernel::request::{Action, Context, Outcome, Request};
use kernel::volume::VolumeConfig;
use kernel::{ForcedUnitAccess, Processor, Switches, Volume};
use policy::unit::{ByteRange, DiskNo, Instant, ProcessorId};
use sim::{DiskConfig, World};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use testkit::scene::{Host, boot, drive, run, small_kernel};

const HEAVY: Client = Client::User(1);
const LIGHT: Client = Client::User(2);

fn host(seed: u64, usage: bool) -> (World, Host) {
    boot(seed, small_kernel(2, 4 << 20, Switches { usage, ..Switches::default() }))
}

/// A volume whose housekeeping the second processor does.
fn open(host: &Host, device: DeviceRef) -> Arc<Volume> {
    let forced_unit_access = ForcedUnitAccess::Always;
    let config = VolumeConfig { name: "disk".into(), read_only: false, forced_unit_access, grows: false };
    Volume::open(&host.kernel, device, config, ProcessorId(1)).expect("a number")
}

/// Waits, and is ready again at once, in the same time slice.
async fn ready_again() {
    let mut waited = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut waited, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Eight connections of one client with 64 requests each are always ready; another client has one. Returns the most
/// requests of the first that run between two of the second's, after the first.
fn most_passed(usage: bool) -> usize {
    let (world, host) = host(1, usage);
    let jobs = host.kernel.jobs();
    let (heavy, light) = (jobs.connect(HEAVY), jobs.connect(LIGHT));
    let over = Rc::new(Cell::new(false));
    let ran = Rc::new(Cell::new(0));
    let cpu = &host.processors[0];
    for _ in 0..8 * 64 {
        let (over, ran) = (Rc::clone(&over), Rc::clone(&ran));
        cpu.spawn_for(heavy.job(), async move {
            while !over.get() {
                ran.set(ran.get() + 1);
                ready_again().await;
            }
        });
    }
    let passed = Rc::new(RefCell::new(Vec::new()));
    let (end, told) = (Rc::clone(&over), Rc::clone(&passed));
    cpu.spawn_for(light.job(), async move {
        for _ in 0..20 {
            let before = ran.get();
            ready_again().await;
            told.borrow_mut().push(ran.get() - before);
        }
        end.set(true);
    });
    world.kick(host.id, cpu.id());
    assert!(drive(&world, &[&host], || over.get()), "{}", world.describe());
    passed.take().into_iter().skip(1).max().expect("twenty turns")
}

#[test]
fn the_tasks_of_a_light_client_pass_those_of_a_heavy_one() {
    let (on, off) = (most_passed(true), most_passed(false));
    assert!(on <= 8, "{on} tasks of the heavy one ran in between");
    assert_eq!(off, 8 * 64, "first come, first served");
}

#[test]
fn a_task_that_used_much_still_has_its_turn() {
    let (world, host) = host(2, true);
    let jobs = host.kernel.jobs();
    let (heavy, light) = (jobs.connect(HEAVY), jobs.connect(LIGHT));
    let cpu = &host.processors[0];
    let (heavy_ran, light_ran) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    for (job, ran, begin) in [(heavy.job(), &heavy_ran, 0), (light.job(), &light_ran, 1000)] {
        let (ran, other) = (Rc::clone(ran), Rc::clone(&heavy_ran));
        cpu.spawn_for(job, async move {
            while other.get() < 2000 {
                // The light one begins only after the heavy one has used much.
                ran.set(ran.get() + usize::from(other.get() >= begin));
                ready_again().await;
            }
        });
    }
    world.kick(host.id, cpu.id());
    assert!(drive(&world, &[&host], || heavy_ran.get() >= 2000), "{}", world.describe());
    assert!(light_ran.get() <= 8 * 2000, "{}", light_ran.get());
}

#[test]
fn what_another_processor_does_for_a_job_is_charged_to_it_also_when_it_was_started_by_its_tasks() {
    let (world, host) = host(3, true);
    let member = host.kernel.jobs().connect(HEAVY);
    let job = member.job();
    let seen = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let note = |cpu: &Processor, seen: &parking_lot::Mutex<Vec<(ProcessorId, JobId)>>| {
        seen.lock().push((cpu.id(), cpu.job()));
    };
    let (cpu, there) = (host.processors[0].clone(), Arc::clone(&seen));
    host.processors[0].spawn_for(job, async move {
        cpu.spawn_on(ProcessorId(1), move |other| {
            let here = other.clone();
            other.spawn(async move {
                note(&here, &there);
                for _ in 0..100 {
                    here.yield_now().await;
                    here.sleep(Duration::from_millis(1)).await;
                }
                let child = here.clone();
                here.spawn(async move { note(&child, &there) });
            });
        });
    });
    world.kick(host.id, ProcessorId(0));
    let ended = drive(&world, &[&host], || seen.lock().len() == 2);
    assert!(ended, "{}", world.describe());
    assert_eq!(*seen.lock(), [(ProcessorId(1), job); 2]);
    let facts = host.kernel.jobs().list();
    assert!(facts[0].used > Duration::ZERO && facts[0].recent > Duration::ZERO, "{facts:?}");
}

#[test]
fn write_back_is_charged_to_the_job_that_wrote() {
    let (world, host) = host(4, true);
    let disk = world.add_disk(host.id, DiskConfig::new(4 << 20));
    let device = Arc::new(Checked::new(Arc::new(FileDevice::new(world.open(disk, true)))));
    let volume = open(&host, device);
    let member = host.kernel.jobs().connect(HEAVY);
    let job = member.job();
    let writer = Arc::clone(&volume);
    run(&world, &host, async move |cpu| {
        for block in 0..200 {
            let frames = cpu.kernel().allocate(&cpu, 1).await;
            let range = ByteRange::new(block * 8192 % (4 << 20), 4096);
            // The task has no job: only the writes are charged.
            writer.write(&cpu, range, frames, Context::synchronous(job)).await.expect("written");
        }
    });
    assert_eq!(host.kernel.jobs().list()[0].used, Duration::ZERO);
    let clean = drive(&world, &[&host], || host.kernel.dirty_blocks() == 0);
    assert!(clean, "{}", world.describe());
    let told = drive(&world, &[&host], || host.kernel.jobs().list()[0].used > Duration::ZERO);
    assert!(told, "{:?}", host.kernel.jobs().list());
}

const LATENCY: Duration = Duration::from_millis(5);

/// A disk of depth 4 has 512 requests of one job; another job has one at a time. Returns its longest wait.
fn longest_wait(fair: bool) -> Duration {
    let (world, host) = host(5, true);
    let config = policy::queue::Config { fair, merge: false, depth: 4, ..Default::default() };
    let slow = Arc::new(FixedLatency::new(Arc::new(RamDisk::new(16 << 20, DiskNo(0))), LATENCY));
    let device = Arc::new(Queued::new(Arc::new(DiskQueue::new(config)), slow));
    let jobs = host.kernel.jobs();
    let (heavy, light) = (jobs.connect(HEAVY), jobs.connect(LIGHT));
    let cpu = &host.processors[0];
    for number in 0..512 {
        let (here, device, job) = (cpu.clone(), Arc::clone(&device), heavy.job());
        cpu.spawn_for(job, async move { read(&here, &device, number, job).await });
    }
    let waits: Rc<RefCell<Vec<Duration>>> = Rc::default();
    let (here, told, job) = (cpu.clone(), Rc::clone(&waits), light.job());
    cpu.spawn_for(job, async move {
        // After all others have arrived.
        here.sleep(LATENCY / 2).await;
        for number in 1000..1010 {
            let began: Instant = here.now();
            read(&here, &device, number, job).await;
            told.borrow_mut().push(here.now().since(began));
        }
    });
    world.kick(host.id, cpu.id());
    assert!(drive(&world, &[&host], || waits.borrow().len() == 10), "{}", world.describe());
    waits.take().into_iter().max().expect("ten reads")
}

async fn read(cpu: &Processor, device: &Queued, block: u64, job: JobId) {
    let frames = cpu.kernel().allocate(cpu, 1).await;
    let request = Request {
        action: Action::Read(ByteRange::new(block * 8192, 4096), frames),
        context: Context::synchronous(job),
    };
    assert_eq!(device.perform(cpu, request).await, Ok(Outcome::Done));
}

#[test]
fn a_disk_that_one_job_keeps_busy_serves_another_soon() {
    let (on, off) = (longest_wait(true), longest_wait(false));
    // The requests in the disk, one that was already next, its own.
    assert!(on <= LATENCY * 3, "{on:?}");
    assert!(off >= LATENCY * (512 / 4 - 1), "{off:?}: the test would show nothing");
}

/// A job writes to a slow disk as fast as it may, another five times to a fast one. Returns the second's writes within
/// ten seconds and their longest wait.
fn writes_beside(usage: bool) -> (usize, Duration) {
    let (world, host) = host(6, usage);
    let with = |latency: Duration| {
        let disk = FixedLatency::new(Arc::new(RamDisk::new(64 << 20, DiskNo(0))), latency);
        let queue = Arc::new(DiskQueue::new(policy::queue::Config { depth: 1, ..Default::default() }));
        open(&host, Arc::new(Queued::new(queue, Arc::new(disk))))
    };
    let (slow, fast) = (with(LATENCY * 4), with(Duration::from_micros(10)));
    let jobs = host.kernel.jobs();
    let (heavy, light) = (jobs.connect(HEAVY), jobs.connect(LIGHT));
    let cpu = &host.processors[0];
    let over = Rc::new(Cell::new(false));
    for writer in 0..16u64 {
        let (here, volume, over, job) = (cpu.clone(), Arc::clone(&slow), Rc::clone(&over), heavy.job());
        cpu.spawn_for(job, async move {
            // No two blocks are neighbours: each is a transfer.
            for block in (0..).map(|number| (number * 16 + writer) * 2 % (64 << 20 >> 12)) {
                if over.get() {
                    return;
                }
                write(&here, &volume, block, job).await;
            }
        });
    }
    let waits: Rc<RefCell<Vec<Duration>>> = Rc::default();
    let (here, told, job) = (cpu.clone(), Rc::clone(&waits), light.job());
    cpu.spawn_for(job, async move {
        // When the cache is as full as it gets.
        here.sleep(Duration::from_millis(500)).await;
        for block in 0..5 {
            let began = here.now();
            write(&here, &fast, block, job).await;
            told.borrow_mut().push(here.now().since(began));
            here.sleep(LATENCY).await;
        }
        over.set(true);
    });
    world.kick(host.id, cpu.id());
    assert!(
        drive(&world, &[&host], || waits.borrow().len() == 5 || cpu.now() >= Instant::ZERO + Duration::from_secs(10)),
        "{}",
        world.describe()
    );
    let facts = host.kernel.jobs().list();
    let dirty: u64 = facts.iter().map(|facts| facts.dirty_blocks).sum();
    assert_eq!(dirty, host.kernel.dirty_blocks(), "all of it is somebody's: {facts:?}");
    let waits = waits.take();
    (waits.len(), waits.into_iter().max().unwrap_or_default())
}

async fn write(cpu: &Processor, volume: &Volume, block: u64, job: JobId) {
    let frames = cpu.kernel().allocate(cpu, 1).await;
    let range = ByteRange::new(block * 4096, 4096);
    volume.write(cpu, range, frames, Context::synchronous(job)).await.expect("written");
}

#[test]
fn a_job_that_writes_to_a_slow_disk_leaves_room_in_the_cache_for_another() {
    let ((number, longest), off) = (writes_beside(true), writes_beside(false));
    assert!(number == 5 && longest <= Duration::from_millis(1), "{number} writes, {longest:?}");
    // Without usage, the most frequent writer gets what becomes free.
    assert!(off.0 < 5 || off.1 >= LATENCY * 4, "{off:?}: the test would show nothing");
}
