//! Flushes that fail at homes which move: whatever the device has dropped then, each node is told once.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use dsm::SHARD_PAGES;
use kernel::{Processor, Volume};
use policy::coherence::ShardNo;
use testkit::random::Random;
use testkit::scene::context;

use crate::acknowledged::{begin_flush, end_flush, found, moving, write};
use crate::clients::Clients;
use crate::failures::check;
use crate::scene::members::SHARDS;
use crate::scene::{Scene, Setup};

/// Of the first shard.
const BLOCK: u64 = 3;

fn flush(scene: &mut Scene, node: usize) -> bool {
    let flushed = begin_flush(scene, node);
    end_flush(scene, &flushed).0.is_ok()
}

/// Node 1 has written, and its home, node 0, has stored that.
fn handed_over(seed: u64) -> (Scene, Clients) {
    let (mut scene, clients) = moving(seed, 4);
    let value = write(&mut scene, &clients, 1, BLOCK);
    let own = clients.clone();
    let read = scene.run(3, async move |cpu, volume| own.read(&cpu, &volume, 3, BLOCK).await);
    assert_eq!(read, Ok(value), "seed {seed}");
    (scene, clients)
}

/// Node 0 cannot flush, once, and one node is told.
fn fail(scene: &mut Scene, seed: u64) {
    scene.medium().fail_flush(0);
    assert!(!flush(scene, 2), "seed {seed}");
    assert!(!scene.medium().is_failing(0), "seed {seed}: it was not asked");
}

#[test]
fn a_failed_flush_fails_the_next_one_of_each_node_once() {
    for seed in testkit::rounds::seeds(60) {
        let (mut scene, _clients) = handed_over(seed);
        fail(&mut scene, seed);
        for node in [1, 3, 0] {
            assert!(!flush(&mut scene, node), "seed {seed}: node {node} was not told");
        }
        for node in 0..4 {
            assert!(flush(&mut scene, node), "seed {seed}: node {node} is told twice");
        }
    }
}

#[test]
fn a_failed_flush_fails_each_flush_that_was_asked_for_before_another_of_its_node_returned_it() {
    for seed in testkit::rounds::seeds(30) {
        let mut scene = Scene::new(Setup { moves: true, ..Setup::new(seed, 4) });
        // Node 0 is the home of the first shard, node 2 of the others.
        let mut homes = [0, 2, 2, 2].into_iter();
        scene.change_map(|_| homes.next().expect("one for each shard"));
        scene.see_all();
        scene.until_connected();
        let clients = Clients::new(&scene);
        fail(&mut scene, seed);
        // What node 3 asks node 0 comes back late.
        scene.slow_down(0, Duration::from_millis(200));
        let first = begin_flush(&scene, 3);
        scene.pass(Duration::from_millis(100));
        write(&mut scene, &clients, 3, SHARD_PAGES);
        scene.cut(2, 3);
        let second = begin_flush(&scene, 3);
        assert!(end_flush(&mut scene, &first).0.is_err(), "seed {seed}");
        assert!(second.borrow().is_none(), "seed {seed}: it cannot write out");
        scene.heal();
        assert!(end_flush(&mut scene, &second).0.is_err(), "seed {seed}: it was asked for before");
        assert!(flush(&mut scene, 3), "seed {seed}: it is told twice");
    }
}

#[test]
fn a_failed_flush_is_told_to_who_cannot_be_reached_at_the_time() {
    for seed in testkit::rounds::seeds(60) {
        let (mut scene, _clients) = handed_over(seed);
        scene.cut(0, 1);
        fail(&mut scene, seed);
        scene.pass(Duration::from_millis(seed * 10));
        scene.heal();
        assert!(!flush(&mut scene, 1), "seed {seed}");
        assert!(flush(&mut scene, 1), "seed {seed}: it is told twice");
    }
}

