//! Nodes whose connections end, whose processes die and whose power fails: every history is linearizable, and what was
//! flushed is found.

use std::time::Duration;

use testkit::random::Random;

use crate::clients::{BLOCKS, Clients};
use crate::scene::{Backing, Scene, Setup};

/// Requests that waited for a node are answered by then, and connections made again.
const REST: Duration = Duration::from_secs(12);

fn check(scene: &Scene, seed: u64) {
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
fn read_all(scene: &mut Scene, clients: &Clients) -> Vec<(usize, u64)> {
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
    for seed in testkit::rounds::seeds(60) {
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
    scene.pass(Duration::from_millis(500));
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
