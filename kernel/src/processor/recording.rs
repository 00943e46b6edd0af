//! Trace records of a processor.

use machine::TickSource;

use super::{CURRENT, Processor};
use crate::request::JobId;
use crate::trace::{Began, Event, SHORT_MAX, Whose};

/// The job of work for no client in particular.
pub(super) const NOBODY: JobId = JobId(0);

impl Processor {
    /// The present time, in the unit of stamps.
    #[inline]
    pub fn ticks(&self) -> u64 {
        match self.0.tick_source {
            TickSource::Counter => machine::counter(),
            TickSource::Clock => self.now().ns(),
        }
    }

    /// Records a moment; on a processor with the stamp of its previous record.
    #[inline]
    pub fn trace(&self, event: Event, whose: impl Into<Whose>, a: u64, b: u64) {
        self.0.recorder.moment_by(event, whose, a, short(b), || self.ticks());
    }

    /// Records a moment that other records imply, unless records are being thinned out.
    #[inline]
    pub fn trace_implied(&self, event: Event, whose: impl Into<Whose>, a: u64, b: u64) {
        self.0.recorder.implied_by(event, whose, a, short(b), || self.ticks());
    }

    /// Starts a span, which is recorded when it ends.
    #[inline]
    pub fn begin(&self, event: Event, whose: impl Into<Whose>) -> Began {
        self.0.recorder.begin(event, whose, || self.ticks())
    }

    /// Starts a span that other records imply, unless records are being thinned out.
    #[inline]
    pub fn begin_implied(&self, event: Event, whose: impl Into<Whose>) -> Began {
        self.0.recorder.begin_implied(event, whose, || self.ticks())
    }

    /// As `begin`, for consecutive spans: starts at this processor's previous record.
    #[inline]
    pub fn begin_after(&self, event: Event, whose: impl Into<Whose>) -> Began {
        self.0.recorder.begin(event, whose, || self.0.recorder.stamp())
    }

    #[inline]
    pub fn end(&self, began: Began, event: Event, whose: impl Into<Whose>, a: u64, b: u64) {
        self.0.recorder.end(began, event, whose, a, short(b), || self.ticks());
    }
}

/// The processor of this thread, if any.
pub(crate) fn here() -> Option<Processor> {
    CURRENT.with_borrow(Clone::clone)
}

pub(super) fn short(value: u64) -> u32 {
    value.min(u64::from(SHORT_MAX)) as u32
}
