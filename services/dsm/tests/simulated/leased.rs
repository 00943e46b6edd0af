//! Nodes with leases, and clients of theirs: each node sees what has changed in its own time.

use std::time::Duration;

use testkit::random::Random;

use crate::clients::Clients;
use crate::scene::Scene;

pub struct Run {
    pub scene: Scene,
    pub clients: Clients,
    pub random: Random,
    pub seed: u64,
    /// Numbers clients.
    started: u64,
}

impl Run {
    /// Without clients.
    pub fn new(scene: Scene, random: Random, seed: u64) -> Run {
        let clients = Clients::new(&scene);
        Run { scene, clients, random, seed, started: 0 }
    }

    pub fn start_clients(&mut self, node: usize) {
        self.started += 1;
        self.clients.start(&self.scene, node, 2, self.seed ^ self.started << 40);
    }

    pub fn pick(&mut self, bound: usize) -> usize {
        self.random.below(bound as u64) as usize
    }

    /// Some time in which nodes see what has changed.
    pub fn pass(&mut self, most_ms: u64) {
        for _ in 0..4 {
            let time = Duration::from_micros(self.random.below(250 * most_ms));
            self.scene.pass(time);
            let node = self.pick(self.scene.nodes.len());
            while self.scene.see(node) && self.random.chance(700) {}
        }
    }

    /// Writes may be undone from here on, if they were not flushed.
    pub fn crash(&mut self) {
        let now = self.scene.world.now().ns();
        self.scene.history.borrow_mut().crashes.push(now);
    }
}
