//! Jobs (WS-7): every client is one, and each of its connections a process of it. What is done for a client is charged to
//! its job, on whatever processor, and a client that comes again soon is the job that it was: it gains nothing by making
//! a connection for each request.

mod account;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use crate::request::JobId;
pub(crate) use account::Accounts;

/// What is done for nobody in particular.
pub const NOBODY: JobId = JobId(0);

/// Bits of a [`JobId`] that say where in the tables the job is; the others tell it from those that were there before.
const PLACE_BITS: u32 = 12;

/// Places in the tables: jobs remembered at a time, and [`NOBODY`].
const PLACES: usize = 1 << PLACE_BITS;

/// Jobs remembered at a time, at most. Of those of which nobody is connected, the one that left longest ago goes first.
pub const JOBS_MAX: usize = PLACES - 2;

/// All clients for which there is no room are this one job.
const OTHERS: JobId = JobId(PLACES as u32 - 1);

/// Whose work it is: from where it comes, and as whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Client {
    /// Another host.
    Address(IpAddr),
    /// A user of this host, through a Unix socket.
    User(u32),
    /// Nothing is known of it.
    Unknown,
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Client::Address(address) => write!(f, "{}", address.to_canonical()),
            Client::User(user) => write!(f, "uid {user}"),
            Client::Unknown => write!(f, "unknown"),
        }
    }
}

/// A job, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobFacts {
    /// Its number.
    pub id: JobId,
    /// Who it is.
    pub client: Client,
    /// Its connections at present.
    pub connections: u32,
    /// Processor time used since it came.
    pub used: Duration,
    /// Of late, decayed: less goes first.
    pub recent: Duration,
}

/// All jobs.
pub struct Jobs {
    table: Mutex<Table>,
    merged: Box<[Merged]>,
}

/// What processors tell each other of the job at a place, now and then.
#[derive(Default)]
struct Merged {
    /// Used since the start by all jobs that were there.
    used_ns: AtomicU64,
    /// How much that of now has used of late.
    recent_ns: AtomicU64,
}

#[derive(Default)]
struct Table {
    /// From place 1 on.
    entries: Vec<Entry>,
    by_client: BTreeMap<Client, usize>,
    /// Of those with nobody connected, by when the last one left.
    left: BTreeMap<u64, usize>,
    sequence: u64,
    /// Connections of [`OTHERS`].
    others: u32,
}

struct Entry {
    id: JobId,
    client: Client,
    connections: u32,
    left: u64,
    /// What others used at its place before.
    used_before_ns: u64,
}

impl Default for Jobs {
    fn default() -> Self {
        Jobs { table: Mutex::default(), merged: (0..PLACES).map(|_| Merged::default()).collect() }
    }
}

impl Jobs {
    /// A connection of `client` has come.
    pub fn connect(self: &Arc<Self>, client: Client) -> Member {
        let client = match client {
            Client::Address(address) => Client::Address(address.to_canonical()),
            other => other,
        };
        let job = self.lock().connect(client, &self.merged);
        Member { jobs: Arc::clone(self), job }
    }

    /// All that are remembered.
    pub fn list(&self) -> Vec<JobFacts> {
        let facts = |entry: &Entry| {
            let merged = &self.merged[place(entry.id)];
            let used_ns = merged.used_ns.load(Ordering::Relaxed).saturating_sub(entry.used_before_ns);
            JobFacts {
                id: entry.id,
                client: entry.client,
                connections: entry.connections,
                used: Duration::from_nanos(used_ns),
                recent: Duration::from_nanos(merged.recent_ns.load(Ordering::Relaxed)),
            }
        };
        self.lock().entries.iter().map(facts).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn connect(&mut self, client: Client, merged: &[Merged]) -> JobId {
        let index = match self.by_client.get(&client) {
            Some(&index) => index,
            None => match self.place_for(client, merged) {
                Some(index) => index,
                None => {
                    self.others += 1;
                    return OTHERS;
                }
            },
        };
        let entry = &mut self.entries[index];
        self.left.remove(&entry.left);
        entry.connections += 1;
        entry.id
    }

    /// Makes room for a new job; none if everybody else is connected.
    fn place_for(&mut self, client: Client, merged: &[Merged]) -> Option<usize> {
        let index = if self.entries.len() < JOBS_MAX {
            let id = JobId(self.entries.len() as u32 + 1);
            self.entries.push(Entry { id, client, connections: 0, left: 0, used_before_ns: 0 });
            self.entries.len() - 1
        } else {
            let (_, index) = self.left.pop_first()?;
            self.by_client.remove(&self.entries[index].client);
            index
        };
        let entry = &mut self.entries[index];
        let shared = &merged[place(entry.id)];
        if entry.client != client {
            // The same place, for another one.
            entry.id = JobId(entry.id.0.wrapping_add(1 << PLACE_BITS));
            entry.client = client;
            shared.recent_ns.store(0, Ordering::Relaxed);
        }
        entry.used_before_ns = shared.used_ns.load(Ordering::Relaxed);
        self.by_client.insert(client, index);
        Some(index)
    }

    fn leave(&mut self, job: JobId) {
        if job == OTHERS {
            self.others = self.others.saturating_sub(1);
            return;
        }
        self.sequence += 1;
        let index = place(job) - 1;
        let Some(entry) = self.entries.get_mut(index).filter(|entry| entry.id == job) else { return };
        entry.connections = entry.connections.saturating_sub(1);
        if entry.connections == 0 {
            entry.left = self.sequence;
            self.left.insert(self.sequence, index);
        }
    }
}

/// One connection of a job.
pub struct Member {
    jobs: Arc<Jobs>,
    job: JobId,
}

impl Member {
    /// Whose.
    pub fn job(&self) -> JobId {
        self.job
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.jobs.lock().leave(self.job);
    }
}

/// Where in the tables a job is.
fn place(job: JobId) -> usize {
    job.0 as usize % PLACES
}
