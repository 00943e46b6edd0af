//! Nodes and an arbiter whose clocks run at different rates, with messages that are late, lost or done without an answer,
//! and nodes that are stopped, killed, restarted and leave. If it is told to, the arbiter loses its data, or is put back to
//! what it had before.
//!
//! A stopped node's decisions stop; what reads its fence does not. So a node counts as answering from the event that
//! makes it a home until the fence by its own clock, and an answer takes [`ANSWER`] more to leave.

mod arbiter;
mod clock;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use policy::membership::homes::{Release, ShardNo};
use policy::membership::{Action, Ask, Config, Incarnation, Members, Membership, NodeId, Reply, Revision};
use policy::unit::Instant;
use testkit::random::Random;

use arbiter::Arbiter;
use clock::Clock;

pub const LEASE: Duration = Duration::from_secs(2);
pub const ANSWER: Duration = Duration::from_millis(50);
pub const SHARDS: u16 = 8;
const DRIFT_PPM: u32 = 1000;
const TIMEOUT: Duration = Duration::from_millis(500);

/// True time in nanoseconds.
pub type True = u64;

const fn ns(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

/// How the system is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    MarginRemoved,
    CountedFromReply,
    ReleasedAtOnce,
    VersionIgnored,
    KeyReplaced,
    /// That the arbiter has gone back is not noticed.
    RevisionIgnored,
    /// A node that is alone believes that it is not.
    NotAlone,
    /// Whoever is no member of this arbiter replaces the map.
    ProposerIgnored,
}

#[derive(Clone, Debug)]
enum Event {
    Tick,
    Arrives {
        number: u64,
        ask: Ask,
        lease: Option<u64>,
        sent: Instant,
    },
    Answer {
        number: u64,
        sent: Instant,
        reply: Reply,
        lease: Option<u64>,
    },
    /// The changes up to this place are seen, or all that is there.
    Watch {
        upto: usize,
        is_snapshot: bool,
    },
    Released(Release),
    Expires(u64),
    Restart,
}

#[derive(Clone, Debug)]
struct Due {
    event: Event,
    node: usize,
    /// The node's life that it is for.
    life: u32,
}

pub struct Node {
    pub membership: Membership,
    clock: Clock,
    life: u32,
    lease: Option<u64>,
    /// Places of the arbiter's log that it has seen, and in which of the arbiter's lives.
    seen: usize,
    seen_life: u32,
    /// How often the data had been lost when it registered.
    losses: u32,
    /// When, at the latest, its last answer as a member has left.
    serves_until: True,
    number: u64,
    stopped_until: True,
    pub is_up: bool,
    /// When, at the latest, its last answer as the home of each shard has left.
    answers_until: Vec<True>,
    believes: Vec<bool>,
}

pub struct World {
    pub now: True,
    pub nodes: Vec<Node>,
    pub is_calm: bool,
    random: Random,
    arbiter: Arbiter,
    backup: Option<Arbiter>,
    /// When leases of before it went back are over.
    settled_at: True,
    ahead: BinaryHeap<Reverse<(True, u64)>>,
    events: BTreeMap<u64, Due>,
    count: u64,
    flaw: Option<Flaw>,
    pub moves: usize,
    /// Of nodes that found that the arbiter had gone back.
    pub ends: usize,
    pub registrations: usize,
}

fn is_over(action: &Action) -> bool {
    matches!(action, Action::Over(_))
}

type Verdict = Result<(), String>;

impl World {
    pub fn new(seed: u64, nodes: usize, flaw: Option<Flaw>) -> Self {
        let mut random = Random(seed);
        let clock = Clock::any(&mut random);
        let (leases, keys) = (BTreeMap::new(), BTreeMap::new());
        let mut world = World {
            now: 1_000_000_000,
            nodes: Vec::new(),
            is_calm: false,
            arbiter: Arbiter { clock, life: 0, losses: 0, revision: 1, leases, keys, map: None, log: Vec::new() },
            backup: None,
            settled_at: 0,
            random,
            ahead: BinaryHeap::new(),
            events: BTreeMap::new(),
            count: 0,
            flaw,
            moves: 0,
            ends: 0,
            registrations: 0,
        };
        for index in 0..nodes {
            let clock = Clock::any(&mut world.random);
            let membership = Membership::new(world.config(index));
            let shards = usize::from(SHARDS);
            let (answers_until, believes) = (vec![0; shards], vec![false; shards]);
            world.nodes.push(Node {
                membership,
                clock,
                life: 0,
                lease: None,
                seen: 0,
                seen_life: 0,
                losses: 0,
                serves_until: 0,
                number: 0,
                stopped_until: 0,
                is_up: true,
                answers_until,
                believes,
            });
            world.start(index);
        }
        world
    }

