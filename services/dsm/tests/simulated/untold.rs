//! A home that fails to flush and dies before anybody has heard of that: what others still have of what it had stored, the
//! next home gets. So nothing is lost, and no flush fails for it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use machine::Errno;
use policy::coherence::ShardNo;
use policy::unit::BlockNo;

use crate::acknowledged::{begin_flush, end_flush, found, moving, write};
use crate::clients::Clients;
use crate::programs::{Program, listen};
use crate::scene::Scene;
use crate::scene::members::SHARDS;

/// Of the first shard.
const BLOCK: u64 = 3;

/// How a block that is written gets to its home, node 0.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// Another node reads it.
    Read,
    /// Another node writes it, too.
    Written,
    WrittenBack,
    /// The home itself has written it, and another node reads it.
    OfTheHome,
    /// A program has written it, and another node reads it.
    OfAProgram,
}

const WAYS: [Way; 5] = [Way::Read, Way::Written, Way::WrittenBack, Way::OfTheHome, Way::OfAProgram];

impl Way {
    /// Returns the value.
    fn go(self, scene: &mut Scene, clients: &Clients) -> u64 {
        let own = clients.clone();
        match self {
            Way::Read | Way::OfTheHome => {
                let value = write(scene, clients, if matches!(self, Way::Read) { 1 } else { 0 }, BLOCK);
                let read = scene.run(2, async move |cpu, volume| own.read(&cpu, &volume, 2, BLOCK).await);
                assert_eq!(read, Ok(value));
                value
            }
            Way::Written => {
                write(scene, clients, 1, BLOCK);
                let (part, other) = ((true, false), clients.clone());
                let written = scene.run(2, async move |cpu, volume| own.write(&cpu, &volume, 2, BLOCK, part).await);
                let read = scene.run(3, async move |cpu, volume| other.read(&cpu, &volume, 3, BLOCK).await);
                assert_eq!(read, written);
                written.expect("written")
            }
            Way::WrittenBack => {
                let value = write(scene, clients, 1, BLOCK);
                scene.run(1, async |cpu, volume| {
                    volume.write_out_unflushed(&cpu, testkit::scene::context()).await;
                });
                value
            }
            Way::OfAProgram => {
                listen(scene, 1);
                let program = Program::start(scene, 1);
                assert!(program.store(scene, BLOCK, 7));
                let read = scene.run(2, async move |cpu, volume| own.read(&cpu, &volume, 2, BLOCK).await);
                read.expect("read")
            }
        }
    }
}

/// A flush of node 0 fails when no other node can hear of it.
fn fail_unheard(scene: &mut Scene, seed: u64) {
    (1..4).for_each(|node| scene.cut(0, node));
    scene.medium().fail_flush(0);
    let medium = Arc::clone(scene.medium());
    let _flushed = begin_flush(scene, 0);
    assert!(scene.run_until(None, |_| !medium.is_failing(0)), "seed {seed}");
}

/// `next`: which of the others, in their order, is the next home.
fn die(scene: &mut Scene, node: usize, next: u64) {
    scene.kill_member(node);
    scene.deregister(node);
    scene.change_map(|bound| next as usize % bound);
    scene.see_all();
    scene.heal();
}

fn end_flush_of(scene: &mut Scene, node: usize) -> Result<(), Errno> {
    let flushed = begin_flush(scene, node);
    end_flush(scene, &flushed).0
}

fn flush(scene: &mut Scene, node: usize, seed: u64) {
    assert_eq!(end_flush_of(scene, node), Ok(()), "seed {seed}: node {node}");
}

#[test]
fn what_a_home_that_has_died_had_failed_to_flush_is_found_if_a_node_has_it_that_lives() {
    for way in WAYS {
        let (mut dropped, mut seeds) = (0, testkit::rounds::seeds(30));
        for seed in seeds.by_ref() {
            let (mut scene, clients) = moving(seed, 4);
            let value = way.go(&mut scene, &clients);
            fail_unheard(&mut scene, seed);
            dropped += u64::from(scene.medium().has_dropped(BLOCK));
            die(&mut scene, 0, seed / 3);
            flush(&mut scene, 1 + seed as usize % 3, seed);
            assert_eq!(found(&mut scene, &clients, BLOCK..BLOCK + 1)[&BLOCK], value, "seed {seed}, {way:?}");
        }
        println!("{way:?}: {dropped} were dropped");
        assert!(dropped > 10 || !seeds.have_been(30), "{way:?}: the device hardly ever dropped the block: {dropped}");
    }
}

