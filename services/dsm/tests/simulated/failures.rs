//! Nodes whose connections end, whose processes die and whose power fails: every history is linearizable, and what was
//! flushed is found.

use std::sync::Arc;
use std::time::Duration;

use kernel::{Processor, Volume};
use machine::Errno;
use sim::OpClass;
use testkit::random::Random;
use testkit::scene::context;
use testkit::scene::disk::{block, fill, first_byte};

use crate::clients::{BLOCKS, Clients};
use crate::scene::{Backing, Scene, Setup};

/// Requests that waited for a node are answered by then, and connections made again.
const REST: Duration = Duration::from_secs(12);

pub fn check(scene: &Scene, seed: u64) {
    let history = scene.history.borrow();
    if let Err(what) = history.check() {
        let block: Option<u64> = what.split([' ', ':']).nth(1).and_then(|number| number.parse().ok());
        for event in history.events.iter().filter(|event| Some(event.block) == block) {
            eprintln!("{event:?}");
        }
        eprintln!("crashes {:?}", history.crashes);
        scene.told().iter().for_each(|line| eprintln!("{line}"));
        panic!("seed {seed}: {what}");
    }
}

/// Every node reads every block. Returns what could not be read.
pub fn read_all(scene: &mut Scene, clients: &Clients) -> Vec<(usize, u64)> {
    let mut unread = Vec::new();
    for node in 0..scene.nodes.len() {
        for number in BLOCKS {
            let clients = clients.clone();
            let read = scene.run(node, async move |cpu, volume| clients.read(&cpu, &volume, node, number).await);
            if read.is_err() {
                unread.push((node, number));
            }
        }
    }
    unread
}

#[test]
fn histories_are_linearizable_while_connections_end_and_nodes_are_cut_off() {
    for seed in testkit::rounds::seeds(30) {
        let mut random = Random(seed);
        let nodes = 2 + random.below(4) as usize;
        let mut scene = Scene::new(Setup::new(seed, nodes));
        let clients = Clients::new(&scene);
        (0..nodes).for_each(|node| clients.start(&scene, node, 2, seed));
        for _ in 0..6 {
            scene.pass(Duration::from_millis(random.below(400)));
            let (one, other) = (random.below(nodes as u64) as usize, random.below(nodes as u64) as usize);
            if one != other {
                scene.cut(one, other);
            }
            scene.pass(Duration::from_millis(random.below(1500)));
            if random.chance(600) {
                scene.heal();
            }
        }
        scene.heal();
        scene.pass(Duration::from_secs(2));
        clients.stopping.set(true);
        scene.pass(REST);
        assert_eq!(read_all(&mut scene, &clients), [], "seed {seed}");
        assert!(scene.history.borrow().events.len() > 100, "seed {seed}: hardly anything was done");
        check(&scene, seed);
    }
}

#[test]
fn a_slow_node_is_waited_for_and_shows_nothing_old() {
    for seed in testkit::rounds::seeds(40) {
        let mut random = Random(seed);
        let nodes = 2 + random.below(3) as usize;
        let mut scene = Scene::new(Setup::new(seed, nodes));
        scene.until_connected();
        let clients = Clients::new(&scene);
        (0..nodes).for_each(|node| clients.start(&scene, node, 2, seed));
        let slow = random.below(nodes as u64) as usize;
        for _ in 0..4 {
            scene.slow_down(slow, Duration::from_millis(random.below(150)));
            scene.pass(Duration::from_millis(500 + random.below(1500)));
        }
        clients.stopping.set(true);
        scene.pass(REST);
        assert_eq!(read_all(&mut scene, &clients), [], "seed {seed}");
        let ended = scene.told().iter().filter(|line| line.contains("not connected any more")).count();
        assert_eq!(ended, 0, "seed {seed}: it is slow, not away");
        assert!(scene.history.borrow().events.len() > 20, "seed {seed}: hardly anything was done");
        check(&scene, seed);
    }
}