    fn config(&self, index: usize) -> Config {
        let (drift_ppm, answer) =
            if self.flaw == Some(Flaw::MarginRemoved) { (0, Duration::ZERO) } else { (DRIFT_PPM, ANSWER) };
        Config { drift_ppm, answer, ..Config::new(NodeId(index as u16), SHARDS, LEASE) }
    }

    fn start(&mut self, index: usize) {
        let delay = self.random.below(1_000_000);
        self.push(delay, index, Event::Tick);
        self.push(delay, index, Event::Watch { upto: 0, is_snapshot: true });
    }

    fn push(&mut self, delay: u64, node: usize, event: Event) {
        let life = self.nodes[node].life;
        self.count += 1;
        self.ahead.push(Reverse((self.now + delay, self.count)));
        self.events.insert(self.count, Due { event, node, life });
    }

    /// A message's time: mostly short, at times longer than a lease.
    fn delay(&mut self) -> u64 {
        let is_short = self.is_calm || !self.random.chance(50);
        100_000 + self.random.below(if is_short { 3_000_000 } else { 2 * ns(LEASE) })
    }

    /// Runs until `end`, unless a promise is broken.
    pub fn run(&mut self, end: True) -> Verdict {
        while let Some(&Reverse((at, count))) = self.ahead.peek() {
            if at > end {
                break;
            }
            self.ahead.pop();
            let due = self.events.remove(&count).expect("it is ahead");
            self.now = at;
            self.perform(due)?;
        }
        self.now = end;
        Ok(())
    }

    fn perform(&mut self, due: Due) -> Verdict {
        let Due { event, node: index, life } = due;
        match event {
            Event::Expires(lease) => return self.expire(index, lease),
            Event::Arrives { number, ask, lease, sent } => return self.arrive(index, life, number, ask, lease, sent),
            Event::Restart => {
                if self.nodes[index].life == life {
                    self.kill(index);
                }
                self.restart(index);
                return Ok(());
            }
            _ => {}
        }
        let node = &mut self.nodes[index];
        if node.life != life || !node.is_up {
            return Ok(());
        }
        if node.stopped_until > self.now {
            let delay = node.stopped_until - self.now;
            self.push(delay, index, event);
            return Ok(());
        }
        let now = node.clock.local(self.now);
        let actions = match event {
            Event::Tick => node.membership.on_tick(now),
            Event::Released(release) => node.membership.on_released(now, release),
            Event::Answer { number, .. } if number != node.number => return Ok(()),
            Event::Answer { sent, reply, lease, .. } => {
                node.number += 1;
                node.lease = lease.or(node.lease);
                let sent = if self.flaw == Some(Flaw::CountedFromReply) { now } else { sent };
                node.membership.on_reply(now, sent, reply)
            }
            Event::Watch { is_snapshot: true, .. } => {
                (node.seen, node.seen_life) = (self.arbiter.log.len(), self.arbiter.life);
                let mut members: Members = self.arbiter.keys.iter().map(|(node, (epoch, _))| (*node, *epoch)).collect();
                if self.flaw == Some(Flaw::NotAlone) {
                    members.insert(NodeId(63), Incarnation(1));
                }
                let (revision, map) = (Revision(self.arbiter.revision), self.arbiter.map.clone());
                let before = node.membership.clone();
                let actions = node.membership.on_snapshot(now, revision, members, map);
                if self.flaw == Some(Flaw::RevisionIgnored) && actions.iter().any(is_over) {
                    node.membership = before;
                    return Ok(());
                }
                actions
            }
            // The stream has ended.
            Event::Watch { .. } if node.seen_life != self.arbiter.life => return Ok(()),
            Event::Watch { upto, .. } => {
                let upto = upto.min(self.arbiter.log.len());
                let changes = self.arbiter.log.get(node.seen..upto).unwrap_or_default();
                node.seen = node.seen.max(upto);
                let Some((revision, _)) = changes.last() else { return Ok(()) };
                node.membership.on_changes(now, *revision, changes.iter().cloned())
            }
            Event::Expires(_) | Event::Arrives { .. } | Event::Restart => return Ok(()),
        };
        self.act(index, actions)
    }

    fn act(&mut self, index: usize, actions: Vec<Action>) -> Verdict {
        for action in actions {
            match action {
                Action::Ask(ask) => {
                    // The handler of `Stop` has returned when its last answer has left.
                    let last = if ask == Ask::Deregister { ns(ANSWER) * 2 } else { 0 };
                    self.send(index, ask, last);
                }
                Action::Release(release) => {
                    let takes = self.nodes[index].clock.lasts(ANSWER) + self.random.below(100_000_000);
                    let delay = if self.flaw == Some(Flaw::ReleasedAtOnce) { 0 } else { takes };
                    self.push(delay, index, Event::Released(release));
                }
                Action::Home { .. } => self.moves += 1,
                // It ends in order.
                Action::Over(_) => {
                    self.ends += 1;
                    let delay = ns(ANSWER) * 2 + self.random.below(ns(LEASE));
                    self.push(delay, index, Event::Restart);
                }
                _ => {}
            }
        }
        let node = &self.nodes[index];
        if let Some(next) = node.membership.next() {
            let delay = node.clock.at(next).saturating_sub(self.now).max(1000);
            self.push(delay, index, Event::Tick);
        }
        self.check(index)
    }

