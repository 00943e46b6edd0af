//! Whose turn it is among the jobs that have requests waiting (WS-7): start-time fair queueing.
//!
//! Each job has a count of what the disk has done for it. Who has the least is next, and who comes back after a pause
//! starts level with the one that is next then: a pause saves nothing up (Goyal, Vin, Cheng: *Start-time Fair Queuing: A
//! Scheduling Algorithm for Integrated Services Packet Switching Networks*, SIGCOMM 1996, section 2; all weights are
//! the same).

use std::collections::BTreeMap;

use crate::unit::JobId;

/// What any request costs, as bytes: a disk does as well to transfer so many.
const REQUEST_BYTES: u64 = 32 << 10;

/// On a disk with moving parts, the arm's order may favour one job by so much: about eight small requests. To turn
/// for each single one would be fair, and slow for all.
pub(super) const SLACK: u64 = 8 * REQUEST_BYTES;

/// Jobs remembered before those are forgotten that it makes no difference for.
const JOBS_MIN: usize = 64;

/// What was done for each job.
#[derive(Default)]
pub(super) struct Turns {
    done: BTreeMap<JobId, u64>,
    /// The least of those that wait, when a request was issued last.
    level: u64,
    /// Jobs remembered at which it is time to forget some.
    forget_at: usize,
}

impl Turns {
    /// Where the job stands: the least is next.
    pub(super) fn next_of(&self, job: JobId) -> u64 {
        self.done.get(&job).map_or(self.level, |done| self.level.max(*done))
    }

    /// The least of those that wait stands there.
    pub(super) fn advance(&mut self, least: u64) {
        self.level = self.level.max(least);
    }

    /// A request of so many bytes is issued.
    pub(super) fn charge(&mut self, job: JobId, bytes: u64) {
        let done = self.next_of(job).saturating_add(bytes.saturating_add(REQUEST_BYTES));
        self.done.insert(job, done);
        if self.done.len() > self.forget_at.max(JOBS_MIN) {
            self.done.retain(|_, done| *done > self.level);
            self.forget_at = 2 * self.done.len();
        }
    }
}
