//! Nodes with leases on a device that all reach: leases end, processes die and are paused for longer than that, nodes
//! leave and join, shards move. Every history is linearizable, what was flushed is found, and the others go on.

use std::sync::Arc;
use std::time::Duration;

use kernel::{Processor, Volume};
use machine::Errno;
use policy::coherence::ShardNo;
use policy::unit::BlockNo;
use testkit::random::Random;
use testkit::scene::context;
use testkit::scene::disk::{block, fill, first_byte};

use crate::clients::{BLOCKS, Clients};
use crate::failures::{check, read_all};
use crate::leased::Run;
use crate::scene::members::SHARDS;
use crate::scene::{Scene, Setup};

/// Requests that waited for a node are answered by then, and connections made again.
const REST: Duration = Duration::from_secs(12);

fn begin(seed: u64) -> Run {
    let mut random = Random(seed);
    let nodes = 2 + random.below(4) as usize;
    let mut scene = Scene::new(Setup { moves: true, ..Setup::new(seed, nodes) });
    scene.change_map(|bound| random.below(bound as u64) as usize);
    scene.see_all();
    let mut run = Run::new(scene, random, seed);
    (0..nodes).for_each(|node| run.start_clients(node));
    run
}

fn change_map(run: &mut Run) {
    let random = &mut run.random;
    run.scene.change_map(|bound| random.below(bound as u64) as usize);
}

/// Its lease ends, for whatever reason; others take over; it returns with a new one.
fn lose(run: &mut Run, node: usize) {
    match run.random.below(3) {
        0 => run.scene.kill_member(node),
        // Stopped, or cut off from the arbiter: it goes on, and answers nothing any more.
        1 => {
            run.scene.set_lease(node, false);
            run.crash();
        }
        _ => {
            run.scene.set_lease(node, false);
            run.pass(200);
            // Renewed before the arbiter has ended it: nothing has happened.
            run.scene.set_lease(node, true);
            return;
        }
    }
    run.pass(400);
    run.scene.deregister(node);
    run.pass(100);
    change_map(run);
    run.pass(800);
    run.crash();
    if run.scene.nodes[node].is_none() {
        run.scene.boot(node);
    } else {
        run.scene.register(node);
    }
    run.start_clients(node);
}

fn step(run: &mut Run) {
    run.pass(400);
    let node = run.pick(run.scene.nodes.len());
    match run.random.below(10) {
        0..4 => lose(run, node),
        4..7 => {
            for _ in 0..2 {
                let shard = ShardNo(run.random.below(u64::from(SHARDS)) as u16);
                run.scene.give_up(node, shard);
            }
            run.pass(100);
            change_map(run);
        }
        _ => {
            let other = run.pick(run.scene.nodes.len());
            if node != other {
                run.scene.cut(node, other);
            }
            run.pass(600);
            run.scene.heal();
        }
    }
}

/// Nothing more happens; all is seen; all go on.
fn rest(run: &mut Run) {
    run.scene.heal();
    // Until the map changes, nobody is the home of what was given up.
    assert!(run.scene.run_until(None, Scene::has_given_up), "seed {}: it is never given up", run.seed);
    change_map(run);
    run.scene.see_all();
    run.scene.pass(Duration::from_secs(2));
    run.clients.stopping.set(true);
    run.scene.pass(REST);
}

#[test]
fn homes_move_and_leases_end_and_histories_are_linearizable_and_what_was_flushed_is_found() {
    let mut moved = 0;
    for seed in testkit::rounds::seeds(40) {
        let mut run = begin(seed);
        for _ in 0..8 {
            step(&mut run);
        }
        rest(&mut run);
        let Run { mut scene, clients, .. } = run;
        assert_eq!(read_all(&mut scene, &clients), [], "seed {seed}");
        assert!(scene.history.borrow().events.len() > 100, "seed {seed}: hardly anything was done");
        moved += scene.shared().map(|shared| shared.counters().stores.get()).sum::<u64>();
        check(&scene, seed);
    }
    assert!(moved > 0 || std::env::var_os("AWASE_SEED").is_some(), "nothing was ever stored");
}

#[test]
fn nothing_is_lost_when_a_survey_is_answered_while_the_lease_of_the_home_is_over() {
    for seed in testkit::rounds::seeds(9) {
        let mut scene = Scene::new(Setup { moves: true, ..Setup::new(seed, 2) });
        scene.see_all();
        scene.until_connected();
        let clients = Clients::new(&scene);
        scene.slow_down(1, Duration::from_millis(50));
        scene.change_map(|_| 0);
        scene.see_all();
        let own = clients.clone();
        let read = scene.start(0, async move |cpu, volume| own.read(&cpu, &volume, 0, 3).await);
        scene.pass(Duration::from_millis(20));
        scene.set_lease(0, false);
        scene.pass(Duration::from_millis(400));
        scene.set_lease(0, true);
        assert!(scene.run_until(None, |_| read.borrow().is_some()));
        assert!(read.take().is_some_and(|read| read.is_ok()), "seed {seed}");
        check(&scene, seed);
    }
}

