//! What a processor counts, and what it does with its time (OLTP 1.2).

use super::Processor;
use crate::counters::{Activity, Count};
use crate::trace::{Began, Event, Whose};

/// The beginning of something whose duration is counted, whether or not it is recorded.
#[derive(Clone, Copy, Debug)]
#[must_use = "what is begun is counted at its end"]
pub struct Timed {
    began: Began,
    ticks: u64,
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
        self.0.counters.request(event, ticks);
        self.count_job_request(whose.job);
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
