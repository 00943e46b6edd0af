//! The arbiter: leases, keys and the map.

use std::collections::BTreeMap;

use policy::membership::homes::{Home, Map};
use policy::membership::{Address, Ask, Change, Incarnation, NodeId, Reply, Revision, StaleView};
use policy::unit::Instant;

use super::clock::Clock;
use super::{Event, Flaw, LEASE, True, Verdict, World, ns};

#[derive(Clone)]
pub struct Arbiter {
    pub clock: Clock,
    /// How often it was put back, and how often it lost all.
    pub life: u32,
    pub losses: u32,
    pub revision: u64,
    pub leases: BTreeMap<u64, True>,
    pub keys: BTreeMap<NodeId, (Incarnation, u64)>,
    pub map: Option<(Revision, Map)>,
    pub log: Vec<(Revision, Change)>,
}

impl Arbiter {
    /// Whether each shard has one that is a member.
    fn has_homes(&self) -> bool {
        let is_member =
            |home: &Home| self.keys.get(&home.at.node).is_some_and(|(epoch, _)| *epoch == home.at.incarnation);
        self.map.as_ref().is_some_and(|(_, map)| map.0.iter().all(is_member))
    }
}

impl World {
    /// A request arrives at the arbiter, perhaps after its sender has given it up.
    pub(super) fn arrive(
        &mut self,
        index: usize,
        life: u32,
        number: u64,
        ask: Ask,
        lease: Option<u64>,
        sent: Instant,
    ) -> Verdict {
        let ends = self.now + self.arbiter.clock.lasts(LEASE);
        let held = lease.filter(|lease| self.arbiter.leases.contains_key(lease));
        let mut granted = None;
        let revision = Revision(self.arbiter.revision);
        let is_ignored = self.flaw == Some(Flaw::RevisionIgnored);
        let is_stale = |seen: Revision| revision < seen && !is_ignored;
        let reply = match (ask, held) {
            (Ask::Grant, _) => {
                let lease = self.count;
                granted = Some(lease);
                self.arbiter.leases.insert(lease, ends);
                self.expects(index, lease, ends);
                Reply::Leased(LEASE)
            }
            (Ask::Renew { seen }, Some(lease)) => {
                self.arbiter.leases.insert(lease, ends);
                self.expects(index, lease, ends);
                if is_stale(seen) {
                    Reply::Stale(StaleView::Revision { seen, got: revision })
                } else {
                    Reply::Leased(LEASE)
                }
            }
            (Ask::Register { seen }, _) if is_stale(seen) => Reply::Stale(StaleView::Revision { seen, got: revision }),
            (Ask::Register { .. }, Some(lease)) => {
                let me = NodeId(index as u16);
                match self.arbiter.keys.get(&me) {
                    Some((epoch, of)) if *of == lease => Reply::Registered(*epoch),
                    Some(_) if self.flaw != Some(Flaw::KeyReplaced) => Reply::Occupied,
                    _ => {
                        let epoch = Incarnation(self.arbiter.revision as u32 + 1);
                        self.arbiter.keys.insert(me, (epoch, lease));
                        self.changed(Change::Joined(Address { node: me, incarnation: epoch }));
                        self.registrations += 1;
                        if self.nodes[index].life == life {
                            self.nodes[index].losses = self.arbiter.losses;
                        }
                        Reply::Registered(epoch)
                    }
                }
            }
            (Ask::Renew { .. } | Ask::Register { .. }, None) => Reply::LeaseLost,
            (Ask::Propose { version, map }, _) => {
                let current = self.arbiter.map.as_ref().map_or(Revision(0), |(version, _)| *version);
                let is_member = self.arbiter.keys.get(&NodeId(index as u16)).is_some_and(|(_, of)| Some(*of) == lease);
                let is_member = is_member || self.flaw == Some(Flaw::ProposerIgnored);
                if is_member && (version == current || self.flaw == Some(Flaw::VersionIgnored)) {
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

    pub(super) fn expire(&mut self, index: usize, lease: u64) -> Verdict {
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

    /// At times the arbiter loses its data, is put back, or is copied.
    pub fn disturb_arbiter(&mut self) {
        match self.random.below(60) {
            0 => {
                let (clock, life, losses) = (self.arbiter.clock, self.arbiter.life, self.arbiter.losses + 1);
                let (leases, keys) = (BTreeMap::new(), BTreeMap::new());
                self.backup = None;
                self.go_back(Arbiter { clock, life, losses, revision: 1, leases, keys, map: None, log: Vec::new() });
            }
            // Not where a shard had no home, which who starts may take over at once, nor where a lease that is over would begin
            // anew: all nodes have to be stopped before that (README).
            1 | 2 => {
                let lasts =
                    |backup: &Arbiter| backup.keys.iter().all(|(node, key)| self.arbiter.keys.get(node) == Some(key));
                self.backup.clone().filter(lasts).into_iter().for_each(|backup| self.go_back(backup));
            }
            3..=6 if self.arbiter.has_homes() => {
                self.backup = Some(self.arbiter.clone());
                // Changes of others: what it is put back to does not pass soon what nodes have seen.
                self.arbiter.revision += 10_000;
            }
            _ => {}
        }
    }

    fn go_back(&mut self, to: Arbiter) {
        let life = self.arbiter.life + 1;
        self.arbiter = Arbiter { life, ..to };
        self.settled_at = self.now + ns(LEASE);
        // Leases begin anew.
        self.arbiter.leases.clear();
        let ends = self.now + self.arbiter.clock.lasts(LEASE);
        for (node, (_, lease)) in self.arbiter.keys.clone() {
            self.arbiter.leases.insert(lease, ends);
            self.expects(usize::from(node.0), lease, ends);
        }
        for index in 0..self.nodes.len() {
            let delay = self.delay();
            self.push(delay, index, Event::Watch { upto: 0, is_snapshot: true });
        }
    }
}