#[test]
fn nothing_is_lost_for_who_asks_a_home_whose_lease_is_over_for_a_moment() {
    for (seed, us) in (0..12).flat_map(|us| [(1, us * 50), (2, us * 500)]) {
        let mut scene = Scene::new(Setup { moves: true, ..Setup::new(seed, 3) });
        scene.change_map(|_| 0);
        scene.see_all();
        scene.until_connected();
        let clients = Clients::new(&scene);
        // The second waits until the home has read the page for the first.
        let reads = [1, 2].map(|node| {
            let own = clients.clone();
            scene.start(node, async move |cpu, volume| own.read(&cpu, &volume, node, 3).await)
        });
        scene.pass(Duration::from_micros(us));
        scene.set_lease(0, false);
        scene.pass(Duration::from_millis(200));
        scene.set_lease(0, true);
        assert!(scene.run_until(None, |_| reads.iter().all(|read| read.borrow().is_some())));
        for read in reads {
            assert_eq!(read.take(), Some(Ok(0)), "seed {seed}, {us} us");
        }
    }
}

#[test]
fn nodes_that_meet_before_they_serve_are_connected_once() {
    for seed in testkit::rounds::seeds(20) {
        let nodes = 2 + seed as usize % 3;
        let mut scene = Scene::new(Setup { moves: true, ..Setup::new(seed, nodes) });
        // Before any of them has run.
        scene.see_all();
        scene.until_connected();
        scene.pass(Duration::from_secs(5));
        let pairs = nodes * (nodes - 1) / 2;
        assert_eq!(scene.connections(), pairs, "seed {seed}: {:?}", scene.told());
        scene.deregister(0);
        scene.register(0);
        scene.see_all();
        scene.until_connected();
        scene.pass(Duration::from_secs(5));
        assert_eq!(scene.connections(), pairs + nodes - 1, "seed {seed}: {:?}", scene.told());
    }
}

#[test]
fn a_node_that_joins_dies_and_joins_again_before_others_have_looked_is_connected_once() {
    for seed in testkit::rounds::seeds(20) {
        let nodes = 2 + seed as usize % 3;
        let mut scene = Scene::new(Setup { moves: true, ..Setup::new(seed, nodes) });
        // They serve by then.
        scene.pass(Duration::from_millis(10));
        scene.deregister(nodes - 1);
        scene.register(nodes - 1);
        scene.see_all();
        scene.until_connected();
        scene.pass(Duration::from_secs(5));
        assert_eq!(scene.connections(), nodes * (nodes - 1) / 2, "seed {seed}: {:?}", scene.told());
    }
}

/// Of one seed.
const KILLS: u64 = 25;

#[test]
fn nodes_that_are_killed_one_after_the_other_lose_nothing_that_was_flushed() {
    let mut kills = 0;
    for seed in testkit::rounds::seeds(8) {
        let mut run = begin(seed);
        for _ in 0..KILLS {
            run.pass(80);
            let node = run.pick(run.scene.nodes.len());
            run.scene.kill_member(node);
            run.pass(20);
            run.scene.deregister(node);
            change_map(&mut run);
            run.pass(80);
            run.crash();
            run.scene.boot(node);
            run.start_clients(node);
        }
        rest(&mut run);
        let Run { mut scene, clients, .. } = run;
        assert_eq!(read_all(&mut scene, &clients), [], "seed {seed}");
        assert!(scene.history.borrow().flushes.len() > 20, "seed {seed}: hardly anything was flushed");
        check(&scene, seed);
        kills += KILLS;
    }
    println!("{kills} kills");
}