#[test]
fn a_failed_flush_counts_although_the_home_has_given_up_its_shards_since() {
    for seed in testkit::rounds::seeds(60) {
        let (mut scene, _clients) = handed_over(seed);
        let cut = seed % 2 == 0;
        if cut {
            scene.cut(0, 1);
        }
        if seed % 3 == 0 {
            // What fails is the flush with which it gives up the first.
            scene.medium().fail_flush(0);
        } else {
            fail(&mut scene, seed);
        }
        (0..SHARDS).for_each(|shard| scene.give_up(0, ShardNo(shard)));
        assert!(scene.run_until(None, Scene::has_given_up), "seed {seed}");
        assert_eq!(scene.medium().failures(), 1, "seed {seed}");
        scene.change_map(|_| 2);
        scene.see_all();
        scene.heal();
        assert!(!flush(&mut scene, 1), "seed {seed}");
        assert!(flush(&mut scene, 1), "seed {seed}: it is told twice");
    }
}

#[test]
fn a_failed_flush_counts_although_the_home_has_died_since() {
    for seed in testkit::rounds::seeds(60) {
        let (mut scene, _clients) = handed_over(seed);
        // Node 1 can hear of it by node 2 at once, or later.
        let unreachable = [0, 1, 3][seed as usize % 3];
        [0, 2, 3].into_iter().take(unreachable).for_each(|node| scene.cut(node, 1));
        fail(&mut scene, seed);
        // Until who can be reached has heard of it.
        scene.pass(Duration::from_millis(100));
        scene.kill_member(0);
        scene.deregister(0);
        if seed % 2 == 0 {
            scene.boot(0);
        }
        scene.change_map(|bound| bound - 1);
        scene.see_all();
        scene.heal();
        assert!(!flush(&mut scene, 1), "seed {seed}");
        assert!(flush(&mut scene, 1), "seed {seed}: it is told twice");
    }
}

/// The one that joins hears of it as its first of that home, and becomes the next one.
#[test]
fn a_node_that_joins_passes_on_a_failed_flush_of_which_it_hears() {
    for seed in testkit::rounds::seeds(20) {
        let (mut scene, _clients) = handed_over(seed);
        scene.kill_member(3);
        scene.deregister(3);
        scene.see_all();
        [(0, 1), (1, 2), (0, 3), (2, 3)].into_iter().for_each(|(one, other)| scene.cut(one, other));
        fail(&mut scene, seed);
        scene.boot(3);
        scene.see_all();
        scene.pass(Duration::from_secs(2));
        scene.kill_member(0);
        scene.deregister(0);
        scene.heal();
        scene.cut(1, 2);
        scene.pass(Duration::from_secs(2));
        scene.change_map(|bound| bound - 1);
        scene.see_all();
        assert!(!flush(&mut scene, 1), "seed {seed}");
        assert!(flush(&mut scene, 1) && flush(&mut scene, 3), "seed {seed}: it is told twice");
    }
}

/// Only node 2 has heard.
#[test]
fn a_process_passes_on_what_it_heard_in_an_earlier_incarnation() {
    for seed in testkit::rounds::seeds(20) {
        let (mut scene, _clients) = handed_over(seed);
        [(0, 1), (0, 3), (1, 2), (2, 3)].into_iter().for_each(|(one, other)| scene.cut(one, other));
        fail(&mut scene, seed);
        scene.kill_member(0);
        scene.deregister(0);
        scene.register(2);
        scene.change_map(|bound| bound - 1);
        scene.see_all();
        scene.heal();
        assert!(!flush(&mut scene, 1), "seed {seed}");
        assert!(flush(&mut scene, 1), "seed {seed}: it is told twice");
        assert!(flush(&mut scene, 2), "seed {seed}: its clients had errors already");
    }
}

#[test]
fn a_node_that_joins_later_is_not_told_of_earlier_failures() {
    for seed in testkit::rounds::seeds(20) {
        let (mut scene, _clients) = handed_over(seed);
        fail(&mut scene, seed);
        scene.kill_member(3);
        scene.deregister(3);
        scene.see_all();
        scene.boot(3);
        scene.see_all();
        scene.until_connected();
        // Until it has heard: a flush that is asked for before fails, since it could have failed meanwhile.
        scene.pass(Duration::from_millis(100));
        assert!(flush(&mut scene, 3), "seed {seed}");
    }
}

