//! A processor's counters and use of time (OLTP 1.2).

use std::cell::{Cell, RefCell};

use smallvec::SmallVec;

use super::Processor;
use crate::counters::{Activity, Count};
use crate::request::JobId;
use crate::trace::{Began, Event, Whose};

/// The start of an operation whose duration is counted, whether or not it is recorded.
#[derive(Clone, Copy, Debug)]
#[must_use = "what is begun is counted at its end"]
pub struct Timed {
    began: Began,
    ticks: u64,
}

/// Requests that are answered in one batch (OLTP-6): their replies leave in one send, so they have one latency, and the
/// time is read once.
#[derive(Debug, Default)]
pub struct Together {
    /// The first one's start. Ticks.
    began: Cell<u64>,
    /// Number of requests by type and job.
    answered: RefCell<SmallVec<[(Event, JobId, u64); 2]>>,
    /// The single requests, while recording is on.
    spans: RefCell<SmallVec<[Span; 4]>>,
}

/// A record whose end is pending.
#[derive(Debug)]
struct Span {
    began: Began,
    event: Event,
    whose: Whose,
    a: u64,
    b: u32,
}

impl Together {
    #[inline]
    fn add(&self, event: Event, job: JobId, began: u64) {
        let mut answered = self.answered.borrow_mut();
        if answered.is_empty() {
            self.began.set(began);
        }
        match answered.iter_mut().find(|(other, of, _)| (*other, *of) == (event, job)) {
            Some((.., count)) => *count += 1,
            None => answered.push((event, job, 1)),
        }
    }
}

impl Processor {
    /// Adds `number` to a counter.
    #[inline]
    pub fn count(&self, what: Count, number: u64) {
        self.0.counters.count(what, number);
    }

    /// As [`Processor::begin`], for operations whose duration is counted, too.
    #[inline]
    pub fn begin_timed(&self, event: Event, whose: impl Into<Whose>) -> Timed {
        let ticks = self.ticks();
        Timed { began: self.0.recorder.begin(event, whose, || ticks), ticks }
    }

    /// As [`Processor::begin_timed`], for consecutive operations: starts at the end of the last one on this processor,
    /// or at the start of this task's run, without reading the clock.
    #[inline]
    pub fn begin_next(&self, event: Event, whose: impl Into<Whose>) -> Timed {
        let ticks = self.0.recorder.stamp();
        Timed { began: self.0.recorder.begin(event, whose, || ticks), ticks }
    }

    /// Ends an operation; returns its duration in ticks.
    #[inline]
    pub fn end_timed(&self, timed: Timed, event: Event, whose: impl Into<Whose>, a: u64, b: u64) -> u64 {
        let ticks = self.ticks();
        self.0.recorder.set_stamp(ticks);
        self.0.recorder.end(timed.began, event, whose, a, super::recording::short(b), || ticks);
        ticks.saturating_sub(timed.ticks)
    }

    /// A client's request was answered: as [`Processor::end_timed`], and counts it with its latency.
    #[inline]
    pub fn end_request(&self, timed: Timed, event: Event, whose: impl Into<Whose>, a: u64, b: u64) {
        let whose = whose.into();
        let ticks = self.end_timed(timed, event, whose, a, b);
        self.0.counters.requests(event, 1, ticks);
        self.count_job_requests(whose.job, 1);
    }

    /// A client's request was answered in a batch: recorded and counted at [`Processor::end_together`].
    #[inline]
    pub fn end_with(&self, together: &Together, timed: Timed, event: Event, whose: impl Into<Whose>, a: u64, b: u64) {
        let whose = whose.into();
        if self.0.recorder.is_on() {
            let span = Span { began: timed.began, event, whose, a, b: super::recording::short(b) };
            together.spans.borrow_mut().push(span);
        }
        together.add(event, whose.job, timed.ticks);
    }

    /// Counts and records the batch. To be called before other work or a wait.
    #[inline]
    pub fn end_together(&self, together: &Together) {
        let mut answered = together.answered.borrow_mut();
        if answered.is_empty() {
            return;
        }
        let ticks = self.ticks();
        self.0.recorder.set_stamp(ticks);
        for Span { began, event, whose, a, b } in together.spans.borrow_mut().drain(..) {
            self.0.recorder.end(began, event, whose, a, b, || ticks);
        }
        for (event, job, count) in answered.drain(..) {
            self.0.counters.requests(event, count, ticks.saturating_sub(together.began.get()));
            self.count_job_requests(job, count);
        }
    }

    /// What the running task does from now on.
    #[inline]
    pub fn work_as(&self, activity: Activity) {
        let before = self.0.activity.replace(activity);
        let passed = self.charge_until(self.ticks(), before);
        self.0.charged_before.set(self.0.charged_before.get() + passed);
    }

    /// Does `work`, a part of the running task, as `activity`.
    #[inline]
    pub fn doing<T>(&self, activity: Activity, work: impl FnOnce() -> T) -> T {
        let before = self.activity();
        self.work_as(activity);
        let done = work();
        self.work_as(before);
        done
    }

    pub(super) fn activity(&self) -> Activity {
        self.0.activity.get()
    }

    pub(super) fn take_charged_before(&self) -> u64 {
        self.0.charged_before.take()
    }

    /// Charges the time since the last charge to `activity`; returns ticks. To be called right after a record, whose
    /// stamp is the time: the clock is read only while recording is off.
    #[inline]
    pub(super) fn charge(&self, activity: Activity) -> u64 {
        self.charge_until(self.stamp(), activity)
    }

    /// The processor parks: the time from the last charge until [`Processor::charge_idle`] is idle, also for who reads the
    /// counters meanwhile.
    #[inline]
    pub(super) fn charge_ahead(&self) {
        self.0.counters.park(self.0.charged.get());
    }

    /// As `charge`, after `charge_ahead`.
    #[inline]
    pub(super) fn charge_idle(&self) {
        let ticks = self.stamp().max(self.0.charged.get());
        self.0.counters.wake(ticks);
        self.0.charged.set(ticks);
    }

    /// The time of the last record, which is the present one.
    #[inline]
    fn stamp(&self) -> u64 {
        if self.0.recorder.is_on() { self.0.recorder.stamp() } else { self.stamp_now() }
    }

    #[inline]
    fn stamp_now(&self) -> u64 {
        let ticks = self.ticks();
        self.0.recorder.set_stamp(ticks);
        ticks
    }

    /// As `charge`, with the present time.
    #[inline]
    pub(super) fn charge_now(&self, activity: Activity) -> u64 {
        self.charge_until(self.stamp_now(), activity)
    }

    #[inline]
    fn charge_until(&self, ticks: u64, activity: Activity) -> u64 {
        // A stamp may be older than the last charge if recording was switched on in between.
        let passed = ticks.saturating_sub(self.0.charged.get());
        if passed > 0 {
            self.0.counters.spend(activity, passed);
            self.0.charged.set(ticks);
        }
        passed
    }
}
