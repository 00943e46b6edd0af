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

struct Run {
    scene: Scene,
    clients: Clients,
    random: Random,
    seed: u64,
    /// Numbers clients.
    started: u64,
}

impl Run {
    fn new(seed: u64, backing: Backing) -> Run {
        let mut random = Random(seed);
        let nodes = 2 + random.below(4) as usize;
        let homes = 1 + random.below((1 << nodes) - 1);
        let mut run = Run::of(Setup { moves: true, stays: true, backing, homes, ..Setup::new(seed, nodes) });
        run.random = random;
        (0..nodes).for_each(|node| run.start_clients(node));
        run
    }

    /// Without clients.
    fn of(setup: Setup) -> Run {
        let seed = setup.seed;
        let mut scene = Scene::new(setup);
        scene.see_all();
        scene.until_connected();
        let clients = Clients::new(&scene);
        Run { scene, clients, random: Random(seed), seed, started: 0 }
    }

    fn start_clients(&mut self, node: usize) {
        self.started += 1;
        self.clients.start(&self.scene, node, 2, self.seed ^ self.started << 40);
    }

    fn pick(&mut self, bound: usize) -> usize {
        self.random.below(bound as u64) as usize
    }

    /// Some time in which nodes see what has changed, each in its own time.
    fn pass(&mut self, most_ms: u64) {
        for _ in 0..4 {
            let time = Duration::from_micros(self.random.below(250 * most_ms));
            self.scene.pass(time);
            let node = self.pick(self.scene.nodes.len());
            while self.scene.see(node) && self.random.chance(700) {}
        }
    }

    /// Writes may be undone from here on, if they were not flushed.
    fn crash(&mut self) {
        let now = self.scene.world.now().ns();
        self.scene.history.borrow_mut().crashes.push(now);
    }

    fn begin_end(&mut self, node: usize, may_end: bool) -> End {
        let end = match self.random.below(4) {
            _ if !may_end => End::Renewed,
            0 => End::Killed,
            1 => End::PowerCut,
            2 => End::Lapsed,
            _ => End::Renewed,
        };
        match end {
            End::Killed => self.scene.kill_member(node),
            End::PowerCut => self.scene.power_cut_member(node),
            End::Lapsed | End::Renewed => self.scene.set_lease(node, false),
        }
        end
    }

    /// The leases of some nodes end, for whatever reasons; they return.
    fn lose(&mut self) {
        let (first, nodes) = (self.pick(self.scene.nodes.len()), self.scene.nodes.len());
        let count = if self.random.chance(600) { 1 } else { 1 + self.pick(nodes) };
        let mut ended = Vec::new();
        for node in (first..first + count).map(|node| node % nodes) {
            // Nobody else could tell that homes in memory have lost something.
            let end = self.begin_end(node, ended.len() + 1 < nodes || self.scene.setup.backing == Backing::Path);
            ended.push((node, end));
            self.pass(50);
        }
        self.crash();
        self.pass(300);
        for (node, end) in &ended {
            if *end == End::Renewed {
                self.scene.set_lease(*node, true);
            } else {
                self.scene.deregister(*node);
                self.pass(100);
            }
        }
        ended.retain(|(_, end)| *end != End::Renewed);
        let away = [20, 800, 3000][self.pick(3)];
        self.pass(away);
        while !ended.is_empty() {
            let (node, end) = ended.swap_remove(self.pick(ended.len()));
            self.begin_anew(node, end);
            self.start_clients(node);
            let between = [1, 20, 400][self.pick(3)];
            self.pass(between);
        }
    }

    fn begin_anew(&mut self, node: usize, end: End) {
        if end == End::Lapsed {
            self.scene.register(node);
        } else {
            self.scene.boot(node);
        }
    }

    fn step(&mut self) {
        self.pass(400);
        let nodes = self.scene.nodes.len();
        let (node, other) = (self.pick(nodes), self.pick(nodes));
        if self.random.chance(300) && node != other {
            self.scene.cut(node, other);
            if self.random.chance(500) {
                self.lose();
            }
            self.pass(600);
            self.scene.heal();
        } else {
            self.lose();
        }
        // A crash is over when all nodes have met the new process.
        self.scene.see_all();
        self.scene.until_connected();
    }

    /// Nothing more happens; all go on. Returns what could not be read.
    fn rest(&mut self) -> Vec<(usize, u64)> {
        self.scene.pass(Duration::from_secs(1));
        self.clients.stopping.set(true);
        self.scene.pass(REST);
        read_all(&mut self.scene, &self.clients)
    }
}

#[test]
fn what_was_flushed_to_a_path_is_found_after_leases_have_ended_and_nothing_old_is_read() {
    for seed in testkit::rounds::seeds(10) {
        let mut run = Run::new(seed, Backing::Path);
        for _ in 0..3 {
            run.step();
        }
        assert_eq!(run.rest(), [], "seed {seed}");
        assert!(run.scene.history.borrow().events.len() > 100, "seed {seed}: hardly anything was done");
        check(&run.scene, seed);
    }
}

#[test]
fn what_homes_in_memory_lose_when_leases_have_ended_is_an_error_and_nothing_old_is_read() {
    for seed in testkit::rounds::seeds(10) {
        let mut run = Run::new(seed, Backing::Memory);
        for _ in 0..3 {
            run.step();
        }
        let unread = run.rest();
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
        let mut run = Run::of(setup);
        run.scene.set_forwarding(seed / 2 % 2 == 0);
        (0..2).for_each(|node| run.start_clients(node));
        for _ in 0..6 {
            let node = 2 + run.pick(2);
            let own = run.clients.clone();
            let random = Random(run.random.below(u64::MAX));
            run.scene.start(node, async move |cpu, volume| own.read_on(&cpu, &volume, node, random).await);
            run.pass(400);
            let node = 2 + run.pick(2);
            let end = run.begin_end(node, true);
            run.pass(100);
            if end == End::Renewed {
                run.scene.set_lease(node, true);
            } else {
                run.scene.deregister(node);
                run.pass(200);
                run.begin_anew(node, end);
            }
        }
        run.scene.see_all();
        run.scene.until_connected();
        assert_eq!(run.rest(), [], "seed {seed}");
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
