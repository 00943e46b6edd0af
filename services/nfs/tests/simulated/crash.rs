//! The whole server and clients: what was reported to clients over NFS is true after every crash.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::stage::lane::{Lane, Terms};
use crate::stage::{Life, Setup, Stage};
use sim::DiskFaults;
use testkit::random::Random;
use testkit::rounds::for_seeds;
use testkit::scene::{drive, spawn};

/// Clients, each with one request in flight.
const LANES: usize = 5;
const LIVES: u64 = 3;
const STEPS_A_LIFE: u64 = 60;

static ANSWERED: AtomicU64 = AtomicU64::new(0);

type Lanes = Vec<Rc<RefCell<Option<Lane>>>>;

fn faults(random: &mut Random) -> DiskFaults {
    DiskFaults {
        read_error_permille: 5,
        write_error_permille: 15,
        flush_error_permille: 60,
        short_write_permille: 50,
        failed_flush_drops: random.chance(700),
        ..DiskFaults::default()
    }
}

/// The clients reconnect, with their old handles, and verify.
fn verify(stage: &Stage, life: &Life, lanes: &Lanes, is_settled: bool) {
    for (no, slot) in lanes.iter().enumerate() {
        let mut lane = slot.take().expect("nobody uses it");
        lane.client = stage.client(life, no as u8);
        let lane = stage.run(life, async move |_| {
            lane.verify(is_settled).await;
            let root = lane.client.mount().await.expect("the root");
            let shared = lane.client.lookup(&root, "shared").await.expect("it is there");
            let content = lane.client.read_all(&shared.handle, 1 << 20).await.expect("it can be read");
            lane.stripe.verify(&content, is_settled);
            lane
        });
        slot.replace(Some(lane));
    }
    // The present names and attributes count.
    stage.world.sync_tree(stage.tree);
}

/// The clock is set, by up to two seconds.
fn step_clock(stage: &Stage, random: &mut Random) {
    stage.world.step_time_of_day(random.below(4_000_000_000) as i64 - 2_000_000_000);
}

/// Random requests up to a random moment, and the crash: true if the power was cut.
fn live(stage: &Stage, life: Life, lanes: &Lanes, random: &mut Random) -> bool {
    let cpu = &stage.clients.processors[0];
    let mut tasks = Vec::new();
    for slot in lanes {
        let mut lane = slot.take().expect("nobody uses it");
        lane.client.book.repeats.set(50);
        let slot = Rc::clone(slot);
        tasks.push(spawn(cpu, async move |_| {
            lane.run(STEPS_A_LIFE).await;
            ANSWERED.fetch_add(lane.answered, Ordering::Relaxed);
            lane.answered = 0;
            slot.replace(Some(lane));
        }));
    }
    stage.world.kick(stage.clients.id, cpu.id());
    let all_done = || tasks.iter().all(|task| task.borrow().is_some());
    let mut steps = if random.chance(50) { u64::MAX } else { 200 + random.below(12_000) };
    drive(&stage.world, &[&life.host, &stage.clients], || {
        steps -= 1;
        if random.below(5000) == 0 {
            step_clock(stage, random);
        }
        steps == 0 || all_done()
    });
    let power = random.chance(700);
    life.crash(stage, power, all_done);
    power
}

/// A whole run: several lives of the server, random requests in each, checks after each crash.
fn crash_test(seed: u64, faulty: bool) {
    let mut random = Random(seed);
    let stage = Stage::new(Setup::drawn(seed));
    let mut life = stage.begin();
    let lanes = stage.lanes(&life, LANES, &mut random, Terms { faulty, times_are_kept: false });
    let lanes: Lanes = lanes.into_iter().map(|lane| Rc::new(RefCell::new(Some(lane)))).collect();
    for _ in 0..LIVES {
        if faulty {
            stage.world.set_tree_faults(stage.tree, faults(&mut random));
        }
        let power = live(&stage, life, &lanes, &mut random);
        stage.world.heal_tree(stage.tree);
        if random.chance(300) {
            step_clock(&stage, &mut random);
        }
        life = stage.begin();
        verify(&stage, &life, &lanes, power || !faulty);
    }
    stage.end(life);
}

#[test]
fn what_clients_were_told_is_there_after_every_crash() {
    for_seeds("what_clients_were_told_is_there_after_every_crash", 200, |seed| crash_test(seed, false));
    eprintln!("{} requests were answered so far", ANSWERED.load(Ordering::Relaxed));
}

#[test]
fn what_clients_were_told_is_there_though_writes_and_syncs_fail() {
    for_seeds("what_clients_were_told_is_there_though_writes_and_syncs_fail", 200, |seed| crash_test(seed, true));
    eprintln!("{} requests were answered so far", ANSWERED.load(Ordering::Relaxed));
}
