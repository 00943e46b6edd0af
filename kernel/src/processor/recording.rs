//! What a processor records of what happens on it.

use machine::TickSource;

use super::{CURRENT, Processor};
use crate::request::JobId;
use crate::trace::{Began, Event, SHORT_MAX, Whose};

/// What is done for nobody in particular.
pub(super) const NOBODY: JobId = JobId(0);

impl Processor {
    /// Stamps are in these units.
    #[inline]
    pub fn ticks(&self) -> u64 {
        match self.0.tick_source {
            TickSource::Counter => machine::counter(),
            TickSource::Clock => self.now().ns(),
        }
    }

    /// Records a moment; in place, with the stamp of what this processor recorded before it.
    #[inline]
    pub fn trace(&self, event: Event, whose: impl Into<Whose>, a: u64, b: u64) {
        self.0.recorder.moment_by(event, whose, a, short(b), || self.ticks());
    }

    /// Records a moment that what else is recorded implies, where nothing is thinned out.
    #[inline]
    pub fn trace_implied(&self, event: Event, whose: impl Into<Whose>, a: u64, b: u64) {
        self.0.recorder.implied_by(event, whose, a, short(b), || self.ticks());
    }

    /// Something begins that is recorded when it ends.
    #[inline]
    pub fn begin(&self, event: Event, whose: impl Into<Whose>) -> Began {
        self.0.recorder.begin(event, whose, || self.ticks())
    }

    /// The same, where one thing follows the other: it begins when this processor last recorded something.
    #[inline]
    pub fn begin_after(&self, event: Event, whose: impl Into<Whose>) -> Began {
        self.0.recorder.begin(event, whose, || self.0.recorder.stamp())
    }

    #[inline]
    pub fn end(&self, began: Began, event: Event, whose: impl Into<Whose>, a: u64, b: u64) {
        self.0.recorder.end(began, event, whose, a, short(b), || self.ticks());
    }
}

/// The processor whose thread this is, if it is one's.
pub(crate) fn here() -> Option<Processor> {
    CURRENT.with_borrow(Clone::clone)
}

/// As a record's short argument.
pub(super) fn short(value: u64) -> u32 {
    value.min(u64::from(SHORT_MAX)) as u32
}
