//! Connections on which little or nothing gets through.

use std::sync::Arc;
use std::time::Duration;

use kernel::{Processor, Volume};
use policy::unit::{BLOCK_BYTES, ByteRange};
use sim::NetworkConfig;
use testkit::scene::context;
use testkit::scene::disk::{fill, first_byte};

use crate::scene::{Backing, Scene, Setup};

const PAGES: u64 = 256;

/// Node 0 has written pages whose home is node 1.
fn written(seed: u64, network: NetworkConfig, timeout: Duration) -> Scene {
    let setup = Setup { backing: Backing::Memory, homes: 2, network, timeout, ..Setup::new(seed, 2) };
    let mut scene = Scene::new(setup);
    scene.until_connected();
    let write = async |cpu: Processor, volume: Arc<Volume>| {
        fill(&cpu, &volume, ByteRange::new(0, PAGES * BLOCK_BYTES), 7, context()).await
    };
    assert_eq!(scene.run(0, write), Ok(()));
    scene
}

async fn flush(cpu: Processor, volume: Arc<Volume>) -> Result<(), machine::Errno> {
    volume.flush(&cpu, context()).await
}

#[test]
fn a_connection_ends_and_is_made_anew_though_its_peer_takes_nothing() {
    for seed in testkit::rounds::seeds(10) {
        let network = NetworkConfig { buffer_bytes: 64 << 10, ..NetworkConfig::default() };
        let mut scene = written(seed, network, Duration::from_secs(4));
        scene.pause(1, true);
        let flushed = scene.start(0, flush);
        let made = scene.connections();
        scene.pass(Duration::from_secs(12));
        assert!(flushed.borrow().is_some_and(|flushed| flushed.is_err()), "seed {seed}");
        assert!(scene.connections() > made, "seed {seed}: it has the old one still");
        scene.pause(1, false);
        scene.until_connected();
        let byte = scene.run(1, async |cpu, volume| first_byte(&cpu, &volume, PAGES - 1).await);
        assert_eq!((scene.run(0, flush), byte), (Ok(()), Ok(7)), "seed {seed}");
    }
}

#[test]
fn what_waits_to_be_sent_is_not_sent_again_each_second() {
    let mut most = 0;
    let mut seeds = testkit::rounds::seeds(10);
    for seed in seeds.by_ref() {
        // All pages take 16 s.
        let network = NetworkConfig { buffer_bytes: 64 << 10, ns_per_kib: 15_000_000, ..NetworkConfig::default() };
        let mut scene = written(seed, network, Duration::from_secs(60));
        let sent = |scene: &Scene| scene.shared().next().expect("it runs").counters().messages.get();
        let before = sent(&scene);
        assert_eq!(scene.run(0, flush), Ok(()), "seed {seed}");
        // Some were stored before, with some seeds.
        let sent = sent(&scene) - before;
        assert!(sent < 3 * PAGES, "seed {seed}: {sent} messages for {PAGES} pages");
        most = most.max(sent);
    }
    assert!(most > PAGES / 2 || !seeds.have_been(10), "nothing waited");
}

#[test]
fn a_flush_of_what_is_stored_slowly_takes_as_long_as_that_takes() {
    let mut most = Duration::ZERO;
    let mut seeds = testkit::rounds::seeds(10);
    for seed in seeds.by_ref() {
        // All pages take 16 s.
        let network = NetworkConfig { buffer_bytes: 64 << 10, ns_per_kib: 15_000_000, ..NetworkConfig::default() };
        let mut scene = written(seed, network, Duration::from_secs(4));
        let begin = scene.world.now();
        assert_eq!(scene.run(0, flush), Ok(()), "seed {seed}");
        most = most.max(scene.world.now().since(begin));
        let byte = scene.run(1, async |cpu, volume| first_byte(&cpu, &volume, PAGES - 1).await);
        assert_eq!(byte, Ok(7), "seed {seed}");
    }
    // Some were stored before, with some seeds.
    assert!(most > Duration::from_secs(8) || !seeds.have_been(10), "{most:?} is no test");
}

/// The device takes nothing, 0.3 ms or 5 ms, and all pages on the network take 4 s: much longer than until they are asked for again.
#[test]
fn what_is_given_to_a_new_home_is_sent_once() {
    for seed in testkit::rounds::seeds(12) {
        let network = NetworkConfig { buffer_bytes: 64 << 10, ns_per_kib: 4_000_000, ..NetworkConfig::default() };
        let setup = Setup { moves: true, network, timeout: Duration::from_secs(60), ..Setup::new(seed, 4) };
        let mut scene = Scene::new(setup);
        scene.change_map(|_| 0);
        scene.see_all();
        scene.until_connected();
        let write = async |cpu: Processor, volume: Arc<Volume>| {
            fill(&cpu, &volume, ByteRange::new(0, PAGES * BLOCK_BYTES), 7, context()).await
        };
        assert_eq!(scene.run(1, write), Ok(()));
        scene.kill_member(0);
        scene.deregister(0);
        scene.change_map(|bound| bound - 1);
        let sent = |scene: &Scene| scene.shared().next().expect("it runs").counters().messages.get();
        let before = sent(&scene);
        // In any order.
        let order = [[1, 3], [3, 1]][seed as usize % 2];
        for node in order.into_iter().chain([2]) {
            while scene.see(node) {}
            scene.pass(Duration::from_millis(100 * (seed % 4)));
        }
        let byte = scene.run(2, async |cpu, volume| first_byte(&cpu, &volume, PAGES - 1).await);
        assert_eq!(byte, Ok(7), "seed {seed}");
        // Each page is given up, and its storage noted.
        let sent = sent(&scene) - before;
        assert!((PAGES..2 * PAGES + PAGES / 4).contains(&sent), "seed {seed}: {sent} messages for {PAGES} pages");
    }
}
