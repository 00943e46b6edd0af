//! Jobs (WS-7): every client is a job, its connections are the job's processes. Work for a client is charged to its job,
//! on every processor. A client that reconnects soon gets the same job, so a connection per request gains nothing.
//!
//! Users of another host are jobs of their own, at most 16 at a time, since with AUTH_SYS the host itself states the
//! user.

mod account;
mod client;
mod table;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

pub use crate::request::JobId;
pub(crate) use account::Accounts;
pub use client::{Client, Group, Origin};
use table::Table;

/// Work for no client in particular.
pub const NOBODY: JobId = JobId(0);

/// Bits of a [`JobId`] that index the tables; the others distinguish successive jobs at one index.
const PLACE_BITS: u32 = 12;

/// Size of the tables: the jobs remembered, [`NOBODY`] and the job of all others.
const PLACES: usize = 1 << PLACE_BITS;

/// Jobs remembered, at most. Of those without connections, the one that disconnected first is replaced first.
pub const JOBS_MAX: usize = PLACES - 2;

/// Users of one host that are jobs of their own, at most: the host states the user, and must not be able to make any
/// number of jobs. Others share the host's job.
pub const USERS_AT_MAX: usize = 16;

/// The job of all clients that do not fit into the tables.
const OTHERS: JobId = JobId(PLACES as u32 - 1);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobFacts {
    pub id: JobId,
    pub client: Client,
    pub connections: u32,
    /// Processor time used in its life.
    pub used: Duration,
    /// Recent use, decayed: the job with less runs first.
    pub recent: Duration,
    /// Requests answered in its life.
    pub requests: u64,
    /// Blocks that it wrote and that are not on their disks yet.
    pub dirty_blocks: u64,
}

pub struct Jobs {
    table: Mutex<Table>,
    merged: Box<[Merged]>,
    groups: Mutex<Arc<[Group]>>,
}

/// The sums of all processors for the job at an index, updated periodically.
#[derive(Default)]
struct Merged {
    /// Used since the start by all jobs at this index.
    used_ns: AtomicU64,
    /// Recent use of the present job.
    recent_ns: AtomicU64,
    /// Requests answered since the start for all jobs at this index.
    requests: AtomicU64,
    /// Blocks.
    dirty: AtomicU64,
}

impl Default for Jobs {
    fn default() -> Self {
        let merged = (0..PLACES).map(|_| Merged::default()).collect();
        Jobs { table: Mutex::default(), merged, groups: Mutex::new(Arc::new([])) }
    }
}

impl Jobs {
    /// Groups of clients that share a named job. Applies to new connections.
    pub fn set_groups(&self, groups: &[Group]) {
        *self.groups.lock() = groups.into();
    }

    pub fn client_of(&self, origin: Origin) -> Client {
        let groups = Arc::clone(&self.groups.lock());
        origin.client(&groups)
    }

    /// Registers a connection of `client`.
    pub fn connect(self: &Arc<Self>, client: Client) -> Member {
        let job = self.table.lock().connect(client, &self.merged);
        Member { jobs: Arc::clone(self), job }
    }

    pub fn list(&self) -> Vec<JobFacts> {
        self.table.lock().list(&self.merged)
    }

    /// The `number` jobs with most recent use, among those that have connections, recent use or dirty blocks.
    pub fn most_used(&self, number: usize) -> Vec<JobFacts> {
        let mut jobs = self.list();
        jobs.retain(|facts| facts.connections > 0 || !facts.recent.is_zero() || facts.dirty_blocks > 0);
        jobs.sort_by(|a, b| (b.recent, b.used).cmp(&(a.recent, a.used)).then_with(|| a.client.cmp(&b.client)));
        jobs.truncate(number);
        jobs
    }

    /// Blocks that the job wrote and that are not on their disks yet.
    pub(crate) fn dirty(&self, job: JobId) -> u64 {
        self.merged[place(job)].dirty.load(Ordering::Relaxed)
    }

    /// The job wrote `blocks` more.
    pub(crate) fn add_dirty(&self, job: JobId, blocks: u64) {
        self.merged[place(job)].dirty.fetch_add(blocks, Ordering::Relaxed);
    }

    /// `blocks` of them are on their disks, or dropped.
    pub(crate) fn subtract_dirty(&self, job: JobId, blocks: u64) {
        self.merged[place(job)].dirty.fetch_sub(blocks, Ordering::Relaxed);
    }
}

pub struct Member {
    jobs: Arc<Jobs>,
    job: JobId,
}

impl Member {
    pub fn job(&self) -> JobId {
        self.job
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.jobs.table.lock().leave(self.job);
    }
}

/// A job's index in the tables.
fn place(job: JobId) -> usize {
    job.0 as usize % PLACES
}
