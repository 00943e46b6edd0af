//! What a home has lost that was stored and not flushed fails the next flush of each node, once; nothing else fails one.

use std::time::Duration;

use machine::Errno;
use policy::unit::BlockNo;
use sim::Latency;
use testkit::scene::context;

use crate::acknowledged::{begin_flush, end_flush, write};
use crate::clients::Clients;
use crate::scene::{Backing, Scene, Setup};

const BLOCK: u64 = 3;

fn scene(seed: u64) -> (Scene, Clients) {
    connected(setup(seed, 3))
}

/// The first node is the home of all, on a path.
fn setup(seed: u64, nodes: usize) -> Setup {
    Setup { moves: true, stays: true, backing: Backing::Path, homes: 1, ..Setup::new(seed, nodes) }
}

fn connected(setup: Setup) -> (Scene, Clients) {
    let mut scene = Scene::new(setup);
    scene.see_all();
    scene.until_connected();
    let clients = Clients::new(&scene);
    (scene, clients)
}

fn flush(scene: &mut Scene, node: usize) -> Result<(), Errno> {
    let flushed = begin_flush(scene, node);
    end_flush(scene, &flushed).0
}

fn read(scene: &mut Scene, clients: &Clients, node: usize, number: u64) -> Result<u64, Errno> {
    let own = clients.clone();
    scene.run(node, async move |cpu, volume| own.read(&cpu, &volume, node, number).await)
}

/// Its process has ended, which all know.
fn forget(scene: &mut Scene, node: usize) {
    scene.deregister(node);
    scene.see_all();
}

fn start(scene: &mut Scene, node: usize) {
    scene.boot(node);
    scene.see_all();
    scene.until_connected();
}

/// Its power fails, and it is back.
fn lose_home(scene: &mut Scene) {
    scene.power_cut_member(0);
    forget(scene, 0);
    start(scene, 0);
}

fn write_stable(scene: &mut Scene, clients: &Clients, node: usize, number: u64) -> Result<u64, Errno> {
    let own = clients.clone();
    scene.run(node, async move |cpu, volume| own.write(&cpu, &volume, node, number, (false, true)).await)
}

/// Its lease is over, and its process goes on with another.
fn renew(scene: &mut Scene, node: usize) {
    forget(scene, node);
    scene.register(node);
    scene.see_all();
    scene.until_connected();
}

#[test]
fn no_flush_fails_when_only_the_lease_of_a_home_has_ended_and_all_is_durable() {
    for seed in testkit::rounds::seeds(12) {
        let (mut scene, clients) = scene(seed);
        write(&mut scene, &clients, 1, BLOCK);
        assert_eq!(flush(&mut scene, 2), Ok(()), "seed {seed}");
        for round in 0..2 {
            let value = write(&mut scene, &clients, 1, BLOCK);
            assert_eq!(read(&mut scene, &clients, 2, BLOCK), Ok(value), "seed {seed}: it is stored");
            renew(&mut scene, 0);
            if seed / 2 % 2 == 0 {
                assert!(write_stable(&mut scene, &clients, 1, BLOCK + 1).is_ok(), "seed {seed}, round {round}");
            }
            let mut nodes = [1, 2];
            nodes.rotate_left((seed as usize + round) % 2);
            let flushed = nodes.map(|node| flush(&mut scene, node));
            assert_eq!(flushed, [Ok(()); 2], "seed {seed}, round {round}");
            scene.power_cut_member(0);
            // It gives what it has of the home to the next one; this one has nothing.
            scene.kill_member(1);
            (0..2).for_each(|node| forget(&mut scene, node));
            (0..2).for_each(|node| scene.boot(node));
            scene.see_all();
            scene.until_connected();
            assert_eq!(read(&mut scene, &clients, 1, BLOCK), Ok(value), "seed {seed}, round {round}");
            let flushed = [2, 1, 0].map(|node| flush(&mut scene, node));
            assert_eq!(flushed, [Ok(()); 3], "seed {seed}, round {round}: nothing was lost");
        }
    }
}

#[test]
fn a_flush_fails_once_at_each_node_when_a_home_dies_after_a_new_lease() {
    for seed in testkit::rounds::seeds(12) {
        let (mut scene, clients) = scene(seed);
        let value = write(&mut scene, &clients, 1, BLOCK);
        assert_eq!(read(&mut scene, &clients, 2, BLOCK), Ok(value), "seed {seed}");
        renew(&mut scene, 0);
        if seed % 2 == 0 {
            let value = write(&mut scene, &clients, 1, BLOCK + 1);
            assert_eq!(read(&mut scene, &clients, 2, BLOCK + 1), Ok(value), "seed {seed}");
        }
        lose_home(&mut scene);
        renew(&mut scene, 0);
        assert!(write_stable(&mut scene, &clients, 1, BLOCK + 2).is_err(), "seed {seed}: what it had stored is lost");
        let flushed = [2, 2, 1, 1].map(|node| flush(&mut scene, node).is_ok());
        assert_eq!(flushed, [false, true, false, true], "seed {seed}");
        assert!(write_stable(&mut scene, &clients, 1, BLOCK + 2).is_ok(), "seed {seed}: it was told");
    }
}