#[test]
fn histories_of_sixty_four_nodes_are_linearizable_while_some_are_cut_off_and_one_dies() {
    for seed in testkit::rounds::seeds(1) {
        let mut random = Random(seed);
        let nodes = 64;
        let mut scene = Scene::new(Setup { backing: Backing::Path, memory: 2 << 20, ..Setup::new(seed, nodes) });
        scene.until_connected();
        let clients = Clients::new(&scene);
        (0..nodes).for_each(|node| clients.start(&scene, node, 1, seed));
        scene.pass(Duration::from_millis(1000));
        let dead = random.below(nodes as u64) as usize;
        for _ in 0..8 {
            let (one, other) = (random.below(nodes as u64) as usize, random.below(nodes as u64) as usize);
            if one != other {
                scene.cut(one, other);
            }
        }
        scene.pass(Duration::from_millis(400));
        scene.kill(dead);
        scene.pass(Duration::from_millis(100));
        scene.heal();
        scene.boot(dead);
        scene.until_connected();
        clients.stopping.set(true);
        scene.pass(REST);
        assert_eq!(read_all(&mut scene, &clients), [], "seed {seed}");
        let events = scene.history.borrow().events.len();
        assert!(events > 1000, "seed {seed}: hardly anything was done: {events} at {:?}", scene.world.now());
        check(&scene, seed);
    }
}

/// Kills nodes under load, and starts them again. A crash is over when all nodes have met the new process.
fn with_deaths(seed: u64, backing: Backing) -> (Scene, Clients) {
    let mut random = Random(seed);
    let nodes = 2 + random.below(3) as usize;
    let mut scene = Scene::new(Setup { backing, ..Setup::new(seed, nodes) });
    let clients = Clients::new(&scene);
    (0..nodes).for_each(|node| clients.start(&scene, node, 2, seed));
    for round in 0..3 {
        scene.pass(Duration::from_millis(100 + random.below(400)));
        let node = random.below(nodes as u64) as usize;
        if random.chance(500) {
            scene.kill(node);
        } else {
            scene.power_cut(node);
        }
        scene.pass(Duration::from_millis(random.below(3000)));
        scene.boot(node);
        scene.until_connected();
        clients.start(&scene, node, 2, seed ^ (round + 1) << 40);
    }
    scene.pass(Duration::from_millis(random.below(500)));
    clients.stopping.set(true);
    scene.pass(REST);
    (scene, clients)
}

#[test]
fn what_was_flushed_to_a_path_is_found_after_deaths_and_nothing_old_is_read() {
    for seed in testkit::rounds::seeds(60) {
        let (mut scene, clients) = with_deaths(seed, Backing::Path);
        assert_eq!(read_all(&mut scene, &clients), [], "seed {seed}");
        check(&scene, seed);
    }
}

#[test]
fn what_a_home_in_memory_lost_is_an_error_until_it_is_written_anew() {
    let mut lost = 0;
    for seed in testkit::rounds::seeds(60) {
        let (mut scene, clients) = with_deaths(seed, Backing::Memory);
        let unread = read_all(&mut scene, &clients);
        for number in BLOCKS {
            let failed = unread.iter().filter(|(_, unread)| *unread == number).count();
            assert!(
                failed == 0 || failed == scene.nodes.len(),
                "seed {seed}: block {number} is lost to {failed} nodes"
            );
            lost += usize::from(failed > 0);
        }
        check(&scene, seed);
        for number in BLOCKS {
            let clients = clients.clone();
            let written =
                scene.run(0, async move |cpu, volume| clients.write(&cpu, &volume, 0, number, (false, false)).await);
            assert!(written.is_ok(), "seed {seed}: block {number}");
        }
        assert_eq!(read_all(&mut scene, &clients), [], "seed {seed}");
        check(&scene, seed);
    }
    assert!(lost > 0 || std::env::var_os("AWASE_SEED").is_some(), "nothing was ever lost");
}

/// A value of the client, written at a node and flushed at another.
fn write_and_flush(scene: &mut Scene, clients: &Clients, (writer, flusher): (usize, usize), number: u64) -> u64 {
    let own = clients.clone();
    let written =
        scene.run(writer, async move |cpu, volume| own.write(&cpu, &volume, writer, number, (false, false)).await);
    let flushed = scene.run(flusher, async |cpu, volume| volume.flush(&cpu, context()).await);
    assert_eq!(flushed, Ok(()));
    written.expect("written")
}

