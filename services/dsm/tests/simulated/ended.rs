//! Nodes that end in order, alone or all at about the same time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use kernel::{Processor, Volume};
use machine::Errno;
use policy::unit::Instant;
use sim::Latency;
use testkit::random::Random;
use testkit::scene::context;
use testkit::scene::disk::block;

use crate::clients::Clients;
use crate::programs::{Program, scene as scene_of_programs};
use crate::scene::{Backing, Node, Scene, Setup};

const NODES: usize = 3;

const TIMEOUT: Duration = Duration::from_secs(4);

/// Blocks of all homes.
const BLOCKS: u64 = 120;

fn number(block: u64) -> u64 {
    block * 31
}

type Ended = Rc<RefCell<Option<(Result<(), Errno>, Instant)>>>;

/// A node begins to end in order, as a server does. Its clients are `idle` when they have seen that they are to end.
fn end(scene: &Scene, node: usize, mut idle: impl FnMut() -> bool + 'static) -> Ended {
    let Node { dsm, shared, .. } = scene.nodes[node].as_ref().expect("it runs");
    let (dsm, shared) = (Arc::clone(dsm), shared.clone().expect("it is a member"));
    scene.start(node, async move |cpu: Processor, volume: Arc<Volume>| {
        dsm.begin_to_leave();
        while !idle() {
            cpu.sleep(Duration::from_millis(1)).await;
        }
        shared.end_mappings(&cpu).await;
        let closed = volume.close(&cpu).await;
        let failed = dsm.leave(&cpu).await.into_iter().next();
        (closed.and(failed.map_or(Ok(()), |(_, errno)| Err(errno))), cpu.now())
    })
}

/// A node ends in order while the others go on. Returns how long it takes, too.
fn end_one(scene: &mut Scene, node: usize) -> (Result<(), Errno>, Duration) {
    let begun = scene.world.now();
    let ended = end(scene, node, || true);
    assert!(scene.run_until(None, |_| ended.borrow().is_some()));
    // What was only written, and not flushed, is gone.
    scene.power_cut(node);
    let (result, at) = ended.take().expect("just looked");
    (result, at.since(begun))
}

/// All nodes are told to end, one a moment after the other, and each is gone when it has ended.
fn end_all(
    scene: &mut Scene,
    random: &mut Random,
    begin: impl Fn(&Scene, usize) -> Ended,
) -> Vec<(Result<(), Errno>, Duration)> {
    let mut left: Vec<usize> = (0..NODES).collect();
    left.rotate_left(random.below(NODES as u64) as usize);
    let mut ending: Vec<(usize, Instant, Ended)> = Vec::new();
    let mut results = Vec::new();
    while !left.is_empty() || !ending.is_empty() {
        let limit = left.pop().map(|node| {
            ending.push((node, scene.world.now(), begin(scene, node)));
            scene.world.now() + Duration::from_millis(random.below(100))
        });
        loop {
            let is_over = |scene: &Scene| limit.is_some_and(|limit| scene.world.now() >= limit);
            scene.run_until(limit, |scene| {
                is_over(scene) || ending.iter().any(|(_, _, ended)| ended.borrow().is_some())
            });
            let has_ended = |(_, _, ended): &mut (usize, Instant, Ended)| ended.borrow().is_some();
            for (node, begun, ended) in ending.extract_if(.., has_ended) {
                let (result, at) = ended.take().expect("just looked");
                results.push((result, at.since(begun)));
                scene.power_cut(node);
            }
            if is_over(scene) || ending.is_empty() {
                break;
            }
        }
    }
    results
}

fn scene(seed: u64, backing: Backing, homes: u64) -> (Scene, Clients) {
    scene_with(Setup { backing, homes, timeout: TIMEOUT, ..Setup::new(seed, NODES) })
}

fn scene_with(setup: Setup) -> (Scene, Clients) {
    let seed = setup.seed;
    let mut scene = scene_of_programs(setup);
    scene.until_connected();
    scene.set_forwarding(seed % 4 < 2);
    let clients = Clients::new(&scene);
    (scene, clients)
}

