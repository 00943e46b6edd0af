//! Which ready task runs next (WS-7): one of the job that has used least lately.
//!
//! Within a job tasks run in the order in which they became ready; tasks without a job run before all jobs: they are
//! few, and others wait for them. To bound the wait, each [`OLDEST_EVERY`]th task is the one that has been ready
//! longest, whatever its job: a task runs at most [`OLDEST_EVERY`] times as late as in order of arrival.
//!
//! While all ready tasks belong to one job (or none), and when it is off, they are in one queue: first come, first
//! served, at the cost of a ring buffer.
//!
//! A task woken by a completion runs at once (OLTP-3), unless a job that has used less has a ready task: else a task
//! with an endless series of completions would always run first.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::unit::JobId;

/// One task in this number is the one that has been ready longest.
pub const OLDEST_EVERY: u32 = 8;

/// Work that belongs to no job.
const NO_JOB: JobId = JobId(0);

/// Empty buffers of lanes that are reused.
const SPARE_MAX: usize = 32;

pub struct Dispatch<T> {
    by_usage: bool,
    /// All tasks, while they are of one job or none.
    line: VecDeque<(JobId, T)>,
    /// The job of the tasks in the line, other than none.
    line_of: JobId,
    /// All tasks otherwise. Empty while the line is used.
    lanes: BTreeMap<JobId, Lane<T>>,
    /// Jobs with a lane, least used first.
    order: BTreeSet<(u64, JobId)>,
    /// In order of arrival; may contain tasks that have run already.
    arrivals: VecDeque<(u64, JobId)>,
    sequence: u64,
    /// Job of the task that became ready last, if it waits in a lane.
    newest: Option<JobId>,
    since_oldest: u32,
    len: usize,
    spare: Vec<VecDeque<(u64, T)>>,
}

struct Lane<T> {
    ready: VecDeque<(u64, T)>,
    used: u64,
}

impl<T> Dispatch<T> {
    /// `by_usage`: whether jobs that used less run first.
    pub fn new(by_usage: bool) -> Self {
        Dispatch {
            by_usage,
            line: VecDeque::new(),
            line_of: NO_JOB,
            lanes: BTreeMap::new(),
            order: BTreeSet::new(),
            arrivals: VecDeque::new(),
            sequence: 0,
            newest: None,
            since_oldest: 0,
            len: 0,
            spare: Vec::new(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn clear(&mut self) {
        *self = Dispatch::new(self.by_usage);
    }

    /// A task of `job` is ready. `used` returns the recent usage of a job.
    pub fn push(&mut self, job: JobId, task: T, used: impl Fn(JobId) -> u64) {
        self.len += 1;
        if !self.lanes.is_empty() {
            return self.push_into_lane(job, task, used(job));
        }
        let is_of_line = job == NO_JOB || job == self.line_of || self.line_of == NO_JOB || self.line.is_empty();
        if is_of_line || !self.by_usage {
            if job != NO_JOB || self.line.is_empty() {
                self.line_of = job;
            }
            self.line.push_back((job, task));
            return;
        }
        for (job, task) in std::mem::take(&mut self.line) {
            self.push_into_lane(job, task, used(job));
        }
        self.push_into_lane(job, task, used(job));
    }

    /// Takes the task that runs next.
    pub fn take_next(&mut self) -> Option<(JobId, T)> {
        if self.lanes.is_empty() {
            let next = self.line.pop_front()?;
            self.len -= 1;
            return Some(next);
        }
        self.since_oldest += 1;
        let job = if self.since_oldest >= OLDEST_EVERY {
            self.since_oldest = 0;
            self.oldest()
        } else if self.lanes.contains_key(&NO_JOB) {
            Some(NO_JOB)
        } else {
            self.order.first().map(|(_, job)| *job)
        };
        self.take_of(job?)
    }

    /// Takes the task that became ready last, if it may run before all others: it has no job, or no waiting job has
    /// used less than its own. Call it directly after the [`push`](Self::push) of that task.
    pub fn take_newest(&mut self) -> Option<(JobId, T)> {
        if self.lanes.is_empty() {
            let newest = self.line.pop_back()?;
            self.len -= 1;
            return Some(newest);
        }
        let job = self.newest.take()?;
        let least = self.order.first().map_or(0, |(used, _)| *used);
        let lane = self.lanes.get_mut(&job)?;
        if job != NO_JOB && lane.used > least {
            return None;
        }
        let (_, task) = lane.ready.pop_back()?;
        self.arrivals.pop_back();
        self.taken_from(job);
        Some((job, task))
    }

    /// Turns the order by usage on or off. `used` as for [`push`](Self::push).
    pub fn set_by_usage(&mut self, by_usage: bool, used: impl Fn(JobId) -> u64) {
        self.by_usage = by_usage;
        let mut all: Vec<_> = self.line.drain(..).map(|(job, task)| (0, job, task)).collect();
        for (job, lane) in std::mem::take(&mut self.lanes) {
            all.extend(lane.ready.into_iter().map(|(sequence, task)| (sequence, job, task)));
        }
        all.sort_by_key(|(sequence, ..)| *sequence);
        self.clear();
        all.into_iter().for_each(|(_, job, task)| self.push(job, task, &used));
    }

    /// The job of the next task, except when the task that has been ready longest is due.
    pub fn next_job(&self) -> Option<JobId> {
        match self.lanes.is_empty() {
            true => self.line.front().map(|(job, _)| *job),
            false if self.lanes.contains_key(&NO_JOB) => Some(NO_JOB),
            false => self.order.first().map(|(_, job)| *job),
        }
    }

    /// Updates a job's recent usage.
    pub fn set_used(&mut self, job: JobId, used: u64) {
        if let Some(lane) = self.lanes.get_mut(&job)
            && lane.used != used
        {
            self.order.remove(&(lane.used, job));
            lane.used = used;
            self.order.insert((used, job));
        }
    }

    fn push_into_lane(&mut self, job: JobId, task: T, used: u64) {
        self.sequence += 1;
        self.arrivals.push_back((self.sequence, job));
        self.newest = Some(job);
        let spare = &mut self.spare;
        let lane = self.lanes.entry(job).or_insert_with(|| {
            self.order.insert((used, job));
            Lane { ready: spare.pop().unwrap_or_default(), used }
        });
        lane.ready.push_back((self.sequence, task));
    }

    fn oldest(&mut self) -> Option<JobId> {
        while let Some((sequence, job)) = self.arrivals.pop_front() {
            let first = self.lanes.get(&job).and_then(|lane| lane.ready.front());
            if first.is_some_and(|(first, _)| *first == sequence) {
                return Some(job);
            }
        }
        None
    }

    fn take_of(&mut self, job: JobId) -> Option<(JobId, T)> {
        let lane = self.lanes.get_mut(&job)?;
        let (_, task) = lane.ready.pop_front()?;
        self.newest = None;
        self.taken_from(job);
        Some((job, task))
    }

    fn taken_from(&mut self, job: JobId) {
        self.len -= 1;
        if self.lanes.get(&job).is_some_and(|lane| lane.ready.is_empty())
            && let Some(lane) = self.lanes.remove(&job)
        {
            self.order.remove(&(lane.used, job));
            if self.spare.len() < SPARE_MAX {
                self.spare.push(lane.ready);
            }
        }
        if self.lanes.is_empty() {
            self.arrivals.clear();
        }
    }
}
