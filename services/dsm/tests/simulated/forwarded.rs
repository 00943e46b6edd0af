//! Pages that go straight from the node that has them to the one that wants them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use kernel::{Frames, Volume};
use sim::{Latency, NetworkConfig};

use crate::clients::Clients;
use crate::scene::{Backing, Scene, Setup};

const BLOCK: u64 = 3;

fn scene(seed: u64, is_on: bool) -> (Scene, Clients) {
    let mut scene = Scene::new(Setup { backing: Backing::Path, homes: 1, ..Setup::new(seed, 3) });
    scene.until_connected();
    scene.set_forwarding(is_on);
    let clients = Clients::new(&scene);
    (scene, clients)
}

/// Node 1 writes, node 2 reads what it wrote; how long that takes.
fn hand_over(scene: &mut Scene, clients: &Clients) -> Duration {
    let own = clients.clone();
    let written = scene.run(1, async move |cpu, volume| own.write(&cpu, &volume, 1, BLOCK, (false, false)).await);
    let (own, begun) = (clients.clone(), scene.world.now());
    let read = scene.run(2, async move |cpu, volume| own.read(&cpu, &volume, 2, BLOCK).await);
    assert_eq!(read, written);
    scene.world.now().since(begun)
}

fn forwards(scene: &Scene) -> Vec<u64> {
    scene.shared().map(|shared| shared.counters().forwards.get()).collect()
}

#[test]
fn a_page_that_is_forwarded_comes_sooner_and_is_stored_at_its_home() {
    for seed in testkit::rounds::seeds(10) {
        let [through_home, straight] = [false, true].map(|is_on| {
            let (mut scene, clients) = scene(seed, is_on);
            let took: Duration = (0..20).map(|_| hand_over(&mut scene, &clients)).sum();
            assert_eq!(forwards(&scene), [0, if is_on { 20 } else { 0 }, 0], "seed {seed}");
            scene.pass(Duration::from_secs(1));
            let home = scene.shared().next().expect("it runs");
            assert_eq!(home.counters().stores.get(), 20, "seed {seed}");
            took
        });
        assert!(straight < through_home, "seed {seed}: {straight:?}, {through_home:?}");
    }
}

#[test]
fn a_page_comes_through_its_home_where_the_two_are_not_connected() {
    for seed in testkit::rounds::seeds(10) {
        let (mut scene, clients) = scene(seed, true);
        scene.cut(1, 2);
        scene.pass(Duration::from_millis(100));
        let took = hand_over(&mut scene, &clients);
        assert_eq!(forwards(&scene), [0; 3], "seed {seed}");
        assert!(took < Duration::from_secs(1), "seed {seed}: it was asked for again: {took:?}");
    }
}

#[test]
fn what_a_node_that_died_had_forwarded_is_not_lost_with_it() {
    let mut survived = 0;
    for seed in testkit::rounds::seeds(40) {
        let (mut scene, clients) = scene(seed, true);
        let own = clients.clone();
        let written = scene.run(1, async move |cpu, volume| own.write(&cpu, &volume, 1, BLOCK, (false, false)).await);
        let own = clients.clone();
        let read = scene.start(2, async move |cpu, volume| own.read(&cpu, &volume, 2, BLOCK).await);
        // It dies in the moment in which it has sent the page.
        scene.run_until(None, |scene| forwards(scene)[1] > 0);
        scene.pass(Duration::from_micros(seed * 7));
        scene.kill(1);
        let seen = scene.run_until(Some(scene.world.now() + Duration::from_secs(2)), |_| read.borrow().is_some());
        scene.boot(1);
        scene.until_connected();
        scene.run_until(None, |_| read.borrow().is_some());
        let first = read.take().expect("just looked");
        survived += u64::from(seen && first == written);
        for node in [0, 1, 2] {
            let own = clients.clone();
            let again = scene.run(node, async move |cpu, volume| own.read(&cpu, &volume, node, BLOCK).await);
            assert_eq!(again, first, "seed {seed}: node {node}");
        }
    }
    assert!(survived > 0 || std::env::var_os("AWASE_SEED").is_some(), "it never came");
}