/// Nobody else has it than who wrote it.
#[test]
fn what_a_flush_at_its_home_has_recalled_is_found_although_that_fails_and_the_home_dies_at_once() {
    let (mut dropped, mut seeds) = (0, testkit::rounds::seeds(40));
    for seed in seeds.by_ref() {
        let (mut scene, clients) = moving(seed, 4);
        let value = if seed % 2 == 0 {
            write(&mut scene, &clients, 1, BLOCK)
        } else {
            listen(&scene, 1);
            assert!(Program::start(&scene, 1).store(&mut scene, BLOCK, 7));
            u64::from_le_bytes([7; 8])
        };
        let medium = Arc::clone(scene.medium());
        medium.fail_flush(0);
        let _flushed = begin_flush(&scene, 3);
        assert!(scene.run_until(None, |_| medium.failures() > 0), "seed {seed}");
        dropped += u64::from(medium.has_dropped(BLOCK));
        die(&mut scene, 0, seed / 2);
        flush(&mut scene, 1 + seed as usize % 2, seed);
        assert_eq!(found(&mut scene, &clients, BLOCK..BLOCK + 1)[&BLOCK], value, "seed {seed}");
    }
    assert!(dropped > 20 || !seeds.have_been(40), "the device hardly ever dropped the block: {dropped}");
}

/// It succeeds the next time, so that its shards move.
#[test]
fn what_a_home_had_failed_to_flush_that_gave_up_its_shards_before_it_died_is_found() {
    for way in WAYS {
        for seed in testkit::rounds::seeds(10) {
            let (mut scene, clients) = moving(seed, 4);
            let value = way.go(&mut scene, &clients);
            (1..4).for_each(|node| scene.cut(0, node));
            scene.medium().fail_flush(0);
            (0..SHARDS).for_each(|shard| scene.give_up(0, ShardNo(shard)));
            assert!(scene.run_until(None, Scene::has_given_up), "seed {seed}");
            scene.change_map(|_| 3);
            scene.see_all();
            scene.pass(Duration::from_millis(seed * 10));
            die(&mut scene, 0, seed / 3);
            flush(&mut scene, 1 + seed as usize % 3, seed);
            assert_eq!(found(&mut scene, &clients, BLOCK..BLOCK + 1)[&BLOCK], value, "seed {seed}, {way:?}");
        }
    }
}

#[test]
fn a_stable_write_is_durable_although_the_home_fails_to_flush_it_and_dies_at_once() {
    for seed in testkit::rounds::seeds(30) {
        let (mut scene, clients) = moving(seed, 3);
        let medium = Arc::clone(scene.medium());
        medium.fail_flush(0);
        let own = clients.clone();
        let written = scene.start(1, async move |cpu, volume| own.write(&cpu, &volume, 1, BLOCK, (false, true)).await);
        assert!(scene.run_until(None, |_| medium.failures() > 0), "seed {seed}");
        // The writer itself is the next home of every second, and a flush could overtake what that has to store.
        if seed / 2 % 2 == 1 {
            scene.fail_writes(1);
        }
        die(&mut scene, 0, seed);
        assert!(scene.run_until(None, |_| written.borrow().is_some()));
        let value = written.take().expect("just looked").expect("written");
        assert_eq!(found(&mut scene, &clients, BLOCK..BLOCK + 1)[&BLOCK], value, "seed {seed}");
    }
}