#[test]
fn the_others_go_on_when_a_home_is_gone_and_lose_nothing_that_was_acknowledged() {
    for seed in testkit::rounds::seeds(20) {
        let mut scene = Scene::new(Setup { moves: true, ..Setup::new(seed, 3) });
        scene.change_map(|_| 0);
        scene.see_all();
        let clients = Clients::new(&scene);
        // Node 0 is the home of all; node 1 has written, and flushed only a part.
        for (number, is_stable) in BLOCKS.into_iter().zip([true, false].into_iter().cycle()) {
            let clients = clients.clone();
            let write = async move |cpu: Processor, volume: Arc<Volume>| {
                clients.write(&cpu, &volume, 1, number, (false, is_stable)).await
            };
            scene.run(1, write).expect("written");
        }
        scene.kill_member(0);
        scene.deregister(0);
        scene.change_map(|bound| bound - 1);
        scene.see_all();
        let began = scene.world.now();
        for number in BLOCKS {
            let own = clients.clone();
            let read = scene.run(2, async move |cpu, volume| own.read(&cpu, &volume, 2, number).await);
            assert!(read.is_ok(), "seed {seed}: block {number}");
        }
        // Not a second of it is a wait for what is gone.
        let waited = scene.world.now().since(began);
        assert!(waited < Duration::from_secs(2), "seed {seed}: {waited:?}");
        let own = clients.clone();
        let flushed = scene.run(1, async move |cpu, volume| {
            let before = own.failures.get();
            own.flush(&cpu, &volume, 1).await;
            own.failures.get() == before
        });
        assert!(flushed, "seed {seed}: a flush at a node that has lost nothing");
        // Node 1 lives: all that it had written is there.
        scene.history.borrow_mut().crashes.clear();
        check(&scene, seed);
    }
}

#[test]
fn a_flush_fails_if_a_home_dies_under_it_where_something_had_been_written() {
    for seed in testkit::rounds::seeds(10) {
        let mut scene = Scene::new(Setup { moves: true, ..Setup::new(seed, 3) });
        scene.change_map(|_| 0);
        scene.see_all();
        let own = Clients::new(&scene);
        let written = scene.run(0, async move |cpu, volume| own.write(&cpu, &volume, 0, 3, (false, false)).await);
        written.expect("written");
        // Its answer never comes.
        scene.cut(0, 1);
        let flush = async |cpu: Processor, volume: Arc<Volume>| volume.flush(&cpu, context()).await;
        let flushed = scene.start(1, flush);
        scene.pass(Duration::from_millis(100));
        scene.kill_member(0);
        scene.deregister(0);
        scene.change_map(|_| 1);
        scene.see_all();
        scene.pass(REST);
        assert_eq!(flushed.take().map(|flushed| flushed.is_err()), Some(true), "seed {seed}");
        assert_eq!(scene.run(1, flush), Ok(()), "seed {seed}: it was told");
    }
}

#[test]
fn a_node_whose_lease_is_over_answers_nothing_and_begins_anew_with_the_next_one() {
    for seed in testkit::rounds::seeds(10) {
        let mut scene = Scene::new(Setup { moves: true, ..Setup::new(seed, 2) });
        scene.change_map(|_| 1);
        scene.see_all();
        let clients = Clients::new(&scene);
        let read = |scene: &mut Scene, node: usize| {
            let clients = clients.clone();
            scene.run(node, async move |cpu, volume| clients.read(&cpu, &volume, node, BLOCKS[0]).await)
        };
        let write = |scene: &mut Scene, node: usize| {
            let clients = clients.clone();
            let write = async move |cpu: Processor, volume: Arc<Volume>| {
                clients.write(&cpu, &volume, node, BLOCKS[0], (false, true)).await
            };
            scene.run(node, write)
        };
        let first = write(&mut scene, 0).expect("written");
        assert_eq!(read(&mut scene, 0), Ok(first), "seed {seed}");
        let old = scene.nodes[0].as_ref().and_then(|node| node.volume.clone()).expect("a member");
        scene.set_lease(0, false);
        read(&mut scene, 0).expect_err("cached, and its lease is over");
        write(&mut scene, 0).expect_err("its lease is over");
        scene.deregister(0);
        scene.see_all();
        let second = write(&mut scene, 1).expect("node 0 is gone");
        scene.register(0);
        scene.see_all();
        assert_eq!(read(&mut scene, 0), Ok(second), "seed {seed}");
        let stale = clients.clone();
        let through_old = scene.run(0, async move |cpu, _| stale.read(&cpu, &old, 0, BLOCKS[0]).await);
        through_old.expect_err("who was connected before has the old one");
        write(&mut scene, 0).expect("a member again");
    }
}

#[test]
fn what_a_home_had_granted_is_not_lost_when_it_gives_up_its_shard_before_the_grant_has_left() {
    const BLOCK: u64 = 3;
    for ms in 0..30 {
        // The device takes 5 ms, so that the second of two grants waits.
        let mut scene = Scene::new(Setup { moves: true, ..Setup::new(2, 4) });
        scene.change_map(|_| 0);
        scene.see_all();
        let clients = Clients::new(&scene);
        let own = clients.clone();
        let written = scene.run(1, async move |cpu, volume| own.write(&cpu, &volume, 1, BLOCK, (false, false)).await);
        let read = |node| {
            let own = clients.clone();
            scene.start(node, async move |cpu, volume| own.read(&cpu, &volume, node, BLOCK).await)
        };
        let reads = [2, 3].map(read);
        scene.pass(Duration::from_millis(ms));
        scene.give_up(0, ShardNo(0));
        scene.run_until(None, Scene::has_given_up);
        scene.change_map(|_| 1);
        scene.see_all();
        scene.run_until(None, |_| reads.iter().all(|read| read.borrow().is_some()));
        for read in reads {
            assert_eq!(read.take(), Some(written), "{ms} ms");
        }
    }
}