#[test]
fn a_failed_flush_is_no_success_when_its_answer_is_lost_and_it_is_asked_for_again() {
    let mut late = 0;
    let mut seeds = testkit::rounds::seeds(150);
    for seed in seeds.by_ref() {
        let (mut scene, _clients) = handed_over(seed);
        let medium = Arc::clone(scene.medium());
        medium.fail_flush(0);
        let flushed = begin_flush(&scene, 2);
        assert!(scene.run_until(None, |_| medium.failures() > 0), "seed {seed}");
        scene.pass(Duration::from_micros(seed % 50));
        late += u64::from(flushed.borrow().is_none());
        scene.cut(0, 2);
        scene.heal();
        assert!(end_flush(&mut scene, &flushed).0.is_err(), "seed {seed}");
    }
    assert!(late > 50 || !seeds.have_been(150), "hardly an answer was lost: {late}");
}

#[test]
fn a_flush_fails_if_a_node_dies_under_it_of_which_its_home_hears_first() {
    for seed in testkit::rounds::seeds(30) {
        for is_answer_lost in [false, true] {
            let (mut scene, clients) = moving(seed, 3);
            write(&mut scene, &clients, 1, BLOCK);
            if is_answer_lost {
                scene.cut(0, 1);
            }
            let flushed = begin_flush(&scene, 2);
            if is_answer_lost {
                // The home has asked node 1 in vain.
                scene.pass(Duration::from_millis(300));
            }
            scene.kill_member(1);
            scene.deregister(1);
            while scene.see(0) {}
            if is_answer_lost {
                scene.cut(0, 2);
            }
            scene.heal();
            let (flushed, _) = end_flush(&mut scene, &flushed);
            assert!(flushed.is_err(), "seed {seed}: what node 1 had written is lost");
        }
    }
}

/// The device takes 5 ms, in which the home is flushed again.
#[test]
fn what_a_failed_flush_covered_is_written_again_also_while_its_home_reads_it_for_another_node() {
    for us in (0..12_000).step_by(200) {
        let (mut scene, clients) = moving(2, 2);
        let value = write(&mut scene, &clients, 0, BLOCK);
        scene.medium().fail_flush(0);
        assert!(!flush(&mut scene, 0), "{us} us");
        let own = clients.clone();
        let read = scene.start(1, async move |cpu, volume| own.read(&cpu, &volume, 1, BLOCK).await);
        scene.pass(Duration::from_micros(us));
        assert!(flush(&mut scene, 0), "{us} us");
        assert!(scene.run_until(None, |_| read.borrow().is_some()), "{us} us");
        assert_eq!(found(&mut scene, &clients, BLOCK..BLOCK + 1)[&BLOCK], value, "{us} us");
    }
}

/// What nodes know to be durable.
#[derive(Default)]
struct Ledger {
    /// By block, the last value written, when it was begun and when it was there.
    written: BTreeMap<u64, Vec<(u64, u64, u64)>>,
    /// When the last flush of each node ended that failed.
    failed: BTreeMap<usize, u64>,
    /// When each node died.
    died: BTreeMap<usize, Vec<u64>>,
    durable: BTreeMap<u64, u64>,
    flushes: u64,
    stable: u64,
}

impl Ledger {
    /// A flush of one of the nodes has succeeded, which began then. It covers what all have written that had not died by then.
    fn on_flushed(&mut self, (node, nodes): (usize, usize), begun: u64) {
        self.flushes += 1;
        for (of, number) in (0..nodes).flat_map(|of| blocks(of).map(move |number| (of, number))) {
            let died = self.died.get(&of).into_iter().flatten().filter(|at| **at <= begun);
            let from = died.chain(self.failed.get(&node)).copied().max().unwrap_or(0);
            let written = self.written.get(&number).into_iter().flatten();
            let covered = written.filter(|(_, since, until)| *since > from && *until <= begun);
            if let Some(value) = covered.map(|(value, _, _)| *value).max() {
                self.note(number, value);
            }
        }
    }

