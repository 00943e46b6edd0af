//! Nodes with leases whose homes stay: leases end, processes die and power fails, at several nodes at once; what has happened
//! each node sees in its own time. Every history is linearizable, and what was flushed is found.

use std::time::Duration;

use machine::Errno;
use policy::unit::BlockNo;
use testkit::random::Random;
use testkit::scene::context;

use crate::acknowledged::{begin_flush, end_flush, write};
use crate::clients::{BLOCKS, Clients};
use crate::failures::{check, read_all};
use crate::leased::Run;
use crate::scene::{Backing, Scene, Setup};

/// Requests that waited for a node are answered by then, and connections made again.
const REST: Duration = Duration::from_secs(12);

/// How a lease ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Killed,
    PowerCut,
    /// The process goes on, and registers anew.
    Lapsed,
    /// It is renewed in time.
    Renewed,
}

fn begin(seed: u64, backing: Backing) -> Run {
    let mut random = Random(seed);
    let nodes = 2 + random.below(4) as usize;
    let homes = 1 + random.below((1 << nodes) - 1);
    let setup = Setup { moves: true, stays: true, backing, homes, ..Setup::new(seed, nodes) };
    let mut run = begin_without_clients(setup, random);
    (0..nodes).for_each(|node| run.start_clients(node));
    run
}

fn begin_without_clients(setup: Setup, random: Random) -> Run {
    let seed = setup.seed;
    let mut scene = Scene::new(setup);
    scene.see_all();
    scene.until_connected();
    Run::new(scene, random, seed)
}

fn begin_end(run: &mut Run, node: usize, may_end: bool) -> End {
    let end = match run.random.below(4) {
        _ if !may_end => End::Renewed,
        0 => End::Killed,
        1 => End::PowerCut,
        2 => End::Lapsed,
        _ => End::Renewed,
    };
    match end {
        End::Killed => run.scene.kill_member(node),
        End::PowerCut => run.scene.power_cut_member(node),
        End::Lapsed | End::Renewed => run.scene.set_lease(node, false),
    }
    end
}

/// The leases of some nodes end, for whatever reasons; they return.
fn lose(run: &mut Run) {
    let (first, nodes) = (run.pick(run.scene.nodes.len()), run.scene.nodes.len());
    let count = if run.random.chance(600) { 1 } else { 1 + run.pick(nodes) };
    let mut ended = Vec::new();
    for node in (first..first + count).map(|node| node % nodes) {
        // Nobody else could tell that homes in memory have lost something.
        let end = begin_end(run, node, ended.len() + 1 < nodes || run.scene.setup.backing == Backing::Path);
        ended.push((node, end));
        run.pass(50);
    }
    run.crash();
    run.pass(300);
    for (node, end) in &ended {
        if *end == End::Renewed {
            run.scene.set_lease(*node, true);
        } else {
            run.scene.deregister(*node);
            run.pass(100);
        }
    }
    ended.retain(|(_, end)| *end != End::Renewed);
    let away = [20, 800, 3000][run.pick(3)];
    run.pass(away);
    while !ended.is_empty() {
        let (node, end) = ended.swap_remove(run.pick(ended.len()));
        begin_anew(run, node, end);
        run.start_clients(node);
        let between = [1, 20, 400][run.pick(3)];
        run.pass(between);
    }
}

fn begin_anew(run: &mut Run, node: usize, end: End) {
    if end == End::Lapsed {
        run.scene.register(node);
    } else {
        run.scene.boot(node);
    }
}

fn step(run: &mut Run) {
    run.pass(400);
    let nodes = run.scene.nodes.len();
    let (node, other) = (run.pick(nodes), run.pick(nodes));
    if run.random.chance(300) && node != other {
        run.scene.cut(node, other);
        if run.random.chance(500) {
            lose(run);
        }
        run.pass(600);
        run.scene.heal();
    } else {
        lose(run);
    }
    // A crash is over when all nodes have met the new process.
    run.scene.see_all();
    run.scene.until_connected();
}