/// Writes all blocks at these nodes, and flushes nothing.
fn write_all(scene: &mut Scene, clients: &Clients, mut node: impl FnMut() -> usize) -> Vec<u64> {
    let mut write = |block| {
        let (node, own) = (node(), clients.clone());
        let write = async move |cpu, volume: Arc<Volume>| {
            own.write(&cpu, &volume, node, number(block), (false, false)).await.expect("written")
        };
        scene.run(node, write)
    };
    (0..BLOCKS).map(&mut write).collect()
}

fn boot_all(scene: &mut Scene) {
    (0..NODES)
        .filter(|node| scene.nodes[*node].is_none())
        .collect::<Vec<_>>()
        .into_iter()
        .for_each(|node| scene.boot(node));
    scene.until_connected();
}

fn read(scene: &mut Scene, clients: &Clients, node: usize, number: u64) -> Result<u64, Errno> {
    let own = clients.clone();
    scene.run(node, async move |cpu, volume: Arc<Volume>| own.read(&cpu, &volume, node, number).await)
}

/// All is there, and no flush reports a loss.
fn check(scene: &mut Scene, clients: &Clients, values: Vec<u64>, seed: u64) {
    for (block, value) in (0..BLOCKS).zip(values) {
        assert_eq!(
            read(scene, clients, block as usize % NODES, number(block)),
            Ok(value),
            "seed {seed}: block {block}"
        );
    }
    for node in 0..NODES {
        let flush = async |cpu: Processor, volume: Arc<Volume>| volume.flush(&cpu, context()).await;
        assert_eq!(scene.run(node, flush), Ok(()), "seed {seed}: node {node}");
    }
}

/// What is said of a node and of as much as node 0, the home, has not stored of all blocks: it may have some of the first ones
/// where the others took long to write.
fn told_of(scene: &Scene, node: usize) -> Option<String> {
    let is_stored = |number: u64| scene.world.read_disk(scene.disk(0), block(number)).iter().any(|byte| *byte != 0);
    let unstored = (0..BLOCKS).filter(|block| !is_stored(number(*block))).count();
    let (of, amount) = (format!("node \"{node}\""), format!(" {} KiB", 4 * unstored));
    scene.told().into_iter().find(|line| line.contains(&of) && line.contains(&amount))
}

#[test]
fn nodes_with_paths_that_all_end_in_order_lose_nothing_and_wait_for_nothing() {
    for seed in testkit::rounds::seeds(10) {
        let mut random = Random(seed);
        let (mut scene, clients) = scene(seed, Backing::Path, u64::MAX >> (64 - NODES));
        let values = write_all(&mut scene, &clients, || random.below(NODES as u64) as usize);
        for (result, took) in end_all(&mut scene, &mut random, |scene, node| end(scene, node, || true)) {
            assert_eq!(result, Ok(()), "seed {seed}: {:?}", scene.told());
            assert!(took < TIMEOUT / 2, "seed {seed}: {took:?}: {:?}", scene.told());
        }
        boot_all(&mut scene);
        check(&mut scene, &clients, values, seed);
    }
}

/// Blocks of its own that a client writes all the time, and the last value of each that was acknowledged.
#[derive(Default)]
struct Writer {
    is_ending: Cell<bool>,
    has_ended: Cell<bool>,
    acknowledged: RefCell<Vec<(u64, u64)>>,
}

impl Writer {
    fn start(scene: &Scene, clients: &Clients, node: usize, blocks: Vec<u64>) -> Rc<Writer> {
        let writer = Rc::new(Writer::default());
        let (own, clients) = (Rc::clone(&writer), clients.clone());
        scene.start(node, async move |cpu: Processor, volume: Arc<Volume>| {
            while !own.is_ending.get() {
                for block in &blocks {
                    if let Ok(value) = clients.write(&cpu, &volume, node, number(*block), (false, false)).await {
                        let mut acknowledged = own.acknowledged.borrow_mut();
                        acknowledged.retain(|(other, _)| other != block);
                        acknowledged.push((*block, value));
                    }
                }
                cpu.sleep(Duration::from_micros(100)).await;
            }
            own.has_ended.set(true);
        });
        writer
    }

    fn is_idle(&self) -> bool {
        self.is_ending.set(true);
        self.has_ended.get()
    }
}