    fn note(&mut self, number: u64, value: u64) {
        let durable = self.durable.entry(number).or_default();
        *durable = value.max(*durable);
    }
}

/// Those that a node writes, one in each shard. All read them.
fn blocks(node: usize) -> impl Iterator<Item = u64> {
    (0..4).map(move |shard| shard * 256 + node as u64)
}

async fn run(
    (cpu, volume): (Processor, Arc<Volume>),
    (clients, ledger): (Clients, Rc<RefCell<Ledger>>),
    (node, process, nodes): (usize, usize, usize),
    mut random: Random,
) {
    while !clients.stopping.get() {
        let shard = random.below(4) as usize;
        match random.below(10) {
            0..4 => {
                let (number, is_stable) = (blocks(node).nth(shard).expect("four"), random.chance(200));
                let begun = cpu.now().ns();
                let written = clients.write(&cpu, &volume, process, number, (false, is_stable)).await;
                if let Ok(value) = written {
                    let mut ledger = ledger.borrow_mut();
                    ledger.written.entry(number).or_default().push((value, begun, cpu.now().ns()));
                    if is_stable {
                        ledger.stable += 1;
                        ledger.note(number, value);
                    }
                }
            }
            4..8 => {
                let number = blocks(random.below(nodes as u64) as usize).nth(shard).expect("four");
                let durable = ledger.borrow().durable.get(&number).copied();
                let read = clients.read(&cpu, &volume, process, number).await;
                assert!(
                    read.is_err() || read.ok() >= durable,
                    "node {node}, block {number}: {read:?}, not {durable:?}"
                );
            }
            _ => {
                let begun = cpu.now().ns();
                let flushed = volume.flush(&cpu, context()).await;
                let flushed = if volume.may_answer() { flushed } else { continue };
                let mut ledger = ledger.borrow_mut();
                match flushed {
                    Ok(()) => ledger.on_flushed((node, nodes), begun),
                    Err(_) => drop(ledger.failed.insert(node, cpu.now().ns())),
                }
            }
        }
        cpu.sleep(Duration::from_micros(random.below(6000))).await;
    }
}

fn start(scene: &Scene, clients: &Clients, ledger: &Rc<RefCell<Ledger>>, (node, seed): (usize, u64)) {
    let (own, ledger) = (clients.clone(), Rc::clone(ledger));
    let who = (node, node + 1000 * scene.incarnation(node), scene.nodes.len());
    let random = Random(seed ^ (who.1 as u64 + 1) << 40);
    scene.start(node, async move |cpu, volume| run((cpu, volume), (own, ledger), who, random).await);
}

/// One at a time. Returns which node has died and begun anew.
fn disturb(scene: &mut Scene, random: &mut Random, ledger: &RefCell<Ledger>) -> Option<usize> {
    let nodes = scene.nodes.len() as u64;
    let (node, other) = (random.below(nodes) as usize, random.below(nodes) as usize);
    let mut died = None;
    match random.below(9) {
        0..3 => scene.medium().fail_flush(node),
        3..5 => {
            (0..SHARDS).filter(|_| random.chance(500)).for_each(|shard| scene.give_up(node, ShardNo(shard)));
            scene.pass(Duration::from_millis(random.below(200)));
            scene.change_map(|bound| random.below(bound as u64) as usize);
        }
        5..7 if node != other => {
            scene.cut(node, other);
            scene.pass(Duration::from_millis(random.below(600)));
            scene.heal();
        }
        7.. => {
            // A failure of which it has told others, or not.
            let is_heard = random.chance(500);
            if !is_heard {
                (0..scene.nodes.len()).filter(|other| *other != node).for_each(|other| scene.cut(node, other));
            }
            if random.chance(500) {
                scene.medium().fail_flush(node);
            }
            scene.pass(Duration::from_micros(random.below(1_000_000)));
            scene.kill_member(node);
            scene.heal();
            died = Some(node);
            ledger.borrow_mut().died.entry(node).or_default().push(scene.world.now().ns());
            scene.pass(Duration::from_micros(random.below(100_000)));
            scene.deregister(node);
            scene.change_map(|bound| random.below(bound as u64) as usize);
            scene.pass(Duration::from_micros(random.below(100_000)));
            scene.boot(node);
        }
        _ => {}
    }
    for _ in 0..4 {
        scene.pass(Duration::from_micros(random.below(60_000)));
        let node = random.below(nodes) as usize;
        while scene.see(node) && random.chance(700) {}
    }
    died
}

