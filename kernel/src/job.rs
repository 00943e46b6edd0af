//! Jobs (WS-7): every client is one, and each of its connections a process of it. What is done for a client is charged to
//! its job, on whatever processor, and a client that comes again soon is the job that it was: it gains nothing by making
//! a connection for each request.

mod account;
mod client;
mod table;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use crate::request::JobId;
pub(crate) use account::Accounts;
pub use client::{Client, Group, Origin};
use table::Table;

/// What is done for nobody in particular.
pub const NOBODY: JobId = JobId(0);

/// Bits of a [`JobId`] that say where in the tables the job is; the others tell it from those that were there before.
const PLACE_BITS: u32 = 12;

/// Places in the tables: jobs remembered at a time, and [`NOBODY`].
const PLACES: usize = 1 << PLACE_BITS;

/// Jobs remembered at a time, at most. Of those of which nobody is connected, the one that left longest ago goes first.
pub const JOBS_MAX: usize = PLACES - 2;

/// Users of one host that are jobs of their own at a time, at most: a host says itself who asks, and must not make itself
/// as many jobs as it likes. The others are the host's job.
pub const USERS_AT_MAX: usize = 16;

/// All clients for which there is no room are this one job.
const OTHERS: JobId = JobId(PLACES as u32 - 1);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobFacts {
    pub id: JobId,
    pub client: Client,
    pub connections: u32,
    /// Processor time used since it came.
    pub used: Duration,
    /// Of late, decayed: less goes first.
    pub recent: Duration,
    /// Requests answered since it came.
    pub requests: u64,
    /// Blocks that it wrote and that are not yet on their disks.
    pub dirty_blocks: u64,
}

pub struct Jobs {
    table: Mutex<Table>,
    merged: Box<[Merged]>,
    groups: Mutex<Arc<[Group]>>,
}

/// What is known of the job at a place; processors tell each other of it now and then.
#[derive(Default)]
struct Merged {
    /// Used since the start by all jobs that were there.
    used_ns: AtomicU64,
    /// How much that of now has used of late.
    recent_ns: AtomicU64,
    /// Requests answered since the start for all that were there.
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
    /// Clients that are one job by a name, from now on: those that are connected stay who they are.
    pub fn set_groups(&self, groups: &[Group]) {
        *self.groups.lock().unwrap_or_else(PoisonError::into_inner) = groups.into();
    }

    pub fn client_of(&self, origin: Origin) -> Client {
        let groups = Arc::clone(&self.groups.lock().unwrap_or_else(PoisonError::into_inner));
        origin.client(&groups)
    }

    /// A connection of `client` has come.
    pub fn connect(self: &Arc<Self>, client: Client) -> Member {
        let job = self.lock().connect(client, &self.merged);
        Member { jobs: Arc::clone(self), job }
    }

    pub fn list(&self) -> Vec<JobFacts> {
        self.lock().list(&self.merged)
    }

    /// What there is to be seen: those that have connections, use something, or have something dirty, by what they used
    /// of late, the most first; at most so many.
    pub fn most_used(&self, number: usize) -> Vec<JobFacts> {
        let mut jobs = self.list();
        jobs.retain(|facts| facts.connections > 0 || !facts.recent.is_zero() || facts.dirty_blocks > 0);
        jobs.sort_by(|a, b| (b.recent, b.used).cmp(&(a.recent, a.used)).then_with(|| a.client.cmp(&b.client)));
        jobs.truncate(number);
        jobs
    }

    /// Blocks that the job wrote and that are not yet on their disks.
    pub(crate) fn dirty(&self, job: JobId) -> u64 {
        self.merged[place(job)].dirty.load(Ordering::Relaxed)
    }

    /// It has written so many more.
    pub(crate) fn add_dirty(&self, job: JobId, blocks: u64) {
        self.merged[place(job)].dirty.fetch_add(blocks, Ordering::Relaxed);
    }

    /// So many of them are on their disks, or forgotten.
    pub(crate) fn subtract_dirty(&self, job: JobId, blocks: u64) {
        self.merged[place(job)].dirty.fetch_sub(blocks, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One connection of a job.
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
        self.jobs.lock().leave(self.job);
    }
}

/// Where in the tables a job is.
fn place(job: JobId) -> usize {
    job.0 as usize % PLACES
}
