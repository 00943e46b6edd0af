//! Nodes and an arbiter whose clocks run at different rates, with messages that are late, lost or done without an answer,
//! and nodes that are stopped, killed, restarted and leave.
//!
//! A stopped node's decisions stop; what reads its fence does not. So a node counts as answering from the event that
//! makes it a home until the fence by its own clock, and an answer takes [`ANSWER`] more to leave.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use policy::membership::homes::{Map, Release, ShardNo};
use policy::membership::{Action, Address, Ask, Change, Config, Incarnation, Membership, NodeId, Reply, Revision};
use policy::unit::Instant;
use testkit::random::Random;

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
}

#[derive(Clone, Copy, Debug)]
struct Clock {
    offset: u64,
    ppm: i64,
}

impl Clock {
    fn any(random: &mut Random) -> Self {
        let bound = i64::from(DRIFT_PPM);
        let ppm = match random.below(4) {
            0 => -bound,
            1 => bound,
            _ => random.below(2 * bound as u64) as i64 - bound,
        };
        Clock { offset: random.below(1 << 40), ppm }
    }

    fn rate(self) -> u128 {
        (1_000_000 + self.ppm) as u128
    }

    fn local(self, at: True) -> Instant {
        Instant::from_ns(self.offset + (u128::from(at) * self.rate() / 1_000_000) as u64)
    }

    /// The first true time at which the clock shows `local`.
    fn at(self, local: Instant) -> True {
        (u128::from(local.ns().saturating_sub(self.offset)) * 1_000_000).div_ceil(self.rate()) as u64
    }

    fn lasts(self, duration: Duration) -> u64 {
        (duration.as_nanos() * 1_000_000).div_ceil(self.rate()) as u64
    }
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
    /// Places of the arbiter's log that it has seen.
    seen: usize,
    number: u64,
    stopped_until: True,
    pub is_up: bool,
    /// When, at the latest, its last answer as the home of each shard has left.
    answers_until: Vec<True>,
    believes: Vec<bool>,
}

struct Arbiter {
    clock: Clock,
    revision: u64,
    leases: BTreeMap<u64, True>,
    keys: BTreeMap<NodeId, (Incarnation, u64)>,
    map: Option<(Revision, Map)>,
    log: Vec<(Revision, Change)>,
}

