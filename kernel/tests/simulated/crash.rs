//! A volume on a simulated disk: what was acknowledged as durable survives every crash.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use kernel::request::{Context, JobId};
use kernel::{Processor, Switches, Volume};
use policy::access;
use policy::delivery::Method;
use policy::unit::{ByteRange, ProcessorId, Stability};
use sim::{DiskConfig, World};
use testkit::random::Random;
use testkit::rounds::for_seeds;
use testkit::scene::disk::{add_faults, drawn_switches, open_disk, read};
use testkit::scene::files::frames_of;
use testkit::scene::model::{Model, SECTOR, Stamp, stamped};
use testkit::scene::{Host, context, drive, run, small_kernel, spawn};

const DISK_BYTES: u64 = 4 << 20;
const CLIENTS: u64 = 3;
const CACHE_BYTES: u64 = 1 << 20;

/// Any switches, also those that take effect only later.
fn any_switches(random: &mut Random) -> Switches {
    use policy::{color, pages, quantum, readahead};
    let long = std::time::Duration::from_micros(random.below(2000));
    Switches {
        dynamic_cache: random.chance(500),
        read_ahead: [readahead::Mode::Off, readahead::Mode::Fixed { blocks: 8 }, Switches::default().read_ahead]
            [random.below(3) as usize],
        quantum: [quantum::Mode::Off, quantum::Mode::Adaptive, quantum::Mode::Fixed { quantum: long }]
            [random.below(3) as usize],
        huge_pages: [pages::Mode::Auto, pages::Mode::Huge, pages::Mode::Small][random.below(3) as usize],
        registered_buffers: random.chance(500),
        color: [color::Choice::Auto, color::Choice::On, color::Choice::Off][random.below(3) as usize],
        trace: kernel::trace::Mode::ALL[random.below(4) as usize],
        ..drawn_switches(random.next())
    }
}

#[derive(Clone, Copy)]
struct Weather {
    /// Does the disk fail occasionally?
    faulty: bool,
    changing: bool,
}

/// One random operation; `model` follows it.
async fn operate(cpu: &Processor, volume: &Volume, model: &RefCell<Model>, random: &mut Random, stamp: Stamp) {
    let context = Context::synchronous(JobId(1));
    let (start, len) = (model.borrow().start(), model.borrow().sectors());
    let count = 1 + if random.chance(300) { random.below(len / 2) } else { random.below(24) };
    let sector = start + random.below(len - count);
    let range = ByteRange::new(sector * SECTOR, count * SECTOR);
    let stability = if random.chance(250) { Stability::Stable } else { Stability::Unstable };
    let context = context.with_stability(stability);
    let result = match random.below(10) {
        0..4 => {
            let frames = frames_of(cpu, range.at.0, &stamped(count, stamp)).await;
            model.borrow_mut().begin(sector, count, stamp);
            volume.write(cpu, range, frames, context).await
        }
        4 => {
            model.borrow_mut().begin(sector, count, 0);
            volume.zero(cpu, range, random.chance(500), false, context).await
        }
        5 => {
            // Partial blocks keep their content: discard whole blocks only.
            if !sector.is_multiple_of(8) || !count.is_multiple_of(8) {
                return;
            }
            model.borrow_mut().begin(sector, count, 0);
            let result = volume.discard(cpu, range, context).await;
            // A discard may be ignored: either content is right.
            if result.is_ok() {
                return;
            }
            result
        }
        6..8 => {
            if let Ok(bytes) = read(cpu, volume, range, context).await {
                model.borrow().assert_read(sector, &bytes);
            }
            return;
        }
        _ => {
            if volume.flush(cpu, context).await.is_ok() {
                model.borrow_mut().flushed();
            }
            return;
        }
    };
    match (result, stability) {
        (Ok(()), Stability::Unstable) => model.borrow_mut().acknowledge(sector, count),
        (Ok(()), Stability::Stable) => model.borrow_mut().acknowledge_durable(sector, count),
        (Err(_), _) => {}
    }
}