#[test]
fn what_was_forwarded_is_given_back_when_the_word_that_its_home_has_it_is_lost() {
    for seed in testkit::rounds::seeds(10) {
        for leaves in [false, true] {
            let (mut scene, clients) = scene(seed, true);
            let own = clients.clone();
            let write = async move |cpu, volume: Arc<Volume>| own.write(&cpu, &volume, 1, BLOCK, (false, false)).await;
            let written = scene.run(1, write);
            let own = clients.clone();
            let read = scene.start(2, async move |cpu, volume| own.read(&cpu, &volume, 2, BLOCK).await);
            scene.run_until(None, |scene| forwards(scene)[1] > 0);
            scene.cut(0, 2);
            scene.run_until(None, |_| read.borrow().is_some());
            assert_eq!(read.take(), Some(written), "seed {seed}");
            let saving = |scene: &Scene| scene.shared().map(|shared| shared.gauges().saving).collect::<Vec<_>>();
            scene.run_until(None, |scene| saving(scene)[1] == 0);
            scene.heal();
            scene.until_connected();
            assert_eq!(saving(&scene), [0, 0, 1], "seed {seed}");
            if leaves {
                let dsm = Arc::clone(&scene.nodes[2].as_ref().expect("it runs").dsm);
                scene.run(2, async move |cpu, _| dsm.leave(&cpu).await);
            } else {
                scene.pass(Duration::from_secs(2));
            }
            assert_eq!(saving(&scene), [0; 3], "seed {seed}: {leaves}");
        }
    }
}

#[test]
fn a_page_goes_on_at_once_when_its_recall_has_overtaken_it() {
    for seed in testkit::rounds::seeds(20) {
        // Two hops may take less time than one.
        let network = NetworkConfig { latency: Latency::us(10, 1000), ..NetworkConfig::default() };
        let setup = Setup { backing: Backing::Path, homes: 1, network, ..Setup::new(seed, 4) };
        let mut scene = Scene::new(setup);
        scene.until_connected();
        scene.set_forwarding(true);
        let clients = Clients::new(&scene);
        for _ in 0..20 {
            let begun = scene.world.now();
            let writes = [1, 2, 3].map(|node| {
                let own = clients.clone();
                scene.start(node, async move |cpu, volume| {
                    // What was there before is needed, so it is forwarded.
                    own.write(&cpu, &volume, node, BLOCK, (true, false)).await
                })
            });
            scene.run_until(None, |_| writes.iter().all(|write| write.borrow().is_some()));
            let took = scene.world.now().since(begun);
            assert!(took < Duration::from_secs(1), "seed {seed}: it was asked for again: {took:?}");
        }
    }
}

#[test]
fn a_page_that_finds_no_frame_comes_from_its_home() {
    for seed in testkit::rounds::seeds(10) {
        let (mut scene, clients) = scene(seed, true);
        let own = clients.clone();
        let written = scene.run(1, async move |cpu, volume| own.write(&cpu, &volume, 1, BLOCK, (false, false)).await);
        let own = clients.clone();
        let read = scene.run(2, async move |cpu, volume| {
            let mut frames = Frames::new();
            // Polled in this order: the read has a frame, and has asked, before all others are taken.
            let read = own.read(&cpu, &volume, 2, BLOCK);
            let take = async { while cpu.kernel().try_allocate(frames.len() + 1, &mut frames) {} };
            join(read, take).await.0
        });
        assert_eq!(read, written, "seed {seed}");
        assert_eq!(forwards(&scene), [0, 1, 0], "seed {seed}");
        let home = scene.shared().next().expect("it runs");
        assert_eq!(home.counters().grants.get(), 1, "seed {seed}: the page was not asked for again");
    }
}