#[test]
fn a_flush_at_one_node_makes_durable_what_was_written_at_another() {
    for seed in testkit::rounds::seeds(30) {
        // The home of all blocks is the writer, the node that flushes, or a third one.
        let home = (seed % 3) as usize;
        let mut scene = Scene::new(Setup { backing: Backing::Path, homes: 1 << home, ..Setup::new(seed, 3) });
        let clients = Clients::new(&scene);
        let mut values = Vec::new();
        for number in BLOCKS {
            values.push((number, write_and_flush(&mut scene, &clients, (0, 1), number)));
        }
        (0..3).for_each(|node| scene.power_cut(node));
        (0..3).for_each(|node| scene.boot(node));
        scene.until_connected();
        for (number, value) in values {
            let own = clients.clone();
            let read = scene.run(2, async move |cpu, volume| own.read(&cpu, &volume, 2, number).await);
            assert_eq!(read, Ok(value), "seed {seed}: block {number}");
        }
    }
}

#[test]
fn a_flush_fails_once_at_each_node_after_a_home_has_lost_what_another_node_had_stored() {
    for seed in testkit::rounds::seeds(20) {
        let mut scene = Scene::new(Setup { backing: Backing::Path, homes: 1, ..Setup::new(seed, 3) });
        let clients = Clients::new(&scene);
        write_and_flush(&mut scene, &clients, (1, 2), 3);
        // Stored at its home, since another node has read it, and not flushed.
        let own = clients.clone();
        let written = scene.run(1, async move |cpu, volume| own.write(&cpu, &volume, 1, 3, (false, false)).await);
        let own = clients.clone();
        let read = scene.run(2, async move |cpu, volume| own.read(&cpu, &volume, 2, 3).await);
        assert_eq!(read, written);
        scene.power_cut(0);
        scene.boot(0);
        scene.until_connected();
        let flush = async |cpu: Processor, volume: Arc<Volume>| volume.flush(&cpu, context()).await;
        let flushed = [2, 2, 1].map(|node| scene.run(node, flush));
        assert!(flushed[0].is_err() && flushed[1].is_ok() && flushed[2].is_err(), "seed {seed}: {flushed:?}");
    }
}

#[test]
fn a_flush_does_not_succeed_while_what_a_node_has_written_cannot_be_had() {
    let mut scene = Scene::new(Setup { backing: Backing::Path, homes: 1, ..Setup::new(2, 3) });
    let clients = Clients::new(&scene);
    let own = clients.clone();
    scene.run(1, async move |cpu, volume| own.write(&cpu, &volume, 1, 3, (false, false)).await).expect("written");
    scene.cut(0, 1);
    let flush = async |cpu: Processor, volume: Arc<Volume>| volume.flush(&cpu, context()).await;
    assert!(scene.run(2, flush).is_err(), "node 1 has written, and cannot be reached by the home");
    scene.heal();
    scene.until_connected();
    assert_eq!(scene.run(2, flush), Ok(()));
    // It dies while it is waited for: what it had written is lost.
    let own = clients.clone();
    scene.run(1, async move |cpu, volume| own.write(&cpu, &volume, 1, 3, (false, false)).await).expect("written");
    scene.cut(0, 1);
    let flushed = scene.start(2, flush);
    scene.pass(Duration::from_millis(500));
    scene.kill(1);
    scene.heal();
    scene.boot(1);
    scene.pass(REST);
    assert_eq!(flushed.take().map(|flushed| flushed.is_err()), Some(true));
    assert_eq!(scene.run(2, flush), Ok(()), "it was told");
}

/// A flush at node 2 of what node 1 has written, while the home, node 0, hears of the flush only after `happens`.
fn flush_while(seed: u64, happens: impl FnOnce(&mut Scene)) -> (Scene, Option<Result<(), Errno>>) {
    let mut scene = Scene::new(Setup { backing: Backing::Path, homes: 1, ..Setup::new(seed, 3) });
    scene.until_connected();
    let clients = Clients::new(&scene);
    scene.run(1, async move |cpu, volume| clients.write(&cpu, &volume, 1, 3, (false, false)).await).expect("written");
    scene.cut(0, 2);
    let flushed = scene.start(2, async |cpu, volume| volume.flush(&cpu, context()).await);
    scene.pass(Duration::from_millis(100));
    happens(&mut scene);
    scene.heal();
    scene.run_until(None, |_| flushed.borrow().is_some());
    let flushed = flushed.take();
    (scene, flushed)
}

/// Until the home and node 1 have met.
fn until_met(scene: &mut Scene) {
    scene.run_until(None, |scene| scene.shared().next().is_some_and(|home| home.connected() == 1));
}

