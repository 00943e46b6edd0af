//! Waiting requests, indexed by arrival, by position and by end: each lookup in O(log n).

use std::collections::{BTreeMap, BTreeSet};

use super::{Arrival, RequestId, RequestKind, StreamId};
use crate::unit::{ByteOffset, Class, Instant, JobId};

#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) arrival: Arrival,
    pub(super) since: Instant,
    /// Order of arrival.
    pub(super) sequence: u64,
}

/// A stream and a byte in it.
pub(super) type Position = (StreamId, ByteOffset);

/// Sorted by position; kind and sequence distinguish requests at the same position.
type Key = (StreamId, ByteOffset, RequestKind, u64);

#[derive(Default)]
pub(super) struct Waiting {
    /// A single waiting request is not indexed: on a disk that keeps up, most wait alone.
    lone: Option<Request>,
    requests: BTreeMap<RequestId, Request>,
    synchronous: Lane,
    asynchronous: Lane,
    ends: BTreeMap<Key, RequestId>,
}

#[derive(Default)]
struct Lane {
    by_arrival: BTreeMap<u64, RequestId>,
    by_start: BTreeMap<Key, RequestId>,
    flushes: BTreeSet<u64>,
    jobs: BTreeMap<JobId, JobLane>,
}

/// The same indices for one job.
#[derive(Default)]
struct JobLane {
    by_arrival: BTreeMap<u64, RequestId>,
    by_start: BTreeMap<Key, RequestId>,
}

impl Waiting {
    pub(super) fn len(&self) -> usize {
        self.requests.len() + usize::from(self.lone.is_some())
    }

    pub(super) fn has(&self, class: Class) -> bool {
        self.oldest(class).is_some()
    }

    pub(super) fn get(&self, id: RequestId) -> Option<&Request> {
        self.lone.as_ref().filter(|r| r.arrival.id == id).or_else(|| self.requests.get(&id))
    }

    pub(super) fn insert(&mut self, request: Request) {
        debug_assert!(self.get(request.arrival.id).is_none(), "request queued twice");
        if self.len() == 0 {
            self.lone = Some(request);
            return;
        }
        if let Some(lone) = self.lone.take() {
            self.index(lone);
        }
        self.index(request);
    }

    pub(super) fn remove(&mut self, id: RequestId) -> Option<Request> {
        if self.lone.is_some_and(|r| r.arrival.id == id) {
            return self.lone.take();
        }
        let request = self.requests.remove(&id)?;
        let lane = self.lane_mut(request.arrival.class);
        lane.remove_of_job(&request);
        lane.by_arrival.remove(&request.sequence);
        if request.arrival.kind == RequestKind::Flush {
            lane.flushes.remove(&request.sequence);
        } else {
            lane.by_start.remove(&start_key(&request));
        }
        if request.may_merge() {
            self.ends.remove(&end_key(&request));
        }
        Some(request)
    }

    /// The longest waiting request of this class.
    pub(super) fn oldest(&self, class: Class) -> Option<&Request> {
        if let Some(lone) = &self.lone {
            return Some(lone).filter(|r| r.arrival.class == class);
        }
        let (_, id) = self.lane(class).by_arrival.first_key_value()?;
        self.requests.get(id)
    }

    /// Whether requests of more than one job wait.
    pub(super) fn has_several_jobs(&self, classes: &[Class]) -> bool {
        let mut jobs = classes.iter().flat_map(|class| self.lane(*class).jobs.keys());
        jobs.next().is_some_and(|first| jobs.any(|job| job != first))
    }

    /// The jobs with waiting requests of this class, each with the sequence number of its oldest.
    pub(super) fn jobs(&self, class: Class) -> impl Iterator<Item = (JobId, u64)> {
        let lone = self.lone.filter(|r| r.arrival.class == class).map(|r| (r.arrival.job, r.sequence));
        let oldest = |jobs: &JobLane| jobs.by_arrival.first_key_value().map_or(u64::MAX, |(sequence, _)| *sequence);
        lone.into_iter().chain(self.lane(class).jobs.iter().map(move |(job, lane)| (*job, oldest(lane))))
    }

    /// The longest waiting request of this class and job.
    pub(super) fn oldest_of(&self, class: Class, job: JobId) -> Option<&Request> {
        let (_, id) = self.lane(class).jobs.get(&job)?.by_arrival.first_key_value()?;
        self.requests.get(id)
    }