/// Nothing more happens; all go on. Returns what could not be read.
fn rest(run: &mut Run) -> Vec<(usize, u64)> {
    run.scene.pass(Duration::from_secs(1));
    run.clients.stopping.set(true);
    run.scene.pass(REST);
    read_all(&mut run.scene, &run.clients)
}

#[test]
fn what_was_flushed_to_a_path_is_found_after_leases_have_ended_and_nothing_old_is_read() {
    for seed in testkit::rounds::seeds(10) {
        let mut run = begin(seed, Backing::Path);
        for _ in 0..3 {
            step(&mut run);
        }
        assert_eq!(rest(&mut run), [], "seed {seed}");
        assert!(run.scene.history.borrow().events.len() > 100, "seed {seed}: hardly anything was done");
        check(&run.scene, seed);
    }
}

#[test]
fn what_homes_in_memory_lose_when_leases_have_ended_is_an_error_and_nothing_old_is_read() {
    for seed in testkit::rounds::seeds(10) {
        let mut run = begin(seed, Backing::Memory);
        for _ in 0..3 {
            step(&mut run);
        }
        let unread = rest(&mut run);
        for number in BLOCKS {
            let failed = unread.iter().filter(|(_, unread)| *unread == number).count();
            assert!(failed == 0 || failed == run.scene.nodes.len(), "seed {seed}: block {number} is lost to {failed}");
        }
        check(&run.scene, seed);
    }
}

/// The first two nodes write, one of which is the home of all; the others read, and end.
#[test]
fn what_was_acknowledged_survives_the_ends_of_nodes_that_are_neither_its_home_nor_have_written_it() {
    for seed in testkit::rounds::seeds(10) {
        let backing = if seed.is_multiple_of(2) { Backing::Path } else { Backing::Memory };
        let setup = Setup { moves: true, stays: true, backing, homes: 1, ..Setup::new(seed, 4) };
        let mut run = begin_without_clients(setup, Random(seed));
        run.scene.set_forwarding(seed / 2 % 2 == 0);
        (0..2).for_each(|node| run.start_clients(node));
        for _ in 0..6 {
            let node = 2 + run.pick(2);
            let own = run.clients.clone();
            let random = Random(run.random.below(u64::MAX));
            run.scene.start(node, async move |cpu, volume| own.read_on(&cpu, &volume, node, random).await);
            run.pass(400);
            let node = 2 + run.pick(2);
            let end = begin_end(&mut run, node, true);
            run.pass(100);
            if end == End::Renewed {
                run.scene.set_lease(node, true);
            } else {
                run.scene.deregister(node);
                run.pass(200);
                begin_anew(&mut run, node, end);
            }
        }
        run.scene.see_all();
        run.scene.until_connected();
        assert_eq!(rest(&mut run), [], "seed {seed}");
        // Nobody has died who had written.
        run.scene.history.borrow_mut().crashes.clear();
        check(&run.scene, seed);
    }
}

const BLOCK: u64 = 3;

/// The first node is the home of all, on a path.
fn scene(seed: u64) -> (Scene, Clients) {
    let setup = Setup { moves: true, stays: true, backing: Backing::Path, homes: 1, ..Setup::new(seed, 3) };
    let mut scene = Scene::new(setup);
    scene.see_all();
    scene.until_connected();
    let clients = Clients::new(&scene);
    (scene, clients)
}

fn flush(scene: &mut Scene, node: usize) -> Result<(), Errno> {
    let flushed = begin_flush(scene, node);
    end_flush(scene, &flushed).0
}

fn read(scene: &mut Scene, clients: &Clients, node: usize, number: u64) -> Result<u64, Errno> {
    let own = clients.clone();
    scene.run(node, async move |cpu, volume| own.read(&cpu, &volume, node, number).await)
}

/// Its process has ended, which all know.
fn forget(scene: &mut Scene, node: usize) {
    scene.deregister(node);
    scene.see_all();
}

fn start(scene: &mut Scene, node: usize) {
    scene.boot(node);
    scene.see_all();
    scene.until_connected();
}