/// A home fails to flush, and dies before anybody has heard of it; nothing is written from then on that could replace what was
/// lost. The others flush.
fn end_with_a_death(scene: &mut Scene, clients: &Clients, random: &mut Random, ledger: &RefCell<Ledger>) {
    let nodes = scene.nodes.len();
    let home = scene.home(ShardNo(random.below(u64::from(SHARDS)) as u16));
    (0..nodes).filter(|other| *other != home).for_each(|other| scene.cut(home, other));
    clients.stopping.set(true);
    scene.medium().fail_flush(home);
    let medium = Arc::clone(scene.medium());
    let _flushed = begin_flush(scene, home);
    scene.run_until(Some(scene.world.now() + Duration::from_secs(1)), |_| !medium.is_failing(home));
    scene.kill_member(home);
    ledger.borrow_mut().died.entry(home).or_default().push(scene.world.now().ns());
    scene.deregister(home);
    scene.change_map(|bound| random.below(bound as u64) as usize);
    scene.heal();
    scene.see_all();
    scene.pass(Duration::from_millis(500));
    for node in (0..nodes).filter(|node| *node != home) {
        let begun = scene.world.now().ns();
        let is_flushed = flush(scene, node);
        let mut ledger = ledger.borrow_mut();
        match is_flushed {
            true => ledger.on_flushed((node, nodes), begun),
            false => drop(ledger.failed.insert(node, scene.world.now().ns())),
        }
    }
}

#[test]
fn what_a_node_was_told_to_be_durable_is_although_flushes_fail_and_homes_move_and_die() {
    let (mut failures, mut flushes, mut stable, mut deaths) = (0, 0, 0, 0);
    let mut seeds = testkit::rounds::seeds(100);
    for seed in seeds.by_ref() {
        let mut random = Random(seed);
        let nodes = 2 + random.below(3) as usize;
        let mut scene = Scene::new(Setup { moves: true, ..Setup::new(seed, nodes) });
        scene.change_map(|bound| random.below(bound as u64) as usize);
        scene.see_all();
        scene.until_connected();
        let (clients, ledger) = (Clients::new(&scene), Rc::new(RefCell::new(Ledger::default())));
        (0..nodes).for_each(|node| start(&scene, &clients, &ledger, (node, seed)));
        for _ in 0..16 {
            if let Some(node) = disturb(&mut scene, &mut random, &ledger) {
                deaths += 1;
                start(&scene, &clients, &ledger, (node, seed));
            }
        }
        end_with_a_death(&mut scene, &clients, &mut random, &ledger);
        check(&scene, seed);
        failures += scene.medium().failures();
        let found = found(&mut scene, &clients, (0..nodes).flat_map(blocks));
        let ledger = ledger.borrow();
        for (number, value) in &ledger.durable {
            assert!(found[number] >= *value, "seed {seed}: block {number} has {}, not {value}", found[number]);
        }
        (flushes, stable) = (flushes + ledger.flushes, stable + ledger.stable);
    }
    println!("{failures} flushes failed, {flushes} succeeded, {stable} stable writes, {deaths} deaths");
    let is_enough = failures > 100 && flushes > 1000 && stable > 1000 && deaths > 100;
    assert!(is_enough || !seeds.have_been(100), "hardly anything was done");
}