#[test]
fn a_flush_fails_at_a_node_that_met_the_home_after_its_new_lease_when_what_was_stored_before_is_lost() {
    for seed in testkit::rounds::seeds(12) {
        let (mut scene, clients) = scene(seed);
        let value = write(&mut scene, &clients, 1, BLOCK);
        assert_eq!(read(&mut scene, &clients, 2, BLOCK), Ok(value), "seed {seed}: it is stored");
        renew(&mut scene, 0);
        if seed % 2 == 0 {
            renew(&mut scene, 2);
        } else {
            scene.kill_member(2);
            forget(&mut scene, 2);
            start(&mut scene, 2);
        }
        assert_eq!(read(&mut scene, &clients, 2, BLOCK), Ok(value), "seed {seed}");
        lose_home(&mut scene);
        let flushed = [2, 2].map(|node| flush(&mut scene, node).is_ok());
        assert_eq!(flushed, [false, true], "seed {seed}");
    }
}

/// A flush under which a node has died that had written has flushed nothing.
#[test]
fn a_flush_that_failed_before_the_home_s_storage_was_flushed_is_not_the_last_that_fails_for_what_is_lost_later() {
    for seed in testkit::rounds::seeds(12) {
        let (mut scene, clients) = connected(setup(seed, 4));
        let value = write(&mut scene, &clients, 1, BLOCK);
        assert_eq!(read(&mut scene, &clients, 2, BLOCK), Ok(value), "seed {seed}: it is stored");
        renew(&mut scene, 0);
        write(&mut scene, &clients, 3, BLOCK + 1);
        scene.kill_member(3);
        let flushed = begin_flush(&scene, 2);
        scene.pass(Duration::from_millis(50));
        forget(&mut scene, 3);
        assert!(end_flush(&mut scene, &flushed).0.is_err(), "seed {seed}: what was written is lost");
        scene.power_cut_member(0);
        forget(&mut scene, 0);
        scene.boot(3);
        start(&mut scene, 0);
        let flushed = [2, 2].map(|node| flush(&mut scene, node).is_ok());
        assert_eq!(flushed, [false, true], "seed {seed}");
    }
}

#[test]
fn a_flush_fails_for_what_a_node_had_stored_that_only_has_a_new_lease_when_the_home_has_lost_it() {
    for seed in testkit::rounds::seeds(12) {
        let (mut scene, clients) = scene(seed);
        let value = write(&mut scene, &clients, 1, BLOCK);
        assert_eq!(read(&mut scene, &clients, 2, BLOCK), Ok(value), "seed {seed}: it is stored");
        // Before the home's end, or after the node has been told of it.
        if seed % 2 == 0 {
            renew(&mut scene, 1);
        }
        lose_home(&mut scene);
        if seed % 2 == 1 {
            renew(&mut scene, 1);
        }
        let flushed = [2, 2].map(|node| flush(&mut scene, node).is_ok());
        assert_eq!(flushed, [false, true], "seed {seed}");
    }
}

/// It fails in the incarnation that has ended, before or after its end.
#[test]
fn a_failed_flush_of_a_home_fails_one_of_each_node_also_when_its_process_has_a_new_lease() {
    for seed in testkit::rounds::seeds(12) {
        let (mut scene, clients) = connected(Setup { flush: Some(Latency::us(20_000, 20_000)), ..setup(seed, 3) });
        let value = write(&mut scene, &clients, 1, BLOCK);
        assert_eq!(read(&mut scene, &clients, 2, BLOCK), Ok(value), "seed {seed}");
        scene.fail_disk_flush(0);
        let flushed = begin_flush(&scene, 2);
        scene.pass(Duration::from_millis(if seed % 2 == 0 { 10 } else { 100 }));
        for _ in 0..1 + seed / 2 % 2 {
            scene.register(0);
        }
        scene.see_all();
        scene.until_connected();
        assert!(end_flush(&mut scene, &flushed).0.is_err(), "seed {seed}");
        let flushed = [1, 1].map(|node| flush(&mut scene, node).is_ok());
        assert_eq!(flushed, [false, true], "seed {seed}");
    }
}

