//! Nodes with leases, some of which are homes in memory of their own.

use std::sync::Arc;
use std::time::Duration;

use kernel::{Processor, Volume};
use machine::Errno;
use policy::unit::BlockNo;
use testkit::scene::context;
use testkit::scene::disk::{block, fill, first_byte};

use crate::scene::{Backing, Scene, Setup};

const BLOCK: u64 = 3;

/// The first one is the home of all.
fn scene(seed: u64) -> Scene {
    let setup = Setup { moves: true, stays: true, homes: 1, backing: Backing::Memory, ..Setup::new(seed, 3) };
    let mut scene = Scene::new(setup);
    scene.see_all();
    scene.until_connected();
    scene
}

/// Stored at its home, which has flushed it.
fn write(scene: &mut Scene, node: usize, number: u64, value: u8) {
    let written = scene.run(node, async move |cpu: Processor, volume: Arc<Volume>| {
        fill(&cpu, &volume, block(number), value, context()).await?;
        volume.flush(&cpu, context()).await
    });
    assert_eq!(written, Ok(()));
}

fn read(scene: &mut Scene, node: usize, number: u64) -> Result<u8, Errno> {
    scene.run(node, async move |cpu, volume| first_byte(&cpu, &volume, number).await)
}

fn evict(scene: &Scene, node: usize, number: u64) {
    let volume = scene.nodes[node].as_ref().and_then(|node| node.volume.clone()).expect("a member");
    drop(volume.give_up(BlockNo(number), false));
}

/// Its process dies, and starts again when all know it.
fn restart(scene: &mut Scene, node: usize) {
    scene.kill_member(node);
    scene.deregister(node);
    scene.see_all();
    scene.boot(node);
    scene.see_all();
    scene.until_connected();
}

/// Nodes that had met it have a new lease meanwhile, or not.
#[test]
fn what_a_home_in_memory_lost_with_its_process_is_an_error_until_it_is_written_anew() {
    for seed in testkit::rounds::seeds(12) {
        let mut scene = scene(seed);
        write(&mut scene, 1, BLOCK, 7);
        evict(&scene, 1, BLOCK);
        for round in 0..2 {
            if seed.is_multiple_of(2) {
                for node in [1, 2] {
                    scene.register(node);
                }
                scene.see_all();
            }
            restart(&mut scene, 0);
            for node in 0..3 {
                assert_eq!(read(&mut scene, node, BLOCK), Err(Errno::IO), "seed {seed}, round {round}: {node}");
            }
        }
        // In the same process it loses nothing more.
        write(&mut scene, 2, BLOCK, 8);
        evict(&scene, 2, BLOCK);
        scene.register(0);
        scene.see_all();
        scene.until_connected();
        for node in [1, 0, 2] {
            assert_eq!(read(&mut scene, node, BLOCK), Ok(8), "seed {seed}: {node}");
            assert_eq!(read(&mut scene, node, 5), Err(Errno::IO), "seed {seed}: {node}");
        }
    }
}

/// The writer has met the home, and its process dies, too; the third one never meets the process of the home that has died.
#[test]
fn what_a_home_in_memory_lost_is_an_error_although_no_node_is_left_that_had_met_it() {
    for seed in testkit::rounds::seeds(12) {
        let setup = Setup { moves: true, stays: true, homes: 1, backing: Backing::Memory, ..Setup::new(seed, 3) };
        let mut scene = Scene::new(setup);
        scene.cut(0, 2);
        scene.see_all();
        scene.pass(Duration::from_millis(500));
        write(&mut scene, 1, BLOCK, 7);
        scene.kill_member(0);
        scene.deregister(0);
        scene.see_all();
        scene.kill_member(1);
        scene.deregister(1);
        scene.see_all();
        scene.heal();
        scene.boot(1);
        scene.see_all();
        if seed.is_multiple_of(2) {
            scene.register(2);
        }
        scene.boot(0);
        scene.see_all();
        scene.until_connected();
        for node in 0..3 {
            assert_eq!(read(&mut scene, node, BLOCK), Err(Errno::IO), "seed {seed}: {node}");
        }
        write(&mut scene, 2, BLOCK, 8);
        assert_eq!([0, 1].map(|node| read(&mut scene, node, BLOCK)), [Ok(8); 2], "seed {seed}");
    }
}

/// The home of all is back, and the map changes before those that live have given it what they had.
#[test]
fn what_others_had_of_a_home_in_memory_is_not_lost_when_homes_of_other_disks_move() {
    for seed in testkit::rounds::seeds(12) {
        let mut scene = scene(seed);
        write(&mut scene, 1, BLOCK, 7);
        scene.kill_member(0);
        scene.deregister(0);
        scene.see_all();
        scene.boot(0);
        for _ in 0..2 {
            scene.register(2);
            scene.change_map(|_| 0);
            scene.see_all();
        }
        scene.until_connected();
        for node in 0..3 {
            assert_eq!(read(&mut scene, node, BLOCK), Ok(7), "seed {seed}: {node}");
        }
    }
}

#[test]
fn a_disk_whose_homes_in_memory_have_a_new_lease_or_have_all_ended_is_not_lost() {
    for seed in testkit::rounds::seeds(6) {
        let mut scene = scene(seed);
        write(&mut scene, 1, BLOCK, 7);
        evict(&scene, 1, BLOCK);
        scene.register(0);
        scene.see_all();
        scene.until_connected();
        assert_eq!([0, 1, 2].map(|node| read(&mut scene, node, BLOCK)), [Ok(7); 3], "seed {seed}");
        assert_eq!([0, 1, 2].map(|node| read(&mut scene, node, 5)), [Ok(0); 3], "seed {seed}");
        // The others are started while the lease of the home lasts.
        for node in 0..3 {
            scene.kill(node);
        }
        for node in [1, 2] {
            scene.boot(node);
        }
        scene.deregister(0);
        scene.see_all();
        scene.boot(0);
        scene.see_all();
        scene.until_connected();
        assert_eq!([0, 1, 2].map(|node| read(&mut scene, node, BLOCK)), [Ok(0); 3], "seed {seed}: it begins anew");
    }
}
