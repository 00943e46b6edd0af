//! Which of the jobs with waiting requests is next (WS-7): start-time fair queueing.
//!
//! Each job has a count of the work done for it. The least is next, and a job that returns after a pause starts
//! virtual_time with the one that is next then: idling earns no credit (Goyal, Vin, Cheng: *Start-time Fair Queuing: A
//! Scheduling Algorithm for Integrated Services Packet Switching Networks*, SIGCOMM 1996, section 2; equal weights).

use std::collections::BTreeMap;

use crate::unit::JobId;

/// The cost of any request, as bytes that a disk could transfer instead.
const REQUEST_BYTES: u64 = 32 << 10;

/// On a disk with moving parts, the elevator may favour one job by this much, about eight small requests: strict
/// fairness for each request would be slow for all.
pub(super) const SLACK: u64 = 8 * REQUEST_BYTES;

/// Jobs recorded before those without an effect are dropped.
const JOBS_MIN: usize = 64;

#[derive(Default)]
pub(super) struct FairQueue {
    done: BTreeMap<JobId, u64>,
    /// The least `done` of a waiting job at the last issue.
    virtual_time: u64,
    /// Number of jobs at which the next cleanup is due.
    cleanup_at: usize,
}

impl FairQueue {
    /// The job's start tag: the least is next.
    pub(super) fn start_tag(&self, job: JobId) -> u64 {
        self.done.get(&job).map_or(self.virtual_time, |done| self.virtual_time.max(*done))
    }

    /// `least`: the least start tag of the waiting jobs.
    pub(super) fn advance(&mut self, least: u64) {
        self.virtual_time = self.virtual_time.max(least);
    }

    /// A request of `bytes` bytes is issued.
    pub(super) fn charge(&mut self, job: JobId, bytes: u64) {
        let done = self.start_tag(job).saturating_add(bytes.saturating_add(REQUEST_BYTES));
        self.done.insert(job, done);
        if self.done.len() > self.cleanup_at.max(JOBS_MIN) {
            self.done.retain(|_, done| *done > self.virtual_time);
            self.cleanup_at = 2 * self.done.len();
        }
    }
}
