//! One round: a cluster, a load, and each kind of fault in an order of the seed.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use shm::{Mapping, Options};
use testkit::nbd::Client;
use testkit::random::Random;
use testkit::server::await_that;

use crate::cluster::{Cluster, ETCD, LEASE, NODES};
use crate::load::{Load, PAGES};

#[derive(Clone, Copy, Debug)]
enum Fault {
    Killed,
    /// For longer than its lease.
    Stopped,
    /// It runs a sixth of the time, for longer than its lease.
    Slow,
    Unplugged,
    /// Nobody hears it.
    Mute,
    /// It hears nobody.
    Deaf,
    /// One node does not hear another one; both keep their leases.
    Halfway,
}

const FAULTS: [Fault; 10] = [
    Fault::Killed,
    Fault::Killed,
    Fault::Killed,
    Fault::Killed,
    Fault::Stopped,
    Fault::Slow,
    Fault::Unplugged,
    Fault::Mute,
    Fault::Deaf,
    Fault::Halfway,
];

/// In which a slow node runs, and their number: three leases in all.
const SLICE: Duration = Duration::from_millis(10);
const SLICES: u32 = 100;

struct Run {
    cluster: Cluster,
    load: Arc<Load>,
    mappings: [Arc<Mapping>; NODES],
    random: Random,
}

/// Each kind of fault, in an order of the seed.
pub fn all(seed: u64) {
    let (mut faults, mut random) = (FAULTS, Random(seed));
    for last in (1..faults.len()).rev() {
        faults.swap(last, random.below(last as u64 + 1) as usize);
    }
    run(seed, &faults);
}

/// One node after the other is killed.
pub fn kills(seed: u64, count: usize) {
    run(seed, &vec![Fault::Killed; count]);
}

fn run(seed: u64, faults: &[Fault]) {
    let cluster = Cluster::new();
    let load = Load::new();
    let mappings = std::array::from_fn(|node| {
        let options = Options::at(cluster.sandboxes[node].file("awase-data/shm"));
        Arc::new(options.open("s").unwrap_or_else(|error| panic!("{error}")))
    });
    let mut run = Run { cluster, load, mappings, random: Random(seed) };
    let actors = run.start_load(seed);
    for fault in faults.iter().copied() {
        std::thread::sleep(Duration::from_millis(200 + run.random.below(800)));
        let node = run.random.below(NODES as u64) as usize;
        println!("round {seed}: node {node}: {fault:?}");
        run.suffer(fault, node);
    }
    run.load.end();
    for actor in actors {
        actor.join().expect("nothing that nobody wrote");
    }
    for node in 0..NODES {
        let mut client = run.connect(node).expect("connected");
        run.load.read_all(node, &mut client);
    }
    run.load.check(&format!("round {seed}"));
}

impl Run {
    fn start_load(&self, seed: u64) -> Vec<JoinHandle<()>> {
        let mut actors = Vec::new();
        for node in 0..NODES {
            let socket = self.cluster.sandboxes[node].file("awase-data/nbd.sock");
            let seed = seed << 8 | (node as u64) << 4;
            actors.push(self.load.client(node, socket.clone(), seed));
            actors.push(self.load.client(node, socket, seed | 1));
            actors.push(self.load.program(node, Arc::clone(&self.mappings[node]), seed | 2));
        }
        actors
    }

    fn connect(&self, node: usize) -> std::io::Result<Client> {
        Client::connect(&self.cluster.sandboxes[node].file("awase-data/nbd.sock"), "s")
    }