#[test]
fn a_flush_fails_when_a_node_that_had_written_died_before_its_home_heard_of_the_flush() {
    for seed in testkit::rounds::seeds(10) {
        let (mut scene, flushed) = flush_while(seed, |scene| {
            scene.kill(1);
            scene.boot(1);
            until_met(scene);
        });
        assert!(flushed.is_some_and(|flushed| flushed.is_err()), "seed {seed}: what node 1 had written is lost");
        let again = scene.run(2, async |cpu, volume| volume.flush(&cpu, context()).await);
        assert_eq!(again, Ok(()), "seed {seed}: it was told");
    }
}

#[test]
fn a_flush_fails_when_the_home_died_too_and_knows_nothing_of_who_had_written() {
    for seed in testkit::rounds::seeds(10) {
        let (_, flushed) = flush_while(seed, |scene| {
            scene.kill(0);
            scene.kill(1);
            scene.boot(0);
            scene.boot(1);
            until_met(scene);
        });
        assert!(flushed.is_some_and(|flushed| flushed.is_err()), "seed {seed}: what node 1 had written is lost");
    }
}

#[test]
fn a_flush_fails_when_a_node_died_that_its_home_had_not_met_since_its_return() {
    for seed in testkit::rounds::seeds(10) {
        let mut scene = Scene::new(Setup { backing: Backing::Path, homes: 1, ..Setup::new(seed, 3) });
        scene.until_connected();
        let clients = Clients::new(&scene);
        let write = async move |cpu, volume: Arc<Volume>| clients.write(&cpu, &volume, 1, 3, (false, false)).await;
        scene.run(1, write).expect("written");
        scene.cut(0, 1);
        scene.kill(0);
        scene.boot(0);
        scene.run_until(None, |scene| scene.shared().next().is_some_and(|home| home.connected() == 1));
        let flushed = scene.start(2, async |cpu, volume| volume.flush(&cpu, context()).await);
        scene.pass(Duration::from_millis(100));
        scene.kill(1);
        scene.boot(1);
        scene.heal();
        scene.run_until(None, |_| flushed.borrow().is_some());
        assert!(flushed.take().is_some_and(|flushed| flushed.is_err()), "seed {seed}: what node 1 had written is lost");
    }
}

/// The writer dies while the home ends in order and returns. Node 2 has not met it, or has met it three times meanwhile.
#[test]
fn a_flush_fails_when_a_node_that_had_written_died_while_its_home_ended_in_order() {
    for seed in testkit::rounds::seeds(10) {
        let mut scene = Scene::new(Setup { backing: Backing::Path, homes: 1, ..Setup::new(seed, 3) });
        scene.until_connected();
        let clients = Clients::new(&scene);
        let write = async move |cpu, volume: Arc<Volume>| clients.write(&cpu, &volume, 1, 3, (false, false)).await;
        if seed.is_multiple_of(2) {
            scene.kill(2);
            scene.cut(1, 2);
            scene.boot(2);
            // It has met its home, but not node 1.
            scene.run_until(None, |scene| scene.shared().map(|node| node.connected()).eq([2, 1, 1]));
        }
        scene.run(1, write).expect("written");
        scene.cut(0, 1);
        let flushed = scene.start(2, async |cpu, volume| volume.flush(&cpu, context()).await);
        scene.pass(Duration::from_millis(100));
        leave(&mut scene, 0);
        scene.kill(1);
        scene.boot(1);
        scene.pass(Duration::from_millis(600));
        if !seed.is_multiple_of(2) {
            leave(&mut scene, 1);
            scene.boot(1);
            scene.pass(Duration::from_millis(600));
        }
        scene.heal();
        scene.boot(0);
        scene.run_until(None, |_| flushed.borrow().is_some());
        assert!(flushed.take().is_some_and(|flushed| flushed.is_err()), "seed {seed}: what node 1 had written is lost");
    }
}

/// Ends a node in order.
fn leave(scene: &mut Scene, node: usize) {
    let dsm = Arc::clone(&scene.nodes[node].as_ref().expect("it runs").dsm);
    scene.run(node, async move |cpu, _| dsm.leave(&cpu).await);
    scene.kill(node);
}

