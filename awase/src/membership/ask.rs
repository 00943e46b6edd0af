//! The thread `cluster-ask`: what the policy asks, one question at a time.

use std::collections::{BTreeMap, BTreeSet};

use policy::membership::{Ask, NodeId, Reply, Revision, StaleView};
use policy::unit::Instant;

use super::etcd::{Created, Etcd, KeyValue, LeaseId, Leased};
use super::fence::now;
use super::keys::{Keys, NODES_MAX, Record, encode_map};
use super::problem::{EtcdError, Problem};
use super::settings::Settings;

pub(super) struct Asker {
    etcd: Etcd,
    settings: Settings,
    keys: Keys,
    node: NodeId,
    lease: Option<LeaseId>,
    /// At which this node was registered last.
    created: Revision,
}

impl Asker {
    pub fn new(etcd: Etcd, settings: Settings, node: NodeId) -> Self {
        Asker { etcd, keys: Keys::new(&settings), settings, node, lease: None, created: Revision(0) }
    }

    /// The answer, and when its question was sent.
    pub fn answer(&mut self, ask: Ask) -> (Instant, Result<Reply, Problem>) {
        let mut sent = now();
        let reply = self.try_answer(ask, &mut sent);
        (sent, reply)
    }

    fn try_answer(&mut self, ask: Ask, sent_at: &mut Instant) -> Result<Reply, Problem> {
        let lease = self.lease.clone();
        match (ask, lease) {
            (Ask::Grant, _) => {
                let (lease, sent, ttl) = self.etcd.grant(self.settings.lease)?;
                (self.lease, *sent_at) = (Some(lease), sent);
                Ok(Reply::Leased(ttl))
            }
            (Ask::Renew { seen }, Some(lease)) => match self.etcd.renew(&lease)? {
                Leased::For { sent, ttl, at } => {
                    *sent_at = sent;
                    Ok(if at < seen { self.stale(seen)? } else { None }.unwrap_or(Reply::Leased(ttl)))
                }
                Leased::Lost => Ok(Reply::LeaseLost),
            },
            (Ask::Register { seen }, Some(lease)) => self.register(&lease, seen),
            (Ask::Renew { .. } | Ask::Register { .. }, None) => Ok(Reply::LeaseLost),
            (Ask::Propose { version, map }, _) => {
                let by = self.keys.member(&self.settings.node);
                self.etcd.replace(&self.keys.map(), version, &encode_map(&map), Some((&by, self.created)))?;
                Ok(Reply::Proposed)
            }
            (Ask::Deregister, lease) => {
                lease.map_or(Ok(()), |lease| self.etcd.revoke(&lease))?;
                Ok(Reply::Deregistered)
            }
        }
    }

    /// It is looked what etcd has before anything is left there. What was lost since took the lease with it.
    fn register(&mut self, lease: &LeaseId, seen: Revision) -> Result<Reply, Problem> {
        let (got, found) = self.etcd.range(self.keys.root())?;
        if got < seen {
            return Ok(self.stale(seen)?.unwrap_or(Reply::Failed));
        }
        let (own, name) = (self.keys.number(self.node), self.settings.node.as_bytes());
        if !found.iter().any(|number| number.key == own && number.value == name) {
            return Ok(Reply::Stale(StaleView::Number));
        }
        self.compare_disks(&found, Revision(u64::MAX))?;
        let disks = Some(self.settings.disks.clone());
        let record = Record { node: self.node, address: self.settings.address, disks };
        let key = self.keys.member(&self.settings.node);
        self.created = match self.etcd.create(&key, &record.encode(), Some(lease))? {
            Created::At(revision) => revision,
            // An earlier attempt succeeded, and its answer was lost.
            Created::Exists(found) if found.lease.as_ref() == Some(lease) => found.created,
            Created::Exists(_) => return Ok(Reply::Occupied),
            Created::LeaseLost => return Ok(Reply::LeaseLost),
        };
        // Of nodes that have registered at the same time, the later ones see it, and go.
        let (_, found) = self.etcd.range(self.keys.root())?;
        if let Err(problem) = self.compare_disks(&found, self.created) {
            self.etcd.revoke(lease)?;
            self.lease = None;
            return Err(problem);
        }
        Ok(Reply::Registered(self.created.epoch()?))
    }
}

impl Asker {
    /// An answer was older than what this node has seen: are etcd's data?
    fn stale(&mut self, seen: Revision) -> Result<Option<Reply>, Problem> {
        let got = self.etcd.reached(&self.keys.map())?;
        Ok((got < seen).then_some(Reply::Stale(StaleView::Revision { seen, got })))
    }

    /// All members become homes of all these disks: one that does not have them all would keep the others from them.
    /// Compared with those that were registered before.
    fn compare_disks(&self, found: &[KeyValue], before: Revision) -> Result<(), Problem> {
        let members = self.keys.members();
        let ours = &self.settings.disks;
        for found in found.iter().filter(|found| found.created < before) {
            let name = found.key.strip_prefix(&members).filter(|name| *name != self.settings.node);
            let Some((name, Ok(record))) = name.map(|name| (name, Record::decode(&found.value))) else { continue };
            let Some(theirs) = record.disks else { return Err(Problem::Earlier(name.to_owned())) };
            if let Some(what) = difference(name, &theirs, ours) {
                return Err(Problem::Disks(what));
            }
        }
        Ok(())
    }
}

/// In words.
fn difference(node: &str, theirs: &BTreeMap<String, u64>, ours: &BTreeMap<String, u64>) -> Option<String> {
    let names: BTreeSet<&String> = theirs.keys().chain(ours.keys()).collect();
    names.into_iter().find_map(|name| match (theirs.get(name), ours.get(name)) {
        (Some(theirs), Some(ours)) if theirs == ours => None,
        (Some(theirs), Some(ours)) => Some(format!("{name:?} has {theirs} bytes at node {node:?}, and {ours} here")),
        (None, _) => Some(format!("{name:?} is not configured at node {node:?}")),
        (_, None) => Some(format!("{name:?} of node {node:?} is not configured here")),
    })
}

/// The number of the node with this name: the one it has had, or the lowest that is free, from now on its own.
pub(super) fn claim_number(etcd: &mut Etcd, keys: &Keys, name: &str) -> Result<NodeId, Problem> {
    loop {
        let (_, found) = etcd.range(&keys.numbers())?;
        let mut taken = BTreeSet::new();
        for number in found {
            let Some(node) = keys.numbered(&number.key) else { continue };
            if number.value == name.as_bytes() {
                return Ok(node);
            }
            taken.insert(node);
        }
        let free = (0..NODES_MAX).map(NodeId).find(|node| !taken.contains(node));
        let node = free.ok_or(Problem::NoNumber(NODES_MAX.into()))?;
        match etcd.create(&keys.number(node), name, None)? {
            Created::At(_) => return Ok(node),
            // Another node was faster: at most once for each number.
            Created::Exists(_) => {}
            Created::LeaseLost => {
                return Err(EtcdError::Malformed {
                    endpoint: "etcd".into(),
                    reason: "a lease is missing where there was none".into(),
                }
                .into());
            }
        }
    }
}
