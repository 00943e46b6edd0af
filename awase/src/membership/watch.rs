//! The thread `cluster-watch`: all keys of the cluster as they are, then each change, over and over.
//!
//! A stream that is silent for half a lease is given up, and the keys are asked for again: a connection can be dead
//! without an end, and an endpoint that is cut off from the others of etcd goes on being silent. So what this node sees is
//! never much older than that while any endpoint answers.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::mpsc::Receiver;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use policy::membership::homes::Map;
use policy::membership::{self, Address, Members, NodeId, Revision};

use super::etcd::{self, Etcd, KeyValue, Watched};
use super::keys::{Key, Keys, Record, decode_map};
use super::problem::Problem;

/// Pause after a failure.
const RETRY: Duration = Duration::from_millis(50);

/// A member's name, and where it listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub name: String,
    pub at: SocketAddr,
}

/// What is seen.
pub(super) enum Seen {
    All { revision: Revision, members: Members, peers: Vec<(Address, Peer)>, map: Option<(Revision, Map)> },
    Changes { changes: Vec<(Revision, membership::Change)>, peers: Vec<(Address, Peer)> },
    Problem(Problem),
}

pub(super) struct Watcher {
    /// For keys as they are.
    asked: Etcd,
    /// For changes.
    streamed: Etcd,
    keys: Keys,
    shards: u16,
    /// Numbers of members by name: an event of a deletion has no value.
    names: BTreeMap<String, NodeId>,
    /// The latest.
    seen: Revision,
}

impl Watcher {
    pub fn new(asked: Etcd, streamed: Etcd, keys: Keys, shards: u16) -> Self {
        Watcher { asked, streamed, keys, shards, names: BTreeMap::new(), seen: Revision(0) }
    }

    /// Runs until `end` is dropped, or nobody takes what is seen.
    pub fn run(&mut self, end: &Receiver<()>, mut take: impl FnMut(Seen) -> bool) {
        loop {
            let result = self.follow(&mut take);
            let pause = match result {
                Ok(true) => Duration::ZERO,
                Ok(false) => return,
                Err(problem) => {
                    if !take(Seen::Problem(problem)) {
                        return;
                    }
                    RETRY
                }
            };
            if end.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }

    /// One stream. Returns whether to go on.
    fn follow(&mut self, take: &mut impl FnMut(Seen) -> bool) -> Result<bool, Problem> {
        let (revision, found) = self.asked.range(self.keys.root())?;
        if revision < self.seen && self.asked.reached(&self.keys.map())? >= self.seen {
            // An old answer, by mistake.
            std::thread::sleep(RETRY);
            return Ok(true);
        }
        self.seen = revision;
        if !take(self.all(revision, found)?) {
            return Ok(false);
        }
        let mut watch = self.streamed.watch(self.keys.root(), Revision(revision.0 + 1))?;
        loop {
            match watch.next() {
                Ok(Watched::Changes(changes)) => {
                    let at = changes.iter().map(etcd::Change::at);
                    self.seen = at.fold(self.seen, Revision::max);
                    // None, when it has begun: then it is heard.
                    if !take(self.changes(changes)?) {
                        return Ok(false);
                    }
                }
                Ok(Watched::Over) => break,
                Err(error) => {
                    self.streamed.0.next_endpoint();
                    return Err(error.into());
                }
            }
        }
        // Nothing has happened, or it is deaf, or changes are missing: the keys as they are will tell.
        self.streamed.0.next_endpoint();
        Ok(true)
    }

    fn all(&mut self, revision: Revision, found: Vec<KeyValue>) -> Result<Seen, Problem> {
        self.names.clear();
        let (mut members, mut peers, mut map) = (Members::new(), Vec::new(), None);
        for found in found {
            match self.keys.kind(&found.key) {
                Key::Member(name) => {
                    let (address, at) = member(&found)?;
                    self.names.insert(name.to_owned(), address.node);
                    members.insert(address.node, address.incarnation);
                    peers.push((address, Peer { name: name.to_owned(), at }));
                }
                Key::Map => map = Some((found.modified, self.map(&found)?)),
                Key::Other => {}
            }
        }
        Ok(Seen::All { revision, members, peers, map })
    }

    fn changes(&mut self, found: Vec<etcd::Change>) -> Result<Seen, Problem> {
        let (mut changes, mut peers) = (Vec::new(), Vec::new());
        for change in found {
            match change {
                etcd::Change::Put(found) => match self.keys.kind(&found.key) {
                    Key::Member(name) => {
                        let (address, at) = member(&found)?;
                        self.names.insert(name.to_owned(), address.node);
                        changes.push((found.modified, membership::Change::Joined(address)));
                        peers.push((address, Peer { name: name.to_owned(), at }));
                    }
                    Key::Map => changes.push((found.modified, membership::Change::Map(self.map(&found)?))),
                    Key::Other => {}
                },
                etcd::Change::Deleted { key, at } => {
                    if let Key::Member(name) = self.keys.kind(&key)
                        && let Some(node) = self.names.remove(name)
                    {
                        changes.push((at, membership::Change::Left(node)));
                    }
                }
            }
        }
        Ok(Seen::Changes { changes, peers })
    }

    fn map(&self, found: &KeyValue) -> Result<Map, Problem> {
        let map = decode_map(&found.value).map_err(|reason| Problem::Record { key: found.key.clone(), reason })?;
        if map.0.len() != usize::from(self.shards) {
            return Err(Problem::Shards { theirs: map.0.len(), ours: self.shards });
        }
        Ok(map)
    }
}

fn member(found: &KeyValue) -> Result<(Address, SocketAddr), Problem> {
    let record = Record::decode(&found.value).map_err(|reason| Problem::Record { key: found.key.clone(), reason })?;
    Ok((Address { node: record.node, incarnation: found.created.epoch()? }, record.address))
}
