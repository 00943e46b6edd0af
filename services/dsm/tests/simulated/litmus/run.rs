//! One litmus test at simulated nodes: its programs, the times of their accesses, and what happens meanwhile.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use policy::coherence::ShardNo;
use policy::unit::Instant;
use testkit::litmus::{Access, Crash, Litmus, Outcome, VARIABLES};
use testkit::random::Random;

use super::Faults;
use crate::programs::{Memory, Program, State, listen};
use crate::scene::Scene;
use crate::scene::members::SHARDS;

/// Who is not woken in this time is never woken.
const WAKE_MAX: Duration = Duration::from_secs(60);

/// Of a shard.
const PAGES: u64 = 256;

/// A thread of a program.
struct Thread {
    accesses: &'static [Access],
    program: usize,
    next: usize,
    read: Vec<u64>,
    doing: Doing,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Doing {
    /// Its next access is then.
    Computes(Instant),
    /// Until it is woken: the number of wakes before.
    Waits(u64),
    Ended,
}

pub struct Run<'a> {
    scene: &'a mut Scene,
    random: &'a mut Random,
    faults: Faults,
    test: &'static Litmus,
    /// The page of each variable, and where it is in it.
    places: [(u64, usize); VARIABLES],
    programs: Vec<Program>,
    /// Those of the test, and two that read all when they have ended.
    threads: Vec<Thread>,
    /// What was stored last, in the order of the simulation.
    stored: [u64; VARIABLES],
    /// Something else was read.
    pub is_stale: bool,
    /// Nodes that died, or whose lease ended for good.
    died: BTreeSet<usize>,
    paused: BTreeSet<usize>,
    /// Those that are still to come, and the end of all after them; `None`: all is well.
    disturbances: Option<u64>,
}