#[test]
fn a_flush_does_not_fail_with_a_node_that_had_written_nothing() {
    for seed in testkit::rounds::seeds(10) {
        let mut scene = Scene::new(Setup { backing: Backing::Path, homes: 1, ..Setup::new(seed, 3) });
        scene.until_connected();
        let clients = Clients::new(&scene);
        write_and_flush(&mut scene, &clients, (1, 1), 3);
        scene.cut(0, 2);
        let flushed = scene.start(2, async |cpu, volume| volume.flush(&cpu, context()).await);
        scene.pass(Duration::from_millis(100));
        scene.kill(1);
        scene.boot(1);
        until_met(&mut scene);
        scene.heal();
        scene.run_until(None, |_| flushed.borrow().is_some());
        assert_eq!(flushed.take(), Some(Ok(())), "seed {seed}");
    }
}

/// Waits for a task once all nodes are connected, less long than it takes until anything is asked again.
fn soon_after_connection<T>(scene: &mut Scene, task: &std::cell::RefCell<Option<T>>) -> T {
    scene.until_connected();
    let limit = scene.world.now() + Duration::from_millis(500);
    assert!(scene.run_until(Some(limit), |_| task.borrow().is_some()), "it waits: {:?}", scene.told());
    task.take().expect("just looked")
}

#[test]
fn who_waited_for_a_home_that_was_away_goes_on_as_soon_as_it_is_connected() {
    for seed in testkit::rounds::seeds(20) {
        let mut scene = Scene::new(Setup { backing: Backing::Path, homes: 1, ..Setup::new(seed, 3) });
        let clients = Clients::new(&scene);
        let own = clients.clone();
        let written = scene.run(1, async move |cpu, volume| own.write(&cpu, &volume, 1, 3, (false, false)).await);
        // Its content is at a third node.
        scene.kill(0);
        scene.boot(0);
        let own = clients.clone();
        let read = scene.start(2, async move |cpu, volume| own.read(&cpu, &volume, 2, 3).await);
        assert_eq!(soon_after_connection(&mut scene, &read), written, "seed {seed}");
        scene.cut(0, 2);
        let flushed = scene.start(2, async |cpu, volume| volume.flush(&cpu, context()).await);
        scene.pass(Duration::from_millis(300));
        scene.heal();
        assert_eq!(soon_after_connection(&mut scene, &flushed), Ok(()), "seed {seed}");
    }
}

#[test]
fn a_home_that_returns_is_answered_by_one_that_cannot_store_a_page_of_its_own() {
    for seed in testkit::rounds::seeds(6) {
        let mut scene = Scene::new(Setup { backing: Backing::Path, homes: 0b11, ..Setup::new(seed, 3) });
        scene.until_connected();
        // Its home is node 1.
        let own = block(dsm::SHARD_PAGES);
        scene.world.fail_range(scene.disk(1), own, OpClass::Write);
        let stored = scene.start(2, async move |cpu, volume| {
            fill(&cpu, &volume, own, 9, context()).await?;
            volume.flush(&cpu, context()).await
        });
        scene.pass(Duration::from_millis(500));
        scene.kill(0);
        scene.boot(0);
        scene.until_connected();
        let read = scene.run(2, async |cpu, volume| first_byte(&cpu, &volume, 3).await);
        assert_eq!(read, Ok(0), "seed {seed}");
        assert!(!matches!(*stored.borrow(), Some(Ok(()))), "seed {seed}");
    }
}

#[test]
fn a_node_that_starts_as_an_earlier_one_is_refused_and_both_sides_say_why() {
    // Also where it is the last one by its number.
    for number in [2, 3] {
        let mut scene = Scene::new(Setup::new(0, 2));
        scene.until_connected();
        scene.kill(1);
        scene.boot(1);
        scene.until_connected();
        scene.cut(0, 1);
        scene.heal();
        scene.until_connected();
        scene.kill(1);
        scene.count_starts(1, number - 1);
        scene.boot(1);
        scene.pass(Duration::from_secs(2));
        let told = scene.told();
        for side in ["0: ", "1: "] {
            let why = format!("number {number} is an old one");
            let is_why = |line: &&String| line.starts_with(side) && line.contains(&why);
            assert_eq!(told.iter().filter(is_why).count(), 1, "{told:?}");
        }
        assert!(scene.shared().all(|shared| shared.connected() == 0));
    }
}
