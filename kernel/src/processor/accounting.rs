//! What a processor counts, and what it does with its time (OLTP 1.2).

use std::cell::{Cell, RefCell};

use smallvec::SmallVec;

use super::Processor;
use crate::counters::{Activity, Count};
use crate::request::JobId;
use crate::trace::{Began, Event, Whose};

/// The beginning of something whose duration is counted, whether or not it is recorded.
#[derive(Clone, Copy, Debug)]
#[must_use = "what is begun is counted at its end"]
pub struct Timed {
    began: Began,
    ticks: u64,
}

/// Requests that came together and are answered in one go (OLTP-6): they leave together, so their latency is one, and the
/// time is asked once for all.
#[derive(Debug, Default)]
pub struct Together {
    /// When the first began. Ticks.
    began: Cell<u64>,
    /// How many of which type, and for whom.
    answered: RefCell<SmallVec<[(Event, JobId, u64); 2]>>,
    /// Each of them, while they are recorded.
    spans: RefCell<SmallVec<[Span; 4]>>,
}

/// What is recorded when its end is known.
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
    /// Counts what it did so often, or so much of.
    #[inline]
    pub fn count(&self, what: Count, number: u64) {
        self.0.counters.count(what, number);
    }

    /// As [`Processor::begin`], for what is counted with its duration, too.
    #[inline]
    pub fn begin_timed(&self, event: Event, whose: impl Into<Whose>) -> Timed {
        let ticks = self.ticks();
        Timed { began: self.0.recorder.begin(event, whose, || ticks), ticks }
    }

    /// As [`Processor::begin_timed`], where one thing follows the other: it begins when the last one ended on this
    /// processor, or this task began to run, and the counter need not be read again.
    #[inline]
    pub fn begin_next(&self, event: Event, whose: impl Into<Whose>) -> Timed {
        let ticks = self.0.recorder.stamp();
        Timed { began: self.0.recorder.begin(event, whose, || ticks), ticks }
    }

    /// It ends. How long it took, in ticks.
    #[inline]
    pub fn end_timed(&self, timed: Timed, event: Event, whose: impl Into<Whose>, a: u64, b: u64) -> u64 {
        let ticks = self.ticks();
        self.0.recorder.set_stamp(ticks);
        self.0.recorder.end(timed.began, event, whose, a, super::recording::short(b), || ticks);
        ticks.saturating_sub(timed.ticks)
    }

    /// A request of a client was answered: [`Processor::end_timed`], counted with its latency.
    #[inline]
    pub fn end_request(&self, timed: Timed, event: Event, whose: impl Into<Whose>, a: u64, b: u64) {
        let whose = whose.into();
        let ticks = self.end_timed(timed, event, whose, a, b);
        self.0.counters.requests(event, 1, ticks);
        self.count_job_requests(whose.job, 1);
    }

    /// A request of a client was answered with others: recorded and counted with them at [`Processor::end_together`].
    #[inline]
    pub fn end_with(&self, together: &Together, timed: Timed, event: Event, whose: impl Into<Whose>, a: u64, b: u64) {
        let whose = whose.into();
        if self.0.recorder.is_on() {
            let span = Span { began: timed.began, event, whose, a, b: super::recording::short(b) };
            together.spans.borrow_mut().push(span);
        }
        together.add(event, whose.job, timed.ticks);
    }

    /// All that were answered together leave now: counts them, and records each. To be called before anything else is done
    /// or awaited.
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

    /// What has passed since the last charge was spent so. Called where something was just recorded with a stamp of its
    /// own, which then is the time: the counter is read only while nothing is recorded. How much that is, in ticks.
    #[inline]
    pub(super) fn charge(&self, activity: Activity) -> u64 {
        if self.0.recorder.is_on() {
            self.charge_until(self.0.recorder.stamp(), activity)
        } else {
            self.charge_now(activity)
        }
    }

    /// What has passed since the last charge was spent so.
    #[inline]
    pub(super) fn charge_now(&self, activity: Activity) -> u64 {
        let ticks = self.ticks();
        self.0.recorder.set_stamp(ticks);
        self.charge_until(ticks, activity)
    }

    #[inline]
    fn charge_until(&self, ticks: u64, activity: Activity) -> u64 {
        // A stamp may be older than the last charge, where recording was switched on in between.
        let passed = ticks.saturating_sub(self.0.charged.get());
        if passed > 0 {
            self.0.counters.spend(activity, passed);
            self.0.charged.set(ticks);
        }
        passed
    }
}
