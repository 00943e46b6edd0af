//! What others have written and a node has read stays in its cache until its home has flushed it: a service to others, which
//! costs this node nothing when that home fails or cannot be reached.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dsm::SHARD_PAGES;
use kernel::Volume;
use policy::coherence::ShardNo;
use policy::unit::BlockNo;
use testkit::scene::context;

use crate::acknowledged::{begin_flush, end_flush, found, write};
use crate::clients::Clients;
use crate::programs::{Program, listen};
use crate::scene::members::SHARDS;
use crate::scene::{Scene, Setup};

const TIMEOUT: Duration = Duration::from_secs(2);

/// Of the first shard, whose home is node 0. Node 3 is the home of the others.
const BLOCK: u64 = 3;

/// Node 1 has written so many blocks, and node 2 has read them.
fn marked(seed: u64, count: u64) -> (Scene, Clients) {
    let mut scene = Scene::new(Setup { moves: true, timeout: TIMEOUT, ..Setup::new(seed, 4) });
    let mut homes = [0, 3, 3, 3].into_iter();
    scene.change_map(|_| homes.next().expect("one for each shard"));
    scene.see_all();
    scene.until_connected();
    let clients = Clients::new(&scene);
    for number in BLOCK..BLOCK + count {
        write(&mut scene, &clients, 1, number);
    }
    let all = BlockNo(BLOCK).run(count).bytes();
    let read = scene.run(2, async move |cpu, volume| volume.read(&cpu, all, context()).await.map(drop));
    assert_eq!(read, Ok(()), "seed {seed}");
    assert!(is_marked(&scene), "seed {seed}");
    (scene, clients)
}

fn volume(scene: &Scene, node: usize) -> Arc<Volume> {
    Arc::clone(scene.nodes[node].as_ref().and_then(|node| node.volume.as_ref()).expect("it runs"))
}

/// Of the first block that node 2 has read.
fn is_marked(scene: &Scene) -> bool {
    volume(scene, 2).uncertain(BlockNo(BLOCK)).is_some()
}

#[test]
fn stable_writes_and_write_back_do_not_depend_on_homes_of_what_was_only_read() {
    for seed in testkit::rounds::seeds(12) {
        let (mut scene, clients) = marked(seed, 1);
        scene.cut(0, 2);
        let begin = scene.world.now();
        let own = clients.clone();
        let stable = async move |cpu: kernel::Processor, volume: Arc<Volume>| {
            own.write(&cpu, &volume, 2, SHARD_PAGES, (false, true)).await
        };
        assert!(scene.run(2, stable).is_ok(), "seed {seed}");
        assert!(scene.world.now().since(begin) < TIMEOUT / 2, "seed {seed}: it waited");
        write(&mut scene, &clients, 2, SHARD_PAGES + 1);
        scene.pass(Duration::from_secs(40));
        let own = volume(&scene, 2);
        assert_eq!((own.failures_so_far(), own.undurable_blocks()), (0, 0), "seed {seed}");
        assert!(is_marked(&scene), "seed {seed}: it may not be durable");
        scene.heal();
        scene.pass(2 * TIMEOUT);
        assert!(!is_marked(&scene) && own.cached(BlockNo(BLOCK)).is_some(), "seed {seed}: it is tried again");
    }
}

/// The home has given up its shards, and cannot be reached; it has failed to flush what was read, or not.
#[test]
fn a_flush_does_not_depend_on_who_was_the_home_of_what_was_only_read_and_hears_of_its_failures() {
    for seed in testkit::rounds::seeds(24) {
        let (mut scene, _clients) = marked(seed, 1);
        scene.cut(0, 2);
        let fails = seed % 2 == 1;
        if fails {
            scene.medium().fail_flush(0);
        }
        (0..SHARDS).for_each(|shard| scene.give_up(0, ShardNo(shard)));
        assert!(scene.run_until(None, Scene::has_given_up), "seed {seed}");
        assert_eq!(scene.medium().failures(), u64::from(fails), "seed {seed}");
        scene.change_map(|_| 3);
        scene.see_all();
        for is_first in [true, false] {
            let flushed = begin_flush(&scene, 2);
            let (flushed, took) = end_flush(&mut scene, &flushed);
            assert_eq!(flushed.is_err(), fails && is_first, "seed {seed}, first {is_first}: {flushed:?}");
            assert!(took < TIMEOUT, "seed {seed}: it waited {took:?}");
        }
    }
}