/// The next home fails as well, long after that.
#[test]
fn what_was_given_to_the_next_home_is_durable_soon() {
    for seed in testkit::rounds::seeds(20) {
        let (mut scene, clients) = moving(seed, 4);
        let value = write(&mut scene, &clients, 1, BLOCK);
        (1..4).for_each(|node| scene.cut(0, node));
        scene.kill_member(0);
        scene.deregister(0);
        // Who has written it, or another one.
        let next = [1, 3][seed as usize / 3 % 2];
        scene.change_map(|_| next - 1);
        scene.see_all();
        scene.pass(Duration::from_secs(3));
        scene.heal();
        scene.medium().drop_unflushed(next);
        die(&mut scene, next, seed / 2);
        // As after any death of a node that had written.
        let _ = end_flush_of(&mut scene, 2);
        flush(&mut scene, 2, seed);
        assert_eq!(found(&mut scene, &clients, BLOCK..BLOCK + 1)[&BLOCK], value, "seed {seed}");
    }
}

/// The writer has nothing of it any more that it could give to the next home.
#[test]
fn a_stable_write_is_durable_although_another_node_has_written_the_block_since_and_the_home_that_failed_to_flush_it_dies()
 {
    for seed in testkit::rounds::seeds(30) {
        let (mut scene, clients) = moving(seed, 4);
        let medium = Arc::clone(scene.medium());
        medium.hang(0);
        let own = clients.clone();
        let stable = scene.start(1, async move |cpu, volume| own.write(&cpu, &volume, 1, BLOCK, (false, true)).await);
        scene.pass(Duration::from_millis(50));
        assert!(stable.borrow().is_none(), "seed {seed}: the home flushes");
        let (part, own) = ((true, false), clients.clone());
        let written = scene.run(2, async move |cpu, volume| own.write(&cpu, &volume, 2, BLOCK, part).await);
        assert!(written.is_ok(), "seed {seed}");
        medium.drop_unflushed(0);
        assert!(medium.has_dropped(BLOCK), "seed {seed}");
        die(&mut scene, 0, seed / 3);
        assert!(scene.run_until(None, |_| stable.borrow().is_some()));
        let value = stable.take().expect("just looked").expect("written");
        let found = found(&mut scene, &clients, BLOCK..BLOCK + 1)[&BLOCK];
        assert!(found >= value, "seed {seed}: {found}, not {value}");
    }
}

/// A flush that ends meanwhile makes it one that the cache may evict.
#[test]
fn what_is_given_to_the_next_home_is_given_although_the_cache_evicts_it_before_a_program_has_to_give_it_up() {
    for seed in testkit::rounds::seeds(30) {
        let (mut scene, clients) = moving(seed, 4);
        listen(&scene, 2);
        let value = write(&mut scene, &clients, 1, BLOCK);
        let program = Program::start(&scene, 2);
        assert!(program.load(&mut scene, BLOCK).is_some(), "seed {seed}");
        let volume = Arc::clone(scene.nodes[2].as_ref().and_then(|node| node.volume.as_ref()).expect("it runs"));
        assert!(volume.uncertain(BlockNo(BLOCK)).is_some(), "seed {seed}");
        scene.medium().drop_unflushed(0);
        for node in [0, 1] {
            scene.kill_member(node);
            scene.deregister(node);
        }
        scene.change_map(|bound| seed as usize / 3 % bound);
        scene.see_all();
        drop(volume.give_up(BlockNo(BLOCK), false));
        drop(volume);
        let own = clients.clone();
        let read = scene.run(3, async move |cpu, volume| own.read(&cpu, &volume, 3, BLOCK).await);
        assert_eq!(read, Ok(value), "seed {seed}");
        // It has heard of a death.
        let _ = end_flush_of(&mut scene, 3);
        flush(&mut scene, 3, seed);
        assert_eq!(found(&mut scene, &clients, BLOCK..BLOCK + 1)[&BLOCK], value, "seed {seed}");
    }
}

