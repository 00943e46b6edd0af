//! Nodes that share pages by the coherence policy, over a network in virtual time.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use crate::model::token_ring::Network;
use crate::model::{Handler, Signals, Simulation, Virtual};
use policy::coherence::{
    Action, Actions, Address, Config, Envelope, Homes, Incarnation, Local, Message, Node, NodeId, PageNo, Storage,
};
use policy::unit::Instant;

/// The access pattern: which node wants which page when.
pub(super) trait Pattern {
    /// The `step`th access of a node. `chance` draws below a bound.
    fn next(&self, node: usize, step: u32, nodes: usize, chance: &dyn Fn(u64) -> u64) -> (PageNo, Local);

    /// Pages of the space, for that number of nodes.
    fn pages(&self, nodes: usize) -> u64;
}

/// Local costs of a node's accesses.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AccessCosts {
    /// Access to a page that it holds.
    pub(super) hit: Duration,
    /// Access to a page that was just granted.
    pub(super) miss: Duration,
    /// Before a written page can go to its home: the copy from the buffer cache to the board.
    pub(super) give_up: Duration,
    /// Time to answer a message.
    pub(super) turnaround: Duration,
    /// Mean time between accesses.
    pub(super) think: Duration,
}

/// Bytes of messages, and of the page that some carry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) message: u64,
    pub(super) page: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Traffic {
    pub(super) accesses: u64,
    pub(super) messages: u64,
    pub(super) bytes: u64,
    /// Sum over all accesses, from request to end.
    pub(super) latency: Duration,
    /// From the first access to the end of the last.
    pub(super) elapsed: Duration,
}

impl Traffic {
    pub(super) fn messages_an_access(&self) -> f64 {
        self.messages as f64 / self.accesses as f64
    }

    pub(super) fn bytes_an_access(&self) -> f64 {
        self.bytes as f64 / self.accesses as f64
    }

    pub(super) fn latency_us(&self) -> f64 {
        self.latency.as_secs_f64() * 1e6 / self.accesses as f64
    }
}

/// Runs nodes until each has done `steps` accesses.
pub(super) fn share(
    (nodes, steps): (usize, u32),
    pattern: &Rc<dyn Pattern>,
    network: Box<dyn Network>,
    (costs, sizes): (AccessCosts, Sizes),
    seed: u64,
) -> Traffic {
    let run = Simulation::new(seed);
    let pages = pattern.pages(nodes);
    let config = Config {
        nodes: nodes as u16,
        pages,
        homes: Homes::All,
        shard: 1,
        storage: Storage::Versioned,
        pages_max: pages as usize,
        // The network loses nothing, so nothing is retransmitted.
        timeout: Duration::MAX,
    };
    let address = |node| Address { node: NodeId(node), incarnation: Incarnation::FIRST };
    let all = (0..nodes as u16).map(|node| Node::new(config, address(node), [], [])).collect();
    let state = State {
        nodes: all,
        requested: vec![(Instant::ZERO, 0); nodes],
        steps,
        pattern: Rc::clone(pattern),
        network,
        costs,
        sizes,
        on_way: slab::Slab::new(),
        traffic: Traffic::default(),
    };
    let cluster = run.handled(|signals| Cluster { time: run.clone(), signals, state: RefCell::new(state) });
    for node in 0..nodes {
        cluster.think(node);
    }
    run.run();
    let mut traffic = cluster.state.borrow().traffic;
    traffic.elapsed = run.now().since(Instant::ZERO);
    traffic
}

struct Cluster {
    time: Virtual,
    signals: Signals,
    state: RefCell<State>,
}

struct State {
    nodes: Vec<Node>,
    /// Request time of the present access, and number of accesses.
    requested: Vec<(Instant, u32)>,
    steps: u32,
    pattern: Rc<dyn Pattern>,
    network: Box<dyn Network>,
    costs: AccessCosts,
    sizes: Sizes,
    on_way: slab::Slab<Envelope>,
    traffic: Traffic,
}

/// Tokens below this are nodes that want something; from here on, messages that arrive.
const ARRIVAL: u64 = 1 << 32;

impl Cluster {
    /// Schedules the next access, after half to one and a half of the mean time.
    fn think(&self, node: usize) {
        let mean = self.state.borrow().costs.think.as_nanos() as u64;
        let pause = mean / 2 + self.time.below(mean.max(1));
        self.signals.at(self.time.now() + Duration::from_nanos(pause), node as u64);
    }

    fn want(&self, node: usize) {
        let now = self.time.now();
        let (actions, hit) = {
            let mut state = self.state.borrow_mut();
            let step = state.requested[node].1;
            if step >= state.steps {
                return;
            }
            state.requested[node] = (now, step + 1);
            let nodes = state.nodes.len();
            let (page, want) = state.pattern.next(node, step, nodes, &|bound| self.time.below(bound));
            let Ok(actions) = state.nodes[node].on_local(now, want, page) else { return };
            (actions, state.costs.hit)
        };
        self.act(node, actions, hit);
    }

    fn act(&self, node: usize, actions: Actions, access: Duration) {
        let now = self.time.now();
        let mut is_done = false;
        for action in actions {
            match action {
                Action::Send(envelope) => self.send(envelope),
                Action::Access { .. } => {
                    let mut state = self.state.borrow_mut();
                    let since = state.requested[node].0;
                    state.traffic.accesses += 1;
                    state.traffic.latency += now.since(since) + access;
                    is_done = true;
                }
                // The policy's user stores the bytes; here there are none.
                Action::Protect(_)
                | Action::Revoke(_)
                | Action::Discard(_)
                | Action::Saved(_)
                | Action::Lost(_)
                | Action::Store { .. } => {}
            }
        }
        if is_done {
            self.think(node);
        }
    }

    fn send(&self, envelope: Envelope) {
        let mut state = self.state.borrow_mut();
        let page = envelope.message.data().map_or(0, |_| state.sizes.page);
        let gives_up = page > 0 && matches!(envelope.message, Message::GaveUp { .. });
        let delay = state.costs.turnaround + if gives_up { state.costs.give_up } else { Duration::ZERO };
        let bytes = state.sizes.message + page;
        state.traffic.messages += 1;
        state.traffic.bytes += bytes;
        let (from, to) = (usize::from(envelope.from.node.0), usize::from(envelope.to.node.0));
        let arrives = state.network.send(self.time.now() + delay, from, to, bytes);
        let token = ARRIVAL + state.on_way.insert(envelope) as u64;
        drop(state);
        self.signals.at(arrives, token);
    }
}

impl Handler for Cluster {
    fn on_signal(&self, token: u64) {
        if token < ARRIVAL {
            return self.want(token as usize);
        }
        let (node, actions, miss) = {
            let mut state = self.state.borrow_mut();
            let envelope = state.on_way.remove((token - ARRIVAL) as usize);
            let node = usize::from(envelope.to.node.0);
            let actions = state.nodes[node].on_message(self.time.now(), envelope);
            (node, actions, state.costs.miss)
        };
        self.act(node, actions, miss);
    }
}