/// Nor does this node write it.
#[test]
fn what_a_program_was_to_write_that_has_ended_is_marked_as_before() {
    for seed in testkit::rounds::seeds(12) {
        let (mut scene, _clients) = marked(seed, 1);
        let stores = |scene: &Scene| scene.shared().next().expect("it runs").counters().stores.get();
        let before = stores(&scene);
        listen(&scene, 2);
        let program = Program::start(&scene, 2);
        program.memory.is_gone.store(true, Ordering::Relaxed);
        let own = volume(&scene, 2);
        for _ in 0..2 {
            program.fault(&scene, BLOCK, true);
            scene.pass(Duration::from_millis(20));
            assert!(program.memory.state(BLOCK).is_none() && is_marked(&scene), "seed {seed}");
            assert!(own.is_marked(BlockNo(BLOCK)) && !own.is_unwritten(BlockNo(BLOCK)), "seed {seed}");
        }
        scene.pass(TIMEOUT);
        assert!(!is_marked(&scene) && own.cached(BlockNo(BLOCK)).is_some(), "seed {seed}: its home has flushed it");
        assert_eq!((stores(&scene), scene.medium().flushes(2)), (before, 0), "seed {seed}");
    }
}

/// Who has written it has died, and would have asked for a flush at once.
#[test]
fn a_home_is_asked_to_flush_what_was_read_a_second_later_or_sooner_if_it_is_much() {
    for (seed, is_much) in testkit::rounds::seeds(12).flat_map(|seed| [(seed, false), (seed, true)]) {
        // Half of a twentieth of the cache is 25 blocks.
        let (mut scene, _clients) = marked(seed, if is_much { 40 } else { 1 });
        let before = scene.medium().flushes(0);
        scene.kill_member(1);
        scene.pass(Duration::from_millis(600));
        assert_eq!(is_marked(&scene), !is_much, "seed {seed}, {is_much}");
        assert!(is_much || scene.medium().flushes(0) == before, "seed {seed}: it was asked sooner");
        scene.pass(Duration::from_millis(900));
        assert!(!is_marked(&scene), "seed {seed}, {is_much}");
        assert_eq!(scene.medium().flushes(2), 0, "seed {seed}: it has stored nothing");
        scene.pass(Duration::from_secs(5));
        let flushes = scene.medium().flushes(0) - before;
        assert!(flushes <= 1 + u64::from(is_much), "seed {seed}, {is_much}: {flushes} flushes");
    }
}

#[test]
fn homes_are_not_asked_to_flush_more_often_because_another_has_much_to_flush_and_cannot_be_reached() {
    for seed in testkit::rounds::seeds(6) {
        // Half of a twentieth of the cache is 25 blocks.
        let [much, little] = [40, 1].map(|count| {
            let (mut scene, clients) = marked(seed, count);
            scene.cut(0, 2);
            let sent = |scene: &Scene| scene.shared().nth(2).expect("it runs").counters().messages.get();
            let before = sent(&scene);
            for number in SHARD_PAGES..SHARD_PAGES + 30 {
                write(&mut scene, &clients, 1, number);
                let own = clients.clone();
                assert!(scene.run(2, async move |cpu, volume| own.read(&cpu, &volume, 2, number).await).is_ok());
                assert!(volume(&scene, 2).is_marked(BlockNo(number)), "seed {seed}");
                scene.pass(Duration::from_millis(100));
            }
            let messages = sent(&scene) - before;
            scene.pass(Duration::from_millis(1200));
            assert!(!volume(&scene, 2).is_marked(BlockNo(SHARD_PAGES + 29)), "seed {seed}: it is not asked any more");
            assert!(is_marked(&scene), "seed {seed}");
            messages
        });
        assert!(much < little + 10, "seed {seed}: {much} messages in 3 s, and {little} if it is not much");
    }
}

