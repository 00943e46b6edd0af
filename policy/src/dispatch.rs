//! Which of the ready tasks runs next (WS-7): one of the job that has used least of late.
//!
//! Within a job tasks run in the order in which they became ready; those of nobody in particular go before all jobs: they
//! are few, and others wait for them. So that nobody waits without bound, each [`OLDEST_EVERY`]th task is the one that
//! has been ready longest, whoever's it is: a task runs at the latest [`OLDEST_EVERY`] times as late as in order of
//! arrival.
//!
//! While all ready tasks are of one job (or nobody's), and when it is off, they are in one line: first come, first
//! served, at the cost of a ring buffer.
//!
//! A task that a completion woke runs at once (OLTP-3), unless another job that has used less has something ready: else
//! one whose completions never end would always come first.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::unit::JobId;

/// Once in so many tasks it is the turn of the one that has been ready longest.
pub const OLDEST_EVERY: u32 = 8;

/// What is done for nobody in particular.
const NOBODY: JobId = JobId(0);

/// Buffers of lanes kept for the next ones.
const SPARE_MAX: usize = 32;

/// The ready tasks of one processor.
pub struct Dispatch<T> {
    by_usage: bool,
    /// All of them, while they are of one job or nobody's.
    line: VecDeque<(JobId, T)>,
    /// Whose they are in the line, but nobody's.
    line_of: JobId,
    /// Otherwise they are here. Empty while the line is used.
    lanes: BTreeMap<JobId, Lane<T>>,
    /// Jobs with a lane, least used first.
    order: BTreeSet<(u64, JobId)>,
    /// In order of arrival, and some that have run already.
    arrivals: VecDeque<(u64, JobId)>,
    sequence: u64,
    /// Whose task became ready last, if it waits in a lane.
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
    /// Nobody is ready. `by_usage`: is usage looked at?
    pub fn new(by_usage: bool) -> Self {
        Dispatch {
            by_usage,
            line: VecDeque::new(),
            line_of: NOBODY,
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

    /// Nobody is ready any more.
    pub fn clear(&mut self) {
        *self = Dispatch::new(self.by_usage);
    }

    /// A task of `job` is ready. `used` is asked what a job has used of late.
    pub fn push(&mut self, job: JobId, task: T, used: impl Fn(JobId) -> u64) {
        self.len += 1;
        if !self.lanes.is_empty() {
            return self.push_into_lane(job, task, used(job));
        }
        let is_of_line = job == NOBODY || job == self.line_of || self.line_of == NOBODY || self.line.is_empty();
        if is_of_line || !self.by_usage {
            if job != NOBODY || self.line.is_empty() {
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
        } else if self.lanes.contains_key(&NOBODY) {
            Some(NOBODY)
        } else {
            self.order.first().map(|(_, job)| *job)
        };
        self.take_of(job?)
    }

    /// Takes the task that became ready last, if it may run before all others: it is nobody's, or no job that waits has
    /// used less than its own. To be asked at once after the [`push`](Self::push) of it.
    pub fn take_newest(&mut self) -> Option<(JobId, T)> {
        if self.lanes.is_empty() {
            let newest = self.line.pop_back()?;
            self.len -= 1;
            return Some(newest);
        }
        let job = self.newest.take()?;
        let least = self.order.first().map_or(0, |(used, _)| *used);
        let lane = self.lanes.get_mut(&job)?;
        if job != NOBODY && lane.used > least {
            return None;
        }
        let (_, task) = lane.ready.pop_back()?;
        self.arrivals.pop_back();
        self.taken_from(job);
        Some((job, task))
    }

    /// Is usage looked at from now on? `used` as for [`push`](Self::push).
    pub fn set_by_usage(&mut self, by_usage: bool, used: impl Fn(JobId) -> u64) {
        self.by_usage = by_usage;
        let mut all: Vec<_> = self.line.drain(..).map(|(job, task)| (0, job, task)).collect();
        for (job, lane) in std::mem::take(&mut self.lanes) {
            all.extend(lane.ready.into_iter().map(|(sequence, task)| (sequence, job, task)));
        }
        // In the order in which they became ready.
        all.sort_by_key(|(sequence, ..)| *sequence);
        self.clear();
        all.into_iter().for_each(|(_, job, task)| self.push(job, task, &used));
    }

    /// Whose task runs next, but for the turn of the one that has been ready longest.
    pub fn next_job(&self) -> Option<JobId> {
        match self.lanes.is_empty() {
            true => self.line.front().map(|(job, _)| *job),
            false if self.lanes.contains_key(&NOBODY) => Some(NOBODY),
            false => self.order.first().map(|(_, job)| *job),
        }
    }

    /// A job has used so much of late.
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

    /// Whose task has been ready longest.
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
