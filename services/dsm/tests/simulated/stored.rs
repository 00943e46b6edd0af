//! Much that programs have written, and homes that take longer than a timeout to store it, or do not answer.

use std::sync::Arc;
use std::time::Duration;

use kernel::{Processor, Volume};
use machine::Errno;
use policy::unit::Instant;
use sim::NetworkConfig;
use testkit::scene::context;
use testkit::scene::disk::first_byte;

use crate::programs::{Program, scene};
use crate::scene::{Backing, Scene, Setup};

/// With up to 8 KiB on their way, they take more than 5 s.
const PAGES: u64 = 256;

const TIMEOUT: Duration = Duration::from_secs(2);

/// A program of node 0 has written pages whose home is node 1. 32 of them, which may arrive together, take less than the timeout.
fn written(seed: u64) -> (Scene, Program) {
    let network = NetworkConfig { buffer_bytes: 8 << 10, ns_per_kib: 12_000_000, ..NetworkConfig::default() };
    let setup = Setup { backing: Backing::Memory, homes: 2, network, timeout: TIMEOUT, ..Setup::new(seed, 3) };
    let mut scene = scene(setup);
    scene.until_connected();
    let program = Program::start(&scene, 0);
    for page in 0..PAGES {
        assert!(program.store(&mut scene, page, content(page)), "seed {seed}");
    }
    (scene, program)
}

fn content(page: u64) -> u8 {
    page as u8 | 1
}

/// Returns how long it takes.
fn end_mappings(scene: &mut Scene) -> Duration {
    let shared = Arc::clone(scene.shared().next().expect("it runs"));
    let begin: Instant = scene.world.now();
    scene.run(0, async move |cpu: Processor, _: Arc<Volume>| shared.end_mappings(&cpu).await);
    scene.world.now().since(begin)
}

fn flush(scene: &mut Scene, node: usize) -> (Result<(), Errno>, Duration) {
    let begin = scene.world.now();
    let flushed = scene.run(node, async |cpu: Processor, volume: Arc<Volume>| volume.flush(&cpu, context()).await);
    (flushed, scene.world.now().since(begin))
}

fn all_are_at_the_home(scene: &mut Scene, seed: u64) {
    scene.kill(0);
    for page in 0..PAGES {
        let byte = scene.run(1, async move |cpu, volume| first_byte(&cpu, &volume, page).await);
        assert_eq!(byte, Ok(content(page)), "seed {seed}: page {page}");
    }
}

#[test]
fn a_node_that_ends_stores_all_that_programs_have_written_however_long_that_takes() {
    for seed in testkit::rounds::seeds(6) {
        let (mut scene, program) = written(seed);
        if seed % 2 == 1 {
            // Which is storing all of it.
            scene.start(0, async |cpu: Processor, volume: Arc<Volume>| volume.flush(&cpu, context()).await);
            scene.pass(Duration::from_millis(1));
        }
        let took = end_mappings(&mut scene);
        assert!(took > 2 * TIMEOUT, "seed {seed}: {took:?} is no test");
        assert_eq!(program.memory.held(), 0, "seed {seed}");
        all_are_at_the_home(&mut scene, seed);
    }
}

#[test]
fn a_node_whose_home_stores_nothing_ends_after_a_timeout() {
    for seed in testkit::rounds::seeds(6) {
        let (mut scene, _program) = written(seed);
        scene.pause(1, true);
        let took = end_mappings(&mut scene);
        assert!(took >= TIMEOUT && took < TIMEOUT + TIMEOUT / 2, "seed {seed}: {took:?}");
    }
}

/// At each node: the one where the program runs, the home, and one that has nothing to do with it.
#[test]
fn a_flush_of_much_that_programs_have_written_takes_as_long_as_that_takes() {
    for seed in testkit::rounds::seeds(6) {
        let node = seed as usize % 3;
        let (mut scene, _program) = written(seed);
        let (flushed, took) = flush(&mut scene, node);
        assert_eq!(flushed, Ok(()), "seed {seed}, at node {node}: after {took:?}");
        assert!(took > 2 * TIMEOUT, "seed {seed}: {took:?} is no test");
        all_are_at_the_home(&mut scene, seed);
    }
}

#[test]
fn a_flush_fails_after_a_timeout_in_which_what_others_have_written_is_not_stored() {
    for seed in testkit::rounds::seeds(6) {
        let node = 1 + seed as usize % 2;
        let (mut scene, _program) = written(seed);
        scene.pause(0, true);
        let (flushed, took) = flush(&mut scene, node);
        assert!(flushed.is_err(), "seed {seed}, at node {node}");
        assert!(took >= TIMEOUT && took < 2 * TIMEOUT, "seed {seed}, at node {node}: {took:?}");
    }
}

#[test]
fn a_flush_fails_after_a_timeout_in_which_a_home_does_not_answer() {
    for seed in testkit::rounds::seeds(6) {
        let (mut scene, _program) = written(seed);
        scene.pause(1, true);
        let (flushed, took) = flush(&mut scene, 2);
        assert!(flushed.is_err(), "seed {seed}");
        assert!(took >= TIMEOUT && took < 2 * TIMEOUT, "seed {seed}: {took:?}");
    }
}

#[test]
fn the_end_of_a_mapping_ends_with_the_incarnation_although_its_pages_cannot_be_stored() {
    for seed in testkit::rounds::seeds(6) {
        let mut scene = scene(Setup { moves: true, timeout: TIMEOUT, ..Setup::new(seed, 2) });
        scene.change_map(|_| 0);
        scene.see_all();
        let program = Program::start(&scene, 0);
        assert!(program.store(&mut scene, 3, 1), "seed {seed}");
        scene.fail_writes(1000);
        program.end(&scene);
        scene.pass(TIMEOUT);
        let before = Arc::clone(scene.shared().next().expect("it runs"));
        assert_eq!(before.mappings(), 1, "seed {seed}: it is stored");
        scene.register(0);
        scene.pass(2 * TIMEOUT);
        assert_eq!(before.mappings(), 0, "seed {seed}");
    }
}

#[test]
fn the_end_of_a_mapping_is_held_up_by_a_home_that_does_not_answer_only_for_its_own_pages() {
    for seed in testkit::rounds::seeds(6) {
        let setup = Setup { backing: Backing::Memory, homes: 0b110, timeout: TIMEOUT, ..Setup::new(seed, 3) };
        let mut scene = scene(setup);
        scene.until_connected();
        let program = Program::start(&scene, 0);
        // The first and the second shard, of nodes 1 and 2.
        for page in 0..2 * PAGES {
            assert!(program.store(&mut scene, page, content(page)), "seed {seed}");
        }
        scene.pause(1, true);
        program.end(&scene);
        scene.pass(TIMEOUT);
        scene.kill(0);
        for page in PAGES..2 * PAGES {
            let byte = scene.run(2, async move |cpu, volume| first_byte(&cpu, &volume, page).await);
            assert_eq!(byte, Ok(content(page)), "seed {seed}: page {page}");
        }
    }
}