/// Nobody else asks for it: who has written it has died.
#[test]
fn a_home_that_fails_to_flush_much_is_asked_again_a_second_later() {
    let (mut failed, mut seeds) = (0, testkit::rounds::seeds(6));
    for seed in seeds.by_ref() {
        let (mut scene, _clients) = marked(seed, 40);
        let before = scene.medium().failures();
        scene.kill_member(1);
        for _ in 0..300 {
            scene.medium().fail_flush(0);
            scene.pass(Duration::from_millis(10));
        }
        let failures = scene.medium().failures() - before;
        assert!(failures <= 4 && is_marked(&scene) == (failures > 0), "seed {seed}: {failures} in 3 s");
        // Otherwise a flush was under way when the writer died, and has succeeded.
        failed += u64::from(failures > 1);
        scene.pass(TIMEOUT);
        assert!(!is_marked(&scene), "seed {seed}");
    }
    assert!(failed > 3 || !seeds.have_been(6), "hardly any flush has failed: {failed}");
}

#[test]
fn a_home_that_has_much_to_flush_is_asked_soon_although_another_cannot_be_reached() {
    for seed in testkit::rounds::seeds(6) {
        let (mut scene, clients) = marked(seed, 30);
        scene.cut(0, 2);
        let numbers = SHARD_PAGES..SHARD_PAGES + 15;
        for number in numbers.clone() {
            write(&mut scene, &clients, 1, number);
        }
        let all = BlockNo(numbers.start).to(BlockNo(numbers.end)).bytes();
        let read = scene.run(2, async move |cpu, volume| volume.read(&cpu, all, context()).await.map(drop));
        assert_eq!(read, Ok(()), "seed {seed}");
        let are_marked = |scene: &Scene| numbers.clone().any(|number| volume(scene, 2).is_marked(BlockNo(number)));
        assert!(are_marked(&scene), "seed {seed}");
        scene.pass(Duration::from_millis(600));
        assert!(!are_marked(&scene) && is_marked(&scene), "seed {seed}");
    }
}

/// If the flush fails, it is written again.
#[test]
fn what_was_written_and_others_have_read_stays_until_it_is_flushed() {
    for (seed, moves) in testkit::rounds::seeds(6).flat_map(|seed| [(seed, false), (seed, true)]) {
        let mut scene = Scene::new(Setup { moves, homes: 1, timeout: TIMEOUT, ..Setup::new(seed, 3) });
        if moves {
            scene.change_map(|_| 0);
            scene.see_all();
        }
        scene.until_connected();
        let clients = Clients::new(&scene);
        let value = write(&mut scene, &clients, 1, BLOCK);
        let read = scene.run(2, async move |cpu, volume| clients.read(&cpu, &volume, 2, BLOCK).await);
        assert_eq!(read, Ok(value), "seed {seed}");
        let writer = volume(&scene, 1);
        assert!(writer.cached(BlockNo(BLOCK)).is_some(), "seed {seed}");
        assert!(writer.uncertain(BlockNo(BLOCK)).is_some(), "seed {seed}, {moves}");
    }
}

#[test]
fn what_a_home_has_flushed_that_gives_up_its_shards_is_given_to_the_next_one_only_by_who_has_not_heard_of_it() {
    for (seed, hears) in testkit::rounds::seeds(12).flat_map(|seed| [(seed, false), (seed, true)]) {
        let (mut scene, clients) = marked(seed, 8);
        if !hears {
            scene.cut(0, 2);
        }
        (0..SHARDS).for_each(|shard| scene.give_up(0, ShardNo(shard)));
        assert!(scene.run_until(None, Scene::has_given_up), "seed {seed}");
        scene.pass(Duration::from_millis(50));
        let stores = |scene: &Scene| scene.shared().nth(3).expect("it runs").counters().stores.get();
        let before = stores(&scene);
        scene.change_map(|_| 3);
        scene.see_all();
        scene.heal();
        // When it has surveyed the others.
        let last = BlockNo(BLOCK + 7).run(1).bytes();
        let read = scene.run(1, async move |cpu, volume| volume.read(&cpu, last, context()).await.map(drop));
        assert_eq!(read, Ok(()), "seed {seed}");
        assert_eq!(stores(&scene) - before, if hears { 0 } else { 8 }, "seed {seed}, {hears}");
        let found = found(&mut scene, &clients, BLOCK..BLOCK + 8);
        assert!(found.into_values().all(|value| value > 0), "seed {seed}, {hears}");
    }
}