    /// The first request of this class and job at or after a position, else its first of all.
    pub(super) fn first_of(&self, class: Class, job: JobId, (stream, at): Position) -> Option<&Request> {
        let by_start = &self.lane(class).jobs.get(&job)?.by_start;
        let behind = by_start.range((stream, at, RequestKind::Read, 0)..).next();
        let (_, id) = behind.or_else(|| by_start.first_key_value())?;
        self.requests.get(id)
    }

    /// The longest waiting flush of this class.
    pub(super) fn flush(&self, class: Class) -> Option<&Request> {
        if let Some(lone) = &self.lone {
            return Some(lone).filter(|r| r.arrival.class == class && r.arrival.kind == RequestKind::Flush);
        }
        let lane = self.lane(class);
        self.requests.get(lane.by_arrival.get(lane.flushes.first()?)?)
    }

    /// The first request of this class at or after a position. Flushes have none.
    pub(super) fn first_from(&self, class: Class, (stream, at): Position) -> Option<&Request> {
        if let Some(lone) = &self.lone {
            return Some(lone).filter(|r| {
                r.arrival.class == class && r.arrival.kind != RequestKind::Flush && r.position() >= (stream, at)
            });
        }
        let from = (stream, at, RequestKind::Read, 0);
        let (_, id) = self.lane(class).by_start.range(from..).next()?;
        self.requests.get(id)
    }

    /// A request that starts where a run of this kind ends; a synchronous one, if there is one.
    pub(super) fn following(&self, stream: StreamId, kind: RequestKind, end: ByteOffset) -> Option<&Request> {
        let at_end = (stream, end, kind, 0)..=(stream, end, kind, u64::MAX);
        let find = |lane: &Lane| lane.by_start.range(at_end.clone()).next().map(|(_, id)| *id);
        let id = find(&self.synchronous).or_else(|| find(&self.asynchronous))?;
        self.requests.get(&id)
    }

    /// A request that ends where a run of this kind starts.
    pub(super) fn preceding(&self, stream: StreamId, kind: RequestKind, start: ByteOffset) -> Option<&Request> {
        let at_start = (stream, start, kind, 0)..=(stream, start, kind, u64::MAX);
        let (_, id) = self.ends.range(at_start).next()?;
        self.requests.get(id)
    }

    fn index(&mut self, request: Request) {
        let id = request.arrival.id;
        let lane = self.lane_mut(request.arrival.class);
        lane.by_arrival.insert(request.sequence, id);
        lane.insert_of_job(&request);
        if request.arrival.kind == RequestKind::Flush {
            lane.flushes.insert(request.sequence);
        } else {
            lane.by_start.insert(start_key(&request), id);
        }
        if request.may_merge() {
            self.ends.insert(end_key(&request), id);
        }
        self.requests.insert(id, request);
    }

    fn lane(&self, class: Class) -> &Lane {
        match class {
            Class::Synchronous => &self.synchronous,
            Class::Asynchronous => &self.asynchronous,
        }
    }

    fn lane_mut(&mut self, class: Class) -> &mut Lane {
        match class {
            Class::Synchronous => &mut self.synchronous,
            Class::Asynchronous => &mut self.asynchronous,
        }
    }
}

impl Lane {
    fn insert_of_job(&mut self, request: &Request) {
        let job = self.jobs.entry(request.arrival.job).or_default();
        job.by_arrival.insert(request.sequence, request.arrival.id);
        if request.arrival.kind != RequestKind::Flush {
            job.by_start.insert(start_key(request), request.arrival.id);
        }
    }

    fn remove_of_job(&mut self, request: &Request) {
        let Some(job) = self.jobs.get_mut(&request.arrival.job) else { return };
        job.by_arrival.remove(&request.sequence);
        job.by_start.remove(&start_key(request));
        if job.by_arrival.is_empty() {
            self.jobs.remove(&request.arrival.job);
        }
    }
}

impl Request {
    pub(super) fn position(&self) -> Position {
        (self.arrival.stream, self.arrival.range.at)
    }

    pub(super) fn may_merge(&self) -> bool {
        matches!(self.arrival.kind, RequestKind::Read | RequestKind::Write) && self.arrival.range.len > 0
    }
}

fn start_key(request: &Request) -> Key {
    let Arrival { stream, kind, range, .. } = request.arrival;
    (stream, range.at, kind, request.sequence)
}

fn end_key(request: &Request) -> Key {
    let Arrival { stream, kind, range, .. } = request.arrival;
    (stream, range.end(), kind, request.sequence)
}