    fn send(&mut self, index: usize, ask: Ask, wait: u64) {
        let sent = self.nodes[index].clock.local(self.now);
        let (number, lease) = (self.nodes[index].number, self.nodes[index].lease);
        let delay = self.delay() + wait;
        if self.is_calm || !self.random.chance(50) {
            self.push(delay, index, Event::Arrives { number, ask, lease, sent });
        }
        let failed = Event::Answer { number, sent, reply: Reply::Failed, lease: None };
        self.push(ns(TIMEOUT) + wait, index, failed);
    }

    /// No two nodes answer as the home of a shard.
    fn check(&mut self, index: usize) -> Verdict {
        let node = &self.nodes[index];
        let (local, answer) = (node.clock.local(self.now), node.clock.lasts(ANSWER));
        let registered = self.arbiter.keys.get(&NodeId(index as u16)).map(|(epoch, _)| *epoch);
        let serves = node.membership.answers(local);
        if serves && self.now >= self.settled_at && registered != node.membership.address().map(|me| me.incarnation) {
            return Err(format!("node {index} answers without being registered"));
        }
        let fence = node.membership.until().map_or(0, |until| node.clock.at(until));
        let is_earlier = |of: &Node| of.losses != node.losses && of.serves_until > self.now;
        if serves && self.nodes.iter().any(is_earlier) {
            return Err(format!("node {index} answers while others do that registered before all was lost"));
        }
        let until = &mut self.nodes[index].serves_until;
        *until = if serves { fence + answer } else { (*until).min(self.now + answer) };
        for shard in 0..SHARDS {
            let at = usize::from(shard);
            let believes = self.nodes[index].membership.is_home(local, ShardNo(shard));
            if believes {
                let other =
                    (0..self.nodes.len()).find(|&of| of != index && self.nodes[of].answers_until[at] > self.now);
                if let Some(other) = other {
                    return Err(format!("nodes {index} and {other} answer for shard {shard}"));
                }
                self.nodes[index].answers_until[at] = fence + answer;
            } else if self.nodes[index].believes[at] {
                let until = &mut self.nodes[index].answers_until[at];
                *until = (*until).min(self.now + answer);
            }
            self.nodes[index].believes[at] = believes;
        }
        Ok(())
    }

    /// Does something bad to a node.
    pub fn disturb(&mut self) -> Verdict {
        let index = self.random.index(self.nodes.len());
        match self.random.below(6) {
            0 => {
                self.kill(index);
                let delay = self.random.below(3 * ns(LEASE));
                self.push(delay, index, Event::Restart);
                Ok(())
            }
            1 if self.nodes[index].is_up && self.nodes[index].stopped_until <= self.now => {
                let now = self.nodes[index].clock.local(self.now);
                let actions = self.nodes[index].membership.on_leave(now);
                self.act(index, actions)?;
                self.push(4 * ns(LEASE), index, Event::Restart);
                Ok(())
            }
            1..=3 => {
                let stop = self.random.below(2 * ns(LEASE));
                self.stop(index, stop);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    pub fn restart(&mut self, index: usize) {
        self.nodes[index].is_up = true;
        self.start(index);
    }

    pub fn stop(&mut self, index: usize, duration: u64) {
        let until = &mut self.nodes[index].stopped_until;
        *until = (*until).max(self.now + duration);
    }

    /// Ends a node at once; a new life of it knows nothing.
    pub fn kill(&mut self, index: usize) {
        let membership = Membership::new(self.config(index));
        let node = &mut self.nodes[index];
        node.membership = membership;
        node.life += 1;
        (node.lease, node.seen, node.is_up, node.stopped_until) = (None, 0, false, 0);
        node.serves_until = 0;
        node.answers_until.fill(0);
        node.believes.fill(false);
    }

    /// The node that answers as the home of a shard now.
    pub fn home(&self, shard: u16) -> Option<usize> {
        (0..self.nodes.len()).find(|&index| {
            let node = &self.nodes[index];
            node.is_up && node.membership.is_home(node.clock.local(self.now), ShardNo(shard))
        })
    }

    pub fn homes(&self) -> Vec<Option<usize>> {
        (0..SHARDS).map(|shard| self.home(shard)).collect()
    }
}