/// Runs of a shard are a shard's length apart for each of the others.
#[test]
fn of_what_is_marked_only_what_is_of_a_shard_that_its_home_gives_up_is_durable_then() {
    for seed in testkit::rounds::seeds(12) {
        let (mut scene, clients) = marked(seed, 2);
        let round = SHARD_PAGES * u64::from(SHARDS);
        let of_it = [BLOCK, BLOCK + 1, SHARD_PAGES - 1, round, round + 5];
        let others = [SHARD_PAGES, SHARD_PAGES + 1, round - 1, round + SHARD_PAGES];
        for number in of_it.into_iter().skip(2).chain(others) {
            write(&mut scene, &clients, 1, number);
            let own = clients.clone();
            assert!(scene.run(2, async move |cpu, volume| own.read(&cpu, &volume, 2, number).await).is_ok());
        }
        let are_marked = |scene: &Scene, numbers: &[u64]| {
            let all: Vec<bool> = numbers.iter().map(|number| volume(scene, 2).is_marked(BlockNo(*number))).collect();
            assert!(all.iter().all(|is_marked| *is_marked == all[0]), "seed {seed}: {numbers:?} {all:?}");
            all[0]
        };
        assert!(are_marked(&scene, &of_it) && are_marked(&scene, &others), "seed {seed}");
        scene.give_up(0, ShardNo(0));
        assert!(scene.run_until(None, Scene::has_given_up), "seed {seed}");
        scene.pass(Duration::from_millis(50));
        assert!(!are_marked(&scene, &of_it) && are_marked(&scene, &others), "seed {seed}");
    }
}

/// It is on its way to the home when that says so.
#[test]
fn what_a_home_does_not_have_yet_that_gives_up_its_shards_is_not_durable() {
    let (mut heard, mut seeds) = (0, testkit::rounds::seeds(12));
    for seed in seeds.by_ref() {
        let (mut scene, clients) = marked(seed, 1);
        write(&mut scene, &clients, 1, BLOCK + 1);
        let is_uncertain = |scene: &Scene, number| volume(scene, 1).uncertain(BlockNo(number)).is_some();
        let was_uncertain = is_uncertain(&scene, BLOCK);
        scene.slow_down(1, Duration::from_millis(20));
        let read = scene.start(2, async move |cpu, volume| clients.read(&cpu, &volume, 2, BLOCK + 1).await);
        scene.pass(Duration::from_millis(10));
        scene.give_up(0, ShardNo(0));
        scene.pass(Duration::from_millis(28));
        heard += u64::from(was_uncertain && !is_uncertain(&scene, BLOCK));
        assert!(read.borrow().is_none() && is_uncertain(&scene, BLOCK + 1), "seed {seed}");
        assert!(!volume(&scene, 1).is_unwritten(BlockNo(BLOCK + 1)), "seed {seed}: it was not asked for it");
    }
    assert!(heard > 6 || !seeds.have_been(12), "hardly ever has it heard: {heard}");
}

/// It has dropped what it had stored, and succeeds the next time.
#[test]
fn what_a_home_has_failed_to_flush_that_gives_up_its_shards_is_given_to_the_next_one() {
    for seed in testkit::rounds::seeds(12) {
        let (mut scene, clients) = marked(seed, 8);
        scene.medium().fail_flush(0);
        (0..SHARDS).for_each(|shard| scene.give_up(0, ShardNo(shard)));
        assert!(scene.run_until(None, Scene::has_given_up), "seed {seed}");
        assert!(scene.medium().has_dropped(BLOCK), "seed {seed}");
        scene.pass(Duration::from_millis(50));
        scene.change_map(|_| 3);
        scene.see_all();
        // The failure is returned once.
        for is_first in [true, false] {
            let flushed = begin_flush(&scene, 1);
            assert_eq!(end_flush(&mut scene, &flushed).0.is_err(), is_first, "seed {seed}");
        }
        let found = found(&mut scene, &clients, BLOCK..BLOCK + 8);
        assert!(found.into_values().all(|value| value > 0), "seed {seed}");
    }
}