#[test]
fn what_was_acknowledged_while_the_nodes_began_to_end_is_not_lost() {
    for seed in testkit::rounds::seeds(10) {
        let mut random = Random(seed);
        let (mut scene, clients) = scene(seed, Backing::Path, u64::MAX >> (64 - NODES));
        let blocks = |node: usize| (0..BLOCKS).filter(|block| *block as usize % NODES == node).take(12).collect();
        let writers: Vec<_> = (0..NODES).map(|node| Writer::start(&scene, &clients, node, blocks(node))).collect();
        scene.pass(Duration::from_millis(100));
        let idle = |node: usize| {
            let writer = Rc::clone(&writers[node]);
            move || writer.is_idle()
        };
        for (result, took) in end_all(&mut scene, &mut random, |scene, node| end(scene, node, idle(node))) {
            assert_eq!(result, Ok(()), "seed {seed}: {:?}", scene.told());
            assert!(took < TIMEOUT / 2, "seed {seed}: {took:?}: {:?}", scene.told());
        }
        boot_all(&mut scene);
        for (block, value) in writers.iter().flat_map(|writer| writer.acknowledged.take()) {
            // A later one was not acknowledged, and may have been written all the same.
            let found = read(&mut scene, &clients, 0, number(block)).expect("read");
            assert!(found >= value, "seed {seed}: block {block}: {found} for {value}");
        }
    }
}

#[test]
fn a_home_that_ends_has_all_that_others_wrote_and_those_that_end_later_do_not_wait_for_it() {
    for seed in testkit::rounds::seeds(10) {
        let (mut scene, clients) = scene(seed, Backing::Path, 1);
        let values = write_all(&mut scene, &clients, || 1);
        // Also what is mapped into a program.
        let (program, page) = (Program::start(&scene, 1), 5);
        assert!(program.store(&mut scene, page, 9), "seed {seed}");
        for node in 0..NODES {
            let (result, took) = end_one(&mut scene, node);
            assert_eq!(result, Ok(()), "seed {seed}: node {node}: {:?}", scene.told());
            assert!(took < TIMEOUT / 2, "seed {seed}: node {node} took {took:?}");
        }
        boot_all(&mut scene);
        check(&mut scene, &clients, values, seed);
        let byte = scene.run(2, async move |cpu, volume| testkit::scene::disk::first_byte(&cpu, &volume, page).await);
        assert_eq!(byte, Ok(9), "seed {seed}");
    }
}

#[test]
fn a_node_that_goes_on_has_lost_nothing_when_its_home_is_back() {
    for seed in testkit::rounds::seeds(10) {
        let (mut scene, clients) = scene(seed, Backing::Path, 1);
        let values = write_all(&mut scene, &clients, || 1);
        assert_eq!(end_one(&mut scene, 0).0, Ok(()), "seed {seed}");
        scene.pass(Duration::from_millis(300));
        boot_all(&mut scene);
        check(&mut scene, &clients, values, seed);
    }
}

#[test]
fn a_home_waits_a_timeout_for_a_node_that_does_not_answer_and_not_for_one_that_is_away_and_says_so() {
    for seed in testkit::rounds::seeds(6) {
        for is_away in [false, true] {
            let (mut scene, clients) = scene(seed, Backing::Path, 1);
            write_all(&mut scene, &clients, || 1);
            if is_away {
                scene.cut(0, 1);
                scene.pass(Duration::from_millis(1));
            } else {
                scene.pause(1, true);
            }
            let (result, took) = end_one(&mut scene, 0);
            assert_eq!(result, Ok(()), "seed {seed}: its own storage has all that it was given");
            let limits = if is_away { Duration::ZERO..TIMEOUT / 2 } else { TIMEOUT..2 * TIMEOUT };
            assert!(limits.contains(&took), "seed {seed}: {took:?}");
            let told = told_of(&scene, 1);
            assert!(told.is_some(), "seed {seed}: {:?}", scene.told());
        }
    }
}