impl<'a> Run<'a> {
    pub fn new(
        scene: &'a mut Scene,
        random: &'a mut Random,
        faults: Faults,
        test: &'static Litmus,
        number: u64,
    ) -> Run<'a> {
        let mut run = Run {
            faults,
            test,
            places: [(0, 0); VARIABLES],
            programs: Vec::new(),
            threads: Vec::new(),
            stored: [0; VARIABLES],
            is_stale: false,
            died: BTreeSet::new(),
            paused: BTreeSet::new(),
            disturbances: Some(random.below(6)),
            scene,
            random,
        };
        run.place(number);
        test.threads.iter().for_each(|accesses| run.start(accesses));
        run
    }

    /// Variables share a page, or are in pages of any two homes; no other test uses those.
    fn place(&mut self, number: u64) {
        let shards = self.scene.setup.size / 4096 / PAGES;
        let [first, second] = [0, 1].map(|place| self.random.below(shards) * PAGES + 2 * number + place);
        self.places = [(first, 0), (if self.random.chance(250) { first } else { second }, 512)];
    }

    /// A thread, in a program of its own or in one that there is.
    fn start(&mut self, accesses: &'static [Access]) {
        let node = self.random.index(self.scene.nodes.len());
        let known = self.programs.iter().position(|program| program.node == node && !self.died.contains(&node));
        let program = known.filter(|_| self.random.chance(500)).unwrap_or_else(|| {
            self.programs.push(Program::start(self.scene, node));
            self.programs.len() - 1
        });
        let doing = self.compute();
        self.threads.push(Thread { accesses, program, next: 0, read: Vec::new(), doing });
    }

    /// For some time, often about as long as a page takes.
    fn compute(&mut self) -> Doing {
        let most = *self.random.pick(&[1, 50, 500, 3000]);
        Doing::Computes(self.scene.world.now() + Duration::from_micros(self.random.below(most)))
    }

    /// All threads do what they do; when all is well again, two more read what all variables are.
    pub fn run(&mut self) {
        self.until_ended();
        self.rest();
        self.start(&[Access::Load(0)]);
        self.start(&[Access::Load(1)]);
        self.until_ended();
    }

    fn until_ended(&mut self) {
        let mut disturbed = self.next_disturbance();
        while !self.have_ended() {
            if disturbed.is_some_and(|at| at <= self.scene.world.now()) {
                self.disturb();
                disturbed = self.next_disturbance();
            }
            (0..self.threads.len()).for_each(|number| self.go_on(number));
            if self.have_ended() {
                return;
            }
            let times = self.threads.iter().filter_map(|thread| match thread.doing {
                Doing::Computes(at) => Some(at),
                Doing::Waits(_) | Doing::Ended => None,
            });
            let next = times.chain(disturbed).min();
            let waiting: Vec<(Arc<Memory>, u64, u64)> =
                self.threads.iter().filter_map(|thread| self.waits(thread)).collect();
            let limit = next.unwrap_or(self.scene.world.now() + WAKE_MAX);
            let is_woken = self.scene.run_until(Some(limit), |_| waiting.iter().any(is_woken));
            assert!(next.is_some() || is_woken || waiting.is_empty(), "a thread is never woken");
        }
    }

    fn have_ended(&self) -> bool {
        self.threads.iter().all(|thread| thread.doing == Doing::Ended)
    }

    fn waits(&self, thread: &Thread) -> Option<(Arc<Memory>, u64, u64)> {
        let Doing::Waits(wakes) = thread.doing else { return None };
        let page = self.places[thread.accesses[thread.next].variable()].0;
        Some((Arc::clone(&self.programs[thread.program].memory), page, wakes))
    }

    /// What a thread does now, if it does anything.
    fn go_on(&mut self, number: usize) {
        let now = self.scene.world.now();
        let thread = &self.threads[number];
        let is_now = match thread.doing {
            Doing::Computes(at) => at <= now,
            Doing::Waits(_) => self.waits(thread).is_some_and(|waits| is_woken(&waits)),
            Doing::Ended => false,
        };
        if !is_now {
            return;
        }
        let doing = match (thread.doing, thread.accesses.get(thread.next)) {
            (_, None) => Doing::Ended,
            // It takes a while until it runs, and the page may be gone by then.
            (Doing::Waits(_), Some(_)) => self.compute(),
            (_, Some(access)) => self.access(number, *access),
        };
        self.threads[number].doing = doing;
    }

    fn access(&mut self, number: usize, access: Access) -> Doing {
        let index = self.threads[number].program;
        let (node, memory) = (self.programs[index].node, Arc::clone(&self.programs[index].memory));
        let (page, at) = self.places[access.variable()];
        let is_write = !matches!(access, Access::Load(_));
        match memory.state(page) {
            Some(State::Poisoned) => Doing::Ended,
            Some(state) if state == State::Writable || !is_write => {
                let before = memory.access(page, |bytes| perform(access, &mut bytes[at..at + 8]));
                self.note(number, access, before);
                self.compute()
            }
            // Nobody takes faults there, or lets programs connect.
            _ if self.paused.contains(&node) => self.compute(),
            _ if memory.is_cleared() => {
                // As after the end of a server: it maps the volume anew, as soon as the node lets it.
                if let Some(again) = Program::try_start(self.scene, node) {
                    std::mem::replace(&mut self.programs[index], again).end(self.scene);
                }
                self.compute()
            }
            _ => {
                let wakes = memory.wakes(page);
                self.programs[index].fault(self.scene, page, is_write);
                Doing::Waits(wakes)
            }
        }
    }

    fn note(&mut self, number: usize, access: Access, before: u64) {
        let thread = &mut self.threads[number];
        let stored = &mut self.stored[access.variable()];
        thread.next += 1;
        if !matches!(access, Access::Store(..)) {
            thread.read.push(before);
            self.is_stale |= before != *stored;
        }
        match access {
            Access::Load(_) => {}
            Access::Store(_, value) => *stored = value,
            Access::Add(_, value) => *stored = before + value,
        }
    }

    fn next_disturbance(&mut self) -> Option<Instant> {
        let most = *self.random.pick(&[100, 500, 1000, 2000, 5000, 20_000, 400_000, 6_000_000]);
        let after = Duration::from_micros(self.random.below(most));
        self.disturbances.map(|_| self.scene.world.now() + after)
    }

    fn disturb(&mut self) {
        match self.disturbances {
            Some(0) => return self.rest(),
            left => self.disturbances = left.map(|left| left - 1),
        }
        let nodes = self.scene.nodes.len();
        let node = self.random.index(nodes);
        let kinds = match self.faults {
            Faults::Network => 5,
            Faults::Moving => 10,
            Faults::Deaths => 13,
        };
        let runs = self.scene.nodes[node].is_some() && !self.paused.contains(&node);
        match self.random.below(kinds) {
            0 | 1 => self.scene.cut(node, (node + 1 + self.random.index(nodes - 1)) % nodes),
            2 => self.scene.heal(),
            3 => self.scene.slow_down(node, Duration::from_millis(self.random.below(30))),
            4 if runs => {
                self.paused.insert(node);
                self.scene.pause(node, true);
            }
            5.. if self.scene.setup.moves => self.move_homes(node, runs),
            // Where all have died, memory begins anew.
            10.. if runs && self.died.len() + 1 < nodes => {
                self.scene.kill(node);
                self.has_died(node);
            }
            _ => {}
        }
    }

    fn move_homes(&mut self, node: usize, runs: bool) {
        match self.random.below(if self.faults == Faults::Deaths { 8 } else { 6 }) {
            0 | 1 if runs => (0..2).for_each(|_| {
                let shard = ShardNo(self.random.below(u64::from(SHARDS)) as u16);
                self.scene.give_up(node, shard);
            }),
            2 => self.change_map(),
            3 if runs => while self.scene.see(node) && self.random.chance(700) {},
            4 if runs => self.scene.set_lease(node, false),
            5 if runs && !self.died.contains(&node) => self.scene.set_lease(node, true),
            6.. if runs => {
                if self.random.chance(500) {
                    self.scene.kill_member(node);
                    self.has_died(node);
                }
                self.died.insert(node);
                self.scene.deregister(node);
                self.change_map();
            }
            _ => {}
        }
    }

    fn change_map(&mut self) {
        let random = &mut *self.random;
        self.scene.change_map(|bound| random.index(bound));
    }

    /// With the programs of its host.
    fn has_died(&mut self, node: usize) {
        self.died.insert(node);
        let of_node = |thread: &&mut Thread| self.programs[thread.program].node == node;
        self.threads.iter_mut().filter(of_node).for_each(|thread| thread.doing = Doing::Ended);
    }

    /// All nodes run, and are connected, unless that was so before.
    fn rest(&mut self) {
        if self.disturbances.take().is_none() {
            return;
        }
        self.scene.heal();
        for node in 0..self.scene.nodes.len() {
            self.paused.remove(&node);
            self.scene.pause(node, false);
            self.scene.slow_down(node, Duration::ZERO);
            if self.scene.nodes[node].is_none() {
                self.scene.boot(node);
                listen(self.scene, node);
            } else if self.scene.setup.moves && self.died.contains(&node) {
                self.scene.register(node);
            } else if self.scene.setup.moves {
                self.scene.set_lease(node, true);
            }
        }
        if self.scene.setup.moves {
            // Until the map changes, nobody is the home of what was given up.
            assert!(self.scene.run_until(None, Scene::has_given_up), "it is never given up");
            self.change_map();
            self.scene.see_all();
        }
        self.scene.until_connected();
    }

    /// What each thread of the test has read.
    pub fn read(&self) -> Vec<Vec<u64>> {
        self.threads[..self.test.threads.len()].iter().map(|thread| thread.read.clone()).collect()
    }

    /// What the variables were at last. `None`: an access to it fails.
    pub fn last(&self) -> [Option<u64>; VARIABLES] {
        let of = self.test.threads.len();
        [of, of + 1].map(|thread| self.threads[thread].read.first().copied())
    }

    /// For people.
    pub fn describe(&self) -> String {
        let nodes: Vec<usize> = self.threads.iter().map(|thread| self.programs[thread.program].node).collect();
        format!(
            "threads at {nodes:?}, variables at {:?}, of {} nodes these died: {:?}",
            self.places,
            self.scene.nodes.len(),
            self.died
        )
    }

    /// Without a crash.
    pub fn outcome(&self) -> Outcome {
        Outcome { read: self.read(), last: self.last().map(|last| last.expect("no access fails")) }
    }

    /// What may be undone: what a node that died has written and, where its homes are its own, what they may have had to store.
    pub fn crash(&self) -> Crash {
        let threads = &self.threads[..self.test.threads.len()];
        let node_of = |thread: &Thread| self.programs[thread.program].node;
        let writes = |thread: &Thread, variable| {
            thread.accesses.iter().any(|access| !matches!(access, Access::Load(_)) && access.variable() == variable)
        };
        let deaths = |variable: usize| {
            let home = (self.places[variable].0 / PAGES) as usize % self.scene.nodes.len();
            let writers = threads.iter().filter(|thread| writes(thread, variable)).map(node_of);
            let concerned: BTreeSet<usize> = writers.chain((!self.scene.setup.moves).then_some(home)).collect();
            concerned.intersection(&self.died).count()
        };
        let node = |thread: &Thread| (node_of(thread), !self.died.contains(&node_of(thread)));
        Crash {
            done: threads.iter().map(|thread| thread.next).collect(),
            nodes: threads.iter().map(node).collect(),
            undone: std::array::from_fn(deaths),
        }
    }

    /// All programs end.
    pub fn end(self) {
        let Run { scene, programs, .. } = self;
        programs.into_iter().filter(|program| !program.memory.is_cleared()).for_each(|program| program.end(scene));
    }
}

fn is_woken((memory, page, wakes): &(Arc<Memory>, u64, u64)) -> bool {
    memory.wakes(*page) != *wakes || memory.is_cleared()
}

fn perform(access: Access, bytes: &mut [u8]) -> u64 {
    let bytes: &mut [u8; 8] = bytes.try_into().expect("a variable");
    let before = u64::from_le_bytes(*bytes);
    match access {
        Access::Load(_) => {}
        Access::Store(_, value) => *bytes = value.to_le_bytes(),
        Access::Add(_, value) => *bytes = (before + value).to_le_bytes(),
    }
    before
}