#[test]
fn a_node_that_wrote_back_while_the_home_was_away_is_not_told_that_it_has_lost_that() {
    for seed in testkit::rounds::seeds(12) {
        let (mut scene, clients) = scene(seed);
        let value = write(&mut scene, &clients, 1, BLOCK);
        if seed / 2 % 2 == 0 {
            scene.kill_member(0);
        }
        forget(&mut scene, 0);
        let own = clients.clone();
        let written = scene.start(1, async move |cpu, volume| own.write(&cpu, &volume, 1, BLOCK, (false, true)).await);
        scene.pass(Duration::from_millis(100));
        if seed / 2 % 2 == 0 {
            scene.boot(0);
        } else {
            scene.register(0);
        }
        scene.see_all();
        assert!(scene.run_until(None, |_| written.borrow().is_some()), "seed {seed}");
        let now = written.take().expect("just looked");
        assert!(now.is_ok_and(|now| now > value), "seed {seed}: {now:?}");
        assert_eq!([1, 2].map(|node| flush(&mut scene, node)), [Ok(()); 2], "seed {seed}");
    }
}

/// It gives to the home, when that is back, what it has written since.
#[test]
fn a_flush_fails_once_at_each_node_after_a_home_has_lost_what_another_node_had_stored() {
    for seed in testkit::rounds::seeds(12) {
        let (mut scene, clients) = scene(seed);
        write(&mut scene, &clients, 1, BLOCK);
        assert_eq!(flush(&mut scene, 2), Ok(()), "seed {seed}");
        let value = write(&mut scene, &clients, 1, BLOCK);
        assert_eq!(read(&mut scene, &clients, 2, BLOCK), Ok(value), "seed {seed}");
        write(&mut scene, &clients, 1, BLOCK + 1);
        lose_home(&mut scene);
        let flushed = [2, 2, 1, 1].map(|node| flush(&mut scene, node).is_ok());
        assert_eq!(flushed, [false, true, false, true], "seed {seed}");
    }
}

/// It is written back while there is no home, and not cached any more when a client wants it again.
#[test]
fn a_flush_fails_at_each_node_when_what_was_given_up_without_a_home_is_lost() {
    for seed in testkit::rounds::seeds(12) {
        let (mut scene, clients) = scene(seed);
        write(&mut scene, &clients, 1, BLOCK);
        scene.kill_member(0);
        forget(&mut scene, 0);
        let written_back = scene.start(1, async |cpu, volume| volume.write_out_unflushed(&cpu, context()).await);
        scene.pass(Duration::from_millis(10));
        let volume = scene.nodes[1].as_ref().and_then(|node| node.volume.clone()).expect("a member");
        drop(volume.give_up(BlockNo(BLOCK), false));
        let own = clients.clone();
        let read = scene.start(1, async move |cpu, volume| own.read(&cpu, &volume, 1, BLOCK).await);
        scene.pass(Duration::from_millis(10));
        start(&mut scene, 0);
        assert!(scene.run_until(None, |_| read.borrow().is_some() && written_back.borrow().is_some()));
        assert_eq!(read.take(), Some(Ok(0)), "seed {seed}: it is not lost");
        let flushed = [2, 2, 1, 1].map(|node| flush(&mut scene, node).is_ok());
        assert_eq!(flushed, [false, true, false, true], "seed {seed}");
    }
}

/// Nothing is stored at the home that was written while there was none: whoever has it gives it to the next one.
#[test]
fn no_other_node_s_flush_fails_when_what_was_written_back_without_a_home_is_found() {
    for seed in testkit::rounds::seeds(6) {
        let (mut scene, clients) = scene(seed);
        let value = write(&mut scene, &clients, 1, BLOCK);
        scene.kill_member(0);
        forget(&mut scene, 0);
        scene.start(1, async |cpu, volume| volume.write_out_unflushed(&cpu, context()).await);
        scene.pass(Duration::from_millis(10));
        start(&mut scene, 0);
        assert_eq!(read(&mut scene, &clients, 2, BLOCK), Ok(value), "seed {seed}");
        assert_eq!(flush(&mut scene, 2), Ok(()), "seed {seed}");
    }
}

#[test]
fn a_flush_fails_if_a_node_that_has_written_dies_under_it_while_the_home_is_away() {
    for seed in testkit::rounds::seeds(12) {
        let (mut scene, clients) = scene(seed);
        write(&mut scene, &clients, 1, BLOCK);
        // Its process dies, or it only has a new lease.
        if seed / 2 % 2 == 0 {
            scene.kill_member(0);
        }
        forget(&mut scene, 0);
        let flushed = begin_flush(&scene, 2);
        scene.pass(Duration::from_millis(50));
        scene.kill_member(1);
        forget(&mut scene, 1);
        if seed / 2 % 2 == 0 {
            scene.boot(0);
        } else {
            scene.register(0);
        }
        scene.see_all();
        assert!(end_flush(&mut scene, &flushed).0.is_err(), "seed {seed}");
        assert_eq!(flush(&mut scene, 2), Ok(()), "seed {seed}: it was told");
    }
}