const LOST: u64 = 3;

async fn write_it(cpu: Processor, volume: Arc<Volume>) -> Result<Arc<Volume>, Errno> {
    fill(&cpu, &volume, block(LOST), 7, context()).await?;
    Ok(volume)
}

async fn read_it(cpu: Processor, volume: Arc<Volume>) -> Result<u8, Errno> {
    first_byte(&cpu, &volume, LOST).await
}

/// Node 1 had it, whose home is node 0.
fn with_a_lost_block(seed: u64) -> Scene {
    let mut scene = Scene::new(Setup { moves: true, ..Setup::new(seed, 3) });
    scene.change_map(|_| 0);
    scene.see_all();
    let written = scene.run(1, write_it).expect("written");
    drop(written.give_up(BlockNo(LOST), false));
    assert_eq!(scene.run(2, read_it), Err(Errno::IO), "seed {seed}: nobody has it");
    scene
}

/// While its home is node 1, which then gives that up.
fn write_it_anew(scene: &mut Scene) {
    let written = scene.run(2, write_it).expect("written");
    assert_eq!(scene.run(2, async move |cpu, _| written.flush(&cpu, context()).await), Ok(()));
    scene.give_up(1, ShardNo(0));
    scene.run_until(None, Scene::has_given_up);
}

#[test]
fn a_block_that_a_home_had_lost_is_read_there_again_when_it_was_written_under_another_home() {
    for seed in testkit::rounds::seeds(6) {
        let mut scene = with_a_lost_block(seed);
        scene.give_up(0, ShardNo(0));
        scene.run_until(None, Scene::has_given_up);
        scene.change_map(|_| 1);
        scene.see_all();
        write_it_anew(&mut scene);
        scene.change_map(|_| 0);
        scene.see_all();
        assert_eq!([1, 0, 2].map(|node| scene.run(node, read_it)), [Ok(7); 3], "seed {seed}");
    }
}

/// The map names it in its new incarnation before it begins that: it was away for as long.
#[test]
fn a_block_that_a_home_had_lost_is_read_there_in_its_next_incarnation_when_it_was_written_meanwhile() {
    for seed in testkit::rounds::seeds(6) {
        let mut scene = with_a_lost_block(seed);
        scene.deregister(0);
        scene.change_map(|_| 0);
        // Node 0 sees nothing.
        (1..3).for_each(|node| while scene.see(node) {});
        write_it_anew(&mut scene);
        let me = scene.enter(0);
        scene.change_map(|_| 0);
        scene.begin(0, me);
        scene.see_all();
        assert_eq!([1, 0, 2].map(|node| scene.run(node, read_it)), [Ok(7); 3], "seed {seed}");
    }
}

/// A page cannot be stored, or nothing has been.
#[test]
fn a_node_that_leaves_waits_for_its_lease_for_a_while_only() {
    for seed in testkit::rounds::seeds(6) {
        let mut scene = Scene::new(Setup { moves: true, ..Setup::new(seed, 2) });
        scene.change_map(|_| 0);
        scene.see_all();
        scene.until_connected();
        let has_stored = seed.is_multiple_of(2);
        if has_stored {
            scene.fail_writes(3);
            drop(
                scene.start(1, async move |cpu, volume| {
                    write_it(cpu.clone(), volume).await?.flush(&cpu, context()).await
                }),
            );
            scene.pass(Duration::from_millis(500));
        }
        let tells_of_loss = |scene: &Scene| scene.told().iter().any(|line| line.contains("was not flushed"));
        scene.set_lease(0, false);
        let home = Arc::clone(scene.nodes[0].as_ref().expect("it runs").shared());
        let retired = scene.start(0, async move |cpu, _| home.retire(&cpu).await);
        scene.pass(Duration::from_secs(3));
        assert!(retired.borrow().is_none(), "seed {seed}: it may be renewed");
        if seed.is_multiple_of(3) {
            scene.set_lease(0, true);
            scene.run_until(None, |_| retired.borrow().is_some());
            assert!(!tells_of_loss(&scene), "seed {seed}: it was");
        } else {
            scene.pass(REST);
            assert!(retired.borrow().is_some(), "seed {seed}");
            assert_eq!(tells_of_loss(&scene), has_stored, "seed {seed}");
        }
    }
}