/// It gives to the home, when that is back, what it has written since.
#[test]
fn a_flush_fails_once_at_each_node_after_a_home_has_lost_what_another_node_had_stored() {
    for seed in testkit::rounds::seeds(12) {
        let (mut scene, clients) = scene(seed);
        write(&mut scene, &clients, 1, BLOCK);
        assert_eq!(flush(&mut scene, 2), Ok(()), "seed {seed}");
        let value = write(&mut scene, &clients, 1, BLOCK);
        assert_eq!(read(&mut scene, &clients, 2, BLOCK), Ok(value), "seed {seed}");
        write(&mut scene, &clients, 1, BLOCK + 1);
        scene.power_cut_member(0);
        forget(&mut scene, 0);
        start(&mut scene, 0);
        let flushed = [2, 2, 1, 1].map(|node| flush(&mut scene, node).is_ok());
        assert_eq!(flushed, [false, true, false, true], "seed {seed}");
    }
}

/// It is written back while there is no home, and not cached any more when a client wants it again.
#[test]
fn a_flush_fails_at_each_node_when_what_was_given_up_without_a_home_is_lost() {
    for seed in testkit::rounds::seeds(12) {
        let (mut scene, clients) = scene(seed);
        write(&mut scene, &clients, 1, BLOCK);
        scene.kill_member(0);
        forget(&mut scene, 0);
        let written_back = scene.start(1, async |cpu, volume| volume.write_out_unflushed(&cpu, context()).await);
        scene.pass(Duration::from_millis(10));
        let volume = scene.nodes[1].as_ref().and_then(|node| node.volume.clone()).expect("a member");
        drop(volume.give_up(BlockNo(BLOCK), false));
        let own = clients.clone();
        let read = scene.start(1, async move |cpu, volume| own.read(&cpu, &volume, 1, BLOCK).await);
        scene.pass(Duration::from_millis(10));
        start(&mut scene, 0);
        assert!(scene.run_until(None, |_| read.borrow().is_some() && written_back.borrow().is_some()));
        assert_eq!(read.take(), Some(Ok(0)), "seed {seed}: it is not lost");
        let flushed = [2, 2, 1, 1].map(|node| flush(&mut scene, node).is_ok());
        assert_eq!(flushed, [false, true, false, true], "seed {seed}");
    }
}

/// Nothing is stored at the home that was written while there was none: whoever has it gives it to the next one.
#[test]
fn no_other_node_s_flush_fails_when_what_was_written_back_without_a_home_is_found() {
    for seed in testkit::rounds::seeds(6) {
        let (mut scene, clients) = scene(seed);
        let value = write(&mut scene, &clients, 1, BLOCK);
        scene.kill_member(0);
        forget(&mut scene, 0);
        scene.start(1, async |cpu, volume| volume.write_out_unflushed(&cpu, context()).await);
        scene.pass(Duration::from_millis(10));
        start(&mut scene, 0);
        assert_eq!(read(&mut scene, &clients, 2, BLOCK), Ok(value), "seed {seed}");
        assert_eq!(flush(&mut scene, 2), Ok(()), "seed {seed}");
    }
}

#[test]
fn a_flush_fails_if_a_node_that_has_written_dies_under_it_while_the_home_is_away() {
    for seed in testkit::rounds::seeds(12) {
        let (mut scene, clients) = scene(seed);
        write(&mut scene, &clients, 1, BLOCK);
        // Its process dies, or it only has a new lease.
        if seed / 2 % 2 == 0 {
            scene.kill_member(0);
        }
        forget(&mut scene, 0);
        let flushed = begin_flush(&scene, 2);
        scene.pass(Duration::from_millis(50));
        scene.kill_member(1);
        forget(&mut scene, 1);
        if seed / 2 % 2 == 0 {
            scene.boot(0);
        } else {
            scene.register(0);
        }
        scene.see_all();
        assert!(end_flush(&mut scene, &flushed).0.is_err(), "seed {seed}");
        assert_eq!(flush(&mut scene, 2), Ok(()), "seed {seed}: it was told");
    }
}
