//! Nodes with leases whose homes stay: leases end, processes die and power fails, at several nodes at once; what has happened
//! each node sees in its own time. Every history is linearizable, and what was flushed is found.

mod flushes;

use std::time::Duration;

use testkit::random::Random;

use crate::clients::BLOCKS;
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