#[test]
fn a_flush_does_not_succeed_for_what_a_home_that_ends_was_given_while_it_flushed() {
    for seed in testkit::rounds::seeds(10) {
        let flush = Some(Latency::us(2_000_000, 2_000_000));
        let setup = Setup { backing: Backing::Path, homes: 1, timeout: TIMEOUT, flush, ..Setup::new(seed, NODES) };
        let (mut scene, clients) = scene_with(setup);
        let values = write_all(&mut scene, &clients, || 1);
        scene.cut(0, 1);
        scene.pass(Duration::from_millis(1));
        let ended = end(&scene, 0, || true);
        scene.pass(Duration::from_millis(100));
        // It flushes by now, and node 1 is back.
        scene.heal();
        let flush = async |cpu: Processor, volume: Arc<Volume>| volume.flush(&cpu, context()).await;
        let flushed = scene.start(1, flush);
        assert!(scene.run_until(None, |_| ended.borrow().is_some()));
        scene.power_cut(0);
        scene.pass(Duration::from_millis(300));
        boot_all(&mut scene);
        assert!(scene.run_until(None, |_| flushed.borrow().is_some()), "seed {seed}");
        if flushed.take() == Some(Ok(())) {
            check(&mut scene, &clients, values, seed);
        }
    }
}

#[test]
fn a_home_does_not_wait_for_a_node_whose_connection_ends_while_it_does() {
    let timeout = Duration::from_secs(40);
    for seed in testkit::rounds::seeds(6) {
        for dies in [false, true] {
            let setup = Setup { backing: Backing::Path, homes: 1, timeout, ..Setup::new(seed, NODES) };
            let (mut scene, clients) = scene_with(setup);
            write_all(&mut scene, &clients, || 1);
            scene.pause(1, true);
            let (begun, ended) = (scene.world.now(), end(&scene, 0, || true));
            scene.pass(Duration::from_millis(100));
            assert!(ended.borrow().is_none(), "seed {seed}");
            if dies {
                scene.kill(1);
            }
            assert!(scene.run_until(None, |_| ended.borrow().is_some()));
            let (result, at) = ended.take().expect("just looked");
            assert_eq!(result, Ok(()), "seed {seed}");
            let took = at.since(begun);
            assert!(took < timeout / 2, "seed {seed}: {took:?}: {:?}", scene.told());
            let told = told_of(&scene, 1);
            assert!(told.is_some(), "seed {seed}: {:?}", scene.told());
        }
    }
}

#[test]
fn a_node_that_ends_says_how_much_is_lost_for_which_home() {
    for seed in testkit::rounds::seeds(6) {
        let (mut scene, clients) = scene(seed, Backing::Path, 1);
        write_all(&mut scene, &clients, || 1);
        scene.kill(0);
        let (result, took) = end_one(&mut scene, 1);
        assert_eq!(result, Err(Errno::IO), "seed {seed}");
        assert!(took < 2 * TIMEOUT, "seed {seed}: {took:?}");
        let told = told_of(&scene, 0);
        assert!(told.is_some_and(|line| line.contains("lost")), "seed {seed}: {:?}", scene.told());
    }
}

#[test]
fn a_home_in_memory_ends_at_once_for_what_it_has_ends_with_it() {
    for seed in testkit::rounds::seeds(6) {
        let (mut scene, clients) = scene(seed, Backing::Memory, 1);
        write_all(&mut scene, &clients, || 1);
        scene.pause(1, true);
        let (result, took) = end_one(&mut scene, 0);
        assert_eq!(result, Ok(()), "seed {seed}");
        assert!(took < TIMEOUT / 2, "seed {seed}: {took:?}");
    }
}

#[test]
fn a_home_waits_no_longer_for_a_node_that_hangs_in_its_end_because_another_goes_on_storing() {
    for seed in testkit::rounds::seeds(3) {
        let (mut scene, clients) = scene(seed, Backing::Path, 1);
        let _hangs = end(&scene, 1, || false);
        let own = clients.clone();
        scene.start(2, async move |cpu: Processor, volume: Arc<Volume>| {
            while !own.stopping.get() {
                let _ = own.write(&cpu, &volume, 2, number(1), (false, true)).await;
                cpu.sleep(Duration::from_millis(50)).await;
            }
        });
        scene.pass(Duration::from_millis(500));
        let (result, took) = end_one(&mut scene, 0);
        clients.stopping.set(true);
        assert_eq!(result, Ok(()), "seed {seed}");
        assert!(took < 3 * TIMEOUT, "seed {seed}: {took:?}");
    }
}