fn crash_test(seed: u64, Weather { faulty, changing }: Weather, processors: u16, switches: impl Fn(u64) -> Switches) {
    let mut random = Random(seed);
    let world = World::new(seed);
    let id = world.add_host("server");
    let mut config = DiskConfig::drawn(DISK_BYTES, seed);
    if faulty {
        add_faults(&mut config, &mut random);
    }
    let disk = world.add_disk(id, config);
    let each = DISK_BYTES / SECTOR / CLIENTS;
    let models: Vec<_> = (0..CLIENTS).map(|client| Rc::new(RefCell::new(Model::new(client * each, each)))).collect();
    let mut stamp: Stamp = 1;
    for life in 0..3 {
        let host = Host::boot(&world, id, small_kernel(processors, CACHE_BYTES, switches(seed + life)));
        let volume = open_disk(&world, &host, disk, seed);
        verify(&world, &host, &volume, &models);
        let tasks: Vec<_> = models
            .iter()
            .enumerate()
            .map(|(client, model)| {
                let (volume, model) = (Arc::clone(&volume), Rc::clone(model));
                let mut own = Random(random.next());
                let base = stamp + (client as u64) * 1_000_000;
                spawn(&host.processors[client % usize::from(processors)], async move |cpu| {
                    for step in 0..60 {
                        operate(&cpu, &volume, &model, &mut own, base + step).await;
                    }
                })
            })
            .collect();
        stamp += CLIENTS * 1_000_000;
        for cpu in &host.processors {
            world.kick(id, cpu.id());
        }
        // On a failing disk, dirty blocks that can never be flushed must not block a waiter forever either.
        let is_patient = changing && random.chance(500);
        let mut steps = if is_patient { u64::MAX } else { 100 + random.below(1500) };
        let ended = drive(&world, &[&host], || {
            steps -= 1;
            if changing && random.chance(30) {
                host.kernel.set_switches(any_switches(&mut random));
            }
            steps == 0 || tasks.iter().all(|task| task.borrow().is_some())
        });
        assert!(ended, "somebody waits for ever: {}", world.describe());
        drop(volume);
        world.crash(id, random.chance(700));
        host.die();
    }
    // The disk works again: its content must be right.
    world.set_faults(disk, Default::default());
    let host = Host::boot(&world, id, small_kernel(1, CACHE_BYTES, Switches::default()));
    let volume = open_disk(&world, &host, disk, seed);
    verify(&world, &host, &volume, &models);
    drop(volume);
    host.die();
}

/// Reads everything and compares it with what the models allow.
fn verify(world: &World, host: &Host, volume: &Arc<Volume>, models: &[Rc<RefCell<Model>>]) {
    let models = models.to_vec();
    let volume = Arc::clone(volume);
    run(world, host, async move |cpu| {
        for model in models {
            let read = async |sector, count| {
                read(&cpu, &volume, ByteRange::new(sector * SECTOR, count * SECTOR), context()).await
            };
            Model::verify(&model, read).await;
        }
    });
}

#[test]
fn what_was_flushed_or_forced_survives_every_crash() {
    for_seeds("what_was_flushed_or_forced_survives_every_crash", 150, |seed| {
        crash_test(seed, Weather { faulty: false, changing: false }, 2, drawn_switches);
    });
}

#[test]
fn what_was_flushed_or_forced_survives_crashes_of_a_failing_disk() {
    for_seeds("what_was_flushed_or_forced_survives_crashes_of_a_failing_disk", 150, |seed| {
        crash_test(seed, Weather { faulty: true, changing: false }, 2, drawn_switches);
    });
}

/// All ways in which processors can handle each other's requests.
fn combinations() -> Vec<(u16, access::Mode, Method, bool)> {
    let fixed = |number| Method::Fixed(ProcessorId(number));
    let methods = [fixed(0), fixed(1), Method::Initiator, Method::Idle, Method::Busiest, Method::All];
    let mut all = Vec::new();
    for processors in [2, 3] {
        for access in [access::Mode::Symmetric, access::Mode::Funnel] {
            for delivery in methods {
                all.extend([false, true].map(|immediate| (processors, access, delivery, immediate)));
            }
        }
    }
    all
}

#[test]
fn whoever_starts_a_device_and_takes_its_completions_nothing_is_lost() {
    let combinations = combinations();
    let rounds = 4 * combinations.len() as u64;
    for_seeds("whoever_starts_a_device_and_takes_its_completions_nothing_is_lost", rounds, |seed| {
        let round = seed / combinations.len() as u64;
        let (processors, access, delivery, immediate_dispatch) =
            combinations[(seed % combinations.len() as u64) as usize];
        println!(
            "seed {seed}: {processors} processors, {access:?}, {delivery:?}, immediate dispatch {immediate_dispatch}"
        );
        let chosen = |seed| Switches { access, delivery, immediate_dispatch, ..drawn_switches(seed) };
        crash_test(seed, Weather { faulty: round % 2 == 1, changing: false }, processors, chosen);
    });
}

#[test]
fn what_clients_get_does_not_depend_on_changes_of_the_switches_under_load() {
    for_seeds("what_clients_get_does_not_depend_on_changes_of_the_switches_under_load", 150, |seed| {
        crash_test(seed, Weather { faulty: seed % 3 == 2, changing: true }, 2, drawn_switches);
    });
}