    fn suffer(&mut self, fault: Fault, node: usize) {
        match fault {
            Fault::Killed => self.kill(node),
            Fault::Stopped => self.stop(node),
            Fault::Slow => self.slow_down(node),
            Fault::Unplugged => self.cut_off(node, |run, is_lost| run.cluster.network.plug(node, !is_lost)),
            Fault::Mute => self.cut_off(node, |run, is_lost| {
                (0..=ETCD).filter(|to| *to != node).for_each(|to| run.cluster.network.lose(node, to, is_lost));
            }),
            Fault::Deaf => self.cut_off(node, |run, is_lost| {
                (0..=ETCD).filter(|from| *from != node).for_each(|from| run.cluster.network.lose(from, node, is_lost));
            }),
            Fault::Halfway => {
                let other = (node + 1) % NODES;
                self.cluster.network.lose(node, other, true);
                // So long that connections are given up, or not.
                std::thread::sleep(Duration::from_millis(500 + self.random.below(7000)));
                self.cluster.network.lose(node, other, false);
                self.await_service(&[0, 1, 2]);
            }
        }
    }

    /// The node's clients and programs begin anew.
    fn next_epoch(&self, node: usize) {
        self.load.places[node].next_epoch();
    }

    fn others(node: usize) -> [usize; NODES - 1] {
        [(node + 1) % NODES, (node + 2) % NODES]
    }

    fn kill(&mut self, node: usize) {
        self.next_epoch(node);
        let losses = self.mappings[node].losses();
        self.cluster.kill(node);
        await_that("its programs notice", || self.mappings[node].losses() > losses);
        self.load.crash();
        if self.random.chance(500) {
            self.await_service(&Run::others(node));
        }
        self.cluster.start(node);
        self.return_of(node);
    }

    fn stop(&mut self, node: usize) {
        self.next_epoch(node);
        // They would go on with pages that nobody takes from them.
        self.load.places[node].pause(true);
        self.cluster.server(node).forget_errors();
        self.cluster.server(node).signal(libc::SIGSTOP);
        std::thread::sleep(LEASE / 10);
        self.load.crash();
        std::thread::sleep(2 * LEASE + Duration::from_millis(self.random.below(1000)));
        self.await_service(&Run::others(node));
        self.cluster.server(node).signal(libc::SIGCONT);
        self.cluster.server(node).await_error("this node serves as a member");
        self.load.places[node].pause(false);
        self.return_of(node);
    }

    fn slow_down(&mut self, node: usize) {
        self.next_epoch(node);
        // Where it is too slow for its lease, what it has not flushed is lost.
        self.load.crash();
        let server = self.cluster.server(node).id().cast_signed();
        let signal = |signal| kill_process(Pid::from_raw(server).expect("a process"), signal).expect("signalled");
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for _ in 0..SLICES {
                    signal(Signal::STOP);
                    std::thread::sleep(5 * SLICE);
                    signal(Signal::CONT);
                    std::thread::sleep(SLICE);
                }
            });
            // The others need what it has.
            self.await_service(&Run::others(node));
        });
        self.return_of(node);
    }

    /// It loses its lease.
    fn cut_off(&mut self, node: usize, cut: impl Fn(&Run, bool)) {
        self.next_epoch(node);
        self.cluster.server(node).forget_errors();
        cut(self, true);
        // Before others take over.
        self.cluster.server(node).await_error("this node's lease is over");
        self.load.crash();
        if self.random.chance(700) {
            self.await_service(&Run::others(node));
            std::thread::sleep(Duration::from_millis(self.random.below(5000)));
        }
        cut(self, false);
        self.return_of(node);
    }

    fn return_of(&mut self, node: usize) {
        self.await_service(&[0, 1, 2]);
        self.next_epoch(node);
        self.load.crash();
    }

    /// Waits until these nodes serve all pages, and their clients and programs get on.
    fn await_service(&self, nodes: &[usize]) {
        for node in nodes {
            await_that("a node serves all pages", || {
                let Ok(mut client) = self.connect(*node) else { return false };
                PAGES.iter().all(|page| client.read(page * 4096, 512).is_ok())
            });
            let done = &self.load.places[*node].done;
            let before = done.load(SeqCst);
            await_that("its clients get on", || done.load(SeqCst) > before + 10);
            await_that("its programs have found it", || self.mappings[*node].flush().is_ok());
        }
    }
}
