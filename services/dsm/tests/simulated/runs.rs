//! Adjacent pages: read and stored with one request to the storage of their home, and sent with one header.

use std::sync::Arc;
use std::time::Duration;

use kernel::{Processor, Volume};
use policy::unit::{BLOCK_BYTES, ByteRange};
use sim::{DiskCounters, NetworkConfig, OpClass};
use testkit::scene::context;
use testkit::scene::disk::{block, fill, first_byte, read};

use crate::scene::{Backing, Scene, Setup};

const PAGES: u64 = 128;

/// Pages read or written at a time.
const TOGETHER: u64 = 16;

/// Whose page cannot be read or written.
const BAD: u64 = 5;

/// Node 0 is the home, in a file.
fn scene(seed: u64) -> Scene {
    let network = NetworkConfig::default();
    let mut scene = Scene::new(Setup { backing: Backing::Path, homes: 1, network, ..Setup::new(seed, 2) });
    begin(&mut scene);
    scene
}

fn begin(scene: &mut Scene) {
    scene.switch(|switches| switches.look_ahead = true);
    scene.until_connected();
}

/// Nothing is cached any more.
fn restart(scene: &mut Scene) {
    (0..2).for_each(|node| scene.power_cut(node));
    (0..2).for_each(|node| scene.boot(node));
    begin(scene);
}

fn pages(first: u64) -> ByteRange {
    ByteRange::new(first * BLOCK_BYTES, TOGETHER * BLOCK_BYTES)
}

async fn write_in_order(cpu: Processor, volume: Arc<Volume>) -> Result<(), machine::Errno> {
    for first in (0..PAGES).step_by(TOGETHER as usize) {
        fill(&cpu, &volume, pages(first), 7, context()).await?;
    }
    volume.flush(&cpu, context()).await
}

async fn read_in_order(cpu: Processor, volume: Arc<Volume>) -> bool {
    for first in (0..PAGES).step_by(TOGETHER as usize) {
        let bytes = read(&cpu, &volume, pages(first), context()).await;
        if !bytes.is_ok_and(|bytes| bytes.iter().all(|byte| *byte == 7)) {
            return false;
        }
    }
    true
}

fn home_counters(scene: &Scene) -> DiskCounters {
    scene.world.disk_counters(scene.disk(0))
}

#[test]
fn pages_in_order_are_read_and_stored_by_their_home_with_few_requests() {
    for seed in testkit::rounds::seeds(8) {
        for node in [0, 1] {
            let mut scene = scene(seed);
            assert_eq!(scene.run(node, write_in_order), Ok(()), "seed {seed}");
            let writes = home_counters(&scene).writes;
            assert!(writes <= PAGES / 4, "seed {seed}, by node {node}: {writes} writes");
            restart(&mut scene);
            let before = home_counters(&scene).reads;
            assert!(scene.run(node, read_in_order), "seed {seed}");
            let reads = home_counters(&scene).reads - before;
            assert!((1..=PAGES / 4).contains(&reads), "seed {seed}, by node {node}: {reads} reads");
        }
    }
}

#[test]
fn pages_in_order_are_sent_with_few_headers() {
    for seed in testkit::rounds::seeds(4) {
        let mut scene = scene(seed);
        assert_eq!(scene.run(1, write_in_order), Ok(()), "seed {seed}");
        restart(&mut scene);
        let count = |scene: &Scene| {
            let counters = scene.shared().map(|shared| shared.counters());
            let counts = counters.map(|counters| (counters.messages.get(), counters.headers.get()));
            counts.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
        };
        let before = count(&scene);
        assert!(scene.run(1, read_in_order), "seed {seed}");
        let after = count(&scene);
        let (messages, headers) = (after.0 - before.0, after.1 - before.1);
        assert!(messages >= 2 * PAGES && headers <= messages / 4, "seed {seed}: {headers} for {messages} messages");
        // Without look-ahead each leaves by itself.
        restart(&mut scene);
        scene.switch(|switches| switches.look_ahead = false);
        scene.pass(Duration::from_millis(10));
        let before = count(&scene);
        assert!(scene.run(1, read_in_order), "seed {seed}");
        // What is read ahead is counted as messages before it leaves.
        scene.pass(Duration::from_secs(1));
        let after = count(&scene);
        assert_eq!(after.0 - before.0, after.1 - before.1, "seed {seed}");
    }
}

#[test]
fn one_page_that_storage_cannot_read_is_an_error_and_those_beside_it_are_read() {
    for seed in testkit::rounds::seeds(8) {
        for node in [0, 1] {
            let mut scene = scene(seed);
            assert_eq!(scene.run(node, write_in_order), Ok(()), "seed {seed}");
            restart(&mut scene);
            scene.world.fail_range(scene.disk(0), block(BAD), OpClass::Read);
            let all = scene.run(node, async |cpu, volume| read(&cpu, &volume, pages(0), context()).await);
            assert!(all.is_err(), "seed {seed}, by node {node}");
            let reads = home_counters(&scene).reads;
            let others = async |cpu: Processor, volume: Arc<Volume>| {
                for number in (0..TOGETHER).filter(|number| *number != BAD) {
                    assert_eq!(first_byte(&cpu, &volume, number).await, Ok(7), "page {number}");
                }
            };
            scene.run(node, others);
            assert_eq!(home_counters(&scene).reads, reads, "seed {seed}, by node {node}: they were not kept");
            let bad = scene.run(node, async |cpu, volume| first_byte(&cpu, &volume, BAD).await);
            assert!(bad.is_err(), "seed {seed}, by node {node}");
            scene.world.heal(scene.disk(0));
            let bad = scene.run(node, async |cpu, volume| first_byte(&cpu, &volume, BAD).await);
            assert_eq!(bad, Ok(7), "seed {seed}, by node {node}");
        }
    }
}

#[test]
fn one_page_that_storage_cannot_store_is_stored_later_and_those_beside_it_at_once() {
    for seed in testkit::rounds::seeds(8) {
        for node in [0, 1] {
            let mut scene = scene(seed);
            scene.world.fail_range(scene.disk(0), block(BAD), OpClass::Write);
            let written = scene.start(node, write_in_order);
            scene.pass(Duration::from_millis(700));
            assert!(written.borrow().is_none(), "seed {seed}, by node {node}: a page cannot be stored");
            for number in (0..TOGETHER).filter(|number| *number != BAD) {
                let stored = scene.world.read_disk(scene.disk(0), block(number));
                assert_eq!(stored[0], 7, "seed {seed}, by node {node}: page {number}");
            }
            scene.pass(Duration::from_secs(2));
            let told = scene.told().into_iter().filter(|line| line.contains("could not be stored"));
            assert_eq!(told.count(), 1, "seed {seed}, by node {node}");
            scene.world.heal(scene.disk(0));
            assert!(scene.run_until(None, |_| written.borrow().is_some()));
            assert_eq!(written.take(), Some(Ok(())), "seed {seed}, by node {node}");
            restart(&mut scene);
            let bytes = scene.run(1, async |cpu, volume| read(&cpu, &volume, pages(0), context()).await);
            assert_eq!(bytes, Ok(vec![7; (TOGETHER * BLOCK_BYTES) as usize]), "seed {seed}, by node {node}");
        }
    }
}
