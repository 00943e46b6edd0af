//! Grants that come after their recall, because a connection has ended: nobody loses a page that nobody has written.

use std::sync::Arc;
use std::time::Duration;

use kernel::{Processor, Volume};
use machine::Errno;
use policy::unit::{BLOCK_BYTES, BlockNo, ByteRange};
use sim::NetworkConfig;
use testkit::scene::context;
use testkit::scene::disk::{block, fill, read};

use crate::programs::{Program, State, scene};
use crate::scene::{Backing, Scene, Setup};

const BLOCK: u64 = 3;

/// A part of the block.
const PART: ByteRange = ByteRange::new(BLOCK * BLOCK_BYTES, 512);

/// Node 0 is the home, and has the block, which is not cached at the others.
fn begin(seed: u64) -> Scene {
    let network = NetworkConfig { backlog_max: 64, ..NetworkConfig::default() };
    let mut scene = scene(Setup { backing: Backing::Path, homes: 1, network, ..Setup::new(seed, 3) });
    scene.until_connected();
    scene.set_forwarding(seed.is_multiple_of(2));
    let written = async |cpu: Processor, volume: Arc<Volume>| {
        fill(&cpu, &volume, block(BLOCK), 7, context()).await?;
        volume.flush(&cpu, context()).await
    };
    assert_eq!(scene.run(0, written), Ok(()));
    scene
}

/// Node 1 asks for the block. It is granted, and recalled for node 2, which reads or writes it; both messages are lost.
fn lose_grant_and_recall<T>(scene: &mut Scene, is_written: bool, ask: impl FnOnce(&Scene) -> T) -> T {
    scene.slow_down(1, Duration::from_millis(100));
    let asked = ask(scene);
    scene.pass(Duration::from_millis(150));
    scene.start(2, async move |cpu, volume| match is_written {
        true => fill(&cpu, &volume, PART, 8, context()).await,
        false => read(&cpu, &volume, PART, context()).await.map(drop),
    });
    scene.pass(Duration::from_millis(20));
    scene.cut(0, 1);
    scene.slow_down(1, Duration::ZERO);
    asked
}

/// A client or a program at node 1 has a copy to read, which the cache evicts.
fn evict(scene: &Scene) {
    let volume = scene.nodes[1].as_ref().and_then(|node| node.volume.clone()).expect("it runs");
    assert!(volume.give_up(BlockNo(BLOCK), false).is_some(), "it is cached");
}

/// What no test writes of the block is as before, wherever it is read.
fn check(scene: &mut Scene, what: &str) {
    scene.heal();
    scene.until_connected();
    scene.pass(Duration::from_secs(2));
    for node in [1, 2, 0] {
        let bytes = scene.run(node, async |cpu, volume| read(&cpu, &volume, block(BLOCK), context()).await);
        let is_as_before = |bytes: Vec<u8>| bytes[PART.len as usize..].iter().all(|byte| *byte == 7);
        assert_eq!(bytes.map(is_as_before), Ok(true), "{what}, at node {node}");
    }
}

#[test]
fn a_block_is_not_lost_where_the_grant_to_overwrite_it_comes_when_its_writer_has_given_up() {
    for seed in testkit::rounds::seeds(8) {
        for is_written in [false, true] {
            let mut scene = begin(seed);
            let written = lose_grant_and_recall(&mut scene, is_written, |scene| {
                scene.start(1, async |cpu, volume| fill(&cpu, &volume, block(BLOCK), 9, context()).await)
            });
            scene.pass(Duration::from_secs(5));
            assert_eq!(written.take(), Some(Err(Errno::IO)), "seed {seed}");
            check(&mut scene, &format!("seed {seed}, {is_written}"));
        }
    }
}

#[test]
fn a_block_is_not_lost_where_the_copy_to_be_changed_was_evicted_before_the_grant_came() {
    for seed in testkit::rounds::seeds(8) {
        for is_written in [false, true] {
            let mut scene = begin(seed);
            scene.run(1, async |cpu, volume| read(&cpu, &volume, PART, context()).await).expect("read");
            let written = lose_grant_and_recall(&mut scene, is_written, |scene| {
                scene.start(1, async |cpu, volume| fill(&cpu, &volume, PART, 9, context()).await)
            });
            evict(&scene);
            check(&mut scene, &format!("seed {seed}, {is_written}"));
            assert_eq!(written.take(), Some(Ok(())), "seed {seed}, {is_written}");
        }
    }
}

#[test]
fn a_page_is_not_lost_that_a_program_reads_and_is_to_write_when_the_cache_has_evicted_it() {
    for seed in testkit::rounds::seeds(8) {
        for is_written in [false, true] {
            let mut scene = begin(seed);
            let program = Program::start(&scene, 1);
            assert_eq!(program.load(&mut scene, BLOCK), Some(7));
            evict(&scene);
            lose_grant_and_recall(&mut scene, is_written, |scene| program.fault(scene, BLOCK, true));
            scene.heal();
            let memory = Arc::clone(&program.memory);
            let is_over = |_: &Scene| matches!(memory.state(BLOCK), Some(State::Writable | State::Poisoned));
            assert!(scene.run_until(None, is_over), "seed {seed}");
            assert_eq!(memory.state(BLOCK), Some(State::Writable), "seed {seed}, {is_written}");
            check(&mut scene, &format!("seed {seed}, {is_written}"));
        }
    }
}