#[test]
fn what_a_program_was_to_write_that_has_ended_is_given_to_the_next_home() {
    for seed in testkit::rounds::seeds(30) {
        let (mut scene, clients) = moving(seed, 4);
        listen(&scene, 2);
        let value = write(&mut scene, &clients, 1, BLOCK);
        // Until then it may not be durable.
        let medium = Arc::clone(scene.medium());
        medium.hang(0);
        let own = clients.clone();
        let read = scene.run(2, async move |cpu, volume| own.read(&cpu, &volume, 2, BLOCK).await);
        assert_eq!(read, Ok(value), "seed {seed}");
        let program = Program::start(&scene, 2);
        program.memory.is_gone.store(true, Ordering::Relaxed);
        // The second time the node holds it for writing, and has not written it.
        for _ in 0..2 {
            program.fault(&scene, BLOCK, true);
            scene.pass(Duration::from_millis(20));
        }
        let volume = Arc::clone(scene.nodes[2].as_ref().and_then(|node| node.volume.as_ref()).expect("it runs"));
        assert!(program.memory.state(BLOCK).is_none() && volume.uncertain(BlockNo(BLOCK)).is_some(), "seed {seed}");
        drop(volume);
        medium.drop_unflushed(0);
        for node in [0, 1] {
            scene.kill_member(node);
            scene.deregister(node);
        }
        scene.change_map(|bound| seed as usize / 3 % bound);
        scene.see_all();
        // It has heard of a death.
        let _ = end_flush_of(&mut scene, 3);
        flush(&mut scene, 3, seed);
        assert_eq!(found(&mut scene, &clients, BLOCK..BLOCK + 1)[&BLOCK], value, "seed {seed}");
    }
}

/// A program waits to write a block that a node holds, and ends before the node may write it; then another one after that.
fn wait_in_vain(scene: &mut Scene, node: usize, mut before_second: impl FnMut(&mut Scene)) {
    listen(scene, node);
    for is_first in [true, false] {
        let program = Program::start(scene, node);
        program.memory.is_gone.store(true, Ordering::Relaxed);
        if !is_first {
            before_second(scene);
        }
        program.fault(scene, BLOCK, true);
        if is_first {
            program.end(scene);
        }
        scene.pass(Duration::from_millis(20));
    }
}

#[test]
fn what_a_program_was_to_write_that_has_ended_is_given_to_the_next_home_although_its_home_had_died_by_then() {
    for seed in testkit::rounds::seeds(30) {
        let (mut scene, clients) = moving(seed, 4);
        let value = write(&mut scene, &clients, 1, BLOCK);
        // Until then it may not be durable.
        scene.medium().hang(0);
        let own = clients.clone();
        let read = scene.run(2, async move |cpu, volume| own.read(&cpu, &volume, 2, BLOCK).await);
        assert_eq!(read, Ok(value), "seed {seed}");
        wait_in_vain(&mut scene, 2, |scene| {
            scene.medium().drop_unflushed(0);
            for node in [0, 1] {
                scene.kill_member(node);
                scene.deregister(node);
            }
            scene.see_all();
        });
        scene.change_map(|bound| seed as usize / 3 % bound);
        scene.see_all();
        // It has heard of a death.
        let _ = end_flush_of(&mut scene, 3);
        flush(&mut scene, 3, seed);
        assert_eq!(found(&mut scene, &clients, BLOCK..BLOCK + 1)[&BLOCK], value, "seed {seed}");
    }
}

/// By its own home, or by another node.
#[test]
fn what_a_node_has_written_and_a_program_was_to_write_that_has_ended_is_written_again_when_a_flush_fails() {
    for (seed, node) in testkit::rounds::seeds(15).flat_map(|seed| [(seed, 0), (seed, 1)]) {
        let (mut scene, clients) = moving(seed, 3);
        let value = write(&mut scene, &clients, node, BLOCK);
        scene.run(node, async |cpu, volume| {
            volume.write_out_unflushed(&cpu, testkit::scene::context()).await;
        });
        wait_in_vain(&mut scene, node, |_| ());
        let volume = Arc::clone(scene.nodes[node].as_ref().and_then(|node| node.volume.as_ref()).expect("it runs"));
        assert!(volume.uncertain(BlockNo(BLOCK)).is_some(), "seed {seed}, node {node}");
        drop(volume);
        scene.medium().fail_flush(0);
        assert!(end_flush_of(&mut scene, node).is_err(), "seed {seed}, node {node}");
        assert!(scene.medium().has_dropped(BLOCK), "seed {seed}, node {node}");
        flush(&mut scene, node, seed);
        assert_eq!(found(&mut scene, &clients, BLOCK..BLOCK + 1)[&BLOCK], value, "seed {seed}, node {node}");
    }
}