pub struct World {
    pub now: True,
    pub nodes: Vec<Node>,
    pub is_calm: bool,
    random: Random,
    arbiter: Arbiter,
    ahead: BinaryHeap<Reverse<(True, u64)>>,
    events: BTreeMap<u64, Due>,
    count: u64,
    flaw: Option<Flaw>,
    pub moves: usize,
    pub registrations: usize,
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
            arbiter: Arbiter { clock, revision: 1, leases, keys, map: None, log: Vec::new() },
            random,
            ahead: BinaryHeap::new(),
            events: BTreeMap::new(),
            count: 0,
            flaw,
            moves: 0,
            registrations: 0,
        };
        for index in 0..nodes {
            let clock = Clock::any(&mut world.random);
            let membership = Membership::new(world.config(index));
            let shards = usize::from(SHARDS);
            let (answers_until, believes) = (vec![0; shards], vec![false; shards]);
            let (life, lease, seen, number, stopped_until, is_up) = (0, None, 0, 0, 0, true);
            world.nodes.push(Node {
                membership,
                clock,
                life,
                lease,
                seen,
                number,
                stopped_until,
                is_up,
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
                self.nodes[index].is_up = true;
                self.start(index);
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
                node.seen = self.arbiter.log.len();
                let members = self.arbiter.keys.iter().map(|(node, (epoch, _))| (*node, *epoch)).collect();
                let (revision, map) = (Revision(self.arbiter.revision), self.arbiter.map.clone());
                node.membership.on_snapshot(now, revision, members, map).map_err(|error| error.to_string())?
            }
            Event::Watch { upto, .. } => {
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

    /// A request arrives at the arbiter, perhaps after its sender has given it up.
    fn arrive(&mut self, index: usize, life: u32, number: u64, ask: Ask, lease: Option<u64>, sent: Instant) -> Verdict {
        let ends = self.now + self.arbiter.clock.lasts(LEASE);
        let held = lease.filter(|lease| self.arbiter.leases.contains_key(lease));
        let mut granted = None;
        let reply = match (ask, held) {
            (Ask::Grant, _) => {
                let lease = self.count;
                granted = Some(lease);
                self.arbiter.leases.insert(lease, ends);
                self.expects(index, lease, ends);
                Reply::Leased(LEASE)
            }
            (Ask::Renew, Some(lease)) => {
                self.arbiter.leases.insert(lease, ends);
                self.expects(index, lease, ends);
                Reply::Leased(LEASE)
            }
            (Ask::Register, Some(lease)) => {
                let me = NodeId(index as u16);
                match self.arbiter.keys.get(&me) {
                    Some((epoch, of)) if *of == lease => Reply::Registered(*epoch),
                    Some(_) if self.flaw != Some(Flaw::KeyReplaced) => Reply::Occupied,
                    _ => {
                        let epoch = Incarnation(self.arbiter.revision as u32 + 1);
                        self.arbiter.keys.insert(me, (epoch, lease));
                        self.changed(Change::Joined(Address { node: me, incarnation: epoch }));
                        self.registrations += 1;
                        Reply::Registered(epoch)
                    }
                }
            }
            (Ask::Renew | Ask::Register, None) => Reply::LeaseLost,
            (Ask::Propose { version, map }, _) => {
                let current = self.arbiter.map.as_ref().map_or(Revision(0), |(version, _)| *version);
                if version == current || self.flaw == Some(Flaw::VersionIgnored) {
                    self.arbiter.map = Some((Revision(self.arbiter.revision + 1), map.clone()));
                    self.changed(Change::Map(map));
                }
                Reply::Proposed
            }
            (Ask::Deregister, held) => {
                held.map_or(Ok(()), |lease| self.end_lease(index, lease))?;
                Reply::Deregistered
            }
        };
        let delay = self.delay();
        if self.nodes[index].life == life && (self.is_calm || !self.random.chance(50)) {
            self.push(delay, index, Event::Answer { number, sent, reply, lease: granted });
        }
        Ok(())
    }

    fn expects(&mut self, index: usize, lease: u64, ends: True) {
        let late = if self.random.chance(500) { 0 } else { self.random.below(500_000_000) };
        self.push(ends - self.now + late, index, Event::Expires(lease));
    }

    fn expire(&mut self, index: usize, lease: u64) -> Verdict {
        match self.arbiter.leases.get(&lease) {
            Some(ends) if *ends <= self.now => self.end_lease(index, lease),
            _ => Ok(()),
        }
    }

    fn end_lease(&mut self, index: usize, lease: u64) -> Verdict {
        self.arbiter.leases.remove(&lease);
        let me = NodeId(index as u16);
        if self.arbiter.keys.get(&me).is_none_or(|(_, of)| *of != lease) {
            return Ok(());
        }
        self.arbiter.keys.remove(&me);
        self.changed(Change::Left(me));
        let last = self.nodes[index].answers_until.iter().max().copied().unwrap_or(0);
        if last > self.now {
            return Err(format!("node {index} answers for {} ns after its lease", last - self.now));
        }
        Ok(())
    }

    fn changed(&mut self, change: Change) {
        self.arbiter.revision += 1;
        self.arbiter.log.push((Revision(self.arbiter.revision), change));
        let upto = self.arbiter.log.len();
        for index in 0..self.nodes.len() {
            let (delay, is_snapshot) = (self.delay(), self.random.chance(100));
            self.push(delay, index, Event::Watch { upto, is_snapshot });
        }
    }

    /// No two nodes answer as the home of a shard.
    fn check(&mut self, index: usize) -> Verdict {
        let node = &self.nodes[index];
        let (local, answer) = (node.clock.local(self.now), node.clock.lasts(ANSWER));
        let registered = self.arbiter.keys.get(&NodeId(index as u16)).map(|(epoch, _)| *epoch);
        if node.membership.answers(local) && registered != node.membership.address().map(|me| me.incarnation) {
            return Err(format!("node {index} answers without being registered"));
        }
        let fence = node.membership.until().map_or(0, |until| node.clock.at(until));
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
